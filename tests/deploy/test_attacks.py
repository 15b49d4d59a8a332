"""A server that asks whatever helps it to rows: each attack once where it works, and then against a site as
it is. A row counts as rebuilt where an estimate is within 0.1 standard deviations in every column; how many
are by chance is told by the same estimates held against other rows of the same kind."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load, save

import bidro
from bidro.core.splits import choose_holdout, key_of_seed
from bidro.data.tables import learn_schema
from bidro.deploy.agreement.agreement import AskLimits, drafted, written
from bidro.deploy.server.serve import run_job
from bidro.deploy.site.config import Site
from bidro.deploy.site.rows import SiteRows, holdout, table_id
from bidro.deploy.site.session import reply_of
from bidro.deploy.site.snapshot import snapshot
from bidro.deploy.site.state import write_key
from bidro.federated.engines.wire import described, header_of, pack, unpack
from bidro.fit.questions import Assess
from bidro.model.model_file import Model
from bidro.risk.inner import Exact
from bidro.solvers.bundle.algorithm import ExactMWDRO
from bidro.solvers.bundle.state import Broadcast, Reply
from tests.deploy.sites import answering, carrier, job, least_release, permitted, write_sites
from tests.deploy.test_federated import last_requests
from tests.deploy.test_site import CLIP, asked_of, fixed, parts_of, site_at
from tests.small import mostly_slow

FEATURES = ["a", "b", "c", "d"]
SEEDS = range(3)
NO_RADIUS = {"kind": "WassersteinBall", "radius": 0.0}


def people(seed, classes, rows=148):
    rng = np.random.default_rng(seed)
    whole = pd.DataFrame(rng.normal(size=(rows, 4)), columns=FEATURES)
    y = whole["a"] - 0.5 * whole["b"] + rng.normal(size=rows)
    return whole.assign(y=np.where(y > 0, "ill", "well") if classes else y)


def site_with(folder, table, training, limits=None, **parts):
    """A site with these rows, none of them held out."""
    schema = learn_schema(table.assign(site="east"), "site", "y", None, None, "refuse")
    options = {"hold_out": 0.0, "personal": "none", "gap": 1e-3, "curves": "none", **training}
    release = parts.get("release") or least_release(schema, options, {})
    agreed = drafted(schema, table, None, options, release=release, limits=limits or AskLimits())
    folder.mkdir(exist_ok=True)
    (folder / "schema.toml").write_text(written(agreed))
    table.to_csv(folder / "east.csv", index=False)
    (folder / "site.toml").write_text('client = "east"\ndata = "east.csv"\nschema = "schema.toml"\n')
    if not (folder / "state").exists():
        (folder / "state").mkdir()
        write_key(folder / "state", key_of_seed(0))
    return replace(Site.read(folder / "site.toml"), **{**permitted(), **parts})


def gradients(site, models):
    """((models, d) gradients over all rows, or why there are none)."""
    rows = SiteRows.load(site)
    found = []
    for k, x in enumerate(models):
        header = {
            "version": bidro.__version__, "client": "east", "agreed": rows.agreed.digest, "run": "attack",
            "question": "round", "round": k + 1, "seed": 0, "folds": 0,
            "table": table_id(site, snapshot(site, rows)),
            "algorithm": described(ExactMWDRO(Exact(), False, 1e-3)), "ambiguity": NO_RADIUS,
        }  # fmt: skip
        message = Broadcast(np.asarray(x, float), np.zeros(()))
        reply = reply_of(site, rows, pack(message, header))
        if "refused" in header_of(reply):
            return header_of(reply)["refused"]
        found.append(unpack(reply, Reply).gradient[: len(x)])
    return np.array(found)


def local_means(gradients):
    """(estimates, features): means of rows by the weights that tell two neighbouring models apart, and those
    that one has. `gradients` (models, d) are along a line of intercepts, whose derivative is last."""
    parts = [gradients, *(gradients[step:] - gradients[:-step] for step in (1, 2, 4))]
    whole = np.concatenate(parts)
    with np.errstate(divide="ignore", invalid="ignore"):
        return whole[:, :-1] / whole[:, -1:]


def in_units(site, table):
    """(N, k) the features of a table in the units that the site has agreed on, in which estimates are."""
    units = SiteRows.load(site).agreed.standard
    return (table[FEATURES].to_numpy() - units.mean) / units.spread


def rebuilt(estimates, rows):
    """How many rows (N, k) have an estimate within 0.1 in every column, both in agreed units."""
    sane = estimates[np.all(np.abs(estimates) < 6, axis=1)]
    if not len(sane):
        return 0
    return int((np.abs(rows[:, None] - sane[None]).max(axis=2).min(axis=1) < 0.1).sum())


def scanned(site, slope, most, count):
    """Estimates from models that are steep along each feature, with intercepts up to `most`."""
    estimates = []
    for j in range(len(FEATURES)):
        models = np.zeros((count, len(FEATURES) + 1))
        models[:, j], models[:, -1] = slope, np.linspace(-most, most, count)
        found = gradients(site, models)
        if isinstance(found, str):
            return found
        estimates.append(local_means(found))
    return np.concatenate(estimates)


@pytest.mark.parametrize("seed", mostly_slow(SEEDS, lambda seed: seed == 0))
def test_a_steep_logistic_model_finds_the_rows_at_its_edge(seed, tmp_path):
    """With coefficients of 1,000 rows are rebuilt; with the agreed 20, no more than by chance, but then there
    are better attacks. A site that does not trust the server answers about no model."""
    table = people(seed, True)
    opened = site_with(tmp_path / "open", table, {}, AskLimits(1000.0), release="trusted")
    rows, other = in_units(opened, table), in_units(opened, people(100 + seed, True))
    steep = scanned(opened, 1000.0, 1000.0, 60)
    assert rebuilt(steep, rows) >= 10 + rebuilt(steep, other)
    assert 'set release = "trusted"' in scanned(site_with(tmp_path / "usual", table, {}), 1.0, 1.0, 1)
    site = site_with(tmp_path / "site", table, {}, release="trusted")
    assert "largest_coefficient = 20" in scanned(site, 1000.0, 1000.0, 1)
    gentle = scanned(site, 20.0, 20.0, 60)
    assert rebuilt(gentle, rows) <= 3 + rebuilt(gentle, other)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_thousand_steep_logistic_models_find_no_rows(seed, tmp_path):
    table = people(seed, True)
    site = site_with(tmp_path / "site", table, {}, release="trusted")
    found = scanned(site, 20.0, 20.0, 250)
    other = in_units(site, people(100 + seed, True))
    assert rebuilt(found, in_units(site, table)) <= 4 + rebuilt(found, other)


@pytest.mark.parametrize("seed", mostly_slow(SEEDS, lambda seed: seed == 0))
def test_models_on_both_sides_of_a_kink_find_the_rows_there(seed, tmp_path):
    """The slope of the Huber loss has kinks, with any threshold: what is trusted finds
    rows there, and no other site answers."""
    table = people(seed, False)
    for threshold in (1e-6, 1.35):
        training = {"loss": "huber", "threshold": threshold}
        allowed = site_with(tmp_path / f"open-{threshold}", table, training, release="trusted")
        models = np.zeros((150, 5))
        models[:, 0], models[:, -1] = 20.0, np.linspace(-20, 20, 150)
        found = gradients(allowed, models)
        # The second difference is over rows at a kink alone: of one row, the row.
        second = found[2:] - 2 * found[1:-1] + found[:-2]
        with np.errstate(divide="ignore", invalid="ignore"):
            estimates = second[:, :-1] / second[:, -1:]
        assert rebuilt(estimates, in_units(allowed, table)) >= 5
        assert 'set release = "trusted"' in gradients(
            site_with(tmp_path / f"site-{threshold}", table, training), models
        )


def test_one_request_holds_no_more_models_than_there_are_candidates(tmp_path):
    whole = people(0, True).assign(site="east")
    both = pd.concat([whole, people(1, True).assign(site="west")])
    agreed = write_sites(tmp_path, both)
    requests = last_requests(tmp_path, agreed, {"gap": 1e-3}, ("east", "west"))
    answer = answering(tmp_path, ("east",))["east"]
    newton, scores = requests["round FoldRisks"], requests["round FoldScores"]
    for request, field in ((newton, "x"), (newton, "bend_x"), (scores, "x")):
        arrays = load(request)
        shape = arrays[field].shape
        many = {**arrays, field: np.zeros((40_000, shape[-1]))}
        for name in ("fold", "scale") if field == "x" and request is newton else ():
            many[name] = np.zeros(40_000)
        changed = save(many, metadata={"bidro": json.dumps(header_of(request), sort_keys=True)})
        said = header_of(answer(changed))["refused"]
        assert "larger than anything that was agreed on" in said or "more of them, than agreed on" in said


@pytest.mark.parametrize("seed", SEEDS)
def test_shares_that_are_kept_out_are_not_the_server_s_to_choose(seed, tmp_path):
    """Two shares that differ by one row: the difference of the means is that row. By the seed of the request
    it was; now neither is in a request, and rows move by the site's own key."""
    site = site_at(tmp_path)
    rows = SiteRows.load(site)
    whole = np.column_stack([rows.features, rows.target])
    client = np.full(len(whole), "east")

    def told(share):
        kept = choose_holdout(client, rows.features, rows.target, share, seed)
        return (~kept).sum(), whole[~kept].mean(axis=0)

    found = 0
    shares = np.linspace(0.2, 0.5, 40)
    for (n, one), (m, two) in zip(map(told, shares[:-1]), map(told, shares[1:]), strict=True):
        if n - m == 1:
            found += bool((np.abs(n * one - m * two - whole).max(axis=1) < 1e-9).any())
    assert found >= 3
    for share in shares[:3]:
        assert "not agreed on" in asked_of(site, "prepare", hold_out=float(share), split_seed=seed)[0]
    assert asked_of(site, "prepare")[0] is None


