"""The in-process engine: exact resume, records, batches, and the plain loop for untraceable servers."""

from typing import ClassVar

import jax
import numpy as np
import pytest

from bidro.core.errors import BidroError
from bidro.core.pytrees import pytree
from bidro.federated.algorithms import BiDROFL
from bidro.federated.algorithms.bidro_fl import Reply
from bidro.federated.baselines import AFL, FedAvg
from bidro.federated.engines import in_process
from bidro.federated.engines.in_process import run, run_many
from tests.small import admissible, paper_like, plain


def means(seed=0):
    return plain(admissible(seed=seed))


@pytest.mark.parametrize("algorithm", [BiDROFL(), AFL(), FedAvg(local_steps=2)])
def test_a_resumed_run_is_the_same_to_the_bit(algorithm):
    problem = paper_like() if isinstance(algorithm, BiDROFL) else plain(paper_like())
    whole = run(algorithm, problem, 90, seed=4, record_every=10)
    part = run(algorithm, problem, 40, seed=4, record_every=10)
    resumed = run(algorithm, problem, 90, seed=4, record_every=10, resume=part)
    assert np.array_equal(whole.x, resumed.x)
    assert np.array_equal(whole.alpha, resumed.alpha)
    assert np.array_equal(whole.history_rounds, resumed.history_rounds)
    for a, b in zip(whole.history, resumed.history, strict=True):
        assert np.array_equal(a, b)


def test_records_are_where_they_should_be(monkeypatch):
    result = run(AFL(), plain(paper_like()), 25, record_every=10)
    assert result.history_rounds.tolist() == [10, 20, 25]
    assert np.array_equal(result.history.x[-1], result.x)
    # Small limits cut the work into many calls and the records into parts of a record.
    monkeypatch.setattr(in_process, "_DRAWN_NUMBERS", 45)
    pieces = run(BiDROFL(), paper_like(), 25, record_every=10)
    monkeypatch.undo()
    whole = run(BiDROFL(), paper_like(), 25, record_every=10)
    assert pieces.history_rounds.tolist() == [10, 20, 25]
    assert np.array_equal(pieces.history.x, whole.history.x)


def test_progress_is_reported_and_can_interrupt(monkeypatch):
    monkeypatch.setattr(in_process, "_READ_NUMBERS", 10 * 49 * 4)
    seen = []
    run(AFL(), plain(paper_like()), 50, record_every=5, progress=seen.append)
    assert seen == [10, 20, 30, 40, 50]

    def stop(done):
        if done >= 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(AFL(), plain(paper_like()), 50, record_every=5, progress=stop)


@pytest.mark.parametrize("algorithm", [BiDROFL(), AFL(), FedAvg()])
def test_repeated_runs_equal_single_runs(algorithm):
    problem = paper_like() if isinstance(algorithm, BiDROFL) else plain(paper_like())
    samples = np.stack([paper_like(seed=s).federation.samples for s in range(5)])
    many = run_many(algorithm, problem, samples, 40, seeds=[10, 11, 12, 13, 14], record_every=20)
    for k, result in enumerate(many):
        alone = run(algorithm, paper_like(seed=k), 40, seed=10 + k, record_every=20)
        np.testing.assert_allclose(result.x, alone.x, rtol=1e-12)
        np.testing.assert_allclose(result.history.alpha, alone.history.alpha, atol=1e-12)
    again = run_many(algorithm, problem, samples, 40, seeds=[10, 11, 12, 13, 14], record_every=20)
    assert all(np.array_equal(a.x, b.x) for a, b in zip(many, again, strict=True))


@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_workers_does_not_matter(workers):
    samples = np.stack([paper_like(seed=s).federation.samples for s in range(4)])
    two = run_many(BiDROFL(), paper_like(), samples, 30, seeds=range(4), workers=2)
    other = run_many(BiDROFL(), paper_like(), samples, 30, seeds=range(4), workers=workers)
    for a, b in zip(two, other, strict=True):
        np.testing.assert_allclose(a.x, b.x, rtol=1e-12)


@pytree
class UntraceableAlgorithm1(BiDROFL):
    """Algorithm 1 whose server insists on real numbers, as one that calls a solver does."""

    reply_type: ClassVar[type] = Reply

    @property
    def traceable_server(self):
        return False

    def server(self, state, replies, replied):
        assert not isinstance(replies.x, jax.core.Tracer)
        return super().server(state, replies, replied)


def test_a_server_that_cannot_be_traced_runs_in_a_plain_loop():
    traced = run(BiDROFL(), paper_like(), 12, seed=2, record_every=5)
    plain = run(UntraceableAlgorithm1(), paper_like(), 12, seed=2, record_every=5)
    np.testing.assert_allclose(plain.x, traced.x, rtol=1e-12)
    np.testing.assert_allclose(plain.history.x_average, traced.history.x_average, rtol=1e-12)
    with pytest.raises(BidroError, match="traceable"):
        run_many(UntraceableAlgorithm1(), paper_like(), np.zeros((1, 49, 4)), 3, [0])


def test_values_that_stop_being_finite_are_an_error_with_the_round():
    with pytest.raises(BidroError, match=r"Between rounds 1 and \d+ a value stopped being finite"):
        run(FedAvg(eta_x=1e200), paper_like_unbounded(), 20)


def paper_like_unbounded():
    from bidro.core.sets import WholeSpace
    from bidro.data.federation import Federation
    from bidro.losses import Squared
    from bidro.problem.problem import Problem
    from bidro.risk.transport import Transport
    from tests.small import rows

    fed = Federation.from_arrays(rows(), "unbounded")
    return Problem(fed, Squared(), WholeSpace(3), Transport.euclidean(4))


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: run(AFL(), means(), 0), "at least one; got 0"),
        (lambda: run(AFL(), means(), 5, record_every=0), "record_every"),
        (lambda: run(AFL(), means(), 2.5), "whole number of rounds"),
        (lambda: run(AFL(), means(), 5, seed=2**70), "seed"),
        (
            lambda: run(AFL(), means(seed=1), 5, resume=run(AFL(), means(), 3)),
            "problem",
        ),
        (
            lambda: run(AFL(), means(seed=2), 5, resume=run(AFL(), means(), 3)),
            "problem",
        ),
        (
            lambda: run(AFL(eta_x=0.5), means(), 5, resume=run(AFL(), means(), 3)),
            "algorithm",
        ),
        (
            lambda: run(AFL(), means(), 5, seed=1, resume=run(AFL(), means(), 3)),
            "seed",
        ),
        (
            lambda: run(AFL(), means(), 3, resume=run(AFL(), means(), 3)),
            "3 rounds already",
        ),
        (
            lambda: run_many(AFL(), means(), np.zeros((2, 49, 4)), 3, [0]),
            "one table of rows a seed",
        ),
        (lambda: run_many(AFL(), means(), np.zeros((1, 48, 4)), 3, [0]), "(49, 4)"),
    ],
)
def test_bad_requests_say_what_is_wrong(make, word):
    with pytest.raises(BidroError) as error:
        make()
    assert word in str(error.value)
