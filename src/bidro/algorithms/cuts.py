"""Cuts: affine functions below the clients' risks, one of each client that replied in a round."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


class Cuts(NamedTuple):
    """R_owner(z) >= value + <gradient, z - points[origin]>, for every row.

    Cuts of one origin lie together, in the order of the points, and no two of them have the same owner.
    """

    owner: NDArray[np.int64]  # (cuts,)
    value: Numbers  # (cuts,) at the point where the client was asked
    gradient: Numbers  # (cuts, k)
    origin: NDArray[np.int64]  # (cuts,) which point that was, never falling
    points: Numbers  # (points, k)

    @classmethod
    def none(cls, k: int) -> Cuts:
        nobody = np.zeros(0, np.int64)
        return cls(nobody, np.zeros(0), np.zeros((0, k)), nobody, np.zeros((0, k)))

    @classmethod
    def at_point(cls, owner: NDArray[np.int64], value: Numbers, gradient: Numbers, z: Numbers) -> Cuts:
        """One cut of each owner, all known at z."""
        return cls(owner, value, gradient, np.zeros(len(owner), np.int64), z[None])

    def with_more(self, more: Cuts) -> Cuts:
        return Cuts(
            np.concatenate([self.owner, more.owner]),
            np.concatenate([self.value, more.value]),
            np.concatenate([self.gradient, more.gradient]),
            np.concatenate([self.origin, more.origin + len(self.points)]),
            np.concatenate([self.points, more.points]),
        )

    def only(self, kept: NDArray[np.bool_]) -> Cuts:
        """Those to be kept; points stay, so that origins mean what they did."""
        return Cuts(self.owner[kept], self.value[kept], self.gradient[kept], self.origin[kept], self.points)

    def raised(self, origin: int, by: Numbers) -> Cuts:
        """Those of one origin raised by so much for each client (n,)."""
        return self._replace(value=self.value + np.where(self.origin == origin, by[self.owner], 0.0))

    def blocks(self) -> Iterator[tuple[int, slice]]:
        """Each origin that has cuts, and where they are."""
        starts = np.flatnonzero(np.diff(self.origin, prepend=-1))
        for start, end in zip(starts, np.append(starts[1:], len(self.origin)), strict=True):
            yield int(self.origin[start]), slice(int(start), int(end))

    def at(self, z: Numbers) -> Numbers:
        """Their values at z."""
        values = self.value.copy()
        for origin, rows in self.blocks():
            values[rows] += self.gradient[rows] @ (z - self.points[origin])
        return values

    def highest(self, z: Numbers, n: int) -> Numbers:
        """(n,) the highest cut of each client at z; -inf where it has none."""
        heights, values = np.full(n, -np.inf), self.at(z)
        for _, rows in self.blocks():
            owner = self.owner[rows]
            heights[owner] = np.maximum(heights[owner], values[rows])
        return heights
