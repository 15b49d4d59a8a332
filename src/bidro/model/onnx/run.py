"""Models in ONNX files, run in a process of their own: what they take and give, and what they predict.

A file is data from elsewhere. The process that reads it (`process`) holds the rows that it is given and
nothing else; it has no network, no files and no other process (on Linux; elsewhere only limits of memory and
time, and `locked` says so), and ends after its one answer. The two processes exchange JSON with a few parts
of plain bytes behind it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidro.core.arrays import Floats
from bidro.core.errors import BidroError, listed, one_line, require_package
from bidro.core.files import read_bytes, require_file

MOST_BYTES = 16 * 2**20  # of a file
MEMORY = 2 * 2**30  # bytes of the process
SECONDS = 300  # of the process, for all rows
PROGRAM = ["-m", "bidro.model.onnx.process"]
# Of an answer, beyond eight bytes a number.
_ROOM = 2**20
# Outputs of these kinds are predicted classes.
_LABELS = ("text", "int64")


class Port(NamedTuple):
    """An input or output of a model."""

    name: str
    kind: str  # float32, float64, int64, text; of outputs also "by class", a number for every class
    flat: bool  # whether it is of one axis, that of the rows
    width: int | None  # columns; None where any number will do


def packed(content: dict[str, Any], parts: Sequence[bytes] = ()) -> bytes:
    head = json.dumps({**content, "parts": [len(part) for part in parts]}).encode()
    return b"".join([len(head).to_bytes(8, "little"), head, *parts])


def unpacked(stream: BinaryIO) -> tuple[dict[str, Any], list[bytes]]:
    """Raises BidroError for anything that `packed` has not made."""
    try:
        content = json.loads(_exactly(stream, int.from_bytes(_exactly(stream, 8), "little")))
        return content, [_exactly(stream, int(size)) for size in content.pop("parts")]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise BidroError("A message between processes is cut off.") from error


def _exactly(stream: BinaryIO, size: int) -> bytes:
    found = stream.read(size)
    if len(found) < size:
        raise ValueError("too short")
    return found


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
        [sys.executable, "-P", "-s", *PROGRAM],
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
    answer, found = unpacked(BytesIO(said))
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


def by_name(inputs: Sequence[Port], columns: Collection[str], features: Sequence[str]) -> bool:
    """Whether a model takes columns one by one, each an input of its name, or else all `features` as one.

    Raises BidroError for a model that takes anything else.
    """
    single = all(port.width in (1, None) for port in inputs)
    strange = [port.name for port in inputs if port.name not in columns]
    if inputs and single and not strange:
        return True
    if len(inputs) == 1 and inputs[0].kind != "text" and not inputs[0].flat:
        width = inputs[0].width
        if width is None or width == len(features):
            return False
        raise BidroError(
            f"The model takes {width} numbers a row, and there are {len(features)} features: "
            f"{_listed(features) or 'none was named'}."
        )
    if strange and single:
        raise BidroError(
            f"The model has an input '{one_line(strange[0], 100)}', and there is no such column; there are "
            f"{_listed([*columns])}."
        )
    given = _listed([f"{port.name} ({port.width or 'any'})" for port in inputs]) or "none"
    raise BidroError(
        "The model must have one input for every column that it uses, of its name and one column wide, or "
        f"one input of numbers for all; its inputs are: {given}."
    )


def _listed(names: Sequence[str]) -> str:
    return listed(one_line(name, 100) for name in names)


class Roles(NamedTuple):
    """Places of the outputs that a target needs."""

    number: int | None = None
    label: int | None = None
    shares: int | None = None  # probabilities of classes

    @classmethod
    def of(cls, outputs: Sequence[Port], numeric: bool) -> Roles:
        """Raises BidroError for a model whose outputs are not those of a number, or of classes."""
        labels = [k for k, port in enumerate(outputs) if port.kind in _LABELS]
        others = [k for k in range(len(outputs)) if k not in labels]
        given = _listed([f"{port.name} ({port.kind})" for port in outputs])
        if numeric:
            if (
                len(outputs) != 1
                or labels
                or outputs[0].kind == "by class"
                or outputs[0].width not in (1, None)
            ):
                raise BidroError(
                    f"A model of a number has one output, one number a row; this one has {given}."
                )
            return cls(number=0)
        if len(labels) > 1 or len(others) > 1 or any(outputs[k].width not in (1, None) for k in labels):
            raise BidroError(
                "A model of classes has an output of the predicted class, one of a probability for every "
                f"class, or both; this one has {given}."
            )
        return cls(label=labels[0] if labels else None, shares=others[0] if others else None)


class Predictions(NamedTuple):
    """The predictions of a model for rows; NaN, or "", where it gives none."""

    numbers: Floats | None = None  # (N,)
    labels: NDArray[np.str_] | None = None  # (N,)
    shares: Floats | None = None  # (N, classes)
    classes: tuple[str, ...] = ()  # of these columns

    @classmethod
    def of(
        cls,
        model: OnnxModel,
        roles: Roles,
        found: Sequence[Floats | NDArray[np.str_]],
        classes: Sequence[str],
    ) -> Predictions:
        """`classes` are those of the target, for columns of probabilities that the file does not name: in the
        order of their texts. One column for two classes is the probability of the second.

        Raises BidroError for another number of columns than classes.
        """
        labels = None if roles.label is None else np.asarray(found[roles.label], str)
        if roles.number is not None:
            numbers = np.asarray(found[roles.number], float)
            if numbers.shape[1] != 1:
                raise BidroError(f"The model gives {numbers.shape[1]} numbers a row; a prediction is one.")
            return cls(numbers[:, 0])
        if roles.shares is None:
            return cls(labels=labels)
        shares, names = np.asarray(found[roles.shares], float), model.classes or tuple(classes)
        if shares.shape[1] == 1 and len(names) == 2:
            shares = np.column_stack([1 - shares[:, 0], shares[:, 0]])
        if shares.shape[1] != len(names):
            raise BidroError(
                f"The model gives {shares.shape[1]} numbers a row for {len(names)} classes, {_listed(names)};"
                " name its classes in the file's metadata, under 'classes' as a JSON list in the order of "
                "its columns, or export it with a ZipMap."
            )
        return cls(labels=labels, shares=shares, classes=names)

    @property
    def contradicts(self) -> NDArray[np.bool_]:
        """(N,) where the label is not the class of the highest probability: classes in another order than the
        columns, most likely. Ties, and rows of which nothing is said, do not count."""
        if self.labels is None or self.shares is None:
            return np.zeros(0, bool)
        with np.errstate(invalid="ignore"):
            highest = self.shares >= np.max(self.shares, axis=1, keepdims=True) * (1 - 1e-6)
        is_label = np.array(self.classes)[None, :] == self.labels[:, None]
        return np.asarray(highest.any(axis=1) & (self.labels != "") & ~(highest & is_label).any(axis=1))
