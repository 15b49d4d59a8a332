"""From tables to a model folder: read, prepare, keep rows out, train, certify, report, write whole."""

from __future__ import annotations

import math
import os
import platform
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

import bidro
from bidro.arrays import release
from bidro.errors import BidroError
from bidro.fitting import Fitted, LocalNetwork, Options, Progress, fit
from bidro.fitting.beside import Beside
from bidro.fitting.fitted import Changes, ClientLoss, Displacement
from bidro.guarantees.certificate import Certificate
from bidro.guarantees.trained_rows import TrainedRows
from bidro.losses import has_curves
from bidro.model_file import FILE, NETWORK_FILE, Model, target_numbers
from bidro.privacy.terms import Budget
from bidro.report.files import require_writable
from bidro.tables import (
    Schema,
    learn_schema,
    read,
    read_one,
    require_declared,
    require_every_class,
)
from bidro.training import Trained
from bidro.workflow.asked_for import fit_options
from bidro.workflow.chosen import chosen_in_words, curves_settings
from bidro.workflow.drawn_curves import Lie, rows_lie
from bidro.workflow.options import FitOptions
from bidro.workflow.paid import concerns, own_settings, paid


@dataclass(frozen=True, eq=False)
class Fit:
    """All that came of a run."""

    options: FitOptions
    model: Model
    certificate: Certificate
    levels: tuple[Certificate, ...]  # at those of the report and the wanted confidence
    trained: Trained
    judged: Mapping[str, ClientLoss]  # on rows kept out (on training rows where there are none)
    held_out_rows: int
    worst_cases: Mapping[str, Displacement]  # of the clients that count most
    changes: Mapping[str, Changes] | None  # of losses on rows kept out, against pooled training
    beside: Beside  # what to hold the model against
    trained_rows: TrainedRows | None = None  # None where the rows are elsewhere
    influence: Mapping[str, Any] | None = None  # of each site; None where the rows are here
    federated: Mapping[str, Any] | None = None  # what left the sites; None where the rows are here
    lie: Lie | None = None  # where the rows lie that curves are drawn over; None where these are elsewhere


def fit_tables(
    options: FitOptions,
    progress: Progress,
    agreed: tuple[Schema, Options] | None = None,
    budget: Budget | None = None,
) -> Fit:
    """Everything but writing; by a schema that sites have agreed on, and what follows from it, where these
    are given, and where that is a private fit with the privacy budget of every client. Raises BidroError for
    anything in tables or options that does not fit."""
    if options.target is None:
        raise BidroError("Name the column to be predicted: --target COLUMN.")
    options.check()
    progress.begin("reading")
    paths = [Path(p) for p in options.tables]
    if agreed is None:
        table, client = read(paths, options.client)
        schema = learn_schema(
            table,
            client,
            options.target,
            options.features,
            options.task,
            options.missing,
            options.unit,
            options.categories,
            options.drop,
            options.dates,
        )
        schema = replace(schema, measured_in=options.measured_in)
        what = fit_options(options, schema)
    else:
        schema, what = agreed
        table = _by_schema(paths, schema)
        schema.require_listed_levels(table)
    clients, labels, units = schema.clients(table), schema.labels(table), schema.units(table)
    target, features = target_numbers(schema, table), schema.numbers(table)
    if options.support is not None and budget is None:
        require_declared(options.support, schema, table)
    del table
    release()
    columns = [*schema.features, schema.target]
    network = LocalNetwork.of(
        features, target, clients, columns, options.hold_out, options.seed, units, budget
    )
    release()
    if what.privacy is None:
        require_every_class(schema, labels[network.places])
    fitted = fit(network, what, progress)
    found = described_fit(options, schema, fitted, datetime.now(UTC).date().isoformat())
    if fitted.clients is None:
        # Which rows were trained on is not to be known under a privacy budget.
        return found
    federation = fitted.clients.federation
    curved = not found.model.predictor().straight
    lie = rows_lie(federation, fitted.standard) if curved else None
    return replace(found, trained_rows=TrainedRows.of(federation.by_client()), lie=lie)


def _by_schema(paths: list[Path], schema: Schema) -> pd.DataFrame:
    """The rows of all tables, with the client column that the schema names, or else a file a client."""
    named = len(paths) == 1 or schema.client in read_one(paths[0])
    table, client = read(paths, schema.client if named else None)
    return table.rename(columns={client: schema.client})


def described_fit(options: FitOptions, schema: Schema, fitted: Fitted, created: str) -> Fit:
    """What came of a run, with a model that can be saved; `created` is its day."""
    return Fit(
        options,
        _model(options, schema, fitted, created),
        fitted.certificates[options.confidence],
        tuple(fitted.certificates.values()),
        fitted.trained,
        fitted.judged,
        fitted.held_out_rows,
        fitted.displaced,
        fitted.changes,
        fitted.beside,
    )


def require_place(folder: Path, force: bool) -> None:
    """Raise BidroError where a model folder cannot be written, or would replace something: another model only
    with `force`, anything else never."""
    if folder.exists():
        model = folder.is_dir() and any((folder / name).exists() for name in (FILE, NETWORK_FILE))
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


def radii_of(trained: Trained) -> list[float | None]:
    """In pooled standard deviations, in the order of the clients; None where there are no balls."""
    eps = trained.problem.eps
    return [None] * trained.problem.n if eps is None else [float(v) for v in eps]


def _model(options: FitOptions, schema: Schema, fitted: Fitted, created: str) -> Model:
    trained, of = fitted.trained, fitted.assessed
    names = trained.problem.federation.names
    settings: dict[str, Any] = {
        "target": schema.target,
        "loss": options.loss_choice(None if schema.classes is None else len(schema.classes)).word,
        "radius": trained.radius_promise,
        "cap": None if math.isinf(trained.weighing.cap) else trained.weighing.cap,
        "blend": trained.weighing.blend,
        "weights": options.weights,
        "price": options.price,
        # As trained: Algorithm 1 knows no regret.
        "criterion": "risk" if trained.problem.references is None else "regret",
        "paid": paid(trained.calibration),
        "own": own_settings(trained),
        "curves": curves_settings(fitted, options.choices()),
        "metric": options.metric,
        "label_cost": options.label_cost,
        "p": trained.problem.transport.p,
        "support": None if options.support is None else dict(options.support),
        "hold_out": options.hold_out,
        "confidence": options.confidence,
        "gap": trained.gap,
        "surrogate": None if trained.solution is None else trained.solution.surrogate,
        "rounds": trained.rounds,
        "radii": dict(zip(names, radii_of(trained), strict=True)),
        "client_weights": dict(zip(names, trained.alpha.tolist(), strict=True)),
        "rows": dict(zip(names, trained.problem.federation.sizes, strict=True)),
        "created": created,
    }
    privacy = fitted.certificates[options.confidence].privacy
    settings["chosen"] = chosen_in_words(settings)
    if privacy is not None:
        settings["chosen"] |= {"privacy": privacy.promise, "noise": privacy.cost}
    settings["concerns"] = concerns(fitted)
    settings["varies"] = fitted.varies
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
        fitted.standard,
        names,
        of.seen,
        of.largest,
        of.slope,
        of.of_root,
        settings,
        versions,
        trained.pooled,
        fitted.own_models,
        # Between what values curves are drawn; a model of straight lines is as without them.
        *((fitted.seen if has_curves(of.loss) else None) or (None, None)),
    )
