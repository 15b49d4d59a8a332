"""`bidro fit` from tables: read, hold rows out, train, certify, and describe the model."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np

import bidro
from bidro.certify.certificate import Certificate, of_procedure
from bidro.certify.statements import STATEMENTS
from bidro.certify.trained_rows import TrainedRows
from bidro.core.arrays import release
from bidro.core.errors import BidroError
from bidro.core.pytrees import Frozen, loaded_jax
from bidro.core.scratch import Scratch
from bidro.data.standardise import signs
from bidro.data.tables import (
    Schema,
    Source,
    TableOnDisk,
    cells_bytes,
    memory_here,
    read,
    read_on_disk,
    read_one,
    require_declared,
    require_every_class,
    tables_in,
    usable_rows,
)
from bidro.data.tables.survival import OF_PERIODS
from bidro.fit.fit import fit
from bidro.fit.fitted import Fitted, Options, Progress
from bidro.fit.network import LocalNetwork
from bidro.fit.training import Trained
from bidro.losses import has_curves
from bidro.model.model_file import Model, target_numbers
from bidro.privacy.terms import Budget
from bidro.workflow.options import (
    LEAST_MEMORY,
    MEMORY_OF_A_ROW,
    MEMORY_OF_CELLS,
    FitOptions,
    bytes_in,
)
from bidro.workflow.settings_summary import (
    concerns,
    curves_settings,
    pairs_settings,
    personal_settings,
    robustness_cost,
    settings_summary,
)
from bidro.workflow.survival import Watched

# Of the memory that a fit may take, so much at the most is pages of scratch files.
_RESIDENT_PART = 8


@dataclass(frozen=True, eq=False, kw_only=True)
class Fit(Fitted):
    """What came of a run on tables: a `Fitted` with its options, and a model that can be saved."""

    options: FitOptions
    model: Model
    trained_rows: TrainedRows | None = None  # None where the rows are elsewhere, or must not be known
    influence: Mapping[str, Any] | None = None  # of each site; None where the rows are here
    federated: Mapping[str, Any] | None = None  # what left the sites; None where the rows are here
    watched: Watched | None = None  # of times to an event, on whom the models are judged

    @property
    def certificate(self) -> Certificate:
        """At the requested confidence; `certificates` has those of the report's levels, too."""
        return self.certificates[self.options.confidence]


