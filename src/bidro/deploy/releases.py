"""What a site may send sums over: its training rows, rows kept out and folds, by its memory of rows.

A site asks here before it answers: `training` when a run begins, `folds` before the first reply over folds,
and `answerable` for what it tells the server that it would answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bidro.deploy.bends import Curved, joined, names_of, rows_inside, stretch_of
from bidro.deploy.known_rows import KnownRows
from bidro.deploy.partitions import OUTSIDE
from bidro.deploy.row_memory import RowMemory
from bidro.deploy.rules import RefusedError, words

# Parts of as many rows each: where a cell of two curves is empty is told to these.
_NEAR = 8


@dataclass(frozen=True, eq=False)
class Releases:
    memory: RowMemory
    known: KnownRows
    holdout: NDArray[np.bool_]  # (N,) which rows are kept out

    def training(self) -> int:
        """A run begins: there will be sums over the training rows and over those kept out. Returns the fewest
        rows that something rests on. Raises RefusedError where the memory's rule would be broken."""
        return self.memory.release(self.known, self._sets(None))

    def check(self) -> int:
        """What `training` would say, without releasing anything."""
        return self.memory.check(self.known, self._sets(None))

    def folds(self, marks: NDArray[np.int64] | None, curved: Curved | None = None) -> int:
        """Before a reply over folds, marks (training rows,) from 0, or over all training rows where these
        are None; `curved` where it is about curves. As `training`."""
        self._require_kept_out(curved)
        return self.memory.release(self.known, self._sets(marks), curved)

    def bears(self, marks: NDArray[np.int64], curved: Curved) -> bool:
        """Whether `folds` would not refuse, and every segment holds enough rows of every set: whether one
        holds none would tell where the outermost row lies. Knots of an honest server always do (`places`)."""
        parts, least = self.parts(marks), self.memory.demanded.min_rows
        sets = [parts == part for part in np.unique(parts)]
        for column, own in curved.knots.items():
            for some in sets:
                if min(rows_inside(self._of(column, some), own, self._people(some))) < least:
                    return False
        if not all(self._empty_in_the_wide(some, curved) for some in sets if not self.holdout[some].any()):
            return False
        try:
            self._require_kept_out(curved)
            self.memory.check(self.known, self._sets(marks), curved)
        except RefusedError:
            return False
        return True

    def parts(self, marks: NDArray[np.int64]) -> NDArray[np.int64]:
        """(N,) the smallest sets of which sums could be worked out if folds are answered, by a number for
        each: those of training rows, and those kept out together."""
        found = self.memory.atoms(self.known, self._sets(marks)["sums"])
        return np.where(self.holdout, found.max(initial=-1) + 1, found)

    def _empty_in_the_wide(self, some: NDArray[np.bool_], curved: Curved) -> bool:
        """Whether of some rows none are near two stretches of two curves that none are in at once: where such
        a cell begins to be empty is where the outermost row in it lies, in both features. Near is up to the
        next of `_NEAR` parts that hold as many of the rows."""
        stretches = [one for one in map(stretch_of, names_of(curved.knots)) if one is not None]
        inside, near = [], []
        for one in stretches:
            values = self._of(one.column, some)
            edges = np.quantile(values, np.arange(1, _NEAR) / _NEAR)
            low = edges[edges <= one.low].max(initial=-np.inf)
            high = edges[edges >= one.high].min(initial=np.inf)
            inside.append(one.has(values))
            near.append(one._replace(low=float(low), high=float(high)).has(values))
        within, around = (np.array(part, float) @ np.array(part, float).T for part in (inside, near))
        others = np.array([[one.column != other.column for other in stretches] for one in stretches])
        return not np.any(others & (within == 0) & (around > 0))

    def _require_kept_out(self, curved: Curved | None) -> None:
        """Of rows kept out mean losses are told, at models of which one segment may be all."""
        if curved is None:
            return
        named = words(self.known.units)
        knots = joined(self.memory.knots(self.known), curved.knots)
        for column, own in knots.items():
            inside = rows_inside(self._of(column, self.holdout), own, self._people(self.holdout))
            if any(0 < rows < self.memory.demanded.min_rows for rows in inside):
                raise RefusedError(
                    f"a segment of a curve would hold fewer of the {named} that it keeps out than its "
                    f"min_rows = {self.memory.demanded.min_rows}; use fewer segments."
                )

    def _of(self, column: str, some: NDArray[np.bool_]) -> NDArray[np.float64]:
        return self.known.column(column)[some]

    def _people(self, some: NDArray[np.bool_]) -> NDArray[np.uint64]:
        return np.asarray(self.known.people[some])

    def answerable(self, marks: Mapping[int, NDArray[np.int64]]) -> tuple[int, ...]:
        """How many folds may be asked for, in rising order: what `folds` would not refuse, of the folds
        (training rows,) by their number; 1 stands for all training rows, without folds. One number may be
        answered where a smaller one is not: other folds than those of earlier runs cut these."""
        if marks:
            # What may be told of parts may be told of what they make up: of large tables one look is enough.
            together = np.zeros(int(np.sum(~self.holdout)), np.int64)
            for count, own in marks.items():
                together = together * count + own
            if self._may(self._sets(np.unique(together, return_inverse=True)[1])):
                return (1, *sorted(marks))
        return tuple(k for k, own in sorted({1: None, **marks}.items()) if self._may(self._sets(own)))

    def _may(self, sets: Mapping[str, NDArray[np.int64]]) -> bool:
        try:
            self.memory.check(self.known, sets)
        except RefusedError:
            return False
        return True

    def _sets(self, marks: NDArray[np.int64] | None) -> dict[str, NDArray[np.int64]]:
        training = np.full(len(self.holdout), OUTSIDE, np.int64)
        training[~self.holdout] = 0 if marks is None else marks
        every = np.where(self.holdout, training.max(initial=0) + 1, training)
        return {"rows": every, "sums": training, "held_out": np.where(self.holdout, 0, OUTSIDE)}
