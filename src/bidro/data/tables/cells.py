"""The cells of a column as numbers, words or days; which of them are empty; and where a row stands, in words.

A cell of blank text is empty, whatever the kind of file. Dates are days since 1970-01-01, with a fraction for
the time of day. A day is written year first (2024-03-05, 20240305), with the month's name (5 Mar 2024), or in
figures with the year last, 5/3/2024: there the column decides which of the first two is the day, and a column
that leaves it open is refused. A moment with an offset from UTC is converted to UTC.
"""

from __future__ import annotations

import datetime
import math
import numbers
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.core.splits import Words
from bidro.data.federation import LARGEST_SIZE

# Under this name a table remembers its files: (path, rows) of each, in the order of its rows.
_FILES = "files"
_SOME_LEFT_OUT = "some rows were left out"


def remember_files(table: pd.DataFrame, files: Sequence[tuple[object, int]]) -> None:
    table.attrs = {_FILES: tuple((str(path), rows) for path, rows in files)}


def row_name(of: pd.DataFrame | pd.Series, place: int) -> str:
    """ "Row 5 below the header of 'north.csv'", from a place that counts from 0 over all files.

    Rows are counted from 1, and the header is none of them; blank lines are not counted. Where some were left
    out, those that are used are counted.
    """
    if of.attrs.get(_SOME_LEFT_OUT):
        return f"Row {place + 1} of those that are used"
    files = of.attrs.get(_FILES, ())
    if sum(rows for _, rows in files) != len(of):
        return f"Row {place + 1} below the header"
    for path, rows in files:
        if place < rows:
            return f"Row {place + 1} below the header of '{path}'"
        place -= rows
    raise IndexError(place)


def without(table: pd.DataFrame, left_out: NDArray[np.bool_]) -> pd.DataFrame:
    """The table without some of its rows (N,)."""
    found = table[~left_out].reset_index(drop=True)
    found.attrs[_SOME_LEFT_OUT] = True
    return found


# Below this spread, squares of squares (the variance of a squared loss) vanish.
SMALLEST_SPREAD = 1 / LARGEST_SIZE

# Whole numbers below this are exact as floating-point numbers.
_EXACT = 2**53

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_WHOLE = re.compile(r"[+-]?[0-9]{1,1000}")
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
# 1,234 is a thousand to some and little more than one to others.
_EITHER = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
# Numbers with something about them: <5, 5%, 1 234, 1.234,5, $12.
_LIKE_A_NUMBER = re.compile(r"[<>≤≥~=$€£\s]*[+-]?\d[\d.,'\s]*([eE][+-]?\d+)?[\s%$€£+*]*")
_MONTH_NAME = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_DATE = re.compile(
    r"(\d{4}[-/](0?[1-9]|1[0-2])([-/]\d{1,2})?|\d{4}\.\d{1,2}\.\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{2}|\d{4})"
    rf"|\d{{1,2}}[-\s.]*{_MONTH_NAME}[-\s.,]*\d{{2,4}}|{_MONTH_NAME}[-\s.,]*\d{{1,2}}[-\s,]+\d{{2,4}})"
    r"([T\s].*)?|\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?",
    re.IGNORECASE,
)
_DATES = (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64, pd.Period)


class Distinct(NamedTuple):
    """A column as its different values and which of them each cell has."""

    values: list[Any]
    codes: NDArray[np.intp]  # (N,) -1 for an empty cell

    @property
    def counts(self) -> NDArray[np.intp]:
        """How many cells have each value."""
        return np.bincount(self.codes[self.codes >= 0], minlength=len(self.values))

    def first(self, wanted: NDArray[np.bool_]) -> tuple[int, Any]:
        """(place, value) of the first cell whose value is wanted."""
        # An empty cell is never wanted: its code leads to the last entry.
        place = int(np.argmax(np.append(wanted, False)[self.codes]))
        return place, self.values[self.codes[place]]


def distinct(column: pd.Series) -> Distinct:
    """Raises BidroError for cells that are lists, mappings, bytes or the like."""
    try:
        codes, found = pd.factorize(column)
    except TypeError as error:
        kinds = (list, dict, set, np.ndarray)
        place = next((k for k, v in enumerate(column) if isinstance(v, kinds)), 0)
        raise _nested(column, place) from error
    values = list(found)
    for code, value in enumerate(values):
        if not isinstance(value, (str, bool, np.bool_, numbers.Number, pd.Interval, *_DATES)):
            raise _nested(column, int(np.argmax(codes == code)))
    blank = np.array([isinstance(v, str) and not v.strip() for v in values], bool)
    if blank.any():
        kept = np.flatnonzero(~blank)
        renumbered = np.full(len(values) + 1, -1, np.intp)
        renumbered[kept] = np.arange(len(kept))
        return Distinct([values[k] for k in kept], renumbered[codes])
    return Distinct(values, np.asarray(codes, np.intp))


