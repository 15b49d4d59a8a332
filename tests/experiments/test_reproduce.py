"""`bidro reproduce` end to end at a small size, and the numbers it must get right at any size."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pytest
from typer.testing import CliRunner

from bidro.cli import app
from bidro.experiments import reproduce
from bidro.experiments.reproduce import (
    PAPER_MSE,
    PAPER_ROUNDS,
    REFERENCE_GAP,
    admissible_problem,
    ambiguity_picture,
    least_largest_risk,
)
from bidro.experiments.simulation import COEFFICIENTS, simulate
from bidro.report.figures import clean_test_loss
from bidro.risk.inner import Exact
from bidro.solvers.solve import solve


def bidro(*arguments, **kwargs):
    return subprocess.run(
        [sys.executable, "-c", "from bidro.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        **kwargs,
    )


# The picture of full size takes longer than all training; `make test-slow` draws it.
FEW_DISTANCES = partial(ambiguity_picture, cloud=60, mixtures=4, draws=10)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    out = tmp_path_factory.mktemp("reproduce")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduce, "ambiguity_picture", FEW_DISTANCES)
        result = CliRunner().invoke(app, ["reproduce", "--runs", "3", "--rounds", "400", "--out", str(out)])
    assert result.exit_code == 0, result.output
    return out, result.output


def test_it_writes_what_it_promises(small):
    out, printed = small
    assert sorted(p.name for p in out.iterdir()) == [
        "ambiguity_set.png",
        "clean_test_loss.png",
        "convergence.png",
        "results.json",
    ]
    for name in ("ambiguity_set", "clean_test_loss", "convergence"):
        head = (out / f"{name}.png").read_bytes()[:8]
        assert head == b"\x89PNG\r\n\x1a\n"
    results = json.loads((out / "results.json").read_text())
    assert list(results["methods"]) == ["BiDRO-FL", "DRO-FL", "AFL", "FedAvg"]
    for name, paper in (("BiDRO-FL", 0.0047), ("DRO-FL", 0.00569), ("AFL", 0.01318), ("FedAvg", None)):
        row = results["methods"][name]
        assert row["paper"] == paper
        assert row["paper_rounds"] == 10_000
        values = np.array(row["mse_by_run"])
        assert row["mse_mean"] == pytest.approx(values.mean())
        assert row["mse_std"] == pytest.approx(values.std(ddof=1))
        assert row["mse_se"] == pytest.approx(values.std(ddof=1) / np.sqrt(3))
        assert f"{row['mse_mean']:.5f}" in printed
        assert sum(row["final_weights_mean"].values()) == pytest.approx(1.0)
    assert results["seeds"] == [2026, 2027, 2028]
    assert results["methods"]["BiDRO-FL"]["settings"]["rho"] == [15.0, 10.0, 5.0, 4.0, 2.5]
    settings = results["methods"]["BiDRO-FL"]["settings"]
    assert settings["oracle"] == {"steps": 30, "step_size": 0.003, "perturbation": 0.01}
    assert "diverges" in results["note"]


@pytest.mark.slow
def test_a_single_run_has_no_spread(tmp_path):
    arguments = ["reproduce", "--runs", "1", "--rounds", "7", "--out", str(tmp_path)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    row = json.loads((tmp_path / "results.json").read_text())["methods"]["AFL"]
    assert (row["mse_std"], row["mse_se"]) == (None, None)


@pytest.mark.parametrize(("rounds", "shown"), [(10_000, True), (2_000, False)])
def test_the_papers_final_values_stand_beside_as_many_rounds_only(rounds, shown):
    at, values = np.array([rounds // 2, rounds]), {"AFL": np.array([[0.2, 0.1], [0.3, 0.1]])}
    figure = clean_test_loss(at, values, PAPER_MSE, PAPER_ROUNDS)
    (axes,) = figure.axes
    words = [text.get_text() for text in axes.get_legend().get_texts()]
    assert ("final value in the paper" in words) == shown
    assert any(list(line.get_ydata()) == [PAPER_MSE["AFL"]] for line in axes.get_lines()) == shown
    assert ("10,000 rounds and not shown" in figure.texts[0].get_text().replace("\n", " ")) != shown


def test_the_reference_of_the_admissible_problem_against_a_random_search():
    """Squared loss away from the box: F_i = mean residual^2 rho / (rho - ||(x, -1)||^2)."""
    run = simulate(2026)
    problem = admissible_problem(run)
    best, found = (
        solve(problem, gap=REFERENCE_GAP).lower,
        least_largest_risk(problem, Exact(), [COEFFICIENTS]),
    )
    parts = np.split(run.samples, np.cumsum(problem.federation.sizes)[:-1])

    def worst(x):
        a = np.append(x, -1.0)
        return max(
            np.mean((p @ a) ** 2) * r / (r - a @ a)
            for p, r in zip(parts, np.asarray(problem.rho), strict=True)
        )

    rng = np.random.default_rng(0)
    x, step = COEFFICIENTS.copy(), 0.1
    for _ in range(4000):
        trial = x + step * rng.normal(size=3)
        if worst(trial) < worst(x):
            x = trial
        else:
            step = max(step * 0.995, 1e-5)
    for value in (best, found):
        assert value <= worst(x) + 1e-9
        assert value == pytest.approx(worst(x), rel=1e-3)
    assert found == pytest.approx(best, rel=1e-8)


def test_the_picture_holds_real_distances():
    picture = FEW_DISTANCES(simulate(2026))
    assert picture.true.shape == picture.empirical.shape == (6, 2)
    assert 0.5 < picture.explained <= 1.0
    # Fewer samples need a larger ball: client 1 has 30 rows, client 5 has 300.
    assert picture.radii[0] > picture.radii[4] > 0


def test_help_teaches_by_example_and_imports_nothing_heavy():
    result = bidro("reproduce", "--help")
    assert result.returncode == 0
    assert "Example" in result.stdout
    heavy = subprocess.run(
        [sys.executable, "-c", "import sys, bidro.cli; print('jax' in sys.modules, 'numpy' in sys.modules)"],
        capture_output=True,
        text=True,
    )
    assert heavy.stdout.split() == ["False", "False"]


def test_errors_are_one_sentence_with_the_right_exit_code(tmp_path):
    usage = bidro("reproduce", "--runs", "0")
    assert usage.returncode == 2
    assert "Traceback" not in usage.stderr
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    refused = bidro("reproduce", "--runs", "1", "--rounds", "10", "--out", str(blocked / "below"))
    assert refused.returncode == 1
    assert refused.stderr.startswith("bidro: The folder")
    assert len(refused.stderr.strip().splitlines()) == 1
    shown = bidro("--debug", "reproduce", "--runs", "1", "--rounds", "10", "--out", str(blocked / "below"))
    assert "Traceback" in shown.stderr


@pytest.mark.slow
def test_an_interrupt_leaves_nothing_half_written(tmp_path):
    out = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-c", "from bidro.cli import main; main()", "reproduce", "--out", str(out)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    while not out.exists():
        time.sleep(0.1)
    time.sleep(2)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "interrupted" in errors
    assert list(out.iterdir()) == []
