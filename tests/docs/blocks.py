"""The code of a page, run as a reader would paste it: its Python, then its shell, in one empty folder."""

import os
import re
import subprocess
from pathlib import Path


def run_blocks(page: Path, python: Path, folder: Path) -> None:
    """Run a page's blocks, with the commands beside this Python first in the path."""
    text = page.read_text("utf-8")
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    here = {**os.environ, "PATH": path, "XDG_CACHE_HOME": str(folder / "cache")}
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))
    shell = "\n".join(re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL))
    for command in ([str(python), "-c", code], ["bash", "-e", "-c", shell]):
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=here)
        assert done.returncode == 0, f"{page.name}: {done.stderr}"
