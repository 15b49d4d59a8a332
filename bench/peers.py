"""One client, labels immovable: time to solve, against skwdro and dro. Prints JSON.

    python bench/peers.py

The script makes an environment for the peers in a temporary folder (torch first, in the version that has a
CPU build). `linear`: squared loss, p = 2, 30,000 x 30; `logistic`: p = 1, 3,000 x 30; an intercept is
fitted, and nothing else is done to the data. Seconds are medians of whole fits, from arrays in memory to a
model: 9 of ours after one to compile (whose time is stated), 3 of each peer's after one (1 where one takes
more than ten seconds). Each gap is (objective - lower bound) / objective, with the lower bound that we prove.
`multi_client`: 20 clients x 1,000 x 30, squared loss, against a QR factorisation a client and one CLARABEL
solve.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path

import numpy as np

RADIUS = 0.1
FEATURES = 30
# skwdro's dedicated solver wants the radius itself, dro the budget: its square for least squares.
PACKAGES = [
    ["torch==2.13.0"],
    ["skwdro"],
    ["--no-deps", "dro"],
    ["cvxpy", "scikit-learn", "pandas", "tqdm", "matplotlib"],
]


def data(kind: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    rows = 30_000 if kind == "linear" else 3_000
    theta = rng.standard_normal((rows, FEATURES))
    score = theta @ rng.standard_normal(FEATURES) / np.sqrt(FEATURES) + 0.3 + 0.5 * rng.standard_normal(rows)
    return theta, score if kind == "linear" else np.where(score > 0, 1.0, -1.0)


def risk(kind: str, coefficients: np.ndarray, intercept: float) -> float:
    theta, y = data(kind)
    score, norm = theta @ coefficients + intercept, float(np.linalg.norm(coefficients))
    if kind == "linear":
        return float((np.sqrt(np.mean((score - y) ** 2)) + RADIUS * norm) ** 2)
    return float(np.mean(np.logaddexp(0.0, -y * score)) + RADIUS * norm)


def median_seconds(work, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


# In the peers' environment.


class _Stub(types.ModuleType):
    """Stands in for packages that a peer imports and that these fits do not use."""

    __path__ = ()

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def _stub(*names: str) -> None:
    for name in names:
        sys.modules[name] = _Stub(name)


def peer(name: str, kind: str) -> dict:
    """One peer's time and model, in a process of its own."""
    theta, y = data(kind)
    if name == "skwdro":
        from skwdro.linear_models import LinearRegression, LogisticRegression

        def fit():
            chosen = LinearRegression if kind == "linear" else LogisticRegression
            model = chosen(rho=RADIUS, solver="dedicated", fit_intercept=True).fit(theta, y)
            return np.ravel(model.coef_), float(np.ravel(model.intercept_)[0])

    else:
        _stub("torchvision", "torchvision.models", "torchvision.transforms", "torchattacks")
        _stub("xgboost", "lightgbm", "ucimlrepo")
        from dro.linear_model.wasserstein_dro import WassersteinDRO

        def fit():
            model = WassersteinDRO(FEATURES, "ols" if kind == "linear" else "logistic", fit_intercept=True)
            model.update({"eps": RADIUS**2 if kind == "linear" else RADIUS, "p": 2})
            found = model.fit(theta, y)
            return np.ravel(found["theta"]), float(np.ravel(found["b"])[0])

    start = time.perf_counter()
    coefficients, intercept = fit()
    seconds = time.perf_counter() - start
    if seconds < 10:
        seconds = median_seconds(fit, 3)
    return {"seconds": seconds, "risk": risk(kind, coefficients, intercept)}


def peers(kinds: list[str]) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = str(Path(folder) / "bin" / "python")
        for packages in PACKAGES:
            print(f"installing {' '.join(packages)}", file=sys.stderr)
            command = [python, "-m", "pip", "install", "--quiet", *packages]
            subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        found: dict = {}
        for kind in kinds:
            for name in ("skwdro", "dro"):
                output = subprocess.run(
                    [python, __file__, "--peer", name, kind], check=True, capture_output=True, text=True
                ).stdout
                found[kind, name] = json.loads(output.splitlines()[-1])
                print(f"{kind}, {name}: {output.splitlines()[-1]}", file=sys.stderr)
        return found


# In our own.


