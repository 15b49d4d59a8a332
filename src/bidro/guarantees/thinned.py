"""A federation with some of its rows, for what need not see all of them."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np

from bidro.arrays import aligned
from bidro.federation import Federation
from bidro.splits import drawn


def thinned(federation: Federation, rows: int, fewest: int) -> Federation:
    """With about so many rows in all, drawn by what is in them, or units with all their rows: the same share
    of every client's, but about `fewest` of them at least, or all that it has."""
    units, n = federation.whole_units, federation.n
    share = np.maximum(
        min(1.0, rows / sum(federation.sizes)), np.minimum(1.0, fewest / units.counts(n).astype(float))
    )
    some = np.flatnonzero(drawn(units.ids, share[units.owner])[units.of_row])
    owner = np.repeat(np.arange(n), federation.sizes)[some]
    kept = aligned((len(some), federation.m))
    np.take(federation.host_rows, some, axis=0, out=kept)
    return replace(
        federation,
        samples=jax.device_put(kept),
        sizes=tuple(np.bincount(owner, minlength=n).tolist()),
        units=None if federation.units is None else federation.units[some],
        ids=None if federation.ids is None else federation.ids[some],
    )
