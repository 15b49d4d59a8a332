"""What every method must reduce to: the table of docs/comparison.md, row by row."""

from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from bidro.ambiguity import Penalty, WassersteinBall
from bidro.core.sets import CappedSimplex
from bidro.data.federation import Federation
from bidro.federated.algorithms import BiDROFL, BiDROLocal
from bidro.federated.baselines import AFL, DRFA, FDRSVM, QFFL, FedAvg, GroupDRO, GroupDROBalls, UnbalancedDRO
from bidro.federated.baselines.barycentre import barycentre
from bidro.federated.contrib import BiDROCompressed, BiDROGossip, MixtureBall, TopK
from bidro.federated.contrib.bidro_gossip import complete
from bidro.federated.engines.in_process import run
from bidro.problem.worst_case import robust_risk
from bidro.risk.inner import Exact
from bidro.solvers.solve import solve
from tests.federated.cases import NAMES, balls, labelled_balls, penalised, shared_ball, shared_penalty
from tests.small import SIZES, mostly_slow

SHARES = np.array(SIZES) / sum(SIZES)
FIXED = CappedSimplex(jnp.asarray(SHARES), jnp.asarray(SHARES))


def alone(problem):
    """The problem with its last client only."""
    name = problem.federation.names[-1]
    own = {name: np.asarray(problem.federation.client_samples(name))}
    fed = Federation.from_arrays(own, problem.federation.support)
    return replace(problem, federation=fed, ambiguity=problem.own_ambiguity(-1), mixtures=None)


def as_one(problem):
    """The same rows as one client's."""
    ambiguity = problem.ambiguity and type(problem.ambiguity)(float(problem.eps[0]))
    return replace(problem, federation=problem.federation.pooled(), ambiguity=ambiguity, mixtures=None)


def around_barycentre(problem):
    return replace(problem, federation=barycentre(problem.federation, sum(problem.federation.sizes)))


def still(problem):
    return replace(problem, ambiguity=None)


def without_radius(problem):
    return replace(problem, ambiguity=WassersteinBall(0.0))


def never_moving(problem):
    """A penalty so high that no sample moves."""
    return replace(problem, ambiguity=Penalty(1e12))


def fixed(problem):
    return replace(problem, mixtures=FIXED)


def x_of(algorithm, problem, rounds=40, seed=4):
    return run(algorithm, problem, rounds, seed=seed).x


def gradient_descent(problem, eta, rounds):
    """Full-batch, on all rows together; written with NumPy."""
    part = np.asarray(problem.federation.samples)
    x = np.zeros(3)
    for _ in range(rounds):
        x = x - eta * 2 * part[:, :3].T @ (part[:, :3] @ x - part[:, 3]) / len(part)
    return x


def least_squares(problem):
    part = np.asarray(problem.federation.samples)
    return np.linalg.lstsq(part[:, :3], part[:, 3], rcond=None)[0]


