"""The one protocol that an agreement stands for: what a server asks by it, and what a site answers.

Both sides derive from the same file, by the same functions, all that is asked: loss, cost, units, support,
reference cloud, levels, clip levels and algorithms with all their settings. Of a request nothing is left to
choose but models, radii and how many folds of those that a site offers, each within limits.

Where an agreement names a neural network (`NetworkQueryPlan`), rows are in the agreed units, a number as
target in its spreads too, and classes by their numbers from 0: what step sizes suit does not depend on the
units of a table. Nothing is imported by its name before the loss is asked for.

Where curves may bend across machines: at places of a public grid, which sites' rows decide on together.

The grid follows from the agreement: STEPS steps over the agreed centre of a column and WIDE spreads on both
sides of it, as far as its agreed bounds go. A site says at which places its rows are cut into parts that hold
as many each, and enough in every set of rows that sums are sent over. That tells about where its quantiles
are, to a step, and no count. The server takes common places from them, so that between any two there is a
whole part of every site.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from bidro.ambiguity import Penalty, WassersteinBall
from bidro.certify.held_out import client_level
from bidro.certify.out_of_sample import REFERENCE_POINTS
from bidro.certify.statements import loss_unit
from bidro.core.arrays import Floats
from bidro.core.sets import Box, Simplex
from bidro.data.federation import Federation
from bidro.data.splines import Basis
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


# Steps of the grid, and how many spreads it goes to each side of the centre.
STEPS, WIDE = 256, 4.0
# Parts that a site cuts its rows into, at the most.
PARTS = 64
# How many segments a feature curves may have that a site bears, from the most; each contains the next.
BORNE = (64, 32, 16, 8, 4, 2, 1)
# Where curves bend: places of the public grid, by feature.
FeaturePlaces = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class QueryPlan:
    agreed: Agreement
    places: FeaturePlaces | None = None  # of the curves that a request is about; None for straight lines
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
        if self.places is None:
            return of_lines
        basis = self.basis_of(self.places)
        return replace(of_lines, basis=basis, smoothing=self.smoothing)  # type: ignore[type-var]

    @cached_property
    def wanted(self) -> Wanted:
        """The curves that are agreed on; coded levels have none, and nothing has with Algorithm 1."""
        choices, names = self.agreed.fit_options.choices, self.columns[:-1]
        found = Wanted.of(choices.curves, choices.increasing, choices.decreasing, names)
        bends = ~np.isnan(self.grid[:, 0]) & (self.agreed.algorithm is None)
        most = tuple(own if may else 1 for own, may in zip(found.most, bends.tolist(), strict=True))
        return replace(found, most=most)

    @property
    def has_curves(self) -> bool:
        """Whether requests may be about curves."""
        return max(self.wanted.most, default=1) > 1

    @cached_property
    def grid(self) -> Floats:
        """(k, places) where curves may bend, in the columns' own units; NaN for coded levels."""
        return public_grid(self.agreed)

    @cached_property
    def standard_grid(self) -> Floats:
        """(k, places) the same in the agreed units."""
        return np.asarray((self.grid - self.standard.mean[:, None]) / self.standard.spread[:, None])

    @cached_property
    def ends(self) -> tuple[Floats, Floats]:
        """(low, high), both (k,), between which curves are drawn, in the agreed units: the ends of the grid,
        of coded levels 0 and 1."""
        sides = zip(self.grid.T[[0, -1]], (0.0, 1.0), strict=True)
        low, high = (np.where(np.isnan(side), level, side) for side, level in sides)
        mean, spread = self.standard.mean, self.standard.spread
        return np.asarray((low - mean) / spread), np.asarray((high - mean) / spread)

    def basis_of(self, places: FeaturePlaces) -> Basis:
        """The curves that bend at these places."""
        each = zip(self.standard_grid, places, strict=True)
        return Basis(tuple(tuple(float(grid[place]) for place in own) for grid, own in each))

    def places_of(self, basis: Basis) -> FeaturePlaces:
        """Where curves bend whose knots are places of the grid."""
        each = zip(self.standard_grid, basis.knots, strict=True)
        return tuple(tuple(int(np.searchsorted(grid, knot)) for knot in own) for grid, own in each)

    def at(self, places: FeaturePlaces, smoothing: float = 0.0) -> QueryPlan:
        """What is asked about curves that bend at these places."""
        return _curved(self, places, smoothing) if any(places) else self

    @cached_property
    def curved(self) -> Curved | None:
        """What the site's memory is to know of the curves; None for straight lines."""
        if self.places is None:
            return None
        each = zip(self.columns[:-1], self.grid, self.places, strict=True)
        knots = {name: tuple(float(grid[place]) for place in own) for name, grid, own in each if own}
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
        """Of a request: models, at which there may be curvature too, with a few numbers for each, and the
        places where curves bend, as text and as numbers."""
        places = sum(self.wanted.most) + len(self.columns) * max(self.wanted.most, default=1)
        return HEADER_BYTES + 16 * places + 8 * 2 * self.most_solves * (self.dimension + 8)


@lru_cache(maxsize=16)
def _curved(of_lines: QueryPlan, places: FeaturePlaces, smoothing: float) -> QueryPlan:
    """The same object for the same curves, as programs are compiled for it."""
    return replace(of_lines, places=places, smoothing=smoothing)


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


def public_grid(agreed: Agreement) -> Floats:
    """(k, STEPS + 1) the places of every feature in its own units; NaN for coded levels, which never bend."""
    found = []
    for column in agreed.schema.columns:
        if column.levels is not None:
            found += [np.full(STEPS + 1, np.nan)] * len(column.coded)
            continue
        unit = agreed.units[column.name]
        low, high = unit.centre - WIDE * unit.spread, unit.centre + WIDE * unit.spread
        if agreed.support is not None:
            lower, upper = agreed.support[column.name]
            overlaps = lower < high and low < upper
            low, high = (max(low, lower), min(high, upper)) if overlaps else (lower, upper)
        found.append(np.linspace(low, high, STEPS + 1))
    return np.stack(found)


def padded(places: Sequence[Sequence[int]], width: int) -> NDArray[np.int64]:
    """(k, width) the places of every feature, filled up with -1."""
    found = np.full((len(places), width), -1, np.int64)
    for j, own in enumerate(places):
        found[j, : len(own)] = own
    return found
