"""A trained model as one file of plain numbers and text: `model.safetensors`. Loading it executes nothing.

The tensors are the coefficients, intercepts and standard units; everything else (schema, settings, versions,
what statements from fresh rows need) is JSON in the header. A file is accepted only if writing its content
again gives the same bytes, so that a change of any byte shows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit, softmax

from bidro.arrays import Floats
from bidro.curves import Basis
from bidro.errors import BidroError
from bidro.guarantees.statements import Assessed
from bidro.losses import Loss, losses_of, registry
from bidro.own_file import own_models_in
from bidro.packed import decoded, encoded
from bidro.sets import Simplex
from bidro.standard import Standard, signs
from bidro.tables import Schema

FORMAT, VERSION = "bidro model", 2
FILE = "model.safetensors"


@dataclass(frozen=True, eq=False)
class Model:
    """A linear model with all that is needed to use it on a table and to certify it on fresh rows."""

    schema: Schema
    loss: Loss  # in the units of training
    x: Floats  # (d,) the model in those units
    standard: Standard
    clients: tuple[str, ...]
    seen: float  # what losses are clipped at: the largest training loss, or another level from training
    largest: float | None  # on the declared support
    slope: float | None
    of_root: bool
    settings: Mapping[str, Any]  # how it was trained, in words and numbers
    versions: Mapping[str, str]
    pooled: Floats | None = None  # (d,) the model of pooled training, for comparison
    own: Mapping[str, Floats] = field(default_factory=dict)  # (d,) clients' own models, in a file beside it

    @property
    def assessed(self) -> Assessed:
        """For any mixture of the clients."""
        mixtures = Simplex(len(self.clients))
        return Assessed(self.loss, self.x, mixtures, self.seen, self.largest, self.slope, self.of_root)

    @property
    def coefficients(self) -> tuple[Floats, Floats]:
        """(coefficients (outputs, k), intercepts (outputs,)) on the original scale."""
        return self._coefficients(self.x)

    def _coefficients(self, x: Floats) -> tuple[Floats, Floats]:
        w, b = (np.asarray(v) for v in self.loss.split(x))  # type: ignore[attr-defined]
        return self.standard.coefficients(np.atleast_2d(w), np.atleast_1d(b))

    def predict(self, table: pd.DataFrame) -> pd.DataFrame:
        """One row a row: `prediction`, and for a model of probabilities `probability of <class>`.

        Where the table names clients, rows of those with a model of their own are predicted by that.
        """
        coefficients, intercepts = self.coefficients
        features = self.schema.matrix(table)
        scores = features @ coefficients.T + intercepts
        if self.own and self.schema.client in table:
            clients = self.schema.clients(table)
            for name in set(clients.tolist()) & set(self.own):
                own, (coefficients, intercepts) = clients == name, self._coefficients(self.own[name])
                scores[own] = features[own] @ coefficients.T + intercepts
        classes = self.schema.classes
        if classes is None:
            return pd.DataFrame({"prediction": scores[:, 0]}, index=table.index)
        two = scores.shape[1] == 1
        best = (scores[:, 0] > 0).astype(int) if two else scores.argmax(axis=1)
        found = {"prediction": np.asarray(classes)[best]}
        if registry.entry_of(self.loss).probabilities:
            shares = np.column_stack([expit(-scores), expit(scores)]) if two else softmax(scores, axis=1)
            found |= {f"probability of {name}": shares[:, k] for k, name in enumerate(classes)}
        return pd.DataFrame(found, index=table.index)

    def rows(self, table: pd.DataFrame) -> Floats:
        """(N, k + 1) the table's features and target in the units of training."""
        return self.standard.rows(self.schema.matrix(table), target_numbers(self.schema, table))

    def used_by(self, client: str) -> Floats:
        """(d,) the model that a client uses: its own, or the shared one."""
        return self.own.get(client, self.x)

    def losses(self, rows: Floats, x: Floats | None = None) -> Floats:
        """(N,) in the unit of the loss, under the shared model or another x (d,)."""
        return losses_of(self.loss, self.x if x is None else x, rows)

    def scores(self, rows: Floats, x: Floats | None = None) -> Floats:
        """(N, scores) what a model predicts for rows in the units of training."""
        w, b = self.loss.split(self.x if x is None else x)  # type: ignore[attr-defined]
        return np.asarray(rows[:, :-1] @ np.atleast_2d(w).T + np.atleast_1d(b))

    def correct(self, rows: Floats, x: Floats | None = None) -> NDArray[np.bool_] | None:
        """(N,) whether the predicted class is the true one, of rows in the units of training; None for a
        number."""
        if self.schema.classes is None:
            return None
        scores = self.scores(rows, x)
        if scores.shape[1] == 1:
            return np.asarray((scores[:, 0] > 0) == (rows[:, -1] > 0))
        return np.asarray(scores.argmax(axis=1) == rows[:, -1])

    def to_bytes(self) -> bytes:
        tensors = {"model": self.x, "mean": self.standard.mean, "spread": self.standard.spread}
        if self.pooled is not None:
            tensors["pooled"] = self.pooled
        header = {
            "format": FORMAT,
            "version": VERSION,
            "schema": self.schema.to_dict(),
            "loss": _loss_to_dict(self.loss),
            "middle": self.standard.middle,
            "target_spread": self.standard.target_spread,
            "clients": list(self.clients),
            "seen": self.seen,
            "largest": self.largest,
            "slope": self.slope,
            "of_root": self.of_root,
            "settings": dict(self.settings),
            "versions": dict(self.versions),
        }
        return encoded(tensors, header)

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Model:
        """Raises BidroError for bytes that are no model, or not exactly as they were written."""
        tensors, header = decoded(data, where)
        try:
            if header["format"] != FORMAT or header["version"] != VERSION:
                raise BidroError(
                    f"'{where}' is of format {header['format']!r}, version {header['version']!r}; this "
                    f"program reads '{FORMAT}', version {VERSION}."
                )
            standard = Standard(
                tensors["mean"], tensors["spread"], float(header["middle"]), float(header["target_spread"])
            )
            schema, loss = Schema.from_dict(header["schema"]), _loss_from_dict(header["loss"])
            found = cls(
                schema,
                loss,
                tensors["model"],
                standard,
                _names(header["clients"]),
                float(header["seen"]),
                _number_or_none(header["largest"]),
                _number_or_none(header["slope"]),
                bool(header["of_root"]),
                dict(header["settings"]),
                dict(header["versions"]),
                tensors.get("pooled"),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, BidroError):
                raise
            raise BidroError(f"'{where}' is not a whole model: {type(error).__name__}, {error}.") from error
        k, standard = len(schema.features), found.standard
        shapes = (found.x.shape, standard.mean.shape, standard.spread.shape)
        as_model = found.pooled is None or found.pooled.shape == found.x.shape
        if shapes != ((loss.dimension(k + 1),), (k,), (k,)) or not as_model:
            raise BidroError(f"'{where}' is not a whole model: its numbers do not fit its {k} features.")
        if not (np.all(standard.spread > 0) and standard.target_spread > 0 and found.seen >= 0):
            raise BidroError(f"'{where}' is not a whole model: a spread or a loss in it is not positive.")
        return found


