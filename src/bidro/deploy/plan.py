"""The server's part of a federated fit: prepare, choose, solve, assess, state, as `bidro fit` does.

If a client is lost and the policy is to go on without it, all of it begins again with the others: then the
model is exactly the one that they would have had by themselves. What they have answered already is not asked
again where the question is the same.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

import bidro
from bidro.algorithms import BiDROFL
from bidro.client import Penalty
from bidro.deploy.job import Job
from bidro.deploy.questions import Assessment, Fixed, FreshBounds, Model, Prepared
from bidro.engines.coordinator import Coordinator, LostClientsError, Nothing
from bidro.engines.network import run_over
from bidro.engines.plain import described
from bidro.engines.remote import Remote, own_ambiguity
from bidro.engines.solve import LARGEST_CURVATURE, Solution
from bidro.errors import BidroError
from bidro.federation import Federation
from bidro.guarantees.calibration import FOLDS
from bidro.guarantees.certificate import Certificate
from bidro.guarantees.held_out import ClientBound
from bidro.guarantees.heterogeneity import REFERENCE_POINTS
from bidro.guarantees.on_support import largest_loss
from bidro.guarantees.out_of_sample import explicit_radii
from bidro.guarantees.statements import (
    Assessed,
    clip_level,
    from_bounds,
    interval_obstacle,
    shift_slope,
    without_kept_out,
)
from bidro.losses import Loss, Squared
from bidro.problem import Problem
from bidro.sets import Box, Simplex
from bidro.standard import Moments, Standard
from bidro.tables import bounds_of
from bidro.training import Choices, Trained, train, transport_of, unrestricted
from bidro.transport import Transport
from bidro.workflow.fit import LEVELS, Displacement, Fit, count_most, loss_of, make_model
from bidro.workflow.judged import ClientLoss

Floats = NDArray[np.float64]


def federated_fit(job: Job, coordinator: Coordinator, created: str) -> Fit:
    """The model has `created` as its day. Raises BidroError where the run must stop."""
    lost: dict[str, str] = {}
    for head in coordinator.record.heads:
        lost |= head.get("lost", {})
    coordinator.wait_for([name for name in job.clients if name not in lost])
    while True:
        names = tuple(sorted(name for name in job.clients if name not in lost))
        try:
            return _Plan(job, coordinator, names, lost, created).fit()
        except LostClientsError as error:
            lost |= error.reasons
            coordinator.say(f"going on without {', '.join(error.reasons)}")


@dataclass(frozen=True)
class _Sites:
    """What "prepare" told."""

    federation: Federation
    fresh: dict[str, int]  # rows kept out
    folds: int  # the most that all sites allow
    tables: dict[str, float]  # digests
    moments: Moments
    means: dict[str, Floats]


@dataclass(frozen=True)
class _Plan:
    job: Job
    coordinator: Coordinator
    names: tuple[str, ...]
    lost: Mapping[str, str]
    created: str

    def fit(self) -> Fit:
        options, schema = self.job.options, self.job.agreed.schema
        self.coordinator.say("preparing")
        sites = self._prepare()
        standard = Standard.of(sites.moments, schema.classes is not None)
        loss = loss_of(options, schema, standard.target_spread)
        m = sites.federation.m
        transport = transport_of(loss, m, options.metric, options.label_cost, None, standard.target_spread)
        box = None
        if options.support is not None:
            box = standard.box(bounds_of(options.support, schema), loss.labels)
        remote = Remote(self.coordinator, self._shared(standard, sites))
        if self.job.algorithm is None:
            trained = self._solve(sites, loss, transport, standard, box, remote)
        else:
            trained = self._algorithm_one(sites, loss, transport, standard, remote)
        declared = sites.federation if box is None else replace(sites.federation, support=box)
        stated = replace(trained.problem, federation=declared, mixtures=Simplex(len(self.names)))
        return self._certified(sites, standard, trained, stated)

    def _shared(self, standard: Standard, sites: _Sites) -> dict[str, dict[str, Any]]:
        """What every request says, by client: which rows to use, by which schema, in what units."""
        units = {
            "mean": standard.mean.tolist(),
            "spread": standard.spread.tolist(),
            "middle": standard.middle,
            "target_spread": standard.target_spread,
        }
        return {
            name: {**self._about(), "standard": units, "table": sites.tables[name]} for name in self.names
        }

    def _about(self) -> dict[str, Any]:
        options = self.job.options
        return {
            "version": bidro.__version__,
            "agreed": self.job.agreed.digest,
            "hold_out": options.hold_out,
            "split_seed": options.seed,
        }

    def _prepare(self) -> _Sites:
        schema = self.job.agreed.schema
        columns = [*schema.features, schema.target]
        like, about = Prepared.like(len(columns)), self._about()
        nothing = dict.fromkeys(self.names, Nothing())
        found = self.coordinator.ask("prepare", 1, dict.fromkeys(self.names, about), nothing, like)
        sizes = {name: int(found[name].rows) for name in self.names}
        parts = [Moments(sizes[k], np.asarray(v.mean), np.asarray(v.deviation)) for k, v in found.items()]
        return _Sites(
            Federation.elsewhere(sizes, columns),
            {name: int(one.kept_out) for name, one in found.items()},
            min(int(one.folds) for one in found.values()),
            {name: float(one.table) for name, one in found.items()},
            Moments.pooled(parts),
            {name: np.asarray(one.mean)[:-1] for name, one in found.items()},
        )

    def _solve(
        self,
        sites: _Sites,
        loss: Loss,
        transport: Transport,
        standard: Standard,
        box: Box | None,
        remote: Remote,
    ) -> Trained:
        options, say = self.job.options, self.coordinator.say
        fewest = min(sites.federation.sizes)
        dimension = loss.dimension(sites.federation.m)
        curvature = (
            self.job.replies == "curvature" and 2 * dimension < fewest and dimension <= LARGEST_CURVATURE
        )
        choices = Choices(
            options.radius,
            options.weights,
            options.gap,
            options.folds,
            options.seed,
            options.confidence,
            "curvature" if curvature else "gradients",
        )
        if isinstance(options.radius, str) and options.radius == "cross-validate":
            folds, in_folds = _folds(fewest, sites.folds, dimension, options.folds, curvature)
            choices = replace(choices, folds=folds, fold_curvature=in_folds)
        return train(
            sites.federation,
            loss,
            transport,
            choices,
            standard.target_spread,
            box,
            lambda t, left: say(f"cross-validating: round {t}, {left} candidates to go"),
            lambda t, gap: say(f"solving: round {t}, gap {gap:.1e}"),
            remote,
            _spread(sites.moments, standard, transport),
        )

    def _algorithm_one(
        self, sites: _Sites, loss: Loss, transport: Transport, standard: Standard, remote: Remote
    ) -> Trained:
        """Rounds in which a client that does not answer counts as one that stood still."""
        settings = self.job.algorithm
        assert settings is not None
        whole = unrestricted(sites.federation, loss, transport, standard.target_spread)
        problem = replace(whole, ambiguity=Penalty(settings.rho))
        algorithm = BiDROFL(settings.eta_x, settings.eta_alpha)
        began = time.perf_counter()
        state = run_over(
            replace(remote, needs_all=False),
            algorithm,
            problem,
            settings.rounds,
            self.job.options.seed,
            lambda t: self.coordinator.say(f"Algorithm 1: round {t} of {settings.rounds}"),
        )
        final = algorithm.snapshot(state)
        unknown = np.full(problem.n, np.nan)
        solution = Solution(
            x=np.asarray(final.x),
            alpha=np.asarray(final.alpha),
            risks=unknown,
            multipliers=unknown,
            names=sites.federation.names,
            upper=float("inf"),
            lower=float("-inf"),
            certified=False,
            method="Algorithm 1",
            why="it was asked for",
            rounds=settings.rounds,
            bytes_to_client=0,
            bytes_from_client=0,
            history=np.zeros((0, 2)),
            seconds=time.perf_counter() - began,
            problem=problem.fingerprint,
            state=state,
        )
        words = f"Algorithm 1 with penalties rho = {settings.rho:g}: there are no balls."
        return Trained(problem, solution, None, words, float("inf"))

    def _certified(self, sites: _Sites, standard: Standard, trained: Trained, stated: Problem) -> Fit:
        """Two rounds: how the model does on training rows, and what rows kept out say of it."""
        options, x = self.job.options, trained.solution.x
        levels = sorted({*LEVELS, options.confidence})
        self.coordinator.say("assessing the model")
        found = self._assess(sites, standard, trained.problem, stated, x, levels)
        largest = largest_loss(stated, x)
        of_root = isinstance(stated.loss, Squared) and stated.transport.p >= 2
        clip = clip_level(max(float(one.largest) for one in found.values()))
        slope = shift_slope(stated, jnp.asarray(x))
        of = Assessed(stated.loss, x, stated.weights, clip, largest, slope, of_root)
        judged = {
            name: ClientLoss(float(v.loss), float(v.se), int(n))
            for (name, v), n in zip(found.items(), sites.federation.sizes, strict=True)
        }
        bounds = None
        if options.hold_out > 0:
            self.coordinator.say("certifying on rows kept out")
            bounds, judged = self._fresh(sites, standard, of, levels)
        weights = tuple(trained.solution.alpha.tolist())
        certificates = {
            level: replace(self._certificate(stated, of, found, bounds, levels, k), weights=weights)
            for k, level in enumerate(levels)
        }
        most = count_most(trained) if trained.problem.eps is not None else []
        displaced = {
            name: Displacement(
                (sites.means[name] - standard.mean) / standard.spread,
                np.asarray(found[name].moved),
                np.asarray(found[name].typical),
            )
            for name in most
        }
        return Fit(
            options,
            make_model(options, self.job.agreed.schema, standard, of, trained, self.created),
            certificates[options.confidence],
            tuple(certificates.values()),
            trained,
            judged,
            sum(sites.fresh.values()),
            displaced,
        )

    def _assess(
        self,
        sites: _Sites,
        standard: Standard,
        trained: Problem,
        stated: Problem,
        x: Floats,
        levels: list[float],
    ) -> dict[str, Assessment]:
        m = stated.federation.m
        radii, reference = np.zeros((0, stated.n)), np.zeros((0, m))
        if interval_obstacle(stated, x) is None:
            radii = np.stack([explicit_radii(stated, level) for level in levels])
            reference = _reference(stated, standard)
        what = {"loss": described(trained.loss), "transport": described(trained.transport)}
        shared = self._shared(standard, sites)
        like = Assessment.like(len(radii), m - 1)
        settings = {
            name: {
                **shared[name],
                **what,
                "ambiguity": own_ambiguity(trained, i),
                "radii": radii[:, i].tolist(),
            }
            for i, name in enumerate(self.names)
        }
        return self.coordinator.ask("assess", 1, settings, dict.fromkeys(settings, Model(x, reference)), like)

    def _fresh(
        self, sites: _Sites, standard: Standard, of: Assessed, levels: list[float]
    ) -> tuple[dict[str, list[dict[str, ClientBound]]], dict[str, ClientLoss]]:
        """(the bounds of every client by level, the losses on rows kept out)."""
        largest = np.zeros(0) if of.largest is None else np.array([of.largest])
        message = Fixed(of.x, 1 - np.array(levels), np.asarray(of.seen), largest)
        labels = of.loss.labels is not None
        like = FreshBounds.like(len(levels), of.largest is not None, labels)
        shared = self._shared(standard, sites)
        settings = {name: {**shared[name], "loss": described(of.loss)} for name in self.names}
        found = self.coordinator.ask("bounds", 1, settings, dict.fromkeys(settings, message), like)
        bounds: dict[str, list[dict[str, ClientBound]]] = {}
        for name, one in found.items():
            parts = {"clipped": one.clipped, "held_out": one.held_out, "mistakes": one.mistakes}
            means = dict(zip(parts, np.asarray(one.means), strict=True))
            bounds[name] = [
                {
                    part: ClientBound(float(values[k]), float(means[part]), sites.fresh[name])
                    for part, values in parts.items()
                    if values.size
                }
                for k in range(len(levels))
            ]
        judged = {
            name: ClientLoss(float(v.loss), float(v.se), sites.fresh[name]) for name, v in found.items()
        }
        return bounds, judged

    def _certificate(
        self,
        stated: Problem,
        of: Assessed,
        found: Mapping[str, Assessment],
        bounds: Mapping[str, list[dict[str, ClientBound]]] | None,
        levels: list[float],
        k: int,
    ) -> Certificate:
        means = np.array([float(one.loss) for one in found.values()])
        distances = risks = None
        if interval_obstacle(stated, of.x) is None:
            far = np.array([float(one.distance[0]) for one in found.values()])
            distances = far[:, None] + far[None, :]
            np.fill_diagonal(distances, 0.0)
            risks = np.array([float(one.robust[k]) for one in found.values()])
        bare = without_kept_out(stated, of.x, levels[k], distances=distances, risks=risks, means=means)
        if bounds is not None:
            own = {name: by_level[k] for name, by_level in bounds.items()}
            bare = from_bounds(bare, of, own, levels[k], self.job.options.shift)
        if not self.lost:
            return bare
        who = ", ".join(self.names)
        without = ", ".join(f"'{name}'" for name in self.lost)
        return dataclasses.replace(
            bare, mixtures=f"any mixture of {who} (not of {without}: lost in training)"
        )


def _folds(rows: int, most: int, dimension: int, wanted: int | None, curvature: bool) -> tuple[int, bool]:
    """(how many folds, whether their replies hold curvature): the most folds that sites allow, with curvature
    if that is possible at all; `rows` are the fewest training rows of a client."""
    counts = [count for count in range(FOLDS, 1, -1) if count <= most] if wanted is None else [wanted]
    for count in counts if curvature else []:
        if rows // count > 2 * dimension:
            return count, True
    if counts:
        return counts[0], False
    raise BidroError(
        "A site has too few rows, or too few with a rare level or class, for cross-validation: what a fold "
        "leaves out would rest on fewer than its min_rows; set radius to a number, or leave it out."
    )


def _spread(moments: Moments, standard: Standard, transport: Transport) -> float:
    """`calibration.pooled_spread` from moments: the root mean square of the deviations, in the metric of the
    cost, of the coordinates that move."""
    inverse = np.asarray(transport.inverse_scale)
    units = np.append(standard.spread, 1.0)
    deviations = np.where(moments.varying, moments.deviation, 0.0) / units
    movable = inverse > 0
    size = float(np.sqrt(np.mean((deviations[movable] / inverse[movable]) ** 2))) if movable.any() else 0.0
    if not size > 0:
        raise BidroError("No feature varies in the data, so there is no spread to scale radii by.")
    return size


def _reference(stated: Problem, standard: Standard) -> Floats:
    """Points that everybody has: normal with the pooled means and deviations, inside the support."""
    rng = np.random.default_rng(0)
    m, labels = stated.federation.m, stated.loss.labels
    points = rng.normal(size=(REFERENCE_POINTS, m))
    points[:, -1] *= standard.target_spread
    if labels is not None:
        points[:, -1] = rng.choice(labels, REFERENCE_POINTS)
    return np.array(stated.federation.support.project(jnp.asarray(points)))
