"""The README's figures are those that its commands and its picture come to."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def test_the_readme_shows_what_its_commands_print(tmp_path):
    shell = "\n".join(re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL))
    here = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-e", "-c", shell], capture_output=True, text=True, cwd=tmp_path, env=here)
    assert done.returncode == 0, done.stderr
    printed = [line.rstrip() for line in done.stdout.splitlines()]
    shown = re.findall(r"```console\n(.*?)```", README, flags=re.DOTALL)
    assert len(shown) == 2
    for line in "".join(shown).splitlines():
        assert line in printed


@pytest.mark.slow
def test_the_readme_says_what_its_picture_shows(tmp_path):
    from studies.picture import main

    pooled, robust, own = main(tmp_path / "clients.png")[:3]
    numbers = [
        [int(part) for part in re.findall(r"(\d+)(?:\.\d)? dollars, worst client (\d+)", line)[0]]
        for line in (pooled, robust, own)
    ]
    assert f"off by {numbers[0][1]:,} dollars for the worst-served" in README
    assert f"model by {numbers[1][1]:,} (it costs {numbers[1][0] / numbers[0][0] - 1:.0%}" in README
    assert f"each one's own by {numbers[2][1]:,}." in README


def test_the_readme_is_two_minutes_and_its_first_screen_has_what_it_is():
    assert len(README.split()) < 1200
    first = README[:4000]
    assert "clients.png" in first
    assert "bidro fit" in first


@pytest.mark.slow
def test_r_code_runs_where_r_is(tmp_path):
    if shutil.which("Rscript") is None:
        pytest.skip("there is no R")
    wanted = "c('reticulate', 'lme4', 'mgcv')"
    asked = f"quit(status = !all(sapply({wanted}, requireNamespace, quietly = TRUE)))"
    if subprocess.run(["Rscript", "-e", asked], capture_output=True).returncode:
        pytest.skip("reticulate, lme4 or mgcv is not installed")
    text = (ROOT / "docs" / "from_r.md").read_text("utf-8")
    (tmp_path / "page.R").write_text("\n".join(re.findall(r"```r\n(.*?)```", text, flags=re.DOTALL)))
    here = {**os.environ, "BIDRO_PYTHON": sys.executable}
    done = subprocess.run(["Rscript", "page.R"], capture_output=True, text=True, cwd=tmp_path, env=here)
    assert done.returncode == 0, done.stderr