def target_numbers(schema: Schema, table: pd.DataFrame) -> Floats:
    """(N,) the target as losses know it."""
    given, classes = schema.labels(table), schema.classes
    if classes is None:
        return np.asarray(given, float)
    return signs(np.searchsorted(np.asarray(classes), given), len(classes))


def load_model(folder: Path | str) -> Model:
    """The model in a folder that `bidro fit` wrote, or in a file of it, with the clients' own models that are
    beside it."""
    folder = Path(folder)
    path = folder / FILE if folder.is_dir() else folder
    if not path.exists():
        raise BidroError(f"There is no model in '{folder}': '{path}' does not exist.")
    model = Model.from_bytes(path.read_bytes(), str(path))
    return replace(model, own=own_models_in(path.parent, model.x))


def _names(clients: Any) -> tuple[str, ...]:
    if not isinstance(clients, list) or not clients or not all(isinstance(name, str) for name in clients):
        raise TypeError("its clients are not a list of names")
    return tuple(clients)


def _number_or_none(value: Any) -> float | None:
    return None if value is None else float(value)


def _loss_to_dict(loss: Loss) -> dict[str, Any]:
    """Its word and its parameters; the knots of curves only where there are some."""
    content = {"name": registry.entry_of(loss).word, **vars(loss)}
    basis = content.pop("basis", None)
    return content if basis is None else {**content, "knots": [list(own) for own in basis.knots]}


def _loss_from_dict(content: Mapping[str, Any]) -> Loss:
    parameters = {key: value for key, value in content.items() if key not in ("name", "knots")}
    if not all(isinstance(v, bool | int | float) and math.isfinite(v) for v in parameters.values()):
        raise TypeError("a loss has parameters that are not numbers")
    kind: Any = registry.kinds()[content["name"]]
    if "knots" not in content:
        return cast(Loss, kind(**parameters))
    knots = content["knots"]
    if not isinstance(knots, list) or not all(
        isinstance(own, list) and all(isinstance(knot, float) for knot in own) for own in knots
    ):
        raise TypeError("its knots are not lists of numbers")
    return cast(Loss, kind(**parameters, basis=Basis(tuple(tuple(own) for own in knots))))