def _nested(column: pd.Series, place: int) -> BidroError:
    kind = type(column.iloc[place]).__name__
    return BidroError(
        f"{row_name(column, place)}: '{column.name}' is a {kind}, neither a number nor a word; make columns "
        f"of its parts, or leave it out with --drop '{column.name}'."
    )


def empty_cells(column: pd.Series) -> NDArray[np.bool_]:
    """(N,)"""
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_complex_dtype(column):
        return np.isnan(_floats(column))
    return np.asarray(distinct(column).codes < 0)


def as_words(column: pd.Series) -> NDArray[np.str_]:
    """(N,) cells as text, "" for an empty one; whole numbers have no decimal point, however they are kept."""
    return coded_words(column).each


def coded_words(column: pd.Series) -> Words:
    """The same, without a text for every row."""
    found = distinct(column)
    return _words(found, words_of(found))


def _words(found: Distinct, words: list[str]) -> Words:
    values, which = np.unique(np.array([*words, ""], str), return_inverse=True)
    codes = which[found.codes]
    if (found.codes >= 0).all():
        return Words(values[1:], codes - 1)  # nothing is empty
    return Words(values, codes)


def words_of(found: Distinct) -> list[str]:
    """Its different values as text."""
    return [_word(value) for value in found.values]


def _word(value: Any) -> str:
    if isinstance(value, float | Decimal) and -_EXACT < value < _EXACT and value == int(value):
        return str(int(value))
    return str(value)


def coded_labels(column: pd.Series) -> Words:
    """Cells as names of something, "" for an empty one: what is the same number is the same name. Of 007
    a file's reader leaves 7 where all cells of the column are numbers, and 007 where one is not."""
    found = distinct(column)
    return _words(found, [_label(word) for word in words_of(found)])


def _label(word: str) -> str:
    word = word.strip()
    if _WHOLE.fullmatch(word):
        return str(int(word))
    number = number_of(word)
    return word if number is None else _word(number)


def number_of(text: str) -> float | None:
    """The number that a text with a decimal point is; None where it is none."""
    return float(text) if _NUMBER.fullmatch(text.strip()) else None


def is_boolean(column: pd.Series) -> bool:
    """Whether all cells that are not empty are true or false."""
    if pd.api.types.is_bool_dtype(column):
        return True
    return column.dtype == object and all(isinstance(v, bool | np.bool_) for v in distinct(column).values)


def numbers_or_none(column: pd.Series) -> Floats | None:
    """(N,) numbers, NaN for an empty cell; None for a column of words.

    Text is numbers where every cell reads as one, with a decimal point or, in the whole column, a decimal
    comma. What was declared a category stays one. Raises BidroError for dates, and for text that reads as
    numbers in most of its cells but not in all, with the first cell that does not.
    """
    kinds = pd.api.types
    if isinstance(column.dtype, pd.CategoricalDtype) or kinds.is_bool_dtype(column):
        return None
    if kinds.is_complex_dtype(column):
        raise BidroError(f"Column '{column.name}' holds complex numbers; make two columns of it.")
    if kinds.is_numeric_dtype(column):
        return _floats(column)
    found = distinct(column)
    if not found.values or all(isinstance(v, bool | np.bool_) for v in found.values):
        return None
    _refuse_dates(column, found)
    return _text_as_numbers(column, found)


def _floats(column: pd.Series) -> Floats:
    """Of a column whose type is numeric. Nullable types know two kinds of nothing; here both are NaN."""
    if isinstance(column.dtype, np.dtype):
        return column.to_numpy(float)
    return column.to_numpy(float, na_value=np.nan)


def is_day(value: Any) -> bool:
    """Whether a cell is a date or a time, by its type or by its look."""
    return isinstance(value, _DATES) or (
        isinstance(value, str) and _DATE.fullmatch(value.strip()) is not None
    )


