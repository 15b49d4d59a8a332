"""What a hostile server reads from one gradient of a network over all of a site's rows.

It chooses the first layer: units that are on for rows beyond a threshold of one feature. Two neighbours
differ by the rows between their thresholds, and where there is one of them, the gradient of its weights
divided by that of its bias is that row.
"""

import numpy as np
from safetensors.numpy import load

from bidro.deploy.site.config import Site
from bidro.deploy.site.rows import SiteRows, training
from bidro.federated.engines.wire import header_of
from tests.deploy.networks import ALLOWED, network, network_sites
from tests.deploy.sites import PAIR, answering
from tests.deploy.test_network_requests import asked_in, other

HIDDEN = 200
# All rows in every gradient: no batch, and nothing that min_rows could refuse.
AGREED = {
    "arguments": {"hidden": HIDDEN, "activation": "relu"},
    "settings": {"eta_x": 0.1, "eta_alpha": 0.1},
    "algorithm": "AFL",
}


def chosen():
    """(d,) first layer: unit j is on where u > t_j; the second, all alike and small."""
    thresholds = np.linspace(-4, 4, HIDDEN)
    first = np.zeros((HIDDEN, 3))
    first[:, 0] = 1.0
    return np.concatenate([first.ravel(), -thresholds, np.full(HIDDEN, 0.01), [0.3]])


def rebuilt(gradient):
    """Rows (n, 3) of features: those that stand alone between two thresholds."""
    of_weights = gradient[: 3 * HIDDEN].reshape(HIDDEN, 3)
    of_bias = gradient[3 * HIDDEN : 4 * HIDDEN]
    by, rows = -np.diff(of_bias), -np.diff(of_weights, axis=0)
    some = np.abs(by) > 1e-12
    return rows[some] / by[some, None]


def test_one_gradient_holds_many_rows_and_goes_to_a_trusted_server_alone(tmp_path):
    extra = ALLOWED.replace(', "single rows"', "")
    agreed = network_sites(tmp_path, network(2, **AGREED), extra=extra)
    requests, reply = asked_in(tmp_path, agreed)
    hostile = other(requests["train", 2], {"x": chosen()})
    answer = reply(hostile)
    assert "refused" not in header_of(answer)
    site = Site.read(tmp_path / f"{PAIR[0]}.toml")
    rows = training(site, SiteRows.load(site)).host_rows[:, :3]
    found = rebuilt(load(answer)["gradient"])
    near = np.abs(found[:, None] - rows[None]).max(axis=2).min(axis=0) < 1e-6
    assert (near.sum(), len(rows)) == (38, 84)
    path = tmp_path / f"{PAIR[0]}.toml"
    path.write_text(path.read_text().replace('release = "trusted"', ""))
    wary = answering(tmp_path, PAIR)[PAIR[0]]
    assert 'set release = "trusted"' in header_of(wary(hostile))["refused"]
