"""Every test is run by `make test`, `make test-slow` or `make test-deploy`."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"


def command_of(target):
    """The lines of a target of the Makefile."""
    makefile = (ROOT / "Makefile").read_text()
    (found,) = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", makefile, flags=re.MULTILINE)
    return found


def test_what_make_test_leaves_out_another_target_runs():
    """Left out are the marks slow, deploy and site: one target runs all that is slow, one every file with a
    test marked deploy, of which it leaves out no more than what is slow, and one what is of the site."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert "-m 'not slow and not deploy and not site'" in settings["addopts"]
    assert {mark.split(":")[0] for mark in settings["markers"]} == {"slow", "deploy", "site"}
    assert "-m site" in command_of("docs")
    assert "/pytest;" in command_of("test")
    assert command_of("test-slow").endswith("/pytest -m slow\n")
    marked = {str(p.relative_to(ROOT)) for p in TESTS.rglob("test_*.py") if "mark.deploy" in p.read_text()}
    words = command_of("test-deploy")
    assert "-m 'deploy or not slow'" in words
    assert set(re.findall(r"tests/\S+", words)) == marked - {"tests/test_make_targets.py"}
