"""One site by itself: requests written by hand, and every number of its replies by plain NumPy."""

import os
from dataclasses import replace
from itertools import count

import numpy as np
import pandas as pd
import pytest

import bidro
from bidro.ambiguity import WassersteinBall
from bidro.certify.intervals import confident_rank
from bidro.certify.rounding import among_people
from bidro.core.errors import BidroError
from bidro.core.splits import choose_holdout, key_of_seed
from bidro.data.federation import Federation
from bidro.data.tables import learn_schema, read_one
from bidro.deploy.agreement.agreement import Agreement, AskLimits, Unit, written
from bidro.deploy.site.config import KEYS, Site
from bidro.deploy.site.rows import SiteRows, site_log, table_id, training
from bidro.deploy.site.session import reply_of, reply_to
from bidro.deploy.site.snapshot import snapshot
from bidro.deploy.site.state import KEY_FILE, write_key
from bidro.federated.engines.coordinator import Nothing
from bidro.federated.engines.wire import described, header_of, pack, unpack
from bidro.fit.questions import Assess, HoldoutBounds, HoldoutQuery, Prepared
from bidro.model.model_file import target_numbers
from bidro.model.personal_file import FILE as PERSONAL_FILE
from bidro.model.personal_file import personal_models_in
from bidro.solvers.bundle.state import Following, Reply
from tests.deploy.sites import least_release, permitted

_RUNS = count()
MODEL = np.array([1.0, -0.5, 0.25])
# Of a personal offset that is held at the shared one as by 16 rows, squared loss having curvature 2.
FREE = np.array([0.0, 0.0, 1 / 32, 1.0])
UNITS = {"u": Unit(1.0, 2.0), "v": Unit(-2.0, 0.5), "y": Unit(3.0, 1.5)}
SUPPORT = {"u": (-9.0, 9.0), "v": (-9.0, 9.0), "y": (-20.0, 20.0)}
# beta of the bounds that are asked for: of the levels of a report.
LEVELS = 1 - np.array([0.5, 0.8, 0.9, 0.95, 0.99])
# Two to the power of 8 in units of a squared loss: more than eight times any mean here.
CLIP = 2.0**8 * 1.5**2


def frame(rows=60, seed=3):
    rng = np.random.default_rng(seed)
    u, v = rng.normal(size=(2, rows))
    return pd.DataFrame({"u": u, "v": v, "y": u - v + 0.1 * rng.normal(size=rows)})


def site_at(folder, table=None, training=None, support=None, limits=None, agreed_release=None, **parts):
    whole = frame() if table is None else table
    schema = learn_schema(whole.assign(site="east"), "site", "y", None, None, "refuse")
    training = {"hold_out": 0.25, "curves": "none", **(training or {})}
    release = agreed_release or least_release(schema, training, {})
    agreed = Agreement.of(schema, UNITS, support, training, release=release, limits=limits or AskLimits())
    (folder / "schema.toml").write_text(written(agreed))
    whole.to_csv(folder / "east.csv", index=False)
    (folder / "site.toml").write_text('client = "east"\ndata = "east.csv"\nschema = "schema.toml"\n')
    site = replace(Site.read(folder / "site.toml"), **{**permitted(), **parts})
    site.state.mkdir(exist_ok=True)
    if not (site.state / KEY_FILE).exists():
        write_key(site.state, key_of_seed(0))
    return site


def asked_of(site, question, message=None, **changes):
    """(the refusal or None, the reply)."""
    rows = SiteRows.load(site)
    header = {
        "version": bidro.__version__, "client": "east", "agreed": rows.agreed.digest, "question": question,
        "run": f"run-{next(_RUNS)}", "round": 1,
        "table": table_id(site, snapshot(site, rows)), **changes,
    }  # fmt: skip
    header = {name: value for name, value in header.items() if value is not None}
    if question == "prepare":
        header.pop("table", None)
    reply = reply_of(site, rows, pack(Nothing() if message is None else message, header))
    return header_of(reply).get("refused"), reply


def parts_of(site, hold_out=0.25):
    """(training rows, held-out rows), features first."""
    table, agreed = read_one(site.data), Agreement.read(site.schema)
    features, target = agreed.schema.matrix(table), target_numbers(agreed.schema, table)
    kept = choose_holdout(np.full(len(table), "east"), features, target, hold_out, 0)
    whole = np.column_stack([features, target])
    return whole[~kept], whole[kept]


