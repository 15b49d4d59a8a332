"""`fit`: from a network of clients to a model and all that is stated of it.

Prepare, choose, solve, assess, state: the same steps whether the rows are in this process or on machines of
their own. `RobustRegressor.fit`, `bidro fit` and `bidro federate` are callers of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bidro.arrays import Floats
from bidro.fitting.asked_curves import held_still, of_losses_alone, require_lines, wanted_curves, with_risks
from bidro.fitting.beside import Beside, beside_answers
from bidro.fitting.client_side import STATEMENTS
from bidro.fitting.fitted import (
    FEWEST_DESCRIBED,
    Change,
    Changes,
    ClientLoss,
    Displacement,
    Fitted,
    Options,
    Progress,
)
from bidro.fitting.network import Clients, Network
from bidro.fitting.private import private_fit
from bidro.fitting.questions import Assess, Assessment, Fixed, HoldoutBounds, Prepared
from bidro.guarantees.calibration import Limits, spread_of
from bidro.guarantees.certificate import Certificate
from bidro.guarantees.held_out import ClientBound, client_level
from bidro.guarantees.out_of_sample import explicit_radii
from bidro.guarantees.segments import Wanted
from bidro.guarantees.statements import (
    Assessed,
    clip_level,
    from_bounds,
    interval_obstacle,
    loss_unit,
    without_holdout,
)
from bidro.problem import Problem
from bidro.sets import Box, Simplex, capped_sizes
from bidro.standard import Moments, Standard
from bidro.training import (
    Choices,
    Trained,
    train,
    train_penalised,
    transport_of,
    unrestricted,
)
from bidro.transport import Transport

# Clients whose worst case is shown.
MOST_WORST_CASES = 12


def fit(network: Network, options: Options, progress: Progress | None = None) -> Fitted:
    """Raises BidroError for anything in tables or options that does not fit."""
    if options.privacy is not None:
        return private_fit(network, options, progress or Progress())
    return _Fit(network, options, progress or Progress()).run()


@dataclass(frozen=True, eq=False)
class _Fit:
    network: Network
    options: Options
    progress: Progress

    def run(self) -> Fitted:
        options, choices = self.options, self.options.choices
        names = self.network.columns[:-1]
        wanted = Wanted.of(choices.curves, choices.increasing, choices.decreasing, names)
        if options.algorithm is not None:
            require_lines(wanted)
        self.progress.begin("preparing")
        prepared = self.network.prepare()
        standard, deviations = self._units(prepared)
        loss = options.loss.in_units(standard.target_spread)
        box = None if options.support is None else standard.box(options.support, loss.labels)
        clients = self.network.in_units(standard, prepared)
        transport = transport_of(loss, clients.federation.m, choices, standard.target_spread)
        transport = held_still(transport, wanted, names)
        whole = unrestricted(
            clients.federation, loss, transport, standard.target_spread, options.largest_coefficient
        )
        self.progress.begin("choosing")
        offered = np.asarray(prepared.folds)
        without = [
            name for name, own in zip(clients.federation.names, offered, strict=True) if not own[1:].any()
        ]
        limits = Limits(_by_all(offered), tuple(without))
        seen = None
        if options.algorithm is None:
            draws = int(np.min(prepared.units))
            curves, seen = wanted_curves(clients, whole, wanted, choices, limits, standard, draws)
            trained = train(
                whole,
                choices,
                box,
                self.progress.calibration,
                self.progress.solving,
                clients,
                radius_spread(deviations, transport, choices),
                limits,
                curves,
            )
        else:
            trained = train_penalised(whole, options.algorithm, choices.seed, clients, self.progress.stepping)
        trained = of_losses_alone(trained)
        declared = clients.federation if box is None else replace(clients.federation, support=box)
        stated = replace(trained.problem, federation=declared, mixtures=Simplex(declared.n))
        found = self._stated(clients, prepared, standard, trained, stated, box)
        if seen is not None:
            low, high = (standard.mean + standard.spread * side for side in seen)
            found = replace(found, seen=(low, high))
        return found

    def _units(self, prepared: Prepared) -> tuple[Standard, Floats]:
        """(the units of training, the deviation (m,) of every column in them)."""
        if self.options.units is not None:
            return self.options.units, agreed_deviations(self.options.units)
        counted = capped_sizes(np.asarray(prepared.rows, float), self.network.max_share)
        moments = Moments.pooled(counted, prepared.mean, prepared.deviation)
        standard = Standard.of(moments, self.options.loss.classes is not None)
        units = np.append(standard.spread, 1.0)
        return standard, np.where(moments.varying, moments.deviation, 0.0) / units

    def _stated(
        self,
        clients: Clients,
        prepared: Prepared,
        standard: Standard,
        trained: Trained,
        stated: Problem,
        box: Box | None,
    ) -> Fitted:
        """How the model does on training rows, and what rows kept out say of it."""
        self.progress.begin("assessing")
        names, x, levels = stated.federation.names, trained.x, self.options.confidences
        shown, freedom = self._count_most(trained), _freedoms(trained)
        pooled = np.zeros(0) if trained.pooled is None else trained.pooled
        message = _assess(clients, stated, standard, x, levels, shown, freedom, pooled)
        found = clients.assess(trained.problem, box, message)
        own_models = clients.own_models(stated.loss, message)
        trained = with_risks(trained, found)
        distances = clients.distances(stated, found) if len(message.radii[0]) else None
        unit = loss_unit(stated.loss, stated.federation.m, standard.target_spread)
        of = Assessed.of(stated, x, clip_level(float(np.max(found.loss)), unit))
        holdout = np.asarray(prepared.holdout)
        bounds, changes, judged = None, None, _judged(names, found, prepared.rows, prepared.units)
        fixed = _fixed(of, levels, freedom, pooled)
        if holdout.any():
            self.progress.begin("certifying")
            bounds = clients.bounds(of, fixed)
            judged = _judged(names, bounds, holdout, prepared.holdout_units)
            changes = _changes(names, bounds, prepared.holdout_units) if pooled.size else None
        beside = clients.beside(of, fixed) if self.options.shown else Beside(None, {})
        over_rows: dict[str, Any] = {}
        if bounds is not None and stated.federation.units is not None:
            over_rows = {"clipped": bounds.loss, "own": bounds.own_loss}
            if beside is not None and beside.costs and of.loss.labels is not None:
                over_rows |= {"mistakes": beside.costs["shared"], "own_mistakes": beside.costs["own"]}
        if beside is None:
            units = stated.federation.units is not None
            beside = beside_answers(of.loss, prepared, standard, bounds, freedom.size > 0, units)
        certificates = {
            level: self._certificate(
                trained, stated, of, found, distances, bounds, prepared.holdout_units, over_rows, k
            )
            for k, level in enumerate(levels)
        }
        before = None
        if np.size(prepared.mean):
            before = (np.asarray(prepared.mean)[:, :-1] - standard.mean) / standard.spread
        displaced = {
            names[i]: Displacement(
                None if before is None or prepared.rows[i] < FEWEST_DESCRIBED else before[i],
                np.asarray(found.moved)[i],
                np.asarray(found.typical)[i],
            )
            for i in shown
        }
        return Fitted(
            clients,
            standard,
            trained,
            stated,
            of,
            distances,
            certificates,
            judged,
            int(holdout.sum()),
            displaced,
            own_models,
            changes,
            _varies(found, prepared.rows) if pooled.size else None,
            beside,
        )

    def _count_most(self, trained: Trained) -> list[int]:
        """The clients whose worst case is shown: those that count most in the worst mixture."""
        if not self.options.shown or trained.problem.eps is None:
            return []
        return [int(i) for i in np.argsort(-trained.alpha, kind="stable")[:MOST_WORST_CASES]]

    def _certificate(
        self,
        trained: Trained,
        stated: Problem,
        of: Assessed,
        found: Assessment,
        distances: Floats | None,
        bounds: HoldoutBounds | None,
        draws: Any,
        over_rows: Mapping[str, Any],
        k: int,
    ) -> Certificate:
        level = self.options.confidences[k]
        risks = None if distances is None else np.asarray(found.robust)[:, k]
        bare = without_holdout(
            stated, of.x, level, distances=distances, risks=risks, means=np.asarray(found.loss)
        )
        bare = replace(bare, weights=tuple(trained.alpha.tolist()))
        if bounds is None:
            return bare
        own = _by_client(stated.federation.names, bounds, draws, over_rows, k)
        units = stated.federation.units is not None
        return from_bounds(bare, of, own, level, self.options.shift, units=units)


def agreed_deviations(units: Standard) -> Floats:
    """(m,) the deviations of the columns where these are agreed on, in these units: the agreed spreads."""
    return np.append(np.ones(len(units.mean)), units.target_spread)


def radius_spread(deviations: Floats, transport: Transport, choices: Choices) -> float | None:
    """What cross-validated radii are in units of; None where there are none."""
    if not choices.cross_validates_radius:
        return None
    return spread_of(deviations, transport)


def _by_all(offered: Any) -> tuple[int, ...]:
    """The numbers of folds that all clients answer, from what each (n, FOLDS) offers."""
    return tuple((np.flatnonzero(np.asarray(offered).all(axis=0)) + 1).tolist())


def _freedoms(trained: Trained) -> Floats:
    """(n, 2) of the clients' own models; (n, 0) where there are none."""
    n, own = trained.problem.n, trained.own
    if own is None or not own.adopts.any():
        return np.zeros((n, 0))
    return np.where(own.adopts[:, None], own.shrinkage.freedom, 0.0)


