"""Training with held-out rows: what is evaluated, when it stops, and runs that were cut."""

from pathlib import Path

import numpy as np
import pytest

from bidro.core.errors import BidroError
from bidro.core.sets import WholeSpace
from bidro.data.federation import Federation
from bidro.federated.algorithms import Adam, ServerOptimised
from bidro.federated.baselines import AFL, DRFA
from bidro.federated.engines import in_process
from bidro.losses import CustomLoss, TorchLoss
from bidro.neural.training import train_network
from bidro.problem.problem import Problem
from bidro.risk.transport import Transport
from tests.networks.factories import small

RNG = np.random.default_rng(0)
ROWS = {name: RNG.normal(size=(size, 4)) for name, size in (("a", 12), ("b", 7), ("c", 5))}
FRESH = {name: RNG.normal(size=(9, 4)) for name in ROWS}
ALGORITHM = ServerOptimised(DRFA(eta_x=0.3, eta_alpha=0.05, local_steps=2, batch=4), Adam(0.05))


@pytest.fixture(scope="module")
def problem():
    loss = TorchLoss(small())
    return Problem(
        Federation.from_arrays(ROWS, "unbounded"),
        loss,
        WholeSpace(loss.dimension(4)),
        Transport.features_only(4),
    )


@pytest.fixture
def short_blocks(monkeypatch):
    """Blocks of 4 rounds, as a large network has them."""
    monkeypatch.setattr(in_process, "_BLOCK_ROUNDS", 4)


def test_evaluations_and_the_best_model_against_plain_numpy(problem, short_blocks):
    found = train_network(ALGORITHM, problem, 20, held_out=FRESH, evaluate_every=4)
    assert [one.round for one in found.evaluations] == [4, 8, 12, 16, 20]
    assert not found.stopped
    best = min(found.evaluations, key=lambda one: one.worst_fifth)
    assert found.round == best.round
    module = problem.loss.trained(found.x)
    means = []
    for rows in FRESH.values():
        output = problem.loss.outputs(found.x, rows[:, :3])[:, 0]
        means.append(np.mean((output - rows[:, 3]) ** 2))
    assert module[0].weight.shape == (6, 3)
    # Of three clients the worst fifth is one.
    assert best.worst_fifth == pytest.approx(max(means), rel=1e-12)
    assert best.mean == pytest.approx(np.mean(means), rel=1e-12)


def test_it_stops_where_kept_out_losses_do_not_fall(problem, short_blocks):
    """Kept-out targets far away: every step towards the training rows is away from them."""
    far = {name: np.column_stack([rows[:, :3], rows[:, 3] * 0 + 1e3]) for name, rows in FRESH.items()}
    near = {name: np.column_stack([rows[:, :3], rows[:, 3] * 0 - 1e3]) for name, rows in FRESH.items()}
    stops = [
        train_network(ALGORITHM, problem, 40, held_out=v, evaluate_every=4, patience=2) for v in (far, near)
    ]
    for found in stops:
        best = min(range(len(found.evaluations)), key=lambda k: found.evaluations[k].worst_fifth)
        assert found.round == found.evaluations[best].round
        if found.stopped:
            assert len(found.evaluations) == best + 3
    assert any(found.stopped for found in stops)
    assert all(found.result.rounds < 40 for found in stops if found.stopped)


def test_a_run_that_was_cut_goes_on_to_the_same_bits(problem, short_blocks, tmp_path, monkeypatch):
    whole = train_network(ALGORITHM, problem, 20, seed=3, held_out=FRESH, evaluate_every=3)
    path = tmp_path / "checkpoint"
    real, calls = in_process._compiled_rounds, []

    def killed(*arguments):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(in_process, "_compiled_rounds", killed)
    with pytest.raises(KeyboardInterrupt):
        train_network(ALGORITHM, problem, 20, seed=3, held_out=FRESH, evaluate_every=3, checkpoint=path)
    monkeypatch.setattr(in_process, "_compiled_rounds", real)
    again = train_network(ALGORITHM, problem, 20, seed=3, held_out=FRESH, evaluate_every=3, checkpoint=path)
    assert again.evaluations == whole.evaluations
    assert again.round == whole.round
    np.testing.assert_array_equal(again.x, whole.x)
    np.testing.assert_array_equal(again.result.x, whole.result.x)
    np.testing.assert_array_equal(again.result.alpha, whole.result.alpha)
    finished = train_network(
        ALGORITHM, problem, 20, seed=3, held_out=FRESH, evaluate_every=3, checkpoint=path
    )
    np.testing.assert_array_equal(finished.x, whole.x)
    for other in (
        lambda: train_network(ALGORITHM, problem, 20, seed=4, held_out=FRESH, checkpoint=path),
        lambda: train_network(AFL(), problem, 20, seed=3, held_out=FRESH, checkpoint=path),
        lambda: train_network(ALGORITHM, problem, 20, seed=3, checkpoint=path),
    ):
        with pytest.raises(BidroError, match="checkpoint of a run with another"):
            other()
    Path(path).write_bytes(path.read_bytes()[:-3])
    with pytest.raises(BidroError, match="damaged"):
        train_network(ALGORITHM, problem, 20, seed=3, held_out=FRESH, checkpoint=path)


def test_bad_requests_say_what_is_wrong(problem, tmp_path):
    with pytest.raises(BidroError, match="patience needs held-out rows"):
        train_network(ALGORITHM, problem, 5, patience=3)
    with pytest.raises(BidroError, match="Client 'z' has held-out rows"):
        train_network(ALGORITHM, problem, 5, held_out={"z": FRESH["a"]})


def test_a_function_is_known_by_its_code():
    """Checkpoints of other functions are told apart, and the same one is the same in another process."""

    def make(power):
        return [lambda w, xi: (w @ xi[:3] - xi[3]) ** 2, lambda w, xi: (w @ xi[:3] - xi[3]) ** 2 + w[0]][
            power
        ]

    one, same, other = (repr(CustomLoss(make(k), np.zeros(3))) for k in (0, 0, 1))
    assert one == same != other
    assert "0x" not in one
