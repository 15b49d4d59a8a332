"""Attacks that found more than they should have: each once where it works, and then against a site as it
is."""

import numpy as np
import pytest

import bidro
from bidro.core.splits import key_of_seed
from bidro.data.tables import learn_schema
from bidro.deploy.agreement.agreement import drafted, written
from bidro.deploy.site.check import check_site
from bidro.deploy.site.config import Site
from bidro.deploy.site.disclosure import memory as row_memory
from bidro.deploy.site.disclosure.information import LARGEST_SHARE, largest_share
from bidro.deploy.site.disclosure.rules import PolicyViolationError
from bidro.deploy.site.rows import SiteRows, holdout, table_id
from bidro.deploy.site.session import reply_of
from bidro.deploy.site.state import Question, RunLimits, SiteLog, SiteState, write_key
from bidro.federated.engines.wire import described, header_of, pack, unpack
from bidro.selection.fold_queries import FoldMoments, MomentsBroadcast, MomentsReply
from tests.deploy.test_attacks import FEATURES, NO_RADIUS, SEEDS, people
from tests.deploy.test_attacks_on_statements import HIGH, clipping, told_at, with_a_row_far_out

pytestmark = pytest.mark.usefixtures("agreed_release")

# Of the row that lies apart in a table of others.
PLACE = 7


def with_one_apart(kind, seed):
    """(a table in which one row is unlike all others, what units are drafted from)."""
    rng = np.random.default_rng(seed)
    table = people(seed, False)
    usual = table.copy()
    if kind == "a column of thousandths":
        usual = table.assign(d=1e-3 * rng.normal(size=len(table)))
        usual.loc[PLACE, "d"] = 3.0
        return usual, usual
    direction = rng.normal(size=5)
    table.loc[PLACE] = 1000.0 * direction / np.linalg.norm(direction)
    return table, usual


LINES = {"hold_out": 0.0, "curves": "none"}


def site_of(folder, table, usual):
    """A site with straight lines and else default options but that it keeps no rows out; units are drafted
    from another table."""
    schema = learn_schema(table.assign(site="east"), "site", "y", None, None, "refuse")
    folder.mkdir()
    # Also of a server that may ask for all exact numbers.
    agreed = drafted(schema, usual, None, LINES, release="trusted")
    (folder / "schema.toml").write_text(written(agreed))
    table.to_csv(folder / "east.csv", index=False)
    (folder / "site.toml").write_text(
        'client = "east"\ndata = "east.csv"\nschema = "schema.toml"\nrelease = "trusted"\n'
    )
    (folder / "state").mkdir()
    write_key(folder / "state", key_of_seed(0))
    return Site.read(folder / "site.toml")


def honest_moments(site, folds):
    """(the reply to what an honest server asks in cross-validation, None), or (None, why there is none)."""
    rows = SiteRows.load(site)
    known = rows.protocol.algorithms[folds].values()
    algorithm = next(one for one in known if isinstance(one, FoldMoments))
    header = {
        "version": bidro.__version__, "client": "east", "agreed": rows.agreed.digest, "run": "honest",
        "question": "round", "round": 1, "table": table_id(site, rows), "seed": 0, "folds": folds,
        "algorithm": described(algorithm), "ambiguity": NO_RADIUS,
    }  # fmt: skip
    reply = reply_of(site, rows, pack(MomentsBroadcast(), header))
    refused = header_of(reply).get("refused")
    return (None, refused) if refused else (unpack(reply, MomentsReply), None)


def read_from_moments(told):
    """(estimates, m): of every fold, the row that makes its second moments differ most from the others'."""
    whole = []
    for mean, around, rows in zip(*map(np.asarray, told), strict=True):
        z = np.append(mean, 1.0)
        second = np.outer(z, z)
        second[:-1, :-1] += around
        whole.append(rows * second)
    total = np.sum(whole, axis=0) / (len(whole) - 1)
    estimates = []
    for trained in whole:
        fold = total - trained
        usual = trained / trained[-1, -1]
        lower = np.linalg.cholesky(usual)
        baselines = np.linalg.solve(lower, np.linalg.solve(lower, fold).T)
        along = np.linalg.solve(lower.T, np.linalg.eigh(baselines)[1][:, -1])
        rest = fold - (fold[-1, -1] - 1) * usual
        found = rest @ along
        one = found[:-1] / np.sqrt(max(along @ found, 1e-300))
        estimates += [one, -one, found[:-1] / found[-1]]
    return np.array(estimates)


@pytest.mark.parametrize("kind", ["a column of thousandths", "far out"])
@pytest.mark.parametrize("seed", SEEDS)
def test_second_moments_are_not_nearly_one_row_s(kind, seed, tmp_path, monkeypatch):
    """Nobody hostile, one round of an honest run: where one row outweighs the others in some direction,
    second moments of a fold are nearly that row's, however many rows it has."""
    table, usual = with_one_apart(kind, seed)
    with monkeypatch.context() as opened:
        opened.setattr(row_memory, "require_none_outweighs", lambda *_: None)
        site = site_of(tmp_path / "open", table, usual)
        told, refused = honest_moments(site, 5)
        assert refused is None
        units = SiteRows.load(site).agreed.standard
        apart = units.rows(table.loc[[PLACE], FEATURES].to_numpy(), table.loc[[PLACE], "y"].to_numpy())
        away = (read_from_moments(told) - apart) / np.append(np.ones(4), units.target_spread)
        assert np.abs(away).max(axis=1).min() < 0.1
    for folds in (2, 3, 4, 5):
        refused = honest_moments(site_of(tmp_path / f"site-{folds}", table, usual), folds)[1]
        assert "outweighs all others" in refused


