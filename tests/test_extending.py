"""The page "How to extend": its code runs, and what it adds does what the page says."""

import ast
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linprog, minimize
from scipy.stats import chi2

import bidro
from bidro.core.errors import BidroError
from bidro.deploy.agreement.job import Job
from bidro.deploy.server.serve import run_job
from bidro.deploy.site.config import Site
from bidro.deploy.site.rows import SiteRows
from bidro.deploy.site.session import reply_of
from bidro.deploy.transport.rehearsal import split_by_client
from bidro.federated.engines.coordinator import InMemory
from bidro.losses import registry
from bidro.model.model_file import Model
from bidro.workflow.options import TableColumns

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """What all blocks of the page, one after the other, leave behind."""
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL))
    left = {"__name__": "extending"}
    with pytest.MonkeyPatch.context() as patch:
        # What the page registers is for this page alone.
        patch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
        patch.chdir(tmp_path_factory.mktemp("extending"))
        exec(compile(code, str(PAGE), "exec"), left)
        left["folder"] = Path.cwd()
    return left


# What the page adds, by the file that its first line names.
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(), flags=re.DOTALL))


@pytest.mark.parametrize("name", FILES)
def test_an_extension_is_one_short_file_with_public_imports_only(name, tmp_path, monkeypatch):
    assert len(FILES[name].splitlines()) <= 30
    for node in ast.walk(ast.parse(FILES[name])):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
            assert not module.startswith("bidro."), f"{module} is not public"
            assert module != "bidro" or {alias.name for alias in node.names} <= set(bidro.__all__)
    # By itself, as a file that a user imports.
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    (tmp_path / name).write_text(FILES[name])
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__(name.removesuffix(".py"))
    monkeypatch.delitem(sys.modules, name.removesuffix(".py"))


def test_the_algorithm_reaches_the_exact_solution(page):
    np.testing.assert_allclose(page["found"].x_average, page["exact"].x, atol=0.02)
    assert page["found"].rounds == 2000


def test_the_algorithm_reaches_what_scipy_finds(page):
    """min t with every client's mean squared residual at most t, by sequential quadratic programs."""
    rows = page["clients"].values()
    means = [lambda w, own=own: np.mean((own[:, 2] - own[:, :2] @ w) ** 2) for own in rows]
    below = [{"type": "ineq", "fun": lambda z, mean=mean: z[2] - mean(z[:2])} for mean in means]
    best = minimize(lambda z: z[2], [0.0, 0.0, 10.0], constraints=below, method="SLSQP")
    np.testing.assert_allclose(page["found"].x_average, best.x[:2], atol=0.02)
    assert max(mean(page["found"].x_average) for mean in means) == pytest.approx(best.fun, rel=0.02)


def test_the_loss_has_the_solution_of_a_linear_program(page):
    """min t: mean_k s_ik <= t, s_ik >= +-(y - <w, theta>) - 0.1, s_ik >= 0, |w_j| <= 5; z = (w, t, s)."""
    clients = list(page["clients"].values())
    problem = bidro.Problem(
        bidro.Federation.from_arrays(page["clients"], "unbounded"),
        page["Insensitive"](),
        bidro.Box.cube(5.0, 2),
        bidro.Transport.features_only(3),
        bidro.WassersteinBall(0.0),
    )
    found = bidro.solve(problem, gap=1e-8)
    rows = np.concatenate(clients)
    owner = np.repeat(np.arange(3), [len(own) for own in clients])
    X, y, slacks = rows[:, :2], rows[:, 2], np.eye(len(rows))
    shares = (owner == np.arange(3)[:, None]) / np.bincount(owner)[:, None]
    nothing = np.zeros((len(rows), 1))
    A = np.vstack(
        [
            np.hstack([np.zeros((3, 2)), -np.ones((3, 1)), shares]),
            np.hstack([-X, nothing, -slacks]),
            np.hstack([X, nothing, -slacks]),
        ]
    )
    b = np.concatenate([np.zeros(3), 0.1 - y, 0.1 + y])
    bounds = [(-5, 5)] * 2 + [(None, None)] + [(0, None)] * len(rows)
    best = linprog(np.eye(len(bounds))[2], A, b, bounds=bounds)
    assert found.upper == pytest.approx(best.fun, rel=1e-7)
    np.testing.assert_allclose(found.x, best.x[:2], atol=1e-4)


def test_the_loss_is_solved_and_certified(page):
    robust = page["robust"]
    assert robust.duality_gap_ <= 1e-4
    residuals = page["rows"][:, 2] - robust.predict(page["rows"][:, :2])
    for name in page["clients"]:
        mean = np.maximum(np.abs(residuals[page["names"] == name]) - 0.1, 0.0).mean()
        place = robust.certificate_.names.index(name)
        assert robust.certificate_.empirical[place] == pytest.approx(mean, rel=1e-9)
    assert "insensitive" not in registry.words()


def test_the_statement_holds_as_often_as_it_says(page):
    rng, trials, share, confidence = np.random.default_rng(1), 400, 0.8, 0.9
    truth, held = 2.0 * chi2.ppf(share, 1), 0
    for _ in range(trials):
        losses = {"a": 2.0 * rng.chisquare(1, 60), "b": rng.chisquare(1, 90)}
        held += page["most_losses"](losses, share, confidence).level >= truth
    # The client with the larger losses decides, at half the risk; four standard errors of the count.
    expected = 1 - (1 - confidence) / 2
    assert held / trials >= expected - 4 * np.sqrt(expected * (1 - expected) / trials)
    with pytest.raises(BidroError, match="'a' has too few rows"):
        page["most_losses"]({"a": np.ones(5)}, share, confidence)


def test_the_engine_gives_the_model_of_one_process(page, tmp_path):
    sites = split_by_client(
        page["folder"] / "visits.csv", TableColumns(client="hospital", target="y"), tmp_path / "sites"
    )
    own = [Site.read(tmp_path / "sites" / f"site-{k}.toml") for k in range(len(sites.clients))]
    rows = {site.client: SiteRows.load(site) for site in own}
    answers = {s.client: lambda request, s=s: reply_of(s, rows[s.client], request) for s in own}
    same = Job("in-memory", sites.clients, sites.agreed)
    theirs = run_job(same, InMemory(answers), tmp_path / "runs")
    models = [Model.from_bytes(files["model.safetensors"], "model") for files in (page["files"], theirs)]
    np.testing.assert_array_equal(models[0].x, models[1].x)
    assert page["carrier"].exchange({"nobody": b""}, 0.1).failures == {"nobody": "not connected"}
