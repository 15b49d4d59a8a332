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
    "core", "data", "losses", "risk", "ambiguity", "problem", "federated", "solvers", "privacy", "certify",
    "selection", "fit", "model", "estimators", "survival", "report", "workflow", "neural", "deploy",
    "experiments", "cli",
]  # fmt: skip


# Who uses JAX, the extra `bidro[jax]`, and why.
TRACED = "is traced: the rows of clients, and the inner suprema, in compiled programs"
ROUNDS = "a first-order method, or who runs its rounds: compiled, with JAX's random numbers"
NETWORK = "trains neural networks"
OWN_LOSS = "a user's own loss is differentiated; imported only where it is"
IMPORTS_JAX = {
    TRACED: [
        "problem/client",
        "risk/client_rows",
        "risk/inner/ascent",
        "risk/inner/ball",
        "risk/inner/exact",
        "risk/inner/problem",
        "risk/inner/path",
        "risk/rows_jax",
        "ambiguity/reweighting",
    ],
    ROUNDS: [
        "federated/baselines/afl",
        "federated/algorithms/bidro_fl",
        "federated/algorithms/bidro_local",
        "federated/baselines/ditto",
        "federated/baselines/drfa",
        "federated/contrib/bidro_compressed",
        "federated/contrib/bidro_gossip",
        "federated/contrib/mixture_ball",
        "federated/baselines/fdr_svm",
        "federated/baselines/fedavg",
        "selection/fold_queries",
        "federated/baselines/group_dro",
        "federated/baselines/group_dro_balls",
        "federated/algorithms/first_order",
        "federated/baselines/q_ffl",
        "federated/algorithms/server_optimiser",
        "federated/baselines/scaffold",
        "federated/baselines/unbalanced",
        "federated/engines/remote",
        "federated/engines/in_process",
        "federated/engines/side_by_side",
    ],
    NETWORK: ["neural/folder", "neural/models", "neural/shift", "neural/training"],
    OWN_LOSS: ["losses/custom", "losses/torch_loss"],
}


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
    assert "problem: bidro.problem.problem.Problem" in solve
    assert "-> bidro.solvers.solve.Solution" in solve
    assert sum(line.startswith("error") for line in said) == len(wrong), done.stdout


def test_importing_bidro_makes_jax_use_float64_whoever_imports_first():
    for order in ("import jax, bidro", "import bidro, jax"):
        script = f"{order}; import jax.numpy as jnp; print(jnp.ones(1).dtype)"
        found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert found.stdout.strip() == "float64"


def test_a_site_imports_no_more_than_an_answer_needs():
    """Each job of a site is a process of its own: what it imports is paid for at every site in every run."""
    needless = ["sklearn", "scipy.stats", "matplotlib", "ot", "rich", "bidro.estimators", "bidro.report"]
    script = f"import sys, bidro.deploy.site.session; print([m for m in {needless} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stdout.strip() == "[]", found.stderr


def test_jax_is_used_only_where_it_is_needed_and_imported_on_use():
    """Names for type checkers do not count, imports inside functions do."""
    importing = set()
    for path in SOURCE.rglob("*.py"):
        for node in executed(ast.parse(path.read_text())):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(module.partition(".")[0] in ("jax", "jaxlib") for module in modules), path
            if any(module == "bidro.core.jax_on_use" for module in modules):
                importing.add(path.relative_to(SOURCE).with_suffix("").as_posix())
    allowed = [name for names in IMPORTS_JAX.values() for name in names]
    assert len(allowed) == len(set(allowed))
    assert sorted(importing - set(allowed)) == [], "uses JAX and is not allowed to"
    assert sorted(set(allowed) - importing) == [], "may use JAX and does not: shorten the list"


def executed(tree):
    """All nodes but those under `if TYPE_CHECKING`."""
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        typed = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        todo.extend(node.orelse if typed else ast.iter_child_nodes(node))


WITHOUT_JAX = """
import sys
import bidro

sys.modules["jax"] = None  # as where it is not installed

import numpy as np
import bidro.data.splines, bidro.data.standardise, bidro.losses.predicted, bidro.losses.registry
import bidro.model.predictor
from bidro.data.federation import Federation
from bidro.losses import Hinge, Logistic, Loss, Softmax, Squared, losses_of, mistakes_of
from bidro.core.sets import Ball, Box, CappedSimplex, L1SimplexBall, ScaledNormCut, Simplex
from bidro.risk.transport import Transport

class Own(Loss):
    convex_in_x = True

    def dimension(self, m):
        return m

    def value(self, x, xi):
        return abs(x @ xi)

rows = np.array([[1.0, 2.0, 1.0], [3.0, -1.0, -1.0]])
federation = Federation.from_arrays({"a": rows, "b": rows + 1}, "unbounded")
assert losses_of(Squared(), np.ones(2), federation.host_rows).tolist() == [4.0, 9.0, 9.0, 16.0]
assert losses_of(Own(), np.ones(3), rows).tolist() == [4.0, 1.0]
assert mistakes_of(Logistic(), np.ones(2), rows).tolist() == [0.0, 1.0]
assert np.isfinite(Softmax(2).hessian_sum(np.ones(4), np.abs(rows), np.ones(2))).all()
assert Hinge().lipschitz(np.array([3.0, 4.0]), np.ones(3)) == 5.0
assert Transport.features_only(3).cost(rows[0], rows[0] + [3.0, 4.0, 0.0]) == 25.0
for weights in (Simplex(2), CappedSimplex([0.0, 0.0], [0.6, 0.6]), L1SimplexBall([0.5, 0.5], 0.2)):
    assert weights.contains(weights.project(np.array([3.0, -1.0])))
for models in (Box.cube(1.0, 2), Ball(np.zeros(2), 1.0), ScaledNormCut(Box.cube(1.0, 2), np.ones(2), 0.5)):
    assert models.contains(models.project(np.array([3.0, -1.0])))
print("done")
"""


def test_what_describes_a_problem_computes_without_jax():
    found = subprocess.run([sys.executable, "-c", WITHOUT_JAX], capture_output=True, text=True)
    assert found.stdout.strip() == "done", found.stderr


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
        lambda page: page in ("README.md", "docs/choosing.md"),
    ),
)
def test_code_in_the_pages_runs_when_pasted(page, tmp_path):
    """The blocks of a page, one after the other, as a reader would paste them."""
    run_blocks(ROOT / page, Path(sys.executable), tmp_path)
