"""The schema that a table suggests, and everything that makes a table unfit for training."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from bidro.arrays import Floats
from bidro.errors import BidroError
from bidro.tables.cells import (
    SMALLEST_SPREAD,
    as_words,
    distinct,
    empty_cells,
    is_boolean,
    numbers_or_none,
    require_usable,
    words_of,
)
from bidro.tables.places import row_name
from bidro.tables.schema import Column, Schema, listed, require_known_target, require_single_columns

_log = logging.getLogger(__name__)


# A text column with more levels than this is more likely a name or a date than a category.
MOST_LEVELS = 200
# Levels of fewer rows than this are merged: a coefficient of their own would be noise.
FEWEST_ROWS_OF_A_LEVEL = 5
# The level into which they are merged, unless the column has one of that name in other letters.
OTHER = "other"
# Of columns with missing values, so many are listed in a sentence.
_COLUMNS_LISTED = 5
# Fewer numbers than this may all be different by chance.
_FEWEST_NUMBERED = 20
# The name that a column without one gets when it is read.
_NAMELESS = re.compile(r"Unnamed: \d+")


def learn_schema(
    table: pd.DataFrame,
    client: str,
    target: str,
    features: Sequence[str] | None = None,
    task: str | None = None,
    missing: str = "refuse",
    unit: str | None = None,
) -> Schema:
    """The schema of a table: text, booleans and categories become categories with the levels observed.

    missing: "refuse", or "median" (the commonest level for categories). unit: the column of the person or
    thing that a row is of, which is then no feature. Without `task`, a target of text or of two different
    values is a class, any other a number. Levels of fewer than FEWEST_ROWS_OF_A_LEVEL rows are merged as
    `other`. What was merged or filled is logged. Raises BidroError for whatever no model can be trained on,
    with the column and the row.
    """
    if missing not in ("refuse", "median"):
        raise BidroError(f"Missing values are to 'refuse' or to fill by 'median'; got {missing!r}.")
    require_single_columns(table.columns, "The table")
    taken = (client, target) if unit is None else (client, target, unit)
    chosen = [c for c in table.columns if c not in taken] if features is None else list(features)
    for name in (*taken, *chosen):
        if name not in table:
            raise BidroError(f"The table has no column '{name}'; it has {listed(table.columns)}.")
    if not chosen:
        raise BidroError("There are no features: every column is the client, the unit or the target.")
    if len({*taken, *chosen}) < len(taken) + len(chosen):
        raise BidroError("A column has one role: client, target, unit or feature, and each is named once.")
    if features is None:
        _refuse_nameless(table)
    if len(table) < 2:
        raise BidroError(f"The table has {len(table)} row(s); training needs at least two.")
    if missing == "refuse":
        _refuse_missing(table, client, [target, *chosen])
    require_known_target(table[target])
    classes = _classes(table[target], task)
    named = features is not None
    columns = tuple(_learn_column(table[name], missing == "median", named) for name in chosen)
    schema = Schema(client, target, classes, columns, unit)
    if not schema.features:
        raise BidroError("There are no features: every column has the same level in all rows.")
    return schema


def _learn_column(values: pd.Series, fills: bool, named: bool) -> Column:
    name, gaps = str(values.name), empty_cells(values)
    if gaps.all():
        raise BidroError(f"Column '{name}' has no values; leave it out with --features.")
    numbers = numbers_or_none(values)
    if numbers is None:
        column = _learn_category(values, fills)
    else:
        require_usable(numbers, values)
        _require_spread(numbers[~gaps], name)
        if not named:
            _note_numbered(numbers[~gaps], name)
        column = Column(name, None, float(np.median(numbers[~gaps])) if fills else None)
    if gaps.any():
        cells = "1 empty cell of '%s' is" if gaps.sum() == 1 else f"{gaps.sum():,} empty cells of '%s' are"
        _log.warning(f"Note: {cells} filled by %s.", name, column.filler)
    return column


def _learn_category(values: pd.Series, fills: bool) -> Column:
    name = str(values.name)
    found = distinct(values)
    levels, which = np.unique(words_of(found), return_inverse=True)
    counts = np.bincount(which, found.counts, len(levels)).astype(int)
    rare = (counts < FEWEST_ROWS_OF_A_LEVEL) & (not is_boolean(values))
    if 2 * counts[rare].sum() > counts.sum():
        raise BidroError(
            f"Column '{name}' has {len(levels):,} different texts, such as '{levels[0]}', most of them in "
            f"fewer than {FEWEST_ROWS_OF_A_LEVEL} rows, as names and ids are; leave it out with "
            "--features, or merge levels."
        )
    kept = [str(level) for level in levels[~rare]]
    if len(kept) > MOST_LEVELS:
        raise BidroError(
            f"Column '{name}' has {len(kept):,} different texts, such as '{kept[0]}'; leave it out with "
            "--features, merge levels, or make numbers of it."
        )
    filler = str(levels[counts.argmax()]) if fills else None
    # A level that says "Other" in the table is what rare and new levels belong to.
    other = next((level for level in kept if level.strip().casefold() == OTHER), None)
    if rare.any():
        other = other or OTHER
        _log.warning(
            "Note: in '%s', %d level(s) of fewer than %d rows (%s; %s row(s) in all) count as '%s'.",
            *(
                name,
                rare.sum(),
                FEWEST_ROWS_OF_A_LEVEL,
                listed(levels[rare]),
                f"{counts[rare].sum():,}",
                other,
            ),
        )
    return Column(name, tuple(sorted({*kept, *([other] if other else [])})), filler, other)


def _classes(values: pd.Series, task: str | None) -> tuple[str, ...] | None:
    """Of a target without gaps: its classes, or None for a number."""
    name = values.name
    if task not in (None, "regression", "classification"):
        raise BidroError(f"The task must be regression or classification; got {task!r}.")
    numbers = numbers_or_none(values)
    if task is None:
        several = numbers is not None and len(np.unique(numbers)) > 2
        task = "regression" if several else "classification"
    if task == "regression":
        if numbers is None:
            raise BidroError(f"The target '{name}' is not a number; use --task classification.")
        require_usable(numbers, values)
        _require_spread(numbers, str(name))
        if np.ptp(numbers) == 0:
            raise BidroError(
                f"The target '{name}' is {numbers[0]:g} in every row; there is nothing to learn."
            )
        return None
    words = as_words(values)
    levels, counts = np.unique(words, return_counts=True)
    if len(levels) < 2:
        raise BidroError(f"The target '{name}' has one class only, '{levels[0]}'; there is nothing to learn.")
    if len(levels) > MOST_LEVELS:
        remedy = "merge classes" if numbers is None else "use --task regression"
        raise BidroError(f"The target '{name}' has {len(levels):,} classes; {remedy}.")
    if counts.min() < 2:
        alone = levels[counts.argmin()]
        raise BidroError(
            f"{row_name(values, int(np.argmax(words == alone)))} is the only one of class '{alone}' of "
            f"'{name}'; merge it with another class, or leave the row out."
        )
    return tuple(map(str, levels))


def _require_spread(numbers: Floats, name: str) -> None:
    spread = float(np.ptp(numbers))
    if 0 < spread < SMALLEST_SPREAD:
        raise BidroError(
            f"Column '{name}' varies by {spread:g} only, too little to compute with (below "
            f"{SMALLEST_SPREAD:g}); give it in another unit, or leave it out with --features."
        )


def _refuse_nameless(table: pd.DataFrame) -> None:
    for place, name in enumerate(table.columns):
        if _NAMELESS.fullmatch(str(name)):
            raise BidroError(
                f"Column {place + 1} has no name in the header, and may number the rows; name it, drop it, "
                "or say which columns to use with --features."
            )


def _note_numbered(numbers: Floats, name: str) -> None:
    """A line on a feature that nobody has named and that likely numbers the rows: whole numbers (N,), all
    different, with fewer left out than are there."""
    rows = len(numbers)
    if rows < _FEWEST_NUMBERED or not rows - 1 <= np.ptp(numbers) < 2 * rows or (numbers % 1).any():
        return
    if len(np.unique(numbers)) == rows:
        _log.warning(
            "Note: '%s' is a feature, and another number in every row, as if it numbered them; leave it out "
            "with --features if that is all it does.",
            name,
        )


def _refuse_missing(table: pd.DataFrame, client: str, names: Sequence[str]) -> None:
    gaps = pd.DataFrame({name: empty_cells(table[name]) for name in names})
    if not gaps.to_numpy().any():
        return
    counts = gaps.groupby(as_words(table[client])).sum()
    places = [
        f"{int(some.sum()):,} in '{column}' of "
        + (f"'{some.index[0]}'" if len(some) == 1 else f"{len(some):,} clients")
        for column in counts.columns
        if len(some := counts.loc[counts[column] > 0, column])
    ]
    more = f" and {len(places) - _COLUMNS_LISTED} more columns" if len(places) > _COLUMNS_LISTED else ""
    first = row_name(table, int(np.argmax(gaps.to_numpy().any(axis=1))))
    useless = f" Rows without '{names[0]}', the target, can only be dropped." if gaps[names[0]].any() else ""
    raise BidroError(
        f"There are missing values: {', '.join(places[:_COLUMNS_LISTED])}{more}. {first} has the first. Fix "
        f"them, drop the rows, or fill features with --missing median.{useless}"
    )
