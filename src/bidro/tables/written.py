"""Tables as CSV that a spreadsheet opens as text: no cell of it is a formula."""

from __future__ import annotations

import csv
import logging
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

_log = logging.getLogger(__name__)

# A spreadsheet takes a text that begins so for a formula, and computes it.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")


def as_csv(table: pd.DataFrame) -> str:
    """The table as CSV. Texts that a spreadsheet would compute, in cells and titles, get an apostrophe before
    them, which a warning says; numbers, also those written as text, stay as they are."""
    safe, quoted = table.rename(columns=_plain), csv.QUOTE_MINIMAL
    for place, name in enumerate(table.columns):
        column = table.iloc[:, place]
        if column.dtype.kind in "OUST":
            # Few texts are many cells.
            texts = {text: _plain(text) for text in column.unique() if isinstance(text, str)}
            if any("\r" in text for text in texts):
                quoted = csv.QUOTE_NONNUMERIC  # else it would end the line, and begin a cell
            if changed := [text for text, plain in texts.items() if text != plain]:
                _log.warning(
                    "Note: %r in '%s' would be a formula to a spreadsheet, and is written with an apostrophe "
                    "before it.",
                    changed[0],
                    name,
                )
                safe.isetitem(place, column.map(lambda cell, texts=texts: texts.get(cell, cell)))
    return str(safe.to_csv(index=False, quoting=quoted))


def as_meant(words: NDArray[np.str_]) -> NDArray[np.str_]:
    """(N,) texts without the apostrophes that `as_csv` puts before some."""
    different, which = np.unique(words, return_inverse=True)
    meant = [word[1:] if word.startswith("'") and _plain(word[1:]) == word else word for word in different]
    return np.array(meant, str)[which]


def _plain(text: Any) -> Any:
    if not isinstance(text, str) or not text.startswith(_FORMULAS):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text
