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
from functools import partial
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from bidro.algorithms.contract import Algorithm, Snapshot, client_key
from bidro.errors import BidroError
from bidro.problem import Client, Problem
from bidro.rows import ClientRows

# Randomness is drawn ahead for as many rounds as keep the draws below this many numbers.
_DRAWN_NUMBERS = 1 << 21
# Numbers read in one call of the compiled program, roughly a second of work: between two calls a run
# reports progress and can be interrupted.
_CALL_NUMBERS = 1 << 27

Progress = Callable[[int], None]


@dataclass(frozen=True, eq=False)
class Result:
    """What a run leaves: models, weights, the recorded history, and the state to go on from."""

    x: NDArray[np.float64]  # (d,) final model
    x_average: NDArray[np.float64]  # (d,) mean of x_1, ..., x_T
    alpha: NDArray[np.float64]  # (n,) final mixture weights, in the order of `names`
    names: tuple[str, ...]
    rounds: int
    seed: int
    history_rounds: NDArray[np.int64]  # (records,)
    history: Snapshot  # arrays with a leading axis of records
    seconds: float
    state: Any


def run(
    algorithm: Algorithm,
    problem: Problem,
    rounds: int,
    seed: int = 0,
    record_every: int | None = None,
    progress: Progress | None = None,
    resume: Result | None = None,
) -> Result:
    """Run `rounds` rounds, or go on from `resume` to that many in all.

    `record_every` rounds (a hundredth of the run by default) a snapshot is kept; `progress` is called
    with the number of rounds done. Raises BidroError for a problem that the algorithm cannot treat and
    when a value stops being finite.
    """
    done = 0 if resume is None else resume.rounds
    every = _interval(rounds, record_every)
    if resume is not None:
        if resume.seed != seed or resume.names != problem.federation.names:
            raise BidroError("A run resumes only with the seed and the clients that it began with.")
        if rounds <= done:
            raise BidroError(f"The run to resume has {done} rounds already; ask for more than that.")
    started = time.perf_counter()
    state = algorithm.init(problem) if resume is None else resume.state
    clients, key = problem.clients(), jax.random.key(seed)
    advance = _compiled_rounds if algorithm.traceable_server else _plain_rounds
    state, at, history = _loop(
        partial(advance, algorithm, clients, key), state, done, rounds, every, problem, progress
    )
    if resume is not None:
        at = np.concatenate([resume.history_rounds, at])
        history = Snapshot(*(np.concatenate(p) for p in zip(resume.history, history, strict=True)))
    seconds = time.perf_counter() - started
    return _result(algorithm, state, problem, rounds, seed, at, history, seconds)


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
    """Repeated runs of one problem on other rows: run r uses samples[r] (N, m) and seeds[r].

    The runs are one batched program, shared out over `workers` threads. `progress` is called with the
    number of rounds done, summed over runs.
    """
    data = jnp.asarray(samples)
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
    every = _interval(rounds, record_every)
    finished = [0] * len(seeds)

    def some_runs(chosen: NDArray[np.int64]) -> list[Result]:
        started = time.perf_counter()
        rows = ClientRows.stacked(data[chosen], problem.federation.sizes)
        clients = replace(problem.clients(), rows=rows)
        state = jax.tree.map(
            lambda v: jnp.broadcast_to(v, (len(chosen), *jnp.shape(v))), algorithm.init(problem)
        )
        keys = jax.vmap(jax.random.key)(jnp.asarray([seeds[r] for r in chosen]))

        def report(t: int) -> None:
            for r in chosen:
                finished[r] = t
            if progress is not None:
                progress(sum(finished))

        advance = partial(_batched_rounds, algorithm, clients, keys)
        state, at, history = _loop(advance, state, 0, rounds, every, problem, report, len(chosen))
        seconds = (time.perf_counter() - started) / len(chosen)
        results = []
        for k, r in enumerate(chosen):
            own = Snapshot(*(v[:, k] for v in history))
            own_state = jax.tree.map(itemgetter(k), state)
            results.append(_result(algorithm, own_state, problem, rounds, seeds[r], at, own, seconds))
        return results

    groups = np.array_split(np.arange(len(seeds)), min(workers, len(seeds)))
    with ThreadPoolExecutor(len(groups)) as pool:
        return [result for group in pool.map(some_runs, groups) for result in group]


