"""Rounds and bytes to a relative gap of 0.1 and 0.05 for the algorithms that the paper leaves to future work,
beside Algorithm 1. Prints JSON.

    taskset -c 0 python bench/future_work.py

The problem is the paper's simulation with admissible penalties (five clients, d = 3), on five data sets. Its
support is left unbounded: for no model in X does a moved sample reach the paper's box (checked), so that
all risks are the same and quicker to compute. The gap of a model is that of its worst penalised risk to the
optimum, which `solve` finds to 1e-10. A method's number of rounds, of at most 10,000, is the first after
which the gap of the averaged iterate, or of the last one, is within the target. A last iterate that wanders
meets a target by chance and leaves it again, so there is also the first round after which it stays within it
to the end (`settled`), and the averaged iterate's gap at the end. Each method runs with the same six step
sizes (eta_x = eta_alpha), and the one that needs fewest rounds, in the mean over data sets, is shown. All use
the exact inner supremum. `se` is the standard error over data sets; null: not reached on some of them.

Bytes are those of all rounds and all clients: what `pack` makes of the messages (`packed`), and the numbers
in them alone (`numbers`), as at d = 3 names and shapes outweigh numbers. Of partial participation only those
who are asked count; of gossip, what crosses the edges, in both directions, is `up`. `reply_bytes` are those
of one reply for models of other sizes. `exact`: MW-DRO by `solve`, to the same gaps and to 1e-6.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bidro.core.sets import WholeSpace
from bidro.experiments.reproduce import ADMISSIBLE_HALF_WIDTH, ADMISSIBLE_PENALTIES, admissible_problem
from bidro.experiments.simulation import HALF_WIDTH, SIZES, SimulatedRun, simulate
from bidro.federated.algorithm import Algorithm, part_of
from bidro.federated.algorithms import BiDROFL
from bidro.federated.algorithms.bidro_local import BiDROLocal
from bidro.federated.contrib.bidro_compressed import BiDROCompressed, EightBit, TopK
from bidro.federated.contrib.bidro_gossip import BiDROGossip, complete, ring
from bidro.federated.engines.in_process import all_replies, run_many
from bidro.federated.engines.wire import pack
from bidro.problem.problem import Problem
from bidro.problem.worst_case import penalised_risk
from bidro.risk.inner import Exact
from bidro.solvers.bundle.algorithm import ExactMWDRO
from bidro.solvers.solve import solve

SEEDS = tuple(range(2026, 2031))
ROUNDS = 10_000
# Full gradients run away from 0.08 on, so that a grid with 0.03 and 0.1 alone would not do them justice.
STEPS = (0.003, 0.01, 0.03, 0.07, 0.1, 0.3)
TARGETS = (0.1, 0.05)


def methods(names: tuple[str, ...]) -> dict[str, Any]:
    """From a step size to an algorithm."""
    exact = Exact()
    return {
        "Algorithm 1": lambda s: BiDROFL(s, s, exact),
        "5 local steps": lambda s: BiDROLocal(s, s, 5, 1.0, exact),
        "5 local steps, 3 of 5 clients": lambda s: BiDROLocal(s, s, 5, 0.6, exact),
        "full gradients, TopK(3)": lambda s: BiDROCompressed(s, s, TopK(3), exact),
        "full gradients, TopK(1)": lambda s: BiDROCompressed(s, s, TopK(1), exact),
        "full gradients, EightBit()": lambda s: BiDROCompressed(s, s, EightBit(), exact),
        "gossip, ring": lambda s: BiDROGossip(s, s, ring(names), exact),
        "gossip, complete graph": lambda s: BiDROGossip(s, s, complete(names), exact),
    }


def unbounded(run: SimulatedRun) -> Problem:
    """The admissible problem of the paper's simulation without the box, which no moved sample reaches."""
    problem = admissible_problem(run)
    # A sample moves by u a / (rho - ||a||^2) with a = (x, -1) and u = <a, zeta>.
    steep = 3 * ADMISSIBLE_HALF_WIDTH**2 + 1
    lengths = np.linalg.norm(run.samples, axis=1)
    assert np.all(lengths * (1 + steep / (min(ADMISSIBLE_PENALTIES) - steep)) < HALF_WIDTH)
    federation = dataclasses.replace(problem.federation, support=WholeSpace(4))
    return dataclasses.replace(problem, federation=federation)


def worst_risks(samples: np.ndarray, models: np.ndarray) -> np.ndarray:
    """max_i F_i for many models (k, 3): F_i(x) = rho_i / (rho_i - ||(x, -1)||^2) times the mean squared
    residual."""
    a = np.column_stack([models, -np.ones(len(models))])
    squares = np.sum(a**2, axis=1)
    risks = []
    for part, rho in zip(np.split(samples, np.cumsum(SIZES)[:-1]), ADMISSIBLE_PENALTIES, strict=True):
        mean = np.einsum("ki,ij,kj->k", a, part.T @ part / len(part), a)
        risks.append(rho / (rho - squares) * mean)
    return np.max(risks, axis=0)


def first_rounds(gaps: np.ndarray) -> list[float]:
    """The first round (from 1) at which each target is reached; inf where it is not."""
    return [float(np.argmax(gaps <= t) + 1) if np.any(gaps <= t) else np.inf for t in TARGETS]


def settled_rounds(gaps: np.ndarray) -> list[float]:
    """The first round after which each target is kept to the end; inf where the end is outside it."""
    outside = [np.max(np.flatnonzero(gaps > t), initial=-1) + 1 for t in TARGETS]
    return [float(k + 1) if k < len(gaps) else np.inf for k in outside]


