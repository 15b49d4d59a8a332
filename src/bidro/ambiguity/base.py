"""What every ambiguity says of itself: a client's risk, its lift, where it is finite, and its closed form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.core.sets import ConvexSet, VectorSet
from bidro.core.sets.base import AnyArray, NormBound
from bidro.data.federation import Federation
from bidro.losses.base import Cone
from bidro.risk.client_rows import ClientRows
from bidro.risk.inner import Inner, Oracle
from bidro.risk.rows_jax import Point, RiskModel


class Domain(NamedTuple):
    """The models of X whose risks are finite, and those of them that are trained: the others' risks are of no
    size to compute with."""

    finite: VectorSet
    trained: VectorSet


class Ambiguity(ABC):
    """The set of distributions around its samples that each client guards against.

    A client's risk R_i(x) is the supremum of the mean loss over its set, less what a distribution costs where
    it costs something. An own ambiguity is a class made by `bidro.pytree` whose fields are numbers, one
    shared or one a client, with the method `risk`: that is all that compiled programs need. The other methods
    say what more is known; what is not declared is not assumed.

    Examples:
        >>> from bidro import Ambiguity, Penalty, WassersteinBall
        >>> isinstance(Penalty(2.0), Ambiguity), WassersteinBall(0.1).over_balls
        (True, True)
    """

    over_balls: ClassVar[bool] = False  # whether R_i is that over a Wasserstein ball of radius `radii`
    penalised: ClassVar[bool] = False  # whether samples move in R_i at the prices `penalties`
    moves_samples: ClassVar[bool] = True  # whether `risk` may ask the oracle for the inner supremum
    has_kinks: ClassVar[bool] = False  # whether `risk` smooths kinks of its own over `at.of_loss`
    has_curvature: ClassVar[bool] = False  # whether `risk` returns a curvature where it is wanted

    @abstractmethod
    def risk(self, rows: ClientRows, inner: Inner, oracle: Oracle, at: Point, curvature: bool) -> RiskModel:
        """R of one client at a model, traced by JAX; the fields hold this client's numbers alone.

        Args:
            rows: the client's, with `sum`, `mean` and `largest` over them; what a function over rows needs
                and may be traced must come in its arguments, and derivatives are taken inside of it.
            inner: loss, transport cost and support.
            oracle: a way to find the worst place of one sample, for sets that move samples.
            at: the model `at.x` (d,), and the steepness `at.nu` where the risk is `lifted`.
            curvature: whether a model of the second derivative is wanted, if there is one.

        Returns:
            An upper bound of R, and a cut below it: the value and gradient of the mean loss under one
            distribution of the set, as `RiskModel.of` puts them together. What training adds to a loss
            (`Loss.penalty` and `Loss.pull`) is part of it.
        """

    def row_weights(self, losses: Floats) -> Floats | None:
        """(N,) the worst weights, with mean 1, of one client's rows with these losses; None for a set that is
        not one of weights of rows."""
        return None

    def on_host(
        self,
        inner: Inner,
        samples: Floats,
        sizes: NDArray[np.int64],
        x: Floats,
        width: float,
        curvature: bool,
        before: Floats | None = None,
    ) -> RiskModel | None:
        """What the clients say of their risks at x (d,) where nothing needs to be compiled, with a leading
        axis of clients; their rows (N, m) lie one client after the other. None for a compiled program. Kinks
        are smoothed over `width` and followed through the models `before` (models, d + 1), if any."""
        return None

    @property
    def radii(self) -> AnyArray:
        """eps_i of the clients' balls; 0 where there are none."""
        return np.zeros(())

    @property
    def matters(self) -> bool:
        """Whether some client guards against more than its own rows."""
        return True

    @property
    def penalties(self) -> AnyArray:
        """rho_i, the price of moving a sample; inf where none is set."""
        return np.full((), np.inf)

    def lifted(self, inner: Inner) -> bool:
        """Whether R is a function of z = (x, nu), nu being the loss's steepness in the metric of the
        transport cost, and gradients have one coordinate more: it is smooth where nu is not, and does not
        fall with nu."""
        return False

    def cones(self, inner: Inner) -> tuple[Cone, ...]:
        """The functions of a model whose maximum is nu; none where the risk is not lifted."""
        return tuple(inner.transport.steepness_cones(inner.loss)) if self.lifted(inner) else ()

    def closed_form(self, inner: Inner) -> bool:
        """Whether R follows from the mean loss, the radius and nu, so that no compiled program is needed."""
        return False

    def domain(self, federation: Federation, inner: Inner, models: VectorSet) -> Domain:
        """The models in X with finite risks. Raises BidroError where there are none, or none is known."""
        return Domain(models, models)

    def norm_bounds(self, federation: Federation, inner: Inner, mixtures: ConvexSet) -> tuple[NormBound, ...]:
        """Bounds beyond which no model has a finite risk, where `domain` does not hold them."""
        return ()

    def widened(self, by: AnyArray) -> Ambiguity:
        """The same with radii that are larger by so much. Raises BidroError where there are no radii."""
        raise BidroError(
            f"{type(self).__name__} has no radius that could be chosen; give WassersteinBall(0)."
        )

    def per_client(self, n: int) -> Self:
        """The same with every number one a client, (n,). Raises BidroError where they are not."""
        given = {name: numbers_per_client(name, getattr(self, name), n) for name in self._levels}
        return replace(self, **given)  # type: ignore[type-var]

    def of_client(self, i: int) -> Self:
        """The ambiguity of client i alone, with its own numbers; for one made by `per_client`."""
        own = {name: np.asarray(getattr(self, name))[i].tolist() for name in self._levels}
        return replace(self, **own)  # type: ignore[type-var]

    @property
    def _levels(self) -> list[str]:
        """The names of the fields that differ between clients."""
        parts: Any = fields(self)  # type: ignore[arg-type]
        return [part.name for part in parts if not part.metadata.get("static")]


def numbers_per_client(what: str, given: ArrayLike, n: int) -> NDArray[np.float64]:
    """One finite number a client."""
    try:
        numbers = np.array(given, float)
    except (TypeError, ValueError) as error:
        raise BidroError(f"The {what} must be numbers; got {given!r}.") from error
    if numbers.ndim > 1 or (numbers.ndim == 1 and numbers.shape != (n,)):
        raise BidroError(f"There are {n} clients but {what} of shape {numbers.shape}.")
    if not np.all(np.isfinite(numbers)):
        raise BidroError(f"The {what} must be finite, positive numbers; got {numbers}.")
    return np.broadcast_to(numbers, (n,))
