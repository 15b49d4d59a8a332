"""Tables of the field, computed again: the paper's simulation, FLamby's heart disease, Adult by doctorate.

python -m studies.published --data FOLDER --out docs/studies

FOLDER has `heart/processed.{cleveland,hungarian,switzerland,va}.data` (UCI Heart Disease; Janosi, Steinbrunn,
Pfisterer and Detrano; CC BY 4.0) and `adult/adult.train.gz`, `adult/adult.test.gz` (UCI Adult; Becker and
Kohavi; CC BY 4.0; with a line of names). Nothing is fetched. Each row stands beside the published figure,
whoever is better.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bidro import (
    AFL,
    BidroError,
    Box,
    CappedSimplex,
    FedAvg,
    Federation,
    Logistic,
    Problem,
    RobustClassifier,
    Transport,
    run,
    solve,
)
from bidro.ambiguity import NonconcaveInnerWarning
from bidro.core.arrays import Floats
from bidro.core.files import write_json, write_text
from bidro.experiments.reproduce import ALGORITHMS, PAPER_MSE, PENALTIES, train
from bidro.experiments.simulation import SIZES, clean_mse, clean_test, paper_problem, simulate
from bidro.federated.algorithm import Algorithm
from bidro.federated.algorithms import Adaptive, ServerOptimised
from bidro.federated.baselines import QFFL, Scaffold
from bidro.federated.engines.in_process import Result, run_many

CENTRES = ("cleveland", "hungarian", "switzerland", "va")
SEEDS = (0, 1, 2, 3, 4)

FLAMBY = "FLamby (Ogier du Terrail et al., 2022)"
Q_FFL = "q-FFL (Li et al., 2020)"
AFL_PAPER = "AFL (Mohri et al., 2019)"


@dataclass(frozen=True)
class Row:
    """One line of a table: figures of several runs (runs, columns), beside the published ones if any."""

    method: str
    found: Floats
    published: tuple[float, ...] | None = None
    source: str = ""

    def cells(self, digits: int) -> str:
        mean, spread = (
            self.found.mean(axis=0),
            self.found.std(axis=0, ddof=1) if len(self.found) > 1 else None,
        )
        parts = []
        for k, value in enumerate(mean):
            off = "" if spread is None else f" ± {spread[k]:.{digits}f}"
            parts.append(f"{value:.{digits}f}{off}")
        theirs = ["" for _ in mean] if self.published is None else [f"{v:.{digits}f}" for v in self.published]
        return f"| {self.method} | {' | '.join(parts)} | {' | '.join(theirs)} | {self.source} |"


# The paper's simulation, by bidro and by a program in NumPy that shares nothing with it but the data.


def independent(samples: Floats, penalties: Floats, rounds: int, seed: int) -> tuple[Floats, Floats]:
    """(x (runs, 3), alpha (runs, 5)) of Algorithm 1 as the paper states it, of tables (runs, 600, 4) at once:
    30 ascent steps of 0.003 from a drawn row, a random step of 0.01, steps of 0.01 for model and weights."""
    rng, ends = np.random.default_rng(seed), np.cumsum(SIZES)
    count, n = len(samples), len(SIZES)
    x, alpha = np.zeros((count, 3)), np.tile(np.array(SIZES) / sum(SIZES), (count, 1))
    rows, first = np.arange(count)[:, None], ends - SIZES
    for _ in range(rounds):
        drawn = samples[rows, first + (rng.random((count, n)) * SIZES).astype(int)]
        z, model = drawn.copy(), np.concatenate([-x, np.ones((count, 1))], axis=1)[:, None]
        for _ in range(30):
            residual = (z * model).sum(axis=2, keepdims=True)
            z = np.clip(z + 0.006 * (residual * model - penalties[:, None] * (z - drawn)), -500, 500)
        noise = rng.standard_normal(z.shape)
        z = np.clip(z + 0.01 * noise / np.linalg.norm(noise, axis=2, keepdims=True), -500, 500)
        residual = (z * model).sum(axis=2)
        gains = residual**2 - penalties * ((z - drawn) ** 2).sum(axis=2)
        x = np.clip(x + 0.02 * np.einsum("ri,ri,rij->rj", alpha, residual, z[..., :3]), -100, 100)
        alpha = _on_simplex(alpha + 0.01 * gains)
    return x, alpha


def _on_simplex(v: Floats) -> Floats:
    """Rows (runs, n) projected on the simplex."""
    falling = -np.sort(-v, axis=1)
    levels = (np.cumsum(falling, axis=1) - 1) / np.arange(1, v.shape[1] + 1)
    last = np.sum(falling > levels, axis=1) - 1
    return np.maximum(v - levels[np.arange(len(v)), last][:, None], 0.0)


def simulation(rounds: int, runs: int, samplings: int) -> list[Row]:
    """The final clean-test error, the mean of `runs` data seeds, for each of several sampling seeds, of which
    the first is that of `bidro reproduce`; methods that draw nothing have one."""
    data = [simulate(2026 + k) for k in range(runs)]
    tables, sampled = np.stack([one.samples for one in data]), ("BiDRO-FL", "DRO-FL")
    models = {
        name: [(_ended(results, "x"), _ended(results, "alpha"))]
        for name, results in train(data, rounds).items()
    }
    for k in range(1, samplings):
        seeds = [one.seed + 1000 * k for one in data]
        for name in sampled:
            problem = paper_problem(data[0], PENALTIES[name])
            again = run_many(ALGORITHMS[name], problem, tables, rounds, seeds, record_every=rounds)
            models[name].append((_ended(again, "x"), _ended(again, "alpha")))
    for name in sampled:
        penalties = np.broadcast_to(PENALTIES[name], 5)
        models[f"{name}, by an independent program in NumPy"] = [
            independent(tables, penalties, rounds, seed) for seed in range(samplings)
        ]
    found = []
    for name, ended in models.items():
        first, _, other = name.partition(", ")
        weighing = models["BiDRO-FL" + (f", {other}" if other else "")]
        errors = []
        for (x, _), (_, alpha) in zip(ended, weighing, strict=False):
            tests = [clean_test(d, own) for d, own in zip(data, alpha, strict=True)]
            errors.append([float(np.mean([clean_mse(t, v) for t, v in zip(tests, x, strict=True)]))])
        found.append(Row(name, np.array(errors), _of_paper(first), "the paper, Fig. 2b"))
    return found


def _ended(results: list[Result], what: str) -> Floats:
    return np.array([getattr(result, what) for result in results])


def _of_paper(name: str) -> tuple[float, ...] | None:
    figure = PAPER_MSE[name]
    return None if figure is None else (figure,)


# FLamby's Fed-Heart-Disease.


@dataclass(frozen=True)
class Split:
    """Rows of training and of test, each with its features, label in {0, 1} and place of its centre."""

    features: Floats
    label: NDArray[np.int64]
    client: NDArray[np.int64]
    test: NDArray[np.bool_]

    def scored(self, predicted: Any) -> Floats:
        """(3,) accuracy on test rows: mean of the clients, worst client, all rows together."""
        right = np.asarray(predicted).astype(int) == self.label[self.test]
        owner = self.client[self.test]
        each = [float(right[owner == k].mean()) for k in np.unique(owner)]
        return np.array([np.mean(each), min(each), right.mean()])


def heart(folder: Path) -> Split:
    """As FLamby makes them: columns 10 to 12 and rows with gaps dropped, chest pain and electrocardiogram as
    indicators, 66% of each centre for training by `train_test_split` with random state 43."""
    import pandas as pd
    from sklearn.model_selection import train_test_split

    parts, tests, owner = [], [], []
    for k, name in enumerate(CENTRES):
        table = pd.read_csv(_file(folder / "heart" / f"processed.{name}.data"), header=None, na_values="?")
        table = table.drop(columns=[10, 11, 12]).dropna()
        label = (table[13] > 0).astype(int)
        counts = np.bincount(label, minlength=2)
        train, _ = train_test_split(
            np.arange(len(table)),
            test_size=1.0 - 0.66,
            train_size=0.66,
            random_state=43,
            shuffle=True,
            stratify=label if counts.min() > 2 else None,
        )
        test = np.ones(len(table), bool)
        test[train] = False
        parts.append(table.assign(label=label))
        tests.append(test)
        owner.append(np.full(len(table), k))
    whole = pd.concat(parts, ignore_index=True)
    features = pd.get_dummies(whole.drop(columns=[13, "label"]), columns=[2, 6], drop_first=True)
    return Split(
        features.to_numpy(float), whole["label"].to_numpy(), np.concatenate(owner), np.concatenate(tests)
    )


def _file(path: Path) -> Path:
    if not path.exists():
        raise BidroError(f"There is no file {path}; --data names the folder that the module describes.")
    return path


def _problem(split: Split, features: Floats, half_width: float = 1e3, pooled: bool = False) -> Problem:
    own = ~split.test
    rows = np.column_stack([features, 2 * split.label - 1.0])
    names = np.unique(split.client)
    federation = Federation.from_arrays({str(k): rows[own & (split.client == k)] for k in names}, "unbounded")
    m, shares = rows.shape[1], np.asarray(federation.proportions)
    mixtures = CappedSimplex(shares, shares) if pooled else None
    return Problem(
        federation, Logistic(True), Box.cube(half_width, m), Transport.classification(m), None, mixtures
    )


def _scores(features: Floats, x: Floats) -> Floats:
    return np.asarray(features @ x[:-1] + x[-1])


def heart_rows(split: Split) -> list[Row]:
    """Accuracy: mean of the centres, worst centre, all test rows."""
    found = []
    names = np.array(CENTRES)[split.client]
    own, test = ~split.test, split.test
    for word, personal in (("shared model", None), ("personal models", "auto")):
        model = RobustClassifier(personal=personal)
        model.fit(split.features[own], split.label[own], clients=names[own])
        predicted = model.predict(split.features[test], clients=names[test] if personal else None)
        found.append(Row(f"bidro's defaults, {word}", split.scored(predicted)[None]))

    # What of that is common units and offsets of the centres, without any robustness.
    middle, spread = split.features[own].mean(axis=0), split.features[own].std(axis=0)
    scaled = (split.features - middle) / spread
    offsets = np.eye(4)[split.client][:, 1:]
    for word, columns in (
        ("pooled training, common units", scaled),
        ("the same, and an offset of each centre", np.column_stack([scaled, offsets])),
    ):
        x = solve(_problem(split, columns, 30.0, pooled=True), gap=1e-6).x
        predicted = _scores(columns[test], x) > 0
        published = (0.735, 0.644, 0.795) if columns is scaled else None
        found.append(Row(word, split.scored(predicted)[None], published, FLAMBY if published else ""))

    # FLamby's own: rounds of 100 steps on batches of 4 rows, from its layer's random models.
    step, best = {"local_steps": 100, "batch": 4}, (0.731, 0.676, 0.779)
    methods: dict[str, tuple[Algorithm, tuple[float, ...] | None]] = {
        "FedAvg": (FedAvg(1e-3, **step), (0.685, 0.640, 0.748)),
        "FedProx": (FedAvg(1e-3, **step, prox_weight=0.01), None),
        "SCAFFOLD": (Scaffold(1e-3, **step), None),
        "FedAdam": (ServerOptimised(FedAvg(1e-2, **step), Adaptive("adam", 0.01, 0.9, 0.999, 1e-8)), None),
        "FedYogi": (
            ServerOptimised(FedAvg(10**-2.5, **step), Adaptive("yogi", 0.01, 0.9, 0.999, 1e-8)),
            best,
        ),
        "FedAdagrad": (
            ServerOptimised(FedAvg(10**-2.5, **step), Adaptive("adagrad", 10**-0.5, 0.9, 0.999, 1e-8)),
            best,
        ),
    }
    # Each centre's own units, by its training rows; a column of one value there is left at 0.
    columns = np.zeros(split.features.shape)
    for k in range(len(CENTRES)):
        here, known = split.client == k, own & (split.client == k)
        spread = split.features[known].std(axis=0, ddof=1)
        middle = split.features[known].mean(axis=0)
        columns[here] = (split.features[here] - middle) / np.where(spread > 0, spread, np.inf)
    problem = _problem(split, columns)
    for name, (method, theirs) in methods.items():
        scores = []
        for seed in SEEDS:
            size = 1 / np.sqrt(split.features.shape[1])
            start = np.random.default_rng(seed).uniform(-size, size, problem.dimension)
            ended = run(method, problem, 15, seed=seed, x=start)
            scores.append(split.scored(_scores(columns[test], ended.x) > 0))
        found.append(Row(f"{name}, FLamby's settings", np.array(scores), theirs, FLAMBY if theirs else ""))
    return found


# Adult: whoever has a doctorate is one client, all others are the other.


def adult(folder: Path) -> Split:
    """The categorical columns as indicators, as AFL and q-FFL have them; client 0 is that of doctorates."""
    import pandas as pd

    tables = [
        pd.read_csv(_file(folder / "adult" / f"adult.{part}.gz"), skipinitialspace=True, dtype=str)
        for part in ("train", "test")
    ]
    whole = pd.concat(tables, ignore_index=True)
    numbers = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
    kept = whole.drop(columns=[*numbers, "classification"]).replace("?", np.nan)
    return Split(
        pd.get_dummies(kept).to_numpy(float),
        whole["classification"].str.startswith(">50K").to_numpy(int),
        (whole["education"] != "Doctorate").to_numpy(int),
        np.arange(len(whole)) >= len(tables[0]),
    )


def adult_rows(split: Split, rounds: int) -> list[Row]:
    """Accuracy: all test rows, doctorates, others, in percent."""
    test = split.test

    def scored(x: Floats) -> Floats:
        right = (_scores(split.features[test], x) > 0) == split.label[test]
        owner = split.client[test]
        return 100 * np.array([right.mean(), right[owner == 0].mean(), right[owner == 1].mean()])

    fixed, free = _problem(split, split.features, 20.0, pooled=True), _problem(split, split.features, 20.0)
    minimax = solve(free, gap=1e-5)
    even = np.full(2, 0.5)
    rows = [
        Row(
            "pooled training, to its optimum",
            scored(solve(fixed, gap=1e-5).x)[None],
            (83.2, 69.9, 83.3),
            Q_FFL,
        ),
        Row("q-FFL, q = 5", scored(run(QFFL(5.0, 0.5), free, rounds).x)[None], (82.6, 74.1, 82.7), Q_FFL),
        Row("AFL, to its optimum (certified)", scored(minimax.x)[None], (82.5, 73.0, 82.6), Q_FFL),
        Row("AFL, to its optimum (certified)", scored(minimax.x)[None], (80.10, 71.53, 80.20), AFL_PAPER),
    ]
    stopped = [run(AFL(0.1, 0.1, batch=64), free, rounds // 4, seed=seed, alpha=even) for seed in SEEDS]
    rows.append(
        Row(
            f"AFL by stochastic steps, stopped after {rounds // 4:,}",
            np.stack([scored(one.x) for one in stopped]),
            (80.10, 71.53, 80.20),
            AFL_PAPER,
        )
    )
    return rows


HEADS = {
    "simulation": ("mean squared error",),
    "heart": ("mean of centres", "worst centre", "all test rows"),
    "adult": ("all", "doctorate", "no doctorate"),
}
DIGITS = {"simulation": 5, "heart": 3, "adult": 1}
TEXT = {
    "simulation": """
