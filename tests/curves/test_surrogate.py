"""Bounds from below are of what is minimised, and are called so where that is more than the worst case."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest

from bidro import (
    Box,
    Federation,
    Logistic,
    Problem,
    Softmax,
    Squared,
    Transport,
    WassersteinBall,
    out_of_sample_interval,
    solve,
)
from bidro.data.splines import Basis
from bidro.solvers.solve import surrogate_of
from tests.cli.test_command import run

APART, EPS = 0.49, 0.05  # how far every row is from the steep segment; the radius


def two_groups(basis: Basis | None = None, smoothing: float = 0.0) -> Problem:
    """The target is -1 where the feature is below -0.5, and 1 where it is above 0.5."""
    feature = np.linspace(0.5, 1.0, 50)
    rows = np.column_stack([np.append(-feature, feature), np.repeat([-1.0, 1.0], 50)])
    federation = Federation.from_arrays({"a": rows}, "unbounded")
    loss = Squared(basis=basis, smoothing=smoothing)
    models = Box.cube(1e3, loss.dimension(2))
    return Problem(federation, loss, models, Transport.features_only(2, p=2.0), WassersteinBall(EPS))


STEP = Basis(((-0.01, 0.01),))


def test_another_models_worst_case_may_be_below_the_lower_bound():
    """The model that steps from -1 to 1 between the rows errs nowhere, and a row gains at most 4 by moving at
    least APART: at the price 4 / APART^2 no move pays, and its worst case is at most 4 (EPS / APART)^2."""
    solution = solve(two_groups(STEP))
    assert solution.gap <= 1e-6
    assert solution.lower > 4 * (EPS / APART) ** 2
    assert "every curve counts as steep" in solution.surrogate
    assert "surrogate" in solution.promise
    assert f"that of another model may be below {solution.lower:.6g}" in repr(solution)


def test_without_a_surrogate_both_ends_are_of_the_optimum():
    lines = solve(two_groups())
    still = solve(replace(two_groups(STEP), ambiguity=WassersteinBall(0.0)))
    for solution in (lines, still):
        assert solution.surrogate is None
        assert solution.promise.startswith("The least worst risk of any model lies in [")
    smooth = solve(replace(two_groups(STEP, 0.1), ambiguity=WassersteinBall(0.0)))
    assert smooth.surrogate == "a term that smooths the curves is added"
    assert "may be below" in smooth.promise


@pytest.mark.parametrize(("loss", "labels"), [(Logistic, [-1.0, 1.0]), (partial(Softmax, 2), [0.0, 1.0])])
def test_slopes_that_are_held_back_make_a_surrogate(loss, labels):
    """Of two classes that a line tells apart the least log loss is 0, far below the bound from below."""
    feature = np.linspace(0.5, 1.0, 20)
    rows = np.column_stack([np.append(-feature, feature), np.repeat(labels, 20)])
    federation = Federation.from_arrays({"a": rows}, "unbounded")
    held, cost = loss(pseudo_rows=0.25), Transport.classification(2)
    problem = Problem(federation, held, Box.cube(1e3, held.dimension(2)), cost)
    solution = solve(problem)
    assert solution.lower > 1e-3
    assert float(np.mean(held.values(100 * solution.x, rows))) < 1e-6
    assert "holds slopes near 0" in solution.surrogate
    assert f"that of another model may be below {solution.lower:.6g}" in solution.promise
    assert surrogate_of(replace(problem, loss=loss())) is None


def test_the_interval_of_curves_holds_the_true_loss():
    """A steep segment makes the bound of the worst case far larger than any loss on the support."""
    rng = np.random.default_rng(0)
    feature = rng.uniform(-1, 1, 400)
    rows = np.column_stack([feature, np.clip(50 * feature, -1, 1)])
    federation = Federation.from_arrays({"a": rows}, Box([-1, -1.1], [1, 1.1]))
    loss = Squared(basis=Basis(((-0.02, 0.02),)), intercept=True)
    problem = Problem(federation, loss, Box.cube(100, 4), Transport(np.ones(2), 2.0))
    steps = np.array([0.0, 50.0, 0.0, 0.0])
    assert np.abs(loss.design(rows)[:, :-1] @ steps[:3] - rows[:, -1]).max() < 0.1
    found = out_of_sample_interval(problem, steps, 0.95, delta=0.0)
    assert found.lower <= 0.1**2
    assert found.upper <= 0.1**2 + found.lipschitz * found.radii[0]


@pytest.mark.parametrize("radius", [0.0, 0.2])
def test_the_page_and_the_command_say_so(tmp_path, capsys, radius):
    rng = np.random.default_rng(0)
    feature = rng.uniform(-2, 2, 200).round(4)
    table = pd.DataFrame(
        {"x": feature, "y": np.abs(feature) + 0.1 * rng.normal(size=200), "site": ["a", "b"] * 100}
    )
    table.to_csv(tmp_path / "rows.csv", index=False)
    given = ("--target", "y", "--client", "site", "--curves", 4, "--personal", "none", "--verbose")
    given += ("--radius", radius, "--out", tmp_path / "model")
    code, out, _ = run(capsys, "fit", tmp_path / "rows.csv", *given)
    assert code == 0
    assert "surrogate of the worst case" in " ".join(out.split())
    words = json.loads((tmp_path / "model" / "report.json").read_text())["solver"]["surrogate"]
    assert "smooths the curves" in words
    assert ("steep everywhere" in words) == (radius > 0)
