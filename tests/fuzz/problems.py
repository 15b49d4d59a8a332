"""Random problems. A case is a number: the same number gives the same problem, on any machine.

Cases come in groups. All cases of a group share what a compiled program depends on (loss, order p, kind of
support, metric and ambiguity, method, sizes), for compiling takes longer than solving; data, scales, levels,
model set and weight set are each case's own.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from bidro import losses
from bidro.ambiguity import (
    ChiSquaredBall,
    CVaR,
    KLBall,
    NonconcaveInnerWarning,
    Penalty,
    TotalVariationBall,
    UncheckedDomainWarning,
    WassersteinBall,
)
from bidro.core import sets
from bidro.data.federation import Federation
from bidro.problem.problem import Problem
from bidro.risk.transport import Transport
from tests.fuzz.data import REGRESSION_STYLES, STYLES, sample

CASES_A_GROUP = 8
RESIDUAL = ("squared", "absolute", "huber", "pinball")
MARGIN = ("logistic", "hinge", "smoothed hinge")
SMOOTH = ("squared", "huber", "logistic", "smoothed hinge", "softmax")
LOSSES = (*RESIDUAL, *MARGIN, "softmax")
SIZES = ((7, 12, 20), (1, 9), (1, 1, 30), (5, 3, 1, 40), (60, 2), (15, 15))
# Few, so that few programs are compiled.
QUICK_SIZES = ((7, 12, 20), (1, 9))
HALF_WIDTHS = (10.0, 1e3, 1e6)
AMBIGUITIES = {
    "ball": WassersteinBall,
    "penalty": Penalty,
    "KL": KLBall,
    "chi-squared": ChiSquaredBall,
    "TV": TotalVariationBall,
    "CVaR": CVaR,
}
# Groups from here on may have sets of weights of rows: a group before still means the same family.
_ROW_WEIGHTS_FROM = 72


@dataclass(frozen=True)
class Family:
    """What compiled programs depend on."""

    loss: str
    parameter: float  # Huber's threshold, the quantile, the hinge's width, the number of classes
    intercept: bool
    p: int
    bounded: bool  # whether the support is a box
    metric: str  # "features only", "joint" (the target moves, or the label at a price)
    ambiguity: str  # one of `AMBIGUITIES`, or "none"
    method: str
    sizes: tuple[int, ...]
    features: int
    label_cost: float  # inf where labels keep their values
    norm: str = "euclidean"  # or "l1", "linf", "mahalanobis"

    @property
    def labels(self) -> tuple[float, ...] | None:
        if self.loss in RESIDUAL:
            return None
        return (-1.0, 1.0) if self.loss in MARGIN else tuple(map(float, range(int(self.parameter))))

    @property
    def dimension(self) -> int:
        per_class = self.features + int(self.intercept)
        return per_class * int(self.parameter) if self.loss == "softmax" else per_class


@dataclass(frozen=True, eq=False)
class Case:
    """One problem in plain numbers; `Case.problem` makes bidro's of it."""

    number: int
    family: Family
    style: str
    rows: tuple[np.ndarray, ...]  # (N_i, m) a client
    scale: np.ndarray  # (m,) of the transport cost; inf: immovable
    support: tuple[np.ndarray, np.ndarray] | None
    levels: np.ndarray  # (n,) radii or penalties
    weights: str
    weight_bounds: tuple[np.ndarray, ...]
    models: str
    half_width: float
    planted: np.ndarray  # (d,) the model that the data came from
    references: np.ndarray | None  # (n,) taken off the risks
    mixed: tuple[float, float] | None  # (kappa, mu) of `CappedSimplex.mixed`
    matrix: np.ndarray | None = None  # (m, m) of a Mahalanobis metric, in units of the scale

    @property
    def taken_off(self) -> np.ndarray:
        """(n,) zeros where there are no references."""
        return np.zeros(len(self.rows)) if self.references is None else self.references

    def loss(self) -> losses.Loss:
        f = self.family
        match f.loss:
            case "squared":
                return losses.Squared(f.intercept)
            case "absolute":
                return losses.Absolute(f.intercept)
            case "huber":
                return losses.Huber(f.intercept, f.parameter)
            case "pinball":
                return losses.Pinball(f.intercept, f.parameter)
            case "logistic":
                return losses.Logistic(f.intercept)
            case "hinge":
                return losses.Hinge(f.intercept)
            case "smoothed hinge":
                return losses.SmoothedHinge(f.intercept, f.parameter)
            case _:
                return losses.Softmax(int(f.parameter), f.intercept)

    def problem(self, rows: tuple[np.ndarray, ...] | None = None) -> Problem:
        f, n, d = self.family, len(self.rows), self.family.dimension
        support = "unbounded" if self.support is None else sets.Box(*self.support)
        federation = Federation.from_arrays(self.rows if rows is None else rows, support)
        norm = {"l1": 1.0, "linf": np.inf}.get(f.norm, 2.0)
        transport = Transport(self.scale, float(f.p), f.labels is not None, f.label_cost, norm, self.matrix)
        ambiguity = None
        if f.ambiguity != "none":
            ambiguity = AMBIGUITIES[f.ambiguity](self.levels)
        if self.weights == "simplex":
            mixtures = sets.Simplex(n)
        elif self.weights == "l1 ball":
            mixtures = sets.L1SimplexBall(*self.weight_bounds)
        elif self.weights == "chi-squared ball":
            mixtures = sets.ChiSquaredSimplexBall(*self.weight_bounds)
        elif self.weights == "KL ball":
            mixtures = sets.KLSimplexBall(*self.weight_bounds)
        elif self.weights == "first bounded":
            mixtures = sets.ConstrainedSimplex(self.weight_bounds[0][None], self.weight_bounds[1])
        elif self.mixed is not None:
            mixtures = sets.CappedSimplex.mixed(np.asarray(f.sizes), *self.mixed)
        else:
            mixtures = sets.CappedSimplex(*self.weight_bounds)
        if self.models == "ball":
            models = sets.Ball(np.zeros(d), self.half_width)
        else:
            models = sets.Box.cube(self.half_width, d)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NonconcaveInnerWarning)
            warnings.simplefilter("ignore", UncheckedDomainWarning)
            return Problem(federation, self.loss(), models, transport, ambiguity, mixtures, self.references)

    def described(self) -> dict[str, object]:
        f = self.family
        return {
            "loss": f.loss,
            "p": f.p,
            "support": "box" if f.bounded else "unbounded",
            "metric": f.metric,
            "norm": f.norm,
            "ambiguity": f.ambiguity,
            "radius 0": f.ambiguity == "ball" and bool(np.any(self.levels == 0)),
            "method": f.method,
            "weights": self.weights,
            "references": self.references is not None,
            "models": f"{self.models} {self.half_width:g}",
            "style": self.style,
            "sizes": str(f.sizes),
            "features": f.features,
            "intercept": f.intercept,
        }