def ours(kind: str) -> dict:
    from bidro import Box, Federation, Logistic, Problem, Squared, Transport, WassersteinBall, solve

    theta, y = data(kind)
    table = np.column_stack([theta, y])
    m = FEATURES + 1
    linear = kind == "linear"
    loss = Squared(intercept=True) if linear else Logistic(intercept=True)
    transport = Transport.features_only(m) if linear else Transport.classification(m, 1.0)

    def fit():
        federation = Federation.from_arrays([table], "unbounded")
        problem = Problem(federation, loss, Box.cube(100.0, m), transport, WassersteinBall(RADIUS))
        return solve(problem, gap=1e-8, method="one-shot" if linear else "curvature")

    start = time.perf_counter()
    found = fit()
    first = time.perf_counter() - start
    seconds = median_seconds(fit, 9)
    return {
        "seconds": seconds,
        "compile_s": first - seconds,
        "gap": found.gap,
        "lower": found.lower,
        "rounds": found.rounds,
        "method": found.method,
        "risk": risk(kind, found.x[:-1], found.x[-1]),
    }


def multi_client() -> dict:
    """20 clients x 1,000 x 30: one-shot against QR a client and one CLARABEL solve of what is left."""
    import cvxpy as cp

    from bidro import Box, Federation, Problem, Squared, Transport, WassersteinBall, solve

    rng = np.random.default_rng(1)
    common = rng.standard_normal(FEATURES) / np.sqrt(FEATURES)
    tables = []
    for i in range(20):
        theta = rng.standard_normal((1000, FEATURES)) + 0.3 * rng.standard_normal(FEATURES)
        own = common + 0.3 * rng.standard_normal(FEATURES) / np.sqrt(FEATURES)
        tables.append(np.column_stack([theta, theta @ own + (0.3 + 0.02 * i) * rng.standard_normal(1000)]))
    transport = Transport.features_only(FEATURES + 1)

    def fit(method: str):
        federation = Federation.from_arrays(tables, "unbounded")
        models = Box.cube(100.0, FEATURES)
        problem = Problem(federation, Squared(), models, transport, WassersteinBall(RADIUS))
        return solve(problem, gap=1e-8, method=method)

    # Compiled once, as a user who knows cvxpy would: the factors are parameters of one program.
    factors = [cp.Parameter((FEATURES + 1, FEATURES + 1)) for _ in tables]
    x, t = cp.Variable(FEATURES), cp.Variable()
    roots = [cp.norm(f @ cp.hstack([x, [-1.0]])) / np.sqrt(1000) for f in factors]
    program = cp.Problem(cp.Minimize(t), [root + RADIUS * cp.norm(x) <= t for root in roots])

    def qr_and_clarabel() -> float:
        for factor, table in zip(factors, tables, strict=True):
            factor.value = np.linalg.qr(table, mode="r")
        program.solve(solver=cp.CLARABEL)
        return float(t.value) ** 2

    value = qr_and_clarabel()
    result: dict = {"qr_clarabel_s": median_seconds(qr_and_clarabel, 5)}
    for method in ("one-shot", "curvature"):
        found = fit(method)
        result[method] = {
            "seconds": median_seconds(lambda method=method: fit(method), 9),
            "rounds": found.rounds,
            "gap": found.gap,
            "relative_difference": abs(found.upper - value) / value,
        }
    result["speedup"] = result["qr_clarabel_s"] / result["one-shot"]["seconds"]
    return result


def main() -> None:
    if len(sys.argv) > 3 and sys.argv[1] == "--peer":
        print(json.dumps(peer(sys.argv[2], sys.argv[3])))
        return
    kinds = ["linear", "logistic"]
    result: dict = {kind: ours(kind) for kind in kinds}
    several = multi_client()
    theirs = peers(kinds)
    for kind in kinds:
        own = result[kind]
        times = {name: theirs[kind, name]["seconds"] for name in ("skwdro", "dro")}
        result[kind] = {
            "ours_s": own["seconds"],
            "skwdro_s": times["skwdro"],
            "dro_s": times["dro"],
            "speedup": min(times.values()) / own["seconds"],
            "ours_gap": own["gap"],
            **{
                f"{name}_gap": (theirs[kind, name]["risk"] - own["lower"]) / theirs[kind, name]["risk"]
                for name in times
            },
            "compile_s": own["compile_s"],
            "method": own["method"],
            "rounds": own["rounds"],
        }
    print(json.dumps({**result, "multi_client": several}, indent=2))


if __name__ == "__main__":
    main()