def test_two_model_folders_tell_no_row(tmp_path):
    """Runs whose shares differ: the folders have the agreed units, not the means of rows, and a site answers
    of the same sides, so that the models are the same."""
    both = pd.concat([people(0, False).assign(site="east"), people(1, False).assign(site="west")])
    agreed = write_sites(tmp_path, both)
    quick, sites = {"weights": "simplex", "personal": "none"}, ("east", "west")
    models, kept = [], []
    for k, share in enumerate((0.2005, 0.22, 0.0)):
        run = job(agreed, f"run-{k}", sites, options={**quick, "hold_out": share})
        files = run_job(run, carrier(tmp_path, sites), tmp_path / "runs")
        rows = SiteRows.load(Site.read(tmp_path / "east.toml"))
        kept.append(holdout(Site.read(tmp_path / "east.toml"), rows))
        models.append(Model.from_bytes(files["model.safetensors"], "model"))
    assert all(np.array_equal(one, kept[0]) for one in kept)
    assert all(np.array_equal(one.x, models[0].x) for one in models)
    for model in models:
        assert np.array_equal(model.standard.mean, agreed.standard.mean)
        assert model.standard.middle == agreed.standard.middle
        # One digit of the deviation: no mean of rows to the last digit.
        assert np.all(np.round(model.standard.mean, 1) == model.standard.mean)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_largest_loss_kept_out_is_not_found_by_levels_of_clipping(seed, tmp_path):
    """Bisection by the level at which a clipped mean begins to fall; a site takes powers of two alone, and
    none below eight times its mean loss, so that none is where its losses are."""
    site = site_at(tmp_path, support=None)
    fresh = parts_of(site)[1]
    shift = np.array([0.0, 0.0, float(seed)])
    features = (fresh[:, :2] - [1.0, -2.0]) / [2.0, 0.5]
    losses = (features @ shift[:2] + shift[2] - (fresh[:, 2] - 3.0)) ** 2

    def open_mean(level):
        return np.minimum(losses, level).mean()

    low, high = 0.0, 1e4
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if open_mean(middle) == open_mean(1e9) else (middle, high)
    assert high == pytest.approx(losses.max(), rel=1e-6)
    answers = {}
    for k, level in enumerate([*np.linspace(1.0, 60.0, 25), *(CLIP / 2.0**j for j in range(12))]):
        refused, reply = asked_of(site, "bounds", fixed(seen=level, model=shift), run=f"s{seed}-{k}")
        if refused is None:
            answers[level] = reply
    # What is answered clips nothing.
    assert answers
    assert min(answers) > losses.max()