def family_of(group: int, quick: bool = False) -> Family:
    """The family of a group; every loss, order and method comes in turn."""
    rng = np.random.default_rng([1, group])
    loss = LOSSES[group % len(LOSSES)]
    parameter = {
        "huber": rng.choice([0.5, 1.0, 3.0]),
        "pinball": rng.choice([0.1, 0.5, 0.9]),
        "smoothed hinge": rng.choice([0.3, 1.0]),
        "softmax": rng.choice([2.0, 3.0]),
    }.get(loss, 0.0)
    ambiguity = str(rng.choice(["ball", "penalty", "none"], p=[0.65, 0.25, 0.1]))
    p, bounded = int(rng.integers(1, 3)), bool(rng.random() < 0.35)
    method = str(rng.choice(["curvature", "gradients"], p=[0.75, 0.25]))
    if loss == "squared":
        if not bounded:
            p = 2
        if not bounded and ambiguity != "penalty" and rng.random() < 0.4:
            method = "one-shot"
    sizes = (QUICK_SIZES if quick else SIZES)[int(rng.integers(len(QUICK_SIZES if quick else SIZES)))]
    features = int(rng.integers(1, 3 if quick else 5))
    metric = str(rng.choice(["features only", "joint"]))
    flips = metric == "joint" and loss not in RESIDUAL
    label_cost = float(rng.choice([0.1, 0.5, 1.0, 3.0])) if flips else np.inf
    # Drawn apart, so that a group still means the same family.
    apart, norm = np.random.default_rng([6, group]), "euclidean"
    if ambiguity == "ball" and not bounded and loss != "softmax" and apart.random() < 0.5:
        norm = str(apart.choice(["l1", "linf", "mahalanobis"]))
    by_weights = np.random.default_rng([8, group])
    if group >= _ROW_WEIGHTS_FROM and by_weights.random() < 0.4:
        ambiguity, norm = str(by_weights.choice(["KL", "chi-squared", "TV", "CVaR"])), "euclidean"
        method = "curvature" if method == "one-shot" else method
    return Family(
        loss=loss,
        parameter=float(parameter),
        intercept=bool(rng.random() < 0.6),
        p=p,
        bounded=bounded,
        metric=metric,
        ambiguity=ambiguity,
        method=method,
        sizes=sizes,
        features=features,
        label_cost=label_cost,
        norm=norm,
    )


