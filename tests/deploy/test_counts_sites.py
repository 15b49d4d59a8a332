"""Counts and costs across machines: sites are as one process."""

from dataclasses import replace

import numpy as np
import pytest

from bidro.core.errors import BidroError
from bidro.deploy.agreement.agreement import Agreement
from bidro.deploy.server.serve import run_job
from bidro.deploy.site.config import Site
from bidro.deploy.site.rows import SiteRows
from bidro.model.model_file import Model
from tests.deploy.sites import NAMES, agree, alone, carrier, job, table, write_sites


def counts(word):
    rng, whole = np.random.default_rng(3), table()
    mean = np.exp(0.3 * whole["u"] - 0.05 * whole["v"] + 0.4 * (whole["ward"] == "b") + 0.5)
    drawn = {
        "poisson": rng.poisson(mean),
        "gamma": rng.gamma(2.0, mean / 2),
        "tweedie": rng.poisson(mean) * 1.5,
    }
    return whole.assign(y=drawn[word])


@pytest.mark.parametrize("word", ["poisson", "gamma", "tweedie"])
def test_sites_are_as_one_process(word, tmp_path):
    whole = counts(word)
    agreed = write_sites(tmp_path, whole, training={"loss": word, "weights": "simplex", "folds": 2})
    files = run_job(job(agreed), carrier(tmp_path), tmp_path / "runs")
    found, one = Model.from_bytes(files["model.safetensors"], "model"), alone(tmp_path, whole)
    np.testing.assert_allclose(found.x, one.model.x, atol=1e-5)
    bare = Model(**{**vars(one.model), "personal": {}})
    np.testing.assert_allclose(found.predict(whole), bare.predict(whole), rtol=1e-5)
    assert set(found.settings["rows"]) == set(NAMES)


def test_an_exposure_is_agreed_on(tmp_path):
    """Its unit is nobody's to choose: the logarithm counts as it is, and its slope is 1."""
    whole = counts("poisson").assign(years=lambda t: np.random.default_rng(1).uniform(0.2, 3.0, len(t)))
    whole["y"] = np.random.default_rng(2).poisson(whole["years"] * np.exp(0.2 * whole["u"]))
    agreed = write_sites(tmp_path, whole, training={"loss": "poisson", "weights": "simplex", "folds": 2})
    schema = agreed.schema
    columns = tuple(replace(c, exposure=c.name == "years") for c in schema.columns)
    said = agreed.to_dict() | {"schema": replace(schema, columns=columns).to_dict()}
    agreed = agree(tmp_path, Agreement.from_dict(said))
    assert Agreement.read(tmp_path / "schema.toml").digest == agreed.digest
    files = run_job(job(agreed), carrier(tmp_path), tmp_path / "runs")
    found, one = Model.from_bytes(files["model.safetensors"], "model"), alone(tmp_path, whole)
    np.testing.assert_allclose(found.x, one.model.x, atol=1e-5)
    twice = found.predict(whole.assign(years=2 * whole["years"]))
    np.testing.assert_allclose(twice, 2 * found.predict(whole), rtol=1e-12)


def test_a_site_refuses_targets_that_the_loss_is_not_for(tmp_path):
    whole = counts("poisson")
    write_sites(tmp_path, whole.assign(y=whole["y"] - 3), training={"loss": "poisson"})
    with pytest.raises(BidroError, match="'y' has values below 0, such as -3"):
        SiteRows.load(Site.read(tmp_path / "east.toml"))
