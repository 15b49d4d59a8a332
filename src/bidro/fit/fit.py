"""`fit`: from a network of clients to a model and all that is stated of it.

The steps are the same whether the rows are in this process or on machines of their own: prepare, choose,
solve, personalise, assess, state. `RobustRegressor.fit`, `bidro fit` and `bidro federate` are callers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from bidro.certify.certificate import Certificate
from bidro.certify.held_out import ClientBound, client_level
from bidro.certify.intervals import HeldOutFits, Intervals, RowQuantiles
from bidro.certify.out_of_sample import explicit_radii
from bidro.certify.row_promise import SHARE, RowPromise, of_bounds, of_fits
from bidro.certify.statements import (
    STATEMENTS,
    CertifiedModel,
    clip_level,
    interval_obstacle,
    loss_unit,
    statements_of,
    with_statements,
    without_holdout,
)
from bidro.core.arrays import Floats, one_thread
from bidro.core.errors import BidroError
from bidro.core.sets import Box, Simplex, capped_sizes
from bidro.data.standardise import ColumnMoments, Standard
from bidro.fit.baselines import Baselines, baselines_of_replies
from bidro.fit.fitted import (
    FEWEST_DESCRIBED,
    Change,
    Changes,
    ClientLoss,
    Displacement,
    Fitted,
    Options,
    Progress,
)
from bidro.fit.network import Clients, Network
from bidro.fit.private import private_fit
from bidro.fit.questions import FEW, Assess, Assessment, HoldoutBounds, HoldoutQuery, Prepared
from bidro.fit.settings import FitSettings
from bidro.fit.training import (
    Trained,
    held_still,
    require_lines,
    train,
    train_penalised,
    transport_of,
    unrestricted,
    unsaid,
    wanted_curves,
    wanted_pairs,
)
from bidro.losses import has_curves
from bidro.losses.linear import ResidualLoss
from bidro.problem.problem import Problem
from bidro.risk.transport import Transport
from bidro.selection.calibrate import FoldLimits, spread_of
from bidro.selection.segments import Wanted, proportional_to

# Clients whose worst case is shown.
MOST_WORST_CASES = 12


def fit(network: Network, options: Options, progress: Progress | None = None) -> Fitted:
    """Prepare, choose, solve, personalise, assess, state: from clients to a model and what is stated of it.

    Args:
        network: who answers; in this process or across machines.
        options: what is to be done.
        progress: what to call on the way.

    Returns:
        The model, its certificates, and what to hold it against.

    Raises:
        BidroError: for anything in tables or options that does not fit.
    """
    progress = progress or Progress()
    with one_thread(len(network.columns)):
        if options.privacy is not None:
            return private_fit(network, options, progress)
        task = _prepare(network, options, progress)
        trained, seen = _train(task, options, progress)  # choose, solve, personalise
        found = _assess(task, trained, options, progress)
        fitted = _state(task, _with_risks(trained, found.assessment), found, options, seen)
        return replace(fitted, frontier=_frontier(task, trained, options, seen))


def _frontier(
    task: _Task, trained: Trained, options: Options, seen: tuple[Floats, Floats] | None
) -> tuple[Fitted, ...]:
    """The models that other largest costs take, each stated with its share of the level: whoever takes one
    after seeing them all has what is stated of it with the confidence that was asked for."""
    many = len(trained.frontier)
    if not options.frontier or many < 2:
        return ()
    shared = {level: 1 - (1 - level) / many for level in options.confidences}
    choices = replace(options.choices, confidence=shared[options.choices.confidence])
    stated = replace(options, choices=choices, levels=tuple(shared.values()))
    models = list[Fitted]()
    for one in trained.frontier:
        other = trained.instead(one)
        found = _assess(task, other, stated, Progress())
        if one.alpha is None:
            # A mixture that is worst at this model: several may be.
            mixtures = other.problem.mixtures
            assert mixtures is not None
            worst = mixtures.linear_maximum(np.asarray(found.assessment.loss, float))[1]
            other = replace(other, alpha=np.asarray(worst))
        made = _state(task, _with_risks(other, found.assessment), found, stated, seen)
        # An interval's share of rows is an average over rows that somebody who chooses by them has looked at.
        models.append(replace(made, intervals=None))
    return tuple(models)


class _Task(NamedTuple):
    """Clients in common units, and the problem over their rows before anything is chosen."""

    clients: Clients
    prepared: Prepared
    standard: Standard
    problem: Problem  # of straight lines
    declared: Box | None  # the declared support, in standard units
    wanted: Wanted  # of the features' lines and curves
    limits: FoldLimits  # of what clients answer over folds
    radius_spread: float | None  # what cross-validated radii are in units of


def _prepare(network: Network, options: Options, progress: Progress) -> _Task:
    choices, names = options.choices, network.columns[:-1]
    wanted = Wanted.of(choices.curves, choices.increasing, choices.decreasing, names)
    if options.algorithm is not None:
        require_lines(wanted, choices)
    progress.begin("preparing")
    prepared = network.prepare()
    standard, deviations = _units(network, options, prepared)
    loss = options.loss.in_units(standard.target_spread)
    if choices.exposure is not None and not options.loss.log_link:
        raise BidroError(
            "An exposure is for losses of counts and costs: poisson, gamma or tweedie; got "
            f"{options.loss.word}."
        )
    if options.loss.log_link and not choices.no_radius:
        raise BidroError(
            f"With a radius the worst case of {options.loss.word} loss is infinite, as its mean grows "
            "exponentially with how far rows move; leave the radius at 0."
        )
    declared = None if options.support is None else standard.box(options.support, loss.labels)
    clients = network.in_units(standard, prepared)
    federation = clients.federation
    if not federation.rows_elsewhere:
        loss.require_targets(federation.host_rows[:, -1], network.columns[-1])
    transport = transport_of(loss, federation.m, choices, standard.target_spread)
    transport = held_still(transport, wanted, names, choices.held_still)
    problem = unrestricted(federation, loss, transport, standard.target_spread, options.largest_coefficient)
    if choices.exposure is not None:
        problem = proportional_to(problem, list(names).index(choices.exposure))
    offered = np.asarray(prepared.folds)
    without = [name for name, own in zip(federation.names, offered, strict=True) if not own[1:].any()]
    limits, spread = (
        FoldLimits(_common_folds(offered), tuple(without)),
        radius_spread(deviations, transport, choices),
    )
    return _Task(clients, prepared, standard, problem, declared, wanted, limits, spread)


def _bounds(task: _Task) -> tuple[Floats, Floats]:
    """(low, high), both (k,), the declared bounds of features in standard units; infinite where there are
    none."""
    if task.declared is None:
        none = np.full(task.problem.federation.m - 1, np.inf)
        return -none, none
    return np.asarray(task.declared.lower)[:-1], np.asarray(task.declared.upper)[:-1]


def _units(network: Network, options: Options, prepared: Prepared) -> tuple[Standard, Floats]:
    """(the units of training, the deviation (m,) of every column in them)."""
    if options.units is not None:
        return options.units, agreed_deviations(options.units)
    counted = capped_sizes(np.asarray(prepared.rows, float), network.max_share)
    moments = ColumnMoments.pooled(counted, prepared.mean, prepared.deviation)
    standard = Standard.of(moments, options.loss.classes is not None)
    if options.loss.log_link:
        # What the logarithm is of is not to be centred.
        standard = replace(standard, middle=0.0)
    if options.choices.exposure is not None:
        # The logarithm of an exposure counts as it is, so that its slope is 1.
        place = network.columns.index(options.choices.exposure)
        mean, spread = standard.mean.copy(), standard.spread.copy()
        mean[place], spread[place] = 0.0, 1.0
        standard = replace(standard, mean=mean, spread=spread)
    units = np.append(standard.spread, 1.0)
    return standard, np.where(moments.varying, moments.deviation, 0.0) / units


def _train(task: _Task, options: Options, progress: Progress) -> tuple[Trained, tuple[Floats, Floats] | None]:
    """(the model, between what values (k,) in their own units curves are drawn, None where there are none);
    by Algorithm 1 where that is wanted."""
    progress.begin("choosing")
    clients, choices, problem = task.clients, options.choices, task.problem
    if options.algorithm is not None:
        return train_penalised(problem, options.algorithm, choices.seed, clients, progress.stepping), None
    draws = int(np.min(task.prepared.people))
    agreed = None if options.units is None else _bounds(task)
    how = choices, task.limits, task.standard, draws, agreed
    curves, seen = wanted_curves(clients, problem, task.wanted, *how)
    pairs = wanted_pairs(problem, task.wanted, choices, task.limits, draws)
    trained = train(
        problem,
        choices,
        task.declared,
        progress.calibration,
        progress.solving,
        progress.part or unsaid,
        clients,
        task.radius_spread,
        task.limits,
        curves,
        pairs,
    )
    if seen is None and has_curves(trained.problem.loss):
        rows = clients.federation.host_rows[:, :-1]
        seen = rows.min(axis=0), rows.max(axis=0)
    if seen is not None:
        low, high = (task.standard.mean + task.standard.spread * side for side in seen)
        seen = low, high
    return trained, seen


class _Found(NamedTuple):
    """What clients have answered of a trained model."""

    stated: Problem  # as trained, but for any mixture, on the declared support
    of: CertifiedModel
    message: Assess  # the query about their training rows
    assessment: Assessment
    personal_models: Mapping[str, Floats]
    distances: Floats | None  # (n, n) between the clients' training rows
    bounds: HoldoutBounds | None  # None where no rows are held out
    baselines: Baselines | None  # None where clients get no query for it
    fits: HeldOutFits | None  # of held-out rows; None where none are here


def _assess(task: _Task, trained: Trained, options: Options, progress: Progress) -> _Found:
    """How the model does on training rows, and what held-out rows say of it."""
    progress.begin("assessing")
    clients, federation, levels = task.clients, task.clients.federation, options.confidences
    if task.declared is not None:
        federation = replace(federation, support=task.declared)
    stated = replace(trained.problem, federation=federation, mixtures=Simplex(federation.n))
    message = _assess_message(task, trained, stated, options)
    found = clients.assess(trained.problem, task.declared, message)
    personal_models = clients.personal_models(stated.loss, message)
    distances = clients.distances(stated, found) if len(message.radii[0]) else None
    unit = loss_unit(stated.loss, federation.m, task.standard.target_spread)
    of = CertifiedModel.of(stated, trained.x, clip_level(float(np.max(found.loss)), unit))
    fixed, bounds, fits = _fixed(of, levels, message), None, None
    if np.any(np.asarray(task.prepared.holdout)):
        progress.begin("certifying")
        bounds, fits = clients.bounds(of, fixed), clients.row_fits(of, fixed)
    others = {} if trained.robust is None else {"robust": trained.robust}
    baselines = clients.baselines(of, fixed, others) if options.shown else Baselines(None, {})
    return _Found(stated, of, message, found, personal_models, distances, bounds, baselines, fits)


def _state(
    task: _Task, trained: Trained, found: _Found, options: Options, seen: tuple[Floats, Floats] | None
) -> Fitted:
    """All that came of it, with its certificates."""
    prepared, stated, bounds, baselines = task.prepared, found.stated, found.bounds, found.baselines
    names, people = stated.federation.names, stated.federation.people is not None
    compared = np.size(found.message.pooled) > 0
    changes, evaluation = None, _evaluation(names, found.assessment, prepared.rows, prepared.people)
    if bounds is not None:
        evaluation = _evaluation(names, bounds, prepared.holdout, prepared.holdout_people)
        changes = _changes(names, bounds, prepared.holdout_people) if compared else None
    over_rows: dict[str, Any] = {}
    if bounds is not None and people:
        over_rows = {"clipped": bounds.loss, "personal": bounds.personal_loss}
        if baselines is not None and baselines.costs and found.of.loss.labels is not None:
            over_rows |= {
                "mistakes": baselines.costs["shared"],
                "personal_mistakes": baselines.costs["personal"],
            }
    if baselines is None:
        personal = np.size(found.message.freedom) > 0
        baselines = baselines_of_replies(found.of.loss, prepared, task.standard, bounds, personal, people)
    certificates = {
        level: _certificate(trained, found, options, prepared, over_rows, k)
        for k, level in enumerate(options.confidences)
    }
    return Fitted(
        task.clients,
        task.standard,
        trained,
        stated,
        found.of,
        found.distances,
        certificates,
        evaluation,
        int(np.sum(prepared.holdout)),
        _displaced(task, found, _heaviest(trained, options)),
        found.personal_models,
        changes,
        _varies(found.assessment, prepared.rows) if compared else None,
        baselines,
        seen,
        _intervals(found, options, prepared),
        _steepness(found),
    )


def _steepness(found: _Found) -> tuple[float | None, float]:
    """(how fast a residual changes as rows move in W_p, under the steepest model, None for classes;
    p)."""
    loss, transport = found.of.loss, found.stated.transport
    if not isinstance(loss, ResidualLoss):
        return None, transport.p
    steepness: Any = loss.dual_norm
    models = [found.of.x, *found.personal_models.values()]
    return max(float(steepness(x, transport.inverse_scale)) for x in models), transport.p


def _displaced(task: _Task, found: _Found, shown: list[int]) -> dict[str, Displacement]:
    """How the worst cases that are shown move their clients' features."""
    prepared, standard, before = task.prepared, task.standard, None
    if np.size(prepared.mean):
        before = (np.asarray(prepared.mean)[:, :-1] - standard.mean) / standard.spread
    return {
        found.stated.federation.names[i]: Displacement(
            None if before is None or prepared.rows[i] < FEWEST_DESCRIBED else before[i],
            np.asarray(found.assessment.moved)[i],
            np.asarray(found.assessment.typical)[i],
        )
        for i in shown
    }


