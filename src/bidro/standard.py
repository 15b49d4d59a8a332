"""Rows as the solver sees them: features in pooled standard deviations, the target around its mean.

Means and deviations are those of all clients' rows together; they follow from each client's own, so a
federated run computes the same. Targets keep their unit, and so do losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from bidro.errors import BidroError
from bidro.federation import Federation, aligned, column_deviations
from bidro.sets import Box

Floats = NDArray[np.float64]

# Rows that are handled together, so that no copy of all of them is made.
_TOGETHER = 65_536


class Moments(NamedTuple):
    """Of one client's rows, or of several clients' together: features first, the target last."""

    rows: int
    mean: Floats  # (k + 1,)
    deviation: Floats  # (k + 1,) root mean square distance to the mean

    @classmethod
    def of(cls, features: Floats, target: Floats) -> Moments:
        """From rows (N, k) and targets (N,)."""
        mean = np.append(features.mean(axis=0), target.mean())
        return cls(len(target), mean, np.append(column_deviations(features), target.std()))

    @classmethod
    def pooled(cls, parts: Sequence[Moments]) -> Moments:
        """Of all rows, from those of each client."""
        rows = np.array([part.rows for part in parts], float)
        means = np.stack([part.mean for part in parts])
        squares = np.stack([part.deviation for part in parts]) ** 2
        mean = rows @ means / rows.sum()
        variance = rows @ (squares + (means - mean) ** 2) / rows.sum()
        return cls(int(rows.sum()), mean, np.sqrt(variance))

    @property
    def varying(self) -> NDArray[np.bool_]:
        """(k + 1,) which columns vary: rounding leaves a trace of deviation in those that do not."""
        return self.deviation > 1e-13 * np.hypot(self.mean, self.deviation)


@dataclass(frozen=True, eq=False)
class Standard:
    """x -> (x - mean) / spread for features, y -> y - middle for a numeric target; classes keep codes."""

    mean: Floats  # (k,)
    spread: Floats  # (k,), 1 for a column that does not vary
    middle: float
    target_spread: float  # standard deviation of the target; 1 for classes

    @classmethod
    def of(cls, moments: Moments, classes: bool) -> Standard:
        """From the moments of all clients' rows."""
        spread = np.where(moments.varying, moments.deviation, 1.0)
        if classes:
            return cls(moments.mean[:-1], spread[:-1], 0.0, 1.0)
        return cls(moments.mean[:-1], spread[:-1], float(moments.mean[-1]), float(spread[-1]))

    def federation(
        self, features: Floats, target: Floats, clients: NDArray[np.str_], columns: Sequence[str]
    ) -> Federation:
        """The clients' rows in these units, sorted by client, with an unbounded support. Rows should come in
        `content_order`, so that nothing that is trained on them depends on the order of a table."""
        names, codes = np.unique(clients, return_inverse=True)
        order = np.argsort(codes, kind="stable")
        rows = aligned((len(target), features.shape[1] + 1))
        for begin in range(0, len(order), _TOGETHER):
            part = order[begin : begin + _TOGETHER]
            rows[begin : begin + len(part)] = self.rows(features[part], target[part])
        sizes = np.bincount(codes).tolist()
        return Federation.from_samples(
            jax.device_put(rows), sizes, "unbounded", [str(name) for name in names], columns
        )

    def rows(self, features: Floats, target: Floats) -> Floats:
        """(N, k + 1) rows in these units."""
        rows = np.empty((len(target), features.shape[1] + 1))
        np.subtract(features, self.mean, out=rows[:, :-1])
        # Of a column that does not vary, rounding would leave a trace for a model to follow.
        rows[:, :-1][np.abs(rows[:, :-1]) <= 1e-13 * np.abs(self.mean)] = 0.0
        rows[:, :-1] /= self.spread
        rows[:, -1] = target - self.middle
        return rows

    def box(self, support: tuple[ArrayLike, ArrayLike], labels: tuple[float, ...] | None) -> Box:
        """A declared support, lower and upper bounds of every feature and (for a numeric target) of the
        target, in these units."""
        lower, upper = (np.asarray(side, float).ravel() for side in support)
        wanted = len(self.mean) + (labels is None)
        if lower.shape != (wanted,) or upper.shape != (wanted,):
            what = "every feature and then of the target" if labels is None else "every feature"
            raise BidroError(
                f"The support needs lower and upper bounds of {what}, {wanted} numbers each; got "
                f"{lower.size} and {upper.size}."
            )
        if not np.all(lower < upper) or not np.all(np.isfinite([lower, upper])):
            raise BidroError("The support needs finite bounds with every lower one below its upper one.")
        k = len(self.mean)
        ends = [(side[:k] - self.mean) / self.spread for side in (lower, upper)]
        last = (lower[-1] - self.middle, upper[-1] - self.middle) if labels is None else _range(labels)
        return Box(*(jnp.asarray(np.append(end, edge)) for end, edge in zip(ends, last, strict=True)))

    def coefficients(self, w: Floats, b: Floats | float) -> tuple[Floats, Floats]:
        """Coefficients (..., k) and intercept on the original scale, from those in these units."""
        original = np.asarray(w) / self.spread
        return original, np.asarray(b) + self.middle - original @ self.mean


def _range(labels: tuple[float, ...]) -> tuple[float, float]:
    return min(labels), max(labels)


def require_inside(
    support: tuple[ArrayLike, ArrayLike],
    features: Floats,
    target: Floats,
    clients: NDArray[np.str_],
    columns: Sequence[str],
    numeric_target: bool,
) -> None:
    """Raise BidroError, in the user's own units, for the first value outside the declared support."""
    lower, upper = (np.asarray(side, float).ravel() for side in support)
    for j, name in enumerate(columns if numeric_target else columns[:-1]):
        values = features[:, j] if j < features.shape[1] else target
        outside = (values < lower[j]) | (values > upper[j])
        if outside.any():
            row = int(np.argmax(outside))
            raise BidroError(
                f"Row {row}, of client '{clients[row]}': '{name}' is {values[row]:g}, outside the declared "
                f"support [{lower[j]:g}, {upper[j]:g}]; widen the support or fix the row."
            )


def signs(codes: NDArray[np.int64], classes: int) -> Floats:
    """Classes as losses know them, from 0, ..., K - 1: -1 and 1 for two, as they are for more."""
    return np.asarray(2.0 * codes - 1.0 if classes == 2 else codes, float)
