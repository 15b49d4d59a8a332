"""How much a model rests on each site: what it would be without it, from what sites have sent already.

A site that lies consistently cannot be refuted, but what it changes can be seen. For squared loss the second
moments tell all, and the model without a site is solved exactly. For other losses each site's risk is taken
for what its last reply says of it around the model: its value, gradient and curvature. Where sites sent no
curvature it is not known without asking them again, and that is said. Radii, and how weights were chosen,
stay as they are; the sites' personal models are left aside: this is about the shared one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bidro.core.arrays import Floats
from bidro.core.sets import Ball, Box, capped_sizes
from bidro.deploy.server.plausibility import Reported
from bidro.fit.training import Trained
from bidro.losses import LinearLoss, Softmax, Squared
from bidro.problem.problem import Problem
from bidro.risk.moments import Moments, MomentsOracle, smoothed
from bidro.risk.oracle import Lift, QuadraticRisks, RiskOracle
from bidro.selection.segments import with_smoothing, without_smoothing
from bidro.solvers.bundle.state import State
from bidro.solvers.minimax_newton import minimax_newton
from bidro.solvers.references import NO_REFERENCES, References

# The models without a site are solved to this gap.
_GAP = 1e-6
# A change of a site's loss below this share of it counts as none.
_NO_CHANGE = 1e-3

_NOT_KNOWN = (
    "How the model would change without a site is not known: the sites' replies hold no curvature of their "
    "risks, so that it would take new rounds with the others, as a run without that site does."
)


def influence(trained: Trained, told: Mapping[str, Reported], measure: str) -> dict[str, Any]:
    """As JSON: in words how it was found, and a part a site, the one that moves predictions most first; these
    move in what a target that is a number is measured in, `measure`."""
    found = _Sites.of(trained, told)
    if found is None or trained.problem.n < 2:
        why = _NOT_KNOWN if trained.problem.n > 1 else "There is one site alone."
        return {"words": why, "sites": []}
    problem = trained.problem
    names, before = problem.federation.names, found.losses(trained.x)
    sites = []
    for i, name in enumerate(names):
        x = found.without(i)
        change = found.losses(x) - before
        felt = np.abs(change) > _NO_CHANGE * np.abs(before)
        others = [j for j in range(problem.n) if j != i]
        sites.append(
            {
                "site": name,
                "weight": float(trained.alpha[i]),
                "moved": found.moved(x - trained.x),
                "changes": {names[j]: float(change[j]) for j in others},
                "gain": [names[j] for j in others if felt[j] and change[j] < 0],
                "lose": [names[j] for j in others if felt[j] and change[j] > 0],
            }
        )
    unit = "scores" if problem.loss.labels is not None else measure
    how = "exactly, from second moments" if found.exact else "to second order, from the last replies"
    words = (
        f"The model without each site in turn, found {how} that sites have sent; radii and the rule for "
        f"weights are kept. Predictions move by {'' if found.exact else 'at most '}so much, as a root mean "
        f"square over all rows that sites report, in {unit}."
    )
    return {"words": words, "sites": sorted(sites, key=lambda one: -float(one["moved"]))}


@dataclass(frozen=True, eq=False)
class _Sites:
    """The sites' risks as functions of the model."""

    trained: Trained
    risks: RiskOracle
    eps: Floats  # (n,)
    moments: Moments | None  # of all sites, where they are known
    sizes: Floats  # (n, m) root mean squares of their columns

    @classmethod
    def of(cls, trained: Trained, told: Mapping[str, Reported]) -> _Sites | None:
        """None where too little is known."""
        trained = replace(trained, problem=with_smoothing(trained.problem))
        problem = trained.problem
        names, loss = problem.federation.names, problem.loss
        eps = problem.eps
        sizes = np.stack([told[name].sizes(getattr(loss, "basis", None)) for name in names])
        known = [part for name in names if (part := told[name].moments_of(loss)) is not None]
        if isinstance(loss, Squared) and len(known) == problem.n:
            moments = Moments(np.stack([one.mean for one in known]), np.stack([one.around for one in known]))
            return cls(trained, _squared(without_smoothing(problem), moments), eps, moments, sizes)
        state = None if trained.solution is None else trained.solution.state
        if not isinstance(state, State) or not isinstance(loss, LinearLoss | Softmax):
            return None
        around = _around(state)
        return None if around is None else cls(trained, around, eps, None, sizes)

    @property
    def exact(self) -> bool:
        return self.moments is not None

    def losses(self, x: Floats) -> Floats:
        """(n,) mean losses at x, or risks where these alone are known."""
        return self.risks.with_radii(0 * self.eps).values(x[None])[0]

    def without(self, i: int) -> Floats:
        """(d,) the model of all sites but one."""
        problem, trained = self.trained.problem, self.trained
        left = np.arange(problem.n) != i
        sizes = np.asarray(problem.federation.sizes, float)[left]
        most = max(problem.federation.max_share, 1 / len(sizes))
        mixtures = trained.mixture_spec.mixtures(capped_sizes(sizes, most), most)
        references = NO_REFERENCES
        if problem.references is not None:
            each = np.asarray(problem.references)[left]
            references = References(each, float(np.asarray(mixtures.project(sizes / sizes.sum())) @ each))
        models = problem.domain
        assert isinstance(models, Box | Ball)
        alpha = np.asarray(mixtures.project(trained.alpha[left]))
        risks = self._only(left).with_radii(self.eps[left])
        (found,) = minimax_newton(risks, models, [mixtures], trained.x[None], alpha[None], _GAP, references)
        return found.x

    def _only(self, left: Any) -> RiskOracle:
        if self.moments is not None:
            return _squared(self.trained.problem, Moments(self.moments.mean[left], self.moments.around[left]))
        assert isinstance(self.risks, QuadraticRisks)
        return self.risks.of_clients(left)

    def moved(self, by: Floats) -> float:
        """The root mean square, over all sites' rows, of what a change (d,) of the model adds to predictions:
        exact from second moments, else at most so much, as columns may go together in any way."""
        problem = self.trained.problem
        share, loss = problem.federation.proportions, problem.loss
        w, b = loss.split(by)  # type: ignore[attr-defined]
        if self.moments is not None:
            mean, around = self.moments.mean[:, :-1], self.moments.around[:, :-1, :-1]
            squares = (around @ w) @ w + (mean @ w + b) ** 2
        else:
            squares = np.max((self.sizes[:, :-1] @ np.abs(np.atleast_2d(w)).T + np.abs(b)) ** 2, axis=1)
        return float(np.sqrt(share @ squares))


def _squared(problem: Problem, moments: Moments) -> RiskOracle:
    assert isinstance(problem.loss, Squared)
    own = smoothed(moments, problem.loss)
    return MomentsOracle.given(problem.loss, own, np.zeros(len(own.mean)), Lift(problem.cones))


def _around(state: State) -> QuadraticRisks | None:
    """The risks by the replies at the solver's centre; None where these have no curvature."""
    centre, model = state.centre, state.model
    if not centre.curvature.shape[1]:
        return None
    k = len(centre.z)
    rows, columns = np.triu_indices(k)
    curvature = np.zeros((len(centre.attained), k, k))
    curvature[:, rows, columns] = curvature[:, columns, rows] = centre.curvature
    x = centre.z[: model.models.dimension]
    steepest = (max(model.cones, key=lambda cone: cone.norm(cone.at(x))),) if model.cones else ()
    each = model.references.each
    risks = centre.attained + centre.smoothing + (0.0 if each is None else each)
    return QuadraticRisks(centre.z, risks, centre.gradient, curvature, Lift(steepest))
