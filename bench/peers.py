"""One client: values and times beside those of dro and skwdro, on their own test problems and on larger ones.

    python bench/peers.py            every problem, in an environment for the peers that it makes
    python bench/peers.py --venv DIR the same, in one that is there already

dro's problems are those of its `tests/test_linear_*.py` (`make_regression` and `make_classification`, 100
rows, 5 features, seed 42; normal features with random labels), with the losses that each of its sets takes.
skwdro's are the estimators of `skwdro/tests/test_common.py` that solve exactly (`solver="dedicated"`), with
the data of their examples. The larger ones are 30,000 x 30 and 3,000 x 30. Solvers that approximate by
sampling are left out.

The risk of every model is computed here, by one formula for both, and never read off a solver. Seconds are
medians of whole fits, from arrays in memory to a model: 9 of ours after one to compile, 3 of a peer's after
one (1 where one takes more than ten seconds). Prints a table, and JSON after it: `value` is the peer's risk
less ours, relatively to ours, and `time` the peer's seconds by ours. `multi_client`: 20 clients x 1,000 x 30,
squared loss, against a QR factorisation a client and one CLARABEL solve.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import NamedTuple

import numpy as np

FEATURES = 30
PACKAGES = [
    ["torch==2.13.0"],
    ["skwdro"],
    ["--no-deps", "dro"],
    ["cvxpy", "scikit-learn", "pandas", "tqdm", "matplotlib"],
]


class Problem(NamedTuple):
    """One client's problem, and the packages that solve it."""

    peers: tuple[str, ...]
    loss: str  # squared, absolute, hinge, logistic; newsvendor, portfolio
    ambiguity: str  # wasserstein, KL, chi-squared, TV, CVaR
    size: float  # the radius; of CVaR, the share of the rows that is the worst
    data: str


def _problems() -> dict[str, Problem]:
    found = {}
    for loss, data in (("squared", "regression"), ("absolute", "regression")):
        found[f"Wasserstein, {loss}"] = Problem(("dro",), loss, "wasserstein", 0.1, data)
    for loss in ("hinge", "logistic"):
        found[f"Wasserstein, {loss}"] = Problem(("dro",), loss, "wasserstein", 0.1, "classification")
    for kind, size in (("KL", 0.5), ("chi-squared", 0.5), ("TV", 0.3), ("CVaR", 0.3)):
        for loss in ("hinge", "logistic", "squared", "absolute"):
            data = "random labels" if loss in ("hinge", "logistic") else "random targets"
            found[f"{kind}, {loss}"] = Problem(("dro",), loss, kind, size, data)
    found["newsvendor"] = Problem(("skwdro",), "newsvendor", "wasserstein", 0.01, "demand")
    for size in (0.001, 0.03, 1.0):
        found[f"portfolio, radius {size:g}"] = Problem(
            ("skwdro",), "portfolio", "wasserstein", size, "returns"
        )
    both = ("skwdro", "dro")
    found["linear, 30,000 x 30"] = Problem(both, "squared", "wasserstein", 0.1, "linear")
    found["logistic, 3,000 x 30"] = Problem(both, "logistic", "wasserstein", 0.1, "logistic")
    return found


PROBLEMS = _problems()
# Of skwdro's examples: what a unit costs and brings, and the portfolio's aversion and share.
COST, PRICE, AVERSION, SHARE = 5.0, 7.0, 1.0, 0.2
# Seconds that a peer has for one problem, all repetitions together.
LIMIT = 300


