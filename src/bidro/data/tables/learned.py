"""The schema that a table suggests, and everything that makes a table unfit for training."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bidro.core.arrays import Floats, repeated
from bidro.core.errors import BidroError, listed
from bidro.data.tables.cells import (
    SMALLEST_SPREAD,
    YEAR_FIRST,
    as_words,
    days,
    distinct,
    empty_cells,
    is_boolean,
    numbers_or_none,
    order_of,
    require_numbers,
    require_usable,
    row_name,
    without,
    words_of,
)
from bidro.data.tables.schema import (
    MISSING,
    TELLS,
    Column,
    Schema,
    require_known_target,
    require_single_columns,
)
from bidro.data.tables.survival import OUTCOMES, ROW, Grid, Survival, event_words, require_in_memory

_log = logging.getLogger(__name__)


# A text column with more levels than this is more likely a name or a date than a category.
MOST_LEVELS = 200
# Levels of fewer rows than this are merged: a coefficient of their own would be noise.
FEWEST_ROWS_OF_A_LEVEL = 5
# The level into which they are merged, unless the column has one of that name in other letters.
OTHER = "other"
# What becomes of missing values: none are taken; numbers are filled by their median and a column of its own
# indicates which were, and categories have a level "missing", both where there are as many as make a level;
# numbers are filled by their median and categories by their commonest level, without an indicator.
FILLING = ("refuse", "median", "median-alone")
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
    person: str | None = None,
    categories: Sequence[str] = (),
    drop: Sequence[str] = (),
    dates: Sequence[str] = (),
) -> Schema:
    """The schema of a table: text, booleans and categories become categories with the levels observed.

    missing: one of FILLING, which says what each does. person: the column of the person or thing that a row
    is of, which is then no feature. categories: columns that are categories whatever their cells look like.
    drop: columns that are no features. dates: columns of dates, which become days since 1970-01-01. Without
    `task`, a target of text or of two different values is a class, any other a number. Levels of fewer than
    FEWEST_ROWS_OF_A_LEVEL rows are merged as `other`. What was merged or filled is logged. Raises BidroError
    for whatever no model can be trained on, with the column and the row.
    """
    require_filling(missing)
    require_single_columns(table.columns, "The table")
    taken = (client, target) if person is None else (client, target, person)
    for name in (*taken, *(features or ()), *drop):
        if name not in table:
            raise BidroError(f"The table has no column '{name}'; it has {listed(table.columns)}.")
    if both := [name for name in (*taken, *(features or ())) if name in drop]:
        raise BidroError(f"Column '{both[0]}' is named for use and in --drop; name it in one of the two.")
    chosen = [c for c in table.columns if c not in (*taken, *drop)] if features is None else list(features)
    _require_features(chosen, table, categories=categories, dates=dates)
    if not chosen:
        raise BidroError("There are no features: every column is the client, the person or the target.")
    if len({*taken, *chosen}) < len(taken) + len(chosen):
        raise BidroError("A column has one role: client, target, person or feature, and each is named once.")
    if features is None:
        _refuse_nameless(table, chosen)
    if len(table) < 2:
        raise BidroError(f"The table has {len(table)} row(s); training needs at least two.")
    # No filling can say whose a row is, and messages on other gaps name clients.
    whose = Schema(client, target, None, (), person)
    whose.clients(table)
    whose.people(table)
    if missing == "refuse":
        _refuse_missing(table, client, [target, *chosen])
    require_known_target(table[target])
    classes = _classes(table[target], task)
    columns: list[Column] = []
    for name in chosen:
        if name in dates:
            columns += _learn_dates(table[name], missing)
        elif name in categories:
            columns += _filled(_learn_category(table[name], missing), table[name], missing)
        else:
            columns += _learn_column(table[name], missing, features is not None)
    schema = Schema(client, target, classes, tuple(columns), person)
    if not schema.features:
        raise BidroError("There are no features: every column has the same level in all rows.")
    return schema


def learn_survival(
    table: pd.DataFrame,
    client: str,
    event: str,
    time: str,
    grid: Sequence[float],
    entry: str | None = None,
    features: Sequence[str] | None = None,
    missing: str = "refuse",
    person: str | None = None,
    categories: Sequence[str] = (),
    drop: Sequence[str] = (),
    dates: Sequence[str] = (),
) -> Schema:
    """The schema of a table of times to an event, one row a person, or rows of people who are named.

    event: the column of whether it happened, or "column=value" where that is not told by its values (see
    `survival.CODES`). time: the column of how long a row was watched. grid: the ends of the periods. entry:
    the column of when watching began. The others as in `learn_schema`. Raises BidroError as that does, and
    where nobody is watched in a period.
    """
    require_in_memory(table)
    column, named = event, None
    if event not in table and "=" in event:
        column, named = event.rsplit("=", 1)
    used = [name for name in (column, entry) if name is not None]
    for name in (time, *used):
        if name in drop or name in (client, person) or (features is not None and name in features):
            raise BidroError(f"'{name}' is of the time to the event; it is named for another use, too.")
        if name not in table:
            raise BidroError(f"The table has no column '{name}'; it has {listed(table.columns)}.")
    if len({time, *used}) <= len(used):
        raise BidroError("The event, its time and the entry are columns of their own; one is named twice.")
    words = event_words(table[column], named)
    made = Survival(time, Grid(tuple(map(float, grid))), *words, entry)
    left = [*drop, *used]
    alone = features is None and {*table.columns} <= {client, person, time, *left}
    if alone:
        # Periods are features, and nothing else is needed for a curve of everybody.
        schema = Schema(client, column, None, (), person)
        schema.owners(table)
    else:
        kinds = (features, "regression", missing, person, categories, left, dates)
        schema = learn_schema(table, client, time, *kinds)
    watched = made.grid.periods(made.observed(table, column))
    counts = np.bincount(watched.period, minlength=len(made.grid.ends))
    if not counts.all():
        empty = made.grid.names[int(np.argmin(counts > 0))]
        raise BidroError(
            f"Nobody is watched in the period {empty} of '{time}', whose values are up to "
            f"{require_numbers(table[time]).max():g}; give --time-grid ends that people reach."
        )
    made.note_left_out(table, column)
    columns = (Column(time, made.grid.names), *schema.columns)
    return Schema(client, column, OUTCOMES, columns, person or ROW, None, made)


def usable_rows(
    table: pd.DataFrame, client: str, target: str, person: str | None, least: int
) -> pd.DataFrame:
    """The rows that a model can be trained on and judged by: those with a target, of clients with at least
    `least` of them (or of their people). What is left out is logged."""
    if any(name is not None and name not in table for name in (client, target, person)):
        return table  # refused with its reason where the schema is learned
    gaps = empty_cells(table[target])
    if gaps.any() and not gaps.all():
        count = int(gaps.sum())
        rows = "1 row has" if count == 1 else f"{count:,} rows have"
        _log.warning("Note: %s no '%s' and %s left out.", rows, target, "is" if count == 1 else "are")
        table = without(table, gaps)
    named = as_words(table[client])
    draws = pd.DataFrame(
        {"client": named, "draw": np.arange(len(table)) if person is None else as_words(table[person])}
    )
    counts = draws.groupby("client")["draw"].nunique()
    small = counts.index[counts < least]
    if not len(small) or len(counts) - len(small) < 1:
        return table
    what = "rows" if person is None else "people"
    which = (
        f"Client '{small[0]}' has" if len(small) == 1 else f"{len(small):,} clients ({listed(small, 5)}) have"
    )
    they = "is left out" if len(small) == 1 else "are left out"
    _log.warning(
        f"Note: {which} fewer than {least} {what}, too few to train on and to judge by, and {they}; "
        "predictions there are the shared model's."
    )
    return without(table, np.isin(named, list(small)))


def require_filling(missing: str) -> None:
    """Raise BidroError for what is no way to treat missing values."""
    if missing not in FILLING:
        raise BidroError(f"missing must be one of {', '.join(FILLING)}; got {missing!r}.")


def _require_features(chosen: Sequence[str], table: pd.DataFrame, **kinds: Sequence[str]) -> None:
    """Raise BidroError where a column whose kind is declared is no feature, or is declared to be of two."""
    named = [(name, option) for option, names in kinds.items() for name in names]
    for name, option in named:
        if name not in chosen:
            where = "no feature" if name in table else "no column of the table"
            raise BidroError(f"'{name}' in --{option} is {where}; the features are {listed(chosen)}.")
    if (twice := repeated(name for name, _ in named)) is not None:
        raise BidroError(f"'{twice}' is declared twice in --{' and --'.join(kinds)}; name it once.")


def _learn_column(values: pd.Series, missing: str, named: bool) -> list[Column]:
    name, gaps = str(values.name), _gaps(values)
    numbers = numbers_or_none(values)
    if numbers is None:
        return _filled(_learn_category(values, missing), values, missing)
    require_usable(numbers, values)
    _require_spread(numbers[~gaps], name)
    if not named:
        _note_numbered(numbers[~gaps], name)
    return _filled(Column(name, None, _median(numbers, missing)), values, missing)


def _learn_dates(values: pd.Series, missing: str) -> list[Column]:
    name, gaps = str(values.name), _gaps(values)
    order = order_of(values)
    numbers = days(values, order)
    require_usable(numbers, values)
    _require_spread(numbers[~gaps], name)
    written = "" if order == YEAR_FIRST else f", read with the {order}"
    _log.warning("Note: '%s' counts as days since 1970-01-01%s.", name, written)
    return _filled(Column(name, None, _median(numbers, missing), dates=order), values, missing)


def _median(numbers: Floats, missing: str) -> float | None:
    return None if missing == "refuse" else float(np.nanmedian(numbers))


def _gaps(values: pd.Series) -> NDArray[np.bool_]:
    """(N,) the empty cells. Raises BidroError where all are."""
    gaps = empty_cells(values)
    if gaps.all():
        raise BidroError(f"Column '{values.name}' has no values; leave it out with --drop '{values.name}'.")
    return gaps


def _filled(column: Column, values: pd.Series, missing: str) -> list[Column]:
    """The column, and where enough of its numbers are filled another that indicates which; logs what was
    filled."""
    count = int(empty_cells(values).sum())
    if not count:
        return [column]
    found, more = [column], ""
    if column.levels is None and missing == "median" and count >= FEWEST_ROWS_OF_A_LEVEL:
        found.append(Column(f"{column.name} is missing", TELLS, of=column.name))
        more = f"; '{found[1].name}' tells which"
    cells = "1 empty cell of '%s' counts" if count == 1 else f"{count:,} empty cells of '%s' count"
    _log.warning(f"Note: {cells} as %s%s.", column.name, column.filled_by, more)
    return found


def _learn_category(values: pd.Series, missing: str) -> Column:
    name, gaps = str(values.name), int(_gaps(values).sum())
    found = distinct(values)
    words, of_each = words_of(found), found.counts
    if missing == "median" and gaps >= FEWEST_ROWS_OF_A_LEVEL:
        words, of_each = [*words, MISSING], np.append(of_each, gaps)
    levels, which = np.unique(words, return_inverse=True)
    counts = np.bincount(which, of_each, len(levels)).astype(int)
    rare = (counts < FEWEST_ROWS_OF_A_LEVEL) & (not is_boolean(values))
    if 2 * counts[rare].sum() > counts.sum():
        raise BidroError(
            f"Column '{name}' has {len(levels):,} different texts, such as '{levels[0]}', most of them in "
            f"fewer than {FEWEST_ROWS_OF_A_LEVEL} rows, as names and ids are; leave it out with "
            f"--drop '{name}', or merge levels."
        )
    kept = [str(level) for level in levels[~rare]]
    if len(kept) > MOST_LEVELS:
        raise BidroError(
            f"Column '{name}' has {len(kept):,} different texts, such as '{kept[0]}'; leave it out with "
            f"--drop '{name}', merge levels, or make numbers of it."
        )
    commonest = str(levels[counts.argmax()])
    # Few empty cells make no level, as few rows do not; where training has none, nothing was filled by one.
    few = 0 < gaps < FEWEST_ROWS_OF_A_LEVEL
    fillers = {"refuse": None, "median": commonest if few else MISSING, "median-alone": commonest}
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
    return Column(name, tuple(sorted({*kept, *([other] if other else [])})), fillers[missing], other)


def _classes(values: pd.Series, task: str | None) -> tuple[str, ...] | None:
    """Of a target without gaps: its classes, or None for a number."""
    name = values.name
    if task not in (None, "regression", "classification"):
        raise BidroError(f"The task must be regression or classification; got {task!r}.")
    # What is declared to have classes need not read as anything.
    numbers = None if task == "classification" else numbers_or_none(values)
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
        remedy = "merge classes, or use --task regression if it is a number"
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
            f"{SMALLEST_SPREAD:g}); give it in another unit, or leave it out with --drop '{name}'."
        )


def _refuse_nameless(table: pd.DataFrame, chosen: Sequence[str]) -> None:
    for place, name in enumerate(table.columns):
        if name in chosen and _NAMELESS.fullmatch(str(name)):
            raise BidroError(
                f"Column {place + 1} has no name in the header, and may number the rows; name it, or leave "
                f"it out with --drop '{name}'."
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
            "with --drop '%s' if that is all it does.",
            name,
            name,
        )


def _refuse_missing(table: pd.DataFrame, client: str, names: Sequence[str]) -> None:
    each = ((name, empty_cells(table[name])) for name in names)
    gaps = pd.DataFrame({name: own for name, own in each if own.any()})
    if gaps.empty:
        return
    counts = gaps.groupby(as_words(table[client])).sum()
    places = [
        f"{int(some.sum()):,} in '{column}' of "
        + (f"'{some.index[0]}'" if len(some) == 1 else f"{len(some):,} clients")
        for column in counts.columns
        if len(some := counts.loc[counts[column] > 0, column])
    ]
    left = len(places) - _COLUMNS_LISTED
    more = f" and {left} more column{'s' * (left > 1)}" if left > 0 else ""
    first = row_name(table, int(np.argmax(gaps.to_numpy().any(axis=1))))
    useless = f" Rows without '{names[0]}', the target, can only be dropped." if names[0] in gaps else ""
    raise BidroError(
        f"There are missing values: {', '.join(places[:_COLUMNS_LISTED])}{more}. {first} has the first. Fix "
        f"them, drop the rows, or fill features with --missing median.{useless}"
    )
