"""A grouped table as numbers, and one split of it: training rows in folds, test rows, and how models do.

The test is a share of every client's rows, or whole clients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bidro.core.arrays import Floats
from bidro.core.splits import arranged, choose_holdout
from bidro.data.federation import Federation
from bidro.data.standardise import ColumnMoments, Standard
from bidro.federated.algorithm import HostData
from bidro.fit.settings import FitSettings
from bidro.fit.training import transport_of, unrestricted
from bidro.losses import Logistic, Loss, Softmax, Squared, losses_of, mistakes_of
from bidro.problem.problem import Problem
from bidro.selection.calibrate import FOLDS
from bidro.selection.personal import (
    Broadcast,
    Losses,
    PersonalCorrections,
    losses_of_squares,
    personal_models,
    training_moments,
)
from bidro.selection.personalise import (
    PersonalChoice,
    PersonalWord,
    freedoms,
    personal_choice,
    with_slopes,
)
from bidro.selection.rule import worst_decile

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
    people: NDArray[np.uint64] | None = None  # (N,) whose rows stay together, where these are named

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
        """The split that `seed` stands for: the same share of every client is for the test. Rows of one
        person are all for training, and in one fold, or all for the test."""
        shares = choose_holdout(table.clients, table.features, table.target, TEST_SHARE, seed, table.people)
        return cls.with_test(table, shares, seed)

    @classmethod
    def with_test(cls, table: Grouped, holdout: NDArray[np.bool_], seed: int) -> Split:
        """The rows of `holdout` (N,) are the test, which may be all of some clients'; `seed` deals folds."""
        codes = np.unique(table.clients, return_inverse=True)[1]
        order = arranged(codes, table.features, table.target, table.people).order
        order = order[~holdout[order]]
        people = None if table.people is None else table.people[order]
        features, target, clients = table.features[order], table.target[order], table.clients[order]
        known = Standard.of(ColumnMoments.of(features, target), table.classes > 0)
        # Targets too are in standard deviations, so that one grid of steps and radii suits all tables.
        unit = replace(known, target_spread=1.0)
        scaled = target / known.target_spread, table.target[holdout] / known.target_spread
        unit = replace(unit, middle=known.middle / known.target_spread)
        names, sizes = np.unique(clients, return_counts=True)
        rows, columns = unit.rows(features, scaled[0]), [*table.columns, "target"]
        federation = Federation.from_samples(
            rows, sizes.tolist(), "unbounded", names.tolist(), columns, people
        )
        loss = table.loss
        transport = transport_of(loss, federation.m, FitSettings(), 1.0)
        folds = max(2, min(FOLDS, *federation.draw_counts))
        fold_ids = federation.folds(folds, seed)
        owner = np.repeat(np.arange(federation.n), federation.sizes)
        order = np.lexsort((fold_ids, owner))
        by_fold = np.argsort(fold_ids, kind="stable")
        problem = unrestricted(_with_rows(federation, order), loss, transport, 1.0)
        one = _with_rows(federation.pooled(), by_fold)
        test = unit.rows(table.features[holdout], scaled[1])
        codes = np.unique(table.clients[holdout], return_inverse=True)[1]
        return cls(
            problem,
            fold_ids[order],
            unrestricted(one, loss, transport, 1.0),
            fold_ids[by_fold],
            folds,
            test,
            codes,
            known.target_spread**2,
        )

    def held_out_losses(self, models: Floats) -> Floats:
        """(n, candidates) mean losses at each client, every row under the model not trained on its fold;
        models (candidates, folds or more, d)."""
        federation, loss = self.problem.federation, self.problem.loss
        rows, losses = federation.host_rows, np.empty((len(models), len(self.of_row)))
        for fold in range(self.folds):
            of_fold = self.of_row == fold
            losses[:, of_fold] = [losses_of(loss, own[fold], rows[of_fold]) for own in models]
        return _means_of(losses, np.repeat(np.arange(federation.n), federation.sizes), federation.n)

    def personal_around(self, models: Floats) -> PersonalChoice:
        """Which clients would take a personal model around a method's models (folds + 1, d) of the folds
        and of all rows, and how strongly held: chosen as `bidro fit` chooses it."""
        federation = self.problem.federation
        samples, sizes = np.asarray(federation.samples), np.asarray(federation.sizes)
        rows = HostData(self.problem.loss, samples, sizes, self.of_row, self.folds)
        loss, own = self.problem.loss, self.of_row if isinstance(self.problem.loss, Squared) else None

        def choice(word: PersonalWord) -> PersonalChoice:
            free = freedoms(
                self.problem,
                models,
                word,
                lambda query, message: query.client_batch_numpy(message, rows),
                fold_ids=own,
            )
            if free.common is not None:
                assert isinstance(loss, Squared)
                trained = training_moments(loss, samples, sizes, self.of_row, self.folds)
                reply = losses_of_squares(loss, trained, models[:-1], free.common[:-1], free.freedom[:-1])
            else:
                message = Broadcast(models[:-1], free.freedom[:-1])
                reply = PersonalCorrections().client_batch_numpy(message, rows)
            return personal_choice(Losses(*(np.asarray(part) for part in reply)), free, self.problem)

        return with_slopes(self.problem, choice)

    def models_used(self, x: Floats, personal: PersonalChoice) -> Floats:
        """(n, d) what each client uses: its personal model around x, trained on its training rows, or x."""
        federation = self.problem.federation
        samples = np.asarray(federation.samples)
        return personal_models(
            self.problem.loss,
            samples,
            federation.sizes,
            np.asarray(x),
            personal.freedom,
            personal.share,
            personal.common,
        )

    def test_losses(self, x: Floats, shifts: Floats | None = None) -> Floats:
        """(M,) of the test rows under one model (d,), or each under its client's of (n, d), in the target's
        own unit; with the features of every client's rows moved by `shifts` (n, k)."""
        test = self.test
        if shifts is not None:
            test = np.column_stack([test[:, :-1] + shifts[self.test_client], test[:, -1]])
        return self.unit * self._by_row(losses_of, x, test)

    def _by_row(self, cost: Callable[[Loss, Floats, Floats], Floats], x: Floats, test: Floats) -> Floats:
        loss = self.problem.loss
        if x.ndim == 1:
            return cost(loss, x, test)
        found = np.empty(len(test))
        for client, own in enumerate(x):
            rows = self.test_client == client
            found[rows] = cost(loss, own, test[rows])
        return found

    def evaluate(self, x: Floats) -> dict[str, float]:
        """Test losses of one model (d,), or of one a client (n, d), in the target's own unit: `measures`, and
        worst deciles where every client's features are off by a common vector of random direction and given
        length. For classes also shares of mistakes."""
        found, rng = measures(self.test_losses(x), self.test_client), np.random.default_rng(0)
        clients = self.test_client.max() + 1
        # The first random numbers are those of the mixtures.
        rng.dirichlet(np.ones(clients), MIXTURES)
        directions = rng.standard_normal((_DIRECTIONS, clients, self.test.shape[1] - 1))
        directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
        for length in SHIFTS:
            moved = np.stack([self.test_losses(x, length * one) for one in directions])
            shifted = _means_of(moved, self.test_client, clients)
            found[f"shift_{length:g}"] = float(np.mean(worst_decile(shifted)))
        if self.problem.loss.labels is not None:
            wrong = self._by_row(mistakes_of, x, self.test)
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
    people = None if federation.people is None else federation.people[order]
    return replace(federation, samples=federation.samples[order], people=people)


def _means_of(losses: Floats, owner: NDArray[np.int64], n: int) -> Floats:
    """(n, k) means by client of losses (k, rows)."""
    counts = np.bincount(owner, minlength=n)
    return np.stack([np.bincount(owner, one, n) / counts for one in losses], axis=1)
