"""From tables to a model folder: read, prepare, keep rows out, train, certify, report, write whole."""

from __future__ import annotations

import math
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

import bidro
from bidro.errors import BidroError
from bidro.estimators import RobustClassifier, RobustRegressor
from bidro.estimators.base import RobustEstimator
from bidro.guarantees.certificate import Certificate
from bidro.guarantees.robust import mean_displacement
from bidro.guarantees.statements import Assessed
from bidro.guarantees.trained_rows import TrainedRows
from bidro.losses import Loss
from bidro.model_file import FILE, Model, target_numbers
from bidro.problem import Problem
from bidro.report.files import require_writable
from bidro.splits import choose_kept_out
from bidro.standard import Standard
from bidro.tables import (
    Schema,
    bounds_of,
    learn_schema,
    read,
    release,
    require_declared,
    require_every_class,
)
from bidro.training import Trained
from bidro.workflow.chosen import chosen_in_words
from bidro.workflow.judged import ClientLoss
from bidro.workflow.options import FitOptions

Floats = NDArray[np.float64]
# Features, targets and clients of the rows kept out.
Fresh = tuple[Floats, NDArray[Any], NDArray[np.str_]]

# The levels of confidence that the report can show.
LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)
# Clients whose worst case is shown.
MOST_WORST_CASES = 12


@dataclass(frozen=True, eq=False)
class Progress:
    """What to call while work goes on; each may be None."""

    stage: Callable[[str], None] | None = None
    calibration: Callable[[int, int], None] | None = None  # (round, solves that go on)
    solving: Callable[[int, float], None] | None = None  # (round, gap)

    def begin(self, stage: str) -> None:
        if self.stage is not None:
            self.stage(stage)


@dataclass(frozen=True, eq=False)
class Fit:
    """All that came of a run."""

    options: FitOptions
    model: Model
    certificate: Certificate
    levels: tuple[Certificate, ...]  # at LEVELS and the wanted confidence
    trained: Trained
    judged: Mapping[str, ClientLoss]  # on rows kept out (on training rows where there are none)
    held_out_rows: int
    worst_cases: Mapping[str, Displacement]  # of the clients that count most
    trained_rows: TrainedRows | None = None  # None where the rows are elsewhere


class Displacement(NamedTuple):
    """How a client's worst case moves its features, in pooled standard deviations."""

    before: Floats  # (k,) the means
    moved: Floats  # (k,) how far these move
    typical: Floats  # (k,) how far rows move on average


def fit_tables(options: FitOptions, progress: Progress) -> Fit:
    """Everything but writing. Raises BidroError for anything in tables or options that does not fit."""
    if options.target is None:
        raise BidroError("Name the column to be predicted: --target COLUMN.")
    options.check()
    progress.begin("reading")
    table, client = read([Path(p) for p in options.tables], options.client)
    progress.begin("preparing")
    schema = learn_schema(table, client, options.target, options.features, options.task, options.missing)
    clients = schema.clients(table)
    target, numbers, features = schema.labels(table), target_numbers(schema, table), schema.matrix(table)
    if options.support is not None:
        require_declared(options.support, schema, table)
    del table
    release()
    kept_out = choose_kept_out(clients, features, numbers, options.hold_out, options.seed)
    require_every_class(schema, target[~kept_out])
    fresh = (features[kept_out], target[kept_out], clients[kept_out])
    # Popped where it is used, so that nothing here keeps it alive once the solver has its own rows.
    training = [features[~kept_out]]
    del features
    estimator = _estimator(options, schema)
    progress.begin("choosing")
    trained = estimator._fit(
        training.pop(), target[~kept_out], clients[~kept_out], progress.calibration, progress.solving
    )
    progress.begin("certifying")
    certificates = {
        level: _certificate(estimator, fresh, level, options.shift)
        for level in sorted({*LEVELS, options.confidence})
    }
    today = datetime.now(UTC).date().isoformat()
    model = make_model(options, schema, estimator.standard_, estimator._assessed, trained, today)
    return Fit(
        options,
        model,
        certificates[options.confidence],
        tuple(certificates.values()),
        trained,
        _judged(model, estimator, trained, fresh),
        len(fresh[0]),
        {name: _displacement(trained.problem, model.x, name) for name in count_most(trained)},
        estimator._trained_rows,
    )


def count_most(trained: Trained) -> list[str]:
    """The clients whose worst case is shown: those that count most in the worst mixture."""
    order = np.argsort(-trained.solution.alpha, kind="stable")[:MOST_WORST_CASES]
    return [trained.solution.names[int(i)] for i in order]


def _displacement(problem: Problem, x: Floats, name: str) -> Displacement:
    before = np.asarray(problem.federation.client_samples(name))[:, :-1].mean(axis=0)
    return Displacement(before, *mean_displacement(problem, x, name))


