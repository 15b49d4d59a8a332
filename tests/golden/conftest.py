"""What this code gives, found once for all cases and workers, by the compiler's settings that users have."""

import fcntl
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def found(tmp_path_factory, worker_id):
    """{"fits": by name, "messages": by name}, from a process of its own, in which XLA optimises."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared if worker_id == "master" else shared.parent
    path = shared / "golden.json"
    with open(shared / "golden.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            path.write_text(_given())
        return json.loads(path.read_text())


def _given():
    done = subprocess.run(
        [sys.executable, "-m", "tests.golden"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