def test_what_a_site_is_by_default(tmp_path):
    site = site_at(tmp_path)
    assert (site.client, site.min_rows, site.min_cell, site.release, site.allows) == (
        "east",
        10,
        5,
        "moments",
        (),
    )
    assert len(KEYS) <= 10
    assert (site.data, site.schema) == (tmp_path / "east.csv", tmp_path / "schema.toml")
    two = 'client = "east"\ndata = "east.csv"\nschema = "schema.toml"\nmin_rows = 2\n'
    (tmp_path / "site.toml").write_text(two + 'release = "trusted"\nallows = ["single rows"]\n')
    allowed = Site.read(tmp_path / "site.toml")
    assert (allowed.min_rows, allowed.min_cell, allowed.release, allowed.allows) == (
        2,
        1,
        "trusted",
        ("single rows",),
    )
    for line, words in (
        ('min_rows = "2"', "min_rows = '2' must be a whole number"),
        ("min_rows = true", "min_rows = True must be a whole number"),
        ("least = 1", "there is no entry least"),
        ('release = "all"', "release, the most that may leave, must be one of"),
        ("trusted_server = true", 'of an earlier version: release = "trusted"'),
        ("one_sample_replies = false", r'and allows = \["single rows"\]'),
        ("max_runs = 3", r"runs in \[limits\]"),
    ):
        (tmp_path / "site.toml").write_text(f'client = "e"\ndata = "d"\nschema = "s"\n{line}\n')
        with pytest.raises(BidroError, match=words):
            Site.read(tmp_path / "site.toml")


