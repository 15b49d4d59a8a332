"""A server that names knots to isolate rows: each attack where it works, from the moments of the columns of
curves alone, and then against a site as it is."""

from dataclasses import replace
from itertools import count, pairwise

import numpy as np
import pandas as pd
import pytest

import bidro
from bidro.data.splines import Basis
from bidro.data.tables import learn_schema
from bidro.deploy.agreement.agreement import Agreement, written
from bidro.deploy.messages.plan import PARTS, STEPS, QueryPlan, padded
from bidro.deploy.site.disclosure import memory as releases
from bidro.deploy.site.disclosure.memory import LOOKS, Releases
from bidro.deploy.site.disclosure.rules import PolicyViolationError
from bidro.deploy.site.rows import SiteRows, fold_ids_by_count, holdout, known_rows, table_id
from bidro.deploy.site.session import reply_of
from bidro.deploy.site.snapshot import snapshot
from bidro.federated.engines.coordinator import Nothing
from bidro.federated.engines.wire import described, header_of, pack, unpack
from bidro.fit.questions import KnotQuery, KnotReply, Places
from bidro.losses import Squared
from bidro.risk.moments import of_clients
from bidro.selection.fold_queries import FoldMoments
from tests.deploy.test_site import UNITS, site_at

_RUNS = count()
AUTO = {"curves": "auto", "hold_out": 0.0}
NO_RADIUS = {"kind": "WassersteinBall", "radius": 0.0}


def people(rows=600, seed=0):
    rng = np.random.default_rng(seed)
    u, v = rng.uniform(-3, 5, rows), rng.uniform(-3, -1, rows)
    return pd.DataFrame({"u": u, "v": v, "y": u - v + rng.normal(size=rows)})


def moments(table, basis):
    """(rows, mean, second moments around 0) of the columns of curves, the target last."""
    found = of_clients(table.to_numpy(), [len(table)], Squared(True, basis=basis))
    mean, around = found.mean[0], found.around[0]
    return len(table), mean, around + np.outer(mean, mean)


def test_moments_of_a_segment_with_one_row_are_that_row():
    """From what a site would send over all its rows: the product (v - low)(v - high) is 0 outside a segment,
    and is a sum over the columns and their squares; where counts are known, so is v itself."""
    table, low, high = people(), 5.5, 5.9
    row = {"u": 5.73, "v": -1.4, "y": 3.21}
    table.loc[len(table)] = row
    n, mean, second = moments(table, Basis(((low, high), ())))
    inside, above = 1, 2  # columns of u: below, inside and above the two knots; then v and y
    bubble = n * (second[inside, inside] - (high - low) * mean[inside])
    assert bubble == pytest.approx((row["u"] - low) * (row["u"] - high))
    # Nobody is above: what is inside is one row, whose value and target follow.
    assert n * mean[above] == pytest.approx(0, abs=1e-9)
    u = low + n * mean[inside]
    y = n * second[inside, -1] / (u - low)
    assert (u, y) == (pytest.approx(row["u"]), pytest.approx(row["y"]))


def test_moments_of_two_stretches_with_one_row_are_both_its_values():
    """Hats of two features: a cell of three by three segments with one row in it gives both its values away,
    though every segment of each feature has many."""
    table = people(4000)
    row = {"u": 1.1, "v": -1.97, "y": 0.5}
    near = (table["u"].between(0.0, 2.0)) & (table["v"].between(-2.3, -1.7))
    table = pd.concat([table[~near], pd.DataFrame([row])], ignore_index=True)
    knots = ((0.0, 0.8, 1.4, 2.0), (-2.3, -2.05, -1.9, -1.7))
    n, mean, second = moments(table, Basis(knots))
    every = [table[name].between(low, high).sum() for name, own in zip("uv", knots, strict=True)
             for low, high in pairwise(own)]  # fmt: skip
    assert min(every) >= 50

    def hat(feature, place):
        """The columns' weights, and a constant, of a function that is 1 at a knot and 0 at its neighbours."""
        own, first = knots[feature], 5 * feature
        weights, begin = np.zeros(len(mean)), np.clip(0, [-np.inf, *own], [*own, np.inf])
        rise, fall = own[place] - own[place - 1], own[place + 1] - own[place]
        weights[first + place], weights[first + place + 1] = 1 / rise, -1 / fall
        constant = (begin[place] - own[place - 1]) / rise - (begin[place + 1] - own[place]) / fall
        return weights, constant

    def total(one, other):
        (w, a), (z, b) = one, other
        return n * (w @ second @ z + a * (z @ mean) + b * (w @ mean) + a * b)

    sums = np.array([[total(hat(0, i), hat(1, j)) for j in (1, 2)] for i in (1, 2)])
    assert sums.sum() == pytest.approx(1)  # one row
    assert 0.8 + 0.6 * sums[1].sum() == pytest.approx(row["u"])
    assert -2.05 + 0.15 * sums[:, 1].sum() == pytest.approx(row["v"])


