"""One client: its rows, the ambiguity of its distribution, and its risk at a model; and the risks of all
clients at one model, as compiled programs (with a leading axis of clients, or of rows).
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bidro.ambiguity import Ambiguity, NoAmbiguity
from bidro.core.errors import BidroError
from bidro.core.jax_on_use import Array, jax, jit, jnp
from bidro.core.pytrees import pytree
from bidro.core.sets import Ball, Box
from bidro.core.sets.base import AnyArray
from bidro.core.splits import client_id
from bidro.data.federation import Federation, Support
from bidro.losses import LinearLoss, Loss, ResidualLoss, Squared
from bidro.risk.client_rows import ClientRows
from bidro.risk.inner import Inner, Oracle
from bidro.risk.inner.ball import steepness
from bidro.risk.inner.problem import TwoClasses
from bidro.risk.rounding import of_value
from bidro.risk.rows_jax import Point, RiskModel
from bidro.risk.transport import Transport


@pytree
class Client:
    """All that one client may use: its own rows, its ambiguity, and what everybody knows.

    Before being mapped over, `rows`, `ambiguity` and `id` carry all clients along a leading axis.

    Examples:
        >>> import numpy as np
        >>> from bidro import Squared, Transport, WassersteinBall, WholeSpace
        >>> from bidro.problem.client import Client
        >>> rows, cost = np.random.default_rng(0).normal(size=(40, 3)), Transport.euclidean(3)
        >>> client = Client.single("north", rows, Squared(), cost, WholeSpace(3), WassersteinBall(0.1))
        >>> float(client.eps), client.lifted
        (0.1, True)
    """

    rows: ClientRows  # its own
    ambiguity: Ambiguity  # with its own numbers
    id: AnyArray  # (2,), derived from the name
    inner: Inner  # loss, cost and support

    def __repr__(self) -> str:
        """What it owns by shape, never rows."""
        return f"Client({self.rows!r}, ambiguity {type(self.ambiguity).__name__})"

    @classmethod
    def single(
        cls,
        name: str,
        samples: ArrayLike,
        loss: Loss,
        transport: Transport,
        support: Support,
        ambiguity: Ambiguity | None = None,
    ) -> Client:
        """A client on the machine that owns `samples` (N_i, m) and nothing else."""
        own = Federation.from_arrays({name: samples}, support)
        check_samples(own, loss, transport)
        around = NoAmbiguity() if ambiguity is None else jax.tree.map(lambda v: v[0], ambiguity.per_client(1))
        inner = Inner(transport, support, loss)
        return cls(ClientRows.single(own.samples), around, client_id(name), inner)

    @property
    def rho(self) -> AnyArray:
        """Its penalty; inf where it has none."""
        return self.ambiguity.penalties

    @property
    def eps(self) -> AnyArray:
        """The radius of its ball; 0 where it has none."""
        return self.ambiguity.radii

    @property
    def lifted(self) -> bool:
        """Whether the client's risk is a function of (x, nu): see `risk.rows_jax`."""
        return self.ambiguity.lifted(self.inner)

    def over(self, rows: ClientRows, wider: Array) -> Client:
        """The same client over other rows of its own, with a radius that is larger by so much."""
        return replace(self, rows=rows, ambiguity=self.ambiguity.widened(wider))

    def risk(
        self, oracle: Oracle, x: Array, width: Array, curvature: bool, before: Array | None = None
    ) -> RiskModel:
        """This client's R_i at x, as a function of (x, nu) where it is lifted.

        In the cut and curvature that are returned, never in the value, kinks of the loss are smoothed over
        `width`, in units of the residuals (or the loss) of a model that predicts the same for every row. The
        curvature follows them through the models `before` (models, d + 1), each with its width, if any.
        """
        unit, inner, two = self._unit, self.inner, TwoClasses.of(self.inner)
        if before is not None:
            before = before.at[:, -1].multiply(unit)
        if two is not None:
            # Softmax has no kinks to follow through the models before.
            inner, x, before = two.inner, two.model(x), None
        nu = steepness(inner, x) if self.ambiguity.lifted(inner) else None
        at = Point(x, nu, width * unit, before)
        if self.ambiguity.has_kinks:
            at = at._replace(of_loss=width * self.rows.mean(inner.loss.values, self._start(inner)))
        found = self.ambiguity.risk(self.rows, inner, oracle, at, curvature)
        if two is not None:
            found = found.through(two.apart)
        k = found.gradient.shape[-1]
        return found._replace(
            value=found.value + of_value(found.value, k),
            attained=found.attained - of_value(found.attained, k),
            gradient=self.inner.loss.balanced(found.gradient),
        )

    @property
    def _unit(self) -> Array:
        """The size of u for this client, where kinks are to be smoothed."""
        loss = self.inner.loss
        if not isinstance(loss, Squared) and not (
            isinstance(loss, LinearLoss) and loss.scalar.curvature == math.inf
        ):
            return jnp.ones(())
        mean = self.rows.mean(loss.values, self._start(self.inner))
        return jnp.sqrt(mean) if isinstance(loss, Squared) else mean

    def _start(self, inner: Inner) -> Array:
        """A model of which the size of the losses is known before anything is trained."""
        start = jnp.asarray(inner.loss.initial(self.rows.samples.shape[-1]))
        if isinstance(inner.loss, ResidualLoss) and inner.loss.intercept:
            # How far the client's targets are from 0 says nothing of residuals.
            start = start.at[-1].set(self.rows.mean(lambda _, rows: rows[:, -1], jnp.zeros(())))
        return start

    def client_axes(self) -> Client:
        """The `in_axes` that map a function of one client over all clients."""
        return Client(self.rows.client_axes(), 0, 0, None)  # type: ignore[arg-type]

    def run_axes(self) -> Client:
        """The `in_axes` that map a function of all clients over repeated runs."""
        return Client(self.rows.run_axes(), None, None, None)  # type: ignore[arg-type]


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


