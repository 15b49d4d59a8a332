"""Clients' personal models as one file of plain numbers: `personal.safetensors`, in the model folder or at a
site.

It holds one model a client in the units of the shared one, and a digest of that, so that a correction is
never used with another model than the one that it corrects. Of models that were adapted after training it
holds the sketch of the rows (`certify.trained_rows`), so that no model goes anywhere without it: these
rows say nothing of it. Loading it executes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bidro.certify.trained_rows import TrainedRows
from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.core.files import read_bytes
from bidro.core.packed import decoded, encoded
from bidro.core.pytrees import Frozen

FORMAT, VERSION = "bidro personal models", 1
FILE = "personal.safetensors"
# The name in earlier folders.
_EARLIER_FORMAT, _EARLIER_FILE = "bidro own models", "own.safetensors"


@dataclass(frozen=True, eq=False)
class PersonalModels:
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
    def from_bytes(cls, data: bytes, shared: Floats, where: str) -> PersonalModels:
        """Raises BidroError for bytes that are no personal models, not as they were written, or of another
        shared model than `shared` (d,)."""
        tensors, header = decoded(data, where)
        if header.get("format") not in (FORMAT, _EARLIER_FORMAT) or header.get("version") != VERSION:
            raise BidroError(f"'{where}' holds no clients' personal models that this version of bidro reads.")
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


def personal_models_in(folder: Path, shared: Floats) -> Mapping[str, Floats]:
    """The clients' personal models in a model folder, by name; none where there is no such file."""
    return personal_file_in(folder, shared).clients


def personal_file_in(folder: Path, shared: Floats) -> PersonalModels:
    """The file of personal models in a model folder; without clients where there is no such file."""
    path = folder / FILE
    path = path if path.exists() else folder / _EARLIER_FILE
    if not path.exists():
        return PersonalModels({}, shared)
    return PersonalModels.from_bytes(read_bytes(path), shared, str(path))


def _digest(shared: Floats) -> str:
    return hashlib.sha256(np.ascontiguousarray(shared, float).tobytes()).hexdigest()