def _refuse_dates(column: pd.Series, found: Distinct) -> None:
    looks = [is_day(v) for v in found.values]
    # A date by its type is one beyond doubt; among texts most must look like one.
    if any(isinstance(v, _DATES) for v in found.values) or _mostly(np.array(looks), found):
        value = found.first(np.array(looks))[1]
        raise BidroError(
            f"Column '{column.name}' holds dates or times, such as '{value}'; say --dates '{column.name}' in "
            "training for days since 1970-01-01, make another number of it (an hour, a year), or leave it "
            f"out with --drop '{column.name}'."
        )


def _text_as_numbers(column: pd.Series, found: Distinct) -> Floats | None:
    texts = [v.strip() if isinstance(v, str) else _word(v) for v in found.values]
    plain = np.array([_NUMBER.fullmatch(t) is not None or _is_number(v) for t, v in _pairs(texts, found)])
    comma = np.array([_DECIMAL_COMMA.fullmatch(t) is not None for t in texts])
    either = np.array([_EITHER.fullmatch(t) is not None for t in texts])
    # Whole numbers go with a decimal comma; a number with a point does not.
    whole = np.array(["." not in t or not isinstance(v, str) for t, v in _pairs(texts, found)])
    if plain.all():
        return _decoded(found, found.values)
    if comma.any() and np.all(comma | (plain & whole)):
        if not np.any(comma & ~either):
            place, value = found.first(comma)
            raise BidroError(
                f"{row_name(column, place)}: '{column.name}' is '{value}', a thousand or a decimal comma; "
                "write numbers with a decimal point, and without separators of thousands."
            )
        points = [t.replace(",", ".") if c else v for t, c, v in zip(texts, comma, found.values, strict=True)]
        return _decoded(found, points)
    like = plain | comma | np.array([_LIKE_A_NUMBER.fullmatch(t) is not None for t in texts])
    if not _mostly(like, found):
        return None
    place, value = found.first(~plain)
    raise BidroError(
        f"{row_name(column, place)}: '{column.name}' is '{value}', which is no number, where most of the "
        "column reads as numbers; write a number with a decimal point, or leave the cell empty and say "
        f"--missing median. If these are categories, say --categories '{column.name}' in training; --drop "
        f"'{column.name}' leaves it out."
    )


def _pairs(texts: list[str], found: Distinct) -> zip[tuple[str, Any]]:
    return zip(texts, found.values, strict=True)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Number) and not isinstance(value, bool | np.bool_ | complex)


def _mostly(wanted: NDArray[np.bool_], found: Distinct) -> bool:
    """Whether more than half of the cells, or of the different values, are so."""
    return bool(2 * found.counts[wanted].sum() > found.counts.sum() or 2 * wanted.sum() > len(wanted))


def _decoded(found: Distinct, values: list[Any]) -> Floats:
    return np.array([*map(_float, values), np.nan])[found.codes]


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number of more than 308 digits
        return math.inf


def require_usable(values: Floats, column: pd.Series) -> None:
    """Raise BidroError for the first number that is infinite or too large to compute with; NaN is let by."""
    wrong = np.abs(values) > LARGEST_SIZE
    if not wrong.any():
        return
    place = int(np.argmax(wrong))
    if np.isinf(values[place]):
        raise BidroError(
            f"{row_name(column, place)}: '{column.name}' is not a finite number; fix or drop the row."
        )
    raise BidroError(
        f"{row_name(column, place)}: '{column.name}' is {values[place]:g}, too large to compute with (above "
        f"{LARGEST_SIZE:g}); fix the row, or give the column in another unit."
    )


def require_numbers(column: pd.Series) -> Floats:
    """(N,) numbers that can be computed with, NaN for an empty cell; BidroError for anything else."""
    found = numbers_or_none(column)
    if found is None:
        cells = distinct(column)
        read = [_is_number(v) or (isinstance(v, str) and _NUMBER.fullmatch(v.strip())) for v in cells.values]
        odd = ~np.array(read, bool)
        if odd.any():
            place, value = cells.first(odd)
            raise BidroError(f"{row_name(column, place)}: '{column.name}' must be a number; it is '{value}'.")
        found = _decoded(cells, cells.values)
    require_usable(found, column)
    return found


# How the days of a column are written, where the month is no word.
YEAR_FIRST, DAY_FIRST, MONTH_FIRST = "year first", "day first", "month first"
ORDERS = (YEAR_FIRST, DAY_FIRST, MONTH_FIRST)

