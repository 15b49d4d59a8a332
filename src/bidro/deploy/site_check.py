"""What a site would answer, worked out at the site and shown to its owner alone: names and counts stay
here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bidro.deploy.cells import Levels, cell_counts
from bidro.deploy.dominance import LARGEST_SHARE, Some, largest_share, shares_of_columns
from bidro.deploy.known_rows import KnownRows
from bidro.deploy.releases import Releases
from bidro.deploy.row_memory import RowMemory
from bidro.deploy.rules import RefusedError, draws, words

# Rare levels and cells that are listed.
_LISTED = 20


@dataclass(frozen=True)
class Checked:
    """Counts are of rows, or of units where the schema names them (`counted`)."""

    counted: str  # "rows" or "units"
    table_rows: int  # of the table
    rows: int  # different ones, where these are counted
    copies: int  # rows of the table that are copies of others
    training: int
    kept_out: int
    new: int  # rows that no run has used
    gone: int  # rows that runs have used, and that are in the table no more
    min_rows: int
    min_cell: int
    rare_levels: Mapping[str, int]  # among training rows, by name, the rarest first
    rare_cells: Mapping[str, int]  # two levels at once
    outweighed: Mapping[str, float]  # by column and set of rows, the share of one row, or unit, if too large
    folds: tuple[int, ...]  # that may be asked for; 1: over all training rows
    refused: str | None  # why a run would not be answered; None where it would be
    warnings: tuple[str, ...] = ()  # of columns that lie far from the agreed units
    asks: bool = False  # whether every run waits for the owner's approval

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def in_words(self) -> str:
        lines = [
            f"{self.rows} {self.counted}: {self.training} to train on, {self.kept_out} kept out; {self.new} "
            f"rows are new since earlier runs, and {self.gone} that these used are gone."
        ]
        if self.copies:
            lines.append(copies_in_words(self.table_rows, self.copies, self.counted == "units"))
        for what, rule, least, found in (
            ("levels", "min_rows", self.min_rows, self.rare_levels),
            ("pairs of levels", "min_cell", self.min_cell, self.rare_cells),
        ):
            if found:
                lines.append(f"Too rare {what}, had by fewer {self.counted} than {rule} = {least}:")
                lines += [f"  {name}: {count}" for name, count in list(found.items())[:_LISTED]]
                if len(found) > _LISTED:
                    lines.append(f"  and {len(found) - _LISTED} more (--json lists all)")
            else:
                lines.append(f"No {what} are had by fewer {self.counted} than {rule} = {least}.")
        if self.outweighed:
            one = "row" if self.counted == "rows" else "unit"
            lines.append(
                f"One {one} outweighs the others, with more than {LARGEST_SHARE:.0%} of a sum of squares:"
            )
            lines += [f"  {where}: {share:.4%}" for where, share in list(self.outweighed.items())[:_LISTED]]
        lines += [f"WARNING: {warning}" for warning in self.warnings]
        if self.refused is not None:
            lines.append(f"A run would be refused: {self.refused}")
            return "\n".join(lines)
        lines.append("A run would be answered.")
        if self.asks:
            lines.append('It waits for your approval first (approve = "ask").')
        lines.append(f"Cross-validation: {_folds(tuple(k for k in self.folds if k > 1))}.")
        return "\n".join(lines)


def copies_in_words(rows: int, copies: int, units: bool) -> str:
    """What a table of so many rows has of copies, and what to do."""
    each, left = divmod(rows, rows - copies)
    found = f"{copies} of the {rows} rows of the table are copies of others"
    if left == 0:
        found += f", as if every row were there {each} times: has a join multiplied rows?"
    else:
        found += "."
    if units:
        return found
    return (
        f"{found} Copies count as one person; if equal rows are of different people, name the column that "
        "tells people apart (unit in the schema)."
    )


def _folds(counts: tuple[int, ...]) -> str:
    return f"with {' or '.join(map(str, counts))} folds" if counts else "none"


def checked(
    memory: RowMemory,
    known: KnownRows,
    holdout: NDArray[np.bool_],
    marks: Mapping[int, NDArray[np.int64]],
    refused: str | None = None,
) -> Checked:
    """Of the rows of a table, those kept out (N,) of it and the folds (training rows,) of the others by
    their number. `refused` is why a run is not answered whatever its folds, where that is known. Nothing is
    released."""
    units, demanded = known.units, memory.demanded
    levels = Levels.of(known.schema, known.features, known.target)
    training = np.where(holdout, -1, 0)
    cells = cell_counts(levels.has, training, 1, known.counted)[0]
    releases = Releases(memory, known, holdout)
    new, gone = memory.changes(known)
    folds: tuple[int, ...] = ()
    if refused is None:
        folds = releases.answerable(marks)
        if 1 not in folds:
            try:
                releases.check()
            except RefusedError as error:
                refused = str(error)
    all_may = refused is None and set(marks) <= set(folds)  # then nobody outweighs the others anywhere
    rare = {name: int(n) for name, n in zip(levels.names, np.diag(cells), strict=True)}
    pairs = {
        f"{levels.names[i]} with {levels.names[j]}": int(cells[i, j])
        for i, j in zip(*np.triu_indices_from(cells, 1), strict=True)
    }
    return Checked(
        counted=words(units),
        table_rows=len(holdout),
        rows=draws(np.ones(len(holdout), bool), known.counted),
        copies=known.copies,
        training=draws(~holdout, known.counted),
        kept_out=draws(holdout, known.counted),
        new=new,
        gone=gone,
        min_rows=demanded.min_rows,
        min_cell=demanded.min_cell,
        rare_levels=_below(rare, demanded.min_rows),
        rare_cells=_below(pairs, demanded.min_cell),
        outweighed={} if all_may else _outweighed(known, holdout, marks),
        folds=folds,
        refused=refused,
    )


def _below(counts: Mapping[str, int], least: int) -> dict[str, int]:
    """Those that somebody has, and too few, the fewest first."""
    return dict(
        sorted(((k, n) for k, n in counts.items() if 0 < n < least), key=lambda pair: (pair[1], pair[0]))
    )


def _rows_of(known: KnownRows, own: NDArray[np.intp]) -> Some:
    """Some rows of the table, by their places."""
    return lambda part: known.whole(own[part])


def _outweighed(
    known: KnownRows, holdout: NDArray[np.bool_], marks: Mapping[int, NDArray[np.int64]]
) -> dict[str, float]:
    """The columns in which one row, or unit, outweighs the others, by where that is, the largest share first;
    of combinations of columns, where no column by itself does, that there is one."""
    sets = {"the rows to train on": ~holdout, "the rows kept out": holdout}
    for folds, own in marks.items():
        for fold in range(folds):
            some = ~holdout
            some[some] = own == fold
            sets[f"fold {fold + 1} of {folds}"] = some
    names = [*known.schema.features, known.schema.target]
    found: dict[str, float] = {}
    for where, some in sets.items():
        if not some.any():
            continue
        rows, people = _rows_of(known, np.flatnonzero(some)), known.people[some]
        largest = largest_share(rows, people)
        if largest <= LARGEST_SHARE:
            continue
        each = {
            f"{name}, in {where}": share
            for name, share in zip(names, shares_of_columns(rows, people), strict=True)
        }
        if max(each.values()) <= LARGEST_SHARE:
            each = {f"a combination of columns, in {where}": largest}
        found |= {what: share for what, share in each.items() if share > LARGEST_SHARE}
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))
