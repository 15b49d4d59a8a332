"""A server that reads single rows out of the digits of what is told of many: each attack where answers are
exact, and then against a site as it is."""

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import brentq, least_squares, minimize_scalar
from scipy.special import expit
from scipy.stats import gamma

from bidro.certify.mean_bounds import betting
from bidro.certify.rounding import EXACT, step, upwards
from bidro.data.tables import learn_schema
from bidro.deploy.agreement.agreement import drafted, written
from bidro.deploy.messages import queries
from bidro.deploy.site import answers
from bidro.deploy.site.config import Site
from bidro.deploy.site.rows import SiteRows, holdout, training
from bidro.deploy.site.state import SiteLog
from bidro.federated.engines.wire import unpack
from bidro.fit import client_side
from bidro.fit.questions import Assess, Assessment
from bidro.problem import worst_case as robust
from tests.deploy.test_attacks import FEATURES, SEEDS, people, site_with
from tests.deploy.test_attacks_on_statements import FAR, told_at, with_a_row_far_out
from tests.deploy.test_site import LEVELS, asked_of
from tests.small import mostly_slow

pytestmark = pytest.mark.usefixtures("agreed_release")

# Slopes of models under which the residual of the row that lies far out has a known sign; their intercept.
BALL = {"kind": "WassersteinBall", "radius": 0.0}
SLOPES = np.array([[2, -1, 0, 0], [0, 1.5, 2, 0], [0, 0, -2, 1.5], [-1, 0, 0, 2.0]])
# Two to this power, as a level, clips nothing of that row.
POWER = 10


@pytest.fixture
def exact(monkeypatch):
    """Sites that tell every digit."""
    monkeypatch.setattr(client_side, "ROUNDING", EXACT)


@pytest.fixture
def uncounted(monkeypatch):
    """Sites that do not count bounds of rows among what they tell, and so answer of twice as many models."""
    monkeypatch.setattr(queries, "tells_of_rows", lambda loss: False)


def from_exact_bounds(mean, bounds, level, rows):
    """The residual of the row that lies farthest, from a mean loss and its bounds: those of rows whose losses
    are spread as a gamma distribution, and of that row, by least squares."""
    places = (np.arange(rows - 1) + 0.5) / (rows - 1)

    def losses(unknown):
        far = expit(unknown[0]) * min(level, mean * rows)
        others = gamma.ppf(places, np.exp(np.clip(unknown[1], -3, 3)))
        return np.append(others / others.sum() * max(mean * rows - far, 1e-9), far)

    def off(unknown):
        found = losses(unknown)
        return (np.array([level * betting(found / level, beta) for beta in LEVELS]) - bounds) / mean

    starts = ([share, -0.7] for share in (-1.0, 1.0, 3.0))
    best = min((least_squares(off, start, diff_step=1e-6) for start in starts), key=lambda one: one.cost)
    return np.sqrt(losses(best.x)[-1])


def from_coarse_bounds(mean, bounds, level, rows):
    """The same by who knows how they are rounded: of many tables, the mean over those that would be told most
    nearly as this one is."""
    rng, most = np.random.default_rng(0), np.sqrt(min(level, 1.2 * mean * rows))
    found, off = [], []
    for residual in np.repeat(np.linspace(0.2 * most, most, 60), 2):
        rest = mean * rows - residual**2
        if rest <= 0.2 * rows:
            continue
        others = rng.normal(size=rows - 1) ** 2
        losses = np.append(others / others.sum() * rest, residual**2)
        width = step(losses, rows)
        # The mean lies anywhere within its step.
        losses[:-1] *= 1 + rng.uniform(-0.5, 0.5) * width * rows / rest
        room = max(mean - losses.mean(), 0.0)
        above = np.array([level * betting(losses / level, beta) + room for beta in LEVELS])
        found.append(residual)
        told = np.array([upwards(one, width) for one in above])
        off.append(np.abs(told - bounds).sum() / width)
    weights = np.exp(-2 * (np.array(off) - min(off)))
    return weights @ found / weights.sum()


def row_from_bounds(site, rows, residual_from=None):
    """The row far out, from what four answers say of two models each, at one level of clipping; or from how
    far 9 of 10 rows lie from their prediction at most, which is how far that row does."""
    loaded = SiteRows.load(site)
    inverse, here = np.array([*[1 / 128] * (len(SLOPES[0])), 1 / 8, 1.0]), training(site, loaded)
    none = np.zeros(0)
    level = loaded.protocol.loss_unit * 2.0**POWER
    design, residuals = [], []
    for k, slopes in enumerate(SLOPES):
        x = np.append(slopes, 0.0)
        told, refused = told_at(site, x, f"run-{k}", POWER, inverse)
        assert refused is None
        # The site's personal model follows from second moments, which a server has.
        asked = Assess(x, none, none, none, inverse, none, none)
        own = client_side.personal_models(loaded.protocol.loss, here.host_rows, here.sizes, asked)[0]
        for model, mean, bounds in ((x, told.means[0], told.clipped), (own, told.means[3], told.personal)):
            # Told as the next power of two, or nearly.
            size = 0.75 * float(told.rows[len(design) % 2])
            assert size > 0
            if residual_from is not None:
                size = residual_from(float(mean), bounds, level, rows)
            residuals.append(size - model[-1])
            design.append([*model[:-1], -1.0])
    return np.linalg.lstsq(np.array(design), np.array(residuals), rcond=None)[0]


