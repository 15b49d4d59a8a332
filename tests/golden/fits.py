"""The fits: each by its name, as a function to what is compared of it."""

import warnings
from dataclasses import replace

import numpy as np

from bidro import (
    Absolute,
    Ball,
    Box,
    CappedSimplex,
    Federation,
    Hinge,
    Huber,
    L1SimplexBall,
    Logistic,
    Penalty,
    Problem,
    RobustClassifier,
    RobustRegressor,
    Softmax,
    Squared,
    Transport,
    WassersteinBall,
    solve,
)
from bidro.data.standardise import Standard
from bidro.fit.fit import fit
from bidro.fit.fitted import Options
from bidro.fit.network import LocalNetwork
from bidro.fit.settings import FitSettings
from bidro.losses.registry import LossChoice
from bidro.privacy.discrete_gaussian import seeded_bits
from bidro.privacy.terms import Budget, Terms
from tests.golden.tables import classes, numbers, people_of, with_level

LINES = {"curves": None}
SHARED = {"curves": None, "personal": None}
TWELVE = (30, 25, 40, 35, 20, 30, 45, 25, 30, 35, 40, 20)
WIDE = (np.full(4, -40.0), np.full(4, 40.0))


def _plain(value):
    """Arrays as nested lists, infinities as words."""
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(one) for one in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value


def _bounds(stated):
    """The numbers of a certificate."""
    found = {"empirical": stated.empirical}
    if stated.interval is not None:
        found["interval"] = [stated.interval.lower, stated.interval.upper]
    for name in ("held_out", "clipped", "mistakes", "personal", "personal_mistakes", "shift"):
        one = getattr(stated, name)
        if one is not None:
            found[name] = [one.bound]
    return found


def _fitted(model, table, people=None):
    """What is compared of an estimator on a table: (what was chosen, numbers by name)."""
    X, y, clients = table
    model.fit(X, y, clients=clients, people=people)
    found, solution = model.calibration_, model._fitted.trained.solution
    chosen = {
        "personal": sorted(model.personal_curves_),
        "candidates": None if found is None else len(found.candidates),
        "candidate": None if found is None else tuple(found.chosen),
        "segments": {name: len(one.slopes) for name, one in model.curves_.items()},
        "method": solution.method,
    }
    measured = {
        "model": model.model_,
        "intercept": model.intercept_,
        "radii": list(model.radii_.values()),
        "weights": list(model.client_weights_.values()),
        "risks": list(model.client_risks_.values()),
        "bounds": [solution.lower, solution.upper],
        "scores": getattr(model, "decision_function", model.predict)(X[::9]),
    }
    if all(len(one.slopes) == 1 for one in model.curves_.values()):
        measured["coefficients"] = model.coef_
        measured |= {f"coefficients of {name}": one for name, one in model.personal_coef_.items()}
    for name, one in model.curves_.items():
        measured |= {f"knots of {name}": one.knots, f"curve of {name}": one.values}
    for client, curves in model.personal_curves_.items():
        measured[f"intercept of {client}"] = model.personal_intercept_[client]
        measured |= {f"curve of {name} at {client}": one.values for name, one in curves.items()}
    if found is not None:
        measured["losses left out"] = found.losses
    measured |= {f"certified {name}": one for name, one in _bounds(model.certificate_).items()}
    return chosen, measured


def _certified(model, table, fresh, **how):
    """As `_fitted`, and what fresh rows say of the model."""
    chosen, measured = _fitted(model, table)
    X, y, clients = fresh
    stated = model.certify(X, y, clients=clients, **how)
    return chosen, measured | {f"held out {name}": one for name, one in _bounds(stated).items()}


def _solved(problem, **how):
    found = solve(problem, **how)
    chosen = {"method": found.method, "certified": found.certified}
    return chosen, {
        "model": found.x,
        "weights": found.alpha,
        "risks": found.risks,
        "bounds": [found.lower, found.upper],
    }


def _federation(table, support="unbounded"):
    X, y, clients = table
    labels = y if y.dtype.kind == "f" else np.unique(y, return_inverse=True)[1]
    if y.dtype.kind != "f" and len(np.unique(y)) == 2:
        labels = 2 * labels - 1
    rows = np.column_stack([X.to_numpy(), labels])
    return Federation.from_arrays({name: rows[clients == name] for name in np.unique(clients)}, support)


