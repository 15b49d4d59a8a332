"""A network of sites on machines of their own, and a fit over it.

If a client is lost and the policy is to go on without it, all of it begins again with the others: then the
model is exactly the one that they would have had by themselves. What they have answered already is not asked
again where the question is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import jax
import numpy as np

import bidro
from bidro.arrays import Floats
from bidro.curves import Basis, Levels
from bidro.deploy.agreed import Agreed
from bidro.deploy.consistency import Consistency, others_lost, require_prepared
from bidro.deploy.far_units import far_units
from bidro.deploy.influence import influence
from bidro.deploy.job import Job
from bidro.deploy.network_protocol import protocol_of
from bidro.deploy.places import PARTS, STEPS, common_places, padded
from bidro.deploy.private_network import NO_INFLUENCE, PrivateSites
from bidro.deploy.protocol import Protocol
from bidro.deploy.told_losses import require_assessment, require_bounds
from bidro.deploy.told_moments import Values
from bidro.engines.coordinator import Coordinator, LostClientsError, Nothing
from bidro.engines.plain import described
from bidro.engines.remote import Remote, own_ambiguity
from bidro.engines.rounds import Ask, Deal
from bidro.errors import BidroError
from bidro.federation import Federation
from bidro.fitting import Progress, fit
from bidro.fitting.questions import (
    Assess,
    Assessment,
    Bend,
    Bends,
    Fixed,
    HoldoutBounds,
    Places,
    Prepared,
)
from bidro.guarantees.segments import MOST_SEGMENTS
from bidro.guarantees.statements import Assessed
from bidro.losses import Loss, has_curves
from bidro.privacy.terms import Plan
from bidro.problem import Problem
from bidro.sets import Box
from bidro.standard import Standard
from bidro.workflow.fit import Fit, described_fit

T = TypeVar("T")


def federated_fit(
    job: Job, coordinator: Coordinator, created: str, solved_to: Callable[[float], None] = lambda _: None
) -> Fit:
    """The model has `created` as its day; `solved_to` is called with the gap after every round that has one.
    Raises BidroError where the run must stop."""
    lost: dict[str, str] = {}
    for head in coordinator.record.heads:
        lost |= head.get("lost", {})
    coordinator.wait_for([name for name in job.clients if name not in lost])
    agreed = job.agreed
    while True:
        names = tuple(sorted(name for name in job.clients if name not in lost))
        network = SiteNetwork(agreed, coordinator, names, job.max_weight)
        try:
            fitted = fit(network, agreed.fit_options, _said(agreed, coordinator, solved_to))
        except LostClientsError as error:
            lost |= error.reasons
            coordinator.say(f"going on without {', '.join(error.reasons)}")
            continue
        found, far = NO_INFLUENCE, list[str]()
        if fitted.clients is not None:
            assert isinstance(fitted.clients, SiteClients)
            told = fitted.clients.consistency.told
            found = influence(fitted.trained, told, agreed.schema.measure)
            # Everybody who gets the model reads this: no numbers of a site.
            far = [
                f"Of client '{name}', {one.in_words(numbers=False)}"
                for name, own in told.items()
                for one in far_units(agreed, own.moments.mean, own.moments.deviation)
            ]
        done = described_fit(agreed.options, agreed.schema, fitted, created)
        settings = {**done.model.settings, "concerns": [*far, *done.model.settings["concerns"]]}
        done = replace(done, model=replace(done.model, settings=settings))
        return _reported(lost, replace(done, influence=found))


def _said(agreed: Agreed, coordinator: Coordinator, solved_to: Callable[[float], None]) -> Progress:
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
    levels = tuple(replace(one, mixtures=words) for one in done.levels)
    return replace(done, certificate=replace(done.certificate, mixtures=words), levels=levels)


@dataclass(frozen=True)
class SiteNetwork:
    agreed: Agreed
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
    def has_units(self) -> bool:
        return self.agreed.schema.unit is not None

    @property
    def keeps_account(self) -> bool:
        return True

    def privately(self, standard: Standard, plan: Plan) -> PrivateSites:
        del standard  # sites have agreed on it
        return PrivateSites(self.names, self.coordinator, self.about, plan)

    def prepare(self) -> Prepared:
        settings = dict.fromkeys(self.names, self.about)
        nothing = dict.fromkeys(self.names, Nothing())
        like, values = Prepared.like(len(self.columns)), Values(self.agreed)

        def check(name: str, reply: Prepared, rows: int) -> None:
            del name
            require_prepared(values, reply, rows)

        told = _stacked(self.coordinator.ask("prepare", 1, settings, nothing, like, check=check))
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
        federation = Federation.elsewhere(
            sizes, self.columns, has_units=self.has_units, max_share=self.max_share
        )
        consistency = Consistency.of(Values(self.agreed), self.names, prepared, standard)
        protocol, needs_all = protocol_of(self.agreed), self.agreed.algorithm is None
        return SiteClients(federation, self.coordinator, settings, protocol, consistency, needs_all)


@dataclass(frozen=True, eq=False)
class SiteClients:
    """Sites that answer one by one, as bytes; `settings` are what every request to a site says."""

    federation: Federation
    coordinator: Coordinator
    settings: Mapping[str, Mapping[str, Any]]
    protocol: Protocol
    consistency: Consistency  # of what they have told
    needs_all: bool  # of rounds: whether one is over only when every site has replied

    def clients_of(self, problem: Problem, deal: Deal | None = None, seed: int = 0) -> Ask:
        remote = Remote(self.coordinator, self.settings, self.needs_all, self.consistency, self._about)
        return remote.clients_of(problem, deal, seed)

    def _about(self, loss: Loss) -> dict[str, Any]:
        """What a request says of the curves that it is about, where curves are agreed on."""
        if not self.protocol.has_curves:
            return {}
        if not has_curves(loss):
            return {"curves": None}
        places = self.protocol.places_of(loss.basis)  # type: ignore[attr-defined]
        smoothing = float(loss.smoothing)  # type: ignore[attr-defined]
        return {"curves": {"places": [list(own) for own in places], "smoothing": smoothing}}

    def finest(
        self, most: Sequence[int], folds: int, curvature: bool, by: tuple[Levels | None, ...] = ()
    ) -> tuple[Basis, tuple[Floats, Floats] | None]:
        """Places of the public grid that suit all sites, as fine as all of them bear; curves are drawn over
        the grid, as nobody tells its least and largest values."""
        del most, by  # as agreed on, without coded levels; by level there is none
        wanted, names = self.protocol.wanted.most, self.federation.names
        settings = {name: {**self.settings[name], "folds": folds} for name in names}
        like = Places.like(len(wanted), PARTS - 1)
        nothing = dict.fromkeys(names, Nothing())
        told = self.coordinator.ask("spread", 1, settings, nothing, like, check=self._check_places)
        edges = np.asarray(_stacked(told).edges, np.int64)  # (n, k, parts - 1)
        counted = self.federation.counted
        places = tuple(common_places(edges[:, j], counted, own) for j, own in enumerate(wanted))
        message = Bend(padded(places, max(wanted) - 1))
        settings = {name: {**own, "moments": curvature} for name, own in settings.items()}
        messages = dict.fromkeys(names, message)
        finest, like_bends = self.protocol.basis_of(places), Bends.like(len(wanted))
        borne = self.coordinator.ask("bends", 1, settings, messages, like_bends, check=_check_bends)
        fewest = np.min([np.asarray(one.segments) for one in borne.values()], axis=0).astype(int)
        return finest.thinned(fewest.tolist()), self.protocol.ends

    def _check_places(self, name: str, reply: Places, rows: int) -> None:
        """Raise BidroError for what are no places of the grid."""
        if rows > self.consistency.told[name].rows:
            raise BidroError(f"it tells of {rows} rows behind a reply, and of fewer in all.")
        for own, most in zip(np.asarray(reply.edges), self.protocol.wanted.most, strict=True):
            used = own[own != -1]
            whole = np.all((used >= 0) & (used <= STEPS) & (used == np.rint(used)))
            if not whole or np.any(np.diff(used) <= 0) or np.any(own[len(used) :] != -1):
                raise BidroError("it tells places that are not those of the public grid, in their order.")
            if most == 1 and len(used):
                raise BidroError("it tells places of a feature that is a straight line.")

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
        settings = {
            name: {
                **self.settings[name],
                **self._about(problem.loss),
                "ambiguity": described(own_ambiguity(problem, i)),
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
            place = self.federation.names.index(name)
            eps = 0.0 if problem.eps is None else float(problem.eps[place])
            # A site has the cloud from the agreement, not from the message.
            asked = messages[name]._replace(reference=message.reference)
            require_assessment(self.consistency.told[name], problem, eps, asked, reply, rows)

        return _stacked(self.coordinator.ask("assess", 1, settings, messages, like, check=check))

    def own_models(self, loss: Loss, message: Assess) -> Mapping[str, Floats]:
        return {}

    def bounds(self, of: Assessed, message: Fixed) -> HoldoutBounds:
        like = HoldoutBounds.like(
            len(message.levels),
            of.largest is not None,
            of.loss.labels is not None,
            np.asarray(message.freedom).size > 0,
            np.asarray(message.pooled).size > 0,
        )
        messages = self._each(message)

        def check(name: str, reply: HoldoutBounds, rows: int) -> None:
            require_bounds(self.consistency.told[name], of, messages[name], reply, rows)

        settings = {name: {**own, **self._about(of.loss)} for name, own in self.settings.items()}
        return _stacked(self.coordinator.ask("bounds", 1, settings, messages, like, check=check))

    def beside(self, of: Assessed, message: Fixed) -> None:
        """Sites are not asked: see `fitting.beside`."""

    def reference(self, stated: Problem, standard: Standard) -> Floats:
        return self.protocol.reference

    def distances(self, stated: Problem, found: Assessment) -> Floats:
        far = np.asarray(found.distance)[:, 0]
        apart = far[:, None] + far[None, :]
        np.fill_diagonal(apart, 0.0)
        return apart


def _check_bends(name: str, reply: Bends, rows: int) -> None:
    """Raise BidroError for a number of segments that curves cannot have."""
    del name, rows
    told = np.asarray(reply.segments)
    wrong = told[(told < 1) | (told > MOST_SEGMENTS) | (told != np.rint(told))]
    if wrong.size:
        raise BidroError(f"it tells that its rows bear {wrong[0]:g} segments.")


def _stacked(replies: Mapping[str, T]) -> T:
    """One reply with a leading axis of clients, from each client's."""
    return jax.tree.map(lambda *parts: np.stack(parts), *replies.values())
