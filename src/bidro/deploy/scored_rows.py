"""What a site says of a model that was sent to it: confidence bounds from its rows kept out, rounded up.

The model is whatever the server likes. One that is right on a single person, and absurd elsewhere, would make
that person's loss of the mean; one that fails, or that looks at other rows, on a certain row alone would tell
that it is there. So rows are run one by one, by a process that can do nothing else (`scoring.run`); a row
without a prediction counts as the largest loss, and so do all where the process broke; and a bound goes up to
the next place of a grid whose steps are what `min_rows` rows can change, and whose offset only the site
knows: what one row changes is seen for one offset in `min_rows`. Rounded up it still holds.
"""

from __future__ import annotations

import logging
import math

import numpy as np
from numpy.typing import NDArray

from bidro.arrays import Floats
from bidro.deploy.network_protocol import NetworkProtocol
from bidro.deploy.rules import RefusedError, draws
from bidro.deploy.score_messages import Score, Scores, Weights
from bidro.deploy.site_config import Site
from bidro.deploy.site_rows import SiteRows, holdout, state_of, table_id
from bidro.errors import BidroError
from bidro.guarantees.held_out import client_bound
from bidro.losses.predicted import SUM_TOLERANCE, PredictedLoss, Scored
from bidro.scoring.matched import Roles, Said, by_name
from bidro.scoring.run import OnnxModel
from bidro.tables import Schema

_log = logging.getLogger(__name__)

# One of n rows changes a bound by at most so many n-ths of the largest loss (found by trying: 2.9 at
# confidence 0.99).
ROW_CHANGES = 3


def score_bounds(site: Site, rows: SiteRows, message: Score) -> Scores:
    """Raises RefusedError for a model that does not fit, in words that hold nothing of the rows: it is read
    and tried before any of them is looked at."""
    kept, schema = holdout(site, rows), rows.agreed.schema
    agreed_scores = rows.agreed.scores
    assert agreed_scores is not None
    probabilities = agreed_scores.predicted.of_probabilities
    try:
        model, roles = checked_model(message.model.tobytes(), schema, site.client, probabilities, True)
        model.require_time(int(kept.sum()))
    except BidroError as error:
        raise RefusedError(f"it does not score this model: {error}") from error
    said = None
    try:
        found = model.run(_inputs(model, schema, rows.features[kept], site.client))
    except BidroError as error:
        # That it broke on these rows would tell of them: it counts, and is answered as all else.
        _log.error("a model could not be run, and all its losses count as the largest: %s", error)
    else:
        said = Said.of(model, roles, found, schema.classes or ())
    return _bounds(site, rows, said)


def network_bounds(site: Site, rows: SiteRows, message: Weights) -> Scores:
    """The same of the agreed network with these weights, which is not run row by row: nobody but the agreed
    factory says what it does, and no row of it has a part in another's."""
    protocol, kept = rows.protocol, holdout(site, rows)
    assert isinstance(protocol, NetworkProtocol)
    found = protocol.predicted(message.x, rows.features[kept])
    if protocol.classes is None:
        return _bounds(site, rows, Said(found))
    return _bounds(site, rows, Said(shares=found, classes=protocol.classes))


def _bounds(site: Site, rows: SiteRows, said: Said | None) -> Scores:
    """From what a model says of the rows kept out; None where it says nothing."""
    kept, agreed, schema = holdout(site, rows), rows.agreed, rows.agreed.schema
    assert agreed.scores is not None
    loss, most = agreed.scores.predicted, agreed.scores.most(schema.classes)
    losses, wrong = np.full(int(kept.sum()), most), np.ones(int(kept.sum()))
    if said is not None and schema.classes is None:
        losses = _of_numbers(said, rows.target[kept], loss, most)
    elif said is not None and schema.classes is not None:
        losses, wrong = _of_classes(said, schema.classes, rows.target[kept], loss, most)
    units, level = rows.units_of(kept), 1 - agreed.options.confidence
    count, none = draws(kept, rows.units), np.zeros(0)
    of_loss = of_mistakes = none
    if loss.word != "mistakes":
        bound = client_bound("it", losses, level, most, "betting", True, units).bound
        of_loss = np.array([_rounded(site, rows, "loss", bound, most, count)])
    if schema.classes is not None:
        kind = "clopper-pearson" if units is None else "betting"
        bound = client_bound("it", wrong, level, 1.0, kind, False, units).bound  # type: ignore[arg-type]
        of_mistakes = np.array([_rounded(site, rows, "mistakes", bound, 1.0, count)])
    return Scores(of_loss, of_mistakes)


