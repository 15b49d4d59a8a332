"""Whose rows a site's table has, whatever agreement it is read by: statements are counted by people.

An agreement names columns and codes them; another one makes other numbers of the same rows. So a row is known
again by its unit, by its numbers, or by all that its file says of it, whichever of these is the same.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bidro.deploy.known_rows import KnownRows
from bidro.deploy.site_state import SiteState
from bidro.splits import scrambled, siphash


def row_contents(table: pd.DataFrame, without: str) -> NDArray[np.uint64]:
    """(N,) 64 bits from all cells of each row, whatever the order of the columns, but for one column, which
    sites need not have."""
    named = sorted((str(name), place) for place, name in enumerate(table.columns) if name != without)
    found = np.zeros(len(table), np.uint64)
    for _, place in named:
        column = table.iloc[:, place]
        cells = column.astype(str) if pd.api.types.is_object_dtype(column) else column
        found = scrambled(found, pd.util.hash_pandas_object(cells, index=False).to_numpy(np.uint64))
    return found


def version_of(state: SiteState, known: KnownRows, contents: NDArray[np.uint64], min_rows: int) -> int:
    """The number of the version of a site's table, by the people in it: see `SiteState.version`."""
    key = np.frombuffer(state.derived("row contents")[:16], "<u8")
    people = [known.hashes, siphash(key, [contents])]
    if known.units is None:
        return state.version(people, np.arange(len(contents), dtype=np.uint64), min_rows)
    return state.version([*people, known.hashed_units], known.units, min_rows)
