"""Intervals and promises for rows, simulated: how often they hold what they promise.

python -m studies.row_coverage --out docs/studies [--repetitions 1000]

Clients' errors are drawn from one of eight laws, scaled by client; sizes are from 5 to 5,000 rows. For every
quantile that was found the true share of rows inside is known from the law, so that no test rows are drawn.
`on average`: the mean over repetitions of that share, against the promised one. `with confidence`: how often
it is at least the promised one. Mixtures are the corners, which are the clients, and 20 inside. The same
draws are given sorted, which must change nothing. Persons have several rows, with most of their error in
common; new clients have a scale of their own; shifted rows are moved by an adversary who spends W_1 on as
many as it allows. Personal models are fitted by the estimators, their truth evaluated over fresh rows; counts
are of two features of 0 and 1, so that many rows tie. Sites tell a bound rounded up among people, private
ones sums with noise (epsilon = 3) of squared errors, clipped at a level from as many other rows.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bidro import RobustClassifier, RobustRegressor
from bidro.certify.intervals import Calibration, RowQuantiles, room_for_shift, row_quantiles
from bidro.certify.rounding import among_people
from bidro.certify.row_promise import noisy_row_bound, row_promise
from bidro.certify.statements import clip_level
from bidro.core.arrays import Floats
from bidro.core.files import write_json, write_text
from bidro.core.pytrees import compilation_cache
from bidro.privacy.accounting import rho_of
from bidro.privacy.discrete_gaussian import seeded_bits
from bidro.privacy.mechanisms import bernstein
from bidro.privacy.terms import Terms
from studies import on_commit

FIRST_SEED = 80_000
CONFIDENCE = 0.9
SHARES = (0.8, 0.9)
SIZES = (5, 8, 12, 40, 200, 1000, 5000)
SCALES = np.array([1.0, 2.0, 0.5, 1.5, 0.7, 1.2, 1.0])
_FRESH = 20_000
PERSONAL = ("a number", "classes", "counts")


class _Law:
    """Of absolute errors: draws of any shape, and the share of them at or below a value."""

    def __init__(
        self, draw: Callable[[np.random.Generator, Any], Floats], share: Callable[[Any], Any]
    ) -> None:
        self.draw, self.share = draw, share


def _of(distribution: Any) -> _Law:
    return _Law(
        lambda rng, shape: np.abs(distribution.rvs(size=shape, random_state=rng)),
        lambda q: distribution.cdf(q) - distribution.cdf(-np.asarray(q, float)),
    )


def _grid(rng: np.random.Generator, shape: Any) -> Floats:
    return np.asarray(rng.integers(0, 10, shape), float)


def _two_kinds(rng: np.random.Generator, shape: Any) -> Floats:
    return np.asarray(np.abs(rng.normal(size=shape)) * np.where(rng.uniform(size=shape) < 0.08, 50.0, 1.0))


LAWS: dict[str, _Law] = {
    "normal": _of(stats.norm()),
    "t3": _of(stats.t(3)),
    "Cauchy": _of(stats.cauchy()),
    "lognormal": _of(stats.lognorm(1.5)),
    "exponential": _of(stats.expon()),
    "uniform": _of(stats.uniform()),
    "ten values": _Law(_grid, lambda q: np.clip(np.floor(np.asarray(q) + 1e-12) + 1, 0, 10) / 10),
    "8% fifty times as far": _Law(
        _two_kinds,
        lambda q: 0.92 * (2 * stats.norm.cdf(q) - 1) + 0.08 * (2 * stats.norm.cdf(np.asarray(q) / 50) - 1),
    ),
}


def _line(what: str, law: str, held: Floats, promised: float) -> dict[str, Any]:
    """Of indicators or shares (repetitions, cases): the lowest mean of a case, its error, and whether it is
    below what is promised by more than three of them."""
    held = np.asarray(held, float).reshape(len(held), -1)
    mean = held.mean(axis=0)
    worst = int(np.argmin(mean))
    # A rate that no repetition breaks has the error of one that breaks once.
    floor = np.sqrt(promised * (1 - promised) / len(held)) if set(np.unique(held)) <= {0.0, 1.0} else 0.0
    error = max(float(held[:, worst].std(ddof=1) / np.sqrt(len(held))), float(floor))
    return {
        "what": what,
        "law": law,
        "promised": promised,
        "observed": float(mean[worst]),
        "error": error,
        "cases": held.shape[1],
        "repetitions": len(held),
        "holds": bool(mean[worst] >= promised - 3 * error),
    }


def _same(one: RowQuantiles, other: RowQuantiles) -> bool:
    return dict(one.clients) == dict(other.clients) and one.any_mixture == other.any_mixture


def rows_study(name: str, repetitions: int) -> list[dict[str, Any]]:
    """Known clients, the group of small ones, any mixture, and what is promised of rows with a confidence."""
    law, names = LAWS[name], [f"c{k}" for k in range(len(SIZES))]
    mixtures = np.random.default_rng(FIRST_SEED).dirichlet(np.ones(len(SIZES)), 20)
    mixtures = np.vstack([np.eye(len(SIZES)), mixtures])
    found: dict[tuple[str, float], list[Floats]] = {}

    def add(what: str, promised: float, held: Any) -> None:
        found.setdefault((what, promised), []).append(np.atleast_1d(np.asarray(held, float)))

    for k in range(repetitions):
        rng = np.random.default_rng([FIRST_SEED, list(LAWS).index(name), k])
        scores = {n: s * law.draw(rng, size) for n, s, size in zip(names, SCALES, SIZES, strict=True)}
        ordered = {n: np.sort(own) for n, own in scores.items()}
        for share in SHARES:
            q = row_quantiles(scores, share)
            assert _same(q, row_quantiles(ordered, share))
            inside = np.array([law.share(q.clients[n] / s) for n, s in zip(names, SCALES, strict=True)])
            alone = np.array([n not in q.sharing for n in names])
            add("known client, on average", share, inside[alone])
            if q.sharing:
                shared = q.clients[q.sharing[0]]
                add("small clients together, on average", share, _of_group(law, shared, q.group, names))
            common = np.array([law.share(q.any_mixture / s) for s in SCALES])
            add("any mixture, on average", share, (mixtures @ common)[_covered(mixtures, alone)])
        promise = row_promise(scores, CONFIDENCE)
        assert promise.bound is not None
        assert promise.clients == row_promise(ordered, CONFIDENCE).clients
        inside = np.array([law.share(promise.bound / s) for s in SCALES])
        alone = np.isin(names, [*promise.clients])
        rates = (mixtures @ inside)[_covered(mixtures, alone)]
        # As far as arithmetic tells apart.
        add("9 of 10 rows, any mixture, with confidence", CONFIDENCE, rates.min() >= 0.9 - 1e-12)
        assert promise.together is not None
        rate = _of_group(law, promise.together, promise.group, names)
        add("9 of 10 rows, small clients together, with confidence", CONFIDENCE, rate >= 0.9 - 1e-12)
        chances = np.clip(0.15 * SCALES, 0, 1)
        wrong = {
            n: (rng.uniform(size=size) < p).astype(float)
            for n, p, size in zip(names, chances, SIZES, strict=True)
        }
        mistakes = row_promise(wrong, CONFIDENCE, None)
        assert mistakes.bound is not None
        assert mistakes.together is not None
        add("mistakes, any mixture, with confidence", CONFIDENCE, mistakes.bound >= chances[alone].max())
        of_group = [chances[names.index(n)] for n in mistakes.group]
        true = np.average(of_group, weights=[SIZES[names.index(n)] for n in mistakes.group])
        add("mistakes, small clients together, with confidence", CONFIDENCE, mistakes.together >= true)
    return [_line(what, name, np.stack(held), promised) for (what, promised), held in found.items()]


def _of_group(law: _Law, bound: float, group: Sequence[str], names: Sequence[str]) -> float:
    """The share of a group's rows at or below a bound, the clients in the proportions of their rows."""
    some = [names.index(name) for name in group]
    return float(np.average([law.share(bound / SCALES[k]) for k in some], weights=[SIZES[k] for k in some]))


