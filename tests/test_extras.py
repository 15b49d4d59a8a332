"""What a plain install does without the packages of the extras, and what it says where one is missing."""

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from bidro import Federation, TorchLoss, Transport
from bidro.core.errors import BidroError
from bidro.data.tables import Query, read_one
from bidro.deploy.transport.drive import ENGINES, require_engine
from bidro.federated.baselines.barycentre import barycentre
from bidro.risk.transport import wasserstein_distance
from bidro.workflow.options import FitOptions

ROOT = Path(__file__).parents[1]
EXTRAS = {
    "jax": "jax",
    "jaxlib": "jax",
    "ot": "distances",
    "matplotlib": "figures",
    "pyarrow": "parquet",
    "duckdb": "database",
    "sqlalchemy": "database",
    "nvflare": "flare",
    "flwr": "flower",
    "torch": "torch",
    "onnx": "onnx",
    "onnxruntime": "onnx",
}


@pytest.fixture
def without(monkeypatch):
    """A function that makes a module one that cannot be imported."""
    return lambda module: monkeypatch.setitem(sys.modules, module, None)


def test_a_plain_install_fits_certifies_and_explains(tmp_path):
    """In a process in which no package of an extra can be imported."""
    script = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

# Not `None` in `sys.modules`: other packages look there for one that its user has imported.
missing = sys.argv[1:]
sys.meta_path.insert(0, Missing())
from bidro.cli import main
for command in (
    "example visits.csv",
    "example fresh.csv --seed 1",
    "fit visits.csv --client hospital --target stay --radius 0.1 --out model",
    "fit visits.csv --client hospital --target stay --loss huber --curves none --out huber",
    "fit visits.csv --client hospital --target ward --curves none --out classes",
    "evaluate model visits.csv",
    "predict model visits.csv --interval 0.9 --explain --out predicted.csv",
    "certify model fresh.csv",
    "report model --out page.html",
):
    sys.argv = ["bidro", *command.split()]
    try:
        main()
    except SystemExit as end:
        assert end.code == 0, command
"""
    done = subprocess.run(
        [sys.executable, "-c", script, *EXTRAS], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page.html").exists()


def test_what_is_compiled_says_that_it_needs_jax(tmp_path):
    script = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "jax":
            raise ModuleNotFoundError(f"No module named {name!r}", name="jax")

sys.meta_path.insert(0, Missing())
import numpy as np
from bidro import Box, FedAvg, Federation, Problem, Squared, Transport, run
federation = Federation.from_arrays({"north": np.eye(3), "south": np.eye(3)}, "unbounded")
try:
    run(FedAvg(eta_x=0.1), Problem(federation, Squared(), Box.cube(1.0, 2), Transport.features_only(3)), 1)
except ValueError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert "needs JAX, which is not installed" in done.stdout, done.stderr
    assert "pip install 'bidro[jax]'" in done.stdout


def test_what_needs_an_extra_says_which(without, tmp_path):
    for module in EXTRAS:
        without(module)
    rows = np.zeros((3, 2))
    transport = Transport.euclidean(2)
    bounds = {"x": [0.0, 1.0], "y": [0.0, 1.0]}
    for work in (
        lambda: wasserstein_distance(rows, rows, transport),
        lambda: barycentre(Federation.from_arrays({"a": rows}, "unbounded")),
        lambda: FitOptions(target="y", metric="joint", support=bounds),
        lambda: FitOptions(target="y", radius="bootstrap"),
    ):
        with pytest.raises(BidroError, match=r"pip install 'bidro\[distances\]'"):
            work()
    FitOptions(target="y", support=bounds)
    for name in ("table.parquet", "table.csv.zst"):
        (tmp_path / name).write_bytes(b"PAR1")
        with pytest.raises(BidroError, match=rf"{name}' needs .* pip install 'bidro\[parquet\]'"):
            read_one(tmp_path / name)
    (tmp_path / "table.duckdb").touch()
    for address in ("duckdb:///table.duckdb", "postgresql://db/visits"):
        with pytest.raises(BidroError, match=r"needs .* pip install 'bidro\[database\]'"):
            read_one(Query(address, "select 1", tmp_path))
    with pytest.raises(BidroError, match=r"PyTorch modules need .* pip install 'bidro\[torch\]'"):
        TorchLoss(None)
    for engine in ENGINES:
        with pytest.raises(BidroError, match=rf"The engine '{engine}' needs .*'bidro\[{engine}\]'"):
            require_engine(engine)


def test_figures_without_their_package_say_which_extra(without, monkeypatch):
    without("matplotlib")
    monkeypatch.delitem(sys.modules, "bidro.report.figures", raising=False)
    with pytest.raises(BidroError, match=r"pip install 'bidro\[figures\]'"):
        importlib.import_module("bidro.report.figures")


def test_the_extras_are_those_of_the_messages_and_development_has_all():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert set(EXTRAS.values()) <= set(extras)
    everything = next(one for one in extras["dev"] if one.startswith("bidro["))
    assert set(everything.removeprefix("bidro[").removesuffix("]").split(",")) == set(EXTRAS.values())
    plain = " ".join(project["dependencies"]).lower()
    extra = (
        "jax",
        "pot>",
        "matplotlib",
        "pyarrow",
        "nvflare",
        "flwr",
        "torch",
        "optax",
        "onnx",
        "duckdb",
        "sqlalchemy",
    )
    assert not [name for name in extra if name in plain]
