"""The contract between algorithms and engines.

An algorithm is a frozen dataclass of hyperparameters with pure methods. An engine knows nothing of
the algorithm beyond this file, and an algorithm nothing of the engine:

    state = algorithm.init(problem, seed)
    repeat:
        broadcast = algorithm.broadcast(state)
        at each of algorithm.participants(state):
            draw = algorithm.draw(client, key); reply = algorithm.client(broadcast, client, draw)
            (or, without a compiled program, algorithm.client_batch_numpy(broadcast, rows))
        state = algorithm.server(state, replies, replied)

`key` is derived from (seed, round, client id) and `draw` holds all the randomness of a client's round,
so that an engine in one process can draw for many rounds at once. What is random at the server is derived
from (seed, round) by keys that `init` puts into the state. What crosses from a client to the
server is exactly its reply. Replies reach the server stacked along a leading axis in the order of the
federation's clients; `replied` (n,) says who replied, and the rows of the others are to be ignored.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bidro.ambiguity import Ambiguity
from bidro.core.errors import BidroError
from bidro.core.pytrees import loaded_jax, mapped, namespace
from bidro.core.splits import Key
from bidro.data.federation import Federation
from bidro.losses import Loss
from bidro.problem.client import Client
from bidro.problem.problem import Problem
from bidro.risk.inner import Inner
from bidro.risk.rows_numpy import FoldedRows

if TYPE_CHECKING:
    from jax import Array

Numbers: TypeAlias = "Array | NDArray[np.float64]"
# "folds": all rows but those of one fold, for every fold. A number: so many rows, drawn anew for every step.
RowsBehind = Literal["all rows", "folds", "one row"] | int


class Snapshot(NamedTuple):
    """What an algorithm shows of its state after a round (or, in a history, after many).

    Examples:
        >>> import numpy as np
        >>> from bidro.federated.algorithm import Snapshot
        >>> Snapshot(x=np.zeros(2), x_average=np.zeros(2), alpha=np.array([0.5, 0.5])).alpha.tolist()
        [0.5, 0.5]
    """

    x: Numbers  # (d,) the current model x_{t+1}
    x_average: Numbers  # (d,) the mean of x_1, ..., x_t
    alpha: Numbers  # (n,) the current mixture weights


class HostData(NamedTuple):
    """Rows of one or several clients on the host, one client after the other, and the loss of a model."""

    loss: Loss
    samples: NDArray[np.float64]  # (N, m)
    sizes: NDArray[np.int64]  # (n,)
    fold_ids: NDArray[np.int64] | None = None  # (N,) the fold of every row, from 0, where rows are dealt out
    folds: int = 0
    people: NDArray[np.uint64] | None = None  # (N,) that each row is of, where they are named
    inner: Inner | None = None  # what the clients' risks are made of,
    ambiguity: Ambiguity | None = None  # with one number a client,
    eps: NDArray[np.float64] | None = None  # and the radii (n,) of their balls, if they have any

    @property
    def folded(self) -> FoldedRows:
        """The rows with their folds; with one fold, number 0, where they are in none."""
        fold_ids = np.zeros(len(self.samples), np.int64) if self.fold_ids is None else self.fold_ids
        return FoldedRows(self.samples, self.sizes, fold_ids)

    @classmethod
    def of(
        cls, here: Federation, inner: Inner, ambiguity: Ambiguity, fold_spec: tuple[int, Key] | None = None
    ) -> HostData:
        """Those of a federation whose ambiguity has one number a client; in folds where `fold_spec` says how
        many and by which key."""
        rows = cls(inner.loss, here.host_rows, np.asarray(here.sizes), people=here.people)
        rows = rows._replace(inner=inner, ambiguity=ambiguity)
        if ambiguity.over_balls:
            rows = rows._replace(eps=np.broadcast_to(ambiguity.radii, (here.n,)))
        if fold_spec is None:
            return rows
        return rows._replace(fold_ids=here.folds(*fold_spec), folds=fold_spec[0])


class Algorithm(Protocol):
    """What an engine knows of an algorithm: a frozen dataclass of settings with the pure methods below.

    The module's docstring has the loop that calls them. Algorithms are JAX pytrees: step sizes are traced.
    How one is written is on the page "How to extend".

    Examples:
        >>> from bidro import FedAvg
        >>> FedAvg(eta_x=0.1).reply_type._fields
        ('x',)
    """

    @property
    def broadcast_type(self) -> type[Any]:
        """The NamedTuple of arrays that `broadcast` returns."""

    @property
    def reply_type(self) -> type[Any]:
        """The NamedTuple of arrays that `client` returns: all that ever leaves a site."""

    @property
    def traceable_server(self) -> bool:
        """Whether `server` can be compiled; else rounds are a plain loop around a compiled client."""

    @property
    def rows_behind(self) -> RowsBehind:
        """Over which of a client's rows every number of a reply is computed."""

    @property
    def second_order(self) -> bool:
        """Whether replies hold curvature or second moments."""

    @property
    def per_client_broadcast(self) -> bool:
        """Whether the broadcast has a leading axis of clients, each of whom gets its own part alone."""

    def init(self, problem: Problem, seed: int = 0) -> Any:
        """The state before round 1. Raises BidroError where the problem does not suit."""

    def broadcast(self, state: Any) -> Any:
        """What the server sends to the clients."""

    def participants(self, state: Any) -> Array | None:
        """(n,) who takes part in the round to come; None for everyone."""

    def draw(self, client: Client, key: Array) -> Any:
        """All that is random in one round of one client."""

    def client(self, broadcast: Any, client: Client, draw: Any) -> Any:
        """One client's reply, from its own data only; traced."""

    def client_batch_numpy(self, broadcast: Any, rows: HostData) -> Any | None:
        """In place of `client`, where nothing needs to be compiled: the replies of all clients that are here,
        each from its own rows, with a leading axis of clients. None where `client` is to be called."""

    def server(self, state: Any, replies: Any, replied: Array) -> Any:
        """The next state."""

    def snapshot(self, state: Any) -> Snapshot:
        """The models and weights that the state stands for."""