@pytest.mark.parametrize(
    ("rows", "hold_out", "folds"),
    [
        (200, 0.25, 5),
        (60, 0.25, 3),
        (44, 0.25, 2),
        (30, 0.0, 2),
        (19, 0.0, 1),
    ],
)
def test_what_is_prepared_by_hand(rows, hold_out, folds, tmp_path):
    """Folds are the most of which each leaves out ten rows or more, and so do fewer folds: second moments of
    four numbers with all their digits need nine."""
    site = site_at(tmp_path, frame(rows), {"hold_out": hold_out})
    refused, reply = asked_of(site, "prepare")
    assert refused is None
    sent = unpack(reply, Prepared)
    training, kept = parts_of(site, hold_out)
    assert (float(sent.rows), float(sent.holdout)) == (len(training), len(kept))
    assert header_of(reply)["rows"] == len(training)
    whole = Federation.from_arrays({"east": training}, "unbounded")
    smallest = {count: np.bincount(whole.folds(count, 0), minlength=count).min() for count in range(2, 6)}
    enough = [all(smallest[k] >= 10 for k in range(2, count + 1)) for count in range(2, 6)]
    assert np.flatnonzero(sent.folds).max(initial=0) + 1 == folds == 1 + sum(enough)
    np.testing.assert_allclose(sent.mean, training.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(sent.deviation, training.std(axis=0), rtol=1e-12)
    assert float(sent.table) == table_id(site, SiteRows.load(site))


def test_what_is_prepared_rests_on_the_rows_of_its_rarest_level(tmp_path):
    """The mean of a column of 0 and 1 tells how many rows have the level."""
    table = frame(200)
    table["v"] = (np.arange(200) % 8 == 0).astype(float)
    site = site_at(tmp_path, table)
    refused, reply = asked_of(site, "prepare")
    training, _ = parts_of(site)
    assert refused is None
    assert header_of(reply)["rows"] == training[:, 1].sum() < len(training) / 2


def test_a_table_s_id_is_of_the_rows_and_not_of_their_order(tmp_path):
    site = site_at(tmp_path)
    first = table_id(site, SiteRows.load(site))
    frame().sample(frac=1.0, random_state=1).to_csv(tmp_path / "east.csv", index=False)
    assert table_id(site, SiteRows.load(site)) == first
    changed = frame()
    changed.loc[17, "u"] += 1e-9
    changed.to_csv(tmp_path / "east.csv", index=False)
    assert table_id(site, SiteRows.load(site)) != first


def fixed(largest=(), seen=CLIP, levels=LEVELS, model=MODEL):
    nothing = np.zeros(0)
    return HoldoutQuery(
        model, np.asarray(levels), np.asarray(seen), np.asarray(largest, float), nothing, nothing, nothing
    )


@pytest.mark.parametrize("largest", [(), (500.0,)])
def test_bounds_are_of_the_rows_kept_out_in_the_agreed_units(largest, tmp_path):
    """With a declared support the largest loss is the site's own to work out, whatever the server says."""
    site = site_at(tmp_path, support=SUPPORT if largest else None)
    refused, reply = asked_of(site, "bounds", fixed(largest))
    assert refused is None
    sent, kept = unpack(reply, HoldoutBounds), parts_of(site)[1]
    assert header_of(reply)["rows"] == len(kept)
    features = (kept[:, :2] - [1.0, -2.0]) / [2.0, 0.5]
    losses = (features @ MODEL[:2] + MODEL[2] - (kept[:, 2] - 3.0)) ** 2
    # To a quarter of what the largest loss, as the next power of two, adds to a mean; errors to 4 digits.
    step = 2.0 ** np.ceil(np.log2(losses.max())) / (4 * len(kept))
    mean, error = step * np.rint(losses.mean() / step), losses.std(ddof=1) / np.sqrt(len(kept))
    assert losses.max() < CLIP
    assert float(sent.loss) == pytest.approx(mean, rel=1e-9)
    assert error <= float(sent.se) <= error * 9 / 8
    np.testing.assert_allclose(sent.means, [mean, mean if largest else 0.0, 0.0, 0.0, 0.0], rtol=1e-9)
    assert sent.clipped.shape == (5,)
    assert sent.held_out.shape == (5 * len(largest),)
    assert sent.mistakes.shape == (0,)
    if largest:
        (tmp_path / "again").mkdir()
        other = site_at(tmp_path / "again", support=SUPPORT)
        again = unpack(asked_of(other, "bounds", fixed((9e9,)))[1], HoldoutBounds)
        np.testing.assert_array_equal(again.held_out, sent.held_out)


@pytest.mark.parametrize("scale", [0.0, 1.0, 15.0])
def test_how_far_rows_lie_from_their_prediction_may_be_that_of_many_people(scale, tmp_path):
    """The order statistic that is promised, rounded up, whatever model the server has chosen: between the
    number before it and itself there are at least half of min_rows rows, or it is a power of two."""
    model = scale * MODEL / np.abs(MODEL).max()
    site = site_at(tmp_path, table=frame(400))
    refused, reply = asked_of(site, "bounds", fixed(model=model, seen=2.0**20 * 1.5**2))
    assert refused is None
    kept = parts_of(site)[1]
    features = (kept[:, :2] - [1.0, -2.0]) / [2.0, 0.5]
    errors = np.abs(features @ model[:2] + model[2] - (kept[:, 2] - 3.0))
    exact = np.sort(errors)[confident_rank(len(kept), 1 - 0.9, 0.95) - 1]
    (told,) = unpack(reply, HoldoutBounds).rows.tolist()
    assert exact <= told <= 2 * exact
    step = max(2.0**k for k in range(-20, 10) if told % 2.0**k == 0)
    inside = np.sum((errors > told - step) & (errors <= told))
    assert inside >= site.min_cell or np.log2(told) % 1 == 0
    assert told == among_people(exact, errors, np.arange(len(errors)), site.min_cell)


@pytest.mark.parametrize(
    ("question", "changes", "words"),
    [
        ("prepare", {"version": "0.0"}, "the server another version"),
        ("prepare", {"client": "west"}, "names another client"),
        ("prepare", {"agreed": "0"}, "agree on one"),
        ("bounds", {"table": 1.0}, "its table has changed"),
        ("bounds", {"table": True}, "no such id"),
        ("bounds", {"round": 0}, "the round must be"),
        ("bounds", {"hold_out": 0.2}, "not agreed on"),
        ("rows", {}, "no such question"),
    ],
)
def test_what_a_site_does_not_answer(question, changes, words, tmp_path):
    refused, reply = asked_of(site_at(tmp_path), question, fixed(), **changes)
    assert words in refused
    assert len(reply) < 2000


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (fixed(seen=4.0), "a power of two"),
        (fixed(seen=CLIP * 2.0**60), "a power of two"),
        (fixed(seen=[CLIP]), "a power of two"),
        (fixed(levels=LEVELS[:2]), "other levels"),
        (fixed(levels=np.linspace(0.01, 0.99, 99)), "other levels"),
        (fixed(model=1e6 * MODEL), "largest_coefficient = 20"),
        (fixed(model=np.append(MODEL, 0.0)), "other sizes"),
        (fixed(model=np.stack([MODEL, MODEL])), "other sizes"),
        (fixed(largest=(1.0,)), "the largest loss follows"),
        (fixed()._replace(freedom=np.array([0.3, 0.0])), "how free it is"),
        (fixed()._replace(freedom=np.array([-1.0, 0.0, 0.0, 1.0])), "another shape or size"),
        (fixed()._replace(pooled=1e6 * MODEL), "largest_coefficient"),
    ],
)
def test_numbers_that_were_not_agreed_on(message, words, tmp_path):
    assert words in asked_of(site_at(tmp_path), "bounds", message)[0]