def message_bytes(algorithm: Algorithm, problem: Problem) -> dict[str, dict[str, float]]:
    """What a round sends, all clients together."""
    state = algorithm.init(problem)
    broadcast = algorithm.broadcast(state)
    replies = all_replies(algorithm, problem.clients, jax.random.key(0), broadcast, jnp.asarray(1))
    who = algorithm.participants(state)
    asked = problem.n if who is None else int(np.sum(who))
    messages = {"up": (jax.tree.map(lambda v: v[0], replies), asked)}
    if isinstance(algorithm, BiDROGossip):
        messages["up"] = (messages["up"][0], 2 * len(algorithm.graph))
    else:
        messages["down"] = (part_of(algorithm, broadcast, 0), asked)
    return {
        way: {
            "packed": count * len(pack(message)),
            "numbers": count * sum(np.asarray(v).nbytes for v in message),
        }
        for way, (message, count) in messages.items()
    }


def summary(rounds: np.ndarray, per_round: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Mean and standard error over data sets of rounds, and the bytes that go with the mean."""
    if not np.all(np.isfinite(rounds)):
        return {"rounds": None, "se": None, "sets_reached": int(np.isfinite(rounds).sum())}
    mean = float(rounds.mean())
    return {
        "rounds": mean,
        "se": float(rounds.std(ddof=1) / np.sqrt(len(rounds))),
        "bytes": {way: {k: round(v * mean) for k, v in of_way.items()} for way, of_way in per_round.items()},
    }


def compared(make: Any, problem: Problem, samples: np.ndarray, optima: list[float]) -> dict[str, Any]:
    rules = {"average": first_rounds, "last": first_rounds, "last, settled": settled_rounds}
    found = np.full((len(STEPS), len(rules), len(TARGETS), len(SEEDS)), np.inf)
    ends = np.zeros((len(STEPS), len(SEEDS)))
    for j, step in enumerate(STEPS):
        results = run_many(make(step), problem, samples, ROUNDS, SEEDS, record_every=1, workers=1)
        for s, (result, rows, optimum) in enumerate(zip(results, samples, optima, strict=True)):
            ends[j, s] = worst_risks(rows, result.x_average[None])[0] / optimum - 1
            for k, (name, rule) in enumerate(rules.items()):
                models = result.history.x_average if name == "average" else result.history.x
                found[j, k, :, s] = rule(worst_risks(rows, np.asarray(models)) / optimum - 1)
    per_round = message_bytes(make(STEPS[0]), problem)
    report: dict[str, Any] = {"per_round": per_round}
    for k, iterate in enumerate(rules):
        for i, target in enumerate(TARGETS):
            # Where no step gets there on every data set, the one that does on most.
            means, missed = found[:, k, i].mean(axis=1), np.isinf(found[:, k, i]).sum(axis=1)
            best = int(np.lexsort((means, missed))[0])
            step = STEPS[best] if np.any(np.isfinite(found[best, k, i])) else None
            report[f"{iterate}, gap {target}"] = {"step": step, **summary(found[best, k, i], per_round)}
    best = int(np.argmin(ends.mean(axis=1)))
    report[f"average after {ROUNDS} rounds"] = {
        "step": STEPS[best],
        "gap": float(ends[best].mean()),
        "se": float(ends[best].std(ddof=1) / np.sqrt(len(SEEDS))),
    }
    return report


def exact(problems: list[Problem], optima: list[float]) -> dict[str, Any]:
    """Curvature replies; the gap to the optimum is that of the best model so far."""
    solved = [solve(p, gap=1e-6) for p in problems]
    per_round = message_bytes(ExactMWDRO(Exact(), True, 1e-6), problems[0])
    assert all(per_round["up"]["packed"] * s.rounds == s.bytes_from_client * len(SIZES) for s in solved)
    hits = np.array([first_rounds(s.history[:, 0] / o - 1) for s, o in zip(solved, optima, strict=True)])
    report = {f"best, gap {t}": summary(hits[:, i], per_round) for i, t in enumerate(TARGETS)}
    report["certified, gap 1e-06"] = summary(np.array([float(s.rounds) for s in solved]), per_round)
    return report


def reply_bytes() -> dict[str, dict[str, int]]:
    """One reply of d parameters, packed."""
    table: dict[str, dict[str, int]] = {}
    for d in (3, 100, 10_000):
        gradient = jnp.linspace(-1.0, 1.0, d)
        value, u = jnp.ones(()), jnp.full(d, 0.5)
        of = {"all": TopK(d), "1 in 10": TopK(-(-d // 10)), "8 bits": EightBit()}
        table[f"d = {d}"] = {name: len(pack(c.reply(value, gradient, u))) for name, c in of.items()}
        table[f"d = {d}"]["Algorithm 1"] = len(pack(BiDROFL.reply_type(gradient, value)))
    return table


def main() -> None:
    data = [simulate(seed) for seed in SEEDS]
    samples = np.stack([d.samples for d in data])
    problems = [unbounded(d) for d in data]
    optima = [solve(p, gap=1e-10).lower for p in problems]
    for d in data:
        x = np.array([0.9, 0.4, -0.6])
        in_the_box = np.max(penalised_risk(admissible_problem(d), x).value)
        assert np.isclose(worst_risks(d.samples, x[None])[0], in_the_box, rtol=1e-10)
    result: dict[str, Any] = {"optimum": optima, "methods": {}}
    for name, make in methods(problems[0].federation.names).items():
        result["methods"][name] = compared(make, problems[0], samples, optima)
        print(name, json.dumps(result["methods"][name]), file=sys.stderr)
    result["exact"] = exact(problems, optima)
    result["reply_bytes"] = reply_bytes()
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
