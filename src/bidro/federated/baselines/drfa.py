"""DRFA, distributionally robust federated averaging (Deng, Kamani and Mahdavi, 2020).

Solves min over x in X of max over alpha in A of sum_i alpha_i f_i(x), f_i(x) = mean_k l(x, xi_i^k), with
several local steps between two exchanges. One stage of the published algorithm takes two rounds:

(a) Clients are drawn independently by alpha, with replacement, and a step s uniformly from 1, ..., tau. Each
    takes tau gradient steps from x, each over all its rows or over a `batch` of them, and replies with its
    model after all of them and after step s. The server averages both, a client that was drawn twice counting
    twice, and projects them on X.
(b) The average after step s goes to clients chosen uniformly, each at most once, who reply with their mean
    loss there, over all rows or a batch. With v_i = (n / sampled) f_i for them and 0 for others, an unbiased
    estimate of all losses, alpha moves to the projection on A of alpha + tau eta_alpha v.

Reference: Yuyang Deng, Mohammad Mahdi Kamani and Mehrdad Mahdavi. Distributionally Robust Federated
Averaging. NeurIPS, 2020.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from bidro.core.errors import BidroError
from bidro.core.jax_on_use import Array, jax, jnp
from bidro.core.pytrees import pytree, static
from bidro.federated.algorithm import Snapshot, masked
from bidro.federated.algorithms.first_order import Batched, Sampling, State, batch_rows, mean_and_gradient
from bidro.problem.client import Client
from bidro.problem.problem import Problem

_TAG = 0xD2FA  # of the server's random numbers


class Stage(NamedTuple):
    """Model and weights of the state are those that the stage began with, until it is over. Rounds t are odd
    in (a), even in (b)."""

    x_next: Array  # (d,) in (b), the averages of (a): after all local steps,
    x_between: Array  # (d,) and after step s
    sampling: Sampling


def _in_b(state: State) -> Array:
    return state.t % 2 == 0


class Broadcast(NamedTuple):
    x: Array  # (a) the model to start from; (b) the one to be assessed
    step: Array  # (a) after which local step to keep the model, from 1; (b) no meaning
    in_b: Array  # 0 in (a), 1 in (b)


class Reply(NamedTuple):
    """What does not belong to the round's part of a stage is 0."""

    x: Array  # (a) the client's model after all local steps, (d,)
    x_between: Array  # (a) and after step s, (d,)
    value: Array  # (b) mean loss over the client's rows, or over its batch


