"""The problem: a federation, a loss, a model set X, an ambiguity per client, and a mixture set A.

    min over x in X of max over alpha in A of sum_i alpha_i R_i(x),

R_i(x) being the risk that the ambiguity gives client i (`bidro.ambiguity`). With Wasserstein balls of radius
eps_i, this is MW-DRO (eq. problem_separability); with penalties rho_i, the penalised problem (eq.
reformed_DRO); without ambiguity inside the clients R_i is the mean loss.

With references b_i, R_i(x) - b_i takes the place of R_i(x): a client's regret, where b_i is what could be
attained for it alone (Agarwal and Zhang 2022, Minimax regret optimization).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bidro.ambiguity import Ambiguity, NoAmbiguity, NonconcaveInnerWarning, WassersteinBall
from bidro.core.errors import BidroError
from bidro.core.pytrees import structured
from bidro.core.sets import (
    Ball,
    Box,
    ConstrainedBox,
    MixtureSet,
    ScaledNormCut,
    Simplex,
    VectorSet,
    WholeSpace,
)
from bidro.core.sets.base import AnyArray, NormBound
from bidro.data.federation import Federation
from bidro.losses import Loss, ResidualLoss, Tweedie, losses_of
from bidro.losses.base import Cone
from bidro.losses.fingerprints import fingerprint_of
from bidro.problem.client import Client, check_samples, checked_references
from bidro.risk.client_rows import ClientRows
from bidro.risk.inner import Inner
from bidro.risk.inner.ball import is_lifted
from bidro.risk.transport import Transport


@dataclass(frozen=True, eq=False)
class Problem:
    """MW-DRO, the penalised problem, or AFL's: see the module for the mathematics.

    Args:
        federation: the clients' rows.
        loss: l(x, xi).
        models: X, the models to choose from.
        transport: c, what it costs to move a sample.
        ambiguity: inside every client: `WassersteinBall`, `Penalty` (warned of below the curvature), one of
            your own (`Ambiguity`) or none.
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
    ambiguity: Ambiguity | None = None
    mixtures: MixtureSet | None = None
    references: ArrayLike | None = None
    # The same with one number a client, also where none is given.
    ambiguity_set: Ambiguity = field(init=False)
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
        if type(self.transport) is not Transport:
            raise BidroError(
                "The transport cost must be a Transport itself, whose suprema are known: a cost of your own "
                f"belongs in an Ambiguity; got {self.transport!r}."
            )
        if not isinstance(self.models, Box | Ball | ConstrainedBox | WholeSpace | ScaledNormCut):
            raise BidroError(
                f"The models must be a Box, a Ball, a ConstrainedBox or WholeSpace; got {self.models!r}."
            )
        if not isinstance(self.mixtures, MixtureSet):
            raise BidroError(
                "The mixtures must be a Simplex, CappedSimplex, L1SimplexBall or another MixtureSet; got "
                f"{self.mixtures!r}."
            )
        if not isinstance(self.ambiguity, Ambiguity | None):
            raise BidroError(
                "The ambiguity must be Penalty(rho), WassersteinBall(radius), another Ambiguity or None; got "
                f"{self.ambiguity!r}."
            )
        check_samples(self.federation, self.loss, self.transport)
        self._check_dimensions(n)
        if self.references is not None:
            object.__setattr__(self, "references", checked_references(self.references, n))
        around = NoAmbiguity() if self.ambiguity is None else self.ambiguity.per_client(n)
        self._check_metric(around)
        object.__setattr__(self, "ambiguity_set", around)
        found = around.domain(self.federation, self.inner, self.models)
        object.__setattr__(self, "finite", found.finite)
        object.__setattr__(self, "domain", found.trained)

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
    def mixture_set(self) -> MixtureSet:
        """The mixture set A."""
        assert self.mixtures is not None
        return self.mixtures

    @cached_property
    def initial_model(self) -> AnyArray:
        """x_1: the loss's starting model, projected on X."""
        return self.domain.project(np.asarray(self.loss.initial(self.federation.m)))

    @cached_property
    def constant_model(self) -> AnyArray:
        """The model that predicts the middle of all targets for every row, projected on X: `initial_model`
        where targets are classes, the model has no intercept, or the rows are elsewhere."""
        loss, rows = self.loss, self.federation.samples
        middle = None if len(rows) == 0 else loss.middle(np.asarray(rows)[:, -1])
        if middle is None or not getattr(loss, "intercept", False):
            return self.initial_model
        return self.domain.project(np.append(self.initial_model[:-1], middle))

    @cached_property
    def constant_risk(self) -> float:
        """The mean loss of the middle of all targets as a prediction for every row, whether or not a model in
        X predicts that; of classes, of a score of 0 for each; inf where it is not known."""
        rows = self.federation.samples
        if self.loss.labels is not None and self.loss.host_values:
            row = np.zeros((1, self.federation.m))
            row[0, -1] = self.loss.labels[0]
            return float(losses_of(self.loss, np.zeros(self.dimension), row)[0])
        if len(rows) == 0:
            return math.inf
        target = np.asarray(rows)[:, -1]
        if isinstance(self.loss, Tweedie):
            return float(
                np.mean(self.loss.of_scores(target, np.full((1, len(target)), self.loss.middle(target)))[0])
            )
        if not isinstance(self.loss, ResidualLoss):
            return math.inf
        # Targets that are all the same leave what rounding does to them.
        residuals: Any = self.loss.middle(target) - target + 1e-14 * np.abs(target).max()
        return float(np.mean(self.loss.scalar.value(residuals)))

    @cached_property
    def initial_weights(self) -> AnyArray:
        """alpha_1: the empirical proportions N_i / N, projected on A."""
        return self.mixture_set.project(self.federation.proportions)

    @cached_property
    def clients(self) -> Client:
        """All clients, ready to be mapped over with `Client.client_axes`."""
        return Client(
            ClientRows.of(self.federation.host_rows, self.federation.sizes),
            self.ambiguity_set,
            self.federation.client_ids,
            self.inner,
        )

    @property
    def rho(self) -> NDArray[np.float64]:
        """(n,) the penalties; inf where the ambiguity has none."""
        return np.broadcast_to(self.ambiguity_set.penalties, (self.n,))

    @property
    def eps(self) -> NDArray[np.float64]:
        """(n,) the radii of the clients' Wasserstein balls; 0 where there are none."""
        return np.broadcast_to(self.ambiguity_set.radii, (self.n,))

    @property
    def lifted(self) -> bool:
        """Whether clients' risks are functions of (x, nu): see `risk.rows_jax`."""
        return self.ambiguity_set.lifted(self.inner)

    @property
    def cones(self) -> tuple[Cone, ...]:
        """The functions of a model whose maximum is nu; none where risks are not lifted."""
        return self.ambiguity_set.cones(self.inner)

    @cached_property
    def norm_bounds(self) -> tuple[NormBound, ...]:
        """Bounds beyond which no model has a finite risk, where `finite` does not hold them."""
        return self.ambiguity_set.norm_bounds(self.federation, self.inner, self.mixture_set)

    @cached_property
    def fingerprint(self) -> str:
        """Tells problems apart: a digest of their sets, settings and rows, to the last bit; where a loss of
        the user's cannot be distinguished from others, the reason (see `losses.fingerprints`)."""
        settings = (self.loss, self.transport, self.federation.support, self.models, self.mixtures)
        leaves, structure = structured((settings, self.ambiguity_set))
        given = () if self.references is None else ("references", np.asarray(self.references))
        words = (structure, self.federation.names, self.federation.sizes)
        kinds = (type(self.ambiguity_set), type(self.mixture_set))
        return fingerprint_of(self.loss, kinds, words, (*leaves, *given, self.federation.samples))

    def own_ambiguity(self, i: int) -> Ambiguity | None:
        """What client i is sent of its penalty or radius: its own, and no other's."""
        return None if self.ambiguity is None else self.ambiguity_set.of_client(i)

    def with_balls(self) -> Problem:
        """The same problem over Wasserstein balls: of radius 0, where it has no balls of its own."""
        return self if self.ambiguity_set.over_balls else replace(self, ambiguity=WassersteinBall(0.0))

    def with_mixtures(self, mixtures: MixtureSet) -> Problem:
        """The same problem with other mixtures; what follows from the rows is not computed again."""
        other = replace(self, mixtures=mixtures)
        # A frozen dataclass keeps its cached properties here.
        other.__dict__.update(constant_model=self.constant_model, constant_risk=self.constant_risk)
        return other

    def begun_at(self, x: ArrayLike | None = None, alpha: ArrayLike | None = None) -> Problem:
        """The same problem whose `initial_model` is x (d,) and whose `initial_weights` are alpha (n,), where
        they are given. Raises BidroError where they do not lie in X and A."""
        other, n = replace(self), self.n
        if x is not None:
            model = np.array(x, float)
            if model.shape != (self.dimension,) or not bool(self.domain.contains(model)):
                raise BidroError(f"A first model has {self.dimension} finite numbers in X; got {model}.")
            other.__dict__["initial_model"] = model
        if alpha is not None:
            weights = np.array(alpha, float)
            if weights.shape != (n,) or not bool(self.mixture_set.contains(weights)):
                raise BidroError(f"First weights are {n} numbers in the problem's set A; got {weights}.")
            other.__dict__["initial_weights"] = weights
        return other

    def with_samples(self, samples: Any) -> Problem:
        """The same problem with other rows of the same shape and sizes."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NonconcaveInnerWarning)
            return replace(self, federation=replace(self.federation, samples=samples))

    def _check_metric(self, around: Ambiguity) -> None:
        transport, loss, unmoved = self.transport, type(self.loss).__name__, not around.moves_samples
        if transport.is_euclidean or unmoved or (is_lifted(self.inner) and not around.penalised):
            return
        why = "a penalty" if around.penalised else f"{loss} loss, p = {transport.p:g} and this support"
        raise BidroError(
            f"Worst cases in {transport.metric} are known for a loss of one linear predictor without curves, "
            f"on an unbounded support, with p = 1 or 2, not for {why}; give WassersteinBall(radius), or use "
            "the Euclidean metric."
        )

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