def case_of(number: int, quick: bool = False) -> Case:
    family = family_of(number // CASES_A_GROUP, quick)
    rng = np.random.default_rng([2, number])
    styles = STYLES if family.labels is not None else (*STYLES, *REGRESSION_STYLES)
    style = str(rng.choice(styles))
    rows, planted = sample(rng, style, family.sizes, family.features, family.labels, family.intercept)
    pooled = np.concatenate(rows)
    with np.errstate(over="ignore", under="ignore"):
        spread = np.std(pooled, axis=0)
    usual = np.where((spread > 1e-300) & np.isfinite(spread), spread, 1.0)
    m = pooled.shape[1]
    scale = np.ones(m) if rng.random() < 0.4 else 1 / usual
    if family.labels is not None:
        scale[-1] = 1.0
    elif family.metric == "features only":
        scale[-1] = np.inf
    support = None
    if family.bounded:
        room = float(rng.choice([0.0, 0.1, 2.0])) * spread
        support = (pooled.min(axis=0) - room, pooled.max(axis=0) + room)
        if family.labels is not None:
            support[0][-1], support[1][-1] = min(family.labels), max(family.labels)
    levels = _levels(rng, family, scale, usual, planted)
    weights, bounds = _weights(rng, family.sizes)
    models = str(rng.choice(["box", "box", "box", "ball"]))
    half_width = float(rng.choice(HALF_WIDTHS))
    # Drawn apart, so that a number still means the same rows.
    apart = np.random.default_rng([4, number])
    mixed = None
    if weights.startswith("capped") and apart.random() < 0.6:
        weights, bounds, mixed = _mixed(apart, family.sizes)
    bent = np.random.default_rng([7, number])
    if mixed is None and bent.random() < 0.3:
        weights, bounds = _bent(bent, family.sizes)
    references = _references(apart, family, float(usual[-1])) if apart.random() < 0.4 else None
    matrix = None
    if family.norm == "mahalanobis":
        root = apart.normal(size=(m, m)) + np.diag(apart.choice([1.0, 10.0], m))
        matrix = root @ root.T + 0.1 * np.eye(m)
    return Case(
        number,
        family,
        style,
        rows,
        scale,
        support,
        levels,
        weights,
        bounds,
        models,
        half_width,
        planted,
        references,
        mixed,
        matrix,
    )


def _references(rng, family, spread) -> np.ndarray | None:
    """In units of the loss of a constant prediction, so that the regret may have either sign."""
    with np.errstate(over="ignore", under="ignore"):
        unit = 1.0 if family.labels is not None else spread**2 if family.loss == "squared" else spread
    found = unit * rng.uniform(-0.3, 1.5, len(family.sizes))
    return found if np.all(np.isfinite(found)) else None


def _mixed(rng, sizes) -> tuple[str, tuple[np.ndarray, ...], tuple[float, float]]:
    """Bounds of {(1 - mu) p + mu a : a <= kappa p} by hand."""
    share = np.asarray(sizes) / np.sum(sizes)
    kappa, mu = float(rng.choice([1.0, 1.5, 3.0, np.inf])), float(rng.choice([0.0, 0.1, 0.5, 1.0]))
    upper = np.array([(1 - mu) * p + mu * min(1.0, kappa * p) for p in share])
    return "mixed", ((1 - mu) * share, upper), (kappa, mu)


def _bent(rng, sizes) -> tuple[str, tuple[np.ndarray, ...]]:
    """Balls around the shares by a divergence, and a bound of what the first half of the clients have."""
    kind = str(rng.choice(["chi-squared ball", "KL ball", "first bounded"]))
    if kind == "first bounded":
        first = (np.arange(len(sizes)) < (len(sizes) + 1) // 2).astype(float)
        return kind, (first, np.asarray(rng.choice([0.0, 0.2, 0.7])))
    return kind, (np.asarray(sizes) / np.sum(sizes), np.asarray(rng.choice([0.0, 1e-3, 0.1, 2.0])))


def _levels(rng, family, scale, usual, planted) -> np.ndarray:
    n = len(family.sizes)
    if family.ambiguity in ("KL", "chi-squared"):
        return rng.choice([0.0, 1e-3, 0.1, 2.0], n)
    if family.ambiguity in ("TV", "CVaR"):
        return rng.choice([0.0, 0.01, 0.3, 0.9], n)
    movable = np.append(np.isfinite(scale[:-1]), family.labels is None and np.isfinite(scale[-1]))
    if family.ambiguity != "penalty":
        size = np.median((scale * usual)[movable])
        return (
            size * rng.choice([0.0, 1e-3, 0.1, 0.5], n)
            if rng.random() < 0.5
            else np.full(n, size * rng.choice([0.0, 1e-3, 0.1, 0.5]))
        )
    a = np.append(planted[: family.features], -1.0)
    steepness = float(np.linalg.norm((a / scale)[movable])) or 1.0
    base = steepness**2 if family.loss == "squared" else steepness
    return np.full(n, base) if rng.random() < 0.25 else base * rng.choice([1.0, 2.0, 10.0, 100.0], n)


def _weights(rng, sizes) -> tuple[str, tuple[np.ndarray, ...]]:
    share = np.asarray(sizes) / np.sum(sizes)
    kind = str(rng.choice(["simplex", "capped", "capped below", "l1 ball", "fixed"]))
    if kind == "capped":
        return kind, (0 * share, np.minimum(1.0, rng.choice([1.0, 1.5, 3.0]) * share))
    if kind == "capped below":
        return kind, (rng.choice([0.3, 1.0]) * share, np.minimum(1.0, 2 * share))
    if kind == "fixed":
        return kind, (share, share)
    if kind == "l1 ball":
        return kind, (share, np.asarray(rng.choice([0.0, 0.4, 3.0])))
    return kind, ()
