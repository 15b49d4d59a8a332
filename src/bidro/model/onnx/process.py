"""The process that runs a model: `python -m bidro.model.onnx.process`.

It takes one question from its standard input and leaves one answer on its standard output. Before it looks at
the model it gives up all that it could do but compute: it has limits of memory, time and files, and on Linux
a filter of system calls (seccomp) that leaves reading and writing what is open, and memory. No file can be
opened, no socket made, no process begun from then on, by any thread. Nothing but Linux on x86_64 and aarch64
has the filter; `locked_down` says whether it is in force.

Rows are run one by one, so that no prediction can depend on another row, and one that fails has no
prediction.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import socket
import struct
import sys
import time
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper

from bidro.core.errors import BidroError, one_line
from bidro.model.onnx.checked import Described, described
from bidro.model.onnx.run import Port, packed, unpacked


class _Machine(NamedTuple):
    kernel: int  # the number that the kernel knows it by
    seccomp: int  # the call itself
    allowed: tuple[int, ...]  # the calls that are left


# read, write, close, fstat, lseek, mmap, mprotect, munmap, brk, rt_sigaction, rt_sigprocmask, rt_sigreturn,
# readv, writev, sched_yield, mremap, madvise, nanosleep, getpid, exit, uname, getrusage, sysinfo, times,
# sigaltstack, gettid, futex, sched_getaffinity, restart_syscall, clock_gettime, clock_getres,
# clock_nanosleep, exit_group, getcpu, getrandom, membarrier, rseq: in this order, by machine.
_MACHINES = {
    "x86_64": _Machine(
        0xC000003E,
        317,
        (
            *(0, 1, 3, 5, 8, 9, 10, 11, 12, 13, 14, 15, 19, 20, 24, 25, 28, 35, 39, 60, 63, 98, 99, 100, 131),
            *(186, 202, 204, 219, 228, 229, 230, 231, 309, 318, 324, 334),
        ),
    ),
    "aarch64": _Machine(
        0xC00000B7,
        277,
        (
            *(63, 64, 57, 80, 62, 222, 226, 215, 214, 134, 135, 139, 65, 66, 124, 216, 233, 101, 172, 93),
            *(160, 165, 179, 153, 132, 178, 98, 123, 128, 113, 114, 115, 94, 168, 278, 283, 293),
        ),
    ),
}
_SET_MODE_FILTER, _ALL_THREADS, _NO_NEW_PRIVILEGES = 1, 1, 38
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL, _KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_char_p)]


def limit(memory: int, seconds: int) -> None:
    """Of this process: bytes of memory, seconds of the processor; no file can grow, and none is left behind
    where it dies."""
    for what, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        # Some systems have no limit of memory, and none may be raised.
        with suppress(OSError, ValueError):
            resource.setrlimit(what, (most, most))


def locked_down() -> bool:
    """Shut this process off from files, network and other processes for good; whether it is."""
    found = _MACHINES.get(platform.machine())
    if sys.platform != "linux" or found is None:
        return False
    calls = found.allowed
    steps = [(_LOAD, 0, 0, 4), (_IF_EQUAL, 1, 0, found.kernel), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    # A call that is in the list leaps over the others and the refusal.
    steps += [(_IF_EQUAL, len(calls) - place, 0, number) for place, number in enumerate(calls)]
    steps += [(_RETURN, 0, 0, _FAIL), (_RETURN, 0, 0, _ALLOW)]
    packed = b"".join(struct.pack("HBBI", *step) for step in steps)
    program = _Program(len(steps), packed)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    libc.syscall(found.seccomp, _SET_MODE_FILTER, _ALL_THREADS, ctypes.byref(program))
    return not (_can_connect() or _can_read())


def _can_connect() -> bool:
    try:
        socket.socket().close()
    except PermissionError:
        return False
    return True


def _can_read() -> bool:
    try:
        open("/dev/null", "rb").close()
    except PermissionError:
        return False
    return True


# Times that a made-up row is run to know how long one takes.
_TRIALS = 10


def main() -> None:
    question, parts = unpacked(sys.stdin.buffer)
    _session(_identity())  # whatever is loaded when a session is first made is loaded now
    onnx.checker.check_model(_identity())
    limit(int(question["memory"]), int(question["seconds"]))
    locked = locked_down()
    try:
        if question["lock"] and not locked:
            raise BidroError("This machine cannot shut a process off from its network and files.")
        answer, found = _answered(question, parts)
    except MemoryError:
        answer, found = {"error": "The model needs more memory than it may have."}, []
    except BidroError as error:
        answer, found = {"error": str(error)}, []
    sys.stdout.buffer.write(packed({**answer, "locked": locked}, found))
    sys.stdout.buffer.flush()
    # Nothing is left to be tidied up, and what would be done at the end may not be.
    os._exit(0)


def _answered(question: dict[str, Any], parts: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    model = described(parts[0])
    try:
        session = _session(parts[0])
    except Exception as error:  # what it raises are classes of its own
        raise BidroError(f"ONNX Runtime does not accept the model: {one_line(error, 200)}") from error
    if question["what"] == "describe":
        return _tried(session, model, question["examples"]), []
    columns = [np.frombuffer(part).reshape(question["rows"], -1) for part in parts[1:]]
    return _predicted(session, model, question, columns)


def _tried(session: Any, model: Described, examples: dict[str, str]) -> dict[str, Any]:
    """What the model is, and how long it takes for a row that is made up: zeros, and texts by column."""
    row = {
        port.name: np.full((1, port.width or 1), examples.get(port.name, ""), object)
        if port.kind == "text"
        else np.zeros((1, port.width or int(examples["features"])))
        for port in model.inputs
    }
    fed = {port.name: _as_input(port, row[port.name]) for port in model.inputs}
    try:
        given = session.run(None, fed)
        began = time.perf_counter()
        for _ in range(_TRIALS):
            session.run(None, fed)
    except Exception as error:
        raise BidroError(f"The model fails on a row of zeros: {one_line(error, 200)}") from error
    classes = model.classes
    for port, value in zip(model.outputs, given, strict=True):
        if port.kind == "by class":
            classes = tuple(str(name) for name in _of_classes(value))
    return {
        "inputs": [list(port) for port in model.inputs],
        "outputs": [list(port) for port in model.outputs],
        "classes": None if classes is None else list(classes),
        "seconds": (time.perf_counter() - began) / _TRIALS,
    }


def _predicted(
    session: Any, model: Described, question: dict[str, Any], columns: list[NDArray[np.float64]]
) -> tuple[dict[str, Any], list[bytes]]:
    """The outputs row by row: numbers (rows, width), NaN where there is none; texts as places in a list, -1
    where there is none."""
    rows, words = int(question["rows"]), question["words"]
    found: list[list[Any]] = [[None] * rows for _ in model.outputs]
    for i in range(rows):
        try:
            fed = {
                port.name: _as_input(port, _cells(values[i : i + 1], texts))
                for port, values, texts in zip(model.inputs, columns, words, strict=True)
            }
            given = session.run(None, fed)
        except MemoryError:
            raise
        except Exception:
            # It has no prediction; what that means is for the caller to decide.
            continue
        for k, (port, value) in enumerate(zip(model.outputs, given, strict=True)):
            found[k][i] = [*_of_classes(value).values()] if port.kind == "by class" else np.ravel(value)
    outputs = [_gathered(port, cells) for port, cells in zip(model.outputs, found, strict=True)]
    return {"texts": [texts for _, texts in outputs]}, [values.tobytes() for values, _ in outputs]


def _gathered(port: Port, cells: list[Any]) -> tuple[NDArray[np.float64], list[str] | None]:
    """(an output of all rows (rows, width), the texts that its numbers are places of)."""
    if port.kind in ("text", "int64"):
        # One that is not one value a row is no class.
        said = [None if cell is None or len(cell) != 1 else str(cell[0]) for cell in cells]
        texts = sorted({text for text in said if text is not None})
        place = {text: float(k) for k, text in enumerate(texts)}
        return np.array([[-1.0 if text is None else place[text]] for text in said]), texts
    widths = [len(cell) for cell in cells if cell is not None]
    width = widths[0] if widths else 1
    nothing = np.full(width, np.nan)
    fits = [nothing if cell is None or len(cell) != width else np.asarray(cell, float) for cell in cells]
    return np.array(fits).reshape(len(cells), width), None


def _cells(values: NDArray[np.float64], texts: list[str] | None) -> NDArray[Any]:
    """A row's values (1, width); texts are places in a list."""
    return values if texts is None else np.array([[texts[int(place)] for place in values[0]]], object)


def _as_input(port: Port, row: NDArray[Any]) -> NDArray[Any]:
    """A row (1, width) as an input takes it. Raises ValueError for a number that is not whole."""
    value = row[:, 0] if port.flat else row
    if port.kind == "text":
        return value
    if port.kind == "int64" and np.any(value != np.rint(value)):
        raise ValueError("not whole")
    return value.astype(port.kind)


def _of_classes(value: Any) -> dict[Any, float]:
    """The numbers of one row by class. Raises BidroError for a sequence of anything else."""
    if not isinstance(value, list) or len(value) != 1 or not isinstance(value[0], dict):
        raise BidroError("The model gives a sequence that is not one of probabilities by class.")
    return value[0]


def _session(model: bytes) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _identity() -> bytes:
    ports = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, [None, 1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "identity", ports[:1], ports[1:])
    return bytes(
        helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
        ).SerializeToString()
    )


if __name__ == "__main__":
    main()