def _heaviest(trained: Trained, options: Options) -> list[int]:
    """The clients whose worst case is shown: those that count most in the worst mixture."""
    if not options.shown or not trained.problem.ambiguity_set.over_balls:
        return []
    return [int(i) for i in np.argsort(-trained.alpha, kind="stable")[:MOST_WORST_CASES]]


def _certificate(
    trained: Trained,
    found: _Found,
    options: Options,
    prepared: Prepared,
    over_rows: Mapping[str, Any],
    k: int,
) -> Certificate:
    """At the k-th confidence; `over_rows` as in `_by_client`."""
    stated, of, level = found.stated, found.of, options.confidences[k]
    risks = None if found.distances is None else np.asarray(found.assessment.robust)[:, k]
    means = np.asarray(found.assessment.loss)
    bare = without_holdout(stated, of.x, level, distances=found.distances, risks=risks, means=means)
    bare = replace(bare, weights=tuple(trained.alpha.tolist()))
    if found.bounds is None:
        return bare
    own = _by_client(stated.federation.names, found.bounds, prepared.holdout_people, over_rows, k)
    people = stated.federation.people is not None
    made = statements_of(own, of.limits, level, of.mixtures, people=people)
    if found.fits is not None:
        of_rows: RowPromise | None = of_fits(found.fits, level, bool(found.personal_models))
    else:
        of_rows = _of_bounds(found, options, prepared, k)
    return with_statements(bare, of, made, level, options.choices.shift, of_rows)


