import json

import pytest

from tests.own_process import made_once


@pytest.fixture(scope="session")
def found(tmp_path_factory, worker_id):
    """{"fits": by name, "messages": by name}: what this code gives."""
    return json.loads(made_once(tmp_path_factory, worker_id, "tests.golden").read_text())
