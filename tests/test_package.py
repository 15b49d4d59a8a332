"""The public names, the one-way imports, and the README's code."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import bidro
from tests.docs.blocks import run_blocks
from tests.small import mostly_slow

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "bidro"

# Rooms from the ground up: a room may import only rooms before it (and itself).
ORDER = [
    "errors", "given_files", "arrays", "trees", "splits", "privacy", "sets", "rows", "curves", "losses",
    "transport", "federation", "worst_case", "client", "problem", "algorithms", "engines", "guarantees",
    "standard", "predictor", "training", "fitting",
    "estimators", "tables", "packed", "own_file", "model_file", "scoring", "report", "workflow", "networks",
    "deploy",
    "experiments", "cli",
]  # fmt: skip


def test_every_public_name_is_there():
    for name in bidro.__all__:
        assert getattr(bidro, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = bidro.nothing


def test_the_stub_names_what_is_loaded_on_first_use():
    stub = ast.parse((SOURCE / "__init__.pyi").read_text())
    typed = {a.asname: n.module for n in stub.body if isinstance(n, ast.ImportFrom) for a in n.names}
    assert typed == bidro._HOME
    assert [n for n in bidro.__all__ if n not in typed] == ["__version__"]


@pytest.mark.slow
def test_a_type_checker_knows_every_public_name(tmp_path):
    """As a user's program is checked; with the cache that `mypy` on the source leaves it takes a second."""
    program = tmp_path / "program.py"
    named = [f"reveal_type(bidro.{name})" for name in bidro.__all__]
    wrong = ["bidro.solve(3)", "bidro.nothing", "bidro.Simplex(2).no_such_method()"]
    program.write_text("\n".join(["import bidro", *named, *wrong]))
    here = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *here, "--no-error-summary", str(program)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    said = [line.split(":", 2)[2].strip() for line in done.stdout.splitlines() if "program.py" in line]
    revealed = [line for line in said if line.startswith("note: Revealed")]
    assert len(revealed) == len(named), done.stdout + done.stderr
    assert not [line for line in revealed if line == 'note: Revealed type is "Any"']
    solve = revealed[bidro.__all__.index("solve")]
    assert "problem: bidro.problem.Problem" in solve
    assert "-> bidro.engines.solve.Solution" in solve
    assert sum(line.startswith("error") for line in said) == len(wrong), done.stdout


def test_importing_bidro_makes_jax_use_float64_whoever_imports_first():
    for order in ("import jax, bidro", "import bidro, jax"):
        script = f"{order}; import jax.numpy as jnp; print(jnp.ones(1).dtype)"
        found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert found.stdout.strip() == "float64"


def test_a_site_imports_no_more_than_an_answer_needs():
    """Each job of a site is a process of its own: what it imports is paid for at every site in every run."""
    needless = ["sklearn", "scipy.stats", "matplotlib", "ot", "rich", "bidro.estimators", "bidro.report"]
    script = f"import sys, bidro.deploy.site; print([m for m in {needless} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stdout.strip() == "[]", found.stderr


def test_imports_go_one_way():
    for path in SOURCE.rglob("*.py"):
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            modules = []
            if isinstance(node, ast.ImportFrom) and node.module == "bidro":
                modules = [f"bidro.{a.name}" for a in node.names if a.name != "__version__"]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            elif isinstance(node, ast.Import):
                modules = [a.name for a in node.names]
            for other in (m.split(".")[1] for m in modules if m.startswith("bidro.")):
                assert ORDER.index(other) <= ORDER.index(room), (path, other)


PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]


# What the code of "How to extend" leaves is looked at in `test_extending.py`.
@pytest.mark.parametrize(
    "page",
    mostly_slow(
        [str(p.relative_to(ROOT)) for p in PAGES if p.name != "extending.md"],
        lambda page: page in ("README.md", "docs/choosing.md", "docs/deploy.md"),
    ),
)
def test_code_in_the_pages_runs_when_pasted(page, tmp_path):
    """The blocks of a page, one after the other, as a reader would paste them."""
    run_blocks(ROOT / page, Path(sys.executable), tmp_path)