def _varies(found: Assessment, rows: Any) -> float:
    """The deviation of the model's scores over all training rows, as a share of that of pooled training."""
    share = np.asarray(rows, float) / np.sum(rows)
    centre = np.asarray(found.centre)  # (n, 2, scores)
    between = np.sum((centre - np.einsum("n,nms->ms", share, centre)) ** 2, axis=-1)
    shared, pooled = share @ (np.asarray(found.predicted) + between)
    return float(np.sqrt(shared / pooled)) if pooled > 0 else 1.0


def _assess(
    clients: Clients,
    stated: Problem,
    standard: Standard,
    x: Floats,
    levels: list[float],
    shown: list[int],
    freedom: Floats,
    pooled: Floats,
) -> Assess:
    n = stated.n
    radii, reference = np.zeros((n, 0)), np.zeros((0, stated.federation.m))
    if interval_obstacle(stated, x) is None:
        radii = np.stack([explicit_radii(stated, level) for level in levels], axis=1)
        reference = clients.reference(stated, standard)
    counted = np.isin(np.arange(n), shown).astype(float)
    return Assess(x, radii, reference, counted, freedom, pooled)


def _fixed(of: Assessed, levels: list[float], freedom: Floats, pooled: Floats) -> Fixed:
    largest = np.zeros(0) if of.largest is None else np.array([of.largest])
    betas = [client_level(level, of.mixtures.dimension, of.mixtures) for level in levels]
    return Fixed(of.x, np.array(betas), np.asarray(of.seen), largest, freedom, pooled)


