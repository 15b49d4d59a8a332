"""What first-order algorithms share: the state of model, mixture weights and running average, gradient steps
over all rows or over batches, and the sampling of clients.

A batch is a uniformly random set of different rows: `batch` of them, or all where the client has no more. It
is found by Floyd's algorithm (Bentley and Floyd, 1987, A sample of brilliance), which needs as many random
numbers as the batch has rows, however many the client has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from bidro.core.errors import BidroError
from bidro.core.jax_on_use import Array, jax, jnp
from bidro.core.sets import MixtureSet, VectorSet
from bidro.federated.algorithm import BaseAlgorithm, RowsBehind, client_key, require_step
from bidro.problem.client import Client
from bidro.problem.problem import Problem


class State(NamedTuple):
    x: Array  # x_t, (d,)
    alpha: Array  # alpha_t, (n,)
    x_sum: Array  # x_1 + ... + x_{t-1}
    t: Array  # the round to come, from 1
    models: VectorSet  # X, or the part of it where the problem is finite
    mixtures: MixtureSet  # A
    extra: Any = None  # what one algorithm has besides

    def step(self, x: Array, alpha: Array, extra: Any = None) -> State:
        """x_{t+1} and alpha_{t+1}; x_t enters the running average. `extra` stays unless it is given."""
        extra = self.extra if extra is None else extra
        return self._replace(x=x, alpha=alpha, x_sum=self.x_sum + self.x, t=self.t + 1, extra=extra)


class Broadcast(NamedTuple):
    x: Array  # x_t
    alpha: Array  # alpha_t


class ModelBroadcast(NamedTuple):
    x: Array  # x_t


class ValueAndGradient(NamedTuple):
    """A reply: a client's loss or risk at the model it was sent."""

    value: Array
    gradient: Array  # of it in x, (d,)


class ModelAndWeights(BaseAlgorithm):
    """The base of algorithms whose state is a model, mixture weights and a running average of the models.

    An own algorithm adds `reply_type`, `client` and `server`; `state.step(x, alpha)` makes the next state.
    The state has `x` (d,), `alpha` (n,), `t` (the round to come, from 1), `models` (the set X, with
    `project`) and `mixtures` (the set A).

    Examples:
        >>> from bidro import FedAvg, ModelAndWeights
        >>> issubclass(FedAvg, ModelAndWeights), FedAvg().broadcast_type._fields
        (True, ('x', 'alpha'))
    """

    broadcast_type: ClassVar[type] = Broadcast
    second_order: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check the step sizes that the algorithm has."""
        for name in ("eta_x", "eta_alpha"):
            if hasattr(self, name):
                require_step(name, getattr(self, name))

    @property
    def rows_behind(self) -> RowsBehind:
        return "all rows"

    def init(self, problem: Problem, seed: int = 0) -> State:
        x, alpha = problem.initial_model, problem.initial_weights
        t = jnp.ones((), int)
        return State(x, alpha, jnp.zeros_like(x), t, problem.domain, problem.mixture_set)

    def broadcast(self, state: State) -> Any:
        return Broadcast(state.x, state.alpha)


class Batched(ModelAndWeights):
    """The base of algorithms of mean losses, with the settings `batch`, rows a gradient step (None for all),
    and `local_steps`, gradient steps a round."""

    batch: int | None
    needs_steps: ClassVar[str] = ""  # the algorithm's name where `local_steps` is checked

    @property
    def local_steps(self) -> int:
        return 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.needs_steps and self.local_steps < 1:
            raise BidroError(f"{self.needs_steps} needs at least one local step; got {self.local_steps!r}.")
        batch = self.batch
        if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
            raise BidroError(f"A batch must be a whole number of rows, at least 1, or None; got {batch!r}.")

    def init(self, problem: Problem, seed: int = 0) -> State:
        """Raises BidroError for an ambiguity inside the clients, which mean losses know nothing of."""
        if problem.ambiguity_set.matters:
            raise BidroError(
                f"{type(self).__name__} trains on mean losses and would ignore this problem's "
                f"{type(problem.ambiguity).__name__}; leave the ambiguity out, or use an algorithm that "
                "guards against it."
            )
        return super().init(problem, seed)

    @property
    def rows_behind(self) -> RowsBehind:
        if self.batch is None:
            return "all rows"
        return "one row" if self.batch == 1 else self.batch

    def draw(self, client: Client, key: Array) -> Any:
        """(local_steps, batch) the positions of the rows of every step's batch; None without batches."""
        return None if self.batch is None else draw_batches(client, key, self.local_steps, self.batch)


