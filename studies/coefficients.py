"""How often intervals for coefficients, curves, personal models and variance components hold what is true.

python -m studies.coefficients --out docs/studies [--repetitions 400]

Every design draws new rows in each repetition and asks `summary` of a fit by the estimators, as users do.
The truth of a model that is not the one that rows were drawn from (a logistic one of persons that differ) is
what 400,000 rows come to.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bidro import RobustClassifier, RobustRegressor
from bidro.core.arrays import Floats
from bidro.core.files import write_json, write_text
from bidro.core.pytrees import compilation_cache

CONFIDENCE = 0.95
FIRST_SEED = 60_000
_MANY = 400_000
SLOPES = np.array([1.0, -0.5, 2.0])


@dataclass(frozen=True)
class Drawn:
    X: Floats
    y: Any
    clients: Any
    people: Any | None = None


Draw = Callable[[np.random.Generator, int], Drawn]


def _clients(n: int) -> Any:
    return np.array(["north", "south", "west"])[np.arange(n) * 3 // n]


def _rows_of_people(rng: np.random.Generator, people: int, uneven: bool) -> Any:
    """(N,) of which person each row is; people of one client stand together."""
    sizes = rng.integers(1, 10, people) if uneven else np.full(people, 5)
    return np.repeat(np.arange(people), sizes)


def _by_rows(noise: Callable[[np.random.Generator, Floats], Floats]) -> Draw:
    def draw(rng: np.random.Generator, n: int) -> Drawn:
        X = rng.normal(size=(n, 3))
        return Drawn(X, 3.0 + X @ SLOPES + noise(rng, X), _clients(n))

    return draw


def _by_people(
    uneven: bool, between: bool, noise: Callable[[np.random.Generator, Floats], Floats], share: int = 5
) -> Draw:
    """Persons have an effect in common; `between`: and the first feature."""

    def draw(rng: np.random.Generator, n: int) -> Drawn:
        of = _rows_of_people(rng, n // share, uneven)
        people = int(of.max()) + 1
        X = rng.normal(size=(len(of), 3))
        if between:
            X[:, 0] = rng.normal(size=people)[of]
        y = 3.0 + X @ SLOPES + rng.normal(size=people)[of] + noise(rng, X)
        return Drawn(X, y, np.array(["north", "south", "west"])[of * 3 // people], of)

    return draw


def _classes(people: bool, rare: bool) -> Draw:
    def draw(rng: np.random.Generator, n: int) -> Drawn:
        of = _rows_of_people(rng, n // 5, True) if people else np.arange(n)
        count = int(of.max()) + 1
        X = rng.normal(size=(len(of), 3))
        X[:, 0] = (rng.uniform(size=count) < (0.1 if rare else 0.5))[of]
        score = X @ SLOPES / 2 + (rng.normal(size=count)[of] if people else 0.0)
        y = np.where(rng.logistic(size=len(of)) < score, "yes", "no")
        return Drawn(X, y, np.array(["north", "south", "west"])[of * 3 // count], of if people else None)

    return draw


def _even(rng: np.random.Generator, X: Floats) -> Floats:
    return rng.normal(size=len(X))


def _spread(rng: np.random.Generator, X: Floats) -> Floats:
    return (0.3 + np.abs(X[:, 0])) * rng.normal(size=len(X))


def _skewed(rng: np.random.Generator, X: Floats) -> Floats:
    return (0.3 + np.abs(X[:, 1])) * (rng.exponential(size=len(X)) - 1)


def _heavy(rng: np.random.Generator, X: Floats) -> Floats:
    return (1 + X[:, 0] ** 2) * rng.standard_t(3, size=len(X))


# Name: (rows, classes or not, how they are drawn, their slopes where these are known).
DESIGNS: dict[str, tuple[int, bool, Draw, Floats | None]] = {
    "spread grows with a feature": (300, False, _by_rows(_spread), SLOPES),
    "skewed errors, spread grows": (300, False, _by_rows(_skewed), SLOPES),
    "t3 errors, spread grows": (600, False, _by_rows(_heavy), SLOPES),
    "60 persons of 5 rows": (300, False, _by_people(False, False, _even), SLOPES),
    "60 persons, a feature of the person": (300, False, _by_people(False, True, _even), SLOPES),
    "100 persons of 1 to 9 rows": (500, False, _by_people(True, True, _even), SLOPES),
    "100 persons of 1 to 9 rows, spread grows": (500, False, _by_people(True, True, _spread), SLOPES),
    "100 persons, skewed errors": (500, False, _by_people(True, True, _skewed), SLOPES),
    "two classes": (600, True, _classes(False, False), None),
    "two classes, 120 persons": (600, True, _classes(True, False), None),
}
# What is told besides: few persons, of whom sandwich errors are too small, and a rare feature.
HARD: dict[str, tuple[int, bool, Draw, Floats | None]] = {
    "15 persons, a feature of the person": (75, False, _by_people(False, True, _even), SLOPES),
    "two classes, a feature that a tenth has": (300, True, _classes(False, True), None),
}


def _fit(drawn: Drawn, classes: bool, **settings: Any) -> Any:
    kind: Any = RobustClassifier if classes else RobustRegressor
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kind(**settings).fit(drawn.X, drawn.y, clients=drawn.clients, people=drawn.people)


def coverage_of(held: Floats) -> dict[str, float]:
    """Of indicators (repetitions, quantities): the share that holds over all, its standard error over
    repetitions, and that of the quantity that holds least often."""
    each = np.nanmean(held, axis=1)
    return {
        "observed": float(each.mean()),
        "error": float(each.std(ddof=1) / np.sqrt(len(each))),
        "least": float(np.nanmean(held, axis=0).min()),
    }


def slopes_study(name: str, repetitions: int, **more: Any) -> dict[str, Any]:
    """Of one design of `DESIGNS` or `HARD`, weights by rows, straight lines."""
    rows, classes, draw, truth = (DESIGNS | HARD)[name]
    settings = {"weights": "fixed", "curves": None, "personal": None, **more}
    place = list(DESIGNS | HARD).index(name)
    if truth is None:
        truth = _fit(draw(np.random.default_rng([FIRST_SEED, place, 1]), _MANY), classes, **settings).coef_[0]
    held = []
    for k in range(repetitions):
        fitted = _fit(draw(np.random.default_rng([FIRST_SEED, place, 2, k]), rows), classes, **settings)
        table = fitted.summary(CONFIDENCE).coefficients.iloc[1:]
        if table["lower"].notna().all():
            held.append((table["lower"] <= truth) & (truth <= table["upper"]))
    return {"design": name, "repetitions": repetitions, "given": len(held)} | coverage_of(
        np.array(held, float)
    )


def curve_study(repetitions: int) -> list[dict[str, Any]]:
    """Bands of curves that cross-validation chose, at their knots and ends: of a wave, a bend and a line."""
    truths: dict[str, Callable[[Floats], Floats]] = {
        "wave": lambda v: np.asarray(np.sin(2 * v)),
        "bend": lambda v: np.asarray(np.maximum(v, 0.0)),
        "line": lambda v: v,
    }
    held: dict[str, list[float]] = {name: [] for name in truths}
    for k in range(repetitions):
        rng = np.random.default_rng([FIRST_SEED, 100, k])
        X = rng.uniform(-2, 2, (400, 3))
        y = sum(f(X[:, j]) for j, f in enumerate(truths.values())) + 0.5 * rng.normal(size=400)
        drawn = Drawn(X, y, _clients(400))
        found = _fit(drawn, False, weights="fixed", personal=None)
        summary = found.summary(CONFIDENCE)
        centre = X.mean(axis=0)
        for j, (name, f) in enumerate(truths.items()):
            if f"x{j}" in summary.curves:
                curve = summary.curves[f"x{j}"]
                true = f(curve.index.to_numpy()) - f(centre[j])
                inside = (curve["lower"] <= true) & (true <= curve["upper"])
                held[name].append(float(inside.mean()))
            else:
                line = summary.coefficients.loc[f"x{j}"]
                held[name].append(float(line["lower"] <= 1.0 <= line["upper"]) if name == "line" else 0.0)
    return [
        {
            "design": f"curve: {name}",
            "repetitions": repetitions,
            "given": len(own),
            "observed": float(np.mean(own)),
            "error": float(np.std(own, ddof=1) / np.sqrt(len(own))),
            "least": float(np.mean(own)),
        }
        for name, own in held.items()
    ]


def clients_study(clients: int, rows: int, repetitions: int) -> list[dict[str, Any]]:
    """Of clients that differ normally in level (by 1) and in one slope (by 0.5): personal coefficients, and
    how much clients differ."""
    held: dict[str, list[Any]] = {"personal": [], "level": [], "slope": []}
    for k in range(repetitions):
        rng = np.random.default_rng([FIRST_SEED, 200, clients, k])
        of = np.repeat(np.arange(clients), rows)
        X = rng.normal(size=(len(of), 2))
        level, slope = rng.normal(size=clients), 1 + 0.5 * rng.normal(size=clients)
        y = level[of] + slope[of] * X[:, 0] - X[:, 1] + rng.normal(size=len(of))
        drawn = Drawn(X, y, np.array([f"c{i:03d}" for i in range(clients)])[of])
        summary = _fit(drawn, False, weights="fixed", curves=None).summary(CONFIDENCE)
        for what, name, true in (("level", "level", 1.0), ("slope", "slope of x0", 0.5)):
            low, high = summary.variation.loc[name, ["lower", "upper"]]
            # The level is that of an average row, where x0 is not 0 exactly.
            held[what].append(low <= true <= high)
        table = summary.clients
        if len(table):
            true = pd.Series(
                np.concatenate([level, slope, np.full(clients, -1.0)]),
                index=pd.MultiIndex.from_arrays(
                    [
                        np.tile([f"c{i:03d}" for i in range(clients)], 3),
                        np.repeat(["(intercept)", "x0", "x1"], clients),
                    ]
                ),
            ).reindex(table.index)
            held["personal"].append(float(((table["lower"] <= true) & (true <= table["upper"])).mean()))
    return [
        {
            "design": f"{clients} clients of {rows} rows: "
            + {"personal": "personal coefficients", "level": "deviation of levels"}.get(
                what, "deviation of slopes"
            ),
            "repetitions": repetitions,
            "given": len(own),
            "observed": float(np.mean(own)),
            "error": float(np.std(own, ddof=1) / np.sqrt(len(own))),
            "least": float(np.mean(own)),
        }
        for what, own in held.items()
        if own
    ]


def page(parts: dict[str, list[dict[str, Any]]]) -> str:
    lines = [
        "# Coefficients: promised and observed",
        "",
        "Written by `python -m studies.coefficients`; do not edit. The numbers are in `coefficients.json`.",
        "",
        f"Intervals of `summary` at {CONFIDENCE:.0%}: how often they hold the truth, with the standard",
        "error of that over the repetitions, and for the coefficient that is held least often. `given`:",
        "repetitions with an interval.",
    ]
    titles = {
        "unpenalised": "Weights by rows, nothing held back but a quarter of a row of each client for classes",
        "hard": "Few persons, and a rare feature",
        "chosen": 'Where `weights="auto"` chose weights by rows, given that it did',
        "penalised": "Curves, personal models and how much clients differ",
    }
    for part, title in titles.items():
        lines += ["", f"## {title}", "", "| design | repetitions | given | observed | least |"]
        lines.append("| --- | ---: | ---: | ---: | ---: |")
        lines += [
            f"| {one['design']} | {one['repetitions']} | {one['given']} | "
            f"{one['observed']:.3f} ± {one['error']:.3f} | {one['least']:.3f} |"
            for one in parts[part]
        ]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/studies"))
    parser.add_argument("--repetitions", type=int, default=400, help="a quarter of it for curves and choices")
    options = parser.parse_args()
    compilation_cache()
    begun, few = time.process_time(), max(options.repetitions // 4, 2)
    parts: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("unpenalised", "hard", "chosen", "penalised")
    }

    def add(part: str, found: list[dict[str, Any]]) -> None:
        parts[part] += found
        for one in found:
            print(one, flush=True)

    for name in DESIGNS:
        add("unpenalised", [slopes_study(name, options.repetitions)])
    for name in HARD:
        add("hard", [slopes_study(name, options.repetitions)])
    for clients, rows in ((6, 30), (12, 12), (40, 8)):
        add("penalised", clients_study(clients, rows, options.repetitions))
    add("penalised", curve_study(few))
    for name in ("spread grows with a feature", "100 persons of 1 to 9 rows"):
        add("chosen", [slopes_study(name, few, weights="auto")])
    write_json(options.out / "coefficients.json", parts)
    text = page(parts)
    write_text(options.out / "coefficients.md", text)
    print(f"\n{text}\nWritten to {options.out} in {time.process_time() - begun:.0f} s of the processor.")


if __name__ == "__main__":
    main()
