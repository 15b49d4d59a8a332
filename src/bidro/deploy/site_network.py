"""A network of sites on machines of their own, and a fit over it.

If a client is lost and the policy is to go on without it, all of it begins again with the others: then the
model is exactly the one that they would have had by themselves. What they have answered already is not asked
again where the question is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

import bidro
from bidro.arrays import Floats
from bidro.deploy.job import Job
from bidro.engines.coordinator import Coordinator, LostClientsError, Nothing
from bidro.engines.plain import described
from bidro.engines.remote import Remote, own_ambiguity
from bidro.engines.rounds import Ask, Deal
from bidro.errors import BidroError
from bidro.federation import Federation
from bidro.fitting import Progress, fit
from bidro.fitting.questions import Adopt, Adopted, Assess, Assessment, Fixed, HoldoutBounds, Prepared, Spread
from bidro.guarantees.heterogeneity import REFERENCE_POINTS
from bidro.guarantees.statements import Assessed
from bidro.problem import Problem
from bidro.sets import Box
from bidro.standard import Standard
from bidro.workflow.fit import Fit, described_fit, fit_options

T = TypeVar("T")

# Sites send curvature over more rows than so many a parameter only: see `rules`.
ROWS_A_PARAMETER = 2


def federated_fit(job: Job, coordinator: Coordinator, created: str) -> Fit:
    """The model has `created` as its day. Raises BidroError where the run must stop."""
    lost: dict[str, str] = {}
    for head in coordinator.record.heads:
        lost |= head.get("lost", {})
    coordinator.wait_for([name for name in job.clients if name not in lost])
    schema = job.agreed.schema
    options = fit_options(job.options, schema, job.replies, job.algorithm)
    while True:
        names = tuple(sorted(name for name in job.clients if name not in lost))
        try:
            fitted = fit(SiteNetwork(job, coordinator, names), options, _said(job, coordinator))
        except LostClientsError as error:
            lost |= error.reasons
            coordinator.say(f"going on without {', '.join(error.reasons)}")
            continue
        return _without(lost, described_fit(job.options, schema, fitted, created))


def _said(job: Job, coordinator: Coordinator) -> Progress:
    """What goes on, in lines."""
    say = coordinator.say
    words = {
        "preparing": "preparing",
        "assessing": "assessing the model",
        "certifying": "certifying on rows kept out",
    }

    def begun(stage: str) -> None:
        if stage in words:
            say(words[stage])

    def stepping(t: int) -> None:
        assert job.algorithm is not None
        say(f"Algorithm 1: round {t} of {job.algorithm.rounds}")

    return Progress(
        stage=begun,
        calibration=lambda t, left: say(f"cross-validating: round {t}, {left} candidates to go"),
        solving=lambda t, gap: say(f"solving: round {t}, gap {gap:.1e}"),
        stepping=stepping,
    )


def _without(lost: Mapping[str, str], done: Fit) -> Fit:
    """The fit with certificates that say whom they do not cover."""
    if not lost:
        return done
    without = ", ".join(f"'{name}'" for name in lost)
    words = f"any mixture of {', '.join(done.model.clients)} (not of {without}: lost in training)"
    levels = tuple(replace(one, mixtures=words) for one in done.levels)
    return replace(done, certificate=replace(done.certificate, mixtures=words), levels=levels)


@dataclass(frozen=True)
class SiteNetwork:
    job: Job
    coordinator: Coordinator
    names: tuple[str, ...]

    rows_a_parameter = ROWS_A_PARAMETER

    @property
    def columns(self) -> tuple[str, ...]:
        schema = self.job.agreed.schema
        return (*schema.features, schema.target)

    @property
    def about(self) -> dict[str, Any]:
        """What every request says: which rows to use, and by which schema."""
        options = self.job.options
        return {
            "version": bidro.__version__,
            "agreed": self.job.agreed.digest,
            "hold_out": options.hold_out,
            "split_seed": options.seed,
        }

    def prepare(self) -> Prepared:
        settings = dict.fromkeys(self.names, self.about)
        nothing = dict.fromkeys(self.names, Nothing())
        return _stacked(
            self.coordinator.ask("prepare", 1, settings, nothing, Prepared.like(len(self.columns)))
        )

    def in_units(self, standard: Standard, prepared: Prepared) -> SiteClients:
        units = {
            "mean": standard.mean.tolist(),
            "spread": standard.spread.tolist(),
            "middle": standard.middle,
            "target_spread": standard.target_spread,
        }
        settings = {
            name: {**self.about, "standard": units, "table": float(table)}
            for name, table in zip(self.names, prepared.table, strict=True)
        }
        sizes = dict(zip(self.names, (int(rows) for rows in prepared.rows), strict=True))
        has_units = self.job.agreed.schema.unit is not None
        federation = Federation.elsewhere(sizes, self.columns, has_units=has_units)
        return SiteClients(federation, self.coordinator, settings, self.job.algorithm is None)


@dataclass(frozen=True, eq=False)
class SiteClients:
    """Sites that answer one by one, as bytes; `settings` are what every request to a site says."""

    federation: Federation
    coordinator: Coordinator
    settings: Mapping[str, Mapping[str, Any]]
    needs_all: bool  # of rounds: whether one is over only when every site has replied

    def clients_of(self, problem: Problem, deal: Deal | None = None, seed: int = 0) -> Ask:
        return Remote(self.coordinator, self.settings, self.needs_all).clients_of(problem, deal, seed)

    def spread(self) -> Spread:
        raise BidroError("Curves are fitted in one process only; set curves to none in federate.toml.")

    def adopt(self, problem: Problem, message: Adopt) -> Mapping[str, Floats]:
        """Each site makes and keeps its own model, and answers that it has."""
        what = {"loss": described(problem.loss)}
        settings = {name: {**own, **what} for name, own in self.settings.items()}
        self.coordinator.ask("adopt", 1, settings, self._each(message), Adopted.like())
        return {}

    def _each(self, message: T) -> dict[str, T]:
        """A message to every site, with its own freedom alone."""
        every = np.asarray(message.freedom)  # type: ignore[attr-defined]
        return {
            name: message._replace(freedom=every[i])  # type: ignore[attr-defined]
            for i, name in enumerate(self.federation.names)
        }

    def assess(self, problem: Problem, declared: Box | None, message: Assess) -> Assessment:
        del declared  # a site takes the support that it has agreed to, not one that the server names
        radii = np.asarray(message.radii)
        what = {"loss": described(problem.loss), "transport": described(problem.transport)}
        settings = {
            name: {**self.settings[name], **what, "ambiguity": own_ambiguity(problem, i)}
            for i, name in enumerate(self.federation.names)
        }
        messages = {
            name: own._replace(radii=radii[i], shown=np.asarray(message.shown[i]))
            for i, (name, own) in enumerate(self._each(message).items())
        }
        pooled = np.asarray(message.pooled)
        scores = problem.loss.scores if pooled.size else 0
        like = Assessment.like(radii.shape[1], len(message.reference), self.federation.m - 1, scores)
        return _stacked(self.coordinator.ask("assess", 1, settings, messages, like))

    def bounds(self, of: Assessed, message: Fixed) -> HoldoutBounds:
        like = HoldoutBounds.like(
            len(message.levels),
            of.largest is not None,
            of.loss.labels is not None,
            np.asarray(message.freedom).size > 0,
            np.asarray(message.pooled).size > 0,
        )
        settings = {name: {**own, "loss": described(of.loss)} for name, own in self.settings.items()}
        return _stacked(self.coordinator.ask("bounds", 1, settings, self._each(message), like))

    def reference(self, stated: Problem, standard: Standard) -> Floats:
        """Points that everybody has: normal with the pooled means and deviations, inside the support."""
        rng = np.random.default_rng(0)
        m, labels = stated.federation.m, stated.loss.labels
        points = rng.normal(size=(REFERENCE_POINTS, m))
        points[:, -1] *= standard.target_spread
        if labels is not None:
            points[:, -1] = rng.choice(labels, REFERENCE_POINTS)
        return np.array(stated.federation.support.project(jnp.asarray(points)))

    def distances(self, stated: Problem, found: Assessment) -> Floats:
        far = np.asarray(found.distance)[:, 0]
        apart = far[:, None] + far[None, :]
        np.fill_diagonal(apart, 0.0)
        return apart


def _stacked(replies: Mapping[str, T]) -> T:
    """One reply with a leading axis of clients, from each client's."""
    return jax.tree.map(lambda *parts: np.stack(parts), *replies.values())
