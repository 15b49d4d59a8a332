"""Clients' own models as one file of plain numbers: `own.safetensors`, beside the shared model or at a site.

It holds one model a client in the units of the shared one, and a digest of that, so that a correction is
never used with another model than the one that it corrects. Of models that were adapted after training it
holds the sketch of the rows (`guarantees.trained_rows`), so that no model goes anywhere without it: these
rows say nothing of it. Loading it executes nothing.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bidro.arrays import Floats
from bidro.errors import BidroError
from bidro.given_files import read_bytes
from bidro.guarantees.trained_rows import TrainedRows
from bidro.packed import decoded, encoded
from bidro.trees import Frozen

FORMAT, VERSION = "bidro own models", 1
FILE = "own.safetensors"


@dataclass(frozen=True, eq=False)
class OwnModels:
    clients: Mapping[str, Floats]  # (d,) by name
    shared: Floats  # (d,) the model that they correct
    adapted: Mapping[str, TrainedRows] = field(default_factory=dict)  # of clients adapted after training

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", Frozen(self.clients))
        object.__setattr__(self, "adapted", Frozen(self.adapted))

    def to_bytes(self) -> bytes:
        header: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "clients": list(self.clients),
            "shared": _digest(self.shared),
        }
        if self.adapted:
            header["adapted"] = {name: rows.to_json() for name, rows in self.adapted.items()}
        return encoded({"models": np.stack(list(self.clients.values()))}, header)

    @classmethod
    def from_bytes(cls, data: bytes, shared: Floats, where: str) -> OwnModels:
        """Raises BidroError for bytes that are no own models, not as they were written, or of another shared
        model than `shared` (d,)."""
        tensors, header = decoded(data, where)
        if (header.get("format"), header.get("version")) != (FORMAT, VERSION):
            raise BidroError(f"'{where}' holds no clients' own models that this version of bidro reads.")
        names, models = header.get("clients"), tensors.get("models")
        if not isinstance(names, list) or models is None or models.shape != (len(names), len(shared)):
            raise BidroError(f"'{where}' is not whole: its numbers do not fit its clients or the model.")
        if header.get("shared") != _digest(shared):
            raise BidroError(
                f"'{where}' corrects another model than the one beside it; fetch the model of the same run."
            )
        sketches = header.get("adapted", {})
        if not isinstance(sketches, dict) or not set(sketches) <= set(names):
            raise BidroError(f"'{where}' is not whole: its sketches of rows do not fit its clients.")
        adapted = {name: TrainedRows.from_json(text, where) for name, text in sketches.items()}
        return cls(dict(zip(map(str, names), models, strict=True)), shared, adapted)


def own_models_in(folder: Path, shared: Floats) -> Mapping[str, Floats]:
    """The clients' own models in a model folder, by name; none where there is no such file."""
    return own_file_in(folder, shared).clients


def own_file_in(folder: Path, shared: Floats) -> OwnModels:
    """All that is in the file of own models; of no client where there is no such file."""
    path = folder / FILE
    if not path.exists():
        return OwnModels({}, shared)
    return OwnModels.from_bytes(read_bytes(path), shared, str(path))


def write_private(path: Path, content: bytes) -> None:
    """Write a whole file that only its owner may read, in place of one that is there."""
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _digest(shared: Floats) -> str:
    return hashlib.sha256(np.ascontiguousarray(shared, float).tobytes()).hexdigest()