@pytest.mark.parametrize("named", [False, True])
def test_shares_are_those_of_the_hat_matrix(named):
    """The largest eigenvalue of an owner's block of the projection on (1, columns), by a pseudo-inverse."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        rows = rng.standard_t(2, size=(60, 4)) * [1.0, 1e6, 1e-6, 1.0]
        rows[:, 3] = rows[:, 0] * 2  # a column twice
        rows[10] = rows[3]
        people = rng.integers(12, size=60).astype(np.uint64) if named else np.arange(60, dtype=np.uint64)
        whole = np.column_stack([np.ones(60), rows[:, :3] / [1.0, 1e6, 1e-6]])
        hat = whole @ np.linalg.pinv(whole)
        blocks = [hat[np.ix_(people == one, people == one)] for one in np.unique(people)]
        largest = max(np.linalg.eigvalsh(block)[-1] for block in blocks)
        found = largest_share(rows.__getitem__, people)
        assert (found > LARGEST_SHARE) == (largest > LARGEST_SHARE)
        if not named or found > LARGEST_SHARE:
            assert found == pytest.approx(largest, rel=1e-9)


def test_copies_of_a_row_are_one_person_s():
    """Twenty copies of each of three rows: some combination of columns is 0 for all but one of the three."""
    rows = np.repeat([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], 20, axis=0)
    assert largest_share(rows.__getitem__, np.arange(60, dtype=np.uint64)) == pytest.approx(1 / 20)
    assert largest_share(rows.__getitem__, np.repeat(np.arange(3, dtype=np.uint64), 20)) == pytest.approx(1.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_answer_about_three_models_is_no_three_equations(seed, tmp_path):
    """The site's personal model and that of pooled training are judged beside the one asked about. The means
    of their losses less those of the clipped ones were an equation each: two answers gave a held-out row. And
    squares of losses, in standard errors, were those of the row that lies farthest."""
    site, far, rows = with_a_row_far_out(tmp_path / "site", seed, personal="auto")
    # The same again, as one site answers one of the two questions.
    other, *_ = with_a_row_far_out(tmp_path / "other", seed, personal="auto")
    inverse = np.array([*[1 / 128] * 4, 1 / 8, 1.0])
    models = 0.3 * np.random.default_rng(seed).normal(size=(20, 5))
    power = clipping(site, models[0])
    first, _ = told_at(site, models[0], "low", power, inverse, models[1])
    assert first.loss == pytest.approx(first.means[0], rel=1e-12)
    assert first.personal_loss == pytest.approx(first.means[3], rel=1e-12)
    second, _ = told_at(other, models[1], "high", HIGH, inverse, models[0])
    assert second.loss - second.shared_change[0] > first.loss + 1.0  # the first was clipped
    for told, model in ((second, models[1]), (first, models[0])):
        squares = rows * (rows - 1) * told.se**2 + rows * told.loss**2
        assert abs(squares**0.25 - abs(model @ [*far[:-1], 1.0] - far[-1])) > 1.0
    # Nine numbers in all, one less than two for each of the five of a row, and five in an answer: three means
    # and two bounds of rows.
    told = [told_at(site, x, f"run-{k}", HIGH, inverse, models[0])[0] for k, x in enumerate(models[2:])]
    assert [one is not None for one in told] == [False] * 18
    assert told_at(site, models[0], "again", power, inverse, models[1])[0].loss == first.loss


def test_a_refusal_elsewhere_makes_no_room_for_another_statement(tmp_path):
    """While one process works on a statement, the same request is refused in another, for what its run has
    asked before; what the first has reserved stays reserved."""
    log = SiteLog(SiteState.open(tmp_path, "east"), limits=RunLimits(each=1, statements=1))
    going = Question("one", "bounds", 1, "first", 2, "table", "model", 1)
    log.allow(going)
    log.allow(Question("two", "bounds", 1, "other", 2, "table", "model", 1))
    same = Question("two", "bounds", 2, "again", 2, "table", "model", 1)
    with pytest.raises(PolicyViolationError, match="one is enough") as refused:
        log.allow(same)
    log.refused(same, str(refused.value))
    with pytest.raises(PolicyViolationError, match="all that may be"):
        log.allow(Question("three", "bounds", 1, "third", 2, "table", "another model", 1))


@pytest.mark.parametrize("hold_out", [0.0, 0.3])
def test_the_check_names_the_column_in_which_a_row_outweighs_the_others(hold_out, tmp_path):
    table, usual = with_one_apart("a column of thousandths", 0)
    site = site_of(tmp_path / "site", table, usual)
    text = site.schema.read_text()
    site.schema.write_text(text.replace("hold_out = 0.0", f"hold_out = {hold_out}"))
    found = check_site(site)
    squares = (table["d"] - table["d"].mean()) ** 2
    where = "d, in the rows to train on"
    if hold_out:
        kept = holdout(site, SiteRows.load(site))
        apart = SiteRows.load(site).features[:, 3] > 1
        where = "d, in the held-out rows" if kept[apart].all() else where
        assert found.outweighed[where] > LARGEST_SHARE
    else:
        # Around the mean, and of a row's distance from that.
        assert found.outweighed[where] == pytest.approx(1 / len(table) + squares[PLACE] / squares.sum())
    assert all(name.startswith("d, in ") for name in found.outweighed)
    assert "One row outweighs the others" in found.in_words()
    assert f"  {where}: 99." in found.in_words() or f"  {where}: 100." in found.in_words()
    assert "outweighs all others" in found.refused
    quiet = check_site(site_of(tmp_path / "quiet", people(1, False), people(1, False)))
    assert quiet.outweighed == {}
    assert "outweighs" not in quiet.in_words()