def _of_bounds(found: _Found, options: Options, prepared: Prepared, k: int) -> RowPromise | None:
    """What is promised of rows that are elsewhere, at the k-th confidence: of a number at the one of the
    choices alone."""
    level, bounds = options.confidences[k], found.bounds
    assert bounds is not None
    if np.size(bounds.rows):
        if level != options.choices.confidence:
            return None
        told, share = _finite(bounds.rows)[:, 0], SHARE
    elif found.of.loss.labels is not None:
        mistakes = bounds.personal_mistakes if np.size(bounds.personal_mistakes) else bounds.mistakes
        told, share = np.asarray(mistakes, float)[:, k], None
    else:
        return None
    names = found.stated.federation.names
    draws, rows = (
        {name: int(n) for name, n in zip(names, counts, strict=True)}
        for counts in (prepared.holdout_people, prepared.holdout)
    )
    people = found.stated.federation.people is not None
    of_each = dict(zip(names, told.tolist(), strict=True))
    personal = bool(np.any(np.asarray(found.message.freedom) > 0))
    return of_bounds(of_each, draws, rows, level, share, people, personal)


def _finite(rows: Any) -> Floats:
    """(n, models) bounds of rows as sites tell them, inf where there is none."""
    told = np.asarray(rows, float)
    return np.where(told == FEW, np.inf, told)


