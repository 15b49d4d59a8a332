"""`bidro fit` from Parquet on a large table: seconds of each part and peak memory; and the command itself, in
new processes with and without its compilation cache, beside a process that reads the same file and fits
scikit-learn's own cross-validated model: 5,000 rows x 10 columns x 20 clients, a number and two classes, and
the 178 wines of three classes. Prints JSON.

python bench/fit.py [--rows 1000000] [--columns 30] [--clients 50] [--task regression] [--curves none]

Memory is the peak of the process, of which the libraries alone take `libraries_mb`; `ratio` compares what the
run adds to the table in float64. `processor_s` is that of the run alone, once the libraries are imported.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

PARTS = {
    "reading": "reading",
    "preparing": "preparing",
    "choosing": "cross-validating",
    "assessing": "assessing",
    "certifying": "certifying",
}


def table(rows: int, columns: int, clients: int, task: str) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, columns))
    owner = rng.choice(clients, rows, p=rng.dirichlet(np.full(clients, 3.0)))
    w = 0.3 + 0.1 * rng.normal(size=(clients, columns))
    y = np.einsum("ij,ij->i", X, w[owner]) + rng.normal(size=rows)
    frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(columns)])
    frame["target"] = y if task == "regression" else np.where(y > 0, "yes", "no")
    frame["client"] = np.array([f"c{k}" for k in range(clients)])[owner]
    return frame


def peak_mb() -> float:
    """The largest resident size so far; unlike `ru_maxrss` it does not begin with that of the parent."""
    line = next(v for v in Path("/proc/self/status").read_text().splitlines() if v.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def measure(path: Path, rows: int, columns: int, curves: str) -> dict[str, object]:
    from bidro.fit.fitted import Progress
    from bidro.workflow.fit import fit_tables
    from bidro.workflow.options import FitOptions

    libraries, used = peak_mb(), time.process_time()
    began = time.perf_counter()
    marks: list[tuple[str, float]] = []
    solving: list[float] = []

    def stage(name: str) -> None:
        marks.append((name, time.perf_counter()))

    def solve_round(_: int, gap: float) -> None:
        solving.append(time.perf_counter())

    last_calibration = [began]

    def calibration_round(_: int, left: int) -> None:
        last_calibration[0] = time.perf_counter()

    options = FitOptions(tables=(str(path),), client="client", target="target", curves=curves)
    done = fit_tables(options, Progress(stage, calibration_round, solve_round))
    ended = time.perf_counter()
    ends = [*(at for _, at in marks[1:]), ended]
    seconds = {PARTS[name]: round(end - at, 2) for (name, at), end in zip(marks, ends, strict=True)}
    # Solving begins where cross-validation has its scores; the rounds of it are marked one by one.
    assessing = dict(marks)["assessing"]
    seconds["cross-validating"] = round(last_calibration[0] - dict(marks)["choosing"], 2)
    seconds["solving"] = round(assessing - last_calibration[0], 2)
    in_float64 = rows * (columns + 1) * 8 / 2**20
    return {
        "rows": rows,
        "columns": columns,
        "clients": len(done.model.clients),
        "seconds": seconds,
        "total_s": round(ended - began, 2),
        "processor_s": round(time.process_time() - used, 2),
        "rounds": done.trained.rounds,
        "gap": done.trained.gap,
        "table_mb": round(in_float64, 1),
        "libraries_mb": round(libraries, 1),
        "peak_mb": round(peak_mb(), 1),
        "ratio": round((peak_mb() - libraries) / in_float64, 2),
    }


PEER = """
import sys, pandas as pd
from sklearn.linear_model import LogisticRegressionCV, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
table = pd.read_csv(sys.argv[1])
X, y = table.drop(columns=["client", "target"]), table["target"]
model = RidgeCV() if y.dtype.kind == "f" else LogisticRegressionCV(max_iter=1000)
print(make_pipeline(StandardScaler(), model).fit(X, y).score(X, y))
"""


def wines() -> pd.DataFrame:
    """The wines, every fourth of them at one of four clients."""
    from sklearn.datasets import load_wine

    frame = load_wine(as_frame=True).frame
    frame["target"] = np.array(["a", "b", "c"])[frame["target"]]
    return frame.assign(client=np.array([f"c{k}" for k in range(4)])[np.arange(len(frame)) % 4])


def command_seconds() -> dict[str, object]:
    """Of a first `bidro fit` with defaults, of a second one, and of the peer, by the clock and by the
    processor; and of `bidro --help`."""
    import os
    import sys

    tables = {
        "squared": table(5_000, 10, 20, "regression"),
        "two classes": table(5_000, 10, 20, "classification"),
        "wine": wines(),
    }
    start = [sys.executable, "-c", "from bidro.cli import main; main()"]
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, frame in tables.items():
            path = Path(folder) / "table.csv"
            frame.to_csv(path, index=False)
            here = {**os.environ, "XDG_CACHE_HOME": f"{folder}/{name}"}
            fit = [*start, "fit", str(path), "--client", "client", "--target", "target", "--force"]
            fit += ["--out", f"{folder}/model"]
            own = {
                "first": _timed(fit, here),
                "later": _timed(fit, here),
                "scikit-learn": _timed([sys.executable, "-c", PEER, str(path)], here),
            }
            ratio = own["later"]["processor_s"] / own["scikit-learn"]["processor_s"]
            found[name] = {**own, "processor_ratio": round(ratio, 2)}
        found["help"] = _timed([*start, "--help"], dict(os.environ))
    return found


def _timed(command: list[str], environment: dict[str, str]) -> dict[str, float]:
    import resource
    import subprocess

    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, env=environment, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"clock_s": round(time.perf_counter() - began, 2), "processor_s": round(used, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description="bidro fit on a large table.")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=30)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--task", choices=("regression", "classification"), default="regression")
    parser.add_argument("--curves", choices=("auto", "none"), default="auto", help="of the large table")
    parser.add_argument("--table", type=Path, help="(used by the script itself)")
    chosen = parser.parse_args()
    if chosen.table is not None:
        print(json.dumps(measure(chosen.table, chosen.rows, chosen.columns, chosen.curves)))
        return
    import subprocess
    import sys

    # The table is made in this process and measured in another, whose peak is then that of the fit alone.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.parquet"
        table(chosen.rows, chosen.columns, chosen.clients, chosen.task).to_parquet(path)
        sizes = ["--rows", str(chosen.rows), "--columns", str(chosen.columns), "--curves", chosen.curves]
        done = subprocess.run(
            [sys.executable, __file__, "--table", str(path), *sizes],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    large = {"task": chosen.task, "curves": chosen.curves, **json.loads(done.stdout)}
    print(json.dumps({"large": large, "command": command_seconds()}, indent=2))


if __name__ == "__main__":
    main()
