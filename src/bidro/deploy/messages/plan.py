"""The one protocol that an agreement stands for: what a server asks by it, and what a site answers.

Both sides derive from the same file, by the same functions, all that is asked: loss, cost, units, support,
reference cloud, levels, clip levels and algorithms with all their settings. Of a request nothing is left to
choose but models, radii and how many folds of those that a site offers, each within limits.

Where an agreement names a neural network (`NetworkQueryPlan`), rows are in the agreed units, a number as
target in its spreads too, and classes by their numbers from 0: what step sizes suit does not depend on the
units of a table. Nothing is imported by its name before the loss is asked for.

Where curves may bend follows from the agreement, too: from centre, spread and bounds of a column, so that no
knot says anything of rows. Fewer segments have every second knot. A site says how many its rows bear, and a
run takes as many as all of them do.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from scipy.special import softmax

from bidro.ambiguity import Penalty, WassersteinBall
from bidro.certify.held_out import client_level
from bidro.certify.out_of_sample import REFERENCE_POINTS
from bidro.certify.statements import loss_unit
from bidro.core.arrays import Floats
from bidro.core.sets import Box, Simplex
from bidro.data.federation import Federation
from bidro.data.splines import DRAWN, Basis, public_knots
from bidro.data.standardise import Standard
from bidro.deploy.agreement.agreement import Agreement, NetworkAgreement
from bidro.deploy.site.disclosure.cells import Curved
from bidro.federated.algorithm import Algorithm
from bidro.federated.algorithms import BiDROFL
from bidro.federated.engines.wire import described
from bidro.fit.fit import agreed_deviations, radius_spread
from bidro.fit.training import grids, held_still, transport_of, unrestricted
from bidro.losses import Loss
from bidro.neural.models import network_digest, outputs_of
from bidro.problem.problem import Problem
from bidro.risk.inner import default_oracle
from bidro.risk.transport import Transport
from bidro.selection.calibrate import FOLDS, candidates_of
from bidro.selection.cross_validate import Candidate
from bidro.selection.fold_queries import TOGETHER, FoldCuts, FoldMoments, FoldRisks, FoldScores
from bidro.selection.personal import PersonalCorrections, PersonalExpansions
from bidro.selection.segments import Wanted
from bidro.solvers.bundle.algorithm import ExactMWDRO
from bidro.solvers.bundle.one_shot import OneShotMWDRO
from bidro.solvers.bundle.state import kink_history

# A message may have so many bytes beyond its numbers.
HEADER_BYTES = 65_536


@dataclass(frozen=True, eq=False)
class QueryPlan:
    agreed: Agreement
    segments: tuple[int, ...] | None = None  # (k,) of the curves that a request is about; None for lines
    smoothing: float = 0.0  # of these curves in training

    @property
    def standard(self) -> Standard:
        return self.agreed.standard

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.agreed.schema.features, self.agreed.schema.target)

    @cached_property
    def loss(self) -> Loss:
        of_lines = self.agreed.fit_options.loss.in_units(self.standard.target_spread)
        if self.segments is None:
            return of_lines
        basis = self.finest.thinned(self.segments)
        return replace(of_lines, basis=basis, smoothing=self.smoothing)  # type: ignore[type-var]

    @cached_property
    def wanted(self) -> Wanted:
        """The curves that are agreed on; coded levels have none, and nothing has with Algorithm 1."""
        choices, names = self.agreed.fit_options.choices, self.columns[:-1]
        found = Wanted.of(choices.curves, choices.increasing, choices.decreasing, names)
        may = [
            one.levels is None and self.agreed.algorithm is None
            for one in self.agreed.schema.columns
            for _ in one.coded
        ]
        most = tuple(own if bends else 1 for own, bends in zip(found.most, may, strict=True))
        return replace(found, most=most)

    @property
    def has_curves(self) -> bool:
        """Whether requests may be about curves."""
        return max(self.wanted.most, default=1) > 1

    @cached_property
    def bounds(self) -> tuple[Floats, Floats]:
        """(low, high), both (k,), the agreed bounds of features in the agreed units; infinite without any."""
        if self.box is None:
            none = np.full(len(self.columns) - 1, math.inf)
            return -none, none
        return np.asarray(self.box.lower)[:-1], np.asarray(self.box.upper)[:-1]

    @cached_property
    def finest(self) -> Basis:
        """The knots that are agreed on."""
        return public_knots(self.wanted.most, *self.bounds)

    @cached_property
    def ends(self) -> tuple[Floats, Floats]:
        """(low, high), both (k,), between which curves are drawn, in the agreed units; of coded levels 0 and
        1."""
        low, high = np.maximum(self.bounds[0], -DRAWN), np.minimum(self.bounds[1], DRAWN)
        apart = low >= high  # the centre lies far outside the bounds
        low, high = np.where(apart, self.bounds[0], low), np.where(apart, self.bounds[1], high)
        coded = [one.levels is not None for one in self.agreed.schema.columns for _ in one.coded]
        mean, spread = self.standard.mean, self.standard.spread
        return np.where(coded, -mean / spread, low), np.where(coded, (1 - mean) / spread, high)

    def at(self, segments: Sequence[int], smoothing: float = 0.0) -> QueryPlan:
        """What is asked about curves of so many segments each (k,)."""
        return _curved(self, tuple(segments), smoothing) if max(segments) > 1 else self

    @cached_property
    def curved(self) -> Curved | None:
        """What the site's memory is to know of the curves; None for straight lines."""
        if self.segments is None:
            return None
        basis: Basis = self.loss.basis  # type: ignore[attr-defined]
        own = basis.in_units(self.standard.mean, self.standard.spread).knots
        knots = {name: at for name, at in zip(self.columns[:-1], own, strict=True) if at}
        m = len(self.columns)
        return Curved(knots, math.ceil(self.dimension * self.loss.columns(m) / m))

    @cached_property
    def dimension(self) -> int:
        return self.loss.dimension(len(self.columns))

    @property
    def moments_dimension(self) -> int:
        """Parameters of a model, of which second moments need more than twice as many rows."""
        return self.dimension

    def rows(self, features: Floats, target: Floats) -> Floats:
        """(N, k + 1) rows as they are trained on."""
        return self.standard.rows(features, target)

    @cached_property
    def transport(self) -> Transport:
        choices = self.agreed.fit_options.choices
        found = transport_of(self.loss, len(self.columns), choices, self.standard.target_spread)
        return held_still(found, self.wanted, self.columns[:-1], choices.held_still)

    @cached_property
    def box(self) -> Box | None:
        """The agreed support in the agreed units."""
        support = self.agreed.fit_options.support
        return None if support is None else self.standard.box(support, self.loss.labels)

    @cached_property
    def levels(self) -> Floats:
        """beta of the bounds that are asked for: those of any mixture, which are the same for any number of
        clients."""
        return np.array([client_level(c, 1, Simplex(1)) for c in self.agreed.fit_options.confidences])

    @cached_property
    def loss_unit(self) -> float:
        """What levels at which losses are clipped are powers of two of."""
        return loss_unit(self.loss, len(self.columns), self.standard.target_spread)

    @cached_property
    def largest(self) -> float:
        """Of the numbers of a model."""
        models = self._alone.models
        assert isinstance(models, Box)
        return float(np.asarray(models.upper).max())

    @cached_property
    def reference(self) -> Floats:
        """(points, m) a cloud that everybody has: normal around the agreed centres, inside the support."""
        assert self.box is not None
        rng = np.random.default_rng(0)
        points = rng.normal(size=(REFERENCE_POINTS, len(self.columns)))
        points[:, -1] *= self.standard.target_spread
        if self.loss.labels is not None:
            points[:, -1] = rng.choice(self.loss.labels, REFERENCE_POINTS)
        return np.array(self.box.project(points))

    def problem(self, federation: Federation) -> Problem:
        """Without ambiguity, for any mixture."""
        largest = self.agreed.limits.largest_coefficient
        return unrestricted(federation, self.loss, self.transport, self.standard.target_spread, largest)

    @cached_property
    def _alone(self) -> Problem:
        return self.problem(Federation.elsewhere({"site": 1}, self.columns))

    @cached_property
    def candidates(self) -> tuple[tuple[Candidate, ...], ...]:
        """All lists of candidates that are cross-validated under this agreement: those for one client, and
        those for several."""
        choices = self.agreed.fit_options.choices
        every = [one for clients in (1, 2) for one in grids(choices, clients)]
        return tuple(dict.fromkeys(candidates_of(*one) for one in every))

    @cached_property
    def scales(self) -> Floats:
        """Radii that candidates go beyond a client's own, times the root of its rows."""
        found = {0.0, *(one.scale * self.spread for few in self.candidates for one in few)}
        return np.array(sorted(found))

    @cached_property
    def spread(self) -> float:
        """What cross-validated radii are in units of."""
        choices = self.agreed.fit_options.choices
        return radius_spread(agreed_deviations(self.standard), self.transport, choices) or 1.0

    @cached_property
    def ambiguity(self) -> Penalty | None:
        """What Algorithm 1 is for; None where radii are the server's to say."""
        return None if self.agreed.algorithm is None else Penalty(self.agreed.algorithm.rho)

    @cached_property
    def algorithms(self) -> dict[int, dict[str, Algorithm]]:
        """All that rounds may be asked for, by the number of folds (0: over all training rows) and by what
        `described` says."""
        every = {0: self._over_all(), **dict.fromkeys(range(2, FOLDS + 1), self._over_folds())}
        return {folds: {as_text(described(one)): one for one in found} for folds, found in every.items()}

    def _over_all(self) -> list[Algorithm]:
        agreed = self.agreed
        if agreed.algorithm is not None:
            return [BiDROFL(agreed.algorithm.eta_x, agreed.algorithm.eta_alpha)]
        oracle, gap = self._oracle, agreed.options.gap
        if agreed.release == "moments":
            return [OneShotMWDRO(gap)]
        history = kink_history(self._balls.inner, True)
        return [
            ExactMWDRO(oracle, False, gap),
            ExactMWDRO(oracle, True, gap, kink_history=history),
            OneShotMWDRO(gap),
        ]

    def _over_folds(self) -> list[Algorithm]:
        agreed, oracle = self.agreed, self._oracle
        if agreed.algorithm is not None:
            return []
        if agreed.release == "moments":
            return [FoldMoments()]
        personal = agreed.options.criterion == "regret" or agreed.options.personal is not None
        found: list[Algorithm] = [FoldScores(), FoldMoments(), FoldRisks(oracle), FoldCuts(oracle, True)]
        if personal:
            found += [PersonalCorrections(), PersonalExpansions()]
        return found

    @cached_property
    def _oracle(self) -> Any:
        return default_oracle(self._balls.inner)

    @cached_property
    def _balls(self) -> Problem:
        return replace(self._alone, ambiguity=WassersteinBall(0.0))

    @cached_property
    def most_solves(self) -> int:
        """Models that one message asks for at the most: a candidate's on every fold and on all rows, filled
        up to whole passes over the rows."""
        return -(-max(len(few) for few in self.candidates) * (FOLDS + 1) // TOGETHER) * TOGETHER

    @cached_property
    def most_bytes(self) -> int:
        """Of a request: models, at which there may be curvature too, with a few numbers for each."""
        return HEADER_BYTES + 16 * len(self.columns) + 8 * 2 * self.most_solves * (self.dimension + 8)


@lru_cache(maxsize=16)
def _curved(of_lines: QueryPlan, segments: tuple[int, ...], smoothing: float) -> QueryPlan:
    """The same object for the same curves, as programs are compiled for it."""
    return replace(of_lines, segments=segments, smoothing=smoothing)


def as_text(description: Any) -> str:
    """The same for the same description."""
    return json.dumps(description, sort_keys=True)


# Of the clients' weights, which some algorithms send along.
_MOST_CLIENTS = 4096


@dataclass(frozen=True, eq=False)
class NetworkQueryPlan(QueryPlan):
    @property
    def network(self) -> NetworkAgreement:
        found = self.agreed.neural_network
        assert found is not None
        return found

    @property
    def classes(self) -> tuple[str, ...] | None:
        return self.agreed.schema.classes

    @cached_property
    def made(self) -> tuple[Any, Loss]:
        """(what the factory makes, the same with its loss): imports and calls it."""
        return self.network.made(self.classes, self.agreed.options.seed)

    @cached_property
    def loss(self) -> Loss:
        return self.made[1]

    @cached_property
    def digest(self) -> str:
        """Of the network that the factory makes here."""
        return network_digest(self.loss)

    @cached_property
    def wanted(self) -> Wanted:
        found = super().wanted
        return replace(found, most=(1,) * len(found.most))

    @property
    def moments_dimension(self) -> int:
        return len(self.columns)

    @cached_property
    def transport(self) -> Transport:
        m = len(self.columns)
        return Transport.features_only(m) if self.classes is None else Transport.classification(m)

    @cached_property
    def ambiguity(self) -> Penalty | None:
        return self.network.ambiguity

    @cached_property
    def algorithm(self) -> Algorithm:
        return self.network.trained_by

    @cached_property
    def algorithms(self) -> dict[int, dict[str, Algorithm]]:
        return {0: {as_text(described(self.algorithm)): self.algorithm}}

    @cached_property
    def most_bytes(self) -> int:
        return HEADER_BYTES + 8 * (self.dimension + _MOST_CLIENTS)

    def problem(self, federation: Federation) -> Problem:
        """For any mixture, with the agreed penalty if there is one."""
        models = Box.cube(self.agreed.limits.largest_coefficient, self.dimension)
        return Problem(federation, self.loss, models, self.transport, self.ambiguity)

    def rows(self, features: Floats, target: Floats) -> Floats:
        found = super().rows(features, target)
        if self.classes is None:
            found[:, -1] /= self.standard.target_spread
        elif len(self.classes) == 2:
            found[:, -1] = (found[:, -1] + 1) / 2
        return found

    def predicted(self, x: Floats, features: Floats) -> Floats:
        """(N,) predictions in the target's own unit, or (N, classes) probabilities, of the network with
        weights x (d,), for rows (N, k) of features in their own units."""
        rows = self.standard.rows(features, np.zeros(len(features)))[:, :-1]
        found = outputs_of(*self.made, x, rows, self.network.input_shape)
        if self.classes is None:
            return self.standard.middle + self.standard.target_spread * found[:, 0]
        with np.errstate(invalid="ignore"):
            return np.asarray(softmax(found, axis=1))


def protocol_of(agreed: Agreement) -> QueryPlan:
    """What is asked by an agreement."""
    return QueryPlan(agreed) if agreed.neural_network is None else NetworkQueryPlan(agreed)
