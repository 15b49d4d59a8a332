"""Many settings of one algorithm, each on the training rows of every fold, in one compiled program.

For comparisons: what cross-validation of a step-taking algorithm needs. Rounds and randomness are those of
`in_process.run`; a setting whose numbers stop being finite spoils nobody else's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidro.ambiguity import Ambiguity
from bidro.core.jax_on_use import Array, jax, jit, jnp
from bidro.federated.algorithm import Algorithm, Snapshot
from bidro.federated.engines.in_process import block_rounds, rounds_of
from bidro.federated.engines.rounds import first_state
from bidro.problem.client import Client
from bidro.problem.problem import Problem

# Settings are trained together as long as the rows of all of them are no more numbers than this.
_TOGETHER_NUMBERS = 1 << 23


class Trial(NamedTuple):
    """An algorithm and its problem. Settings that are trained side by side differ in traced
    hyperparameters, penalties, radii and sets alone: loss, rows and metric are the same."""

    algorithm: Algorithm
    problem: Problem


def train_settings(
    settings: Sequence[Trial],
    of_row: NDArray[np.int64],
    folds: int,
    rounds: int,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> NDArray[np.float64]:
    """Models (settings, folds + 1, d) after `rounds` rounds; the last is trained on all rows.

    A model is the mean of those of the second half of the rounds. `of_row` (N,) is the fold of each row,
    from 0; every client's rows must stand fold after fold. nan where a value stopped being finite. `progress`
    is called with the share of the work that is done.
    """
    at_once = _at_once(settings, folds)
    parts = []
    for begin in range(0, len(settings), at_once):

        def share_done(t: int, begin: int = begin) -> None:
            if progress is not None:
                progress((begin + at_once * t / rounds) / len(settings))

        group = settings[begin : begin + at_once]
        parts.append(_train_group(group, of_row, folds, rounds, seed, share_done))
    return np.concatenate(parts)


def _at_once(settings: Sequence[Trial], folds: int) -> int:
    """How many settings to train together: a divisor of their number, so that all groups are one program."""
    each = (folds + 1) * settings[0].problem.federation.samples.size
    count = len(settings)
    return max(k for k in range(1, count + 1) if count % k == 0 and (k == 1 or k * each <= _TOGETHER_NUMBERS))


def _train_group(
    settings: Sequence[Trial],
    of_row: NDArray[np.int64],
    folds: int,
    rounds: int,
    seed: int,
    progress: Callable[[int], None],
) -> NDArray[np.float64]:
    first = settings[0].problem
    rows = first.clients.rows.in_folds(of_row, folds)
    clients = replace(
        first.clients,
        rows=rows,
        ambiguity=jax.tree.map(lambda *v: jnp.stack(v), *(one.problem.ambiguity_set for one in settings)),
    )
    algorithms, states = (
        jax.tree.map(lambda *v: jnp.stack(v), *parts)
        for parts in (
            [one.algorithm for one in settings],
            [first_state(one.algorithm, one.problem, seed) for one in settings],
        )
    )
    every = jax.tree.map(lambda v: jnp.stack([v] * (folds + 1), axis=1), states)
    block = block_rounds(settings[0].algorithm, first, len(settings) * (folds + 1))
    key, half = jax.random.key(seed), max(1, rounds // 2)
    done, at_half = 0, None
    while done < rounds:
        stop = min(rounds, (done // block + 1) * block, *([half] if done < half else []))
        base = done - done % block
        places = np.array([done, stop]) - base
        every, now = _advance(algorithms, clients, key, every, base + 1, places, block=block)
        done = stop
        if done == half:
            at_half = now.x_average
        progress(done)
    assert at_half is not None
    whole = np.asarray(now.x_average)
    if rounds == half:
        return whole
    return np.asarray((rounds * whole - half * np.asarray(at_half)) / (rounds - half))


@partial(jit, static_argnames="block")
def _advance(
    algorithms: Algorithm,
    clients: Client,
    key: Array,
    states: Any,
    first: Array,
    places: Array,
    block: int,
) -> tuple[Any, Snapshot]:
    """The rounds of a block from places[0] to places[1]; leading axes are settings and folds."""
    assert clients.rows.folds is not None
    folds = clients.rows.folds.kept.shape[0]

    def one(algorithm: Algorithm, around: Ambiguity, state: Any, fold: Array) -> tuple[Any, Snapshot]:
        # No row is of fold `folds`: there nothing is left out.
        own = replace(clients, rows=clients.rows.without(fold), ambiguity=around)
        state, kept = rounds_of(algorithm, own, key, state, first, places, jnp.asarray(1), block)
        return state, jax.tree.map(lambda v: v[0], kept)

    over_folds = jax.vmap(one, in_axes=(None, None, 0, 0))
    over_settings = jax.vmap(over_folds, in_axes=(0, 0, 0, None))
    return over_settings(algorithms, clients.ambiguity, states, jnp.arange(folds + 1))
