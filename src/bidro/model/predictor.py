"""Predictions of a trained model for rows in their original units, and the contribution of each feature.

    prediction = base + sum_j f_j(v_j) + sum_jk f_jk(v_j, v_k),

where f_j = 0 at the mean of the training rows in feature j, and f_jk, of the pairs of features whose effects
depend on each other, = 0 where one of the two is at its mean, so that the base is the
prediction for a row that is average in everything. For classes it is the score (the logarithm of the odds,
where the loss has them) that is taken apart: one a class where there are more than two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from bidro.core.arrays import Floats
from bidro.data.splines import Basis
from bidro.data.standardise import Standard
from bidro.losses import Loss, has_curves

# A value is outside a range where it is by more than this share of it: ranges come through standard units.
_ROUNDING = 1e-9
# Rows that are put into the basis together, so that no wide copy of a table is made.
_TOGETHER = 1024


class Curve(NamedTuple):
    """f_j of one feature in its own units, from the least value seen in training to the largest."""

    knots: Floats  # (segments + 1,) both ends and the knots between them
    values: Floats  # (segments + 1,) f_j there; (segments + 1, classes) for more than two classes
    slopes: Floats  # (segments,) between them, and beyond the ends; (segments, classes)


class PairShare(NamedTuple):
    """f_jk of two features in their own units, at their knots: between them it is bilinear, and beyond the
    outermost as at these."""

    knots: tuple[Floats, Floats]  # of each feature
    values: Floats  # (knots of the first, of the second); (..., classes) for more than two classes


@dataclass(frozen=True, eq=False)
class Predictor:
    loss: Loss  # of linear scores, in the units of training
    x: Floats  # (d,)
    standard: Standard

    @property
    def straight(self) -> bool:
        return not has_curves(self.loss)

    @cached_property
    def basis(self) -> Basis:
        """In the units of training."""
        found: Basis | None = getattr(self.loss, "basis", None)
        return Basis(((),) * len(self.standard.mean)) if found is None else found

    @property
    def _parts(self) -> tuple[Floats, Floats]:
        """(slopes (outputs, columns), offsets (outputs,)) in the units of training."""
        w, b = self.loss.split(self.x)  # type: ignore[attr-defined]
        return np.atleast_2d(np.asarray(w)), np.atleast_1d(np.asarray(b))

    @property
    def coefficients(self) -> tuple[Floats, Floats]:
        """(coefficients (outputs, k), intercepts (outputs,)) in the rows' own units, of straight lines."""
        assert self.straight
        return self.standard.coefficients(*self._parts)

    @property
    def lines(self) -> tuple[Floats, Floats]:
        """(coefficients (outputs, k), intercepts (outputs,)) in the rows' own units. A feature with a curve,
        or a pair, or by whose levels another has curves, has NaN, and intercepts are then scores of an
        average row."""
        if self.straight:
            return self.coefficients
        slopes, basis = self._parts[0], self.basis
        curved = basis.most_segments > 1
        for j, levels in enumerate(basis.by):
            if levels is not None:
                curved[[j, *levels.columns]] = True
        curved[list(basis.paired)] = True
        found = np.full((len(slopes), basis.features), np.nan)
        for j in np.flatnonzero(~curved).tolist():
            found[:, j] = slopes[:, : basis.of_curves][:, basis.feature == j][:, 0] / self.standard.spread[j]
        return found, self.base

    @property
    def base(self) -> Floats:
        """(outputs,) the score of a row that is average in everything."""
        return np.asarray(self._parts[1] + self.standard.middle)

    @property
    def linear(self) -> tuple[Floats, Floats]:
        """(slopes (outputs, columns), offsets (outputs,)) of the scores: of straight lines over rows in their
        own units, of curves over the basis of rows in the units of training."""
        return self.coefficients if self.straight else (self._parts[0], self.base)

    def scores(self, features: Floats) -> Floats:
        """(N, outputs) for rows (N, k) in their own units."""
        slopes, offsets = self.linear
        if self.straight:
            return np.asarray(features @ slopes.T + offsets)
        found = np.empty((len(features), len(slopes)))
        for begin in range(0, len(features), _TOGETHER):
            rows = self._in_units(features[begin : begin + _TOGETHER])
            found[begin : begin + _TOGETHER] = self.basis.expand(rows) @ slopes.T
        return found + offsets

    def shares(self, features: Floats) -> Floats:
        """(N, outputs, 1 + k + pairs) the base and what every feature and every pair contributes; they add up
        to the scores."""
        slopes, rows = self._parts[0], self._in_units(features)
        each = [self.basis.contributions(rows, own) for own in slopes]
        base = np.broadcast_to(self.base[None, :, None], (len(rows), len(slopes), 1))
        return np.concatenate([base, np.stack(each, axis=1)], axis=2)

    def explained(
        self, features: Floats, names: Sequence[str], classes: Sequence[str] | None
    ) -> pd.DataFrame:
        """One row a row: `base`, a column a feature, and one a pair such as "age*sex"; for more than two
        classes, columns by class."""
        shares, columns = self.shares(features), ["base", *names, *self.pair_names(names)]
        if shares.shape[1] == 1 or classes is None:
            return pd.DataFrame(shares[:, 0], columns=columns)
        parts = {name: pd.DataFrame(shares[:, k], columns=columns) for k, name in enumerate(classes)}
        return pd.concat(parts, axis=1)

    def curves(self, names: Sequence[str], low: Floats, high: Floats) -> dict[str, Curve]:
        """By feature, or by feature and level such as "age, sex=f"; low and high (k,) are the least and
        largest values seen, in the rows' own units."""
        slopes, basis = self._parts[0], self.basis
        own, spread = basis.in_units(self.standard.mean, self.standard.spread), self.standard.spread
        segments = basis.segments
        starts = np.cumsum(segments) - segments
        found = {}
        for curve, (j, level) in enumerate(basis.each_curve()):
            knots = np.array([low[j], *own.knots[curve], high[j]])
            columns = np.arange(starts[curve], starts[curve] + segments[curve])
            name, levels = names[j], own.by[j] if own.by else None
            if levels is not None:
                name = f"{name}, {levels.names[level]}"
            in_units = (knots - self.standard.mean[j]) / spread[j]
            values = basis.along(columns, in_units) @ slopes[:, columns].T
            of_segments = slopes[:, columns].T / spread[j]
            alone = len(slopes) == 1
            found[name] = Curve(
                knots, values[:, 0] if alone else values, of_segments[:, 0] if alone else of_segments
            )
        return found

    def pair_names(self, names: Sequence[str]) -> list[str]:
        """What pairs are called."""
        return ["*".join(names[j] for j in pair.features) for pair in self.basis.pairs]

    def pairs(self, names: Sequence[str]) -> dict[str, PairShare]:
        """By pair, such as "age*sex", in the rows' own units."""
        slopes, basis = self._parts[0], self.basis
        own = basis.in_units(self.standard.mean, self.standard.spread)
        found = {}
        for name, pair, shown, some in zip(
            self.pair_names(names), basis.pairs, own.pairs, basis.of_pairs, strict=True
        ):
            grid = np.meshgrid(*(np.array(side) for side in pair.knots), indexing="ij")
            values = pair.expand(*grid) @ slopes[:, some].T
            knots = np.array(shown.knots[0]), np.array(shown.knots[1])
            found[name] = PairShare(knots, values[..., 0] if len(slopes) == 1 else values)
        return found

    def _in_units(self, features: Floats) -> Floats:
        return self.standard.rows(features, np.zeros(len(features)))[:, :-1]


def outside(features: Floats, low: Floats, high: Floats) -> Floats:
    """(k,) how many of the rows (N, k) lie outside the range seen in training, feature by feature: there
    curves are extended by their outermost slopes."""
    room = _ROUNDING * (high - low)
    return np.asarray(np.sum((features < low - room) | (features > high + room), axis=0))
