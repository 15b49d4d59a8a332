"""One client: what it owns, how uncertain it is of its own distribution, and its risk at a model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from bidro.errors import BidroError
from bidro.federation import Federation, Support
from bidro.losses import LinearLoss, Loss, ResidualLoss, Squared
from bidro.rows import ClientRows
from bidro.sets import Ball, Box
from bidro.sets.base import Held
from bidro.splits import client_id
from bidro.transport import Transport
from bidro.trees import pytree, static
from bidro.worst_case import Inner, Oracle
from bidro.worst_case.atoms import Point
from bidro.worst_case.ball import ball_risk, is_lifted
from bidro.worst_case.risk import RiskModel, penalised_risk, unmoved_risk
from bidro.worst_case.rounding import of_value
from bidro.worst_case.two_classes import TwoClasses


@dataclass(frozen=True, eq=False)
class Penalty:
    """rho_i > 0 for each client (a single number is shared): the price of moving a sample.

    Args:
        rho: one number, or one a client (n,); in units of loss by cost.

    Raises:
        BidroError: from `Problem`, for a penalty that is not above 0, or not one a client.

    Examples:
        >>> from bidro import Penalty
        >>> Penalty(2.0).per_client(3).tolist()
        [2.0, 2.0, 2.0]
    """

    rho: ArrayLike

    def per_client(self, n: int) -> NDArray[np.float64]:
        rho = _per_client("penalties", self.rho, n)
        if np.any(rho <= 0):
            raise BidroError(f"Every penalty must be a positive number; got {rho}.")
        return rho


@dataclass(frozen=True, eq=False)
class WassersteinBall:
    """eps_i >= 0 for each client (a single number is shared): how far its distribution may lie from
    its samples, in W_p of the problem's transport cost.

    Args:
        radius: one number, or one a client (n,); in units of the transport cost's metric.

    Raises:
        BidroError: from `Problem`, for a negative radius, or not one a client.

    Examples:
        >>> from bidro import WassersteinBall
        >>> WassersteinBall([0.1, 0.2]).per_client(2).tolist()
        [0.1, 0.2]
    """

    radius: ArrayLike

    def per_client(self, n: int) -> NDArray[np.float64]:
        eps = _per_client("radii", self.radius, n)
        if np.any(eps < 0):
            raise BidroError(f"Every radius must be a number of at least 0; got {eps}.")
        return eps


def ambiguity_kind(ambiguity: Penalty | WassersteinBall | None) -> Literal["none", "penalty", "ball"]:
    if ambiguity is None:
        return "none"
    return "penalty" if isinstance(ambiguity, Penalty) else "ball"


def ambiguity_levels(ambiguity: Penalty | WassersteinBall | None, n: int) -> tuple[Held, Held]:
    """(rho, eps) of n clients; nan for what the ambiguity is not."""
    unused = np.full(n, np.nan)
    if ambiguity is None:
        return unused, unused
    level = ambiguity.per_client(n)
    return (level, unused) if isinstance(ambiguity, Penalty) else (unused, level)


def _per_client(what: str, given: ArrayLike, n: int) -> NDArray[np.float64]:
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


@pytree
class Client:
    """All that one client may use: its own rows, its penalty or radius, and what everybody knows.

    Before being mapped over, `rows`, `rho`, `eps` and `id` carry all clients along a leading axis.

    Examples:
        >>> import numpy as np
        >>> from bidro import Client, Squared, Transport, WassersteinBall, WholeSpace
        >>> rows, cost = np.random.default_rng(0).normal(size=(40, 3)), Transport.euclidean(3)
        >>> Client.single("north", rows, Squared(), cost, WholeSpace(3), WassersteinBall(0.1)).ambiguity
        'ball'
    """

    rows: ClientRows  # its own
    rho: Held  # (), nan unless the ambiguity is a penalty
    eps: Held  # (), nan unless it is a ball
    id: Held  # (2,), derived from the name
    inner: Inner  # loss, cost and support
    ambiguity: Literal["none", "penalty", "ball"] = static()  # of which kind

    def __repr__(self) -> str:
        """What it owns by shape, never rows."""
        return f"Client({self.rows!r}, ambiguity {self.ambiguity})"

    @classmethod
    def single(
        cls,
        name: str,
        samples: ArrayLike,
        loss: Loss,
        transport: Transport,
        support: Support,
        ambiguity: Penalty | WassersteinBall | None = None,
    ) -> Client:
        """A client on the machine that owns `samples` (N_i, m) and nothing else."""
        own = Federation.from_arrays({name: samples}, support)
        check_samples(own, loss, transport)
        rho, eps = ambiguity_levels(ambiguity, 1)
        identity = client_id(name)
        inner = Inner(transport, support, loss)
        return cls(ClientRows.single(own.samples), rho[0], eps[0], identity, inner, ambiguity_kind(ambiguity))

    @property
    def lifted(self) -> bool:
        """Whether the client's risk is a function of (x, nu): see `worst_case.atoms`."""
        return self.ambiguity == "ball" and is_lifted(self.inner)

    def risk(
        self, oracle: Oracle, x: Array, width: Array, curvature: bool, before: Array | None = None
    ) -> RiskModel:
        """This client's R_i at x, as a function of (x, nu) where it is lifted.

        In the cut and curvature that are returned, never in the value, kinks of the loss are smoothed over
        `width`, in units of the residuals (or the loss) of a model that predicts the same for every row. The
        curvature follows them through the models `before` (models, d + 1), each with its width, if any.
        """
        unit = self._unit
        if before is not None:
            before = before.at[:, -1].multiply(unit)
        found = self._risk(oracle, x, width * unit, curvature, before)
        k = found.gradient.shape[-1]
        return found._replace(
            value=found.value + of_value(found.value, k),
            attained=found.attained - of_value(found.attained, k),
            gradient=self.inner.loss.balanced(found.gradient),
        )

    def _risk(
        self, oracle: Oracle, x: Array, width: Array, curvature: bool, before: Array | None
    ) -> RiskModel:
        if (two := TwoClasses.of(self.inner)) is not None:
            # Softmax has no kinks to follow through the models before.
            return two.in_scores(self._risk_of(two.inner, oracle, two.model(x), width, curvature, None))
        return self._risk_of(self.inner, oracle, x, width, curvature, before)

    def _risk_of(
        self, inner: Inner, oracle: Oracle, x: Array, width: Array, curvature: bool, before: Array | None
    ) -> RiskModel:
        if self.ambiguity == "ball":
            return ball_risk(self.rows, inner, oracle, x, self.eps, width, curvature, before)
        at = Point(x, None, width)
        if self.ambiguity == "penalty":
            return penalised_risk(self.rows, inner, oracle, at, self.rho, curvature)
        return unmoved_risk(self.rows, inner, at, curvature)

    @property
    def _unit(self) -> Array:
        """The size of u for this client, where kinks are to be smoothed."""
        loss = self.inner.loss
        if not isinstance(loss, Squared) and not (
            isinstance(loss, LinearLoss) and loss.scalar.curvature == math.inf
        ):
            return jnp.ones(())
        start = jnp.asarray(loss.initial(self.rows.samples.shape[-1]))
        if isinstance(loss, ResidualLoss) and loss.intercept:
            # How far the client's targets are from 0 says nothing of residuals.
            start = start.at[-1].set(self.rows.mean(lambda _, rows: rows[:, -1], jnp.zeros(())))
        mean = self.rows.mean(loss.values, start)
        return jnp.sqrt(mean) if isinstance(loss, Squared) else mean

    def client_axes(self) -> Client:
        """The `in_axes` that map a function of one client over all clients."""
        return Client(self.rows.client_axes(), 0, 0, 0, None, self.ambiguity)  # type: ignore[arg-type]

    def run_axes(self) -> Client:
        """The `in_axes` that map a function of all clients over repeated runs."""
        return Client(self.rows.run_axes(), None, None, None, None, self.ambiguity)  # type: ignore[arg-type]


