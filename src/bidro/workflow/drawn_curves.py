"""What the page draws of a model with curves: each column's share of the prediction, as a function of it.

A number is a curve (or a line) over its own units, or one in a picture of its own for each level of a
category that it has curves by; a category is one bar a level. Where the rows are here, it is
known where they lie, and how much a column matters is how much its share varies over them; else it is how
much it varies over values that are normal around the agreed centre, and over levels that are all as frequent.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from bidro.arrays import Floats
from bidro.federation import Federation
from bidro.fitting.fitted import FEWEST_DESCRIBED
from bidro.model_file import Model
from bidro.standard import Standard

# Where a client's rows lie, as shares of them that are below.
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
# Places of a normal distribution over which a share varies where rows are not here.
_PLACES = 101


class Lie(NamedTuple):
    """Where the training rows lie, in the columns' own units."""

    clients: tuple[str, ...]  # those with at least FEWEST_DESCRIBED rows
    quantiles: Floats  # (clients, k, quantiles) of the rows of each of these
    mean: Floats  # (k,) over all rows: of a coded level, how many have it
    places: Floats  # (places, k) quantiles of all rows


def rows_lie(federation: Federation, standard: Standard) -> Lie:
    """From rows in standard units that are here."""
    rows, sizes = federation.host_rows[:, :-1], federation.sizes
    parts = dict(zip(federation.names, np.split(rows, np.cumsum(sizes)[:-1]), strict=True))
    parts = {name: own for name, own in parts.items() if len(own) >= FEWEST_DESCRIBED}
    each = np.empty((len(parts), rows.shape[1], len(QUANTILES)))
    for i, own in enumerate(parts.values()):
        each[i] = np.quantile(own, QUANTILES, axis=0).T
    shares = (np.arange(_PLACES) + 0.5) / _PLACES
    each = standard.spread[None, :, None] * each + standard.mean[None, :, None]
    every = standard.spread * np.quantile(rows, shares, axis=0) + standard.mean
    return Lie(tuple(parts), each, standard.spread * rows.mean(axis=0) + standard.mean, every)


def drawn_curves(model: Model, lie: Lie | None) -> dict[str, Any] | None:
    """As JSON, the columns that matter most first; None for a model of straight lines."""
    predictor = model.predictor()
    if predictor.straight or model.low is None or model.high is None:
        return None
    curves = predictor.curves(model.schema.features, model.low, model.high)
    of_feature = [j for j, _ in predictor.basis.each_curve()]
    found, place = list[dict[str, Any]](), 0
    for column in model.schema.columns:
        some = slice(place, place + len(column.coded))
        if column.levels is None:
            own = [one for one, j in zip(curves.items(), of_feature, strict=True) if j == place]
            values = np.stack([_of_number(model, place, lie, level) for level in range(len(own))])
            # One picture after the other, whatever else there is: all matter as much as they do together.
            weights = np.full(values.shape[1], 1 / values.shape[1])
            matters = float(np.mean([_varies(each, weights) for each in values]))
            rows = {} if lie is None else {"rows": _rows(lie, place)}
            found += [
                {"name": name, "matters": matters, "knots": curve.knots.tolist()}
                | {"values": curve.values.tolist(), **rows}
                for name, curve in own
            ]
        else:
            values, weights = _of_levels(model, some, lie)
            content = {"levels": list(column.levels), "values": _one_or_each(values).tolist()}
            if lie is not None:
                content["shares"] = weights.tolist()
            found.append({"name": column.name, "matters": _varies(values, weights), **content})
        place += len(column.coded)
    return {
        "columns": sorted(found, key=lambda one: -one["matters"]),
        "rows_here": lie is not None,
        "quantiles": list(QUANTILES),
    }


def _varies(values: Floats, weights: Floats) -> float:
    """The deviation of values (places, outputs) that have weights (places,)."""
    away = values - weights @ values
    return float(np.sqrt(np.mean(weights @ away**2)))


def _rows(lie: Lie, place: int) -> dict[str, list[float]]:
    """Where the rows of the clients lie that have enough of them."""
    return {name: own[place].tolist() for name, own in zip(lie.clients, lie.quantiles, strict=True)}


def _one_or_each(values: Floats) -> Floats:
    """(levels,), or (levels, classes) for more than two classes."""
    return values[:, 0] if values.shape[1] == 1 else values


def _of_number(model: Model, place: int, lie: Lie | None, level: int) -> Floats:
    """(places, outputs) the share of a number over the rows, or over a normal distribution; of one level,
    where it has curves by level."""
    standard = model.standard
    rows = np.tile(standard.mean, (_PLACES, 1))
    normal = ndtri((np.arange(_PLACES) + 0.5) / _PLACES)
    rows[:, place] += standard.spread[place] * normal
    if lie is not None:
        rows[:, place] = lie.places[:, place]
    by = model.predictor().basis.in_units(standard.mean, standard.spread).by
    levels = by[place] if by else None
    if levels is not None:
        rows[:, list(levels.columns)] = levels.values[level]
    return np.asarray(model.predictor().shares(rows)[:, :, 1 + place])


def _of_levels(model: Model, some: slice, lie: Lie | None) -> tuple[Floats, Floats]:
    """((levels, outputs) the share of every level, (levels,) how many rows have it), the first, which has no
    column of its own, first."""
    count = some.stop - some.start + 1
    rows = np.tile(model.standard.mean, (count, 1))
    rows[:, some] = np.eye(count)[:, 1:]
    values = model.predictor().shares(rows)[:, :, 1:][:, :, some].sum(axis=2)
    weights = np.full(count, 1 / count)
    if lie is not None:
        coded = lie.mean[some]
        weights = np.append(1 - coded.sum(), coded)
    return np.asarray(values), weights
