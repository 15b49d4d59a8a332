"""The page "How to extend": its code runs, and what it adds does what the page says."""

import re
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2

from bidro.deploy.job import Job
from bidro.deploy.rehearsal import split_by_client
from bidro.deploy.server import run_job
from bidro.deploy.site import reply_of
from bidro.deploy.site_config import Site
from bidro.deploy.site_rows import SiteRows
from bidro.engines.carrier import InMemory
from bidro.errors import BidroError
from bidro.losses import registry
from bidro.model_file import Model

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


def test_the_algorithm_reaches_the_exact_solution(page):
    np.testing.assert_allclose(page["found"].x_average, page["exact"].x, atol=0.02)
    assert page["found"].rounds == 2000


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
    sites = split_by_client(page["folder"] / "visits.csv", "hospital", "y", tmp_path / "sites")
    own = [Site.read(tmp_path / "sites" / f"site-{k}.toml") for k in range(len(sites.clients))]
    rows = {site.client: SiteRows.load(site) for site in own}
    answers = {s.client: lambda request, s=s: reply_of(s, rows[s.client], request) for s in own}
    same = Job("in-memory", sites.clients, sites.agreed)
    theirs = run_job(same, InMemory(answers), tmp_path / "runs")
    models = [Model.from_bytes(files["model.safetensors"], "model") for files in (page["files"], theirs)]
    np.testing.assert_array_equal(models[0].x, models[1].x)
    assert page["carrier"].exchange({"nobody": b""}, 0.1).failures == {"nobody": "not connected"}
