"""Optimisers at the server (Reddi et al., 2021, Adaptive federated optimization), around any algorithm here.

What an algorithm's server makes of a model, x_t -> x', is one step. Its move d = x' - x_t stands for a
negative gradient, and the model goes to x_t + s(d), projected on X, where s is momentum's (Polyak) or Adam's
(Kingma and Ba, 2015). Weights, averages and all that clients do stay the algorithm's. A round in which the
model stays (nobody replied; the first half of a stage of DRFA) is none for the optimiser.

These are a few lines, so that no package of optimisers is needed for them.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from bidro.core.errors import BidroError
from bidro.core.jax_on_use import Array, jnp
from bidro.core.pytrees import pytree, static
from bidro.federated.algorithm import Algorithm, BaseAlgorithm, HostData, RowsBehind, Snapshot, require_step
from bidro.problem.client import Client
from bidro.problem.problem import Problem


class Memory(NamedTuple):
    """What an optimiser keeps of the moves so far."""

    mean: Array  # (d,) of the moves
    square: Array  # (d,) of their squares
    steps: Array  # how many


def _require_share(name: str, value: float) -> None:
    if not isinstance(value, int | float) or not 0 <= value < 1:
        raise BidroError(f"{name} must be a number from 0 to below 1; got {value!r}.")


@pytree
class Momentum:
    """s_t = rate v_t, v_t = momentum v_{t-1} + d_t. With rate 1 and momentum 0 nothing changes.

    Args:
        rate: step size.
        momentum: the share of the last step that goes on.

    Raises:
        BidroError: for a rate that is negative or not finite, or a share that is none.

    Examples:
        >>> from bidro import FedAvg
        >>> from bidro.federated.algorithms import Momentum, ServerOptimised
        >>> ServerOptimised(FedAvg(0.1), Momentum(rate=0.5)).optimiser.momentum
        0.9
    """

    rate: float = 1.0
    momentum: float = 0.9

    def __post_init__(self) -> None:
        require_step("rate", self.rate)
        _require_share("momentum", self.momentum)

    def step(self, memory: Memory, move: Array) -> tuple[Array, Memory]:
        mean = self.momentum * memory.mean + move
        return self.rate * mean, memory._replace(mean=mean, steps=memory.steps + 1)


@pytree
class Adam:
    """s_t = rate m_t / (sqrt(v_t) + epsilon), where m_t and v_t are running means of d_t and its square, with
    weights `first` and `second` for what was before, corrected for having begun at 0.

    Args:
        rate: step size.
        first: weight of the moves before, in their running mean.
        second: the same of their squares.
        epsilon: what is added to the root of these.

    Raises:
        BidroError: for a rate that is negative or not finite, or a weight that is none.

    Examples:
        >>> from bidro import AFL
        >>> from bidro.federated.algorithms import Adam, ServerOptimised
        >>> ServerOptimised(AFL(eta_x=1.0), Adam(rate=0.005)).optimiser.first
        0.9
    """

    rate: float = 0.01
    first: float = 0.9
    second: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        require_step("rate", self.rate)
        require_step("epsilon", self.epsilon)
        _require_share("first", self.first)
        _require_share("second", self.second)

    def step(self, memory: Memory, move: Array) -> tuple[Array, Memory]:
        steps = memory.steps + 1
        mean = self.first * memory.mean + (1 - self.first) * move
        square = self.second * memory.square + (1 - self.second) * move**2
        size = jnp.sqrt(square / (1 - self.second**steps)) + self.epsilon
        return self.rate * mean / (1 - self.first**steps) / size, Memory(mean, square, steps)


@pytree
class Adaptive:
    """FedAdagrad, FedYogi and FedAdam as published: s_t = rate m_t / (sqrt(v_t) + floor), m_t a running mean
    of the moves d_t, without a correction for where they begin, v before the first move floor^2, and

        adagrad  v_t = v_{t-1} + d_t^2,
        yogi     v_t = v_{t-1} - (1 - second) d_t^2 sign(v_{t-1} - d_t^2),
        adam     v_t = second v_{t-1} + (1 - second) d_t^2.

    Args:
        rule: "adagrad", "yogi" or "adam".
        rate: step size.
        first: weight of the moves before, in their running mean; the paper has 0 for FedAdagrad.
        second: the same of their squares; not used by "adagrad".
        floor: tau of the paper.

    Raises:
        BidroError: for another rule, a rate or floor that is negative or not finite, or a weight that is
            none.

    Examples:
        >>> from bidro import FedAvg
        >>> from bidro.federated.algorithms import Adaptive, ServerOptimised
        >>> ServerOptimised(FedAvg(0.1, local_steps=5), Adaptive("yogi", rate=0.05)).optimiser.floor
        0.001
    """

    rule: Literal["adagrad", "yogi", "adam"] = static(default="adam")
    rate: float = 0.01
    first: float = 0.9
    second: float = 0.99
    floor: float = 1e-3

    def __post_init__(self) -> None:
        if self.rule not in ("adagrad", "yogi", "adam"):
            raise BidroError(f"The rule must be 'adagrad', 'yogi' or 'adam'; got {self.rule!r}.")
        require_step("rate", self.rate)
        require_step("floor", self.floor)
        _require_share("first", self.first)
        _require_share("second", self.second)

    def step(self, memory: Memory, move: Array) -> tuple[Array, Memory]:
        mean, new = self.first * memory.mean + (1 - self.first) * move, move**2
        before = jnp.where(memory.steps == 0, self.floor**2, memory.square)
        square = {
            "adagrad": before + new,
            "yogi": before - (1 - self.second) * new * jnp.sign(before - new),
            "adam": self.second * before + (1 - self.second) * new,
        }[self.rule]
        size = jnp.sqrt(square) + self.floor
        step = self.rate * mean / jnp.where(size > 0, size, 1.0)
        return step, Memory(mean, square, memory.steps + 1)


class State(NamedTuple):
    at: Any  # the algorithm's own
    memory: Memory


@pytree
class ServerOptimised:
    """An algorithm whose models move by an optimiser's steps.

    Args:
        algorithm: such as `FedAvg(0.1)`.
        optimiser: `Momentum(...)`, `Adam(...)` or `Adaptive(...)`.

    Raises:
        BidroError: for an algorithm whose server cannot be compiled; `init` does so for one that keeps no one
            model to be moved.

    Examples:
        >>> from bidro import FedAvg, run
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> from bidro.federated.algorithms import Adam, ServerOptimised
        >>> algorithm = ServerOptimised(FedAvg(0.1), Adam(0.05))
        >>> run(algorithm, paper_problem(simulate(0), None), 200).x.round(1).tolist()
        [1.0, 0.5, -0.5]
    """

    algorithm: Any
    optimiser: Momentum | Adam | Adaptive = Adam()

    def __post_init__(self) -> None:
        if not isinstance(self.algorithm, BaseAlgorithm) or not self.algorithm.traceable_server:
            raise BidroError(
                f"A {type(self.algorithm).__name__} takes no steps that an optimiser could change."
            )
        if not isinstance(self.optimiser, Momentum | Adam | Adaptive):
            raise BidroError(f"The optimiser must be Momentum(...) or Adam(...); got {self.optimiser!r}.")

    @property
    def _own(self) -> Algorithm:
        own: Algorithm = self.algorithm
        return own

    @property
    def broadcast_type(self) -> type[Any]:
        return self._own.broadcast_type

    @property
    def reply_type(self) -> type[Any]:
        return self._own.reply_type

    @property
    def traceable_server(self) -> bool:
        return True

    @property
    def rows_behind(self) -> RowsBehind:
        return self._own.rows_behind

    @property
    def second_order(self) -> bool:
        return self._own.second_order

    @property
    def per_client_broadcast(self) -> bool:
        return self._own.per_client_broadcast

    def init(self, problem: Problem, seed: int = 0) -> State:
        state = self._own.init(problem, seed)
        if not hasattr(state, "models") or jnp.shape(state.x) != (problem.dimension,):
            raise BidroError(f"A {type(self.algorithm).__name__} has no one model that could be moved.")
        zero = jnp.zeros_like(jnp.asarray(state.x))
        return State(state, Memory(zero, zero, jnp.zeros((), int)))

    def broadcast(self, state: State) -> Any:
        return self._own.broadcast(state.at)

    def participants(self, state: State) -> Array | None:
        return self._own.participants(state.at)

    def draw(self, client: Client, key: Array) -> Any:
        return self._own.draw(client, key)

    def client(self, broadcast: Any, client: Client, draw: Any) -> Any:
        return self._own.client(broadcast, client, draw)

    def client_batch_numpy(self, broadcast: Any, rows: HostData) -> Any | None:
        return self._own.client_batch_numpy(broadcast, rows)

    def server(self, state: State, replies: Any, replied: Array) -> State:
        then = self._own.server(state.at, replies, replied)
        move = then.x - state.at.x
        step, memory = self.optimiser.step(state.memory, move)
        stays = jnp.all(move == 0)
        moved = then.models.project(state.at.x + step)
        return State(
            then._replace(x=jnp.where(stays, then.x, moved)),
            Memory(*(jnp.where(stays, old, new) for old, new in zip(state.memory, memory, strict=True))),
        )

    def snapshot(self, state: State) -> Snapshot:
        return self._own.snapshot(state.at)