## The paper's simulation

Clean-test error of the final model after {rounds:,} rounds, {runs} data sets. The other program is
Algorithm 1 in plain NumPy, which shares only the data with `bidro`; ± is the standard deviation between
sampling seeds, on the same data. How much sets of data seeds differ is a [study of its own](simulation.md).
""",
    "heart": """
## FLamby: Fed-Heart-Disease

Accuracy on FLamby's own split (training and test: 199/104, 172/89, 30/16, 85/45). ± is the standard
deviation of {seeds} seeds. FLamby's settings are features in each centre's own units, 15 rounds of 100
steps on batches of 4 rows, the step sizes of its results, and its layer's random first models; its batches
go through the rows in turn, ours are drawn anew. The figures beside FedYogi and FedAdagrad are those of its
best federated method. What is above its pooled training comes of fitting to the optimum in common units,
and of an offset of each centre: the two rows of pooled training have these and no robustness. In the third
centre one test row is 0.06.
""",
    "adult": """
## Adult, doctorate or not

Accuracy in percent; logistic loss of the categorical columns, on the files' own split. {doctorates} test
rows are of doctorates: one of them is {one:.1f} points, and the sampling error of that column {error:.1f}.
Optima are certified to 1e-5 and have no seeds. The published figures are of stochastic steps that were
stopped, and those of AFL differ between its two sources by more than their errors. At the certified optimum
of AFL's objective, the larger of two mean losses, accuracy is as the table says, and stopped early it is
another: the published ones say where steps were stopped as much as what AFL is.
""",
}


def page(tables: dict[str, list[Row]], setting: Mapping[str, int]) -> str:
    """The tables as Markdown."""
    share = 100 / setting["doctorates"]
    words = {**setting, "seeds": len(SEEDS), "one": share, "error": 10 * np.sqrt(0.21 * share)}
    lines = [
        "# Published tables, computed again",
        "",
        "Made by `python -m studies.published --data FOLDER`; do not edit. Where files come from stands in",
        'the module. Figures under "published" are those of the source.',
    ]
    for name, rows in tables.items():
        heads = (*HEADS[name], *(f"published: {head}" for head in HEADS[name]))
        lines += [TEXT[name].format(**words), f"| method | {' | '.join(heads)} | source |"]
        lines += [f"| --- | {'---: | ' * len(heads)}--- |", *(row.cells(DIGITS[name]) for row in rows)]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description="Tables of the field, computed again.")
    parser.add_argument("--data", type=Path, required=True, help="the folder with heart/ and adult/")
    parser.add_argument("--out", type=Path, default=Path("docs/studies"))
    parser.add_argument("--rounds", type=int, default=10_000, help="of the simulation and of Adult")
    parser.add_argument("--runs", type=int, default=20, help="data sets of the simulation")
    parser.add_argument("--samplings", type=int, default=5, help="sampling seeds of the simulation")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore", NonconcaveInnerWarning)
    started = time.process_time()
    # What is missing is missed before work begins.
    hearts, adults = heart(chosen.data), adult(chosen.data)
    setting = {
        "rounds": chosen.rounds,
        "runs": chosen.runs,
        "doctorates": int(np.sum(adults.test & (adults.client == 0))),
    }
    tables = {
        "simulation": simulation(chosen.rounds, chosen.runs, chosen.samplings),
        "heart": heart_rows(hearts),
        "adult": adult_rows(adults, chosen.rounds),
    }
    text = page(tables, setting)
    content = {
        name: [
            {"method": r.method, "found": r.found.tolist(), "published": r.published, "source": r.source}
            for r in rows
        ]
        for name, rows in tables.items()
    }
    write_json(chosen.out / "published.json", content)
    write_text(chosen.out / "published.md", text)
    print(f"{text}\nWritten to {chosen.out} in {time.process_time() - started:.0f} processor seconds.")


if __name__ == "__main__":
    main()
