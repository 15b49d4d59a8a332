"""A network of sites on machines of their own, and a fit over it.

If a client is lost and the policy is to go on without it, all of it begins again with the others: then the
model is exactly the one that they would have had by themselves. What they have answered already is not asked
again where the question is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

import bidro
from bidro.certify.intervals import tells_of_rows
from bidro.certify.statements import CertifiedModel
from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.core.pytrees import stack_trees
from bidro.core.sets import Box
from bidro.data.federation import Federation
from bidro.data.splines import Basis, Levels
from bidro.data.standardise import Standard
from bidro.deploy.agreement.agreement import Agreement, far_units
from bidro.deploy.agreement.job import Job
from bidro.deploy.messages.plan import QueryPlan, protocol_of
from bidro.deploy.server.influence import influence
from bidro.deploy.server.plausibility import (
    Consistency,
    ReportedWithNoise,
    others_lost,
    require_assessment,
    require_bounds,
    require_prepared,
    require_rows_behind,
)
from bidro.federated.engines.coordinator import Coordinator, LostClientsError, Nothing
from bidro.federated.engines.remote import Remote
from bidro.federated.engines.rounds import Ask, FoldSpec
from bidro.federated.engines.wire import described
from bidro.fit.fit import fit
from bidro.fit.fitted import Progress
from bidro.fit.questions import (
    Assess,
    Assessment,
    GradientsQuery,
    HoldoutBounds,
    HoldoutQuery,
    NoisyCount,
    NoisyGradients,
    NoisyHoldoutQuery,
    NoisyLosses,
    NoisyMoments,
    Prepared,
    Segments,
)
from bidro.losses import Loss, has_curves
from bidro.privacy.terms import Plan
from bidro.problem.problem import Problem
from bidro.workflow.fit import Fit, described_fit

T = TypeVar("T")

# Under a budget nobody is asked what this would take.
NO_INFLUENCE = {
    "words": "How the model would change without a site is not worked out of sums with noise.",
    "sites": [],
}


@dataclass(frozen=True, eq=False)
class PrivateSites:
    """Sites that answer one by one, as bytes; `about` is what every request says."""

    names: tuple[str, ...]
    coordinator: Coordinator
    about: Mapping[str, Any]
    plan: Plan
    reported: dict[str, ReportedWithNoise] = field(default_factory=dict)

    def moments(self) -> NoisyMoments:
        like = NoisyMoments.like(self.plan.columns)
        return self._ask("moments", 1, Nothing(), like, ReportedWithNoise.moments)

    def counts(self) -> NoisyCount:
        return self._ask("counts", 1, Nothing(), NoisyCount.like(), ReportedWithNoise.counts)

    def gradients(self, t: int, message: GradientsQuery) -> NoisyGradients:
        like = NoisyGradients.like(self.plan.columns)
        return self._ask("gradients", t, message, like, partial(ReportedWithNoise.gradients, query=message))

    def losses(self, message: NoisyHoldoutQuery) -> NoisyLosses:
        like = NoisyLosses.like(self.plan.degree, self.plan.classes)
        return self._ask("losses", 1, message, like, ReportedWithNoise.losses)

    def _ask(self, question: str, t: int, message: Any, like: T, require: Callable[..., None]) -> T:
        def check(name: str, reply: T, rows: int) -> None:
            own = self.reported.setdefault(name, ReportedWithNoise(self.plan))
            require(own, reply=reply, rows=rows)

        settings, messages = dict.fromkeys(self.names, self.about), dict.fromkeys(self.names, message)
        found = self.coordinator.ask(question, t, settings, messages, like, check=check, counts_rows=False)
        return stack_trees(found.values())


def federated_fit(
    job: Job, coordinator: Coordinator, created: str, solved_to: Callable[[float], None] = lambda _: None
) -> Fit:
    """The model has `created` as its day; `solved_to` is called with the gap after every round that has one.
    Raises BidroError where the run must stop."""
    agreed = job.agreed

    def fitted_by(names: tuple[str, ...], lost: Mapping[str, str]) -> Fit:
        network = SiteNetwork(agreed, coordinator, names, job.max_weight)
        fitted = fit(network, agreed.fit_options, _said(agreed, coordinator, solved_to))
        found, far = NO_INFLUENCE, list[str]()
        if fitted.clients is not None:
            assert isinstance(fitted.clients, SiteClients)
            told = fitted.clients.consistency.reported
            found = influence(fitted.trained, told, agreed.schema.measure)
            # Everybody who gets the model reads this: no numbers of a site.
            far = [
                f"Of client '{name}', {one.in_words(numbers=False)}"
                for name, own in told.items()
                for one in far_units(agreed, own.mean, own.deviation)
            ]
        done = described_fit(agreed.options, agreed.schema, fitted, created)
        settings = {**done.model.settings, "concerns": [*far, *done.model.settings["concerns"]]}
        done = replace(done, model=replace(done.model, settings=settings))
        return _reported(lost, replace(done, influence=found))

    return with_clients_left(job, coordinator, fitted_by)


def with_clients_left(
    job: Job, coordinator: Coordinator, attempt: Callable[[tuple[str, ...], Mapping[str, str]], T]
) -> T:
    """What comes of an attempt with all clients, or, where some are lost and the policy is to go on, of
    another with the others: it is called with their names, and why which others are lost. Raises BidroError
    where the run must stop."""
    lost: dict[str, str] = {}
    for head in coordinator.record.heads:
        lost |= head.get("lost", {})
    coordinator.wait_for([name for name in job.clients if name not in lost])
    while True:
        try:
            return attempt(tuple(sorted(name for name in job.clients if name not in lost)), lost)
        except LostClientsError as error:
            lost |= error.reasons
            coordinator.say(f"going on without {', '.join(error.reasons)}")


def _said(agreed: Agreement, coordinator: Coordinator, solved_to: Callable[[float], None]) -> Progress:
    """What goes on, in lines."""
    say = coordinator.say
    words = {
        "preparing": "preparing",
        "assessing": "assessing the model",
        "certifying": "certifying on held-out rows",
    }

    def begun(stage: str) -> None:
        if stage in words:
            say(words[stage])

    def solving(t: int, gap: float) -> None:
        solved_to(gap)
        say(f"solving: round {t}, gap {gap:.1e}")

    def stepping(t: int) -> None:
        if agreed.plan is not None:
            return say(f"gradients with noise: round {t} of {agreed.plan.rounds}")
        assert agreed.algorithm is not None
        say(f"Algorithm 1: round {t} of {agreed.algorithm.rounds}")

    return Progress(
        stage=begun,
        calibration=lambda t, left: say(f"cross-validating: round {t}, {left} candidates to go"),
        solving=solving,
        stepping=stepping,
    )


def _reported(lost: Mapping[str, str], done: Fit) -> Fit:
    """The fit with certificates that say by whose word they hold, and whom they do not cover."""
    words = f"any mixture of {', '.join(done.model.clients)}"
    if lost:
        without = ", ".join(f"'{name}'" for name in lost)
        words += f" (not of {without}: lost in training)"
    words += ", as reported by the sites"
    certificates = {level: replace(one, mixtures=words) for level, one in done.certificates.items()}
    return replace(done, certificates=certificates)


@dataclass(frozen=True)
class SiteNetwork:
    agreed: Agreement
    coordinator: Coordinator
    names: tuple[str, ...]
    max_share: float = 1.0

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.agreed.schema.features, self.agreed.schema.target)

    @property
    def about(self) -> dict[str, Any]:
        """What every request says: by which agreement it asks."""
        return {"version": bidro.__version__, "agreed": self.agreed.digest}

    @property
    def hold_out(self) -> float:
        return self.agreed.options.hold_out

    @property
    def has_people(self) -> bool:
        return self.agreed.schema.person is not None

    @property
    def keeps_account(self) -> bool:
        return True

    def privately(self, standard: Standard, plan: Plan) -> PrivateSites:
        del standard  # sites have agreed on it
        about = self.about
        if plan.shared is not None:
            about["roster"] = list(plan.shared.roster(self.names).names)
        return PrivateSites(self.names, self.coordinator, about, plan)

    def prepare(self) -> Prepared:
        settings = dict.fromkeys(self.names, self.about)
        nothing = dict.fromkeys(self.names, Nothing())
        like = Prepared.like(len(self.columns))

        def check(name: str, reply: Prepared, rows: int) -> None:
            del name
            require_prepared(self.columns, self.has_people, reply, rows)

        told = stack_trees(self.coordinator.ask("prepare", 1, settings, nothing, like, check=check).values())
        if lost := others_lost(self.names, self.columns, told, self.agreed.standard):
            said = {name: f"Client '{name}': {why}" for name, why in lost.items()}
            self.coordinator.leave_out("prepare", 1, said, self.names)
        for name, mean, deviation in zip(self.names, told.mean, told.deviation, strict=True):
            for far in far_units(self.agreed, np.asarray(mean), np.asarray(deviation)):
                self.coordinator.say(f"WARNING: client '{name}': {far.in_words(numbers=False)}")
        return told

    def in_units(self, standard: Standard, prepared: Prepared) -> SiteClients:
        settings = {
            name: {**self.about, "table": float(table)}
            for name, table in zip(self.names, prepared.table, strict=True)
        }
        sizes = dict(zip(self.names, (int(rows) for rows in prepared.rows), strict=True))
        people = [int(count) for count in prepared.people] if self.has_people else None
        federation = Federation.elsewhere(sizes, self.columns, people=people, max_share=self.max_share)
        consistency = Consistency.of(self.columns, self.names, prepared, standard)
        protocol, needs_all = protocol_of(self.agreed), self.agreed.algorithm is None
        return SiteClients(federation, self.coordinator, settings, protocol, consistency, needs_all)


@dataclass(frozen=True, eq=False)
class SiteClients:
    """Sites that answer one by one, as bytes; `settings` are what every request to a site says."""

    federation: Federation
    coordinator: Coordinator
    settings: Mapping[str, Mapping[str, Any]]
    protocol: QueryPlan
    consistency: Consistency  # of what they have told
    needs_all: bool  # of rounds: whether one is over only when every site has replied

    def clients_of(self, problem: Problem, fold_spec: FoldSpec | None = None, seed: int = 0) -> Ask:
        remote = Remote(self.coordinator, self.settings, self.needs_all, self.consistency, self._about)
        return remote.clients_of(problem, fold_spec, seed)

    def _about(self, loss: Loss) -> dict[str, Any]:
        """What a request says of the curves that it is about, where curves are agreed on."""
        if not self.protocol.has_curves:
            return {}
        if not has_curves(loss):
            return {"curves": None}
        segments = loss.basis.segments.tolist()  # type: ignore[attr-defined]
        return {"curves": {"segments": segments, "smoothing": float(loss.smoothing)}}  # type: ignore[attr-defined]

    def finest(
        self,
        most: Sequence[int],
        folds: int,
        by: tuple[Levels | None, ...] = (),
        agreed: tuple[Floats, Floats] | None = None,
    ) -> tuple[Basis, tuple[Floats, Floats] | None]:
        """The agreed knots, as many of them as all sites bear; curves are drawn over the agreed ends, as
        nobody tells its least and largest values."""
        del most, by, agreed  # as agreed on, without coded levels; by level there is none
        finest, names = self.protocol.finest, self.federation.names
        settings = {name: {**self.settings[name], "folds": folds} for name in names}
        nothing, like = dict.fromkeys(names, Nothing()), Segments.like(finest.features)
        told = self.coordinator.ask("segments", 1, settings, nothing, like, check=self._check_segments)
        fewest = np.min([np.asarray(one.segments) for one in told.values()], axis=0).astype(int)
        return finest.thinned(fewest.tolist()), self.protocol.ends

    def _check_segments(self, name: str, reply: Segments, rows: int) -> None:
        """Raise BidroError for numbers of segments that the agreed curves cannot have."""
        require_rows_behind(rows, self.consistency.reported[name].rows)
        told, finest = np.asarray(reply.segments), self.protocol.finest
        possible = np.all((told >= 1) & (told == np.rint(told)))
        if not possible or np.any(finest.thinned(told.astype(int).tolist()).segments != told):
            raise BidroError(f"it tells that its rows bear {', '.join(f'{one:g}' for one in told)} segments.")

    def _each(self, message: T) -> dict[str, T]:
        """A message to every site, with its own inverse shrinkage alone."""
        every = np.asarray(message.freedom)  # type: ignore[attr-defined]
        return {
            name: message._replace(freedom=every[i])  # type: ignore[attr-defined]
            for i, name in enumerate(self.federation.names)
        }

    def assess(self, problem: Problem, declared: Box | None, message: Assess) -> Assessment:
        del declared  # a site takes the support that it has agreed to, not one that the server names
        radii = np.asarray(message.radii)
        settings = {
            name: {
                **self.settings[name],
                **self._about(problem.loss),
                "ambiguity": described(problem.own_ambiguity(i)),
            }
            for i, name in enumerate(self.federation.names)
        }
        messages = {
            name: own._replace(radii=radii[i], shown=np.asarray(message.shown[i]), reference=np.zeros(0))
            for i, (name, own) in enumerate(self._each(message).items())
        }
        pooled = np.asarray(message.pooled)
        scores = problem.loss.scores if pooled.size else 0
        like = Assessment.like(radii.shape[1], len(message.reference), self.federation.m - 1, scores)

        def check(name: str, reply: Assessment, rows: int) -> None:
            require_assessment(self.consistency.reported[name], problem, messages[name], reply, rows)

        return stack_trees(self.coordinator.ask("assess", 1, settings, messages, like, check=check).values())

    def personal_models(self, loss: Loss, message: Assess) -> Mapping[str, Floats]:
        return {}

    def bounds(self, of: CertifiedModel, message: HoldoutQuery) -> HoldoutBounds:
        like = HoldoutBounds.like(
            len(message.levels),
            of.largest is not None,
            of.loss.labels is not None,
            np.asarray(message.freedom).size > 0,
            np.asarray(message.pooled).size > 0,
            tells_of_rows(of.loss),
        )
        messages = self._each(message)

        def check(name: str, reply: HoldoutBounds, rows: int) -> None:
            require_bounds(self.consistency.reported[name], of, messages[name], reply, rows)

        settings = {name: {**own, **self._about(of.loss)} for name, own in self.settings.items()}
        return stack_trees(self.coordinator.ask("bounds", 1, settings, messages, like, check=check).values())

    def baselines(self, of: CertifiedModel, message: HoldoutQuery, others: Mapping[str, Floats]) -> None:
        """Sites are not asked: see `fit.baselines`."""

    def row_fits(self, of: CertifiedModel, message: HoldoutQuery) -> None:
        """Sites are not asked: scores are single rows'. One bound of theirs is in `HoldoutBounds`."""

    def reference(self, stated: Problem, standard: Standard) -> Floats:
        return self.protocol.reference

    def distances(self, stated: Problem, found: Assessment) -> Floats:
        far = np.asarray(found.distance)[:, 0]
        apart = far[:, None] + far[None, :]
        np.fill_diagonal(apart, 0.0)
        return apart