def data(name: str) -> tuple[np.ndarray, np.ndarray]:
    """(features, targets or labels); what is no prediction has no target."""
    from sklearn.datasets import make_classification, make_regression

    rng = np.random.default_rng(42)
    if name == "regression":
        return make_regression(n_samples=100, n_features=5, random_state=42)
    if name == "classification":
        X, y = make_classification(n_samples=100, n_features=5, n_informative=3, random_state=42)
        return X, np.sign(y - 0.5)
    if name.startswith("random"):
        X, y = rng.normal(size=(100, 5)), rng.normal(size=100)
        return X, np.sign(y) if name == "random labels" else y
    if name == "demand":
        return rng.exponential(2.0, (20, 1)), np.zeros(20)
    if name == "returns":
        common, own = rng.normal(size=(40, 1)) * np.sqrt(0.02), rng.normal(size=(40, 6)) * np.sqrt(0.025)
        return common + own + 0.03 * np.arange(1, 7), np.zeros(40)
    rng = np.random.default_rng(0)
    rows = 30_000 if name == "linear" else 3_000
    theta = rng.standard_normal((rows, FEATURES))
    score = theta @ rng.standard_normal(FEATURES) / np.sqrt(FEATURES) + 0.3 + 0.5 * rng.standard_normal(rows)
    return theta, score if name == "linear" else np.where(score > 0, 1.0, -1.0)


def row_losses(loss: str, X: np.ndarray, y: np.ndarray, model: np.ndarray) -> np.ndarray:
    if loss == "newsvendor":
        return COST * model[0] - PRICE * np.minimum(model[0], X[:, 0])
    if loss == "portfolio":
        lost = -X @ model[:-1]
        return lost + AVERSION * (model[-1] + np.maximum(lost - model[-1], 0.0) / SHARE)
    score = X @ model[:-1] + model[-1]
    if loss == "squared":
        return (score - y) ** 2
    if loss == "absolute":
        return np.abs(score - y)
    return np.maximum(1 - y * score, 0.0) if loss == "hinge" else np.logaddexp(0.0, -y * score)


def risk(problem: Problem, model: np.ndarray) -> float:
    """The worst mean loss of a model over the problem's set, by its dual."""
    from scipy.optimize import minimize_scalar

    losses, size = row_losses(problem.loss, *data(problem.data), model), problem.size
    if problem.ambiguity == "wasserstein":
        norm = float(np.linalg.norm(model[:-1]))
        if problem.loss == "squared":
            return float((np.sqrt(losses.mean()) + size * norm) ** 2)
        if problem.loss == "newsvendor":
            return float(losses.mean() + size * PRICE)
        if problem.loss == "portfolio":  # moves are measured in l1
            return float(losses.mean() + size * (1 + AVERSION / SHARE) * np.abs(model[:-1]).max())
        return float(losses.mean() + size * norm)

    def tail(share: float) -> float:
        """The mean of the worst share of the rows: its dual is piecewise linear, with kinks at the losses."""
        return min(eta + np.maximum(losses - eta, 0.0).mean() / share for eta in losses)

    if problem.ambiguity == "CVaR":
        return float(tail(size))
    if problem.ambiguity == "TV":
        return float(size * losses.max() + (1 - size) * tail(1 - size))
    top, spread = losses.max(), float(np.ptp(losses)) or 1.0
    if problem.ambiguity == "KL":

        def dual(log_t: float) -> float:
            t = spread * np.exp(log_t)
            return t * size + top + t * np.log(np.mean(np.exp((losses - top) / t)))

        found = minimize_scalar(dual, bounds=(-12, 12), method="bounded", options={"xatol": 1e-10})
        return float(min(found.fun, top))

    def dual_of_squares(eta: float) -> float:
        return eta + np.sqrt((1 + size) * np.mean(np.maximum(losses - eta, 0.0) ** 2))

    ends = (losses.mean() - spread * (1 + 1 / np.sqrt(size)), top)
    options = {"xatol": 1e-12 * spread}
    return float(minimize_scalar(dual_of_squares, bounds=ends, method="bounded", options=options).fun)


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


