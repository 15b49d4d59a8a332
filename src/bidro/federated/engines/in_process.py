"""All clients in this process: rounds, clients and repeated runs in one compiled program.

Where an algorithm's server step cannot be traced (it calls a solver), rounds are a plain loop around a
compiled client step. All randomness derives from (seed, round, client name), so a run can be cut at any
round and resumed to the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bidro.core.errors import BidroError
from bidro.core.jax_on_use import Array, jax, jit, jnp
from bidro.federated.algorithm import Algorithm, HostData, Snapshot, client_key
from bidro.federated.engines.rounds import Ask, FoldSpec, Who, first_state, last_state, rounds
from bidro.losses.fingerprints import require_known
from bidro.problem.client import Client
from bidro.problem.problem import Problem
from bidro.risk.client_rows import ClientRows


@dataclass(frozen=True, eq=False)
class Result:
    """What a run leaves: models, weights, the recorded history, and the state to go on from.

    Examples:
        >>> from bidro import FedAvg, run
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> found = run(FedAvg(0.1), paper_problem(simulate(0), None), rounds=100, record_every=25)
        >>> found.history_rounds.tolist(), found.history.x.shape
        ([25, 50, 75, 100], (4, 3))
    """

    x: NDArray[np.float64]  # (d,) final model
    x_average: NDArray[np.float64]  # (d,) mean of x_1, ..., x_T
    alpha: NDArray[np.float64]  # (n,) final mixture weights, in the order of `names`
    names: tuple[str, ...]  # the clients'
    algorithm: Algorithm  # with its settings
    problem: str  # the problem's fingerprint
    rounds: int  # done in all
    seed: int  # of everything random
    history_rounds: NDArray[np.int64]  # (records,)
    history: Snapshot  # arrays with a leading axis of records
    seconds: float  # of this part of the run
    state: Any  # to go on from; what clients replied is in it, so that it belongs where the rows are

    @classmethod
    def of(
        cls,
        algorithm: Algorithm,
        state: Any,
        problem: Problem,
        rounds: int,
        seed: int,
        at: NDArray[np.int64],
        history: Snapshot,
        seconds: float,
    ) -> Result:
        """The result of a run that has ended in this state, with snapshots after the rounds `at`."""
        x, x_average, alpha = (np.asarray(part) for part in algorithm.snapshot(state))
        about = (problem.federation.names, algorithm, problem.fingerprint, rounds, seed)
        return cls(x, x_average, alpha, *about, at, history, seconds, state)


# Rounds are run in blocks that begin at fixed rounds, whatever the length of the run: randomness is drawn
# for a whole block at once, by one program, so that a run cut anywhere resumes to the same bits. A block
# has at most this many rounds, draws at most this many numbers, and reads at most this many (roughly a
# second of work: between two calls a run reports progress and can be interrupted).
_BLOCK_ROUNDS = 2048
_DRAWN_NUMBERS = 1 << 21
_READ_NUMBERS = 1 << 27
# Snapshots that one call of the compiled program can keep.
_SNAPSHOTS = 256

Progress = Callable[[int], None]
# Called between blocks with the rounds done, the state, and the rounds and snapshots that were recorded
# since; whether to stop.
Watch = Callable[[int, Any, list[int], Snapshot], bool]


def run(
    algorithm: Algorithm,
    problem: Problem,
    rounds: int,
    seed: int = 0,
    record_every: int | None = None,
    progress: Progress | None = None,
    resume: Result | None = None,
    watch: Watch | None = None,
    x: ArrayLike | None = None,
    alpha: ArrayLike | None = None,
) -> Result:
    """Run so many rounds of an algorithm, or go on from a result to that many in all.

    Args:
        algorithm: such as `BiDROFL()`.
        problem: what it is to solve.
        rounds: how many, in all.
        seed: of everything random.
        record_every: after so many rounds a snapshot is kept; a hundredth of the run by default.
        progress: called with the number of rounds done.
        resume: a result of the same algorithm, problem and seed.
        watch: called between blocks of rounds; where it returns True, the run ends there.
        x: x_1 (d,), in X; by default the loss's first model, which is 0 but for networks.
        alpha: alpha_1 (n,), in A; by default the clients' shares of the rows, projected on A.

    Returns:
        Models, weights and their history.

    Raises:
        BidroError: for a problem that the algorithm cannot treat, a first model or weights that are not
            admissible or that the algorithm does not begin with, and when a value stops being finite.

    Examples:
        >>> from bidro import FedAvg, run
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> problem = paper_problem(simulate(0), None)
        >>> half = run(FedAvg(0.1), problem, rounds=50)
        >>> bool((run(FedAvg(0.1), problem, 100, resume=half).x == run(FedAvg(0.1), problem, 100).x).all())
        True
    """
    key = _seed_key(seed)
    done = 0 if resume is None else resume.rounds
    every = _interval(rounds, record_every)
    if resume is not None:
        require_known(problem.fingerprint)
        began = (resume.seed, resume.problem, fingerprint(resume.algorithm))
        if began != (seed, problem.fingerprint, fingerprint(algorithm)):
            raise BidroError("A run resumes only with the algorithm, problem and seed that it began with.")
        if rounds <= done:
            raise BidroError(f"The run to resume has {done} rounds already; ask for more than that.")
        if x is not None or alpha is not None:
            raise BidroError("A run that is resumed goes on from where it is: give no x and no alpha.")
    started = time.perf_counter()
    state = _begun(algorithm, problem, seed, x, alpha) if resume is None else resume.state
    if algorithm.traceable_server:
        advance = partial(_compiled_rounds, _one_run, algorithm, problem.clients, key)
    else:
        advance = partial(_plain_rounds, algorithm, HostClients(problem, None, seed))
    block = block_rounds(algorithm, problem, runs=1)
    state, at, history = _loop(advance, state, done, rounds, every, block, progress, watch)
    rounds = int(at[-1])
    if resume is not None:
        # The last record of the first part stands where an uncut run may have none.
        due = resume.history_rounds % every == 0
        at = np.concatenate([resume.history_rounds[due], at])
        history = Snapshot(
            *(np.concatenate([a[due], b]) for a, b in zip(resume.history, history, strict=True))
        )
    seconds = time.perf_counter() - started
    return Result.of(algorithm, state, problem, rounds, seed, at, history, seconds)


def run_many(
    algorithm: Algorithm,
    problem: Problem,
    samples: Array | NDArray[np.float64],
    rounds: int,
    seeds: Sequence[int],
    record_every: int | None = None,
    progress: Progress | None = None,
    workers: int = 2,
) -> list[Result]:
    """Repeated runs of one problem on other rows, as one batched program.

    Args:
        algorithm: one whose server step can be compiled.
        problem: of which every run has other rows.
        samples: (runs, N, m); run r uses samples[r] and seeds[r].
        rounds: how many in each run.
        seeds: one a run.
        record_every: as in `run`.
        progress: called with the number of rounds done, summed over runs.
        workers: threads that share the runs out.

    Returns:
        A result for every run.

    Raises:
        BidroError: as `run`, and for rows that do not fit the problem.

    Examples:
        >>> import numpy as np
        >>> from bidro import FedAvg
        >>> from bidro.federated.engines.in_process import run_many
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> runs = [simulate(seed) for seed in (0, 1)]
        >>> tables = np.stack([one.samples for one in runs])
        >>> len(run_many(FedAvg(0.1), paper_problem(runs[0], None), tables, 50, seeds=[0, 1]))
        2
    """
    data = jnp.asarray(samples, float)
    if data.ndim != 3 or data.shape[0] != len(seeds) or data.shape[0] == 0:
        raise BidroError(
            f"run_many needs one table of rows a seed; got shape {data.shape} for {len(seeds)} seeds."
        )
    if data.shape[1:] != problem.federation.samples.shape:
        raise BidroError(
            f"Every run needs rows of shape {problem.federation.samples.shape}; got {data.shape[1:]}."
        )
    if not algorithm.traceable_server:
        raise BidroError("Only algorithms with a traceable server step can be batched; use run.")
    if workers < 1:
        raise BidroError(f"run_many needs at least one worker; got {workers}.")
    every = _interval(rounds, record_every)
    for table in data:
        problem.with_samples(table)  # raises where a row of any run is bad
    finished = [0] * len(seeds)

    def some_runs(chosen: NDArray[np.int64]) -> list[Result]:
        started = time.perf_counter()
        rows = ClientRows.stacked(data[chosen], problem.federation.sizes)
        clients = replace(problem.clients, rows=rows)
        first = (first_state(algorithm, problem, seeds[r]) for r in chosen)
        state = jax.tree.map(lambda *v: jnp.stack(v), *first)
        keys = jnp.stack([_seed_key(seeds[r]) for r in chosen])

        def report(t: int) -> None:
            for r in chosen:
                finished[r] = t
            if progress is not None:
                progress(sum(finished))

        advance = partial(_compiled_rounds, _many_runs, algorithm, clients, keys)
        block = block_rounds(algorithm, problem, len(chosen))
        state, at, history = _loop(advance, state, 0, rounds, every, block, report)
        seconds = (time.perf_counter() - started) / len(chosen)
        results = []
        for k, r in enumerate(chosen):
            own = Snapshot(*(v[:, k] for v in history))
            own_state = jax.tree.map(itemgetter(k), state)
            results.append(Result.of(algorithm, own_state, problem, rounds, seeds[r], at, own, seconds))
        return results

    groups = np.array_split(np.arange(len(seeds)), min(workers, len(seeds)))
    with ThreadPoolExecutor(len(groups)) as pool:
        return [result for group in pool.map(some_runs, groups) for result in group]


def _begun(
    algorithm: Algorithm, problem: Problem, seed: int, x: ArrayLike | None, alpha: ArrayLike | None
) -> Any:
    """The state before round 1, with the model and weights that are given."""
    if x is None and alpha is None:
        return first_state(algorithm, problem, seed)
    state = first_state(algorithm, problem.begun_at(x, alpha), seed)
    shown = algorithm.snapshot(state)
    for what, given, first in (("model", x, shown.x), ("mixture weights", alpha, shown.alpha)):
        if given is not None and not np.array_equal(np.asarray(first), np.asarray(given, float)):
            raise BidroError(
                f"{type(algorithm).__name__} has a first {what} of its own; leave out yours."
                if what == "model"
                else f"{type(algorithm).__name__} has {what} of its own; leave out alpha."
            )
    return state


def _seed_key(seed: int) -> Array:
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise BidroError(f"A seed must be a whole number from 0 to 2^63 - 1; got {seed!r}.")
    return jax.random.key(seed)


def fingerprint(algorithm: Algorithm) -> tuple[Any, ...]:
    """The same for algorithms of one kind with the same settings."""
    leaves, structure = jax.tree.flatten(algorithm)
    return structure, [float(v) for v in leaves]


def _interval(rounds: int, record_every: int | None) -> int:
    if not isinstance(rounds, int) or rounds < 1:
        raise BidroError(f"A run needs a whole number of rounds, at least one; got {rounds!r}.")
    every = max(1, rounds // 100) if record_every is None else record_every
    if not isinstance(every, int) or every < 1:
        raise BidroError(f"record_every must be a whole number of at least 1; got {every!r}.")
    return min(every, rounds)


def block_rounds(algorithm: Algorithm, problem: Problem, runs: int) -> int:
    """Rounds in a block: a property of algorithm and problem alone, so that blocks stay where they are."""
    clients, m = problem.clients, problem.federation.m
    numbers = jax.eval_shape(partial(_draws, algorithm), clients, jax.random.key(0), jnp.ones((), int))
    a_round = max(problem.n * (m + 1), sum(part.size for part in jax.tree.leaves(numbers)))
    drawn = _DRAWN_NUMBERS // (runs * a_round)
    read = _READ_NUMBERS // (runs * len(problem.federation.samples) * problem.loss.work(m))
    return max(1, min(_BLOCK_ROUNDS, drawn, read))


def _loop(
    advance: Callable[..., tuple[Any, Snapshot]],
    state: Any,
    done: int,
    rounds: int,
    every: int,
    block: int,
    progress: Progress | None,
    watch: Watch | None = None,
) -> tuple[Any, NDArray[np.int64], Snapshot]:
    """Advance from round `done` to `rounds`, at most a block at a time, or until `watch` stops it; the last
    round has a record."""
    at: list[int] = []
    parts: list[Snapshot] = []
    while done < rounds:
        # Stops are the rounds of this block after which a snapshot is due, and its end.
        end = min(rounds, (done // block + 1) * block)
        stops = [*range((done // every + 1) * every, end, every), end][: min(block, _SNAPSHOTS)]
        state, snapshots = advance(state, done, stops, block)
        kept = [k for k, t in enumerate(stops) if t % every == 0 or t == rounds]
        snapshots = Snapshot(*(np.asarray(v)[: len(stops)] for v in snapshots))
        if not all(np.all(np.isfinite(v)) for v in snapshots):
            raise BidroError(
                f"Between rounds {done + 1} and {stops[-1]} a value stopped being finite: the step sizes "
                "are too large, or the worst case is infinite at the model reached (raise rho or declare "
                "a bounded support)."
            )
        new, records = [stops[k] for k in kept], Snapshot(*(v[kept] for v in snapshots))
        done = stops[-1]
        if progress is not None:
            progress(done)
        enough = watch is not None and watch(done, state, new, records)
        if enough and done not in new:
            new, records = [*new, done], Snapshot(*(v[[*kept, -1]] for v in snapshots))
        at += new
        parts.append(records)
        if enough:
            break
    history = Snapshot(*(np.concatenate(p) for p in zip(*parts, strict=True)))
    return state, np.asarray(at), history


def _compiled_rounds(
    program: Callable[..., tuple[Any, Snapshot]],
    algorithm: Algorithm,
    clients: Client,
    key: Array,
    state: Any,
    done: int,
    stops: list[int],
    block: int,
) -> tuple[Any, Snapshot]:
    return program(algorithm, clients, key, state, *_places(done, stops, block), block=block)


def _plain_rounds(
    algorithm: Algorithm, ask: Ask, state: Any, done: int, stops: list[int], block: int
) -> tuple[Any, Snapshot]:
    """A loop around a compiled client step, for servers that cannot be traced."""
    snapshots = []
    for before, stop in pairwise([done, *stops]):
        # Of a state that says that it is finished nothing changes any more.
        state = last_state(rounds(ask, algorithm, state, stop, before), state)
        snapshots.append(algorithm.snapshot(state))
    return state, Snapshot(*(jnp.stack(v) for v in zip(*snapshots, strict=True)))


def _places(done: int, stops: list[int], block: int) -> tuple[int, NDArray[np.int64], int]:
    """(first round of the block, round before it begins and stops within it, number of stops)."""
    base = done - done % block
    places = np.zeros(min(block, _SNAPSHOTS) + 1, np.int64)
    places[: len(stops) + 1] = np.array([done, *stops]) - base
    return base + 1, places, len(stops)


def rounds_of(
    algorithm: Algorithm,
    clients: Client,
    key: Array,
    state: Any,
    first: Array,
    places: Array,
    count: Array,
    block: int,
) -> tuple[Any, Snapshot]:
    """The rounds of a block from places[0] to places[count], a snapshot after each place.

    How many rounds that is, is not part of the program: it is compiled once for a problem.
    """
    # Drawing inside the loop would cost more than the round itself.
    draws = jax.vmap(lambda t: _draws(algorithm, clients, key, t))(first + jnp.arange(block))

    def one_round(t: Array, state: Any) -> Any:
        draw = jax.tree.map(lambda v: jax.lax.dynamic_index_in_dim(v, t, keepdims=False), draws)
        replies = _replies(algorithm, clients, algorithm.broadcast(state), draw)
        return algorithm.server(state, replies, participating(algorithm, state, clients))

    def to_next_place(k: Array, carry: tuple[Any, Snapshot]) -> tuple[Any, Snapshot]:
        state, kept = carry
        state = jax.lax.fori_loop(places[k], places[k + 1], one_round, state)
        now = algorithm.snapshot(state)
        return state, jax.tree.map(lambda v, w: v.at[k].set(w), kept, now)

    empty = Snapshot(*(jnp.zeros((len(places) - 1, *jnp.shape(v))) for v in algorithm.snapshot(state)))
    return jax.lax.fori_loop(0, count, to_next_place, (state, empty))


_one_run = jit(rounds_of, static_argnames="block")


@partial(jit, static_argnames="block")
def _many_runs(
    algorithm: Algorithm,
    clients: Client,
    keys: Array,
    states: Any,
    first: Array,
    places: Array,
    count: Array,
    block: int,
) -> tuple[Any, Snapshot]:
    """The same for repeated runs; snapshots have the axes (places, runs, ...)."""

    def one_run(clients: Client, key: Array, state: Any) -> tuple[Any, Snapshot]:
        return rounds_of(algorithm, clients, key, state, first, places, count, block)

    over_runs = jax.vmap(one_run, in_axes=(clients.run_axes(), 0, 0), out_axes=(0, 1))
    return over_runs(clients, keys, states)


def _draws(algorithm: Algorithm, clients: Client, key: Array, t: Array) -> Any:
    """All clients' randomness of round t."""

    def draw(client: Client) -> Any:
        return algorithm.draw(client, client_key(key, t, client.id))

    return jax.vmap(draw, in_axes=(clients.client_axes(),))(clients)


