"""A fit over clients with privacy budgets: three queries, each answered with noise.

Second moments once; least squares from them, or the minimax problem where weights are not fixed; a few
rounds of gradients; and the losses of held-out rows, from which the certificate is. No other query of a fit
(means, folds, distances, worst cases) is sent. All that is computed here comes of noisy sums.

Where noise is shared, second moments and gradients are those of all clients together: a whole network answers
as one client would, with the noise of all shares. Then clients' numbers of rows are asked for by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from bidro.ambiguity import WassersteinBall
from bidro.certify.certificate import Certificate, OnAverage, Privacy, Shared
from bidro.certify.held_out import client_level, noisy_client_bound
from bidro.certify.mean_bounds import noisy_bound, noisy_mean
from bidro.certify.row_promise import SHARE, RowPromise, noisy_row_bound, of_bounds
from bidro.certify.statements import CertifiedModel, statements_of, with_statements, without_holdout
from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.core.pytrees import Frozen
from bidro.core.sets import Box, Simplex, capped_sizes
from bidro.data.federation import Federation
from bidro.data.splines import DRAWN, Basis, public_knots
from bidro.data.standardise import Standard
from bidro.fit.baselines import Baselines
from bidro.fit.fitted import ClientLoss, Fitted, Options, Progress
from bidro.fit.network import Network
from bidro.fit.private_side import FACTOR
from bidro.fit.questions import GradientsQuery, NoisyGradients, NoisyHoldoutQuery, NoisyLosses, NoisyMoments
from bidro.fit.training import Trained, transport_of, unrestricted
from bidro.losses import Squared
from bidro.privacy.masking import MIN_SITES, sum_of_masked
from bidro.privacy.mechanisms import Noisy, Scale, symmetric
from bidro.privacy.noisy_model import Direction, NoisySteps, NoisySums, Pooled, around_means
from bidro.privacy.terms import Budget, Plan
from bidro.risk.moments import MomentsOracle
from bidro.selection.rule import MixtureSpec
from bidro.selection.segments import SegmentChoice, Wanted
from bidro.solvers.minimax_newton import minimax_newton

# The minimax problem on noisy moments is solved to this gap.
_GAP = 1e-6
_NO_INTERVAL = (
    "it needs distances between clients' rows and risks over balls around them, which are not released under "
    "a privacy budget."
)
_ONE_LEVEL = "under a privacy budget losses are released clipped at one level: see the clipped bound."


def private_plan(
    options: Options,
    features: Sequence[str],
    people: bool,
    held_out: bool = True,
    sites: int | None = None,
) -> Plan:
    """What is released by these options of features of these names, with losses of rows where some are
    `held_out`, by so many clients, where that is known. Raises BidroError for what cannot be had under a
    budget."""
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
        "the radius must be 0: cross-validated, bootstrapped and other radii": not choices.no_radius,
        "the criterion is risk: regret": choices.criterion != "risk",
        "a client makes its personal model itself, by `bidro adapt`: one from the fit": choices.personal
        not in (None, "auto"),
        "what features do adds up: pairs of them": choices.pairs not in (None, "auto", 0),
        "features may have any sign: rising and falling ones": bool(choices.increasing or choices.decreasing),
        "Algorithm 1, with replies from one row,": options.algorithm is not None,
    }
    for what, query in refused.items():
        if query:
            raise BidroError(f"Under a privacy budget {what} cannot be had; leave it out.")
    if loss.word == "logistic" and not _mixture_spec(choices.weights).fixed:
        raise BidroError("Under a privacy budget weights of logistic loss are fixed: weights = 'fixed'.")
    shared = options.privacy.shared is not None
    if shared and not _mixture_spec(choices.weights).fixed:
        raise BidroError(
            "Where noise is shared only sums over all clients are seen, and robust weights need their own: "
            "weights = 'fixed', or leave [privacy.shared] out."
        )
    count, basis = MIN_SITES if sites is None else sites, _basis(choices.curves, features)
    return Plan.of(
        options.privacy,
        loss.word,  # type: ignore[arg-type]
        len(features),
        people,
        held_out,
        count,
        basis,
    )


def _basis(curves: Any, names: Sequence[str]) -> Basis | None:
    """Of curves whose knots depend on no row: at the quantiles of a normal column of the agreed centre and
    spread, of as many segments as each is given. Raises BidroError for curves that rows would choose."""
    if curves in (None, "auto"):
        return None
    wanted = Wanted.of(curves, (), (), names).of_lines  # what rows would choose is a line
    if not isinstance(curves, Mapping) or any(wanted.by):
        raise BidroError(
            "Under a privacy budget curves are of named features, each with a number of segments, such as "
            "curves = { age = 4 }."
        )
    none = np.full(len(wanted.most), np.inf)
    found = public_knots(wanted.most, -none, none)
    return None if found.straight else found


def _mixture_spec(weights: Any) -> MixtureSpec:
    """Weights that would be cross-validated are fixed."""
    if isinstance(weights, str):
        return MixtureSpec(math.inf if weights == "simplex" else 1.0)
    return MixtureSpec(float(weights))


def private_fit(network: Network, options: Options, progress: Progress) -> Fitted:
    """Raises BidroError for options that cannot be had under a budget, before any query is sent."""
    plan = private_plan(
        options, network.columns[:-1], network.has_people, network.hold_out > 0, len(network.names)
    )
    assert options.units is not None
    if plan.shared is not None and network.max_share < 1:
        raise BidroError(
            "Where noise is shared every row counts the same, and no client counts for less than its rows: "
            "agree on a largest weight of 1, or leave [privacy.shared] out."
        )
    return _PrivateFit(network, options, progress, plan, options.units).run()


class _HeldOutSums(NamedTuple):
    """What n clients report of held-out rows: sums of polynomials of their losses in parts of a level."""

    sums: tuple[Noisy, ...]
    mistakes: tuple[Noisy, ...]  # () for a number
    expected: Floats  # (n,) about how many rows, known from elsewhere

    @classmethod
    def of(
        cls, plan: Plan, reply: NoisyLosses, budgets: Sequence[Budget | None], expected: Floats
    ) -> _HeldOutSums:
        values, wrong = np.asarray(reply.values), np.asarray(reply.mistakes)
        sums = tuple(Noisy(v, plan.losses_scale(b)) for v, b in zip(values, budgets, strict=True))
        mistakes: tuple[Noisy, ...] = ()
        if plan.classes:
            mistakes = tuple(Noisy(v, plan.mistakes_scale(b)) for v, b in zip(wrong, budgets, strict=True))
        return cls(sums, mistakes, expected)

    @property
    def rows(self) -> Floats:
        """(n,) held-out rows, or people, with noise."""
        return np.array([one.sums.sum() for one in self.sums])

    def on_average(self, confidence: float, largest: float) -> OnAverage:
        """Of the sums of all clients, whose noise adds up. A gambler who bets on draws of different means has
        no more in expectation than on as many of their mean: 1 + lambda (mu - mu_i) is linear in mu_i, and a
        geometric mean is no more than the arithmetic one."""
        draws = float(self.expected.sum())
        bounds = [
            noisy_client_bound(added_up(sums), 1 - confidence, draws, most).bound
            for sums, most in ((self.sums, largest), (self.mistakes, 1.0))
            if sums
        ]
        return OnAverage(confidence, bounds[0], largest, bounds[1] if self.mistakes else None)

    def losses(self, names: Sequence[str], largest: float) -> dict[str, ClientLoss]:
        """Mean losses by client, and how far off they may be, noise included."""
        found = {}
        for name, one, rows in zip(names, self.sums, self.rows, strict=True):
            mean, count = noisy_mean(one), max(1, round(float(rows)))
            places = np.arange(len(one.values)) / (len(one.values) - 1)
            of_noise = float(np.sum((one.scale.sigma * (places - mean)) ** 2)) / count**2
            # No spread of values between 0 and 1 is larger.
            error = float(np.sqrt(mean * (1 - mean) / count + of_noise)) * largest
            found[name] = ClientLoss(mean * largest, error, count, mean * largest)
        return found

    def stated(
        self, bare: Certificate, of: CertifiedModel, confidence: float, shift: float | None, people: bool
    ) -> Certificate:
        """The certificate with what the held-out rows say at this confidence."""
        beta = client_level(confidence, len(bare.names), of.mixtures)
        each = [("clipped", self.sums, of.seen), ("mistakes", self.mistakes, 1.0)]
        bounds = {
            name: {
                part: noisy_client_bound(sums[i], beta, float(self.expected[i]), largest)
                for part, sums, largest in each
                if sums
            }
            for i, name in enumerate(bare.names)
        }
        found = statements_of(bounds, of.limits, confidence, of.mixtures, "private", people)
        of_rows = self._of_rows(bare, of, confidence, people)
        stated = with_statements(bare, of, found, confidence, shift, of_rows)
        assert stated.privacy is not None
        average = self.on_average(confidence, of.seen)
        stated = replace(stated, privacy=replace(stated.privacy, on_average=average))
        return replace(stated, absent=Frozen({**stated.absent, "held_out": _ONE_LEVEL}))

    def _of_rows(
        self, bare: Certificate, of: CertifiedModel, confidence: float, people: bool
    ) -> RowPromise | None:
        """What is promised of rows, by sums that are known already; None where that is nothing."""
        beta, told = 1 - confidence, self.mistakes or self.sums
        # Of a person a sum has the mean of squared errors, of which no power is the mean of theirs. Of rows
        # bounds are narrowest by about the third: 1.5 to 2 times the quantile, and 2.4 by the first.
        power = 1 if people else min(3, len(self.sums[0].values) - 1)
        share, bounds = None if self.mistakes else SHARE, {}
        for name, sums, rows in zip(bare.names, told, self.expected.tolist(), strict=True):
            if share is None:
                # One that has not come half way down to what was seen says more of the noise than of rows.
                most = noisy_bound(sums, beta, rows)
                bounds[name] = most if most <= (1 + noisy_mean(sums)) / 2 else math.inf
            else:
                bounds[name] = noisy_row_bound(sums, beta, rows, of.seen, power)
        counts = {n: max(1, round(float(own))) for n, own in zip(bare.names, self.rows, strict=True)}
        found = of_bounds(bounds, counts, counts, confidence, share, people, noise=True)
        return None if found.bound is None else found


def added_up(sums: Sequence[Noisy]) -> Noisy:
    """Noisy sums of the same units, with the noise of all."""
    each = zip(*(one.scale.variance for one in sums), strict=True)
    variance = tuple(sum(own, Fraction(0)) for own in each)
    return Noisy(np.sum([one.values for one in sums], axis=0), sums[0].scale._replace(variance=variance))


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
        budgets, exact = reported_budgets(moments.budget), np.asarray(moments.exact)
        sums = noisy_sums(plan, moments, budgets)
        counted = self._counted(sums)
        told = sums.counts
        if plan.shared is not None:
            counts = clients.counts()
            exact = np.maximum(exact, counts.exact)
            told = np.asarray(counts.values, float)[:, 0]
            rows = np.maximum(told, 0.0) if np.any(told > 0) else np.ones(len(told))
            counted = counted._replace(alpha=rows / rows.sum())
        one = [scale.sigma[0] for scale in _gradient_scales(plan, 1.0, 1.0, budgets)]
        noise = float(np.linalg.norm(counted.by * np.array(one)))
        steps = NoisySteps.begin(plan.loss, counted.pooled, plan.clip, noise, plan.rounds, largest)
        self.progress.begin("choosing")
        for t in range(1, plan.rounds + 1):
            if self.progress.stepping is not None:
                self.progress.stepping(t)
            query = GradientsQuery(steps.x, steps.directions, np.array(steps.clip), np.array(steps.level))
            gradients = clients.gradients(t, query)
            exact = np.maximum(exact, gradients.exact)
            steps = steps.step(_direction(plan, query, gradients, budgets, counted.by), largest)
        held_out = None
        if self.network.hold_out > 0:
            self.progress.begin("certifying")
            holdout_query = NoisyHoldoutQuery(steps.x, np.array(steps.level))
            replies, share = clients.losses(holdout_query), self.network.hold_out
            exact = np.maximum(exact, replies.exact)
            expected = np.maximum(told, 1.0) * share / (1 - share)
            held_out = _HeldOutSums.of(plan, replies, budgets, expected)
        left = tuple(name for name, one in zip(self.network.names, exact, strict=True) if one)
        return self._fitted(budgets, left, told, counted, steps, held_out)

    def _counted(self, sums: NoisySums) -> _Counted:
        """Weights, and the moments of all rows as they count."""
        n, most = len(sums.counts), self.network.max_share
        trusted, mixture_spec = sums.trusted, _mixture_spec(self.options.choices.weights)
        if mixture_spec.fixed or n == 1:
            by = np.ones(n)
            alpha = np.maximum(sums.counts, 0.0) if np.any(sums.counts > 0) else np.ones(n)
            if most < 1:
                alpha = np.asarray(capped_sizes(trusted, most)) / trusted.sum()
                by = alpha / trusted
            return _Counted.of(alpha / alpha.sum(), by, sums.pooled(by))
        sizes = np.asarray(capped_sizes(trusted, most))
        means, mixtures = sums.shrunk(), mixture_spec.mixtures(sizes, most)

        def pooled(alpha: Floats) -> Pooled:
            noise = float(np.linalg.norm(alpha / trusted * sums.noise))
            return Pooled(np.einsum("n,nij->ij", alpha, means), noise)

        alpha = np.asarray(mixtures.project(sizes / sizes.sum()))
        begun = pooled(alpha)
        risks = MomentsOracle.given(Squared(intercept=True), around_means(means, begun.ridge), np.zeros(n))
        models = Box.cube(self.options.largest_coefficient, self.plan.columns - 1)
        start = np.asarray(models.project(begun.least_squares()))
        (found,) = minimax_newton(risks, models, [mixtures], start[None], alpha[None], _GAP)
        return _Counted.of(found.alpha, found.alpha / trusted, pooled(found.alpha))

    def _fitted(
        self,
        budgets: Sequence[Budget | None],
        exact: tuple[str, ...],
        told: Floats,  # (n,) numbers of training rows, with noise
        counted: _Counted,
        steps: NoisySteps,
        held_out: _HeldOutSums | None,
    ) -> Fitted:
        network, standard, choices = self.network, self.standard, self.options.choices
        names, spread, share = network.names, standard.target_spread, network.hold_out
        rows = told if held_out is None else held_out.rows * (1 - share) / share
        sizes = {name: max(1, round(float(count))) for name, count in zip(names, rows, strict=True)}
        people = list(sizes.values()) if network.has_people else None
        federation = Federation.elsewhere(sizes, network.columns, people=people, max_share=network.max_share)
        loss, basis = self.options.loss.in_units(spread), self.plan.basis
        seen = None
        if basis is not None:
            loss = replace(loss, basis=basis)  # type: ignore[type-var]
            seen = standard.mean - DRAWN * standard.spread, standard.mean + DRAWN * standard.spread
        transport = transport_of(loss, federation.m, choices, spread)
        whole = unrestricted(federation, loss, transport, spread, self.options.largest_coefficient)
        problem = replace(whole, ambiguity=WassersteinBall(np.zeros(len(names))))
        mixture_spec = _mixture_spec(choices.weights)
        trained = Trained(
            replace(problem, mixtures=mixture_spec.mixtures_of(federation)),
            steps.x * spread,
            counted.alpha,
            1 + self.plan.rounds,
            "noisy second moments and gradients",
            None,
            "No radius was chosen from rows that are released with noise.",
            mixture_spec,
            None,
            segments=None if basis is None else SegmentChoice((basis,), np.zeros(0), np.zeros(0), 0),
        )
        stated = replace(problem, mixtures=Simplex(len(names)))
        # A model is in spreads of the target, and so are losses.
        unit = spread**2 if self.plan.loss == "squared" else 1.0
        of = replace(CertifiedModel.of(stated, trained.x, steps.level * unit), largest=None)
        reported = {name: _numbers(budget) for name, budget in zip(names, budgets, strict=True)}
        privacy = Privacy(
            reported,
            steps.expected_excess,
            network.keeps_account,
            network.has_people,
            exact,
            self.options.units_drafted,
            _shared(self.plan),
        )
        # Without held-out rows nothing is known of the loss but about what it is in training.
        bare = without_holdout(stated, trained.x, 0.5, means=np.full(stated.n, steps.mean_loss * unit))
        absent = Frozen({**bare.absent, "interval": _NO_INTERVAL})
        bare = replace(bare, weights=tuple(trained.alpha.tolist()), privacy=privacy, absent=absent)
        certificates = {
            level: replace(bare, confidence=level)
            if held_out is None
            else held_out.stated(bare, of, level, choices.shift, network.has_people)
            for level in self.options.confidences
        }
        losses = {name: ClientLoss(bare.empirical[0], None, sizes[name], bare.empirical[0]) for name in names}
        if held_out is not None:
            losses = held_out.losses(names, of.seen)
        return Fitted(
            None,
            standard,
            trained,
            stated,
            of,
            None,
            certificates,
            losses,
            0 if held_out is None else sum(one.rows for one in losses.values()),
            {},
            {},
            None,
            None,
            Baselines(None, {}),
            seen,
        )


def _numbers(budget: Budget | None) -> tuple[float, float, int] | None:
    return None if budget is None else (float(budget.epsilon), float(budget.delta), budget.rows_per_person)


def _shared(plan: Plan) -> Shared | None:
    if plan.shared is None:
        return None
    return Shared(plan.shares, plan.sites, plan.shared.epsilon, plan.alone.epsilon, plan.shared.delta)


def reported_budgets(numbers: Any) -> tuple[Budget | None, ...]:
    """The budgets of n clients, from the numbers that they report (n, 3)."""
    return tuple(Budget.reported(tuple(one)) for one in np.asarray(numbers, float).tolist())


def _together(plan: Plan, values: Any, scales: Sequence[Scale]) -> list[Noisy]:
    """What clients release (n, numbers), and where noise is shared its sum alone."""
    told = np.asarray(values)
    if plan.shared is not None:
        told = sum_of_masked(told)[None]
    return [Noisy(one, scale) for one, scale in zip(told, scales, strict=True)]


def noisy_sums(plan: Plan, reply: NoisyMoments, budgets: Sequence[Budget | None]) -> NoisySums:
    if plan.shared is not None:
        scales = [plan.moments_scale(plan.shared.budget).over_sites]
    else:
        scales = [plan.moments_scale(budget) for budget in budgets]
    values = [symmetric(one.sums, plan.columns) for one in _together(plan, reply.values, scales)]
    return NoisySums(np.stack(values), np.array([scale.sigma[0] for scale in scales]))


def _gradient_scales(plan: Plan, clip: float, level: float, budgets: Sequence[Budget | None]) -> list[Scale]:
    if plan.shared is not None:
        return [plan.gradients_scale(plan.shared.budget, clip, level).over_sites]
    return [plan.gradients_scale(budget, clip, level) for budget in budgets]


def _direction(
    plan: Plan, query: GradientsQuery, reply: NoisyGradients, budgets: Sequence[Budget | None], by: Floats
) -> Direction:
    """From the clients' sums, as their rows count (n,)."""
    clip, level = float(query.clip), float(query.level)
    scales = _gradient_scales(plan, clip, level, budgets)
    sums = by @ np.stack([one.sums for one in _together(plan, reply.values, scales)])
    error = np.linalg.norm(by[:, None] * np.stack([scale.sigma for scale in scales]), axis=0)
    unclipped, of_unclipped = (float(v[-2]) / (FACTOR * clip) for v in (sums, error))
    of_gradient, of_loss = float(error[0]), float(error[-1])
    return Direction(sums[:-2], unclipped, of_unclipped, float(sums[-1]), of_loss, of_gradient**2)