def _judged(names: tuple[str, ...], found: Any, rows: Any, draws: Any) -> dict[str, ClientLoss]:
    """From the mean losses and standard errors of an `Assessment` or of `HoldoutBounds`; draws are rows, or
    units."""
    return {
        name: ClientLoss(float(loss), float(se) if drawn > 1 else None, int(count), float(own))
        for name, loss, se, own, count, drawn in zip(
            names, found.loss, found.se, found.own_loss, rows, draws, strict=True
        )
    }


def _changes(names: tuple[str, ...], found: HoldoutBounds, draws: Any) -> dict[str, Changes]:
    def change(numbers: Floats, count: float) -> Change:
        return Change(float(numbers[0]), float(numbers[1]) if count > 1 else None)

    each = zip(names, np.asarray(found.shared_change), np.asarray(found.own_change), draws, strict=True)
    return {name: Changes(change(shared, count), change(own, count)) for name, shared, own, count in each}


def _by_client(
    names: tuple[str, ...], found: HoldoutBounds, draws: Any, over_rows: Mapping[str, Any], k: int
) -> dict[str, dict[str, ClientBound]]:
    """The clients' bounds at one level, by statement; draws (n,) are rows kept out, or units, and `over_rows`
    has by statement the means (n,) over rows where these are units, as far as they are known."""
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
