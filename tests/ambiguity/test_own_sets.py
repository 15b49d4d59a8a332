"""The ambiguity set and the mixture set of the page "How to extend", against a cone solver."""

import re
from dataclasses import replace
from pathlib import Path

import cvxpy as cp
import jax.numpy as jnp
import numpy as np
import pytest

import bidro
from bidro.federated.baselines import AFL
from bidro.losses import Squared
from bidro.problem.client import Client
from bidro.risk.inner import Exact

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
# What is needed of the page: the clients' rows and their problem, and the two sets.
SECTIONS = ("# How to extend", "## An algorithm", "## An ambiguity set", "## A mixture set")


@pytest.fixture(scope="module")
def page():
    """What the blocks of these sections, one after the other, leave behind."""
    parts = re.split(r"^(?=## )", PAGE.read_text(), flags=re.MULTILINE)
    text = "".join(part for part in parts if part.startswith(SECTIONS))
    left = {"__name__": "extending"}
    exec(
        compile("\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)), str(PAGE), "exec"), left
    )
    return left


def least_worst(page, risks, mixed):
    """(x, value) where `mixed`, a convex function of the clients' risks of squared residuals, is least."""
    x = cp.Variable(2)
    own = [
        risks(cp.square(rows[:, :2] @ x - rows[:, 2]), k) for k, rows in enumerate(page["clients"].values())
    ]
    program = cp.Problem(cp.Minimize(mixed(own)), [cp.abs(x) <= 5])
    program.solve(cp.CLARABEL)
    return x.value, program.value


def test_the_ambiguity_set_is_solved_as_a_cone_solver_does(page):
    def risk(losses, k):
        eta, root = cp.Variable(), np.sqrt((1 + [0.3, 0.6, 0.9][k] ** 2) / losses.size)
        return eta + root * cp.norm(cp.pos(losses - eta))

    x, least = least_worst(page, risk, lambda own: cp.maximum(*own))
    found = page["robust_to_weights"]
    assert found.certified
    assert found.gap <= 1e-6
    assert found.method == "gradients"
    assert found.upper == pytest.approx(least, rel=1e-5)
    np.testing.assert_allclose(found.x, x, atol=1e-3)
    # At any model: the largest mean loss over weights, by brute force over a cone solver.
    other = np.array([0.4, -0.2])
    told = page["reweighted"].clients
    for k, rows in enumerate(page["clients"].values()):
        losses, w = (rows[:, :2] @ other - rows[:, 2]) ** 2, cp.Variable(len(rows), nonneg=True)
        ball = cp.norm(w - 1) <= [0.3, 0.6, 0.9][k] * np.sqrt(len(rows))
        worst = cp.Problem(cp.Maximize(losses @ w / len(rows)), [cp.sum(w) == len(rows), ball]).solve(
            cp.CLARABEL
        )
        alone = Client.single("a", rows, Squared(), page["problem"].transport, told.inner.support)
        alone = replace(alone, ambiguity=page["ChiSquareBall"](np.float64([0.3, 0.6, 0.9][k])))
        risk_there = alone.risk(Exact(), jnp.asarray(other), jnp.zeros(()), False)
        assert float(risk_there.attained) <= worst * (1 + 1e-6)
        assert float(risk_there.value) == pytest.approx(worst, rel=1e-6)
        assert float(risk_there.attained) == pytest.approx(worst, rel=1e-6)


def test_the_mixture_set_is_solved_as_a_cone_solver_does(page):
    regions, rng = page["Regions"]((1, 2), (0.6, 0.4)), np.random.default_rng(0)
    for v in rng.normal(size=(5, 3)):
        alpha = cp.Variable(3, nonneg=True)
        inside = [alpha[0] == 0.6, cp.sum(alpha[1:]) == 0.4]
        cp.Problem(cp.Minimize(cp.sum_squares(alpha - v)), inside).solve(cp.CLARABEL)
        for given in (v, jnp.asarray(v)):
            np.testing.assert_allclose(regions.project(given), alpha.value, atol=1e-5)
        best = cp.Problem(cp.Maximize(v @ alpha), inside).solve(cp.CLARABEL)
        assert float(regions.linear_maximum(v)[0]) == pytest.approx(best, abs=1e-7)
    x, least = least_worst(
        page, lambda losses, k: cp.sum(losses) / losses.size, lambda r: 0.6 * r[0] + 0.4 * cp.maximum(*r[1:])
    )
    found = page["of_regions"]
    assert found.certified
    assert found.gap <= 1e-6
    assert found.upper == pytest.approx(least, rel=1e-6)
    np.testing.assert_allclose(found.x, x, atol=1e-3)
    assert bool(regions.contains(found.alpha))
    steps = bidro.run(AFL(0.02, 0.02), replace(page["problem"], mixtures=regions), rounds=3000)
    np.testing.assert_allclose(steps.x_average, x, atol=0.05)
