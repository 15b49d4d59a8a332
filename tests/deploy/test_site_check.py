"""`bidro site check` says of a run what the run says of itself, and leaves nothing behind."""

import sqlite3

import numpy as np
import pandas as pd
import pytest

from bidro.core.errors import BidroError
from bidro.deploy.server.serve import run_job
from bidro.deploy.site.check import check_site
from bidro.deploy.site.config import Site
from bidro.deploy.site.rows import site_log
from bidro.model.model_file import Model
from tests.deploy.networks import ALLOWED, network, network_sites
from tests.deploy.networks import run as network_run
from tests.deploy.sites import (
    PAIR,
    QUICK,
    agree,
    carrier,
    job,
    private_sites,
    retrained,
    table,
    write_sites,
)

SIZES = (300, 300, 300, 300, 300)


def checked(folder, name="east"):
    """What the check says a run would be refused for."""
    return check_site(Site.read(folder / f"{name}.toml")).refused


def said_by(run):
    """What a run is refused for, None where it is not; of the site 'east'."""
    try:
        run()
    except BidroError as error:
        return str(error).removeprefix("Client 'east': ")
    return None


def grown(folder, more, name="east"):
    """The site's table with so many rows more."""
    own, rng = pd.read_csv(folder / f"{name}.csv"), np.random.default_rng(1)
    new = own.sample(more, random_state=1, replace=True)
    new = new.assign(**{column: new[column] + rng.normal(size=more) for column in ("u", "v", "y")})
    pd.concat([own, new]).to_csv(folder / f"{name}.csv", index=False)


@pytest.mark.parametrize("allowed", [False, True])
def test_of_a_network_with_batches(allowed, tmp_path):
    extra = ALLOWED if allowed else ALLOWED.replace(', "single rows"', "")
    agreed = network_sites(tmp_path, network(1), table(sizes=SIZES), extra=extra)
    found = checked(tmp_path)
    assert (found is None) == allowed
    if not allowed:
        said = said_by(lambda: network_run(tmp_path, agreed))
        assert "a batch of 40 rows" in found
        assert said.startswith(found)
        assert f"Client 'west': {found}" in said  # both are named


@pytest.mark.parametrize("more", [20, 60])
def test_of_a_table_that_has_grown(more, tmp_path):
    """By too little for new sums: a run is answered of the rows as they were, to the same model."""
    agreed = write_sites(tmp_path, table(sizes=SIZES))
    first = run_job(job(agreed, "first", PAIR), carrier(tmp_path, PAIR), tmp_path / "runs")
    assert checked(tmp_path) is None
    grown(tmp_path, more)
    found = check_site(Site.read(tmp_path / "east.toml"))
    assert (found.refused, found.new, found.waiting) == (None, more, more)
    assert f"{more} rows wait until there are enough that are new" in found.in_words()
    second = run_job(job(agreed, "second", PAIR), carrier(tmp_path, PAIR), tmp_path / "runs")
    models = [Model.from_bytes(files["model.safetensors"], "model").x for files in (first, second)]
    np.testing.assert_allclose(*models, rtol=0, atol=1e-9)  # pandas wrote the table anew


def test_of_a_privacy_budget_that_is_spent(tmp_path):
    """The same run again costs nothing; another has nothing left to pay with."""
    agreed = private_sites(tmp_path)

    def go(name, by):
        return lambda: run_job(
            job(by, name, PAIR, privacy=by.privacy), carrier(tmp_path, PAIR), tmp_path / "runs"
        )

    assert checked(tmp_path) is None
    assert said_by(go("first", agreed)) is None
    assert checked(tmp_path) is None
    other = agree(tmp_path, retrained(agreed, {"seed": 5}, privacy=agreed.privacy))
    found = checked(tmp_path)
    assert "privacy budget" in found
    assert said_by(go("second", other)).startswith(found)
    # An agreement that is not private is not answered at all.
    agree(tmp_path, retrained(agreed))
    assert "it has a privacy budget and answers private runs alone" in checked(tmp_path)


def test_of_statements_that_are_spent(tmp_path):
    """By whatever agreement; the same run again ends at a model that was stated before."""
    agreed = write_sites(tmp_path, table())
    for seed in range(3):  # of three features
        one = job(agreed, f"run-{seed}", PAIR, options={**QUICK, "radius": 0.1 + 0.1 * seed})
        assert said_by(lambda one=one: run_job(one, carrier(tmp_path, PAIR), tmp_path / "runs")) is None
    assert checked(tmp_path) is None
    another = job(agreed, "another", PAIR, options={**QUICK, "radius": 0.7})
    found = checked(tmp_path)
    assert "has been answered of 3 models over this table" in found
    said = said_by(lambda: run_job(another, carrier(tmp_path, PAIR), tmp_path / "runs"))
    assert said.startswith(found)


def test_a_check_leaves_nothing_behind(tmp_path):
    write_sites(tmp_path, table(), extra='approve = "ask"')
    site = Site.read(tmp_path / "east.toml")
    found = check_site(site)
    assert found.refused is None
    assert "It waits for your approval first" in found.in_words()
    assert site_log(site).entries() == []
    assert site_log(site).waiting() == []
    assert not site.personal.exists()
    with sqlite3.connect(site.state / "state.sqlite") as connection:
        for name in ("memory", "stated", "tables", "versions", "work"):
            assert connection.execute(f"SELECT COUNT(*) FROM {name}").fetchone() == (0,)


def test_a_quick_check_counts_only(tmp_path, monkeypatch):
    write_sites(tmp_path, table())
    monkeypatch.setattr("bidro.deploy.site.check.refusal_of_a_run", lambda *_: 1 / 0)
    found = check_site(Site.read(tmp_path / "east.toml"), rehearse=False)
    assert (found.rows, found.refused) == (120, None)
