"""The problem: a federation, a loss, a model set X, an ambiguity per client, and a mixture set A.

With Wasserstein balls of radius eps_i, this is MW-DRO (eq. problem_separability). With penalties rho_i, it
is the penalised problem (eq. reformed_DRO):

    min over x in X of max over alpha in A of
        sum_i alpha_i mean_k sup over xi in Xi of [ l(x, xi) - rho_i c(xi_i^k, xi) ].

Without ambiguity inside the clients the supremum is replaced by the loss at the sample itself.

With references b_i, what a client's risk R_i(x) is in these, R_i(x) - b_i takes its place: its regret, where
b_i is what could be attained for it alone (Agarwal and Zhang 2022, Minimax regret optimization).
"""

from __future__ import annotations

import itertools
import math
import warnings
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from bidro.client import (
    Client,
    Penalty,
    WassersteinBall,
    ambiguity_kind,
    ambiguity_levels,
    check_samples,
    checked_references,
)
from bidro.errors import BidroError
from bidro.federation import Federation
from bidro.losses import LinearLoss, Loss, ResidualLoss, Softmax, has_curves, losses_of
from bidro.losses.fingerprints import fingerprint_of
from bidro.sets import Ball, Box, CappedSimplex, L1SimplexBall, ScaledNormCut, Simplex, VectorSet, WholeSpace
from bidro.sets.base import Held, NormBound
from bidro.transport import Transport
from bidro.worst_case import Inner
from bidro.worst_case.ball import is_lifted