@jit
def all_replies(algorithm: Algorithm, clients: Client, key: Array, broadcast: Any, t: Array) -> Any:
    """The replies of all clients in round t, with a leading axis of clients."""
    return _replies(algorithm, clients, broadcast, _draws(algorithm, clients, key, t))


def _replies(algorithm: Algorithm, clients: Client, broadcast: Any, draws: Any) -> Any:
    axes = (0 if algorithm.per_client_broadcast else None, clients.client_axes(), 0)
    return jax.vmap(algorithm.client, in_axes=axes)(broadcast, clients, draws)


def participating(algorithm: Algorithm, state: Any, clients: Client) -> Array:
    """(n,) who takes part in the round to come. In one process everyone computes, and the others' replies
    are ignored."""
    chosen = algorithm.participants(state)
    return jnp.ones(clients.id.shape[:1], bool) if chosen is None else chosen


class HostClients:
    """Clients whose rows are all here, and who always reply: on the host where an algorithm can, else by a
    compiled program."""

    def __init__(self, problem: Problem, fold_spec: FoldSpec | None, seed: int) -> None:
        self.host = HostData.of(problem.federation, problem.inner, problem.ambiguity_set, fold_spec)
        self._problem, self._seed = problem, seed

    @cached_property
    def _compiled(self) -> tuple[Client, Array]:
        clients = self._problem.clients
        if self.host.fold_ids is not None:
            clients = replace(clients, rows=clients.rows.in_folds(self.host.fold_ids, self.host.folds))
        return clients, jax.random.key(self._seed)

    def __call__(
        self, algorithm: Algorithm, broadcast: Any, t: int, who: Who | None = None
    ) -> tuple[Any, Who]:
        replies = algorithm.client_batch_numpy(broadcast, self.host)
        if replies is None:
            replies = all_replies(algorithm, *self._compiled, broadcast, jnp.asarray(t))
        return replies, np.ones(self._problem.n, bool) if who is None else who


@dataclass(frozen=True)
class InProcess:
    """All clients' rows are here."""

    def clients_of(self, problem: Problem, fold_spec: FoldSpec | None = None, seed: int = 0) -> HostClients:
        return HostClients(problem, fold_spec, seed)


IN_PROCESS = InProcess()
