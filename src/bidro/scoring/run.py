"""Models in ONNX files, run in a process of their own: what they take and give, and what they predict.

A file is data from elsewhere. The process that reads it holds the rows that it is given and nothing else; it
has no network, no files and no other process (on Linux; elsewhere only limits of memory and time, and
`locked` says so), and ends after its one answer.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bidro.arrays import Floats
from bidro.errors import BidroError, one_line, require_package
from bidro.given_files import read_bytes, require_file
from bidro.scoring.framed import packed, read
from bidro.scoring.ports import MOST_BYTES, Port

MEMORY = 2 * 2**30  # bytes of the process
SECONDS = 300  # of the process, for all rows
_PROGRAM = ["-m", "bidro.scoring.process"]
# Of an answer, beyond eight bytes a number.
_ROOM = 2**20


@dataclass(frozen=True)
class OnnxModel:
    """A model that was checked, and ran on a row that was made up."""

    data: bytes
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    classes: tuple[str, ...] | None  # of the columns of probabilities; None where the file does not say
    seconds: float  # for a row
    locked: bool  # whether the process was shut off from files and network
    must_lock: bool

    @classmethod
    def read(cls, path: Path, examples: Mapping[str, str], features: int) -> OnnxModel:
        """From a file. Raises BidroError for one that is not accepted: see `of`."""
        data = file_bytes(path)
        try:
            return cls.of(data, examples, features)
        except BidroError as error:
            raise BidroError(f"'{path}': {error}") from error

    @classmethod
    def of(
        cls, data: bytes, examples: Mapping[str, str], features: int, must_lock: bool = False
    ) -> OnnxModel:
        """`examples` are texts that columns have, by name, and `features` how many columns of numbers there
        are: the model is tried on a row of them and of zeros. No row of any table is there.

        Raises BidroError, in one sentence, for a file that is not accepted; with `must_lock` also where this
        machine has no way to shut the process off.
        """
        for package in ("onnx", "onnxruntime"):
            require_package(package, "onnx", "A model in an ONNX file")
        if len(data) > MOST_BYTES:
            raise BidroError(f"The file has {len(data):,} bytes; a model may have {MOST_BYTES:,}.")
        question = {
            "what": "describe",
            "examples": {**examples, "features": str(features)},
            "lock": must_lock,
        }
        answer, _ = _answer(question, [data], _ROOM)
        inputs, outputs = (tuple(Port(*one) for one in answer[name]) for name in ("inputs", "outputs"))
        classes = None if answer["classes"] is None else tuple(answer["classes"])
        return cls(
            data, inputs, outputs, classes, float(answer["seconds"]), bool(answer["locked"]), must_lock
        )

    def require_time(self, rows: int) -> None:
        """Raise BidroError where so many rows would take too long, by a row that was made up."""
        if self.seconds * rows > SECONDS:
            raise BidroError(
                f"The model would take about {self.seconds * rows:,.0f} seconds for {rows:,} rows; it may "
                f"take {SECONDS}."
            )

    def run(self, columns: Mapping[str, Floats | NDArray[np.str_]]) -> list[Floats | NDArray[np.str_]]:
        """The outputs of rows: numbers (N, width), NaN where the model gives none, or texts (N,), "" where it
        gives none; numbers by class have a column a class.

        `columns` are by input, numbers (N, width) or texts (N,). Raises BidroError where the model takes too
        long, or its process ends.
        """
        rows = len(next(iter(columns.values())))
        self.require_time(rows)
        words: list[list[str] | None] = []
        parts = [self.data]
        for port in self.inputs:
            values = np.asarray(columns[port.name])
            texts = None
            if port.kind == "text":
                different, values = np.unique(values, return_inverse=True)
                texts = different.tolist()
            words.append(texts)
            parts.append(np.ascontiguousarray(values, float).tobytes())
        question = {"what": "predict", "rows": rows, "words": words, "lock": self.must_lock}
        classes = len(self.classes or ()) + 1
        width = sum(max(port.width or 1, classes) for port in self.outputs)
        answer, found = _answer(question, parts, _ROOM + (8 * width + 64) * rows)
        return [
            _output(np.frombuffer(part).reshape(rows, -1), texts)
            for part, texts in zip(found, answer["texts"], strict=True)
        ]


def file_bytes(path: Path) -> bytes:
    """Raises BidroError for a file that cannot be read, or is larger than a model may be."""
    require_file(path)
    if path.stat().st_size > MOST_BYTES:
        raise BidroError(f"'{path}' has {path.stat().st_size:,} bytes; a model may have {MOST_BYTES:,}.")
    return read_bytes(path, MOST_BYTES)


def _output(values: Floats, texts: Sequence[str] | None) -> Floats | NDArray[np.str_]:
    return values if texts is None else np.array([*texts, ""])[values[:, 0].astype(int)]


def _answer(
    question: dict[str, Any], parts: Sequence[bytes], most: int
) -> tuple[dict[str, Any], list[bytes]]:
    """What the process says, in at most so many bytes. Raises BidroError for nothing, and for why not."""
    sent = packed({**question, "memory": MEMORY, "seconds": SECONDS}, parts)
    # All that it needs to find the same packages as this process; nothing of this one's surroundings.
    surroundings = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    surroundings |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    process = subprocess.Popen(
        [sys.executable, "-P", "-s", *_PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=surroundings,
        cwd="/",
    )
    assert process.stdin is not None
    assert process.stdout is not None
    late = threading.Timer(2 * SECONDS, process.kill)
    late.start()
    writing = threading.Thread(target=_write, args=(process.stdin, sent))
    writing.start()
    try:
        said = process.stdout.read(most + 1)
    finally:
        # Whatever it still does is of no use any more.
        process.kill()
        process.wait()
        writing.join()
        late.cancel()
        process.stdout.close()
    if not said or len(said) > most:
        raise BidroError(
            "The process that ran the model ended without an answer: it took too much time or memory, or "
            "broke."
        )
    answer, found = read(BytesIO(said))
    if "error" in answer:
        raise BidroError(one_line(answer["error"]))
    return answer, found


def _write(stream: Any, data: bytes) -> None:
    try:
        stream.write(data)
        stream.close()
    except OSError:
        # The process ended before it had read everything, and says so by its silence.
        return
