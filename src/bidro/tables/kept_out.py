"""Which rows are kept out of training, and whether what is left will do."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bidro.errors import BidroError
from bidro.federation import random_bits
from bidro.tables.schema import Schema

# Rows are kept out by other random numbers than those that deal folds with the same seed.
_OF_ROWS_KEPT_OUT = 1 << 62


def choose_kept_out(clients: NDArray[np.str_], share: float, seed: int) -> NDArray[np.bool_]:
    """(N,) whether a row is kept out of training: the same share of every client, at least one row.

    It depends on the seed, a client's name and the order of its rows, not on the other clients.
    """
    if not 0 <= share < 1:
        raise BidroError(f"--hold-out must be a share from 0 to below 1; got {share}.")
    kept = np.zeros(len(clients), bool)
    if share == 0:
        return kept
    names, codes, sizes = np.unique(clients, return_inverse=True, return_counts=True)
    counts = np.maximum(1, np.round(share * sizes).astype(int))
    if np.any(sizes - counts < 2):
        small = int(np.argmax(sizes - counts < 2))
        raise BidroError(
            f"Client '{names[small]}' has {sizes[small]} row(s), too few to keep some out and train on the "
            "rest; leave it out, give it more rows, or use --hold-out 0."
        )
    within = np.arange(len(clients)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    place = np.empty(len(clients), np.int64)
    place[np.argsort(codes, kind="stable")] = within
    drawn = random_bits([str(name) for name in names], codes, place, seed + _OF_ROWS_KEPT_OUT)
    kept[np.lexsort((drawn, codes))] = within < np.repeat(counts, sizes)
    return kept


def require_every_class(schema: Schema, training: NDArray[Any]) -> None:
    """Raise BidroError where a class has no row left among the targets (N,) of training."""
    absent = sorted(set(schema.classes or ()) - set(training.tolist()))
    if absent:
        raise BidroError(
            f"All rows of class '{absent[0]}' of '{schema.target}' were kept out of training: it has too "
            "few; merge it with another class, leave it out, or use another --seed or --hold-out 0."
        )