@partial(jit, static_argnums=(0, 1))
def risks_at(oracle: Oracle, curvature: bool, clients: Client, x: AnyArray) -> RiskModel:
    """Every client's R_i at x (d,), as a function of x alone also where it is one of (x, nu).

    Args:
        oracle: of the inner suprema, where they have no closed form.
        curvature: whether a model of the second derivative is wanted; there is none where l is not convex.
        clients: all of them, as in `Problem.clients`.
        x: the model.

    Returns:
        Values, cuts and multipliers, each (n, ...).
    """

    def one(client: Client) -> RiskModel:
        risk = client.risk(oracle, x, jnp.zeros(()), curvature and client.inner.loss.convex_in_x)
        return _in_x(client.inner, x, risk) if client.lifted else risk

    return jax.vmap(one, in_axes=(clients.client_axes(),))(clients)


def _in_x(inner: Inner, x: Array, risk: RiskModel) -> RiskModel:
    """A model of the risk in (x, nu), nu being the steepness at x, as one in x alone.

    Where nu has a kink its derivatives are taken as 0, which gives one of the subgradients.
    """

    def nu(v: Array) -> Array:
        return steepness(inner, v)

    slope, second = jnp.nan_to_num(jax.grad(nu)(x)), jnp.nan_to_num(jax.hessian(nu)(x))
    whole = jnp.concatenate([jnp.eye(len(x)), slope[:, None]], axis=1)
    curvature = risk.curvature
    if curvature is not None:
        curvature = whole @ curvature @ whole.T + risk.gradient[-1] * second
    return risk._replace(gradient=whole @ risk.gradient, curvature=curvature)


@partial(jit, static_argnums=0)
def moved_rows(oracle: Oracle, inner: Inner, x: AnyArray, rows: AnyArray, multiplier: Array) -> Array:
    """(N, m) where rows (N, m) are moved to at this multiplier: maximisers of l(x, xi) - multiplier c."""
    return jax.vmap(lambda zeta: oracle.maximise(inner, x, zeta, multiplier).point)(rows)


class PenalisedRisk(NamedTuple):
    """Per client, all of shape (n,): F_i(x) lies in [value, value + error_bound].

    Examples:
        >>> import numpy as np
        >>> from bidro.problem.worst_case import penalised_risk
        >>> from bidro.experiments.simulation import PENALTIES, paper_problem, simulate
        >>> penalised_risk(paper_problem(simulate(0), PENALTIES), np.zeros(3)).error_bound.tolist()
        [0.0, 0.0, 0.0, 0.0, 0.0]
    """

    value: Array  # at the maximisers found
    error_bound: Array  # inf: unknown
    mean_cost: Array  # mean_k c(xi^k, xi*_k) at the maximisers found


@partial(jit, static_argnums=0)
def penalised_at(oracle: Oracle, clients: Client, x: AnyArray) -> PenalisedRisk:
    """Every client's penalised risk at x (d,), with a leading axis of clients."""

    def of_rows(args: tuple[Array, Array, Inner], rows: Array) -> PenalisedRisk:
        model, rho, inner = args

        def of_row(zeta: Array) -> PenalisedRisk:
            best = oracle.maximise(inner, model, zeta, rho)
            cost = inner.transport.cost(zeta, best.point)
            return PenalisedRisk(best.value, best.error_bound, jnp.where(best.value < jnp.inf, cost, jnp.nan))

        return jax.vmap(of_row)(rows)

    def of_client(client: Client) -> PenalisedRisk:
        risk: PenalisedRisk = client.rows.mean(of_rows, (x, client.rho, client.inner))
        return risk

    return jax.vmap(of_client, in_axes=(clients.client_axes(),))(clients)
