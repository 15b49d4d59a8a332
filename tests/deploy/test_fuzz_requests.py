"""Many requests that no honest server makes: none raises, and none outside the agreement is answered."""

import numpy as np
import pytest

from bidro.deploy.server.serve import run_job
from bidro.deploy.site.config import Site
from bidro.deploy.site.rows import SiteRows
from bidro.deploy.site.session import reply_of
from bidro.federated.engines.coordinator import InMemory
from bidro.federated.engines.wire import header_of
from tests.deploy.fuzz_requests import changed, outside
from tests.deploy.sites import answering, job, table, write_sites


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """(the folder, what an honest run asked of east)."""
    folder = tmp_path_factory.mktemp("fuzz")
    agreed = write_sites(folder, table(), extra='release = "trusted"')
    clients, requests = ("east", "west"), []
    asking = job(agreed, "honest", clients, options={"loss": "huber", "weights": "simplex", "gap": 1e-2})
    answers = answering(folder, clients)

    def listened(request):
        requests.append(request)
        return answers["east"](request)

    run_job(asking, InMemory({**answers, "east": listened}), folder / "runs")
    assert {header_of(one)["question"] for one in requests} == {"prepare", "round", "assess", "bounds"}
    return folder, requests


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_nothing_outside_the_agreement_is_answered(count, honest):
    folder, requests = honest
    site = Site.read(folder / "east.toml")
    rows = SiteRows.load(site)
    rng, answered = np.random.default_rng(count), 0
    for _ in range(count):
        request = changed(rng, requests)
        reply = header_of(reply_of(site, rows, request))
        if "refused" in reply:
            assert "Traceback" not in reply["refused"]
            continue
        answered += 1
        assert outside(request, requests, rows.agreed) is None
    # Some changes, such as of a model, are still what was agreed on.
    assert 0 < answered < count / 2
