"""Knots that isolate rows: each attack where it works, from the moments of the columns of curves alone, and
then against a site as it is: knots are agreed on, and a server chooses how many of them it asks about."""

from itertools import count, pairwise

import numpy as np
import pandas as pd
import pytest

import bidro
from bidro.data.splines import Basis
from bidro.data.tables import learn_schema
from bidro.deploy.agreement.agreement import Agreement, Unit, written
from bidro.deploy.site.disclosure.memory import Releases
from bidro.deploy.site.disclosure.rules import PolicyViolationError
from bidro.deploy.site.rows import SiteRows, fold_ids_by_count, holdout, known_rows, table_id
from bidro.deploy.site.session import reply_of
from bidro.deploy.site.snapshot import snapshot
from bidro.federated.engines.coordinator import Nothing
from bidro.federated.engines.wire import described, header_of, pack, unpack
from bidro.fit.questions import Segments
from bidro.losses import Squared
from bidro.risk.moments import of_clients
from bidro.selection.fold_queries import FoldMoments
from tests.deploy.test_site import site_at

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


def site_with(folder, table, u=None, v=None, person=None, hold_out=0.0, **parts):
    """A site with these rows, by an agreement whose units put knots where they are wanted: at one value of a
    feature, or at two and between them."""
    units, curves = {"y": Unit(3.0, 1.5)}, {}
    for name, at, usual in (("u", u, Unit(1.0, 2.0)), ("v", v, Unit(-2.0, 0.5))):
        low, high = at if isinstance(at, tuple) else (at, at)
        # Of four segments of a normal column the outer knots are at its quartiles.
        spread = usual.spread if low == high else (high - low) / 2 / 0.6744897501960817
        units[name] = usual if at is None else Unit((low + high) / 2, spread)
        curves[name] = "none" if at is None else 2 if low == high else 4
    site = site_at(folder, table.drop(columns="who", errors="ignore"), **parts)
    schema = learn_schema(table.assign(site="east"), "site", "y", None, None, "refuse", person)
    training = {"curves": curves, "hold_out": hold_out}
    site.schema.write_text(written(Agreement.of(schema, units, None, training, release="moments")))
    table.to_csv(site.data, index=False)
    return site


def borne(site, folds=2):
    """How many segments of each feature a site bears."""
    said, reply = query(site, "segments", folds=folds)
    assert said is None, said
    return unpack(reply, Segments).segments.astype(int).tolist()


def round_about(site, *segments, folds=2):
    """(why not, the moments) of a round about curves of so many segments."""
    algorithm, like = FoldMoments(), FoldMoments.broadcast_type()
    said, reply = query(
        site, "round", like, folds=folds, seed=0, algorithm=described(algorithm), ambiguity=NO_RADIUS,
        curves={"segments": list(segments), "smoothing": 0.0},
    )  # fmt: skip
    return said, None if said else unpack(reply, FoldMoments.reply_type)


def test_knots_around_one_row_are_not_borne_and_moments_of_them_are_refused(tmp_path):
    table = people()
    table = table[~table["u"].between(1.4, 2.6)].reset_index(drop=True)
    table.loc[len(table)] = {"u": 2.03, "v": -1.4, "y": 3.21}
    site = site_with(tmp_path, table, u=(1.9, 2.3))
    assert borne(site) == [2, 1]
    said, _ = round_about(site, 4, 1)
    assert said == "it was asked about curves of more segments than its rows bear."
    # With enough rows between them, or none, the same question is answered.
    for place, (rows, knots) in enumerate([(table, (0.0, 3.0)), (table[:-1], (1.9, 2.3))]):
        apart = site_with(tmp_path, rows, u=knots, state=tmp_path / str(place))
        assert borne(apart) == [4, 1]
        said, reply = round_about(apart, 4, 1)
        assert said is None
        assert reply.around.shape == (2, 6, 6)


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
    assert borne(site_with(tmp_path, table, u=2.95)) == [1, 1]
    assert borne(site_with(tmp_path, table[:-1], u=2.95, state=tmp_path / "without")) == [2, 1]


def test_a_round_about_more_segments_is_refused_without_a_look(tmp_path):
    """The sentence is the same whether the site would bear them or not: of two features with three rows in
    one corner each may bend, and a site says which."""
    table = people(1200)
    corner = (table["u"] > 1.0) & (table["v"] > -2.0)
    table = table[~corner | (np.cumsum(corner) <= 3)].reset_index(drop=True)
    assert borne(site_with(tmp_path, table, u=1.2)) == [2, 1]
    assert borne(site_with(tmp_path, table, v=-1.9)) == [1, 2]
    site = site_with(tmp_path, table, u=1.2, v=-1.9)
    assert borne(site) == [2, 1]
    both, other = round_about(site, 2, 2)[0], round_about(site, 1, 2)[0]
    assert both == other == "it was asked about curves of more segments than its rows bear."
    assert round_about(site, 2, 1)[0] is None


def test_every_fold_has_no_rows_or_enough_in_a_segment(tmp_path):
    table = people()
    site = site_with(tmp_path, table)
    rows, fold_ids = SiteRows.load(site), fold_ids_by_count(site, SiteRows.load(site))
    # The first knot below which there are ten of all rows, and not of each of five folds.
    found = None
    for knot in np.linspace(-2.9, 5.0, 200):
        below = rows.features[:, 0] < knot
        counts = np.bincount(fold_ids[5][below], minlength=5)
        if below.sum() >= 2 * 10 + 5 and counts.min() < 10 and np.bincount(fold_ids[2][below]).min() >= 10:
            found = float(knot)
            break
    assert found is not None
    site = site_with(tmp_path, table, u=found)
    assert borne(site, folds=5) == [1, 1]
    assert borne(site, folds=2) == [2, 1]