@pytest.mark.parametrize("seed", mostly_slow(SEEDS, lambda seed: seed == 0))
def test_confidence_bounds_to_the_last_digit_told_the_row_that_lies_farthest(
    seed, exact, uncounted, tmp_path
):
    """How far a bound is above its mean depends on the largest loss, hardly on the others: an equation for
    every model, within every limit on answers."""
    site, far, rows = with_a_row_far_out(tmp_path, seed, personal="auto")
    np.testing.assert_allclose(row_from_bounds(site, rows, from_exact_bounds), far, atol=0.1)


@pytest.mark.parametrize("seed", mostly_slow(SEEDS, lambda seed: seed == 0))
def test_coarse_bounds_do_not_tell_the_row_that_lies_farthest(seed, uncounted, tmp_path):
    """Nor to a server that knows how they are rounded."""
    site, far, rows = with_a_row_far_out(tmp_path, seed, personal="auto")
    for residual_from in (from_exact_bounds, from_coarse_bounds, None):
        assert np.abs(row_from_bounds(site, rows, residual_from) - far).max() > 0.3


def mean_lengths(problem, x, clients):
    """What sites told of worst cases: how far these move rows on average."""
    moved, _ = robust.mean_displacements(problem, x, clients)
    model, oracle = robust._checked(problem, x, None)
    typical = np.zeros_like(moved)
    for k, client in enumerate(clients):
        points, masses, origins = robust._atoms(problem, oracle, model, client, lambda: None)
        rows = np.asarray(problem.federation.client_samples(client))[:, :-1]
        typical[k] = masses @ np.abs(points[:, :-1] - rows[origins])
    return moved, typical


def residual_from_moves(site, slopes, run):
    """The residual of the one row on the other side of a plane, from how far the worst case moves rows: the
    sum of sizes of residuals and their sum differ by twice that row's. Or why there is none."""
    rows = SiteRows.load(site)
    n, x, none = training(site, rows).sizes[0], np.append(slopes, -9.0), np.zeros(0)
    ball = {"kind": "WassersteinBall", "radius": 0.5}
    said, reply = asked_of(
        site, "assess", Assess(x, none, none, np.ones(()), none, none, none), ambiguity=ball, run=run
    )
    if said:
        return said
    told, inverse = unpack(reply, Assessment), np.asarray(rows.protocol.transport.inverse_scale)
    along, j = np.append(slopes, -1.0), np.argmax(np.abs(slopes))
    length = 0.5 / np.sqrt(float(told.loss)) * along[j] * inverse[j] ** 2 / np.linalg.norm(along * inverse)
    return n * (told.typical[j] / abs(length) + told.moved[j] / length) / 2


def row_from_moves(folder, table, seed):
    """(the row far out, from two versions of a table; that row)."""
    table.loc[0] = FAR
    site = site_with(folder, table, {})
    found = [residual_from_moves(site, 0.5 * slopes, f"first-{k}") for k, slopes in enumerate(np.eye(4))]
    far = training(site, SiteRows.load(site)).host_rows
    more = pd.concat([table, people(50 + seed, False, 400)], ignore_index=True)
    more.to_csv(site.data, index=False)
    found.append(residual_from_moves(site, 0.25 * np.ones(4), "second"))
    assert not any(isinstance(one, str) for one in found), found
    design = np.column_stack([np.vstack([0.5 * np.eye(4), 0.25 * np.ones(4)]), -np.ones(5)])
    return np.linalg.solve(design, np.array(found) + 9.0), far[np.argmin(far[:, -1])]


@pytest.mark.parametrize("seed", SEEDS)
def test_mean_lengths_of_moves_told_the_row_beyond_a_plane(seed, exact, tmp_path, monkeypatch):
    with monkeypatch.context() as before:
        before.setattr(client_side, "mean_displacements", mean_lengths)
        found, far = row_from_moves(tmp_path / "before", people(seed, False), seed)
        np.testing.assert_allclose(found, far, atol=1e-6)
    found, far = row_from_moves(tmp_path / "site", people(seed, False), seed)
    assert np.abs(found - far).max() > 0.3


