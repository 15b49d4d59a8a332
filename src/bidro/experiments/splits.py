"""A grouped table as numbers, and one split of it: training rows in folds, test rows, and how models do.

The test is a share of every client's rows, or whole clients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from bidro.algorithms.contract import HeldRows
from bidro.algorithms.own_correction import Broadcast, Losses, OwnCorrections, own_models
from bidro.arrays import Floats
from bidro.federation import Federation
from bidro.guarantees.calibration import FOLDS
from bidro.guarantees.own import SHRINKAGES, Own, own_choice
from bidro.guarantees.price import worst_decile
from bidro.losses import Logistic, Loss, Softmax, Squared, losses_of
from bidro.problem import Problem
from bidro.splits import arranged, choose_holdout
from bidro.standard import Moments, Standard
from bidro.training import Choices, transport_of, unrestricted

TEST_SHARE = 0.3
MIXTURES = 200
# Where whole clients are left out of training, one of so many groups is at a time.
GROUPS = 5
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


def groups_of_clients(clients: NDArray[np.str_], seed: int) -> NDArray[np.int64]:
    """(N,) in which group, from 0, the client of every row is: random groups of like numbers of clients."""
    names, codes = np.unique(clients, return_inverse=True)
    groups = np.random.default_rng(seed).permutation(len(names)) % min(GROUPS, len(names))
    return np.asarray(groups[codes])


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
    test_client: NDArray[np.int64]  # (M,) which of the clients with test rows, by name
    unit: float  # of losses, in the target's own unit

    @classmethod
    def of(cls, table: Grouped, seed: int) -> Split:
        """The split that `seed` stands for: the same share of every client is for the test. Rows of one unit
        are all for training, and in one fold, or all for the test."""
        shares = choose_holdout(table.clients, table.features, table.target, TEST_SHARE, seed, table.units)
        return cls.with_test(table, shares, seed)

    @classmethod
    def with_test(cls, table: Grouped, holdout: NDArray[np.bool_], seed: int) -> Split:
        """The rows of `holdout` (N,) are the test, which may be all of some clients'; `seed` deals folds."""
        codes = np.unique(table.clients, return_inverse=True)[1]
        order = arranged(codes, table.features, table.target, table.units).order
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
        codes = np.unique(table.clients[holdout], return_inverse=True)[1]
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

    def own_around(self, models: Floats) -> Own:
        """Which clients would take a model of their own around a method's models (folds or more, d) of the
        folds, and how strongly held: chosen as `bidro fit` chooses it."""
        federation = self.problem.federation
        samples, sizes = np.asarray(federation.samples), np.asarray(federation.sizes)
        rows = HeldRows(self.problem.loss, samples, sizes, self.of_row, self.folds)
        told = OwnCorrections(SHRINKAGES["auto"]).replies_on_host(Broadcast(models[: self.folds]), rows)
        return own_choice(Losses(*(np.asarray(part) for part in told)), "auto", self.problem)

    def models_used(self, x: Floats, own: Own) -> Floats:
        """(n, d) what each client uses: its own model around x, trained on its training rows, or x."""
        federation = self.problem.federation
        samples = np.asarray(federation.samples)
        found = own_models(self.problem.loss, samples, federation.sizes, np.asarray(x), own.shrinkage)
        return np.where(own.adopts[:, None], found, x)

    def test_losses(self, x: Floats) -> Floats:
        """(M,) in the target's own unit."""
        return np.asarray(self.unit * losses_of(self.problem.loss, x, self.test))

    def judged(self, x: Floats) -> dict[str, float]:
        """Test losses of one model (d,), or of one a client (n, d), in the target's own unit: `measures`, and
        worst deciles where every client's features are off by a common vector of random direction and given
        length. For classes also shares of mistakes."""
        loss, test = self.problem.loss, jnp.asarray(self.test)
        models = jnp.asarray(x if x.ndim == 1 else x[self.test_client])
        rows = self.test_losses(x) if x.ndim == 1 else self.unit * np.asarray(_row_losses(loss, models, test))
        found, rng = measures(rows, self.test_client), np.random.default_rng(0)
        clients = self.test_client.max() + 1
        # The first random numbers are those of the mixtures.
        rng.dirichlet(np.ones(clients), MIXTURES)
        directions = rng.standard_normal((_DIRECTIONS, clients, self.test.shape[1] - 1))
        directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
        for length in SHIFTS:
            moved = _shifted_losses(
                loss, models, test, jnp.asarray(length * directions), jnp.asarray(self.test_client)
            )
            shifted = self.unit * _means_of(np.asarray(moved), self.test_client, clients)
            found[f"shift_{length:g}"] = float(np.mean(worst_decile(shifted)))
        if loss.labels is not None:
            wrong = np.asarray(_by_row(loss.mistakes, models, test), float)
            by_client = _means_of(wrong[None], self.test_client, clients)[:, 0]
            found |= {
                "mistakes": float(wrong.mean()),
                "worst_decile_mistakes": float(worst_decile(by_client)),
            }
        return found


def measures(losses: Floats, owner: NDArray[np.int64]) -> dict[str, float]:
    """Of the losses (M,) of test rows, each of the client `owner` (M,): the mean over rows, the worst client,
    the worst decile of the clients, and the mean and worst over random mixtures of these."""
    n = int(owner.max()) + 1
    clients = _means_of(losses[None], owner, n)[:, 0]
    mixtures = np.random.default_rng(0).dirichlet(np.ones(n), MIXTURES) @ clients
    return {
        "mean": float(losses.mean()),
        "worst_client": float(clients.max()),
        "worst_decile": float(worst_decile(clients)),
        "mixtures": float(mixtures.mean()),
        "worst_mixture": float(mixtures.max()),
    }


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
    return jax.lax.map(lambda v: _by_row(loss.values, x, rows.at[:, :-1].add(v[owner])), shifts)


@partial(jax.jit, static_argnames="loss")
def _row_losses(loss: Loss, models: Array, rows: Array) -> Array:
    """(rows,) each under its own model (rows, d)."""
    return _by_row(loss.values, models, rows)


def _by_row(values: Callable[[Array, Array], Array], models: Array, rows: Array) -> Array:
    """(rows,) under one model (d,), or each under its own (rows, d)."""
    if models.ndim == 1:
        return values(models, rows)
    return jax.vmap(lambda x, row: values(x, row[None])[0])(models, rows)