def fit_tables(
    options: FitOptions,
    progress: Progress,
    agreed: tuple[Schema, Options] | None = None,
    budget: Budget | None = None,
) -> Fit:
    """Fit the tables of the options.

    agreed: a schema that sites have agreed on, with the options that follow from it.
    budget: the privacy budget of every client, for a private fit.

    Raises BidroError for anything in tables or options that does not fit.
    """
    options.require_target()
    progress.begin("reading")
    paths = tables_in(options.sources())
    with ExitStack() as held:
        in_batches = _in_batches(options, paths)
        scratch = None
        if in_batches is not None:
            progress.begin(in_batches.words)
            scratch = held.enter_context(Scratch(in_batches.resident))

        def table_of(client: str | None) -> tuple[Any, str]:
            return read(paths, client) if scratch is None else read_on_disk(paths, client, scratch.folder)

        if agreed is None:
            whole, client = table_of(options.client)
            if scratch is None:
                # Of a client something is held out, and two rows or people are trained on.
                least, known = 3 if options.hold_out else 1, options.time or options.require_target()
                whole = usable_rows(whole, client, known, options.person, least)
            schema = options.learned(whole, client)
            table, what = schema.laid_out(whole), options.requested(schema)
        else:
            schema, what = agreed
            whole = _by_schema(paths, schema, table_of)
            table = schema.laid_out(whole)
            schema.require_listed_levels(table)
        # Of times to an event, the people before they were laid out in periods.
        of_people = None if table is whole else whole
        del whole
        if in_batches is not None:
            in_batches.require_room(len(table))
        if options.support is not None and budget is None:
            require_declared(options.support, schema, table)
        clients, people, target = schema.owners(table), schema.persons(table), target_numbers(schema, table)
        # In memory columns go while rows are made of them; else they are read when they are wanted.
        features: Any = schema.numbers(table) if scratch is None else partial(schema.each_number, table)
        # As many numbers again, of which the second fit is made.
        again: Any = None
        if options.refit:
            again = schema.numbers(table) if scratch is None else partial(schema.each_number, table)
        del table
        release()
        columns = [*schema.features, schema.target]
        rows = (target, clients, columns)
        more: dict[str, Any] = {"seed": options.seed, "people": people, "budget": budget, "scratch": scratch}
        more["new_clients"] = options.new_clients
        least = options.least_held_out
        network = LocalNetwork.of(features, *rows, options.hold_out, **more, least_held_out=least)
        second = None if again is None else LocalNetwork.of(again, *rows, 0.0, **more)
        watched = None
        if of_people is not None and what.privacy is None:
            watched = Watched.of(schema, of_people, network.places, network.names)
        if what.privacy is None and schema.classes is not None:
            labels = signs(np.arange(len(schema.classes)), len(schema.classes)).tolist()
            seen = np.unique(target[network.places])
            require_every_class(schema, [schema.classes[labels.index(label)] for label in seen])
        del clients, people, target, features, again, rows, more
        release()
        # Only the model that was preferred is trained again.
        what = replace(what, frontier=scratch is None and second is None)
        before = fitted = fit(network, what, progress)
        if second is not None:
            fitted = _refitted(before, fit(second, what, progress))
        created = datetime.now(UTC).date().isoformat()
        found = described_fit(options, schema, fitted, created)
        if watched is not None:
            # What is trained on all rows is not judged by some of them.
            own = found if second is None else described_fit(options, schema, before, created)
            found = replace(found, watched=replace(watched, model=own.model))
        if fitted.clients is None:
            # Which rows were trained on is not to be known under a privacy budget.
            return found
        return replace(found, trained_rows=TrainedRows.of(fitted.clients.federation.by_client()))


# What held-out rows say, by its name in a certificate.
_HELD_OUT = (*STATEMENTS, "shift", "of_rows")


def _refitted(first: Fitted, last: Fitted) -> Fitted:
    """The model that was trained on all rows, with what held-out rows said of the one before it, which was
    trained without them. Intervals for rows would be of that model, around the predictions of this one, and
    so there are none."""
    trained_on = sum(first.trained.problem.federation.sizes)
    share, stated = trained_on / (trained_on + first.held_out_rows), {}
    for level, own in last.certificates.items():
        before = first.certificates[level]
        absent = {n: why for n, why in before.absent.items() if n != "interval"}
        absent |= {n: why for n, why in own.absent.items() if n == "interval"}
        held_out = {name: getattr(before, name) for name in _HELD_OUT}
        stated[level] = replace(own, absent=Frozen(absent), procedure=share, **held_out)
    return replace(
        last,
        certificates=stated,
        evaluation=first.evaluation,
        held_out_rows=first.held_out_rows,
        changes=first.changes,
        baselines=first.baselines,
        intervals=None,
    )


@dataclass(frozen=True)
class _Batches:
    """A table that is read in batches, as it does not fit into the memory that a fit may take."""

    words: str
    memory: int
    resident: int  # bytes of scratch arrays that are in memory

    def require_room(self, rows: int) -> None:
        """Raise BidroError where not even what is kept of every row fits."""
        needed = LEAST_MEMORY + self.resident + MEMORY_OF_A_ROW * rows
        if needed > self.memory:
            raise BidroError(
                f"Even in batches a fit of {rows:,} rows takes about {needed / 1e9:.1f} GB; give it --memory "
                f"{-(-needed // 10**9)}GB, or fewer rows."
            )


