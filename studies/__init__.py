"""The studies that the docs quote, run by `make study`. They stand beside the package, outside its wheel."""

from __future__ import annotations

import subprocess
from pathlib import Path


def on_commit() -> str:
    """Words that say on which commit this code runs, with a + where files differ from it; empty where it is
    in no repository."""
    about = ["git", "describe", "--always", "--exclude=*", "--abbrev=7", "--dirty=+"]
    here = Path(__file__).parent
    found = subprocess.run(about, cwd=here, capture_output=True, text=True, check=False)
    return f" on commit {found.stdout.strip()}" if found.returncode == 0 else ""
