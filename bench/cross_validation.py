"""Cross-validation of classifiers, against scikit-learn's LogisticRegressionCV in the same run. Prints JSON.

    python bench/cross_validation.py [--case small wine large]

`small`: 5,000 x 10, 20 clients, two classes; `wine`: 178 rows of three classes dealt to 4 clients; `large`:
100,000 x 30, 20 clients, two classes. Seconds are of the processor: `first_s` with compilation, `again_s`
without. The peer chooses among 28 penalties by 5 folds, as many candidates as we have. `ratio` is `again_s`
over the peer's.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

CASES = ("small", "wine", "large")


def data(case: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features in standard units, classes from 0, and the client of each row."""
    rng = np.random.default_rng(0)
    if case == "wine":
        from sklearn.datasets import load_wine

        X, y = load_wine(return_X_y=True)
        return (X - X.mean(axis=0)) / X.std(axis=0), y, rng.integers(0, 4, len(y))
    rows, columns, clients = (5_000, 10, 20) if case == "small" else (100_000, 30, 20)
    X = rng.normal(size=(rows, columns))
    owner = rng.choice(clients, rows, p=rng.dirichlet(np.full(clients, 3.0)))
    w = 0.3 + 0.1 * rng.normal(size=(clients, columns))
    return X, (np.einsum("ij,ij->i", X, w[owner]) + rng.normal(size=rows) > 0).astype(int), owner


def measure(case: str) -> dict[str, object]:
    from sklearn.linear_model import LogisticRegressionCV

    from bidro import Box, Federation, Logistic, Problem, Softmax, Transport
    from bidro.guarantees.calibration import calibrate
    from bidro.standard import signs

    X, y, owner = data(case)
    classes = int(y.max()) + 1
    table = np.column_stack([X, signs(y, classes)])
    federation = Federation.from_arrays([table[owner == i] for i in range(owner.max() + 1)], "unbounded")
    loss = Logistic(True) if classes == 2 else Softmax(classes, True)
    models = Box.cube(1e3, loss.dimension(table.shape[1]))
    problem = Problem(federation, loss, models, Transport.classification(table.shape[1], 1.0))
    seconds, found = [], None
    for _ in range(2):
        began = time.process_time()
        found = calibrate(problem, spread=1.0)
        seconds.append(time.process_time() - began)
    began = time.process_time()
    LogisticRegressionCV(Cs=28, cv=5, max_iter=1000).fit(X, y)
    peer = time.process_time() - began
    assert found is not None
    return {
        "first_s": round(seconds[0], 2),
        "again_s": round(seconds[1], 2),
        "rounds": found.rounds,
        "chosen": list(found.chosen),
        "sklearn_s": round(peer, 2),
        "ratio": round(seconds[1] / peer, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", nargs="*", choices=CASES, default=list(CASES))
    print(json.dumps({case: measure(case) for case in parser.parse_args().case}, indent=2))


if __name__ == "__main__":
    main()