@pytree
class DRFA(Batched):
    """Step sizes, local steps tau, how many clients are `sampled` in either part of a stage, and rows a step
    (all by default).

    In (a) the averages are over those of the drawn clients that replied, and the model stays if none did. In
    (b) a client that does not reply counts as one that was not chosen. Model and weights change once a stage,
    after its second round; x_average is the mean of the models broadcast in (a), each counted once, that of
    an unfinished stage too. Local models are projected on X only after averaging, as in FedAvg.

    Args:
        eta_x: step size of the model.
        eta_alpha: step size of the mixture weights.
        local_steps: gradient steps tau between two exchanges.
        sampled: clients that are sampled in either part of a stage.
        batch: rows a step, drawn anew; None for all.

    Raises:
        BidroError: for a negative step size, no local step, or no sampled client.

    Examples:
        >>> from bidro import DRFA, run
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> run(DRFA(0.05, 0.05), paper_problem(simulate(0), None), 200).x_average.round(1).tolist()
        [1.0, 0.5, -0.5]
    """

    broadcast_type: ClassVar[type] = Broadcast
    reply_type: ClassVar[type] = Reply
    eta_x: float = 0.01
    eta_alpha: float = 0.01
    local_steps: int = static(default=5)
    sampled: int = static(default=2)
    batch: int | None = static(default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local_steps < 1 or self.sampled < 1:
            raise BidroError(
                f"DRFA needs at least one local step and one sampled client; got {self.local_steps} and "
                f"{self.sampled}."
            )

    def init(self, problem: Problem, seed: int = 0) -> State:
        if self.sampled > problem.n:
            raise BidroError(f"DRFA cannot sample {self.sampled} of {problem.n} client(s); set `sampled`.")
        state = super().init(problem, seed)
        return state._replace(extra=Stage(state.x, state.x, Sampling.of(problem, seed, _TAG)))

    def broadcast(self, state: State) -> Broadcast:
        in_b, stage = _in_b(state), state.extra
        key = jax.random.fold_in(stage.sampling.key, state.t)
        step = jax.random.randint(key, (), 1, self.local_steps + 1)
        return Broadcast(jnp.where(in_b, stage.x_between, state.x), step, in_b.astype(int))

    def participants(self, state: State) -> Array:
        return self._drawn(state) > 0

    def _drawn(self, state: State) -> Array:
        """(n,) how often each client is drawn in the round to come; a client's numbers are its own."""
        noise = state.extra.sampling.draws(state.t, lambda key: jax.random.gumbel(key, (self.sampled,)))
        # The largest of log alpha_i plus Gumbel noise is at client i with probability alpha_i.
        best = jnp.argmax(jnp.log(state.alpha)[:, None] + noise, axis=0)
        by_alpha = jnp.sum(best == jnp.arange(noise.shape[0])[:, None], axis=1)
        _, first = jax.lax.top_k(noise[:, 0], self.sampled)
        return jnp.where(_in_b(state), jnp.zeros_like(by_alpha).at[first].set(1), by_alpha)

    def client(self, broadcast: Broadcast, client: Client, draw: Array | None) -> Reply:
        loss, start = client.inner.loss, broadcast.x

        def slope(k: Array, x: Array) -> Array:
            return mean_and_gradient(client, x, None if draw is None else draw[k])[1]

        def train() -> Reply:
            def step(k: Array, models: tuple[Array, Array]) -> tuple[Array, Array]:
                x, kept = models
                x = x - self.eta_x * slope(k, x)
                return x, jnp.where(k + 1 == broadcast.step, x, kept)

            x, kept = jax.lax.fori_loop(0, self.local_steps, step, (start, start))
            return Reply(x, kept, jnp.zeros(()))

        def assess() -> Reply:
            none = jnp.zeros_like(start)
            if draw is None:
                return Reply(none, none, client.rows.mean(loss.values, start))
            rows, weights = batch_rows(client, draw[0])
            return Reply(none, none, jnp.sum(weights * loss.values(start, rows)))

        return jax.lax.cond(broadcast.in_b == 1, assess, train)

    def server(self, state: State, replies: Reply, replied: Array) -> State:
        drawn, in_b, stage = jnp.where(replied, self._drawn(state), 0), _in_b(state), state.extra
        total = jnp.sum(drawn)
        shares = drawn / jnp.maximum(total, 1)

        def average(models: Array) -> Array:
            mean = shares @ masked(replied, models, jnp.zeros(()))
            return jnp.where(total > 0, state.models.project(mean), state.x)

        v = jnp.where(drawn > 0, replies.value, 0.0) * (replied.shape[0] / self.sampled)
        alpha = state.mixtures.project(state.alpha + self.local_steps * self.eta_alpha * v)
        return state._replace(
            x=jnp.where(in_b, stage.x_next, state.x),
            alpha=jnp.where(in_b, alpha, state.alpha),
            x_sum=state.x_sum + jnp.where(in_b, 0.0, state.x),
            t=state.t + 1,
            extra=stage._replace(
                x_next=jnp.where(in_b, stage.x_next, average(replies.x)),
                x_between=jnp.where(in_b, stage.x_between, average(replies.x_between)),
            ),
        )

    def snapshot(self, state: State) -> Snapshot:
        return Snapshot(state.x, state.x_sum / jnp.maximum(state.t // 2, 1), state.alpha)
