"""A grouped table as numbers, and one split of it: training rows in folds, test rows, and how models do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from bidro.arrays import Floats
from bidro.federation import Federation
from bidro.guarantees.calibration import FOLDS
from bidro.guarantees.price import worst_decile
from bidro.losses import Logistic, Loss, Softmax, Squared, losses_of
from bidro.problem import Problem
from bidro.splits import choose_holdout, content_order
from bidro.standard import Moments, Standard
from bidro.training import Choices, transport_of, unrestricted

TEST_SHARE = 0.3
MIXTURES = 200
# Lengths of shift, in standard deviations, and random directions for each.
SHIFTS = (0.25, 0.5, 1.0)
_DIRECTIONS = 20


@dataclass(frozen=True, eq=False)
class Grouped:
    """Features (N, k), target (N,), and the client of every row. Classes are coded as losses know them."""

    features: Floats
    target: Floats
    clients: NDArray[np.str_]
    columns: tuple[str, ...]
    classes: int  # 0 for a numeric target
    units: NDArray[np.uint64] | None = None  # (N,) of which unit each row is, where rows of one stay together

    @property
    def loss(self) -> Loss:
        if self.classes == 0:
            return Squared(intercept=True)
        return Logistic(intercept=True) if self.classes == 2 else Softmax(self.classes, intercept=True)


@dataclass(frozen=True, eq=False)
class Split:
    """Rows in standard units of the training rows. `problem` has no ambiguity yet; the rows of each of its
    clients stand fold after fold. `pooled` has the same rows as one client, fold after fold."""

    problem: Problem
    of_row: NDArray[np.int64]  # (N,) folds of the problem's rows
    pooled: Problem
    of_pooled_row: NDArray[np.int64]
    folds: int
    test: Floats  # (M, m)
    test_client: NDArray[np.int64]  # (M,) positions of the clients
    unit: float  # of losses, in the target's own unit

    @classmethod
    def of(cls, table: Grouped, seed: int) -> Split:
        """The split that `seed` stands for: the same share of every client is for the test. Rows of one unit
        are all for training, and in one fold, or all for the test."""
        holdout = choose_holdout(table.clients, table.features, table.target, TEST_SHARE, seed, table.units)
        codes = np.unique(table.clients, return_inverse=True)[1]
        order = content_order(codes, table.features, table.target, table.units)
        order = order[~holdout[order]]
        units = None if table.units is None else table.units[order]
        features, target, clients = table.features[order], table.target[order], table.clients[order]
        known = Standard.of(Moments.of(features, target), table.classes > 0)
        # Targets too are in standard deviations, so that one grid of steps and radii suits all tables.
        unit = replace(known, target_spread=1.0)
        scaled = target / known.target_spread, table.target[holdout] / known.target_spread
        unit = replace(unit, middle=known.middle / known.target_spread)
        names, sizes = np.unique(clients, return_counts=True)
        rows, columns = unit.rows(features, scaled[0]), [*table.columns, "target"]
        federation = Federation.from_samples(
            rows, sizes.tolist(), "unbounded", names.tolist(), columns, units
        )
        loss = table.loss
        transport = transport_of(loss, federation.m, Choices(), 1.0)
        folds = max(2, min(FOLDS, *federation.unit_counts))
        marks = federation.folds(folds, seed)
        owner = np.repeat(np.arange(federation.n), federation.sizes)
        order = np.lexsort((marks, owner))
        by_fold = np.argsort(marks, kind="stable")
        problem = unrestricted(_with_rows(federation, order), loss, transport, 1.0)
        one = _with_rows(federation.pooled(), by_fold)
        test = unit.rows(table.features[holdout], scaled[1])
        codes = np.searchsorted(np.asarray(federation.names), table.clients[holdout])
        return cls(
            problem,
            marks[order],
            unrestricted(one, loss, transport, 1.0),
            marks[by_fold],
            folds,
            test,
            codes,
            known.target_spread**2,
        )

    def held_out_losses(self, models: Floats) -> Floats:
        """(n, candidates) mean losses at each client, every row under the model not trained on its fold;
        models (candidates, folds or more, d)."""
        owner = np.repeat(np.arange(self.problem.n), self.problem.federation.sizes)
        losses = _fold_losses(
            self.problem.loss, jnp.asarray(models), self.problem.federation.samples, jnp.asarray(self.of_row)
        )
        return _means_of(np.asarray(losses), owner, self.problem.n)

    def judged(self, x: Floats) -> dict[str, float]:
        """Test losses of one model, in the target's own unit: mean over rows, worst client, worst decile of
        the clients, mean and worst over random mixtures, and worst deciles where every client's features are
        off by a common vector of random direction and given length. For classes also shares of mistakes."""
        loss, test = self.problem.loss, jnp.asarray(self.test)
        rows = self.unit * losses_of(loss, x, self.test)
        clients = _means_of(rows[None], self.test_client, self.problem.n)[:, 0]
        rng = np.random.default_rng(0)
        mixtures = rng.dirichlet(np.ones(self.problem.n), MIXTURES) @ clients
        found = {
            "mean": float(rows.mean()),
            "worst_client": float(clients.max()),
            "worst_decile": float(worst_decile(clients)),
            "mixtures": float(mixtures.mean()),
            "worst_mixture": float(mixtures.max()),
        }
        directions = rng.standard_normal((_DIRECTIONS, self.problem.n, self.test.shape[1] - 1))
        directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
        for length in SHIFTS:
            moved = _shifted_losses(
                loss,
                jnp.asarray(x),
                test,
                jnp.asarray(length * directions),
                jnp.asarray(self.test_client),
            )
            shifted = self.unit * _means_of(np.asarray(moved), self.test_client, self.problem.n)
            found[f"shift_{length:g}"] = float(np.mean(worst_decile(shifted)))
        if loss.labels is not None:
            wrong = np.asarray(loss.mistakes(jnp.asarray(x), test), float)
            by_client = _means_of(wrong[None], self.test_client, self.problem.n)[:, 0]
            found |= {
                "mistakes": float(wrong.mean()),
                "worst_decile_mistakes": float(worst_decile(by_client)),
            }
        return found


def _with_rows(federation: Federation, order: NDArray[np.int64]) -> Federation:
    units = None if federation.units is None else federation.units[order]
    return replace(federation, samples=jnp.asarray(np.asarray(federation.samples)[order]), units=units)


def _means_of(losses: Floats, owner: NDArray[np.int64], n: int) -> Floats:
    """(n, k) means by client of losses (k, rows)."""
    counts = np.bincount(owner, minlength=n)
    return np.stack([np.bincount(owner, one, n) / counts for one in losses], axis=1)


@partial(jax.jit, static_argnames="loss")
def _fold_losses(loss: Loss, models: Array, rows: Array, of_row: Array) -> Array:
    """(candidates, rows): each row under the model of its own fold."""

    def of_candidate(own: Array) -> Array:
        every = jax.vmap(lambda x: loss.values(x, rows))(own)
        return jnp.take_along_axis(every, of_row[None], axis=0)[0]

    return jax.lax.map(of_candidate, models)


@partial(jax.jit, static_argnames="loss")
def _shifted_losses(loss: Loss, x: Array, rows: Array, shifts: Array, owner: Array) -> Array:
    """(directions, rows)"""
    return jax.lax.map(lambda v: loss.values(x, rows.at[:, :-1].add(v[owner])), shifts)
