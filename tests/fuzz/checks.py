"""One case: solve it, and compare all that is stated with the reference's bounds."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np

from bidro.core.errors import BidroError
from bidro.federated.engines.in_process import IN_PROCESS
from bidro.problem.problem import Problem
from bidro.problem.worst_case import worst_case_distribution
from bidro.risk.inner import default_oracle
from bidro.solvers.bundle.algorithm import ExactMWDRO
from bidro.solvers.bundle.state import Broadcast
from bidro.solvers.solve import GapNotReachedWarning, Solution, solve
from tests.fuzz import reference
from tests.fuzz.measures import (
    PROOF_UNITS,
    TINY,
    UNITS,
    constant_model,
    inside,
    models,
    objective,
    of_moments,
    rounding,
    worst_mixture,
)
from tests.fuzz.plain import Wide, inverse_scale, length, losses, split, steepest_slope, steepness
from tests.fuzz.problems import SMOOTH, Case
from tests.fuzz.reference import Bounds
from tests.fuzz.weights import ROW_WEIGHTS, in_weights

GAP = 1e-6
# Within which smooth losses should be solved; kinked ones get twice as many.
ROUNDS = 30

Models = dict[str, np.ndarray]
Risks = dict[str, list[Bounds]]


@dataclass
class Found:
    """What came of one case."""

    failures: list[dict[str, object]] = field(default_factory=list)
    outcome: str = "solved"  # or "refused", "stalled", "crashed"
    refusal: str = ""
    rounds: int = 0
    gap: float = float("nan")
    checks: int = 0
    seconds: float = 0.0

    def expect(self, holds: bool, what: str, **details: object) -> None:
        self.checks += 1
        if not bool(holds):
            self.failures.append({"what": what, **{k: _plain(v) for k, v in details.items()}})


def _plain(value: object) -> object:
    if isinstance(value, np.ndarray):
        return [float(v) for v in value.ravel()]
    return float(value) if isinstance(value, np.floating | np.bool_) else value


def check(case: Case, distributions: bool = True) -> Found:
    """Solve the case and check everything that is stated of it."""
    found, started = Found(), time.perf_counter()
    try:
        _check(case, found, distributions)
    except BidroError as error:
        found.outcome = "refused"
        sentence = str(error)
        found.expect(sentence[:1].isupper() and sentence.endswith("."), "not a sentence", error=sentence)
        found.refusal = sentence
    except Exception as error:  # whatever else comes is a fault
        found.outcome = "crashed"
        found.expect(False, "crashed", error=f"{type(error).__name__}: {error}"[:300])
    found.seconds = time.perf_counter() - started
    return found


def _check(case: Case, found: Found, distributions: bool) -> None:
    problem = case.problem()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GapNotReachedWarning)
        solution = solve(
            problem, GAP, case.family.method, ROUNDS if case.family.loss in SMOOTH else 2 * ROUNDS
        )
    found.rounds, found.gap = solution.rounds, solution.gap
    if not solution.gap <= GAP:
        found.outcome = "stalled"
    _check_numbers(case, found, solution)
    if found.failures:
        return
    rng = np.random.default_rng([3, case.number])
    pool = models(case, rng, solution.x)
    risks = {name: [reference.risk(case, i, x) for i in range(len(case.rows))] for name, x in pool.items()}
    _check_risks(case, found, solution, risks["solution"])
    _check_lower(case, found, solution, pool, risks)
    _check_gap(case, found, solution)
    if case.family.method != "one-shot":
        _check_planes(case, found, problem, pool, risks, rng)
    if case.family.ambiguity in ROW_WEIGHTS and distributions:
        for i, name in enumerate(problem.federation.names):
            _check_weights_of_rows(case, found, problem, solution, i, name)
    if case.family.ambiguity == "ball" and distributions:
        for name in problem.federation.names:
            _check_distribution(case, found, problem, solution, name)
    _check_resume(case, found, solution, rng)


def _check_numbers(case: Case, found: Found, solution: Solution) -> None:
    for name in ("x", "alpha", "risks", "multipliers", "upper", "lower"):
        found.expect(not np.any(np.isnan(getattr(solution, name))), f"{name} is NaN")
    size = max(abs(solution.upper), float(np.abs(case.taken_off).max()), TINY)
    if solution.certified:
        found.expect(
            solution.lower <= solution.upper + UNITS * size,
            "lower above upper",
            lower=solution.lower,
            upper=solution.upper,
        )
        found.expect(solution.gap >= -PROOF_UNITS, "negative gap", gap=solution.gap)
    found.expect(
        in_weights(case.weights, case.weight_bounds, solution.alpha),
        "alpha is not in A",
        alpha=solution.alpha,
    )
    off = np.abs(inside(case, solution.x) - solution.x)
    found.expect(np.all(off <= 1e-9 * case.half_width), "x is not in X", x=solution.x)
    regrets = solution.risks - case.taken_off
    mixed = worst_mixture(case, regrets)
    if solution.certified:
        found.expect(
            abs(mixed - solution.upper) <= 1e-12 * size,
            "upper is not the worst mixture",
            upper=solution.upper,
            mixture=mixed,
        )
        short = solution.lower - solution.alpha @ regrets
        found.expect(short <= 1e-9 * size, "alpha does not carry lower", by=short, size=size)


def _check_risks(case: Case, found: Found, solution: Solution, risks: list[Bounds]) -> None:
    for i, bounds in enumerate(risks):
        stated = Wide(solution.risks[i])
        slack = rounding(case, i, solution.x, bounds.upper)
        if solution.certified:
            found.expect(
                bounds.lower <= stated + slack,
                "risk below the truth",
                client=i,
                stated=stated,
                truth=bounds.lower,
                rounding=slack,
            )
            if bounds.lower > 0 and case.family.loss != "softmax":
                found.expect(stated > 0, "risk of 0 where losses are positive", client=i, truth=bounds.lower)
        if case.family.loss != "softmax":
            wide = Wide(1e-9) * abs(bounds.upper)
            if case.family.method == "one-shot":
                wide += of_moments(case, i, solution.x, bounds.upper)
            found.expect(
                stated <= bounds.upper + slack + wide,
                "risk above the truth",
                client=i,
                stated=stated,
                truth=bounds.upper,
                rounding=slack,
            )


def _check_lower(case: Case, found: Found, solution: Solution, pool: Models, risks: Risks) -> None:
    for name, x in pool.items():
        value, slack = objective(case, x, risks[name])
        slack *= Wide(PROOF_UNITS / UNITS)
        found.expect(
            solution.lower <= value + slack,
            "lower above an objective",
            model=name,
            lower=solution.lower,
            upper=solution.upper,
            objective=value,
            by=solution.lower - value,
            rounding=slack,
        )


def _check_gap(case: Case, found: Found, solution: Solution) -> None:
    """A gap that counts as reached is small against the risk of a constant prediction, not against that of a
    model that is far off."""
    if not solution.certified or not solution.gap <= GAP:
        return
    constant = constant_model(case)
    risks = [reference.risk(case, i, constant) for i in range(len(case.rows))]
    worst, off = objective(case, constant, risks)[0], case.taken_off
    # Regrets are compared with risks: each with what the clients' shares take off added again.
    mean = float(np.asarray(case.family.sizes) @ off) / sum(case.family.sizes)
    sensible = min(worst + Wide(mean), Wide(np.finfo(float).max))
    left = solution.upper - solution.lower
    slack = max(rounding(case, i, solution.x, solution.risks[i]) for i in range(len(case.rows)))
    slack += Wide(UNITS) * np.abs(off).max()
    allowed = 2 * GAP * max(abs(solution.upper + mean), 1e-5 * float(sensible)) + 1e3 * float(slack)
    found.expect(
        left <= allowed,
        "the gap hides an interval",
        left=left,
        upper=solution.upper,
        lower=solution.lower,
        sensible=sensible,
        allowed=allowed,
    )


def _check_planes(
    case: Case, found: Found, problem: Problem, pool: Models, risks: Risks, rng: np.random.Generator
) -> None:
    """A client's cut lies below its risk at every model."""
    algorithm = ExactMWDRO(default_oracle(problem.inner), case.family.method == "curvature", GAP)
    ask = IN_PROCESS.clients_of(problem)
    for at in ("solution", "zero", "any"):
        x = np.asarray(problem.domain.project(jnp.asarray(pool[at])))
        width = float(rng.choice([0.0, 0.01, 2.0]))
        replies, _ = ask(algorithm, Broadcast(jnp.asarray(x), jnp.asarray(width)), 1)
        attained, gradient = np.asarray(replies.attained), np.asarray(replies.gradient)
        if not np.all(np.isfinite(attained)):
            continue
        for i in range(len(case.rows)):
            for name, y in pool.items():
                cut, size = _cut(case, problem, attained[i], gradient[i], x, y)
                truth = risks[name][i].upper
                if not np.isfinite(truth):
                    continue
                slack = Wide(UNITS) * size + rounding(case, i, y, truth) + rounding(case, i, x, attained[i])
                found.expect(
                    cut <= truth + slack,
                    "cut above the risk",
                    client=i,
                    at=at,
                    model=name,
                    cut=cut,
                    risk=truth,
                    by=cut - truth,
                    rounding=slack,
                    width=width,
                )