def query(site, question, message=None, **more):
    """(why not, the reply)."""
    rows = SiteRows.load(site)
    header = {
        "version": bidro.__version__, "client": "east", "agreed": rows.agreed.digest, "question": question,
        "run": f"run-{next(_RUNS)}", "round": 1,
        "table": table_id(site, snapshot(site, rows)), **more,
    }  # fmt: skip
    reply = reply_of(site, rows, pack(Nothing() if message is None else message, header))
    return header_of(reply).get("refused"), reply


def borne(site, *places, folds=2):
    """How many segments of a feature, at the most, a site bears of curves that bend at these places."""
    said, reply = query(site, "bends", KnotQuery(padded(places, 15)), folds=folds)
    assert said is None, said
    return int(unpack(reply, KnotReply).segments.max())


def round_about(site, *places, folds=2):
    """(why not, the moments) of a round about curves that bend at these places."""
    algorithm, like = FoldMoments(), FoldMoments.broadcast_type()
    said, reply = query(
        site, "round", like, folds=folds, seed=0, algorithm=described(algorithm), ambiguity=NO_RADIUS,
        curves={"places": [list(own) for own in places], "smoothing": 0.0},
    )  # fmt: skip
    return said, None if said else unpack(reply, FoldMoments.reply_type)


def place_of(site, column, value):
    """The last place of the public grid below a value."""
    return int(np.searchsorted(QueryPlan(SiteRows.load(site).agreed).grid[column], value)) - 1


def test_knots_around_one_row_are_not_borne_and_moments_of_them_are_refused(tmp_path):
    table = people()
    table = table[~table["u"].between(1.4, 2.6)]
    table.loc[len(table)] = {"u": 2.03, "v": -1.4, "y": 3.21}
    site = site_at(tmp_path, table.reset_index(drop=True), AUTO)
    around = (place_of(site, 0, 1.9), place_of(site, 0, 2.3))
    assert borne(site, around, ()) < 3
    said, _ = round_about(site, around, ())
    assert said == "it was asked about curves whose knots it has not been asked about before."
    # With enough rows on both sides the same question is answered.
    apart = (place_of(site, 0, 0.0), place_of(site, 0, 3.0))
    assert borne(site, apart, ()) == 3
    said, reply = round_about(site, apart, ())
    assert said is None
    assert reply.around.shape == (2, 5, 5)


def test_a_row_far_beyond_the_others_of_its_segment_is_not_its_column(tmp_path):
    """The last segment has sixty rows, but its column is nearly that of the one that lies far beyond them:
    its second moment is that row's square, and that with the target tells its target."""
    table = people()
    table = table[table["u"] < 2.9]
    near = people(60, 1).assign(u=np.random.default_rng(2).uniform(2.951, 2.956, 60))
    row = {"u": 6.3, "v": -1.4, "y": 13.2}
    table = pd.concat([table, near, pd.DataFrame([row])], ignore_index=True)
    n, _, second = moments(table, Basis(((2.95,), ())))
    above = 1
    u = 2.95 + np.sqrt(n * second[above, above])
    y = n * second[above, -1] / (u - 2.95)
    assert (u, y) == (pytest.approx(row["u"], abs=0.1), pytest.approx(row["y"], abs=0.5))
    site = site_at(tmp_path, table, AUTO)
    assert borne(site, (place_of(site, 0, 2.95),), ()) == 1
    without = site_at(tmp_path, table[:-1], AUTO, state=tmp_path / "without")
    assert borne(without, (place_of(without, 0, 2.95),), ()) == 2


