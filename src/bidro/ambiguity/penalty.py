"""A price of moving each sample (eq. reformed_DRO):

R_i(x) = mean_k sup over xi in Xi of [ l(x, xi) - rho_i c(xi_i^k, xi) ].
"""

from __future__ import annotations

import itertools
import math
import warnings
from typing import ClassVar

import numpy as np

from bidro.ambiguity.base import Ambiguity, Domain, numbers_per_client
from bidro.ambiguity.wasserstein import require_growth
from bidro.core.errors import BidroError
from bidro.core.pytrees import pytree
from bidro.core.sets import ConvexSet, ScaledNormCut, VectorSet, WholeSpace
from bidro.core.sets.base import AnyArray, NormBound
from bidro.data.federation import Federation
from bidro.losses import LinearLoss, PiecewiseLinear, Softmax, has_curves
from bidro.risk.client_rows import ClientRows
from bidro.risk.inner import Inner, Oracle
from bidro.risk.rows_jax import Point, RiskModel, moved_pass

# On an unbounded support, models are kept this far (relatively) inside the domain where the penalised
# loss is finite, so that it is not only finite but of a size that can be computed with.
_DOMAIN_MARGIN = 1e-6


class NonconcaveInnerWarning(UserWarning):
    """A penalty lies below the loss's curvature: the inner problem is not concave everywhere.

    Examples:
        >>> import warnings
        >>> from bidro import NonconcaveInnerWarning
        >>> warnings.simplefilter("ignore", NonconcaveInnerWarning)  # as for the paper's own penalties
    """


class UncheckedDomainWarning(UserWarning):
    """The models for which the penalised loss is finite are not known in a form to project on.

    Examples:
        >>> import warnings
        >>> from bidro.ambiguity import UncheckedDomainWarning
        >>> warnings.simplefilter("error", UncheckedDomainWarning)  # stop where that is so
    """


@pytree
class Penalty(Ambiguity):
    """rho_i > 0 for each client (a single number is shared): the price of moving a sample.

    Args:
        rho: one number, or one a client (n,); in units of loss by cost.

    Raises:
        BidroError: from `Problem`, for a penalty that is not above 0, or not one a client.

    Examples:
        >>> from bidro import Penalty
        >>> Penalty(2.0).per_client(3).penalties.tolist()
        [2.0, 2.0, 2.0]
    """

    rho: AnyArray

    penalised: ClassVar[bool] = True
    has_curvature: ClassVar[bool] = True

    def risk(self, rows: ClientRows, inner: Inner, oracle: Oracle, at: Point, curvature: bool) -> RiskModel:
        moved = moved_pass(rows, inner, oracle, at, self.rho, curvature)
        attained = moved.minorant - self.rho * moved.cost
        return RiskModel.unsplit(moved, moved.value, attained, moved.gradient, self.rho)

    @property
    def penalties(self) -> AnyArray:
        return self.rho

    def per_client(self, n: int) -> Penalty:
        rho = numbers_per_client("penalties", self.rho, n)
        if np.any(rho <= 0):
            raise BidroError(f"Every penalty must be a positive number; got {rho}.")
        return Penalty(rho)

    def domain(self, federation: Federation, inner: Inner, models: VectorSet) -> Domain:
        if has_curves(inner.loss):
            raise BidroError(
                "A penalty needs straight lines: worst cases of curves are bounded over balls only; give a "
                "radius, or leave the curves out."
            )
        require_growth(inner)
        found = Domain(models, models)
        if isinstance(inner.support, WholeSpace):
            smallest, growth = float(np.min(self.rho)), inner.loss.growth
            finite = trained = _finite_models(inner, models, smallest, 0.0)
            if growth is not None and growth.order == 2:
                trained = _finite_models(inner, models, smallest, _DOMAIN_MARGIN)
            found = Domain(finite, trained)
        self._warn_where_not_concave(federation, inner, found.trained)
        return found

    def norm_bounds(self, federation: Federation, inner: Inner, mixtures: ConvexSet) -> tuple[NormBound, ...]:
        """With p = 1 on an unbounded support, how steep pieces may be, and how far apart the weights of two
        classes of softmax.

        The least penalty of those clients that count in some mixture of A bounds all pieces; a pair of
        classes, that of those among them that have one of the two, or whose labels can change.
        """
        loss, transport, n = inner.loss, inner.transport, federation.n
        unbounded = isinstance(inner.support, WholeSpace)
        if (
            not unbounded
            or not isinstance(loss, Softmax | PiecewiseLinear)
            or loss.growth.order != transport.p
        ):
            return ()
        counts = [float(mixtures.linear_maximum(one)[0]) > 0 for one in np.eye(n)]
        if isinstance(loss, PiecewiseLinear):
            cones, most = loss.steepness_cones(transport.inverse_scale), float(np.min(self.rho[counts]))
            return tuple(NormBound(cone.matrix, cone.offset, most) for cone in cones)
        rows, ends = np.asarray(federation.samples), np.cumsum(federation.sizes)
        bounds = []
        pairs = itertools.combinations(range(loss.classes), 2)
        for pair, cone in zip(pairs, loss.steepness_cones(transport.inverse_scale), strict=True):
            has = np.full(n, loss.classes == 2 or inner.reachable_labels is not None)
            if len(rows):
                own = np.isin(rows[:, -1], pair)
                has |= np.array([part.any() for part in np.split(own, ends[:-1])])
            if np.any(has & counts):
                least = float(np.min(self.rho[has & counts]))
                bounds.append(NormBound(cone.matrix, cone.offset, least))
        return tuple(bounds)

    def _warn_where_not_concave(self, federation: Federation, inner: Inner, trained: VectorSet) -> None:
        loss, transport = inner.loss, inner.transport
        if transport.p != 2:
            return
        name, smallest = type(loss).__name__, int(np.argmin(self.rho))
        rho = float(self.rho[smallest])
        worst = float(loss.largest_curvature(trained, transport.inverse_scale)) / 2
        if isinstance(loss, LinearLoss) and math.isinf(loss.scalar.curvature):
            why = f"{name} loss has kinks, so no penalty makes the inner problem concave"
        elif math.isinf(worst) and not isinstance(loss, LinearLoss):
            return  # nothing is declared, and nothing can be said
        elif worst > rho:
            why = (
                f"The penalty rho = {rho:g} of client '{federation.names[smallest]}' is below half the "
                f"curvature of {name} loss, which is up to {worst:g} on the model set: where it is above rho "
                "the inner problem is not concave"
            )
        else:
            return
        warnings.warn(
            f"{why}, and ascent may stop short of its maximum.", NonconcaveInnerWarning, stacklevel=5
        )