def check_samples(federation: Federation, loss: Loss, transport: Transport) -> None:
    """Raise BidroError unless the transport cost and the loss fit the rows and their labels."""
    name, m = type(loss).__name__, federation.m
    if transport.dimension != m:
        raise BidroError(
            f"The transport cost is for {transport.dimension} coordinates but samples have {m} (the "
            "label or target counts as one)."
        )
    if loss.labels is None:
        if transport.discrete_label:
            raise BidroError(
                f"{name} has a continuous target; use a transport cost without a discrete label."
            )
        return
    if not transport.discrete_label:
        raise BidroError(f"{name} has discrete labels; use Transport.classification.")
    labels = np.asarray(federation.samples)[:, -1]
    wrong = ~np.isin(labels, loss.labels)
    if wrong.any():
        row = int(np.argmax(wrong))
        client, k = federation.locate(row)
        raise BidroError(
            f"Client '{client}', row {k}, column '{federation.columns[-1]}': label {labels[row]:g} is not "
            f"one of {', '.join(f'{v:g}' for v in loss.labels)}; recode it."
        )
    if math.isinf(transport.label_cost):
        return
    support = federation.support
    if isinstance(support, Ball):
        raise BidroError("Labels that can change need a box or an unbounded support, not a ball.")
    if isinstance(support, Box):
        low, high = float(support.lower[-1]), float(support.upper[-1])
        if min(loss.labels) < low or max(loss.labels) > high:
            raise BidroError(
                f"Labels can change at a finite cost, but the support keeps them in [{low:g}, {high:g}]; "
                f"let it hold all of {', '.join(f'{v:g}' for v in loss.labels)}."
            )


def checked_references(given: ArrayLike, n: int) -> NDArray[np.float64]:
    """(n,) what the clients' risks are compared with, as finite numbers."""
    try:
        references = np.array(given, float)
    except (TypeError, ValueError) as error:
        raise BidroError(f"The references must be numbers; got {given!r}.") from error
    if references.shape != (n,):
        raise BidroError(f"There are {n} clients but references of shape {references.shape}.")
    if not np.all(np.isfinite(references)):
        raise BidroError(f"The references must be finite numbers; got {references}.")
    return references