def test_a_round_about_other_knots_is_refused_without_a_look(tmp_path):
    """The sentence is the same whether the site would bear them or not."""
    site = site_at(tmp_path, people(), AUTO)
    fine, bad = (place_of(site, 0, 0.0),), (place_of(site, 0, 4.999),)
    assert round_about(site, fine, ()) == round_about(site, bad, ())
    assert "not been asked about before" in round_about(site, fine, ())[0]


def test_every_fold_has_no_rows_or_enough_in_a_segment(tmp_path):
    table, places = people(), None
    site = site_at(tmp_path, table, AUTO)
    rows, fold_ids = SiteRows.load(site), fold_ids_by_count(site, SiteRows.load(site))
    grid = QueryPlan(rows.agreed).grid[0]
    # The first place below which there are ten of all rows, and not of each of five folds.
    for place, edge in enumerate(grid):
        below = rows.features[:, 0] < edge
        counts = np.bincount(fold_ids[5][below], minlength=5)
        if below.sum() >= 2 * 10 + 5 and counts.min() < 10 and np.bincount(fold_ids[2][below]).min() >= 10:
            places = (place,)
            break
    assert places is not None
    assert borne(site, places, (), folds=5) == 1
    assert borne(site, places, (), folds=2) > 1


def outermost(site, column, first):
    """Where the outermost value of a column lies, by looks at single knots from `first` on; each halves what
    is left, if knots are borne beyond which no row lies."""
    low, high = first, STEPS
    while high - low > 1:
        middle = (low + high) // 2
        places = [(), ()]
        places[column] = (middle,)
        low, high = (low, middle) if borne(site, *places) > 1 else (middle, high)
    return QueryPlan(SiteRows.load(site).agreed).grid[column][high]