def require_place(folder: Path, force: bool) -> None:
    """Raise BidroError where a model folder cannot be written, or would replace something: another model only
    with `force`, anything else never."""
    if folder.exists():
        model = folder.is_dir() and (folder / FILE).exists()
        if not model and not (folder.is_dir() and not any(folder.iterdir())):
            raise BidroError(f"'{folder}' exists and is not a model folder; choose another --out.")
        if model and not force:
            raise BidroError(
                f"'{folder}' holds a model already; choose another --out, or replace it with --force."
            )
    require_writable(folder.resolve().parent)


def write_folder(folder: Path, files: dict[str, str | bytes]) -> None:
    """All files at once: a new folder takes the place of an old one, or nothing changes."""
    require_place(folder, force=True)
    # What a link points at is replaced, not the link.
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            (fresh / name).write_bytes(data)
        fresh.chmod(0o755)
        if folder.exists():
            old = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-old-"))
            os.replace(folder, old)
            os.replace(fresh, folder)
            shutil.rmtree(old)
        else:
            os.replace(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _estimator(options: FitOptions, schema: Schema) -> RobustEstimator:
    shared: dict[str, Any] = {
        "radius": options.radius,
        "weights": options.weights,
        "metric": options.metric,
        "label_cost": options.label_cost,
        "support": None if options.support is None else bounds_of(options.support, schema),
        "gap": options.gap,
        "folds": options.folds,
        "confidence": options.confidence,
        "random_state": options.seed,
    }
    loss = loss_word(options, schema)
    if schema.classes is not None:
        return RobustClassifier(loss, **shared)
    return RobustRegressor(loss, threshold=options.threshold, quantile=options.quantile, **shared)


def loss_of(options: FitOptions, schema: Schema, target_spread: float = 1.0) -> Loss:
    """The loss in the units of training. Raises BidroError where the schema and the options have none."""
    estimator = _estimator(options, schema)
    if schema.classes is not None:
        estimator.classes_ = np.asarray(schema.classes)
    return estimator._in_units(estimator._loss(), target_spread)


def loss_word(options: FitOptions, schema: Schema) -> str:
    return options.loss or ("squared" if schema.classes is None else "logistic")


def radii_of(trained: Trained) -> list[float | None]:
    """In pooled standard deviations, in the order of the clients; None where there are no balls."""
    eps = trained.problem.eps
    return [None] * trained.problem.n if eps is None else [float(v) for v in eps]


def _judged(
    model: Model, estimator: RobustEstimator, trained: Trained, fresh: Fresh
) -> dict[str, ClientLoss]:
    """Each client's losses on rows kept out, or on training rows where there are none."""
    if len(fresh[0]) == 0:
        federation = trained.problem.federation
        losses = model.losses(np.asarray(federation.samples))
        owners = np.repeat(federation.names, federation.sizes)
    else:
        losses = model.losses(estimator.standard_.rows(fresh[0], estimator._codes(fresh[1])))
        owners = fresh[2]
    return {name: ClientLoss.of(losses[owners == name]) for name in model.clients}


def _certificate(
    estimator: RobustEstimator,
    fresh: Fresh,
    confidence: float,
    shift: float | None,
) -> Certificate:
    if len(fresh[0]) == 0:
        return estimator._without_kept_out(confidence)
    return estimator._certified(estimator._fresh_rows(*fresh), confidence, shift)


def make_model(
    options: FitOptions,
    schema: Schema,
    standard: Standard,
    of: Assessed,
    trained: Trained,
    created: str,
) -> Model:
    names, solution = trained.problem.federation.names, trained.solution
    settings: dict[str, Any] = {
        "target": schema.target,
        "loss": loss_word(options, schema),
        "radius": trained.radius_promise,
        "cap": None if math.isinf(trained.cap) else trained.cap,
        "metric": options.metric,
        "label_cost": options.label_cost,
        "p": trained.problem.transport.p,
        "support": None if options.support is None else dict(options.support),
        "hold_out": options.hold_out,
        "confidence": options.confidence,
        "gap": solution.gap if solution.certified else None,
        "rounds": solution.rounds,
        "radii": dict(zip(names, radii_of(trained), strict=True)),
        "client_weights": dict(zip(names, solution.alpha.tolist(), strict=True)),
        "rows": dict(zip(names, trained.problem.federation.sizes, strict=True)),
        "created": created,
    }
    settings["chosen"] = chosen_in_words(settings)
    versions = {
        "bidro": bidro.__version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    return Model(
        schema,
        of.loss,
        of.x,
        standard,
        names,
        of.seen,
        of.largest,
        of.slope,
        of.of_root,
        settings,
        versions,
    )
