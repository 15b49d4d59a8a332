"""A neural network trained across sites: what one process would train, and what sites refuse."""

import numpy as np
import pytest

from tests.deploy.networks import in_one_process, network, network_sites, run, weights
from tests.deploy.sites import table

def test_sites_train_what_one_process_trains(tmp_path):
    agreed = network_sites(tmp_path)
    files = run(tmp_path, agreed)
    expected = in_one_process(agreed, table())
    np.testing.assert_allclose(weights(files), expected, rtol=0, atol=1e-6)
    print(files.keys(), np.abs(weights(files)-expected).max())