def checked_model(
    data: bytes, schema: Schema, client: str, probabilities: bool, must_lock: bool
) -> tuple[OnnxModel, Roles]:
    """The model in a file, if it is one for rows of this schema. Raises BidroError where it is not."""
    examples = {column.name: column.levels[0] for column in schema.columns if column.levels and not column.of}
    model = OnnxModel.of(data, {**examples, schema.client: client}, len(schema.features), must_lock)
    roles = Roles.of(model.outputs, schema.classes is None)
    if probabilities and roles.shares is None:
        raise BidroError("The agreed loss needs probabilities, and the model gives classes alone.")
    if (
        roles.shares is not None
        and model.classes is not None
        and set(model.classes) != set(schema.classes or ())
    ):
        raise BidroError("The model has other classes than those of the agreed schema.")
    if by_name(model.inputs, [*schema.read, schema.client], schema.features):
        texts = {column.name for column in schema.columns if column.levels is not None} | {schema.client}
        for port in model.inputs:
            if (port.kind == "text") != (port.name in texts):
                raise BidroError(
                    f"The model takes '{port.name}' as {port.kind}, and by the schema it is not that."
                )
    return model, roles


def _inputs(
    model: OnnxModel, schema: Schema, features: Floats, client: str
) -> dict[str, Floats | NDArray[np.str_]]:
    """Rows (N, k), as the schema codes them, as the model takes them."""
    if not by_name(model.inputs, [*schema.read, schema.client], schema.features):
        return {model.inputs[0].name: features}
    found: dict[str, Floats | NDArray[np.str_]] = {schema.client: np.full(len(features), client)}
    begin = 0
    for column in schema.columns:
        own = features[:, begin : begin + len(column.coded)]
        begin += len(column.coded)
        if column.levels is None:
            found[column.name] = own
        elif column.of is not None:
            # What the schema has filled is empty for a model that fills by itself.
            found[column.of] = np.where(own == 1, np.nan, found[column.of])
        else:
            found[column.name] = np.array(column.levels)[own.astype(int) @ np.arange(1, len(column.levels))]
    return found


def _of_numbers(said: Said, target: Floats, loss: PredictedLoss, most: float) -> Floats:
    """(N,) losses; a row without a finite prediction counts as the largest."""
    assert said.numbers is not None
    known = np.isfinite(said.numbers)
    with np.errstate(over="ignore"):
        losses = loss.values(Scored(target, np.where(known, said.numbers, 0.0)))
    return np.where(known & np.isfinite(losses), np.minimum(losses, most), most)


def _of_classes(
    said: Said, classes: tuple[str, ...], target: Floats, loss: PredictedLoss, most: float
) -> tuple[Floats, Floats]:
    """(losses (N,), mistakes (N,)); a row of which no class, or no probabilities, are said counts as the
    largest loss and a mistake, and so does one whose label is not of its highest probability."""
    codes = (target + 1) / 2 if len(classes) == 2 else target
    true = np.array(classes)[codes.astype(int)]
    if said.shares is None:
        assert said.labels is not None
        wrong = np.asarray(said.labels != true, float)
        return wrong, wrong
    shares = said.shares[:, [said.classes.index(name) for name in classes]]
    with np.errstate(invalid="ignore", over="ignore"):
        fine = np.all((shares >= 0) & np.isfinite(shares), axis=1)
        fine &= np.abs(shares.sum(axis=1) - 1) <= SUM_TOLERANCE
    if said.labels is not None:
        fine &= ~said.contradicts & (said.labels != "")
    safe = np.where(fine[:, None], shares, 1 / len(classes))
    scored = Scored(codes, safe / safe.sum(axis=1, keepdims=True), classes)
    labels = np.array(classes)[scored.predicted.argmax(axis=1)] if said.labels is None else said.labels
    wrong = np.asarray((labels != true) | ~fine, float)
    if loss.word == "mistakes":
        return wrong, wrong
    losses = loss.values(scored)
    return np.where(fine, np.minimum(losses, most), most), wrong


def _rounded(site: Site, rows: SiteRows, what: str, bound: float, most: float, count: int) -> float:
    """A bound from so many rows, or units, up to the next place of the site's grid; at most the largest."""
    secret = state_of(site).derived(f"grid of {what}, table {table_id(site, rows):.0f}")
    offset = int.from_bytes(secret[:7], "little") / 2**56
    return rounded_up(bound, most, ROW_CHANGES * site.min_rows / count, offset)


def rounded_up(bound: float, most: float, share: float, offset: float) -> float:
    """The least of most share (k + offset), k a whole number, that is not below the bound; `most` where that
    is above it."""
    step = most * share
    place = math.ceil(bound / step - offset)
    while (place + offset) * step < bound:
        place += 1
    return min((place + offset) * step, most)
