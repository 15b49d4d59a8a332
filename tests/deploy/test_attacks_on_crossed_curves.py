"""A server that looks for a row where two curves meet and nobody else is."""

import numpy as np
import pandas as pd
import pytest

from bidro.deploy.messages.plan import QueryPlan
from bidro.deploy.site.disclosure.memory import Releases
from bidro.deploy.site.rows import SiteRows
from bidro.federated.engines.wire import unpack
from bidro.fit.questions import KnotQuery, KnotReply
from tests.deploy.test_attacks_on_curves import AUTO, padded, place_of, query
from tests.deploy.test_site import site_at

# Of a row that has two high values, where other rows have one at the most; units are 2.0 and 0.5.
APART = np.array([2.8, -1.49])


def both_bend(site, *places):
    said, reply = query(site, "bends", KnotQuery(padded([(own,) for own in places], 15)), folds=2)
    assert said is None, said
    return unpack(reply, KnotReply).segments.tolist() == [2, 2]


def corner(site):
    """Where the corner beyond two knots begins to be empty: in one feature, and then, just before that, in
    the other."""
    grid = QueryPlan(SiteRows.load(site).agreed).grid
    ends = [(place_of(site, 0, low), place_of(site, 0, high)) for low, high in ((2.4, 3.9),)]
    ends += [(place_of(site, 1, -1.6), place_of(site, 1, -1.2))]
    (low, high), (begin, end) = ends
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if both_bend(site, middle, begin) else (middle, high)
    first, before = grid[0][high], low - 1
    low, high = begin, end
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if both_bend(site, before, middle) else (middle, high)
    return np.array([first, grid[1][high]])


@pytest.mark.parametrize("seed", range(3))
def test_looks_do_not_find_the_one_row_in_a_corner(seed, tmp_path, monkeypatch):
    """Two curves are borne where no row is beyond both knots, and not where one is: a dozen of the looks that
    a site allows told both values of that row. A corner is taken as empty only where its surroundings are."""
    rng = np.random.default_rng(seed)
    u = rng.normal(size=1500)
    table = pd.DataFrame({"u": 1.0 + 2.0 * u, "v": -2.0 + 0.5 * (0.5 * rng.normal(size=1500) - u)})
    table.loc[7] = APART
    table["y"] = table["u"] + rng.normal(size=1500)
    for opened in (True, False):
        site = site_at(tmp_path, table, AUTO, state=tmp_path / str(opened))
        with monkeypatch.context() as before:
            if opened:
                before.setattr(Releases, "empty_in_the_wide", lambda *_: True)
            away = np.abs(corner(site) - APART) / [2.0, 0.5]
        assert (away.max() < 0.1) == opened