def mean_and_gradient(client: Client, x: Array, positions: Array | None) -> tuple[Array, Array]:
    """The mean loss over the client's rows, or over those at `positions` (batch,), and its gradient in x."""
    if positions is None:
        return client.rows.mean_and_gradient(client.inner.loss.values, x)
    rows, weights = batch_rows(client, positions)
    return jax.value_and_grad(lambda v: jnp.sum(weights * client.inner.loss.values(v, rows)))(x)


def descended(
    client: Client,
    x: Array,
    eta_x: float,
    steps: int,
    batches: Array | None,
    added: Callable[[Array], Array] | None = None,
) -> Array:
    """x after `steps` gradient steps of size eta_x on the mean loss, over all rows or over `batches`
    (steps, batch); `added` is what every step adds to the gradient at its model."""

    def moved(x: Array, positions: Array | None) -> Array:
        slope = mean_and_gradient(client, x, positions)[1]
        return x - eta_x * (slope if added is None else slope + added(x))

    if batches is not None:

        def batch_step(x: Array, positions: Array) -> tuple[Array, None]:
            return moved(x, positions), None

        return jax.lax.scan(batch_step, x, batches)[0]

    def step(_: int, x: Array) -> Array:
        return moved(x, None)

    return step(0, x) if steps == 1 else jax.lax.fori_loop(0, steps, step, x)


def draw_batches(client: Client, key: Array, steps: int, batch: int) -> Array:
    """(steps, batch) which of its rows the client takes for every step; where it has fewer than `batch`, the
    first row stands in for those that it does not have."""
    return jax.vmap(_one_batch, in_axes=(0, None))(jax.random.uniform(key, (steps, batch)), client.rows.size)


def _one_batch(u: Array, rows: Array) -> Array:
    """(batch,) different numbers below `rows`, from as many uniform ones."""
    batch = u.shape[0]
    size = jnp.minimum(batch, rows)

    def add(k: Array, taken: Array) -> Array:
        last = rows - size + k
        # Rounding could reach last + 1.
        guess = jnp.minimum((u[k] * (last + 1)).astype(int), last)
        new = jnp.where(jnp.any(taken == guess), last, guess)
        return taken.at[k].set(jnp.where(k < size, new, -1))

    taken = jax.lax.fori_loop(0, batch, add, jnp.full(batch, -1))
    return jnp.maximum(taken, 0)


def batch_rows(client: Client, positions: Array) -> tuple[Array, Array]:
    """(rows (batch, m), weights (batch,) of a mean over them) at the positions (batch,)."""
    batch = positions.shape[0]
    size = jnp.minimum(batch, client.rows.size)
    return jax.vmap(client.rows.row)(positions), (jnp.arange(batch) < size) / size


class Sampling(NamedTuple):
    """The server's random numbers, by which it samples clients: by name, not by position."""

    key: Array
    ids: Array  # (n, 2), from the clients' names

    @classmethod
    def of(cls, problem: Problem, seed: int, tag: int) -> Sampling:
        """`tag` separates them from the clients' random numbers and from those of other algorithms."""
        key = jax.random.fold_in(jax.random.key(seed), tag)
        return cls(key, jnp.asarray(problem.federation.client_ids))

    def draws(self, t: Array, draw: Callable[[Array], Array]) -> Array:
        """(n, ...) what `draw` makes of every client's own key in round t."""
        return jax.vmap(lambda id: draw(client_key(self.key, t, id)))(self.ids)