def _private(word, weights="fixed"):
    """A fit under a privacy budget, its noise from a seed."""
    X, y, clients = numbers((300, 350, 320)) if word == "squared" else classes(2, (300, 350, 320))
    target = y if word == "squared" else np.where(y == "b", 1.0, -1.0)
    scale = (0.5, 2.0) if word == "squared" else (0.0, 1.0)
    units = Standard(np.array([0.3, 0.0, 0.0]), np.ones(3), *scale)
    options = Options(
        LossChoice(word, None if word == "squared" else 2),
        FitSettings(weights=weights, personal=None),
        units=units,
        privacy=Terms(),
    )
    columns = (*X.columns, "y")
    network = LocalNetwork.of(X.to_numpy(), target, clients, columns, 0.2, 0, None, Budget(3.0))
    found = fit(replace(network, bits=seeded_bits(7)), options)
    measured = {"model": found.trained.x, "weights": found.trained.alpha}
    for confidence, stated in found.certificates.items():
        measured |= {f"certified {name} at {confidence}": one for name, one in _bounds(stated).items()}
    return {"method": found.trained.method}, measured


BALL, JOINT = WassersteinBall(0.1), Transport.euclidean(4)
FITS = {
    # Squared loss
    "squared, all chosen": lambda: _certified(
        RobustRegressor(), numbers((80, 90, 100)), numbers((60, 60, 60), 11)
    ),
    "squared, a radius": lambda: _fitted(RobustRegressor(radius=0.1, **SHARED), numbers(apart=4)),
    "squared, radius cross-validated": lambda: _fitted(
        RobustRegressor(radius="cross-validate", **LINES), numbers()
    ),
    "squared, radii by client, any mixture": lambda: _fitted(
        RobustRegressor(radius=[0.1, 0.0, 0.3], weights="simplex", **LINES), numbers(apart=3)
    ),
    "squared, capped weights, offsets": lambda: _fitted(
        RobustRegressor(weights=1.5, personal="offset", **LINES), numbers(apart=4)
    ),
    "squared, pooled": lambda: _fitted(RobustRegressor(weights="fixed", **SHARED), numbers()),
    "squared, regret": lambda: _fitted(RobustRegressor(criterion="regret", **SHARED), numbers()),
    "squared, at any cost": lambda: _fitted(
        RobustRegressor(max_cost=np.inf, criterion="regret", **LINES), numbers((90, 80, 120), apart=6)
    ),
    "squared, bootstrapped radii": lambda: _fitted(
        RobustRegressor(radius="bootstrap", weights="fixed", **SHARED), numbers((20, 25))
    ),
    "squared, explicit radii, support": lambda: _certified(
        RobustRegressor(radius="explicit", metric="joint", support=WIDE, weights="simplex", **SHARED),
        numbers(),
        numbers((60, 60, 60), 11),
        confidence=0.9,
        shift=0.05,
    ),
    "squared, a cost of the target": lambda: _fitted(
        RobustRegressor(radius=0.2, metric="joint", label_cost=2.0, weights=1.5, **SHARED), numbers()
    ),
    "squared, rising and falling": lambda: _fitted(
        RobustRegressor(radius=0.05, curves=4, increasing=["x0"], decreasing=["x2"], personal=None),
        numbers(),
    ),
    "squared, curves by level": lambda: _fitted(
        RobustRegressor(curves={"x0": (3, "level"), "x1": None, "level": None}, personal=None), with_level()
    ),
    "squared, twelve clients": lambda: _fitted(RobustRegressor(radius=0.05, **LINES), numbers(TWELVE)),
    "squared, a client of few rows": lambda: _fitted(
        RobustRegressor(radius="cross-validate", **LINES), numbers((4, 90))
    ),
    "squared, several rows a person": lambda: _fitted(
        RobustRegressor(**LINES), numbers((90, 120)), people_of(numbers((90, 120))[2])
    ),
    # Other losses of a number
    "absolute, a radius": lambda: _fitted(
        RobustRegressor("absolute", radius=0.1, weights="simplex", **SHARED), numbers()
    ),
    "absolute, capped weights, personal models tried": lambda: _fitted(
        RobustRegressor("absolute", weights=1.5, folds=3, **LINES), numbers((30, 40), apart=4)
    ),
    "pinball, radius cross-validated": lambda: _fitted(
        RobustRegressor("pinball", quantile=0.8, radius="cross-validate", weights="fixed", folds=2, **SHARED),
        numbers((15, 20)),
    ),
    "huber, a curve a column": lambda: _fitted(
        RobustRegressor("huber", curves={"x0": 1, "x1": None, "x2": 4}, weights=2.0), numbers()
    ),
    "huber, a support": lambda: _certified(
        RobustRegressor("huber", radius=0.1, support=WIDE, metric="joint", weights=1.5, **SHARED),
        numbers(),
        numbers((60, 60, 60), 11),
        bound="bernstein",
    ),
    # Classes
    "logistic, all chosen": lambda: _certified(
        RobustClassifier(), classes(2, (90, 100), apart=3), classes(2, (60, 60), 12)
    ),
    "logistic, personal models": lambda: _fitted(
        RobustClassifier(max_cost=np.inf, **LINES), classes(2, (150, 200, 100), apart=8)
    ),
    "logistic, rising": lambda: _fitted(
        RobustClassifier(
            curves={"x0": 3, "x2": 3, "x1": None}, increasing=["x0"], weights=1.5, personal=None
        ),
        classes(),
    ),
    "logistic, a cost of the label": lambda: _fitted(
        RobustClassifier(radius=0.05, metric="joint", label_cost=0.5, weights="simplex", **SHARED), classes()
    ),
    "logistic, twelve clients": lambda: _fitted(
        RobustClassifier(radius="cross-validate", weights=2.0, **SHARED), classes(2, TWELVE)
    ),
    "smoothed hinge, a radius": lambda: _fitted(
        RobustClassifier("smoothed hinge", radius=0.1, max_cost=0.2, **LINES), classes(apart=4)
    ),
    "softmax, three classes": lambda: _fitted(RobustClassifier(**LINES), classes(3, apart=5)),
    "softmax, four classes, a radius": lambda: _fitted(
        RobustClassifier(radius=0.05, weights=2.0, **SHARED), classes(4)
    ),
    # Problems of one's own
    "solve: squared by curvature": lambda: _solved(
        Problem(_federation(numbers()), Squared(), Box.cube(20, 3), JOINT, BALL), method="curvature"
    ),
    "solve: hinge by gradients": lambda: _solved(
        Problem(
            _federation(classes()),
            Hinge(),
            Ball(np.zeros(3), 5.0),
            Transport.classification(4, 1.0),
            BALL,
            CappedSimplex.around_proportions(np.array([60, 70, 60]), 1.5),
        ),
        method="gradients",
        gap=1e-8,
    ),
    "solve: absolute near given weights": lambda: _solved(
        Problem(
            _federation(numbers(), Box(*WIDE)),
            Absolute(),
            Box.cube(20, 3),
            Transport.euclidean(4, 1.0),
            BALL,
            L1SimplexBall(np.array([0.2, 0.3, 0.5]), 0.4),
        )
    ),
    "solve: penalised squared": lambda: _solved(
        Problem(_federation(numbers()), Squared(), Box.cube(20, 3), JOINT, Penalty(20.0))
    ),
    "solve: penalised logistic": lambda: _solved(
        Problem(
            _federation(classes()),
            Logistic(),
            Box.cube(5, 3),
            Transport.classification(4),
            Penalty([4.0, 5.0, 6.0]),
        )
    ),
    "solve: softmax without ambiguity, regret": lambda: _solved(
        Problem(
            _federation(classes(3)),
            Softmax(3),
            Box.cube(20, 9),
            Transport.classification(4, 1.0),
            references=[0.5, 0.55, 0.6],
        )
    ),
    "solve: huber with an intercept, radii by client": lambda: _solved(
        Problem(
            _federation(numbers()),
            Huber(1.0),
            Box.cube(20, 4),
            Transport.features_only(4, 1.0),
            WassersteinBall([0.0, 0.1, 0.2]),
        )
    ),
    # Under privacy budgets
    "private squared": lambda: _private("squared"),
    "private squared, any mixture": lambda: _private("squared", "simplex"),
    "private logistic": lambda: _private("logistic"),
}


def made(name):
    """What is compared of a fit, as JSON has it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chosen, measured = FITS[name]()
    return {"chosen": _plain(chosen), "numbers": _plain(measured)}