def test_the_same_question_again_has_the_same_answer_and_others_end(tmp_path):
    site = site_at(tmp_path)
    first = asked_of(site, "bounds", fixed(), run="one")
    assert first[0] is None
    assert asked_of(site, "bounds", fixed(), run="one")[1] == first[1]
    assert "no less than eight times" in asked_of(site, "bounds", fixed(seen=CLIP / 2**12), run="one")[0]
    said = [asked_of(site, "bounds", fixed(seen=CLIP * 2.0**k), run="one")[0] for k in range(1, 6)]
    # Of two features, two statements.
    assert said[0] is None
    assert all("answered of 2 models over this table" in one for one in said[1:])
    assert asked_of(site, "bounds", fixed(), run="one")[1] == first[1]


def test_a_loss_with_kinks_is_answered_where_the_site_allows_it(tmp_path):
    absolute = {"loss": "absolute"}
    refused, _ = asked_of(site_at(tmp_path, training=absolute), "bounds", fixed(seen=2.0**8 * 1.5))
    assert 'set release = "trusted"' in refused
    site = site_at(tmp_path, training=absolute, release="trusted")
    refused, reply = asked_of(site, "bounds", fixed(seen=2.0**8 * 1.5))
    assert refused is None
    assert unpack(reply, HoldoutBounds).clipped.shape == (5,)


def test_models_through_which_kinks_are_followed_are_of_the_agreed_number_and_size(tmp_path):
    site = site_at(tmp_path, training={"loss": "absolute"}, release="trusted")
    protocol = SiteRows.load(site).protocol
    (algorithm,) = (one for one in protocol.algorithms[0].values() if getattr(one, "kink_history", 0))
    earlier = np.tile(np.append(MODEL, 0.5), (algorithm.kink_history, 1))

    def query(before):
        parts = {"folds": 0, "seed": 0, "algorithm": described(algorithm)}
        message = Following(MODEL, np.asarray(0.5), np.asarray(before))
        return asked_of(site, "round", message, ambiguity=described(WassersteinBall(0.1)), **parts)

    refused, reply = query(earlier)
    assert refused is None
    plain = unpack(reply, Reply)
    assert "other sizes" in query(earlier[1:])[0]
    assert "other sizes" in query(earlier[:, 1:])[0]
    assert "largest_coefficient" in query(1e6 * earlier)[0]
    assert "another shape or size" in query(earlier * np.append(np.ones(3), -1.0))[0]
    other = unpack(query(earlier + 0.1)[1], Reply)
    assert np.abs(other.curvature - plain.curvature).max() > 1e-3
    for name in ("upper", "attained", "gradient", "smoothing"):
        np.testing.assert_array_equal(getattr(other, name), getattr(plain, name))


def test_rows_in_training_and_kept_out_are_enough_or_none(tmp_path):
    site = site_at(tmp_path)
    training, kept = parts_of(site)
    few, many = sorted((len(training), len(kept)))
    for min_rows, answered in ((few, True), (few + 1, False)):
        refused, _ = asked_of(replace(site, min_rows=min_rows), "prepare")
        assert (refused is None) == answered
    assert f"it holds out {len(kept)} of its 60 rows, fewer than its min_rows = {few + 1}" in refused
    # None held out is nothing told of them; none to train on is nothing to tell.
    for min_rows, answered in ((60, True), (61, False)):
        other = site_at(tmp_path, None, {"hold_out": 0.0}, min_rows=min_rows, state=tmp_path / "other")
        refused, _ = asked_of(other, "prepare")
        assert (refused is None) == answered
    assert "it trains on 60 of its 60 rows, fewer than its min_rows = 61" in refused
    assert many == len(training)