def test_versions_of_a_table_are_one_statement_each_and_a_few_more(tmp_path):
    """The rows that were held out before are held out again, so that what is told of every version is told of
    them; an honest run asks once a version."""
    table = people(0, False)
    site = site_with(tmp_path / "site", table, {"hold_out": 0.45})
    answered = []
    for version in range(6):
        models = np.random.default_rng(version).normal(size=(4, 5))
        told = [told_at(site, x, f"run-{version}-{k}", 30) for k, x in enumerate(models)]
        answered.append(sum(one is not None for one, _ in told))
        assert holdout(site, SiteRows.load(site)).sum() > 40
        table = pd.concat([table, people(50 + version, False, 400)], ignore_index=True)
        table.to_csv(site.data, index=False)
    assert answered == [4, 1, 1, 1, 1, 1]
    assert "answered of 9 models over 6 versions" in told[-1][1]


def test_statements_that_were_spared_are_for_later_versions(tmp_path, monkeypatch):
    """Of the three beyond the first of each version, whichever version has them."""
    site = site_with(tmp_path / "site", people(0, False), {"hold_out": 0.45})
    first = told_at(site, np.zeros(5), "one", 30)
    assert first[0] is not None
    pd.concat([people(0, False), people(50, False, 400)]).to_csv(site.data, index=False)
    told = [told_at(site, np.eye(5)[k], f"run-{k}", 30)[0] for k in range(5)]
    assert [one is not None for one in told] == [True, True, True, True, False]
    monkeypatch.setattr(SiteLog, "reserve", lambda *_: None)
    assert told_at(site, np.ones(5), "opened", 30)[0] is not None


def risk_with_one_row_stopped(row, radius, model, plan, mean_square, rows):
    """The worst mean square over a ball when all rows move freely but this one, which the bounds stop: inf
    over lambda of lambda r^2 + mean square lambda / (lambda - kappa), less what is taken from it."""
    slopes, price_of = np.append(model[:-1], -1.0), np.asarray(plan.transport.scale) ** 2
    kappa, residual = np.sum(slopes**2 / price_of), row @ slopes + model[-1]

    def stopped(price):
        def moved(mu):
            return np.clip(
                np.sign(residual) * mu * slopes / price_of, plan.box.lower - row, plan.box.upper - row
            )

        def beyond(mu):
            return price * mu - abs(residual + moved(mu) @ slopes)

        by = moved(brentq(beyond, 0.0, 2 * abs(residual) / (price - kappa)))
        return (residual + by @ slopes) ** 2 - price * np.sum(price_of * by**2)

    def value(log_above):
        price = kappa * (1 + np.exp(log_above))
        free = price / (price - kappa)
        return price * radius**2 + mean_square * free + (stopped(price) - residual**2 * free) / rows

    return minimize_scalar(value, bounds=(-6.0, 6.0), method="bounded", options={"xatol": 1e-13}).fun


def cell_from_risks(folder):
    """How far an estimate of one cell of the row that lies farthest is from it: by who has second moments,
    knows what else is in that row, and is told a risk over a ball on the declared support."""
    table = people(0, False, 300)
    table.loc[0] = [6.5, -1.0, 1.0, 0.5, -2.0]
    bounds = {**dict.fromkeys(FEATURES, (-8.0, 8.0)), "y": (-25.0, 25.0)}
    options = {"hold_out": 0.0, "personal": "none", "curves": "none", "metric": "joint"}
    schema = learn_schema(table.assign(site="east"), "site", "y", None, None, "refuse")
    folder.mkdir()
    (folder / "schema.toml").write_text(written(drafted(schema, table, bounds, options, release="moments")))
    table.to_csv(folder / "east.csv", index=False)
    (folder / "site.toml").write_text('client = "east"\ndata = "east.csv"\nschema = "schema.toml"\n')
    site = Site.read(folder / "site.toml")
    here = training(site, SiteRows.load(site)).host_rows
    row, none = here[np.argmax(here[:, 0])], np.zeros(0)
    model, radius, plan = np.array([2.0, 0, 0, 0, 0.5]), 0.6, SiteRows.load(site).protocol
    radii = np.full(len(plan.levels), radius)
    said, reply = asked_of(
        site, "assess", Assess(model, radii, np.zeros((0, 5)), np.ones(()), none, none, none), ambiguity=BALL
    )
    assert said is None
    told = unpack(reply, Assessment)

    def off(cell):
        guess = np.append(cell, row[1:])
        return (
            risk_with_one_row_stopped(guess, radius, model, plan, float(told.loss), len(here))
            - told.robust[0]
        )

    grid = np.linspace(3.0, 7.9, 200)
    return abs(grid[np.argmin(np.abs([off(cell) for cell in grid]))] - row[0])


def test_a_risk_on_a_declared_support_told_a_cell_of_the_row_next_to_its_bounds(tmp_path, monkeypatch):
    """It is above the closed form without bounds by what these take from that row alone."""
    assert cell_from_risks(tmp_path / "site") > 0.3
    monkeypatch.setattr(answers, "_coarse", lambda protocol, x, risks, people: risks)
    assert cell_from_risks(tmp_path / "exact") < 0.05
