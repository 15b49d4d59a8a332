"""Dates as numbers: days since 1970-01-01, with a fraction for the time of day.

A day is written year first (2024-03-05, 20240305), with the month's name (5 Mar 2024), or in figures with the
year last, 5/3/2024: there a column says which of the first two is the day, and a table that leaves it open
is refused. A moment with an offset from UTC is that moment in UTC.
"""

from __future__ import annotations

import datetime
import re
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bidro.arrays import Floats
from bidro.errors import BidroError
from bidro.tables.cells import Distinct, distinct, is_day
from bidro.tables.places import row_name

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
