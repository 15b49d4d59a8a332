"""BiDRO-FL with local steps and partial participation: fewer messages for the paper's penalised problem.

Solves what Algorithm 1 solves (eq. reformed_DRO),

    min over x in X of max over alpha in A of
        sum_i alpha_i E_{zeta ~ P_i} [ sup over xi in Xi of l(x, xi) - rho_i c(zeta, xi) ],

and follows the paper's closing remark on communication. Local steps are those of FedAvg (McMahan et al.), and
together with sampled clients they were brought to uncertain mixtures by DRFA (Deng et al.), which samples by
the weights. Here a round samples m of the n clients, uniformly and without replacement. Each of them takes
`local_steps` stochastic steps from x_t, with a row for every step or the mean over a `batch` of them, each
moved to its own worst case, and sends its last model x_i and g^alpha_i, the value of its first row (or the
mean over its first batch) at x_t: an unbiased estimate of F_i(x_t), which the values at later,
moved models are not. As a client is sampled with probability m / n, the server's

    x_{t+1} = P_X(x_t + (n / m) sum over the replies of alpha_i (x_i - x_t)),
    alpha_{t+1} = P_A(alpha_t + eta_alpha (n / m) sum over the replies of g^alpha_i e_i)

take, before projection, in the mean the steps that all clients together would take.

References: as for `bidro_fl`, `fedavg` and `drfa`.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from bidro.core.errors import BidroError
from bidro.core.jax_on_use import Array, jax, jnp
from bidro.core.pytrees import pytree, static
from bidro.federated.algorithm import RowsBehind, masked
from bidro.federated.algorithms.bidro_fl import BiDROFL, Draw, Reply, normal_from_uniform
from bidro.federated.algorithms.first_order import Batched, Broadcast, Sampling, State, batch_rows
from bidro.problem.client import Client
from bidro.problem.problem import Problem
from bidro.risk.inner import FixedStepAscent, Oracle

_TAG = 0x10CA1  # of the server's random numbers


class BatchDraw(NamedTuple):
    positions: Array  # (batch,) of the rows
    noise: Array | None  # the oracle's random directions, (batch, m)


@pytree
class BiDROLocal(Batched):
    """Step sizes, steps a client takes in a round, the share of clients that take part, the oracle, and
    rows a step (one by default).

    A client that is sampled and does not reply counts as one that stood still: its model is x_t and its
    g^alpha is 0. Models are projected on X once a round, after they are put together: clients do not know X.

    Args:
        eta_x: step size of the model.
        eta_alpha: step size of the mixture weights.
        local_steps: steps that a client takes in a round.
        participation: the share of clients that are sampled for a round, in (0, 1].
        oracle: solves the inner problems.
        batch: rows a step, drawn anew; None for one.

    Raises:
        BidroError: for a negative step size, no local step, or a share outside (0, 1].

    Examples:
        >>> from bidro import run
        >>> from bidro.federated.algorithms import BiDROLocal
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> problem = paper_problem(simulate(0), [60.0, 60.0, 60.0, 60.0, 60.0])
        >>> run(BiDROLocal(0.01, 0.01, local_steps=3, participation=0.6), problem, 50).x.shape
        (3,)
    """

    reply_type: ClassVar[type] = Reply
    eta_x: float = 0.01
    eta_alpha: float = 0.01
    local_steps: int = static(default=5)
    participation: float = static(default=1.0)
    oracle: Oracle = static(default=FixedStepAscent())
    batch: int | None = static(default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.local_steps, int) or self.local_steps < 1:
            raise BidroError(f"BiDROLocal needs at least one local step; got {self.local_steps!r}.")
        if not isinstance(self.participation, int | float) or not 0 < self.participation <= 1:
            raise BidroError(
                f"The participation must be a share of the clients above 0 and up to 1; got "
                f"{self.participation!r}."
            )

    @property
    def rows_behind(self) -> RowsBehind:
        return "one row" if self.batch is None else super().rows_behind

    def init(self, problem: Problem, seed: int = 0) -> State:
        return self._one_step.init(problem, seed)._replace(extra=Sampling.of(problem, seed, _TAG))

    def participants(self, state: State) -> Array | None:
        n = state.alpha.shape[0]
        if self._participating(n) == n:
            return None
        # Each client has a random number of its own, and the smallest take part.
        u = state.extra.draws(state.t, jax.random.uniform)
        return jnp.zeros(n, bool).at[jnp.argsort(u)[: self._participating(n)]].set(True)

    def draw(self, client: Client, key: Array) -> Draw | BatchDraw:
        """One draw of Algorithm 1 a local step, stacked; with one step, that of Algorithm 1 itself. With
        batches, their rows and directions."""
        if self.batch is not None:
            of_rows, of_noise = jax.random.split(key)
            positions, noise = super().draw(client, of_rows), None
            if self.oracle.needs_noise:
                shape = (*positions.shape, client.rows.samples.shape[-1])
                noise = normal_from_uniform(jax.random.uniform(of_noise, shape))
            return BatchDraw(positions, noise)
        keys = key[None] if self.local_steps == 1 else jax.random.split(key, self.local_steps)
        return jax.vmap(lambda k: self._one_step.draw(client, k))(keys)

    def client(self, broadcast: Broadcast, client: Client, draw: Draw | BatchDraw) -> Reply:
        def step(x: Array, drawn: Any) -> tuple[Array, Array]:
            gradients = self._one_step.gradients if self.batch is None else self._batch_gradients
            g_x, g_alpha = gradients(x, client, drawn)
            return x - self.eta_x * g_x, g_alpha

        x, values = jax.lax.scan(step, broadcast.x, draw)
        return Reply(x, values[0])

    def _batch_gradients(self, x: Array, client: Client, drawn: BatchDraw) -> tuple[Array, Array]:
        """Means of Algorithm 1's (g^x, g^alpha) over a batch."""
        rows, weights = batch_rows(client, drawn.positions)

        def worst(zeta: Array, noise: Array | None) -> Any:
            return self.oracle.maximise(client.inner, x, zeta, client.rho, noise)

        axes = (0, None if drawn.noise is None else 0)
        found = jax.vmap(worst, in_axes=axes)(rows, drawn.noise)
        # One gradient of the mean, not the mean of gradients, of which each would be as large as the model.
        g_x = jax.grad(lambda v: jnp.sum(weights * client.inner.loss.values(v, found.point)))(x)
        return g_x, jnp.sum(jnp.where(weights > 0, weights * found.value, 0.0))

    def server(self, state: State, replies: Reply, replied: Array) -> State:
        x, alpha, n = state.x, state.alpha, state.alpha.shape[0]
        scale = n / self._participating(n)
        moves = masked(replied, replies.x, x) - x
        g_alpha = masked(replied, replies.g_alpha, jnp.zeros(()))
        x = state.models.project(x + scale * (alpha @ moves))
        return state.step(x, state.mixtures.project(alpha + self.eta_alpha * scale * g_alpha))

    def _participating(self, n: int) -> int:
        """m."""
        return max(1, round(self.participation * n))

    @property
    def _one_step(self) -> BiDROFL:
        """Algorithm 1, for its draws and gradients, in which step sizes play no part."""
        return BiDROFL(oracle=self.oracle)