class BaseAlgorithm:
    """What most algorithms have in common: one broadcast for all, everyone takes part, nothing is random, the
    server can be compiled, and the state has the model `x`, the weights `alpha`, the round to come `t` and
    `x_sum`, the sum of the models of the rounds before.

    What a reply is computed from (`rows_behind`, `second_order`) has no default: sites decide by it.

    Examples:
        >>> from bidro import BaseAlgorithm, FedAvg
        >>> issubclass(FedAvg, BaseAlgorithm)
        True
    """

    @property
    def traceable_server(self) -> bool:
        return True

    @property
    def per_client_broadcast(self) -> bool:
        return False

    def participants(self, state: Any) -> Array | None:
        return None

    def draw(self, client: Client, key: Array) -> Any:
        return None

    def client(self, broadcast: Any, client: Client, draw: Any) -> Any:
        raise NotImplementedError("An algorithm answers by `client` or by `client_batch_numpy`.")

    def client_batch_numpy(self, broadcast: Any, rows: HostData) -> Any | None:
        return None

    def snapshot(self, state: Any) -> Snapshot:
        return Snapshot(state.x, state.x_sum / namespace(state.t).maximum(state.t - 1, 1), state.alpha)


def part_of(algorithm: Algorithm, broadcast: Any, i: int) -> Any:
    """What client i gets of a broadcast."""
    return mapped(lambda v: v[i], broadcast) if algorithm.per_client_broadcast else broadcast


def client_key(seed_key: Array, round_number: Array | int, client_id: Array) -> Array:
    """The key of one client (id of shape (2,)) in one round; rounds count from 1."""
    fold_in = loaded_jax().random.fold_in
    key: Array = fold_in(fold_in(fold_in(seed_key, client_id[0]), client_id[1]), round_number)
    return key


def require_step(name: str, value: float) -> None:
    """Raise BidroError unless a step size, rate or weight is finite and not negative."""
    if not isinstance(value, int | float | np.number) or not 0 <= value < math.inf:
        raise BidroError(f"{name} must be a finite number and not negative; got {value!r}.")


def masked(replied: Array, replies: Array, otherwise: Array) -> Array:
    """Replies (n, ...) with the rows of clients that did not reply replaced by `otherwise`."""
    shape = replied.shape + (1,) * (replies.ndim - 1)
    found: Array = namespace(replied, replies).where(replied.reshape(shape), replies, otherwise)
    return found