def _finite_models(inner: Inner, models: VectorSet, rho: float, margin: float) -> VectorSet:
    """The models for which the penalised loss is finite on an unbounded support, but for a share `margin`
    of how far they reach."""
    loss, growth, p = inner.loss, inner.loss.growth, inner.transport.p
    name = type(loss).__name__
    if growth is None or growth.order < p:
        return models
    if not isinstance(loss, LinearLoss):
        _check_softmax_domain(inner, models, rho)
        warnings.warn(
            f"On an unbounded support the penalised {name} loss is infinite for models that are too "
            f"steep for rho = {rho:g}; `solve` keeps away from them, other training does not, and only "
            "the Exact oracle notices (the run then stops).",
            UncheckedDomainWarning,
            stacklevel=5,
        )
        return models
    # coefficient ||S^-1 a(x)||^p <= rho, a(x) = (w, -1) or w.
    inverse = inner.transport.inverse_scale
    radius = (1 - margin) * (rho / growth.coefficient) ** (1 / p)
    label_part = float(inverse[-1]) if loss.labels is None else 0.0
    left = radius**2 - label_part**2
    scale = np.append(inverse[:-1], 0.0) if loss.intercept else inverse[:-1]
    advice = "raise rho, make the target costlier to move, or declare a bounded support"
    if left < 0:
        raise BidroError(
            f"With rho = {rho:g} the penalised {name} loss is infinite for every model, because "
            f"moving the target alone gains {label_part**p * growth.coefficient:g} a unit of "
            f"cost; {advice}."
        )
    try:
        return ScaledNormCut(models, scale, math.sqrt(left))
    except BidroError as error:
        raise BidroError(
            f"With rho = {rho:g} the penalised {name} loss is infinite for every model in X; "
            f"{advice}. {error}"
        ) from error


def _check_softmax_domain(inner: Inner, models: VectorSet, rho: float) -> None:
    """Raise BidroError where two classes' weights are too far apart for every model in X."""
    loss = inner.loss
    if not isinstance(loss, Softmax):
        return
    lower, upper = (loss.split(v)[0] for v in models.bounding_box())
    # The least distance of w_k and w_j, coordinate by coordinate, as far as the box around X tells.
    apart = np.maximum(lower[:, None] - upper[None, :], 0.0)
    apart = np.maximum(apart, np.swapaxes(apart, 0, 1))
    least = float(np.max(np.linalg.norm(apart * inner.transport.inverse_scale[:-1], axis=-1)))
    if least > rho:
        raise BidroError(
            f"With rho = {rho:g} the penalised Softmax loss is infinite for every model in X, whose "
            f"classes differ by at least {least:g}; raise rho or declare a bounded support."
        )