def _intervals(found: _Found, options: Options, prepared: Prepared) -> Intervals | None:
    """For new rows; across sites from the one bound that each tells of its own, with its confidence."""
    if found.fits is not None:
        return Intervals.of(found.fits, *_steepness(found))
    if found.bounds is None or not np.size(found.bounds.rows):
        return None
    names, told = found.stated.federation.names, _finite(found.bounds.rows)
    quantiles = RowQuantiles(
        SHARE,
        dict(zip(names, told[:, 0].tolist(), strict=True)),
        float(told[:, -1].max()),
        None,
        dict(zip(names, np.asarray(prepared.holdout_people).astype(int).tolist(), strict=True)),
        people=found.stated.federation.people is not None,
        confidence=options.choices.confidence,
    )
    freedom = np.asarray(found.message.freedom)
    personal = [name for name, own in zip(names, freedom, strict=True) if np.any(own > 0)]
    return Intervals((quantiles,), None, personal=tuple(personal))


def _with_risks(trained: Trained, found: Assessment) -> Trained:
    """Where curves and pairs were smoothed and there is no radius, the risks are the mean losses; with a
    radius those of the solution, smoothing included, are upper ends of them."""
    loss = trained.problem.loss
    smoothed = loss.infimum_at_infinity or has_curves(loss)
    if not smoothed or trained.solution is None or np.any(np.asarray(trained.problem.eps) > 0):
        return trained
    return replace(trained, solution=replace(trained.solution, risks=np.asarray(found.loss, float)))