_YEAR_LAST = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2(\d{4})([T\s].*)?")
_YEAR_FIRST = re.compile(r"(\d{4})([-/.])(\d{1,2})(?:\2(\d{1,2}))?([T\s].*)?")
_TOGETHER = re.compile(r"(\d{4})(\d{2})(\d{2})")
_EPOCH, _DAY = pd.Timestamp("1970-01-01"), pd.Timedelta(days=1)


def order_of(column: pd.Series) -> str:
    """How the days of a column are written. Raises BidroError where some are no days, or no order fits all of
    them, or two do."""
    cells = distinct(column)
    parts = [_YEAR_LAST.fullmatch(_text(value)) for value in cells.values]
    figures = [(int(found[1]), int(found[3])) for found in parts if found is not None]
    if not figures:
        order = YEAR_FIRST
    else:
        can = {
            DAY_FIRST: all(month <= 12 for _, month in figures),
            MONTH_FIRST: all(month <= 12 for month, _ in figures),
        }
        if can[DAY_FIRST] and can[MONTH_FIRST] and any(a != b for a, b in figures):
            place, value = cells.first(np.array([found is not None for found in parts]))
            raise BidroError(
                f"{row_name(column, place)}: '{column.name}' is '{value}', and nothing in the column says "
                "which is the day and which the month; write dates year first, such as 2024-03-05."
            )
        order = DAY_FIRST if can[DAY_FIRST] else MONTH_FIRST
    days(column, order)
    return order


def days(column: pd.Series, order: str) -> Floats:
    """(N,) days since 1970-01-01, NaN for an empty cell. Raises BidroError for a cell that is no day."""
    cells = distinct(column)
    found = np.array([_day(value, order) for value in cells.values], float)
    odd: NDArray[np.bool_] = np.isnan(found)
    if odd.any():
        raise _no_date(column, cells, odd, order)
    return np.append(found, np.nan)[cells.codes]


def _no_date(column: pd.Series, cells: Distinct, odd: NDArray[np.bool_], order: str) -> BidroError:
    place, value = cells.first(odd)
    # Of what is no day in any order, the order is not what is wrong.
    ordered = order != YEAR_FIRST or _YEAR_LAST.fullmatch(_text(value)) is not None
    written = f" with the {order}, as in the rest of the column or in training" if ordered else ""
    return BidroError(
        f"{row_name(column, place)}: '{column.name}' is '{value}', which is no date{written}; write dates as "
        "2024-03-05, or leave the cell empty and say --missing median in training."
    )


def _text(value: Any) -> str:
    if isinstance(value, float | np.floating) and value == int(value):
        value = int(value)
    return str(value).strip()


def _day(value: Any, order: str) -> float:
    """NaN for what is no day."""
    try:
        moment = _moment(value, order)
        if moment.tzinfo is not None:
            moment = moment.tz_convert("UTC").tz_localize(None)
        return float((moment - _EPOCH) / _DAY)
    except (ValueError, TypeError, OverflowError):
        return np.nan


def _moment(value: Any, order: str) -> pd.Timestamp:
    """Raises ValueError or TypeError for what is no day."""
    if isinstance(value, pd.Period):
        return value.to_timestamp()
    if isinstance(value, datetime.date | np.datetime64):
        return pd.Timestamp(value)
    text = _text(value)
    if (found := _TOGETHER.fullmatch(text)) is not None:
        year, month, day, rest = *found.groups(), None
    elif (found := _YEAR_FIRST.fullmatch(text)) is not None:
        year, _, month, day, rest = found.groups()
    elif (found := _YEAR_LAST.fullmatch(text)) is not None:
        if order == YEAR_FIRST:
            raise ValueError(text)
        day, _, month, year, rest = found.groups()
        if order == MONTH_FIRST:
            day, month = month, day
    elif is_day(text) and re.search(r"[A-Za-z]{3}", text) and re.search(r"\d{4}", text):
        return pd.Timestamp(text)
    else:
        raise ValueError(text)
    # Words that pandas knows, such as "now", are none of a time.
    if rest is not None and not re.fullmatch(
        r"[T\s]\s*[\d:.]+\s*([AaPp][Mm])?\s*(Z|UTC|[+-]\d{2}:?\d{2})?", rest
    ):
        raise ValueError(text)
    return pd.Timestamp(f"{year}-{int(month):02d}-{int(day or 1):02d}{rest or ''}")