def _cut(
    case: Case, problem: Problem, attained: float, gradient: np.ndarray, x: np.ndarray, y: np.ndarray
) -> tuple[Wide, Wide]:
    """(the cut at y, the sum of the sizes of its terms)."""

    def lifted(v: np.ndarray) -> np.ndarray:
        wide = np.asarray(v, Wide)
        return np.append(wide, steepness(case, v).max()) if problem.lifted else wide

    terms = np.asarray(gradient, Wide) * (lifted(y) - lifted(x))
    sizes = np.abs(gradient) * (np.abs(lifted(y)) + np.abs(lifted(x)))
    return Wide(attained) + terms.sum(), abs(Wide(attained)) + sizes.sum()


def _check_distribution(case: Case, found: Found, problem: Problem, solution: Solution, name: str) -> None:
    worst = worst_case_distribution(problem, solution.x, name)
    i = problem.federation.names.index(name)
    masses, points = np.asarray(worst.masses, Wide), np.asarray(worst.points, Wide)
    found.expect(
        np.all(masses >= 0) and abs(masses.sum() - 1) <= 1e-12, "masses are no distribution", sum=masses.sum()
    )
    start = np.asarray(case.rows[i], Wide)[worst.origins]
    inverse = inverse_scale(case)
    moved = points - start
    movable = inverse > 0
    cost = length(case, moved) ** case.family.p
    held = moved[:, ~movable] != 0
    if case.family.labels is not None:
        cost = cost + np.where(held[:, -1], Wide(case.family.label_cost) ** case.family.p, 0)
        held = held[:, :-1]
    found.expect(not held.any(), "an immovable coordinate moved", client=i)
    if case.support is not None:
        found.expect(
            np.all((worst.points >= case.support[0]) & (worst.points <= case.support[1])),
            "outside the support",
            client=i,
        )
    budget = Wide(case.levels[i]) ** case.family.p
    # A move is the difference of two rounded places.
    place = (np.abs(start[:, movable]) / inverse[movable]).max()
    unit = Wide(UNITS) * place
    slack = Wide(1e-9) * budget + (2 * case.levels[i] * unit + unit**2 if case.family.p == 2 else unit)
    spent = (masses * cost).sum()
    found.expect(spent <= budget + slack, "outside the ball", client=i, cost=spent, budget=budget)
    expected = (masses * losses(case, solution.x, worst.points)).sum()
    size = rounding(case, i, solution.x, Wide(worst.risk)) + Wide(1e-10) * abs(worst.risk)
    far = Wide(UNITS) * (masses[:, None] * np.abs(points)).sum() * np.abs(split(case, solution.x)[0]).max()
    slope = Wide(steepest_slope(case))
    size += far * (slope if np.isfinite(slope) else 2 * np.sqrt(abs(worst.risk)))
    found.expect(
        abs(expected - worst.expected_loss) <= size,
        "expected loss is not that of the atoms",
        client=i,
        stated=worst.expected_loss,
        truth=expected,
        rounding=size,
    )
    if case.family.loss != "softmax" or (case.family.p == 1 and case.support is None):
        found.expect(
            worst.deficit <= 1e-6 * abs(worst.risk) + size,
            "the worst case is not attained",
            client=i,
            deficit=worst.deficit,
            risk=worst.risk,
        )