def _covered(mixtures: Floats, alone: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mixtures that have nothing of clients in a group: those with some are promised its own proportions."""
    of_group = mixtures[:, ~alone].sum(axis=1)
    inside = of_group == 0
    return np.asarray(inside if inside.any() else np.ones(len(mixtures), bool))


def people_study(name: str, repetitions: int) -> list[dict[str, Any]]:
    """60 and 200 persons of 1 to 6 rows: an error is the person's times the row's own."""
    law, found = LAWS[name], []
    fresh = np.random.default_rng([FIRST_SEED, 1])
    rows = law.draw(fresh, (_FRESH,)) * fresh.uniform(0.8, 1.2, _FRESH)
    averages, promises = [], []
    for k in range(repetitions):
        rng = np.random.default_rng([FIRST_SEED, 2, list(LAWS).index(name), k])
        errors, labels = {}, {}
        for client, people in (("a", 60), ("b", 200)):
            sizes = rng.integers(1, 7, people)
            labels[client] = np.repeat(np.arange(people), sizes)
            own = law.draw(rng, people)[labels[client]]
            errors[client] = own * rng.uniform(0.8, 1.2, len(own))
        q = row_quantiles(errors, 0.9, people=labels)
        averages.append([float(np.mean(rows <= q.clients[client])) for client in ("a", "b")])
        promise = row_promise(errors, CONFIDENCE, people=labels)
        assert promise.bound is not None
        promises.append(float(np.mean(rows <= promise.bound)) >= 0.9)
    found.append(_line("people, on average", name, np.array(averages), 0.9))
    found.append(_line("people, 9 of 10 rows, with confidence", name, np.array(promises), CONFIDENCE))
    return found


def people_together_study(name: str, repetitions: int) -> list[dict[str, Any]]:
    """15 clients of 8 persons, of two rows each, of which the second lies eight times as far."""
    law, inside = LAWS[name], []
    clients = [f"c{k}" for k in range(15)]
    labels = dict.fromkeys(clients, np.repeat(np.arange(8), 2))
    for k in range(repetitions):
        rng = np.random.default_rng([FIRST_SEED, 6, list(LAWS).index(name), k])
        errors = law.draw(rng, (15, 16)) * np.tile([1.0, 8.0], 8)
        q = row_quantiles(dict(zip(clients, errors, strict=True)), 0.9, people=labels).clients["c0"]
        inside.append((float(law.share(q)) + float(law.share(q / 8))) / 2)
    return [_line("small clients of people together, on average", name, np.array(inside), 0.9)]


def sites_study(name: str, repetitions: int) -> list[dict[str, Any]]:
    """100 and 400 held-out rows of a site."""
    law, rounded, private = LAWS[name], [], []
    charge = rho_of(3.0, 1e-6)
    for k in range(repetitions):
        rng = np.random.default_rng([FIRST_SEED, 7, list(LAWS).index(name), k])
        own = Calibration.of(law.draw(rng, 100))
        told = among_people(own.bound(0.1, CONFIDENCE), own.scores, own.draws, 5)
        rounded.append(float(law.share(told)) >= 0.9 - 1e-12)
        squares, level = law.draw(rng, 400) ** 2, clip_level(float(np.mean(law.draw(rng, 400) ** 2)), 1.0)
        parts = np.minimum(squares / level, 1.0)
        sums = bernstein(parts, Terms().degree, charge, bits=seeded_bits(k))
        bound = noisy_row_bound(sums, 1 - CONFIDENCE, 400.0, level, 3)
        if np.isfinite(bound):
            private.append(float(law.share(bound)) >= 0.9)
    found = [_line("a site's bound, rounded up, with confidence", name, np.array(rounded), CONFIDENCE)]
    if len(private) > 1:
        held = np.array(private)
        found.append(
            _line("a private site's bound, where there is one, with confidence", name, held, CONFIDENCE)
        )
    return found


def new_clients_study(name: str, repetitions: int) -> list[dict[str, Any]]:
    """15 clients left out, of 3 to 40 rows, with scales of their own; and one more."""
    law, inside, shifted = LAWS[name], [], []
    scales = np.exp(0.5 * np.random.default_rng([FIRST_SEED, 3]).normal(size=2_000))
    for k in range(repetitions):
        rng = np.random.default_rng([FIRST_SEED, 4, list(LAWS).index(name), k])
        sizes, own = rng.integers(3, 41, 15), np.exp(0.5 * rng.normal(size=15))
        errors = {f"n{i}": s * law.draw(rng, n) for i, (s, n) in enumerate(zip(own, sizes, strict=True))}
        q = row_quantiles(errors, 0.9, new=errors).new_client
        assert q is not None
        inside.append(float(np.mean(law.share(q / scales))))
        level, more = room_for_shift(0.1, 1.0, 1.0, 0.9)
        bound = row_quantiles({"a": law.draw(rng, 150)}, level).clients["a"] + more
        # Rows moved by u towards larger errors, as many as W_1 of 0.1 allows.
        worst = [(1 - p) * law.share(bound) + p * law.share(np.maximum(bound - u, 0.0) - 1e-9 * (bound < u))
                 for u in (0.1, 0.5, 1.0, 1.9, 2.1, 4.0, 10.0) for p in [min(1.0, 0.1 / u)]]  # fmt: skip
        shifted.append(float(np.min(worst)))
    return [
        _line("new client, on average", name, np.array(inside), 0.9),
        _line("shift of 0.1, on average", name, np.array(shifted), 0.9),
    ]


def personal_study(what: str, repetitions: int) -> list[dict[str, Any]]:
    """Fits of estimators with personal models, intervals from other rows, truth from fresh ones."""
    sizes, inside, promised = {"a": 12, "b": 30, "c": 80, "d": 300}, [], []
    classes, counts = what == "classes", what == "counts"
    kind: Any = RobustClassifier if classes else RobustRegressor

    def drawn(rng: np.random.Generator, sizes: dict[str, int], levels: dict[str, float]) -> Any:
        site = np.repeat([*sizes], [*sizes.values()])
        if counts:
            X = rng.integers(0, 2, (len(site), 2)).astype(float)
            return X, rng.poisson(np.exp(X[:, 0] + 0.3 * np.array([levels[n] for n in site]))), site
        X = rng.normal(size=(len(site), 2))
        score = X[:, 0] + np.array([levels[name] for name in site])
        spread = 0.3 + np.abs(X[:, 1])
        if classes:
            return X, np.where(rng.logistic(size=len(site)) < score, "yes", "no"), site
        return X, score + spread * rng.normal(size=len(site)), site

    for k in range(repetitions):
        rng = np.random.default_rng([FIRST_SEED, 5, PERSONAL.index(what), k])
        levels = {name: float(rng.normal()) for name in sizes}
        X, y, site = drawn(rng, {name: 3 * n for name, n in sizes.items()}, levels)
        model = kind(curves=None, random_state=k).fit(X, y, clients=site)
        held = drawn(rng, sizes, levels)
        model.conformalize(held[0], held[1], clients=held[2])
        X, y, site = drawn(rng, dict.fromkeys(sizes, _FRESH // 10), levels)
        if classes:
            sets = model.predict_set(X, clients=site, confidence=0.9)
            right = sets[np.arange(len(y)), np.searchsorted(model.classes_, y)]
            wrong = model.predict(X, clients=site) != y
        else:
            low, high = model.predict_interval(X, clients=site, confidence=0.9)
            right, error = (low <= y) & (y <= high), np.abs(y - model.predict(X, clients=site))
        inside.append([float(right[site == name].mean()) for name in sizes])
        promise = model.certify(held[0], held[1], clients=held[2], confidence=CONFIDENCE).of_rows
        bad = wrong if classes else error > promise.bound
        most = promise.bound if classes else 0.1
        # Fresh rows have errors of their own: two standard errors of a share are allowed.
        room = 2 * np.sqrt(0.1 * 0.9 / (_FRESH // 10))
        promised.append(max(float(bad[site == name].mean()) for name in promise.clients) <= most + room)
    return [
        _line(f"personal models of {what}, known client, on average", "fitted", np.array(inside), 0.9),
        _line(
            f"personal models of {what}, promise with confidence", "fitted", np.array(promised), CONFIDENCE
        ),
    ]


def page(lines: list[dict[str, Any]], at: str = "") -> str:
    broken = [one for one in lines if not one["holds"]]
    named = ", ".join(f"{one['what']} / {one['law']}" for one in broken)
    text = [
        "# Intervals for rows: promised and observed",
        "",
        f"Written by `python -m studies.row_coverage`{at}; do not edit. The numbers are in",
        "`row_coverage.json`.",
        "",
        f"Clients of {', '.join(f'{n:,}' for n in SIZES)} held-out rows, errors of eight laws, as drawn",
        "and sorted (the bounds must be equal, and are). `on average` is the mean true share of rows inside,",
        "over repetitions; `with confidence` how often the promise is true. The lowest case is shown, of so",
        "many clients or mixtures.",
        "",
        f"{len(lines) - len(broken)} of {len(lines)} rates are at least what is promised, less three",
        f"standard errors.{f' Not: {named}.' if broken else ''}",
        "",
        "| what | law | promised | observed, lowest case | cases | repetitions | holds |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    text += [
        f"| {one['what']} | {one['law']} | {one['promised']:.2f} | "
        f"{one['observed']:.3f} ± {one['error']:.3f} | {one['cases']} | "
        f"{one['repetitions']} | {'yes' if one['holds'] else 'NO'} |"
        for one in lines
    ]
    return "\n".join([*text, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/studies"))
    parser.add_argument("--repetitions", type=int, default=1000, help="a tenth of it for fits")
    options = parser.parse_args()
    compilation_cache()
    begun, lines = time.process_time(), list[dict[str, Any]]()
    few = max(options.repetitions // 10, 2)
    for name in LAWS:
        found = rows_study(name, options.repetitions)
        found += people_study(name, max(options.repetitions // 5, 2))
        found += people_together_study(name, max(options.repetitions // 2, 2))
        found += sites_study(name, max(options.repetitions // 5, 2))
        lines += found + new_clients_study(name, options.repetitions)
        print(name, [one for one in lines if one["law"] == name and not one["holds"]], flush=True)
    for what in PERSONAL:
        lines += personal_study(what, few)
    write_json(options.out / "row_coverage.json", lines)
    text = page(lines, on_commit())
    write_text(options.out / "row_coverage.md", text)
    print(f"\n{text}\nWritten to {options.out} in {time.process_time() - begun:.0f} s of the processor.")


if __name__ == "__main__":
    main()
