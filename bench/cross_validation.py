"""Cross-validation of classifiers, against scikit-learn's LogisticRegressionCV in the same run. Prints JSON.

    python bench/cross_validation.py [--case small wine large fifty]

`small`: 5,000 x 10, 20 clients, two classes; `wine`: 178 rows of three classes dealt to 4 clients; `large`:
100,000 x 30, 20 clients, two classes; `fifty`: the same with 50 clients. Seconds are of the processor:
`first_s` of the first time in this process, `again_s` of a second one, both with the 15 candidates of a fit
with defaults, without a radius; `with_radii_s` with these and three radii, 60 in all. The peer chooses among
28 penalties by 5 folds. `ratio` is `again_s` over the peer's.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

CASES = ("small", "wine", "large", "fifty")


def data(case: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features in standard units, classes from 0, and the client of each row."""
    rng = np.random.default_rng(0)
    if case == "wine":
        from sklearn.datasets import load_wine

        X, y = load_wine(return_X_y=True)
        return (X - X.mean(axis=0)) / X.std(axis=0), y, rng.integers(0, 4, len(y))
    rows, columns = (5_000, 10) if case == "small" else (100_000, 30)
    clients = 50 if case == "fifty" else 20
    X = rng.normal(size=(rows, columns))
    owner = rng.choice(clients, rows, p=rng.dirichlet(np.full(clients, 3.0)))
    w = 0.3 + 0.1 * rng.normal(size=(clients, columns))
    return X, (np.einsum("ij,ij->i", X, w[owner]) + rng.normal(size=rows) > 0).astype(int), owner


def measure(case: str) -> dict[str, object]:
    from sklearn.linear_model import LogisticRegressionCV

    from bidro import Box, Federation, Logistic, Problem, Softmax, Transport
    from bidro.data.standardise import signs
    from bidro.selection.calibrate import SCALES, calibrate

    X, y, owner = data(case)
    classes = int(y.max()) + 1
    table = np.column_stack([X, signs(y, classes)])
    federation = Federation.from_arrays([table[owner == i] for i in range(owner.max() + 1)], "unbounded")
    loss = Logistic(True) if classes == 2 else Softmax(classes, True)
    models = Box.cube(1e3, loss.dimension(table.shape[1]))
    problem = Problem(federation, loss, models, Transport.classification(table.shape[1], 1.0))
    seconds, found = [], None
    for scales in (SCALES[:1], SCALES[:1], SCALES):
        began = time.process_time()
        calibrated = calibrate(problem, scales, spread=1.0)
        seconds.append(time.process_time() - began)
        found = calibrated if found is None else found
    began = time.process_time()
    LogisticRegressionCV(Cs=28, cv=5, max_iter=1000).fit(X, y)
    peer = time.process_time() - began
    assert found is not None
    return {
        "first_s": round(seconds[0], 2),
        "again_s": round(seconds[1], 2),
        "with_radii_s": round(seconds[2], 2),
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
