"""What takes a process of its own, in which XLA optimises as it does for users, made once for all workers."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def made_once(tmp_path_factory, worker_id, module):
    """The file that `python -m MODULE FILE` writes; whoever comes first runs it."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared if worker_id == "master" else shared.parent
    path = shared / module
    with open(shared / f"{module}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            done = subprocess.run(
                [sys.executable, "-m", module, str(path)],
                cwd=ROOT,
                env={name: value for name, value in os.environ.items() if name != "XLA_FLAGS"},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr[-4000:]
    return path