def peers_model(package: str, problem: Problem) -> np.ndarray:
    """What a peer's fit comes to: coefficients and an intercept; an order; a portfolio and its tail."""
    X, y = data(problem.data)
    size = problem.size
    if package == "skwdro":
        from skwdro.linear_models import LinearRegression, LogisticRegression
        from skwdro.operations_research import NewsVendor, Portfolio

        if problem.loss == "newsvendor":
            model = NewsVendor(rho=size, k=COST, u=PRICE, solver="dedicated", cost="t-NC-1-1").fit(X)
            return np.ravel(model.coef_)
        if problem.loss == "portfolio":
            model = Portfolio(rho=size, eta=AVERSION, alpha=SHARE, solver="dedicated").fit(X)
            return np.append(np.ravel(model.coef_), np.ravel(model.tau_))
        chosen = LinearRegression if problem.loss == "squared" else LogisticRegression
        # The dedicated solver wants the radius itself.
        model = chosen(rho=size, solver="dedicated", fit_intercept=True).fit(X, y)
        return np.append(np.ravel(model.coef_), np.ravel(model.intercept_))
    _stub("torchvision", "torchvision.models", "torchvision.transforms", "torchattacks")
    _stub("xgboost", "lightgbm", "ucimlrepo")
    from dro.linear_model.chi2_dro import Chi2DRO
    from dro.linear_model.cvar_dro import CVaRDRO
    from dro.linear_model.kl_dro import KLDRO
    from dro.linear_model.tv_dro import TVDRO
    from dro.linear_model.wasserstein_dro import WassersteinDRO

    kinds = {"wasserstein": WassersteinDRO, "KL": KLDRO, "chi-squared": Chi2DRO, "TV": TVDRO, "CVaR": CVaRDRO}
    words = {"squared": "ols", "absolute": "lad", "hinge": "svm", "logistic": "logistic"}
    model = kinds[problem.ambiguity](X.shape[1], words[problem.loss], fit_intercept=True)
    if problem.ambiguity == "wasserstein":
        # The budget of the squared cost, for least squares; p is that of the norm.
        model.update({"eps": size**2 if problem.loss == "squared" else size, "p": 2})
    else:
        model.update({"alpha" if problem.ambiguity == "CVaR" else "eps": size})
    found = model.fit(X, y)
    return np.append(np.ravel(found["theta"]), np.ravel(found["b"]))


def peer(package: str, name: str) -> dict:
    """One peer's time and model, in a process of its own."""
    problem = PROBLEMS[name]
    peers_model(package, problem)  # with what is imported and compiled once
    start = time.perf_counter()
    model = peers_model(package, problem)
    seconds = time.perf_counter() - start
    if seconds < 10:
        seconds = median_seconds(lambda: peers_model(package, problem), 3)
    return {"seconds": seconds, "model": model.tolist()}


def peers(folder: Path | None) -> dict:
    """By package and problem."""
    with tempfile.TemporaryDirectory() as made:
        if folder is None:
            folder = Path(made)
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
            for packages in PACKAGES:
                print(f"installing {' '.join(packages)}", file=sys.stderr)
                command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *packages]
                subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        python, found = str(folder / "bin" / "python"), {}
        for name, problem in PROBLEMS.items():
            for package in problem.peers:
                command = [python, __file__, "--peer", package, name]
                try:
                    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
                except subprocess.TimeoutExpired:
                    found[package, name] = {"failed": f"not done in {LIMIT} s"}
                    continue
                if done.returncode:
                    # A peer that fails has its row, and says why.
                    found[package, name] = {"failed": done.stderr.strip().splitlines()[-1]}
                else:
                    found[package, name] = json.loads(done.stdout.splitlines()[-1])
                print(f"{package}, {name}: {json.dumps(found[package, name])[:120]}", file=sys.stderr)
        return found


# In our own.