Mixtures = Simplex | CappedSimplex | L1SimplexBall

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
        >>> from bidro import UncheckedDomainWarning
        >>> warnings.simplefilter("error", UncheckedDomainWarning)  # stop where that is so
    """


@dataclass(frozen=True, eq=False)
class Problem:
    """MW-DRO, the penalised problem, or AFL's: see the module for the mathematics.

    Args:
        federation: the clients' rows.
        loss: l(x, xi).
        models: X, the models to choose from.
        transport: c, what it costs to move a sample.
        ambiguity: inside every client: `WassersteinBall`, `Penalty` (warned of below the curvature) or none.
        mixtures: A, the mixtures to guard against; the full simplex by default.
        references: b_i (n,), in units of the risks (none by default: the risks themselves).

    Raises:
        BidroError: for parts that do not fit together and for a problem with no finite value: a loss that
            grows faster than the cost on an unbounded support, or a penalty that no model in X satisfies.

    Examples:
        >>> from bidro import Box, Federation, Problem, Squared, Transport, WassersteinBall, example_visits
        >>> rows = example_visits()[["hospital", "age", "bmi", "stay"]]
        >>> federation = Federation.from_table(rows, "hospital", "stay", "unbounded")
        >>> cost, ball = Transport.euclidean(3), WassersteinBall(0.1)
        >>> Problem(federation, Squared(), Box.cube(2, 2), cost, ball).dimension
        2
    """

    federation: Federation
    loss: Loss
    models: VectorSet
    transport: Transport
    ambiguity: Penalty | WassersteinBall | None = None
    mixtures: Mixtures | None = None
    references: ArrayLike | None = None
    rho: NDArray[np.float64] | None = field(init=False, default=None)
    eps: NDArray[np.float64] | None = field(init=False, default=None)
    # The models of X whose loss is finite, and those of them that are trained: the others' is of no size to
    # compute with.
    finite: VectorSet = field(init=False)
    domain: VectorSet = field(init=False)

    def __post_init__(self) -> None:
        n = self.federation.n
        if self.mixtures is None:
            object.__setattr__(self, "mixtures", Simplex(n))
        if not isinstance(self.loss, Loss):
            raise BidroError(f"The loss must be an object such as Squared(); got {self.loss!r}.")
        if not isinstance(self.transport, Transport):
            raise BidroError(f"The transport cost must be a Transport; got {self.transport!r}.")
        if not isinstance(self.models, Box | Ball | WholeSpace | ScaledNormCut):
            raise BidroError(f"The models must be a Box, a Ball or WholeSpace; got {self.models!r}.")
        if not isinstance(self.mixtures, Mixtures):
            raise BidroError(
                f"The mixtures must be a Simplex, CappedSimplex or L1SimplexBall; got {self.mixtures!r}."
            )
        if not isinstance(self.ambiguity, Penalty | WassersteinBall | None):
            raise BidroError(
                f"The ambiguity must be Penalty(rho), WassersteinBall(radius) or None; got "
                f"{self.ambiguity!r}."
            )
        check_samples(self.federation, self.loss, self.transport)
        self._check_dimensions(n)
        if self.references is not None:
            object.__setattr__(self, "references", checked_references(self.references, n))
        object.__setattr__(self, "domain", self.models)
        object.__setattr__(self, "finite", self.models)
        if self.ambiguity is None:
            return
        if has_curves(self.loss):
            self._check_curves()
        unbounded = isinstance(self.federation.support, WholeSpace)
        if unbounded:
            self._check_growth()
        if isinstance(self.ambiguity, WassersteinBall):
            object.__setattr__(self, "eps", self.ambiguity.per_client(n))
            return
        rho = self.ambiguity.per_client(n)
        object.__setattr__(self, "rho", rho)
        if unbounded:
            smallest, growth = float(rho.min()), self.loss.growth
            finite = domain = self._finite_models(smallest, 0.0)
            if growth is not None and growth.order == 2:
                domain = self._finite_models(smallest, _DOMAIN_MARGIN)
            object.__setattr__(self, "finite", finite)
            object.__setattr__(self, "domain", domain)
        self._warn_where_not_concave(rho)

    def __repr__(self) -> str:
        """What it is made of, never rows."""
        ambiguity = "none" if self.ambiguity is None else type(self.ambiguity).__name__
        return (
            f"Problem({self.federation!r}, loss {self.loss!r}, models {type(self.models).__name__} of "
            f"dimension {self.dimension}, transport of order {self.transport.p:g}, ambiguity {ambiguity}, "
            f"mixtures {type(self.mixtures).__name__}{'' if self.references is None else ', references'})"
        )

    @property
    def n(self) -> int:
        return self.federation.n

    @cached_property
    def dimension(self) -> int:
        """Length d of the flat model."""
        return self.loss.dimension(self.federation.m)

    @property
    def inner(self) -> Inner:
        return Inner(self.transport, self.federation.support, self.loss)

    @property
    def mixture_set(self) -> Mixtures:
        """The mixture set A."""
        assert self.mixtures is not None
        return self.mixtures

    @cached_property
    def initial_model(self) -> Held:
        """x_1: the loss's starting model, projected on X."""
        return self.domain.project(np.asarray(self.loss.initial(self.federation.m)))

    @cached_property
    def constant_model(self) -> Held:
        """The model that predicts the middle of all targets for every row, projected on X: `initial_model`
        where targets are classes, the model has no intercept, or the rows are elsewhere."""
        loss, rows = self.loss, self.federation.samples
        if not isinstance(loss, ResidualLoss) or not loss.intercept or len(rows) == 0:
            return self.initial_model
        middle = np.append(self.initial_model[:-1], loss.middle(np.asarray(rows)[:, -1]))
        return self.domain.project(middle)

    @cached_property
    def constant_risk(self) -> float:
        """The mean loss of the middle of all targets as a prediction for every row, whether or not a model in
        X predicts that; of classes, of a score of 0 for each; inf where it is not known."""
        rows = self.federation.samples
        if self.loss.labels is not None and self.loss.host_values:
            row = np.zeros((1, self.federation.m))
            row[0, -1] = self.loss.labels[0]
            return float(losses_of(self.loss, np.zeros(self.dimension), row)[0])
        if not isinstance(self.loss, ResidualLoss) or len(rows) == 0:
            return math.inf
        target = np.asarray(rows)[:, -1]
        # Targets that are all the same leave what rounding does to them.
        residuals: Any = self.loss.middle(target) - target + 1e-14 * np.abs(target).max()
        return float(np.mean(self.loss.scalar.value(residuals)))

    @cached_property
    def initial_weights(self) -> Held:
        """alpha_1: the empirical proportions N_i / N, projected on A."""
        return self.mixture_set.project(self.federation.proportions)

    @cached_property
    def clients(self) -> Client:
        """All clients, ready to be mapped over with `Client.client_axes`."""
        rho, eps = ambiguity_levels(self.ambiguity, self.n)
        return Client(
            self.federation.rows(),
            rho,
            eps,
            self.federation.client_ids,
            self.inner,
            ambiguity_kind(self.ambiguity),
        )

    @property
    def lifted(self) -> bool:
        """Whether clients' risks are functions of (x, nu): see `worst_case.atoms`."""
        return ambiguity_kind(self.ambiguity) == "ball" and is_lifted(self.inner)

    @cached_property
    def steepest(self) -> tuple[NormBound, ...]:
        """Bounds beyond which no model has a finite risk, where `finite` does not hold them: of penalised
        softmax with p = 1 on an unbounded support, how far apart the weights of two classes may be.

        A pair of classes is bounded by the least penalty of those clients that have one of the two, or whose
        labels can change, and that count in some mixture of A.
        """
        loss = self.loss
        penalised = self.rho is not None and isinstance(self.federation.support, WholeSpace)
        if not penalised or not isinstance(loss, Softmax) or loss.growth.order != self.transport.p:
            return ()
        assert self.rho is not None
        counts = [float(self.mixture_set.linear_maximum(one)[0]) > 0 for one in np.eye(self.n)]
        rows, ends = np.asarray(self.federation.samples), np.cumsum(self.federation.sizes)
        bounds = []
        pairs = itertools.combinations(range(loss.classes), 2)
        for pair, cone in zip(pairs, loss.steepness_cones(self.transport.inverse_scale), strict=True):
            has = np.full(self.n, loss.classes == 2 or self.inner.reachable_labels is not None)
            if len(rows):
                own = np.isin(rows[:, -1], pair)
                has |= np.array([part.any() for part in np.split(own, ends[:-1])])
            if np.any(has & counts):
                least = float(np.min(self.rho[has & counts]))
                bounds.append(NormBound(cone.matrix, cone.offset, least))
        return tuple(bounds)

    @cached_property
    def fingerprint(self) -> str:
        """Tells problems apart: a digest of their sets, settings and rows, to the last bit; where a loss of
        the user's cannot be told from others, the reason (see `losses.fingerprints`)."""
        settings = (self.loss, self.transport, self.federation.support, self.models, self.mixtures)
        leaves, structure = jax.tree.flatten((settings, self.rho, self.eps))
        given = () if self.references is None else ("references", np.asarray(self.references))
        words = (structure, self.federation.names, self.federation.sizes)
        return fingerprint_of(self.loss, words, (*leaves, *given, self.federation.samples))

    def with_mixtures(self, mixtures: Mixtures) -> Problem:
        """The same problem with other mixtures; what the rows tell of it is not computed anew."""
        other = replace(self, mixtures=mixtures)
        # A frozen dataclass keeps its cached properties here.
        other.__dict__.update(constant_model=self.constant_model, constant_risk=self.constant_risk)
        return other

    def with_samples(self, samples: Array) -> Problem:
        """The same problem with other rows of the same shape and sizes."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NonconcaveInnerWarning)
            return replace(self, federation=replace(self.federation, samples=samples))

    def _check_dimensions(self, n: int) -> None:
        if self.models.dimension != self.dimension:
            raise BidroError(
                f"The model set has dimension {self.models.dimension} but {type(self.loss).__name__} on "
                f"{self.federation.m} columns has {self.dimension} parameters."
            )
        if self.mixture_set.dimension != n:
            raise BidroError(
                f"The mixture set is for {self.mixture_set.dimension} clients but there are {n}."
            )

    def _check_curves(self) -> None:
        if isinstance(self.ambiguity, Penalty):
            raise BidroError(
                "A penalty needs straight lines: worst cases of curves are bounded over balls only; give a "
                "radius, or leave the curves out."
            )
        if not is_lifted(self.inner):
            orders = "1" if isinstance(self.loss, Softmax) else "1 or 2"
            raise BidroError(
                f"Curves with {type(self.loss).__name__} loss need a transport cost of order p = {orders}; "
                f"got {self.transport.p:g}."
            )

    def _check_growth(self) -> None:
        growth, p = self.loss.growth, self.transport.p
        if growth is not None and growth.order > p:
            raise BidroError(
                f"{type(self.loss).__name__} loss grows with order {growth.order:g}, faster than the "
                f"transport cost with p = {p:g}: the worst case over an unbounded support is infinite for "
                "every model; raise p or declare a bounded support."
            )

    def _finite_models(self, rho: float, margin: float) -> VectorSet:
        """The models for which the penalised loss is finite on an unbounded support, but for a share `margin`
        of how far they reach."""
        growth, p = self.loss.growth, self.transport.p
        name = type(self.loss).__name__
        if growth is None or growth.order < p:
            return self.models
        if not isinstance(self.loss, LinearLoss):
            self._check_softmax_domain(rho)
            warnings.warn(
                f"On an unbounded support the penalised {name} loss is infinite for models that are too "
                f"steep for rho = {rho:g}; `solve` keeps away from them, other training does not, and only "
                "the Exact oracle notices (the run then stops).",
                UncheckedDomainWarning,
                stacklevel=4,
            )
            return self.models
        # coefficient ||S^-1 a(x)||^p <= rho, a(x) = (w, -1) or w.
        inverse = self.transport.inverse_scale
        radius = (1 - margin) * (rho / growth.coefficient) ** (1 / p)
        label_part = float(inverse[-1]) if self.loss.labels is None else 0.0
        left = radius**2 - label_part**2
        scale = np.append(inverse[:-1], 0.0) if self.loss.intercept else inverse[:-1]
        advice = "raise rho, make the target costlier to move, or declare a bounded support"
        if left < 0:
            raise BidroError(
                f"With rho = {rho:g} the penalised {name} loss is infinite for every model, because "
                f"moving the target alone gains {label_part**p * growth.coefficient:g} a unit of "
                f"cost; {advice}."
            )
        try:
            return ScaledNormCut(self.models, scale, math.sqrt(left))
        except BidroError as error:
            raise BidroError(
                f"With rho = {rho:g} the penalised {name} loss is infinite for every model in X; "
                f"{advice}. {error}"
            ) from error

    def _check_softmax_domain(self, rho: float) -> None:
        """Raise BidroError where two classes' weights are too far apart for every model in X."""
        if not isinstance(self.loss, Softmax):
            return
        lower, upper = (self.loss.split(v)[0] for v in self.models.bounding_box())
        # The least distance of w_k and w_j, coordinate by coordinate, as far as the box around X tells.
        apart = np.maximum(lower[:, None] - upper[None, :], 0.0)
        apart = np.maximum(apart, np.swapaxes(apart, 0, 1))
        least = float(np.max(np.linalg.norm(apart * self.transport.inverse_scale[:-1], axis=-1)))
        if least > rho:
            raise BidroError(
                f"With rho = {rho:g} the penalised Softmax loss is infinite for every model in X, whose "
                f"classes differ by at least {least:g}; raise rho or declare a bounded support."
            )

    def _warn_where_not_concave(self, rho: NDArray[np.float64]) -> None:
        if self.transport.p != 2:
            return
        name, smallest = type(self.loss).__name__, int(rho.argmin())
        worst = float(self.loss.largest_curvature(self.domain, self.transport.inverse_scale)) / 2
        if isinstance(self.loss, LinearLoss) and math.isinf(self.loss.scalar.curvature):
            why = f"{name} loss has kinks, so no penalty makes the inner problem concave"
        elif math.isinf(worst) and not isinstance(self.loss, LinearLoss):
            return  # nothing is declared, and nothing can be said
        elif worst > float(rho[smallest]):
            why = (
                f"The penalty rho = {float(rho[smallest]):g} of client "
                f"'{self.federation.names[smallest]}' is below half the curvature of {name} loss, which is "
                f"up to {worst:g} on the model set: where it is above rho the inner problem is not concave"
            )
        else:
            return
        warnings.warn(
            f"{why}, and ascent may stop short of its maximum.", NonconcaveInnerWarning, stacklevel=4
        )
