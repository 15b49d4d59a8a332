"""A trained model as one file of plain numbers and text: `model.safetensors`. Loading it executes nothing.

The tensors are the coefficients, intercepts and standard units; everything else (schema, settings, versions,
what statements from fresh rows need) is JSON in the header. A file is accepted only if writing its content
again gives the same bytes, so that a change of any byte shows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit, softmax

from bidro.certify.intervals import FILE as INTERVALS_FILE
from bidro.certify.intervals import Intervals, class_sets, interval_ends
from bidro.certify.statements import CertifiedModel
from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.core.files import read_bytes, read_text, renamed
from bidro.core.packed import decoded, encoded
from bidro.core.sets import Simplex
from bidro.data.splines import Basis, Levels, Pair
from bidro.data.standardise import Standard, signs
from bidro.data.tables import Schema
from bidro.data.tables.survival import OUTCOMES
from bidro.losses import Loss, has_curves, losses_of, registry
from bidro.model.personal_file import personal_models_in
from bidro.model.predictor import Predictor, outside
from bidro.model.survival import curves_of, outlook

# Models of straight lines are written as before there were curves, so that older programs read them.
FORMAT, VERSION, WITH_CURVES = "bidro model", 2, 3
FILE = "model.safetensors"
# In place of that, in the folder of a neural network: see `neural.folder`.
NETWORK_FILE = "network.safetensors"


@dataclass(frozen=True, eq=False)
class Model:
    """A linear model with all that is needed to use it on a table and to certify it on fresh rows.

    It comes from `load_model`; `predict` takes a table with the columns of training.

    Examples:
        >>> import contextlib, io, tempfile
        >>> from bidro import example_visits, load_model
        >>> from bidro.cli import app
        >>> with tempfile.TemporaryDirectory() as at, contextlib.redirect_stdout(io.StringIO()):
        ...     example_visits().to_csv(f"{at}/visits.csv", index=False)
        ...     command = f"fit {at}/visits.csv --client hospital --target stay --out {at}/model"
        ...     app(command.split(), standalone_mode=False)
        ...     model = load_model(f"{at}/model")
        >>> model.predict(example_visits()[:2]).shape, model.clients[0]
        ((2, 1), 'east')
    """

    schema: Schema  # columns, levels and classes
    loss: Loss  # in the units of training
    x: Floats  # (d,) the model in those units
    standard: Standard  # the units of training
    clients: tuple[str, ...]  # of training
    seen: float  # what losses are clipped at: see `statements.clip_level`
    largest: float | None  # on the declared support
    slope: float | None  # the loss's, for room for shift; None where it is not known
    of_root: bool  # whether that slope is of the root of the loss
    settings: Mapping[str, Any]  # how it was trained, in words and numbers
    versions: Mapping[str, str]  # of bidro and what it computed with
    pooled: Floats | None = None  # (d,) the model of pooled training, for comparison
    personal: Mapping[str, Floats] = field(default_factory=dict)  # (d,) of clients, in a file of their own
    low: Floats | None = None  # (k,) the least value seen in training, where curves could be chosen
    high: Floats | None = None  # (k,) the largest
    intervals: Intervals | None = None  # for rows, in a file of their own

    @property
    def assessed(self) -> CertifiedModel:
        """For any mixture of the clients."""
        mixtures = Simplex(len(self.clients))
        return CertifiedModel(self.loss, self.x, mixtures, self.seen, self.largest, self.slope, self.of_root)

    def predictor(self, x: Floats | None = None) -> Predictor:
        """What predicts rows on the original scale.

        Args:
            x: a model (d,) in the units of training; the shared one by default.

        Returns:
            Its predictor.
        """
        return Predictor(self.loss, self.x if x is None else x, self.standard)

    @property
    def coefficients(self) -> tuple[Floats, Floats]:
        """(coefficients (outputs, k), intercepts (outputs,)) on the original scale, of straight lines."""
        return self.predictor().coefficients

    def predict(self, table: pd.DataFrame) -> pd.DataFrame:
        """The target of every row; where the table names clients, by the personal model of those that have
        one.

        Args:
            table: with the columns of training; the target is not needed.

        Returns:
            One row a row: `prediction`, and for a model of probabilities `probability of <class>`; of times
            to an event what `model.survival.outlook` says. A row with a level that training did not see,
            where it made no level for others, is predicted as one of the average level; a warning says how
            many there are.

        Raises:
            BidroError: for a column that is missing, and for cells that the schema refuses.
        """
        if self.schema.survival is not None:
            return outlook(self.survival_curves(table), self.schema.survival.grid.ends, table.index)
        return self._predicted(table)

    def survival_curves(self, table: pd.DataFrame) -> Floats:
        """The chance of every row to be without the event at the end of each period.

        Args:
            table: as in `predict`; times and events are not needed.

        Returns:
            Chances (N, periods).

        Raises:
            BidroError: for a model of anything but times to an event, and what `predict` refuses.
        """
        survival = self.schema.survival
        if survival is None:
            raise BidroError(f"This model predicts '{self.schema.target}', and no time to an event.")
        found = self._predicted(survival.every_period(table))
        return curves_of(found[f"probability of {OUTCOMES[1]}"].to_numpy().reshape(len(table), -1))

    def _predicted(self, table: pd.DataFrame) -> pd.DataFrame:
        """`predict`, of the rows as training sees them."""
        self.schema.warn_of_unseen_levels(self.schema.once(table))
        features = self.schema.matrix(table)
        scores = self.predictor().scores(features)
        for own, model in self._personal_rows(table):
            scores[own] = model.scores(features[own])
        classes = self.schema.classes
        if classes is None:
            return pd.DataFrame({"prediction": self.loss.predicted(scores[:, 0])}, index=table.index)
        two = scores.shape[1] == 1
        best = (scores[:, 0] > 0).astype(int) if two else scores.argmax(axis=1)
        found = {"prediction": np.asarray(classes)[best]}
        if registry.entry_of(self.loss).probabilities:
            shares = np.column_stack([expit(-scores), expit(scores)]) if two else softmax(scores, axis=1)
            found |= {f"probability of {name}": shares[:, k] for k, name in enumerate(classes)}
        return pd.DataFrame(found, index=table.index)

    def predict_interval(
        self, table: pd.DataFrame, confidence: float = 0.9, shift: float | None = None
    ) -> pd.DataFrame:
        """Where the target of every row lies, by the rows that were held out of training: on average over
        such rows, with a share `confidence` of new rows inside. `intervals.at(confidence)` has the promise.

        Where the table names clients, each row has its client's interval, around the prediction of the model
        that the client uses; else one that holds under any mixture of the clients, around the shared model's.

        Args:
            table: as in `predict`.
            confidence: the share of rows: 0.5, 0.8, 0.9, 0.95 or 0.99.
            shift: room for rows that move by so many standard deviations in the mean.

        Returns:
            One row a row: of a number `lower` and `upper`, infinite where there are too few rows, or the
            client is new and training left no clients out; of classes a column `may be <class>` each.

        Raises:
            BidroError: for a model without intervals, and what `predict` refuses.
        """
        if self.schema.survival is not None:
            raise BidroError(
                "A time to an event has no interval here: of rows that are censored it is not known how far "
                "they lie from what was predicted; `predict` gives the chance at the end of each period."
            )
        if self.intervals is None:
            raise BidroError(
                "This model has no intervals: they need rows that were held out of training and are in this "
                "process; fit it with --hold-out, of a number or of classes."
            )
        named = self.schema.client in table
        clients = self.schema.clients(table) if named else None
        features = self.schema.matrix(table)
        rows = self.standard.rows(features, np.zeros(len(features)))[:, :-1]
        without = set(self.intervals.personal) - set(self.personal)
        half = self.intervals.half_widths(rows, clients, confidence, shift, without)
        scores = self.predictor().scores(features)
        # A client that was adapted after training is new: held-out rows say nothing of its own model.
        known = self.intervals.quantiles[0].clients
        for own, model in self._personal_rows(table, known):
            scores[own] = model.scores(features[own])
        classes = self.schema.classes
        if classes is None:
            lower, upper = interval_ends(self.loss, scores, half)
            return pd.DataFrame({"lower": lower, "upper": upper}, index=table.index)
        inside = class_sets(scores, half)
        return pd.DataFrame(
            {f"may be {name}": inside[:, k] for k, name in enumerate(classes)}, index=table.index
        )

    def inside_interval(self, rows: Floats, client: str, confidence: float = 0.9) -> NDArray[np.bool_]:
        """Whether the targets of a client's rows are inside the intervals that `predict_interval` gives them.

        Args:
            rows: (N, k + 1) in the units of training, as `rows` has them.
            client: whose they are, in training or not.
            confidence: as in `predict_interval`.

        Returns:
            For every row (N,).
        """
        assert self.intervals is not None
        without = set(self.intervals.personal) - set(self.personal)
        of = np.full(len(rows), client)
        half = self.intervals.half_widths(rows[:, :-1], of, confidence, without=without)
        known = client in self.intervals.quantiles[0].clients
        scores = self.scores(rows, self.used_by(client) if known else self.x)
        if self.loss.labels is None:
            lower, upper = interval_ends(self.loss, scores, half)
            return np.asarray((lower <= rows[:, -1]) & (rows[:, -1] <= upper))
        places = np.searchsorted(np.asarray(self.loss.labels), rows[:, -1])
        return np.asarray(class_sets(scores, half)[np.arange(len(rows)), places])

    def explain(self, table: pd.DataFrame) -> pd.DataFrame:
        """What every feature contributes to a prediction.

        Args:
            table: as in `predict`.

        Returns:
            One row a row: a column `base`, the prediction for a row that is average in everything, and one a
            feature (of more than two classes one a class each); they add up to the prediction, for classes to
            the score. Of times to an event it is the mean of the scores in all periods.
        """
        survival = self.schema.survival
        if survival is not None and not survival.is_laid_out(table):
            each, J = self.explain(survival.every_period(table)), len(survival.grid.ends)
            return each.groupby(np.arange(len(each)) // J).mean().set_axis(table.index)
        self.schema.warn_of_unseen_levels(self.schema.once(table))
        features, names = self.schema.matrix(table), self.schema.features
        found = self.predictor().explained(features, names, self.schema.classes)
        for own, model in self._personal_rows(table):
            found.loc[own] = model.explained(features[own], names, self.schema.classes).to_numpy()
        return found.set_axis(table.index)

    def outside(self, table: pd.DataFrame) -> dict[str, int]:
        """How many rows lie outside the range that was seen in training.

        Args:
            table: as in `predict`.

        Returns:
            Numbers of rows, by feature that has some; nothing where the range is not known.
        """
        if self.low is None or self.high is None:
            return {}
        counts = outside(self.schema.matrix(self.schema.once(table)), self.low, self.high)
        return {name: int(n) for name, n in zip(self.schema.features, counts, strict=True) if n}

    def _personal_rows(
        self, table: pd.DataFrame, among: Container[str] | None = None
    ) -> Iterator[tuple[NDArray[np.bool_], Predictor]]:
        """The rows of clients (`among` these) that have a personal model, with it."""
        if self.personal and self.schema.client in table:
            clients = self.schema.clients(table)
            for name in set(clients.tolist()) & {n for n in self.personal if among is None or n in among}:
                yield clients == name, self.predictor(self.personal[name])

    def rows(self, table: pd.DataFrame) -> Floats:
        """A table as training sees it.

        Args:
            table: with the columns of training and the target.

        Returns:
            Features and target (N, k + 1) in the units of training.
        """
        self.schema.warn_of_unseen_levels(table)
        return self.standard.rows(self.schema.matrix(table), target_numbers(self.schema, table))

    def used_by(self, client: str) -> Floats:
        """The model that a client uses: its own, or the shared one.

        Args:
            client: its name, whether it was in training or not.

        Returns:
            The model (d,), in the units of training.
        """
        return self.personal.get(client, self.x)

    def losses(self, rows: Floats, x: Floats | None = None) -> Floats:
        """The loss of every row, in its unit.

        Args:
            rows: (N, k + 1) in the units of training, as `rows` has them.
            x: a model (d,); the shared one by default.

        Returns:
            Losses (N,).
        """
        return losses_of(self.loss, self.x if x is None else x, rows)

    def scores(self, rows: Floats, x: Floats | None = None) -> Floats:
        """What a model predicts for rows in the units of training.

        Args:
            rows: (N, k + 1), as `rows` has them.
            x: a model (d,); the shared one by default.

        Returns:
            Scores (N, outputs); of a number, it less its middle in training.
        """
        w, b = self.loss.split(self.x if x is None else x)  # type: ignore[attr-defined]
        columns = np.asarray(self.loss.design(rows))[:, :-1]  # type: ignore[arg-type]
        return np.asarray(columns @ np.atleast_2d(w).T + np.atleast_1d(b))

    def correct(self, rows: Floats, x: Floats | None = None) -> NDArray[np.bool_] | None:
        """Whether the predicted class is the true one.

        Args:
            rows: (N, k + 1) in the units of training, as `rows` has them.
            x: a model (d,); the shared one by default.

        Returns:
            For every row (N,); None where the target is a number.
        """
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
        if self.low is not None and self.high is not None:
            tensors |= {"low": self.low, "high": self.high}
        header = {
            "format": FORMAT,
            "version": WITH_CURVES if has_curves(self.loss) or self.low is not None else VERSION,
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
        """A model from what `to_bytes` gave.

        Args:
            data: the bytes.
            where: what to call them in a message, such as the path of the file.

        Returns:
            The model, without clients' own, which are in a file of their own.

        Raises:
            BidroError: for bytes that are no model, or not exactly as they were written.
        """
        tensors, header = decoded(data, where)
        try:
            if header["format"] != FORMAT or header["version"] not in (VERSION, WITH_CURVES):
                raise BidroError(
                    f"'{where}' is of format {header['format']!r}, version {header['version']!r}; this "
                    f"program reads '{FORMAT}', versions {VERSION} and {WITH_CURVES}."
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
                renamed(header["settings"]),
                dict(header["versions"]),
                tensors.get("pooled"),
                low=tensors.get("low"),
                high=tensors.get("high"),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, BidroError):
                raise
            raise BidroError(f"'{where}' is not a whole model: {type(error).__name__}, {error}.") from error
        k, standard = len(schema.features), found.standard
        shapes = (found.x.shape, standard.mean.shape, standard.spread.shape)
        as_model = found.pooled is None or found.pooled.shape == found.x.shape
        basis = getattr(loss, "basis", None)
        as_features = all(side is None or side.shape == (k,) for side in (found.low, found.high))
        as_features = as_features and (basis is None or basis.features == k)
        if shapes != ((loss.dimension(k + 1),), (k,), (k,)) or not as_model or not as_features:
            raise BidroError(f"'{where}' is not a whole model: its numbers do not fit its {k} features.")
        if not (np.all(standard.spread > 0) and standard.target_spread > 0 and found.seen >= 0):
            raise BidroError(f"'{where}' is not a whole model: a spread or a loss in it is not positive.")
        return found


def target_numbers(schema: Schema, table: pd.DataFrame) -> Floats:
    """(N,) the target as losses know it."""
    if schema.classes is None:
        return np.asarray(schema.labels(table), float)
    return signs(schema.class_codes(table), len(schema.classes))


def load_model(folder: Path | str) -> Model:
    """The model in a folder that `bidro fit` wrote, with the clients' personal models that are in it.

    Loading executes nothing: the file holds numbers and JSON.

    Args:
        folder: the folder, or the model's file in it.

    Returns:
        The model, to predict with and to certify.

    Raises:
        BidroError: where there is no model, and for a file that is not one, whatever was changed in it.

    Examples:
        >>> from bidro import BidroError, load_model
        >>> try:
        ...     load_model("no-such-folder")
        ... except BidroError as error:
        ...     print(str(error)[:38])
        There is no model in 'no-such-folder':
    """
    folder = Path(folder)
    path = folder / FILE if folder.is_dir() else folder
    if not path.exists():
        raise BidroError(f"There is no model in '{folder}': '{path}' does not exist.")
    model = Model.from_bytes(read_bytes(path), str(path))
    kept, intervals = path.parent / INTERVALS_FILE, None
    if kept.exists():
        intervals = Intervals.from_json(read_text(kept), str(kept))
    return replace(model, personal=personal_models_in(path.parent, model.x), intervals=intervals)


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
    content.pop("smoothing", None)  # of training alone
    if basis is None:
        return content
    content["knots"] = [list(own) for own in basis.knots]
    if any(basis.by):
        content["by"] = [None if one is None else dataclasses.asdict(one) for one in basis.by]
    if basis.pairs:
        content["pairs"] = [{"features": pair.features, "knots": pair.knots} for pair in basis.pairs]
    return content


def _loss_from_dict(content: Mapping[str, Any]) -> Loss:
    parameters = {key: value for key, value in content.items() if key not in ("name", "knots", "by", "pairs")}
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
    by = tuple(None if one is None else _levels(one) for one in content.get("by", ()))
    pairs = tuple(_pair(one) for one in content.get("pairs", ()))
    return cast(Loss, kind(**parameters, basis=Basis(tuple(tuple(own) for own in knots), by, pairs)))


def _pair(content: Mapping[str, Any]) -> Pair:
    """Two features with their knots. Raises TypeError for what are none."""
    features, knots = content["features"], content["knots"]
    if len(features) != 2 or not all(type(j) is int for j in features):
        raise TypeError("the features of a pair are not two whole numbers")
    if len(knots) != 2 or not all(isinstance(knot, float) for own in knots for knot in own):
        raise TypeError("the knots of a pair are not two lists of numbers")
    return Pair((features[0], features[1]), (tuple(knots[0]), tuple(knots[1])))


def _levels(content: Mapping[str, Any]) -> Levels:
    """Of a category that a feature has curves by. Raises TypeError for what are none."""
    columns, values, names = (content[part] for part in ("columns", "values", "names"))
    if not all(type(column) is int and column >= 0 for column in columns):
        raise TypeError("the columns of a category are not whole numbers")
    if not all(isinstance(value, float) for own in values for value in own):
        raise TypeError("the values of a level are not numbers")
    if not all(isinstance(name, str) for name in names):
        raise TypeError("the names of levels are not texts")
    return Levels(tuple(columns), tuple(map(tuple, values)), tuple(names))