def ours(problem: Problem) -> dict:
    from bidro import (
        Absolute,
        Box,
        ConstrainedBox,
        Federation,
        Hinge,
        Logistic,
        PiecewiseLinear,
        Squared,
        Transport,
        WassersteinBall,
        solve,
    )
    from bidro import Problem as OurProblem
    from bidro.ambiguity import ChiSquaredBall, CVaR, KLBall, TotalVariationBall

    X, y = data(problem.data)
    decides = problem.loss in ("newsvendor", "portfolio")
    table = X if decides else np.column_stack([X, y])
    m = table.shape[1]
    losses = {"squared": Squared, "absolute": Absolute, "hinge": Hinge, "logistic": Logistic}
    sets = {
        "KL": KLBall,
        "chi-squared": ChiSquaredBall,
        "TV": TotalVariationBall,
        "wasserstein": WassersteinBall,
    }
    around = CVaR(1 - problem.size) if problem.ambiguity == "CVaR" else sets[problem.ambiguity](problem.size)
    models = Box.cube(1000.0, m)
    if problem.loss == "newsvendor":
        loss, models, transport = (
            PiecewiseLinear.newsvendor(COST, PRICE),
            Box([0.0], [100.0]),
            Transport([1.0], 1),
        )
    elif problem.loss == "portfolio":
        loss = PiecewiseLinear.mean_cvar(m, AVERSION, 1 - SHARE)
        models = ConstrainedBox(Box([0.0] * m + [-10.0], [1.0] * m + [10.0]), [[1.0] * m + [0.0]], 1.0, 1.0)
        transport = Transport(np.ones(m), 1, norm=1)
    else:
        loss = losses[problem.loss](intercept=True)
        labels = problem.loss in ("hinge", "logistic")
        order = 2 if problem.loss == "squared" else 1
        transport = Transport.classification(m, 1.0) if labels else Transport.features_only(m, order)

    def fit():
        federation = Federation.from_arrays([table], "unbounded")
        return solve(OurProblem(federation, loss, models, transport, around), gap=1e-8)

    start = time.perf_counter()
    found = fit()
    first = time.perf_counter() - start
    seconds = median_seconds(fit, 9 if first < 10 else 1)
    return {
        "seconds": seconds,
        "compile_s": first - seconds,
        "gap": found.gap,
        "method": found.method,
        "rounds": found.rounds,
        "model": found.x.tolist(),
    }


def multi_client() -> dict:
    """20 clients x 1,000 x 30: one-shot against QR a client and one CLARABEL solve of what is left."""
    import cvxpy as cp

    from bidro import Box, Federation, Squared, Transport, WassersteinBall, solve
    from bidro import Problem as OurProblem

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
        problem = OurProblem(federation, Squared(), models, transport, WassersteinBall(0.1))
        return solve(problem, gap=1e-8, method=method)

    # Compiled once, as a user who knows cvxpy would: the factors are parameters of one program.
    factors = [cp.Parameter((FEATURES + 1, FEATURES + 1)) for _ in tables]
    x, t = cp.Variable(FEATURES), cp.Variable()
    roots = [cp.norm(f @ cp.hstack([x, [-1.0]])) / np.sqrt(1000) for f in factors]
    program = cp.Problem(cp.Minimize(t), [root + 0.1 * cp.norm(x) <= t for root in roots])

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
    arguments = sys.argv[1:]
    if arguments[:1] == ["--peer"]:
        print(json.dumps(peer(*arguments[1:])))
        return
    theirs = peers(Path(arguments[1]) if arguments[:1] == ["--venv"] else None)
    rows = []
    print("| problem | package | its risk less ours | its seconds by ours | our seconds | our gap |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for name, problem in PROBLEMS.items():
        own = ours(problem)
        value = risk(problem, np.array(own["model"]))
        for package in problem.peers:
            other = theirs[package, name]
            row = {"problem": name, "package": package, "our_risk": value, **own}
            if "failed" in other:
                row["failed"] = other["failed"]
                shown = f"fails: {other['failed']} | "
            else:
                at = risk(problem, np.array(other["model"]))
                row |= {"value": (at - value) / abs(value), "time": other["seconds"] / own["seconds"]}
                shown = f"{row['value']:.1e} | {row['time']:.2g}"
            rows.append(row)
            print(f"| {name} | {package} | {shown} | {own['seconds']:.2g} | {own['gap']:.0e} |", flush=True)
    print(json.dumps({"rows": rows, "multi_client": multi_client()}, indent=2))


if __name__ == "__main__":
    main()