# (method, special case): two models that must be the same, and to what relative tolerance.
REDUCTIONS = {
    ("FedAvg", "one local step: gradient descent on all rows"): lambda: (
        x_of(FedAvg(0.05), still(penalised())), gradient_descent(penalised(), 0.05, 40), 1e-10
    ),
    ("FedAvg", "one client: gradient descent, whatever the local steps"): lambda: (
        x_of(FedAvg(0.05, 4), alone(still(penalised())), 10),
        gradient_descent(alone(penalised()), 0.05, 40),
        1e-10,
    ),
    ("AFL", "fixed weights: FedAvg"): lambda: (
        x_of(AFL(0.05, 0.5), fixed(still(penalised()))), x_of(FedAvg(0.05), still(penalised())), 1e-10
    ),
    ("AFL", "one client: FedAvg"): lambda: (
        x_of(AFL(0.05, 0.5), alone(still(penalised()))), x_of(FedAvg(0.05), alone(still(penalised()))), 1e-10
    ),
    ("DRFA", "one client: FedAvg with the same local steps, a stage being two rounds"): lambda: (
        x_of(DRFA(0.05, 0.1, 3, 1), alone(still(penalised())), 40),
        x_of(FedAvg(0.05, 3), alone(still(penalised())), 20),
        1e-10,
    ),
    ("q-FFL", "q = 0: FedAvg"): lambda: (
        x_of(QFFL(0.0, 0.05), still(penalised())), x_of(FedAvg(0.05), still(penalised())), 1e-10
    ),
    ("q-FFL", "q = 0, 3 local steps: FedAvg with 3"): lambda: (
        x_of(QFFL(0.0, 0.05, 3), still(penalised())), x_of(FedAvg(0.05, 3), still(penalised())), 1e-10
    ),
    ("Group DRO", "one client: both ways to sample are plain stochastic gradient descent"): lambda: (
        x_of(GroupDRO(0.05, 0.1), alone(still(penalised()))),
        x_of(GroupDRO(0.05, 0.3, sampling="weights"), alone(still(penalised()))),
        1e-10,
    ),
    ("Group DRO with balls", "eps = 0: no ambiguity"): lambda: (
        x_of(GroupDROBalls(0.05, 0.05), without_radius(balls())),
        x_of(GroupDROBalls(0.05, 0.05), still(balls())),
        1e-9,
    ),
    ("Group DRO with balls", "eps = 0, fixed weights: FedAvg"): lambda: (
        x_of(GroupDROBalls(0.05, 0.05), fixed(without_radius(balls()))),
        x_of(FedAvg(0.05), still(balls())),
        1e-9,
    ),
    ("Group DRO with balls", "one client: descent on the one ball"): lambda: (
        x_of(GroupDROBalls(0.1, 0.0), alone(balls()), 2000), solve(alone(balls()), 1e-12).x, 1e-5
    ),
    ("mixture ball", "eps = 0: FedAvg"): lambda: (
        x_of(MixtureBall(0.05), without_radius(balls())), x_of(FedAvg(0.05), still(balls())), 1e-10
    ),
    ("mixture ball", "the same rows as one client: the ball of MW-DRO"): lambda: (
        x_of(MixtureBall(0.1), shared_ball(), 3000),
        solve(as_one(shared_ball()), 1e-12).x,
        1e-4,
    ),
    ("barycentre ball", "one client, as many points as rows: its own ball"): lambda: (
        solve(around_barycentre(alone(shared_ball())), 1e-12).x,
        solve(alone(shared_ball()), 1e-12).x,
        1e-5,
    ),
    ("unbalanced up", "one client, large tau: the penalised problem"): lambda: (
        x_of(UnbalancedDRO(1e7, 0.1, 0.0), alone(shared_penalty()), 2000),
        solve(alone(shared_penalty()), 1e-12).x,
        1e-5,
    ),
    ("unbalanced down", "large tau: the same as up"): lambda: (
        x_of(UnbalancedDRO(1e7, 0.05, 0.0, sign="down"), shared_penalty()),
        x_of(UnbalancedDRO(1e7, 0.05, 0.0), shared_penalty()),
        1e-5,
    ),
    ("WRM", "a penalty without limit: stochastic gradient descent on all rows"): lambda: (
        x_of(BiDROFL(0.05, 0.05, Exact()), never_moving(as_one(still(penalised())))),
        x_of(GroupDRO(0.05, 0.05), as_one(still(penalised()))),
        1e-6,
    ),
    ("DRO-FL", "one shared penalty: BiDRO-FL with equal ones"): lambda: (
        x_of(BiDROFL(), shared_penalty()),
        x_of(BiDROFL(), replace(penalised(), ambiguity=Penalty(20.0))),
        1e-12,
    ),
    ("BiDRO-FL, local steps", "one step, all clients: BiDRO-FL"): lambda: (
        x_of(BiDROLocal(0.05, 0.02, 1, 1.0), penalised()), x_of(BiDROFL(0.05, 0.02), penalised()), 1e-12
    ),
    ("BiDRO-FL, compressed", "all entries kept, no moves: AFL"): lambda: (
        x_of(BiDROCompressed(0.05, 0.02, TopK(3)), never_moving(penalised())),
        x_of(AFL(0.05, 0.02), still(penalised())),
        1e-8,
    ),
    ("BiDRO-FL, gossip", "the complete graph: BiDRO-FL"): lambda: (
        x_of(BiDROGossip(0.05, 0.02, complete(NAMES)), penalised()),
        x_of(BiDROFL(0.05, 0.02), penalised()),
        1e-9,
    ),
    ("exact MW-DRO", "eps = 0, fixed weights: least squares on all rows"): lambda: (
        solve(fixed(without_radius(balls())), 1e-9).x, least_squares(balls()), 1e-4
    ),
    ("exact MW-DRO", "eps = 0, one client: its least squares"): lambda: (
        solve(alone(without_radius(balls())), 1e-9).x, least_squares(alone(balls())), 1e-4
    ),
    ("FDR-SVM", "one client: the ball of MW-DRO"): lambda: (
        _hinge_risk(x_of(FDRSVM(0.2, 300), alone(labelled_balls()), 60)),
        _hinge_risk(solve(alone(labelled_balls()), 1e-4).x),
        5e-3,
    ),
}  # fmt: skip


def _hinge_risk(x):
    """Where the optimum is flat, its value is what must agree."""
    return np.asarray(robust_risk(alone(labelled_balls()), x).value)


@pytest.mark.parametrize(
    ("method", "case"), mostly_slow(REDUCTIONS, lambda case: case[0] != "FDR-SVM"), ids=lambda v: v
)
def test_special_cases(method, case):
    one, other, tolerance = REDUCTIONS[method, case]()
    np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def test_every_row_of_the_table_in_the_docs_is_tested():
    text = (Path(__file__).parents[2] / "docs" / "comparison.md").read_text()
    after = text.split("## What each must reduce to")[1].split("\n\n")[1]
    documented = {
        tuple(cell.strip() for cell in line.strip("| ").split(" | ")) for line in after.splitlines()[2:]
    }
    assert documented == set(REDUCTIONS)
