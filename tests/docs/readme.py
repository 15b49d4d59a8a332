"""`python -m tests.docs.readme PYTHON`: what the README says, with the bidro of another environment."""

import sys
import tempfile
from pathlib import Path

from tests.docs.blocks import run_blocks

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        run_blocks(Path(__file__).parents[2] / "README.md", Path(sys.argv[1]).absolute(), Path(folder))
    print("The README runs.")