def _in_batches(options: FitOptions, paths: list[Source]) -> _Batches | None:
    """Whether the tables are read in batches; None where they are read into memory. Raises BidroError for
    what cannot be had of them in batches."""
    cells = cells_bytes(paths)
    memory = memory_here() // 2 if options.memory is None else bytes_in(options.memory)
    if cells is None and options.memory is None:
        return None
    if cells is not None and LEAST_MEMORY + MEMORY_OF_CELLS * cells <= memory:
        return None
    large = "The query may give" if cells is None else f"The table's cells take about {cells / 1e9:.1f} GB,"
    for wanted, what in (
        (options.epsilon is not None, "a private fit"),
        (options.radius == "bootstrap", "--radius bootstrap"),
    ):
        if wanted:
            raise BidroError(
                f"{large} too much for {memory / 1e9:.1f} GB of memory, and {what} needs them there as a "
                "whole; give more --memory, or do without."
            )
    size = "" if cells is None else f"the cells take about {cells / 1e9:.1f} GB, and "
    words = f"reading tables in batches: {size}a fit may take {memory / 1e9:.1f} GB of memory"
    return _Batches(words, memory, memory // _RESIDENT_PART)


def _by_schema(paths: list[Source], schema: Schema, table_of: Callable[[str | None], tuple[Any, str]]) -> Any:
    """The rows of all tables, with the client column that the schema names, or else a file a client."""
    named = len(paths) == 1 or schema.client in read_one(paths[0])
    table, client = table_of(schema.client if named else None)
    if isinstance(table, TableOnDisk):
        return table.renamed(client, schema.client)
    return table.rename(columns={client: schema.client})


def described_fit(options: FitOptions, schema: Schema, fitted: Fitted, created: str) -> Fit:
    """What came of a run, with a model that can be saved; `created` is its day."""
    if schema.survival is not None:
        # How many of the periods are predicted wrongly is nothing that a person asks.
        stated = {c: replace(one, of_rows=None) for c, one in fitted.certificates.items()}
        fitted = replace(fitted, certificates=stated, intervals=None)
    return Fit(**vars(fitted), options=options, model=_model(options, schema, fitted, created))


def radii_of(trained: Trained) -> list[float | None]:
    """In pooled standard deviations, in the order of the clients; None where there are no balls."""
    problem = trained.problem
    return problem.eps.tolist() if problem.ambiguity_set.over_balls else [None] * problem.n


def _model(options: FitOptions, schema: Schema, fitted: Fitted, created: str) -> Model:
    trained, of = fitted.trained, fitted.assessed
    names, mixtures = trained.problem.federation.names, trained.mixture_spec
    settings: dict[str, Any] = {
        "target": schema.target,
        "loss": options.loss_choice(None if schema.classes is None else len(schema.classes)).word,
        "radius": trained.radius_promise,
        "max_weight_ratio": None if math.isinf(mixtures.max_weight_ratio) else mixtures.max_weight_ratio,
        "mixing": mixtures.mixing,
        "weights": options.weights,
        "max_cost": options.in_file()["max_cost"],
        # As trained: Algorithm 1 knows no regret.
        "criterion": "risk" if trained.problem.references is None else "regret",
        "robustness_cost": robustness_cost(trained.calibration),
        "personal": personal_settings(
            trained, (schema.target_unit or "") if schema.classes is None else "in log-odds"
        ),
        "curves": curves_settings(fitted, options),
        "pairs": pairs_settings(fitted),
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
    settings["chosen"] = settings_summary(settings)
    if schema.survival is not None:
        settings["chosen"]["survival"] = OF_PERIODS.format(event=schema.target)
    if privacy is not None:
        settings["chosen"] |= {"privacy": privacy.promise, "average": privacy.average, "noise": privacy.cost}
    settings["concerns"] = concerns(fitted)
    if (procedure := fitted.certificates[options.confidence].procedure) is not None:
        settings["concerns"].append(of_procedure(procedure))
    settings["varies"] = fitted.varies
    # Between what values curves are drawn; a model of straight lines is as without them.
    low, high = (fitted.seen if has_curves(of.loss) else None) or (None, None)
    versions = {
        "bidro": bidro.__version__,
        **({} if loaded_jax() is None else {"jax": version("jax")}),
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
        fitted.personal_models,
        low,
        high,
        fitted.intervals,
    )