def test_a_site_reads_its_files_again_where_they_have_changed(tmp_path, monkeypatch):
    site_at(tmp_path, training={"hold_out": 0.0})
    monkeypatch.setenv("BIDRO_SITE", str(tmp_path / "site.toml"))

    def digest():
        site = Site.read(tmp_path / "site.toml")
        rows = SiteRows.load(site)
        header = {
            "version": bidro.__version__, "client": "east", "agreed": rows.agreed.digest,
            "question": "prepare", "round": 1, "run": f"run-{next(_RUNS)}",
        }  # fmt: skip
        return float(unpack(reply_to(pack(Nothing(), header)), Prepared).table), table_id(site, rows)

    first = digest()
    assert first[0] == first[1]
    stamp = (tmp_path / "east.csv").stat()
    changed = pd.concat([frame(), frame(400, seed=1)])  # enough for every fold
    changed.to_csv(tmp_path / "east.csv", index=False)
    os.utime(tmp_path / "east.csv", ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1_000_000))
    second = digest()
    assert second[0] == second[1] != first[0]


def test_the_log_says_why_a_request_was_refused_and_what_was_answered(tmp_path, monkeypatch):
    """In the words that left the site; of what went wrong otherwise, whose words may hold data, only that."""
    site = site_at(tmp_path)
    log = site_log(site, SiteRows.load(site).agreed)
    unchecked, _ = asked_of(site, "bounds", fixed(), run="one", round=0)
    checked, _ = asked_of(site, "bounds", fixed(), run="two", table=1.0)
    monkeypatch.setattr("bidro.deploy.site.session.answered", lambda *_: 1 / 0)
    broken, _ = asked_of(site, "bounds", fixed(), run="three")
    monkeypatch.undo()
    assert asked_of(site, "bounds", fixed(), run="four")[0] is None
    reasons = [(entry.run, entry.outcome, entry.reason) for entry in log.entries()]
    assert sorted(reasons) == [
        ("four", "answered", None),
        ("one", "refused", unchecked),
        (
            "three",
            "refused",
            "it could not be followed (ZeroDivisionError); the log of this site's process says more.",
        ),
        ("two", "refused", checked),
    ]
    assert "division" not in broken


def test_the_log_says_what_is_wrong_with_the_site_s_table(tmp_path, monkeypatch):
    """The server is told that its log says why, and so it does."""
    site = site_at(tmp_path)
    monkeypatch.setenv("BIDRO_SITE", str(tmp_path / "site.toml"))
    frame().drop(columns="v").to_csv(site.data, index=False)
    header = {"client": "east", "question": "prepare", "round": 1, "run": "one"}
    refused = header_of(reply_to(pack(Nothing(), header)))["refused"]
    assert refused == "its configuration or its table is not in order; its log says why."
    (entry,) = site_log(site).entries("one")
    assert (entry.question, entry.outcome) == ("prepare", "refused")
    assert "'v'" in entry.reason


def test_replays_under_new_names_fill_no_disk(tmp_path):
    """A model that was assessed is assessed again by any run, and a site's personal model is kept by run."""
    site = site_at(tmp_path, frame(400), limits=AskLimits(runs=4))
    none, ball = np.zeros(0), described(WassersteinBall(0.0))
    message = Assess(MODEL, none, none, np.zeros(()), FREE, none, none)
    said = [asked_of(site, "assess", message, ambiguity=ball, run=f"name-{k}")[0] for k in range(8)]
    assert said[:4] == [None] * 4
    assert all("agree on more in [limits]" in one for one in said[4:])
    assert sorted(path.name for path in site.personal.iterdir()) == [f"name-{k}" for k in range(4)]
    assert {entry.run for entry in site_log(site).entries() if entry.outcome != "refused"} == {
        f"name-{k}" for k in range(4)
    }


def test_a_site_keeps_its_personal_model_of_the_last_assessment_of_a_run(tmp_path):
    """Written with "assess"; a run that began again and gives this site none leaves none behind."""
    site = site_at(tmp_path, frame(400))
    where, free = site.personal / "one" / PERSONAL_FILE, FREE
    none, ball = np.zeros(0), {"ambiguity": described(WassersteinBall(0.0)), "run": "one"}
    message = Assess(MODEL, none, none, np.zeros(()), free, none, none)
    asked_of(site, "assess", message, **ball)
    kept = personal_models_in(where.parent, MODEL)
    rows = training(site, SiteRows.load(site)).host_rows
    # An offset alone, held at the shared one as by so many rows that it fits.
    left = rows[:, 2] - rows[:, :2] @ MODEL[:2] - MODEL[2]
    offset = MODEL[2] + left.sum() / (len(left) + 16)
    np.testing.assert_allclose(kept["east"], [*MODEL[:2], offset], rtol=1e-12)
    assert where.stat().st_mode & 0o077 == 0
    asked_of(site, "assess", message._replace(freedom=np.zeros(4)), **ball)
    assert not where.exists()
