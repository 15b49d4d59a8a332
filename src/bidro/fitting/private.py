"""A fit over clients with privacy budgets: three questions, each answered with noise, and what follows.

Second moments once; least squares from them, or the minimax problem where weights are not fixed; a few
rounds of gradients; and the losses of rows kept out, from which the certificate is. Whatever else a fit may
ask (means, folds, distances, worst cases) is not asked. All that is computed here comes of noisy sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from bidro.algorithms.cross_validation import Candidate
from bidro.algorithms.moment_newton import minimax_from_moments
from bidro.algorithms.noisy_moments import NoisySums, Pooled, around_means
from bidro.algorithms.noisy_steps import Direction, NoisySteps
from bidro.algorithms.one_shot import squared_risks
from bidro.arrays import Floats
from bidro.client import WassersteinBall
from bidro.errors import BidroError
from bidro.federation import Federation
from bidro.fitting.beside import Beside
from bidro.fitting.fitted import ClientLoss, Fitted, Options, Progress
from bidro.fitting.network import Network
from bidro.fitting.private_side import FACTOR
from bidro.fitting.private_statements import Judged, with_judged, without_rows
from bidro.fitting.questions import AtModel, Judge, NoisyGradients, NoisyMoments
from bidro.guarantees.privacy_promise import Privacy
from bidro.guarantees.statements import Assessed
from bidro.losses import Squared
from bidro.privacy.mechanisms import Noisy, symmetric
from bidro.privacy.terms import Budget, Plan
from bidro.sets import Box, Simplex, capped_sizes
from bidro.standard import Standard
from bidro.training import Trained, Weighing, transport_of, unrestricted

# The minimax problem on noisy moments is solved to this gap.
_GAP = 1e-6


def private_plan(options: Options, features: int, units: bool, kept_out: bool = True) -> Plan:
    """What is released by these options, with losses of rows where some are `kept_out`. Raises BidroError for
    what cannot be had under a budget."""
    assert options.privacy is not None
    choices, loss = options.choices, options.loss
    if options.units is None:
        raise BidroError(
            "A private fit needs units that are public: agree on a schema (`bidro schema`) and give it, as "
            "means and deviations of the rows themselves would tell of them."
        )
    if loss.word not in ("squared", "logistic") or (loss.classes or 2) > 2:
        raise BidroError(
            "Under a privacy budget the loss is squared, or logistic for two classes; choose one of them."
        )
    refused = {
        "the radius must be 0: cross-validated, bootstrapped and other radii": not _is_zero(choices.radius),
        "the criterion is risk: regret": choices.criterion != "risk",
        "every client uses the shared model: its own correction": choices.own not in (None, "auto"),
        "features are straight lines: curves": choices.curves not in (None, "auto"),
        "features may have any sign: rising and falling ones": bool(choices.increasing or choices.decreasing),
        "Algorithm 1, with replies from one row,": options.algorithm is not None,
    }
    for what, asked in refused.items():
        if asked:
            raise BidroError(f"Under a privacy budget {what} cannot be had; leave it out.")
    if loss.word == "logistic" and not _weighing(choices.weights).fixed:
        raise BidroError("Under a privacy budget weights of logistic loss are fixed: weights = 'fixed'.")
    return Plan.of(options.privacy, loss.word, features, units, kept_out)  # type: ignore[arg-type]


def _is_zero(radius: Any) -> bool:
    return isinstance(radius, int | float) and radius == 0


def _weighing(weights: Any) -> Weighing:
    """Weights that would be cross-validated are fixed."""
    if isinstance(weights, str):
        return Weighing(math.inf if weights == "simplex" else 1.0)
    return Weighing(float(weights))


def private_fit(network: Network, options: Options, progress: Progress) -> Fitted:
    """Raises BidroError for options that cannot be had under a budget, before anything is asked."""
    plan = private_plan(options, len(network.columns) - 1, network.has_units, network.hold_out > 0)
    assert options.units is not None
    return _PrivateFit(network, options, progress, plan, options.units).run()


class _Counted(NamedTuple):
    """How clients count: a row of client i for `by`[i], all its rows for about alpha[i]."""

    alpha: Floats  # (n,)
    by: Floats  # (n,)
    pooled: Pooled  # of one row

    @classmethod
    def of(cls, alpha: Floats, by: Floats, pooled: Pooled) -> _Counted:
        rows = pooled.rows
        return cls(alpha, by / rows, pooled.divided(rows))


@dataclass(frozen=True, eq=False)
class _PrivateFit:
    network: Network
    options: Options
    progress: Progress
    plan: Plan
    standard: Standard

    def run(self) -> Fitted:
        plan, largest = self.plan, self.options.largest_coefficient
        clients = self.network.privately(self.standard, plan)
        self.progress.begin("preparing")
        moments = clients.moments()
        budgets, exact = told_budgets(moments.budget), np.asarray(moments.exact)
        sums = noisy_sums(plan, moments, budgets)
        counted = self._counted(sums)
        one = [plan.gradients_scale(budget, 1.0, 1.0).sigma[0] for budget in budgets]
        noise = float(np.linalg.norm(counted.by * np.array(one)))
        steps = NoisySteps.begin(plan.loss, counted.pooled, plan.clip, noise, plan.rounds, largest)
        self.progress.begin("choosing")
        for t in range(1, plan.rounds + 1):
            if self.progress.stepping is not None:
                self.progress.stepping(t)
            asked = AtModel(steps.x, steps.directions, np.array(steps.clip), np.array(steps.level))
            gradients = clients.gradients(t, asked)
            exact = np.maximum(exact, gradients.exact)
            steps = steps.step(_direction(plan, asked, gradients, budgets, counted.by), largest)
        judged = None
        if self.network.hold_out > 0:
            self.progress.begin("certifying")
            judge = Judge(steps.x, np.array(steps.level))
            told, share = clients.losses(judge), self.network.hold_out
            exact = np.maximum(exact, told.exact)
            expected = np.maximum(sums.counts, 1.0) * share / (1 - share)
            judged = Judged.of(plan, told, budgets, expected)
        left = tuple(name for name, one in zip(self.network.names, exact, strict=True) if one)
        return self._fitted(budgets, left, sums, counted, steps, judged)

    def _counted(self, sums: NoisySums) -> _Counted:
        """Weights, and the moments of all rows as they count."""
        n, most = len(sums.counts), self.network.max_share
        trusted, weighing = sums.trusted, _weighing(self.options.choices.weights)
        if weighing.fixed or n == 1:
            by = np.ones(n)
            alpha = np.maximum(sums.counts, 0.0) if np.any(sums.counts > 0) else np.ones(n)
            if most < 1:
                alpha = np.asarray(capped_sizes(trusted, most)) / trusted.sum()
                by = alpha / trusted
            return _Counted.of(alpha / alpha.sum(), by, sums.pooled(by))
        sizes = np.asarray(capped_sizes(trusted, most))
        means, mixtures = sums.shrunk(), Candidate(0.0, *weighing).mixtures(sizes, most)

        def pooled(alpha: Floats) -> Pooled:
            noise = float(np.linalg.norm(alpha / trusted * sums.noise))
            return Pooled(np.einsum("n,nij->ij", alpha, means), noise)

        alpha = np.asarray(mixtures.project(sizes / sizes.sum()))
        begun = pooled(alpha)
        risks = squared_risks(around_means(means, begun.ridge), Squared(intercept=True), ())
        models = Box.cube(self.options.largest_coefficient, self.plan.columns - 1)
        start = np.asarray(models.project(begun.least_squares()))
        found = minimax_from_moments(risks, np.zeros(n), models, mixtures, start, alpha, _GAP)
        return _Counted.of(found.alpha, found.alpha / trusted, pooled(found.alpha))

    def _fitted(
        self,
        budgets: Sequence[Budget | None],
        exact: tuple[str, ...],
        sums: NoisySums,
        counted: _Counted,
        steps: NoisySteps,
        judged: Judged | None,
    ) -> Fitted:
        network, standard, choices = self.network, self.standard, self.options.choices
        names, spread, share = network.names, standard.target_spread, network.hold_out
        rows = sums.counts if judged is None else judged.rows * (1 - share) / share
        sizes = {name: max(1, round(float(count))) for name, count in zip(names, rows, strict=True)}
        federation = Federation.elsewhere(
            sizes, network.columns, has_units=network.has_units, max_share=network.max_share
        )
        loss = self.options.loss.in_units(spread)
        transport = transport_of(loss, federation.m, choices, spread)
        whole = unrestricted(federation, loss, transport, spread, self.options.largest_coefficient)
        problem = replace(whole, ambiguity=WassersteinBall(np.zeros(len(names))))
        weighing = _weighing(choices.weights)
        trained = Trained(
            replace(problem, mixtures=Candidate(0.0, *weighing).mixtures_of(federation)),
            steps.x * spread,
            counted.alpha,
            1 + self.plan.rounds,
            "noisy second moments and gradients",
            None,
            "No radius was chosen from rows that are told with noise.",
            weighing,
            None,
        )
        stated = replace(problem, mixtures=Simplex(len(names)))
        # A model is told in spreads of the target, and so are losses.
        unit = spread**2 if self.plan.loss == "squared" else 1.0
        of = replace(Assessed.of(stated, trained.x, steps.level * unit), largest=None)
        told = {name: _numbers(budget) for name, budget in zip(names, budgets, strict=True)}
        privacy = Privacy(
            told,
            steps.expected_excess,
            network.keeps_account,
            network.has_units,
            exact,
            self.options.units_drafted,
        )
        bare = without_rows(stated, trained, steps.mean_loss * unit, privacy)
        shift = self.options.shift
        certificates = {
            level: with_judged(bare, of, judged, level, shift, network.has_units)
            for level in self.options.confidences
        }
        losses = {name: ClientLoss(bare.empirical[0], None, sizes[name], bare.empirical[0]) for name in names}
        if judged is not None:
            losses = judged.losses(names, of.seen)
        return Fitted(
            None,
            standard,
            trained,
            stated,
            of,
            None,
            certificates,
            losses,
            0 if judged is None else sum(one.rows for one in losses.values()),
            {},
            {},
            None,
            None,
            Beside(None, {}),
        )


def _numbers(budget: Budget | None) -> tuple[float, float, int] | None:
    return None if budget is None else (float(budget.epsilon), float(budget.delta), budget.rows_per_person)


def told_budgets(numbers: Any) -> tuple[Budget | None, ...]:
    """The budgets of n clients, from what they tell (n, 3)."""
    return tuple(Budget.told(tuple(one)) for one in np.asarray(numbers, float).tolist())


def noisy_sums(plan: Plan, told: NoisyMoments, budgets: Sequence[Budget | None]) -> NoisySums:
    scales = [plan.moments_scale(budget) for budget in budgets]
    each = zip(np.asarray(told.values), scales, strict=True)
    values = [symmetric(Noisy(one, scale).sums, plan.columns) for one, scale in each]
    return NoisySums(np.stack(values), np.array([scale.sigma[0] for scale in scales]))


def _direction(
    plan: Plan, asked: AtModel, told: NoisyGradients, budgets: Sequence[Budget | None], by: Floats
) -> Direction:
    """From the clients' sums, as their rows count (n,)."""
    clip, level = float(asked.clip), float(asked.level)
    scales = [plan.gradients_scale(budget, clip, level) for budget in budgets]
    each = zip(np.asarray(told.values), scales, strict=True)
    sums = by @ np.stack([Noisy(one, scale).sums for one, scale in each])
    error = np.linalg.norm(by[:, None] * np.stack([scale.sigma for scale in scales]), axis=0)
    unclipped, of_unclipped = (float(v[-2]) / (FACTOR * clip) for v in (sums, error))
    of_gradient, of_loss = float(error[0]), float(error[-1])
    return Direction(sums[:-2], unclipped, of_unclipped, float(sums[-1]), of_loss, of_gradient**2)
