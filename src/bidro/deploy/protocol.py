"""The one protocol that an agreement stands for: what a server asks by it, and what a site answers.

Both sides derive from the same file, by the same functions, all that is asked: loss, cost, units, support,
reference cloud, levels, clip levels and algorithms with all their settings. Of a request nothing is left to
choose but models, radii and how many folds of those that a site offers, each within limits.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np

from bidro.algorithms import BiDROFL, ExactMWDRO, OneShotMWDRO
from bidro.algorithms.contract import Algorithm
from bidro.algorithms.cross_validation import Candidate, FoldScores, FoldSolves
from bidro.algorithms.fold_moments import FoldMoments
from bidro.algorithms.fold_newton import TOGETHER, FoldNewton
from bidro.algorithms.kinks import followed_models
from bidro.algorithms.own_correction import OwnCorrections
from bidro.arrays import Floats
from bidro.client import Penalty, WassersteinBall
from bidro.curves import Basis
from bidro.deploy.agreed import Agreed
from bidro.deploy.bends import Curved
from bidro.deploy.places import public_grid
from bidro.engines.plain import described
from bidro.federation import Federation
from bidro.fitting.fit import agreed_deviations, radius_spread
from bidro.guarantees.calibration import FOLDS, candidates_of
from bidro.guarantees.held_out import client_level
from bidro.guarantees.heterogeneity import REFERENCE_POINTS
from bidro.guarantees.own import SHRINKAGES
from bidro.guarantees.segments import Wanted
from bidro.guarantees.statements import loss_unit
from bidro.losses import Loss
from bidro.problem import Problem
from bidro.sets import Box, Simplex
from bidro.standard import Standard
from bidro.training import grids, transport_of, unrestricted
from bidro.transport import Transport
from bidro.worst_case import default_oracle

# A message may have so many bytes beyond its numbers.
HEADER_BYTES = 65_536


# Where curves bend: places of the public grid, by feature.
FeaturePlaces = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class Protocol:
    agreed: Agreed
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

    def at(self, places: FeaturePlaces, smoothing: float = 0.0) -> Protocol:
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
        return transport_of(self.loss, len(self.columns), choices, self.standard.target_spread)

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
        return np.array(self.box.project(jnp.asarray(points)))

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
        every = {0: self._over_all(), **{folds: self._over_folds(folds) for folds in range(2, FOLDS + 1)}}
        return {folds: {as_text(described(one)): one for one in found} for folds, found in every.items()}

    def _over_all(self) -> list[Algorithm]:
        agreed = self.agreed
        if agreed.algorithm is not None:
            return [BiDROFL(agreed.algorithm.eta_x, agreed.algorithm.eta_alpha)]
        oracle, gap = self._oracle, agreed.options.gap
        found: list[Algorithm] = [ExactMWDRO(oracle, False, gap)]
        if agreed.replies == "curvature":
            follows = followed_models(self._balls.inner, True)
            found += [ExactMWDRO(oracle, True, gap, follows=follows), OneShotMWDRO(gap)]
        return found

    def _over_folds(self, folds: int) -> list[Algorithm]:
        agreed, oracle, spread = self.agreed, self._oracle, self.spread
        if agreed.algorithm is not None:
            return []
        words = {"auto"} if agreed.options.criterion == "regret" else set()
        words |= {agreed.options.own} - {"none"}
        found: list[Algorithm] = [FoldScores(), *(OwnCorrections(SHRINKAGES[word]) for word in sorted(words))]
        if self.has_curves and agreed.replies == "curvature":
            found.append(FoldMoments((), folds))
        for candidates in self.candidates:
            found.append(FoldSolves(oracle, candidates, folds, spread, False))
            if agreed.replies == "curvature":
                found += [
                    FoldMoments(candidates, folds, spread),
                    FoldNewton(oracle, candidates, folds, spread),
                    FoldSolves(oracle, candidates, folds, spread, True),
                ]
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
def _curved(of_lines: Protocol, places: FeaturePlaces, smoothing: float) -> Protocol:
    """The same object for the same curves, as programs are compiled for it."""
    return replace(of_lines, places=places, smoothing=smoothing)


def as_text(description: Any) -> str:
    """The same for the same description."""
    return json.dumps(description, sort_keys=True)
