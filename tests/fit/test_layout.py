"""Rows in an order of choice: the same from a matrix and from its columns, which go as they are moved."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

from bidro.fit import network as module
from bidro.fit.network import column_layout


@pytest.mark.parametrize("block", [1, 1 << 25])
def test_columns_and_rows_give_the_same(monkeypatch, block):
    monkeypatch.setattr(module, "_TOGETHER", 100)
    monkeypatch.setattr(module, "_TURNED", 7)
    monkeypatch.setattr(module, "_GIVEN_BACK", block)
    rng = np.random.default_rng(0)
    features, target = rng.normal(size=(1234, 5)), rng.normal(size=1234)
    order = rng.permutation(1234)
    orders = order[:1000], order[1000:], order[:0]
    columns = [column.copy() for column in features.T]
    found = column_layout(columns, 6, target, orders)
    assert columns == []
    for rows, same, places in zip(found, column_layout(features, 6, target, orders), orders, strict=True):
        wanted = np.column_stack([features, target])[places]
        np.testing.assert_array_equal(rows, wanted)
        np.testing.assert_array_equal(same, wanted)
        assert rows.flags.c_contiguous
        assert rows.size == 0 or rows.ctypes.data % 64 == 0


def test_a_column_is_gone_before_the_next_is_moved(monkeypatch):
    columns = [np.full(10, float(j)) for j in range(4)]
    alive = [weakref.ref(column) for column in columns]
    seen = []
    monkeypatch.setattr(module, "release", lambda: seen.append(sum(one() is not None for one in alive)))
    column_layout(columns, 5, np.zeros(10), [np.arange(10)])
    assert seen == [3, 2, 1, 0, 0]