def test_a_level_in_a_stretch_is_had_by_no_row_or_by_enough(tmp_path):
    table = people(1200)
    table["v"] = np.where(np.arange(len(table)) % 2, 1.0, 0.0)  # a column of two values
    few = (table["u"] > 2.0) & (table["v"] == 1.0)
    table = table[~few | (np.cumsum(few) <= 3)].reset_index(drop=True)
    assert borne(site_with(tmp_path, table, u=2.2)) == [1, 1]
    assert borne(site_with(tmp_path, table, u=-1.0)) == [2, 1]


def test_knots_of_two_agreements_that_differ_by_a_little_are_not_answered_together(tmp_path):
    """(v - k)+ and (v - k')+ tell of the rows between k and k'."""
    table = people()
    site = site_with(tmp_path, table, u=1.0)
    assert borne(site) == [2, 1]
    assert round_about(site, 2, 1)[0] is None
    assert 0 < table["u"].between(1.0, 1.1).sum() < 20
    site = site_with(tmp_path, table, u=1.1)
    assert borne(site) == [1, 1]
    assert "more segments than its rows bear" in round_about(site, 2, 1)[0]
    assert borne(site_with(tmp_path, table, u=2.0)) == [2, 1]
    # The knots of an earlier run are answered again.
    site = site_with(tmp_path, table, u=1.0)
    assert borne(site) == [2, 1]
    assert round_about(site, 2, 1)[0] is None


def test_a_new_table_is_held_to_the_knots_of_earlier_runs(tmp_path):
    """Twenty new rows, which lines would be answered for: in a segment three of them."""
    table = people()
    site = site_with(tmp_path, table, u=1.0)
    assert borne(site) == [2, 1]
    assert round_about(site, 2, 1)[0] is None
    new = people(20, seed=1)
    new["u"] = np.where(np.arange(20) < 3, 2.0 + 0.01 * np.arange(20), -1.0 - 0.01 * np.arange(20))
    site = site_with(tmp_path, pd.concat([table, new], ignore_index=True), u=1.0)
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
    table = people()
    site = site_with(tmp_path, table, hold_out=0.1)
    rows = SiteRows.load(site)
    kept = np.sort(rows.features[holdout(site, rows), 0])
    knot = float((kept[4] + kept[5]) / 2)
    assert (rows.features[:, 0] < knot).sum() >= 40
    assert borne(site_with(tmp_path, table, u=knot, hold_out=0.1)) == [1, 1]


def test_people_count_where_they_are_named(tmp_path):
    """Forty rows of three persons are three."""
    table = people()
    table["who"] = np.where(table["u"] > 4.0, np.arange(len(table)) % 3, np.arange(len(table)) + 3)
    assert (table["u"] > 4.0).sum() > 40
    assert borne(site_with(tmp_path, table.drop(columns="who"), u=4.1)) == [2, 1]
    named = site_with(tmp_path, table, u=4.1, person="who", state=tmp_path / "named")
    assert borne(named) == [1, 1]


@pytest.mark.parametrize(
    "curves",
    [
        {"segments": [3, 1], "smoothing": 0.0},
        {"segments": [32, 1], "smoothing": 0.0},
        {"segments": [0, 1], "smoothing": 0.0},
        {"segments": [2.0, 1], "smoothing": 0.0},
        {"segments": [True, 1], "smoothing": 0.0},
        {"segments": [2], "smoothing": 0.0},
        {"segments": [[0.5], []], "smoothing": 0.0},
        {"segments": "2", "smoothing": 0.0},
        {"segments": [2, 1], "smoothing": -1.0},
        {"segments": [2, 1], "smoothing": 1e9},
        {"segments": [2, 1]},
        {"places": [[3], []], "smoothing": 0.0},
        {"knots": [[0.5], []], "smoothing": 0.0},
        [2, 1],
    ],
)
def test_curves_that_were_not_agreed_on_are_refused(curves, tmp_path):
    """A server names no knots, and no number of segments but those of every second agreed knot."""
    site = site_at(tmp_path, people(60), AUTO)
    algorithm, like = FoldMoments(), FoldMoments.broadcast_type()
    said, _ = query(
        site, "round", like, folds=2, seed=0, algorithm=described(algorithm), ambiguity=NO_RADIUS,
        curves=curves,
    )  # fmt: skip
    assert "not agreed on" in said or "a number of segments a feature" in said or "as agreed on" in said


def test_without_curves_in_the_agreement_nothing_of_them_is_answered(tmp_path):
    site = site_at(tmp_path, people(60), {"hold_out": 0.0, "curves": "none"})
    assert query(site, "segments", folds=2)[0] == "there is no such question."
    algorithm, like = FoldMoments(), FoldMoments.broadcast_type()
    more = {"folds": 2, "seed": 0, "algorithm": described(algorithm), "ambiguity": NO_RADIUS}
    assert "not agreed on" in query(site, "round", like, **more, curves=None)[0]
    # Of straight lines alone: the table's own columns, over the training rows of two folds.
    said, reply = query(site, "round", like, **more)
    assert said is None
    assert unpack(reply, FoldMoments.reply_type).mean.shape == (2, 3)