def agreed_deviations(units: Standard) -> Floats:
    """(m,) the deviations of the columns where these are agreed on, in these units: the agreed spreads."""
    return np.append(np.ones(len(units.mean)), units.target_spread)


def radius_spread(deviations: Floats, transport: Transport, choices: FitSettings) -> float | None:
    """What cross-validated radii are in units of; None where there are none."""
    if not choices.cross_validates_radius:
        return None
    return spread_of(deviations, transport)


def _common_folds(offered: Any) -> tuple[int, ...]:
    """The numbers of folds that all clients answer, from what each (n, FOLDS) offers."""
    return tuple((np.flatnonzero(np.asarray(offered).all(axis=0)) + 1).tolist())


def _freedoms(trained: Trained) -> Floats:
    """(n, q + 1) of the clients' personal models, see `Assess`; (n, 0) where there are none."""
    n, personal = trained.problem.n, trained.personal
    if personal is None or not personal.adopts.any():
        return np.zeros((n, 0))
    return np.where(personal.adopts[:, None], np.append(personal.freedom, 1.0), 0.0) * np.column_stack(
        [np.ones((n, len(personal.freedom))), personal.share]
    )


def _varies(found: Assessment, rows: Any) -> float:
    """The deviation of the model's scores over all training rows, as a share of that of pooled training."""
    share = np.asarray(rows, float) / np.sum(rows)
    centre = np.asarray(found.centre)  # (n, 2, scores)
    between = np.sum((centre - np.einsum("n,nms->ms", share, centre)) ** 2, axis=-1)
    shared, pooled = share @ (np.asarray(found.predicted) + between)
    return float(np.sqrt(shared / pooled)) if pooled > 0 else 1.0


def _assess_message(task: _Task, trained: Trained, stated: Problem, options: Options) -> Assess:
    n, x = stated.n, trained.x
    radii, reference = np.zeros((n, 0)), np.zeros((0, stated.federation.m))
    if interval_obstacle(stated, x) is None:
        radii = np.stack([explicit_radii(stated, level) for level in options.confidences], axis=1)
        reference = task.clients.reference(stated, task.standard)
    shown = np.isin(np.arange(n), _heaviest(trained, options)).astype(float)
    pooled = np.zeros(0) if trained.pooled is None else trained.pooled
    freedom = _freedoms(trained)
    common = np.zeros(0)
    if trained.personal is not None and trained.personal.common is not None and freedom.size:
        common = trained.personal.common
    return Assess(x, radii, reference, shown, freedom, common, pooled)


def _fixed(of: CertifiedModel, levels: list[float], message: Assess) -> HoldoutQuery:
    largest = np.zeros(0) if of.largest is None else np.array([of.largest])
    betas = [client_level(level, of.mixtures.dimension, of.mixtures) for level in levels]
    of_models = message.freedom, message.common, message.pooled
    return HoldoutQuery(of.x, np.array(betas), np.asarray(of.seen), largest, *of_models)


def _evaluation(names: tuple[str, ...], found: Any, rows: Any, draws: Any) -> dict[str, ClientLoss]:
    """From the mean losses and standard errors of an `Assessment` or of `HoldoutBounds`; draws are rows, or
    people."""
    return {
        name: ClientLoss(float(loss), float(se) if drawn > 1 else None, int(count), float(used))
        for name, loss, se, used, count, drawn in zip(
            names, found.loss, found.se, found.personal_loss, rows, draws, strict=True
        )
    }


def _changes(names: tuple[str, ...], found: HoldoutBounds, draws: Any) -> dict[str, Changes]:
    def change(numbers: Floats, count: float) -> Change:
        return Change(float(numbers[0]), float(numbers[1]) if count > 1 else None)

    each = zip(names, np.asarray(found.shared_change), np.asarray(found.personal_change), draws, strict=True)
    return {name: Changes(change(shared, count), change(used, count)) for name, shared, used, count in each}


def _by_client(
    names: tuple[str, ...], found: HoldoutBounds, draws: Any, over_rows: Mapping[str, Any], k: int
) -> dict[str, dict[str, ClientBound]]:
    """The clients' bounds at one level, by statement; draws (n,) are held-out rows, or people, and
    `over_rows` has by statement the means (n,) over rows where these are people, as far as they are known."""
    parts = {name: getattr(found, name) for name in STATEMENTS}
    means = np.asarray(found.means)
    return {
        name: {
            part: ClientBound(
                float(values[i, k]),
                float(means[i, j]),
                int(draws[i]),
                float(over_rows[part][i]) if part in over_rows else None,
            )
            for j, (part, values) in enumerate(parts.items())
            if np.asarray(values).size
        }
        for i, name in enumerate(names)
    }