def _check_weights_of_rows(
    case: Case, found: Found, problem: Problem, solution: Solution, i: int, name: str
) -> None:
    worst = worst_case_distribution(problem, solution.x, name)
    kind, bounds = ROW_WEIGHTS[case.family.ambiguity](len(case.rows[i]), case.levels[i])
    found.expect(in_weights(kind, bounds, worst.masses), "weights of rows outside of their set", client=i)
    slack = rounding(case, i, solution.x, Wide(worst.risk)) + Wide(1e-9) * abs(worst.risk)
    found.expect(
        worst.deficit <= 1e-6 * abs(worst.risk) + slack,
        "the worst case is not attained",
        client=i,
        deficit=worst.deficit,
        risk=worst.risk,
    )


def _check_resume(case: Case, found: Found, solution: Solution, rng: np.random.Generator) -> None:
    """Another problem is refused, also one whose columns have the same sums, first and last rows."""
    i = int(np.argmax([len(r) for r in case.rows]))
    rows = [r.copy() for r in case.rows]
    if len(rows[i]) < 4:
        return
    rows[i][1:-1, -1] = np.roll(rows[i][1:-1, -1], 1)
    if np.array_equal(rows[i], case.rows[i]):
        return
    try:
        solve(case.problem(tuple(rows)), GAP, max_rounds=solution.rounds, resume=solution)
        found.expect(False, "resumed with other data")
    except BidroError:
        found.checks += 1
