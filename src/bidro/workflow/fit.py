"""From tables to a model folder: read, prepare, keep rows out, train, certify, report, write whole."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

import bidro
from bidro.errors import BidroError
from bidro.estimators import RobustClassifier, RobustRegressor
from bidro.estimators.base import RobustEstimator
from bidro.estimators.training import Trained
from bidro.guarantees.certificate import Certificate
from bidro.guarantees.statements import Assessed
from bidro.model_file import FILE, Model
from bidro.tables import Schema, bounds_of, learn_schema, read, release
from bidro.workflow.options import FitOptions

Floats = NDArray[np.float64]
# Features, targets and clients of the rows kept out.
Fresh = tuple[Floats, NDArray[Any], NDArray[np.str_]]

# The levels of confidence that the report can show.
LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)


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
    estimator: RobustEstimator
    trained: Trained
    losses: dict[str, Floats]  # of each client, on rows kept out (on training rows where there are none)
    held_out_rows: int


def fit_tables(options: FitOptions, progress: Progress) -> Fit:
    """Everything but writing. Raises BidroError for anything in tables or options that does not fit."""
    if options.target is None:
        raise BidroError("Name the column to be predicted: --target COLUMN.")
    progress.begin("reading")
    table, client = read([Path(p) for p in options.tables], options.client)
    progress.begin("preparing")
    schema = learn_schema(table, client, options.target, options.features, options.task, options.missing)
    clients = schema.clients(table)
    kept_out = choose_kept_out(clients, options.hold_out, options.seed)
    target = schema.labels(table)
    fresh = (schema.matrix(table, np.flatnonzero(kept_out)), target[kept_out], clients[kept_out])
    # Popped where it is used, so that nothing here keeps it alive once the solver has its own rows.
    training = [schema.matrix(table, np.flatnonzero(~kept_out))]
    del table
    release()
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
    model = _model(estimator, schema, options, trained)
    return Fit(
        options,
        model,
        certificates[options.confidence],
        tuple(certificates.values()),
        estimator,
        trained,
        _client_losses(model, estimator, trained, fresh),
        len(fresh[0]),
    )


def choose_kept_out(clients: NDArray[np.str_], share: float, seed: int) -> NDArray[np.bool_]:
    """(N,) whether a row is kept out of training: the same share of every client, at least one row."""
    if not 0 <= share < 1:
        raise BidroError(f"--hold-out must be a share from 0 to below 1; got {share}.")
    kept = np.zeros(len(clients), bool)
    if share == 0:
        return kept
    names, codes, sizes = np.unique(clients, return_inverse=True, return_counts=True)
    counts = np.maximum(1, np.round(share * sizes).astype(int))
    if np.any(sizes - counts < 2):
        small = int(np.argmax(sizes - counts < 2))
        raise BidroError(
            f"Client '{names[small]}' has {sizes[small]} row(s), too few to keep some out and train on the "
            "rest; leave it out, give it more rows, or use --hold-out 0."
        )
    shuffled = np.lexsort((np.random.default_rng(seed).random(len(clients)), codes))
    place = np.arange(len(clients)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    kept[shuffled] = place < np.repeat(counts, sizes)
    return kept


def write_folder(folder: Path, files: dict[str, str | bytes]) -> None:
    """All files at once: a new folder takes the place of an old one, or nothing changes."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.exists() and not (folder / FILE).exists() and any(folder.iterdir()):
        raise BidroError(f"'{folder}' exists and is not a model folder; choose another --out.")
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
    if schema.classes is not None:
        return RobustClassifier(options.loss or "logistic", **shared)
    loss = options.loss or "squared"
    return RobustRegressor(loss, threshold=options.threshold, quantile=options.quantile, **shared)


def _client_losses(
    model: Model, estimator: RobustEstimator, trained: Trained, fresh: Fresh
) -> dict[str, Floats]:
    """Each client's losses on rows kept out, or on training rows where there are none."""
    if len(fresh[0]) == 0:
        federation = trained.problem.federation
        losses = model.losses(np.asarray(federation.samples))
        owners = np.repeat(federation.names, federation.sizes)
    else:
        losses = model.losses(estimator.standard_.rows(fresh[0], estimator._codes(fresh[1])))
        owners = fresh[2]
    return {name: losses[owners == name] for name in model.clients}


def _certificate(
    estimator: RobustEstimator,
    fresh: Fresh,
    confidence: float,
    shift: float | None,
) -> Certificate:
    if len(fresh[0]) == 0:
        return estimator._without_kept_out(confidence)
    return estimator.certify(*fresh, confidence, shift)


def _model(estimator: RobustEstimator, schema: Schema, options: FitOptions, trained: Trained) -> Model:
    of: Assessed = estimator._assessed
    names = trained.problem.federation.names
    settings = {
        "target": schema.target,
        "loss": str(getattr(estimator, "loss", "")),
        "radius": trained.radius_promise,
        "weights": trained.weights_in_words,
        "metric": options.metric,
        "label_cost": options.label_cost,
        "p": trained.problem.transport.p,
        "support": None if options.support is None else dict(options.support),
        "hold_out": options.hold_out,
        "confidence": options.confidence,
        "gap": trained.solution.gap,
        "rounds": trained.solution.rounds,
        "radii": dict(estimator.radii_),
        "client_weights": dict(estimator.client_weights_),
        "rows": dict(zip(names, trained.problem.federation.sizes, strict=True)),
        "created": datetime.now(UTC).date().isoformat(),
    }
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
        estimator.standard_,
        names,
        of.seen,
        of.largest,
        of.slope,
        of.of_root,
        settings,
        versions,
    )
