"""Train a network: rounds by `federated.engines.in_process`, watched on held-out rows.

Every so many rounds the clients' mean losses on held-out rows are computed; the model with the lowest mean
over the worst fifth of the clients is kept, and a run stops where that has not fallen for some evaluations.
After every block of rounds all of it is written to a checkpoint, from which the same call goes on to the same
bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.core.files import read_bytes, require_file_place, write_bytes
from bidro.core.jax_on_use import jax, jnp
from bidro.core.packed import decoded, encoded
from bidro.federated.algorithm import Algorithm, Snapshot
from bidro.federated.engines.in_process import Result, fingerprint, run
from bidro.losses import losses_of
from bidro.losses.fingerprints import require_known
from bidro.problem.problem import Problem
from bidro.selection.rule import worst_fifth

_KIND = "bidro checkpoint 1"


class Evaluation(NamedTuple):
    """What the held-out rows show of the model after a round."""

    round: int
    mean: float  # of all rows' losses
    worst_fifth: float  # mean over the ceil(n / 5) clients with the largest mean losses


@dataclass(frozen=True, eq=False)
class TrainedNetwork:
    """The model with the lowest worst fifth (without held-out rows, the last one), and how it came about.

    Examples:
        >>> from bidro import FedAvg, train_network
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> train_network(FedAvg(0.1), paper_problem(simulate(0), None), 50).stopped
        False
    """

    x: Floats  # (d,) the model
    round: int  # after which x was the model
    evaluations: tuple[Evaluation, ...]  # on held-out rows, in the order of rounds
    stopped: bool  # whether the run ended before its last round
    result: Result  # of the last round


def train_network(
    algorithm: Algorithm,
    problem: Problem,
    rounds: int,
    seed: int = 0,
    held_out: Mapping[str, Floats] | None = None,
    evaluate_every: int = 10,
    patience: int | None = None,
    checkpoint: Path | str | None = None,
    show: bool = False,
) -> TrainedNetwork:
    """Train by at most so many rounds of an algorithm, evaluating the model on held-out rows as it goes.

    Args:
        algorithm: such as `FedAvg(0.1, batch=32)`.
        problem: with the loss of a network, or any other.
        rounds: at the most.
        seed: of everything random.
        held_out: rows (N_i, m) by client that are not trained on, of some or all clients.
        evaluate_every: rounds between two evaluations on them.
        patience: evaluations without a lower worst fifth after which the run stops; None for never.
        checkpoint: a file. Where it is there, the run goes on from it; with the same arguments to the same
            bits as a run that was not cut.
        show: a line of progress with rounds and losses on standard error.

    Returns:
        The model with the lowest worst fifth, and how it came about.

    Raises:
        BidroError: for what does not fit together, for a checkpoint of another run, and when a value stops
            being finite.

    Examples:
        >>> from bidro import FedAvg, train_network
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> train_network(FedAvg(0.1), paper_problem(simulate(0), None), 50).round
        50
    """
    if patience is not None and (not held_out or patience < 1):
        raise BidroError(f"A patience needs held-out rows and a number of at least 1; got {patience!r}.")
    unknown = sorted(set(held_out or ()) - set(problem.federation.names))
    if unknown:
        raise BidroError(f"Client '{unknown[0]}' has held-out rows but is not in training.")
    path = None if checkpoint is None else Path(checkpoint)
    if path is not None:
        require_file_place(path)
        require_known(problem.fingerprint)
    watcher = _Watcher(algorithm, problem, seed, dict(held_out or {}), patience, path)
    begun = watcher.load() if path is not None and path.exists() else None
    if begun is not None and (watcher.enough or begun.rounds >= rounds):
        return watcher.trained(begun, rounds)
    with _shown(rounds) if show else nullcontext() as bar:
        watcher.bar = bar
        result = run(
            algorithm, problem, rounds, seed, min(evaluate_every, rounds), None, begun, watcher.watch
        )
    return watcher.trained(result, rounds)


@dataclass(eq=False)
class _Watcher:
    algorithm: Algorithm
    problem: Problem
    seed: int
    held_out: dict[str, Floats]
    patience: int | None
    path: Path | None
    evaluations: list[Evaluation] = field(default_factory=list)
    best: Floats | None = None
    best_round: int = 0
    bar: Any = None

    def watch(self, done: int, state: Any, at: list[int], records: Snapshot) -> bool:
        for t, x in zip(at, np.asarray(records.x), strict=True):
            self._evaluate(t, x)
            if self.enough:
                break
        if self.path is not None:
            self._save(done, state)
        if self.bar is not None:
            self.bar(done, self.evaluations)
        return self.enough

    def _evaluate(self, t: int, x: Floats) -> None:
        if not self.held_out:
            self.best, self.best_round = x, t
            return
        losses = [losses_of(self.problem.loss, x, rows) for rows in self.held_out.values()]
        means = np.array([own.mean() for own in losses])
        found = Evaluation(t, float(np.concatenate(losses).mean()), float(worst_fifth(means)))
        if self.best is None or found.worst_fifth < min(one.worst_fifth for one in self.evaluations):
            self.best, self.best_round = x, t
        self.evaluations.append(found)

    @property
    def enough(self) -> bool:
        """Whether the last evaluations have not been better than one before them."""
        if self.patience is None or len(self.evaluations) <= self.patience:
            return False
        late = min(one.worst_fifth for one in self.evaluations[-self.patience :])
        return late >= min(one.worst_fifth for one in self.evaluations[: -self.patience])

    def trained(self, result: Result, rounds: int) -> TrainedNetwork:
        x, t = (result.x, result.rounds) if self.best is None else (self.best, self.best_round)
        return TrainedNetwork(x, t, tuple(self.evaluations), result.rounds < rounds, result)

    @property
    def _identity(self) -> str:
        """Of all that decides the bits of a run."""
        digest = hashlib.blake2b(repr(fingerprint(self.algorithm)).encode(), digest_size=16)
        for name, rows in self.held_out.items():
            digest.update(name.encode() + np.ascontiguousarray(rows).tobytes())
        digest.update(f"{self.problem.fingerprint} {self.seed} {self.patience}".encode())
        return digest.hexdigest()

    def _save(self, done: int, state: Any) -> None:
        assert self.path is not None
        leaves = [_numbers(leaf) for leaf in jax.tree.leaves(state)]
        tensors = {f"state {k}": leaf for k, leaf in enumerate(leaves)}
        if self.best is not None:
            tensors["best"] = self.best
        header = {
            "kind": _KIND,
            "run": self._identity,
            "round": done,
            "best_round": self.best_round,
            "evaluations": [list(one) for one in self.evaluations],
        }
        write_bytes(self.path, encoded(tensors, header))

    def load(self) -> Result:
        """The run so far, from its checkpoint."""
        assert self.path is not None
        tensors, header = decoded(read_bytes(self.path), str(self.path))
        if header.get("kind") != _KIND:
            raise BidroError(f"'{self.path}' is not a checkpoint of a training run.")
        if header["run"] != self._identity:
            raise BidroError(
                f"'{self.path}' is the checkpoint of a run with another algorithm, problem, seed or held-out "
                "rows; begin in another file."
            )
        first = self.algorithm.init(self.problem, self.seed)
        leaves, structure = jax.tree.flatten(first)
        state = jax.tree.unflatten(
            structure, [_as(leaf, tensors[f"state {k}"]) for k, leaf in enumerate(leaves)]
        )
        self.evaluations = [Evaluation(int(t), mean, worst) for t, mean, worst in header["evaluations"]]
        self.best, self.best_round = tensors.get("best"), int(header["best_round"])
        now = self.algorithm.snapshot(state)
        none: NDArray[np.int64] = np.zeros(0, np.int64)
        empty = Snapshot(*(np.zeros((0, *np.shape(v))) for v in now))
        done = int(header["round"])
        return Result.of(self.algorithm, state, self.problem, done, self.seed, none, empty, 0.0)


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _numbers(leaf: Any) -> Floats:
    """As float64, which holds every whole number that a state has."""
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf, float)


def _as(like: Any, numbers: Floats) -> Any:
    if _is_key(like):
        return jax.random.wrap_key_data(jnp.asarray(numbers.astype(np.uint32)))
    return jnp.asarray(numbers.astype(np.asarray(like).dtype))


@contextmanager
def _shown(rounds: int) -> Iterator[Callable[[int, list[Evaluation]], None]]:
    """A bar of rounds, with the last evaluation."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    words = TextColumn("{task.description}")
    columns = (TextColumn("rounds"), BarColumn(), MofNCompleteColumn(), words, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=rounds)

        def update(done: int, evaluations: list[Evaluation]) -> None:
            said = ""
            if evaluations:
                last = evaluations[-1]
                said = f"mean loss {last.mean:.4g}, worst fifth {last.worst_fifth:.4g}"
            progress.update(task, completed=done, description=said)

        yield update
