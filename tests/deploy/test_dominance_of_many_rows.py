"""What a site of many rows takes to find out whether one of them outweighs the others."""

import tracemalloc

import numpy as np

from bidro.deploy.site.disclosure.information import largest_share

ROWS, COLUMNS = 300_000, 3


def test_who_outweighs_the_others_is_found_without_an_array_a_row():
    rng = np.random.default_rng(1)
    rows, people = rng.normal(size=(ROWS, COLUMNS)), np.arange(ROWS, dtype=np.uint64)
    tracemalloc.start()
    try:
        assert largest_share(rows.__getitem__, people) < 0.01
        tables = tracemalloc.get_traced_memory()[1] / rows.nbytes
    finally:
        tracemalloc.stop()
    # Some numbers of every row, and parts of the rows.
    assert tables < 6, tables
    rows[7] *= 1e4
    assert largest_share(rows.__getitem__, people) > 0.99
