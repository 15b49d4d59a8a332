"""Whatever is killed, and whenever, a run comes to the bytes of an undisturbed one. See `faults`."""

import pytest

from bidro.deploy.transport.flare import local as flare_local
from bidro.deploy.transport.flower import local as flower_local
from tests.deploy.sites import PAIR
from tests.testbed.faults import KINDS, counted
from tests.testbed.processes import consortium_of

_NETWORKS = {"flare": flare_local, "flower": flower_local}
_TIMES = {"flare": 20, "flower": 5}


@pytest.fixture(scope="module", params=_NETWORKS)
def made(request, tmp_path_factory):
    with consortium_of(_NETWORKS[request.param], tmp_path_factory.mktemp("faults"), PAIR) as found:
        yield request.param, found


@pytest.mark.deploy
@pytest.mark.parametrize("kind", KINDS["flare"])
def test_killed_at_random_moments_every_run_comes_to_the_same_bytes(kind, made):
    name, found = made
    if kind not in KINDS[name]:
        pytest.skip("on Flower a site is one process")
    counts = counted(name, found, kind, _TIMES[name], seed=17)
    assert counts.wrong == []
    assert counts.hit >= _TIMES[name] // 2, "most moments are within a run"