def _interval(rounds: int, record_every: int | None) -> int:
    if rounds < 1:
        raise BidroError(f"A run needs at least one round; got {rounds}.")
    every = max(1, rounds // 100) if record_every is None else record_every
    if every < 1:
        raise BidroError(f"record_every must be at least 1; got {every}.")
    return min(every, rounds)


def _loop(
    advance: Callable[..., tuple[Any, Snapshot]],
    state: Any,
    done: int,
    rounds: int,
    every: int,
    problem: Problem,
    progress: Progress | None,
    runs: int = 1,
) -> tuple[Any, NDArray[np.int64], Snapshot]:
    """Advance from round `done` to `rounds`, some records at a time."""
    at: list[NDArray[np.int64]] = []
    parts: list[Snapshot] = []
    length, most = _call_size(every, problem, runs)
    while done < rounds:
        whole = (rounds - done) // length
        records, length = (min(most, whole), length) if whole else (1, rounds - done)
        state, snapshots = advance(state, done + 1, records, length)
        snapshots = Snapshot(*(np.asarray(v) for v in snapshots))
        if not all(np.all(np.isfinite(v)) for v in snapshots):
            raise BidroError(
                f"Between rounds {done + 1} and {done + records * length} a value stopped being "
                "finite: the step sizes are too large, or the worst case is infinite at the model "
                "reached (raise rho or declare a bounded support)."
            )
        reached = done + length * np.arange(1, records + 1)
        kept = (reached % every == 0) | (reached == rounds)
        at.append(reached[kept])
        parts.append(Snapshot(*(v[kept] for v in snapshots)))
        done += records * length
        if progress is not None:
            progress(done)
    history = Snapshot(*(np.concatenate(p) for p in zip(*parts, strict=True)))
    return state, np.concatenate(at), history


def _call_size(every: int, problem: Problem, runs: int) -> tuple[int, int]:
    """(rounds between snapshots, snapshots a call): within the limits of work and of draws."""
    drawn = max(1, _DRAWN_NUMBERS // (runs * problem.n * (problem.federation.m + 1)))
    worked = max(1, _CALL_NUMBERS // (runs * problem.federation.samples.size))
    most = min(drawn, worked)
    length = next(k for k in range(min(every, most), 0, -1) if every % k == 0)
    return length, max(1, most // length)


def _rounds(
    algorithm: Algorithm,
    clients: Client,
    key: Array,
    state: Any,
    first: Array,
    records: int,
    length: int,
) -> tuple[Any, Snapshot]:
    """`records` times `length` rounds from round `first`, a snapshot after each `length`."""
    axes = clients.client_axes()
    everyone = jnp.ones(clients.id.shape, bool)

    def one_round(state: Any, draws: Any) -> tuple[Any, None]:
        reply = jax.vmap(algorithm.client, in_axes=(None, axes, 0))
        return algorithm.server(state, reply(algorithm.broadcast(state), clients, draws), everyone), None

    def one_record(state: Any, draws: Any) -> tuple[Any, Snapshot]:
        state, _ = jax.lax.scan(one_round, state, draws, length=length)
        return state, algorithm.snapshot(state)

    # Drawing for many rounds at once is one vectorised operation; inside the scan it would cost
    # more than the round itself.
    when = first + jnp.arange(records * length).reshape(records, length)
    draws = jax.vmap(jax.vmap(lambda t: _draws(algorithm, clients, key, t)))(when)
    return jax.lax.scan(one_record, state, draws, length=records)


def _draws(algorithm: Algorithm, clients: Client, key: Array, t: Array) -> Any:
    """All clients' randomness of round t."""

    def draw(client: Client) -> Any:
        return algorithm.draw(client, client_key(key, t, client.id))

    return jax.vmap(draw, in_axes=(clients.client_axes(),))(clients)


_compiled_rounds = jax.jit(_rounds, static_argnames=("records", "length"))


@partial(jax.jit, static_argnames=("records", "length"))
def _batched_rounds(
    algorithm: Algorithm,
    clients: Client,
    keys: Array,
    states: Any,
    first: Array,
    records: int,
    length: int,
) -> tuple[Any, Snapshot]:
    """The same for repeated runs; snapshots have the axes (records, runs, ...)."""

    def one_run(clients: Client, key: Array, state: Any) -> tuple[Any, Snapshot]:
        return _rounds(algorithm, clients, key, state, first, records, length)

    over_runs = jax.vmap(one_run, in_axes=(clients.run_axes(), 0, 0), out_axes=(0, 1))
    return over_runs(clients, keys, states)


@jax.jit
def _all_replies(algorithm: Algorithm, clients: Client, key: Array, broadcast: Any, t: Array) -> Any:
    draws = _draws(algorithm, clients, key, t)
    reply = jax.vmap(algorithm.client, in_axes=(None, clients.client_axes(), 0))
    return reply(broadcast, clients, draws)


def _plain_rounds(
    algorithm: Algorithm,
    clients: Client,
    key: Array,
    state: Any,
    first: int,
    records: int,
    length: int,
) -> tuple[Any, Snapshot]:
    """A loop around a compiled client step, for servers that cannot be traced."""
    everyone = jnp.ones(clients.id.shape, bool)
    snapshots = []
    for k in range(records):
        for t in range(first + k * length, first + (k + 1) * length):
            replies = _all_replies(algorithm, clients, key, algorithm.broadcast(state), jnp.asarray(t))
            state = algorithm.server(state, replies, everyone)
        snapshots.append(algorithm.snapshot(state))
    return state, Snapshot(*(jnp.stack(v) for v in zip(*snapshots, strict=True)))


def _result(
    algorithm: Algorithm,
    state: Any,
    problem: Problem,
    rounds: int,
    seed: int,
    at: NDArray[np.int64],
    history: Snapshot,
    seconds: float,
) -> Result:
    final = algorithm.snapshot(state)
    return Result(
        np.asarray(final.x),
        np.asarray(final.x_average),
        np.asarray(final.alpha),
        problem.federation.names,
        rounds,
        seed,
        at,
        history,
        seconds,
        state,
    )