def test_a_cloud_of_one_point_and_a_high_order_are_not_the_server_s_to_choose(tmp_path):
    """The distance W_50 to a far point is close to the largest."""
    site = site_at(tmp_path, support={"u": (-9.0, 9.0), "v": (-9.0, 9.0), "y": (-20.0, 20.0)})
    model, none = np.zeros(3), np.zeros(0)
    message = Assess(model, np.full(5, 0.1), none, np.zeros(()), none, none, none)
    assert asked_of(site, "assess", message, ambiguity=NO_RADIUS)[0] is None
    cloud = message._replace(reference=np.zeros((1, 3)))
    assert "agreed on, not sent" in asked_of(site, "assess", cloud, ambiguity=NO_RADIUS)[0]
    high = {"kind": "Transport", "p": 50.0}
    assert "not agreed on" in asked_of(site, "assess", message, ambiguity=NO_RADIUS, transport=high)[0]
    assert "spreads" in asked_of(site, "assess", message, ambiguity={**NO_RADIUS, "radius": 1e9})[0]
    for radii in (np.full(5, 1e9), np.linspace(0, 1, 500), np.full(5, -1.0)):
        changed = message._replace(radii=radii)
        assert "shape or size" in asked_of(site, "assess", changed, ambiguity=NO_RADIUS)[0]
