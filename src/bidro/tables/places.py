"""Where a row is, in words that a person with the file open can follow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

# Under this name a table remembers its files: (path, rows) of each, in the order of its rows.
_FILES = "files"


def remember_files(table: pd.DataFrame, files: Sequence[tuple[Path, int]]) -> None:
    table.attrs = {_FILES: tuple((str(path), rows) for path, rows in files)}


def row_name(of: pd.DataFrame | pd.Series, place: int) -> str:
    """ "Row 5 below the header of 'north.csv'", from a place that counts from 0 over all files.

    Rows are counted from 1, and the header is none of them; blank lines are not counted.
    """
    files = of.attrs.get(_FILES, ())
    if sum(rows for _, rows in files) != len(of):
        return f"Row {place + 1} below the header"
    for path, rows in files:
        if place < rows:
            return f"Row {place + 1} below the header of '{path}'"
        place -= rows
    raise IndexError(place)
