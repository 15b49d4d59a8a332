"""BiDRO-FL with compressed gradients and error feedback: fewer bytes up for the paper's penalised problem.

Solves what Algorithm 1 solves (eq. reformed_DRO),

    min over x in X of max over alpha in A of
        sum_i alpha_i F_i(x),   F_i(x) = mean_k sup over xi in Xi of l(x, xi) - rho_i c(xi_i^k, xi),

with error feedback in the form of EF21 (Richtarik, Sokolov and Fatkhullin, 2021). The server keeps h_i, its
picture of client i's gradient. A round sends (x_t, h_i) to client i, which replies with the compressed
difference C(grad F_i(x_t) - h_i) and with F_i(x_t); then

    h_i <- h_i + C(grad F_i(x_t) - h_i),
    x_{t+1} = P_X(x_t - eta_x sum_i alpha_i h_i),   alpha_{t+1} = P_A(alpha_t + eta_alpha F(x_t)).

Gradients are over all of a client's rows, for two reasons: the gradient of one row gives that row away, and
h_i closes in on a gradient only if that is not sampled anew every round. The client's memory is sent to it
rather than kept at the site. That costs d numbers down a round, and leaves sites without a state, so that a
run can be resumed by replaying what the server has received.

Reference: Peter Richtarik, Igor Sokolov and Ilyas Fatkhullin. EF21: A New, Simpler, Theoretically Better, and
Practically Faster Error Feedback. NeurIPS, 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from bidro.core.errors import BidroError
from bidro.core.jax_on_use import Array, jax, jnp
from bidro.core.pytrees import pytree, static
from bidro.federated.algorithm import masked
from bidro.federated.algorithms.bidro_fl import BiDROFL
from bidro.federated.algorithms.first_order import ModelAndWeights, State
from bidro.problem.client import Client
from bidro.problem.problem import Problem
from bidro.risk.inner import Exact, Oracle

_LEVELS = 127  # 8 bits, the same on both sides of 0


class Broadcast(NamedTuple):
    x: Array  # (n, d) x_t, the same for every client
    h: Array  # (n, d) each client's h_i


class TopKReply(NamedTuple):
    value: Array  # F_i(x_t)
    largest: Array  # (k,) entries of the difference
    places: Array  # (k,) where they stand, int32


class EightBitReply(NamedTuple):
    value: Array  # F_i(x_t)
    unit: Array  # what a code of 1 stands for
    codes: Array  # (d,) int8


@dataclass(frozen=True)
class TopK:
    """The k entries of largest size; the others wait in the difference until they are among them.

    Args:
        k: how many entries a client sends.

    Raises:
        BidroError: for k below 1, and from `check` for more than the model has.

    Examples:
        >>> import numpy as np
        >>> from bidro.federated.contrib import TopK
        >>> reply = TopK(1).reply(0.0, np.array([1.0, -3.0, 2.0]), None)
        >>> TopK(1).difference(reply, 3).tolist()
        [0.0, -3.0, 0.0]
    """

    k: int
    reply_type: ClassVar[type] = TopKReply

    def __post_init__(self) -> None:
        if not isinstance(self.k, int) or self.k < 1:
            raise BidroError(f"TopK needs a whole number of entries, at least 1; got {self.k!r}.")

    def check(self, d: int) -> None:
        """Raise BidroError where a model of d parameters has not so many entries."""
        if self.k > d:
            raise BidroError(f"TopK({self.k}) keeps more entries than the model's {d} parameters.")

    def draw(self, key: Array, d: int) -> Array | None:
        return None

    def reply(self, value: Array, difference: Array, u: Array | None) -> TopKReply:
        places = jax.lax.top_k(jnp.abs(difference), self.k)[1]
        return TopKReply(value, difference[places], places.astype(jnp.int32))

    def difference(self, reply: TopKReply, d: int) -> Array:
        return jnp.zeros(d).at[reply.places].set(reply.largest)


@dataclass(frozen=True)
class EightBit:
    """Every entry in 8 bits, rounded up or down at random so that the mean is the difference itself.

    In the mean the squared error is at most d / (4 * 127^2) of the squared difference. EF21 needs a share
    below 1, which d < 64,516 proves; for more parameters it is smaller than this bound unless almost all of
    the difference is in a few of them.

    Raises:
        BidroError: from `check`, for a model with too many parameters.

    Examples:
        >>> import jax
        >>> import numpy as np
        >>> from bidro.federated.contrib import EightBit
        >>> compressor, difference = EightBit(), np.array([1.0, -0.5, 0.25])
        >>> reply = compressor.reply(0.0, difference, compressor.draw(jax.random.key(0), 3))
        >>> bool(np.abs(compressor.difference(reply, 3) - difference).max() <= 1 / 127)
        True
    """

    reply_type: ClassVar[type] = EightBitReply

    def check(self, d: int) -> None:
        """Models of every size can be treated."""

    def draw(self, key: Array, d: int) -> Array | None:
        return jax.random.uniform(key, (d,))

    def reply(self, value: Array, difference: Array, u: Array | None) -> EightBitReply:
        assert u is not None
        unit = jnp.max(jnp.abs(difference)) / _LEVELS
        steps = difference / jnp.where(unit > 0, unit, 1.0)
        codes = jnp.clip(jnp.floor(steps + u), -_LEVELS, _LEVELS)
        return EightBitReply(value, unit, codes.astype(jnp.int8))

    def difference(self, reply: EightBitReply, d: int) -> Array:
        return reply.unit * reply.codes


@pytree
class BiDROCompressed(ModelAndWeights):
    """Step sizes, how differences are compressed, and the oracle, without its random last step if it has one.

    Of a client that does not reply, h_i stays as it was and still enters the model's step; its weight does
    not move on its account. If nobody replies, nothing moves.

    Args:
        eta_x: step size of the model.
        eta_alpha: step size of the mixture weights.
        compressor: `EightBit()` or `TopK(k)`.
        oracle: solves the inner problems.

    Raises:
        BidroError: for a negative step size, and from `run` for a model that the compressor does not suit.

    Examples:
        >>> from bidro import run
        >>> from bidro.federated.contrib import BiDROCompressed, EightBit
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> problem = paper_problem(simulate(0), [60.0, 60.0, 60.0, 60.0, 60.0])
        >>> run(BiDROCompressed(0.05, 0.05, EightBit()), problem, 100).x.shape
        (3,)
    """

    broadcast_type: ClassVar[type] = Broadcast
    per_client_broadcast: ClassVar[bool] = True
    eta_x: float = 0.01
    eta_alpha: float = 0.01
    compressor: TopK | EightBit = static(default=EightBit())
    oracle: Oracle = static(default=Exact())

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.compressor, TopK | EightBit):
            raise BidroError(f"The compressor must be TopK(k) or EightBit(); got {self.compressor!r}.")

    @property
    def reply_type(self) -> type[Any]:
        return self.compressor.reply_type

    def init(self, problem: Problem, seed: int = 0) -> State:
        self.compressor.check(problem.dimension)
        h = jnp.zeros((problem.n, problem.dimension))
        return BiDROFL(oracle=self.oracle).init(problem, seed)._replace(extra=h)

    def broadcast(self, state: State) -> Broadcast:
        return Broadcast(jnp.broadcast_to(state.x, state.extra.shape), state.extra)

    def draw(self, client: Client, key: Array) -> Array | None:
        return self.compressor.draw(key, client.inner.loss.dimension(client.rows.samples.shape[-1]))

    def client(self, broadcast: Broadcast, client: Client, draw: Array | None) -> TopKReply | EightBitReply:
        risk = client.risk(self.oracle, broadcast.x, jnp.zeros(()), curvature=False)
        # `attained` is the mean of phi where the oracle ended; `value` would add what it may have missed.
        return self.compressor.reply(risk.attained, risk.gradient - broadcast.h, draw)

    def server(self, state: State, replies: Any, replied: Array) -> State:
        d = state.x.shape[0]
        news = jax.vmap(lambda reply: self.compressor.difference(reply, d))(replies)
        h = state.extra + masked(replied, news, jnp.zeros(()))
        values = masked(replied, replies.value, jnp.zeros(()))
        moved = state.models.project(state.x - self.eta_x * (state.alpha @ h))
        x = jnp.where(jnp.any(replied), moved, state.x)
        return state.step(x, state.mixtures.project(state.alpha + self.eta_alpha * values), h)