@pytest.mark.parametrize("seed", range(3))
def test_looks_do_not_find_the_outermost_row(seed, tmp_path, monkeypatch):
    """A knot was borne where no row lies beyond it and not where one does: six looks a feature told where the
    outermost row is, and of one that is outermost in every feature all of them."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"u": rng.normal(1.0, 2.0, 600), "v": rng.normal(-2.0, 0.5, 600)})
    table.loc[7] = [8.7, -0.11]
    table["y"] = table["u"] + rng.normal(size=600)
    for opened in (True, False):
        site = site_at(tmp_path, table, AUTO, state=tmp_path / str(opened))
        with monkeypatch.context() as before:
            if opened:
                before.setattr(releases, "rows_inside", lambda *_: [10])
            first = place_of(site, 0, 7.5), place_of(site, 1, -0.5)
            found = [outermost(site, column, first[column]) for column in (0, 1)]
        away = np.abs(np.array(found) - table.loc[7, ["u", "v"]].to_numpy()) / [2.0, 0.5]
        assert (away.max() < 0.1) == opened


def test_two_curves_at_once_have_no_rows_or_enough(tmp_path):
    """Each segment has hundreds of rows; in one corner of the two features there are three."""
    table = people(1200)
    corner = (table["u"] > 1.0) & (table["v"] > -2.0)
    table = table[~corner | (np.cumsum(corner) <= 3)].reset_index(drop=True)
    site = site_at(tmp_path, table, AUTO)
    u, v = (place_of(site, 0, 1.2),), (place_of(site, 1, -1.9),)
    assert borne(site, u, ()) > 1
    assert borne(site, (), v) > 1
    said, reply = query(site, "bends", KnotQuery(padded((u, v), 15)), folds=2)
    assert said is None
    assert unpack(reply, KnotReply).segments.tolist() == [2, 1]
    assert "not been asked about before" in round_about(site, u, v)[0]


def test_a_level_in_a_stretch_is_had_by_no_row_or_by_enough(tmp_path):
    table = people(1200)
    table["v"] = np.where(np.arange(len(table)) % 2, 1.0, 0.0)  # a column of two values
    few = (table["u"] > 2.0) & (table["v"] == 1.0)
    table = table[~few | (np.cumsum(few) <= 3)].reset_index(drop=True)
    site = site_at(tmp_path, table, AUTO)
    assert borne(site, (place_of(site, 0, 2.2),), ()) == 1
    assert borne(site, (place_of(site, 0, -1.0),), ()) > 1


def test_knots_of_two_runs_that_differ_by_a_little_are_not_answered_together(tmp_path):
    """(v - k)+ and (v - k')+ tell of the rows between k and k'."""
    site = site_at(tmp_path, people(), AUTO)
    first = place_of(site, 0, 1.0)
    assert borne(site, (first,), ()) > 1
    assert round_about(site, (first,), ())[0] is None
    grid = QueryPlan(SiteRows.load(site).agreed).grid[0]
    between = people()["u"].between(grid[first], grid[first + 1]).sum()
    assert 0 < between < 20
    assert borne(site, (first + 1,), ()) == 1
    assert "not been asked about before" in round_about(site, (first + 1,), ())[0]
    assert borne(site, (first + 20,), ()) > 1
    # The knots of an earlier run, and fewer of them, are answered again.
    assert borne(site, (first,), ()) > 1
    assert round_about(site, (first,), ())[0] is None


def test_a_new_table_is_held_to_the_knots_of_earlier_runs(tmp_path):
    """Twenty new rows, which lines would be answered for: in a segment three of them."""
    table = people()
    site = site_at(tmp_path, table, AUTO)
    first = place_of(site, 0, 1.0)
    assert borne(site, (first,), ()) > 1
    assert round_about(site, (first,), ())[0] is None
    new = people(20, seed=1)
    new["u"] = np.where(np.arange(20) < 3, 2.0 + 0.01 * np.arange(20), -1.0 - 0.01 * np.arange(20))
    site_at(tmp_path, pd.concat([table, new], ignore_index=True), AUTO)
    assert asked_to_prepare(site) is None
    rows = SiteRows.load(site)
    assert len(snapshot(site, rows).target) == len(table) == len(rows.target) - 20  # the new rows wait
    found = Releases(*known_rows(site, rows), holdout(site, rows))
    with pytest.raises(PolicyViolationError, match="with a level or class, or in a segment of a curve"):
        found.check()


def asked_to_prepare(site):
    rows = SiteRows.load(site)
    header = {
        "version": bidro.__version__, "client": "east", "agreed": rows.agreed.digest, "question": "prepare",
        "run": f"run-{next(_RUNS)}", "round": 1,
    }  # fmt: skip
    return header_of(reply_of(site, rows, pack(Nothing(), header))).get("refused")


def test_rows_kept_out_count_too(tmp_path):
    """Mean losses over them are told, at models of which one segment may be all."""
    site = site_at(tmp_path, people(), {**AUTO, "hold_out": 0.1})
    rows = SiteRows.load(site)
    kept, grid = rows.features[holdout(site, rows), 0], QueryPlan(rows.agreed).grid[0]
    place = int(np.searchsorted(grid, np.sort(kept)[5]))
    assert (rows.features[:, 0] < grid[place]).sum() >= 40
    assert borne(site, (place,), ()) == 1


def test_people_count_where_they_are_named(tmp_path):
    """Forty rows of three persons are three."""
    table = people()
    table["who"] = np.where(table["u"] > 4.0, np.arange(len(table)) % 3, np.arange(len(table)) + 3)
    assert (table["u"] > 4.0).sum() > 40
    site = site_at(tmp_path, table.drop(columns="who"), AUTO)
    place = place_of(site, 0, 4.1)
    assert borne(site, (place,), ()) > 1
    schema = learn_schema(table.assign(site="east"), "site", "y", None, None, "refuse", "who")
    site.schema.write_text(written(Agreement.of(schema, UNITS, None, AUTO, release="moments")))
    table.to_csv(site.data, index=False)
    other = replace(site, state=tmp_path / "another")
    assert borne(other, (place,), ()) == 1


def test_a_site_looks_at_so_many_knots_and_no_more(tmp_path):
    site = site_at(tmp_path, people(), AUTO)
    for place in range(LOOKS):
        borne(site, (20 + place,), ())
    said, _ = query(site, "bends", KnotQuery(padded([(90,), ()], 15)), folds=2)
    assert said.startswith(f"it has been asked about {LOOKS} sets of knots")
    assert borne(site, (20,), ()) > 0


def test_the_parts_that_a_site_tells_have_enough_rows_of_every_fold_and_of_those_kept_out(tmp_path):
    site = site_at(tmp_path, people(2000), {**AUTO, "hold_out": 0.2})
    said, reply = query(site, "spread", folds=5)
    assert said is None
    rows = SiteRows.load(site)
    kept, fold_ids = holdout(site, rows), fold_ids_by_count(site, rows)[5]
    sets = np.full(len(kept), 5)
    sets[~kept] = fold_ids
    edges = unpack(reply, Places).edges
    assert edges.shape == (2, PARTS - 1)
    for j, own in enumerate(edges):
        grid = QueryPlan(rows.agreed).grid[j]
        ends = [-np.inf, *grid[own[own >= 0].astype(int)], np.inf]
        assert len(ends) >= 10
        for low, high in pairwise(ends):
            inside = (rows.features[:, j] > low) & (rows.features[:, j] < high)
            assert np.bincount(sets[inside], minlength=6).min() >= 10
    assert header_of(reply)["rows"] >= 10


@pytest.mark.parametrize(
    "curves",
    [
        {"places": [[3, 3], []], "smoothing": 0.0},
        {"places": [[5, 3], []], "smoothing": 0.0},
        {"places": [[STEPS + 1], []], "smoothing": 0.0},
        {"places": [[-1], []], "smoothing": 0.0},
        {"places": [[1.5], []], "smoothing": 0.0},
        {"places": [[True], []], "smoothing": 0.0},
        {"places": [list(range(16)), []], "smoothing": 0.0},
        {"places": [[3]], "smoothing": 0.0},
        {"places": [3, 4], "smoothing": 0.0},
        {"places": "3", "smoothing": 0.0},
        {"places": [[3], []], "smoothing": -1.0},
        {"places": [[3], []], "smoothing": 1e9},
        {"places": [[3], []]},
        {"knots": [[0.5], []], "smoothing": 0.0},
        [[3], []],
    ],
)
def test_curves_that_were_not_agreed_on_are_refused(curves, tmp_path):
    site = site_at(tmp_path, people(60), AUTO)
    algorithm, like = FoldMoments(), FoldMoments.broadcast_type()
    said, _ = query(
        site, "round", like, folds=2, seed=0, algorithm=described(algorithm), ambiguity=NO_RADIUS,
        curves=curves,
    )  # fmt: skip
    assert "not agreed on" in said or "places where they bend" in said or "as agreed on" in said


def test_without_curves_in_the_agreement_nothing_of_them_is_answered(tmp_path):
    site = site_at(tmp_path, people(60), {"hold_out": 0.0, "curves": "none"})
    assert query(site, "spread", folds=2)[0] == "there is no such question."
    bend = KnotQuery(padded([(), ()], 15))
    assert query(site, "bends", bend, folds=2)[0] == "there is no such question."
    algorithm, like = FoldMoments(), FoldMoments.broadcast_type()
    more = {"folds": 2, "seed": 0, "algorithm": described(algorithm), "ambiguity": NO_RADIUS}
    assert "not agreed on" in query(site, "round", like, **more, curves=None)[0]
    # Of straight lines alone: the table's own columns, over the training rows of two folds.
    said, reply = query(site, "round", like, **more)
    assert said is None
    assert unpack(reply, FoldMoments.reply_type).mean.shape == (2, 3)
