"""Programs that hold few of many clients: what they prove holds for all, and is what the whole one proves."""

import tracemalloc

import jax.numpy as jnp
import numpy as np
import pytest

from bidro.ambiguity import WassersteinBall
from bidro.core.sets import Box, CappedSimplex, L1SimplexBall, Simplex
from bidro.data.federation import Federation
from bidro.losses import Absolute, Logistic, Squared
from bidro.problem.problem import Problem
from bidro.risk.transport import Transport
from bidro.solvers.bundle import model as programs
from bidro.solvers.bundle.model import ConeModel, Cuts, WorkingSet, solved
from bidro.solvers.solve import solve

NOBODY = np.zeros(0, np.int64)


def capped(n, rng, lower=0.0):
    """Caps of different sizes, some of them no more than the least weight, which some clients have."""
    share = rng.dirichlet(np.ones(n))
    low = lower * share * (rng.uniform(size=n) < 0.5)
    return CappedSimplex(low, np.where(rng.uniform(size=n) < 0.1, low, np.minimum(1.0, 3 * share + low)))


def mixtures_of(n, seed):
    rng = np.random.default_rng(seed)
    center = rng.dirichlet(np.ones(n)) * (np.arange(n) % 7 > 0)
    return {
        "simplex": Simplex(n),
        "cap": CappedSimplex(np.zeros(n), np.full(n, 2.5 / n)),
        "random caps": capped(n, rng),
        "least weights": capped(n, rng, 0.6),
        "settled": CappedSimplex(np.full(n, 1 / n), np.full(n, 1 / n)),
        "l1": L1SimplexBall(center / center.sum(), 0.5),
    }


@pytest.mark.parametrize("kind", mixtures_of(9, 0))
def test_members_weights_are_weights_of_the_clients(kind):
    """Whatever weights the members have, the clients' are in A; and members' cuts are the clients' with
    these."""
    n, k = 90, 2
    for seed in range(4):
        rng, of = np.random.default_rng(seed), mixtures_of(n, seed)[kind]
        tops = np.round(rng.normal(size=n), 1)  # many of them the same
        held = WorkingSet.around(of, tops, 5, np.array([3, 70]))
        members = held.share.shape[0]
        assert members == held.mixtures.dimension < n
        assert {3, 70} <= set(held.singly)
        assert len(held.singly) <= 2 * 10 + 2
        cuts = Cuts.at_point(np.arange(n), tops, rng.normal(size=(n, k)), np.zeros(k))
        some = np.flatnonzero(rng.uniform(size=n) < 0.9)
        partly = Cuts.at_point(some, tops[some], rng.normal(size=(len(some), k)), np.ones(k))
        own, z = held.cuts(cuts.with_more(partly)), rng.normal(size=k)
        for _ in range(5):
            a = held.mixtures.project(3 * rng.normal(size=members) / members)
            alpha = held.weights(a)
            assert bool(of.contains(jnp.asarray(alpha)))
            full = own.only(own.origin == 0)
            np.testing.assert_allclose(a @ full.at(z), alpha @ cuts.at(z), atol=1e-12)
        # A member has a cut where all its clients do, and only there.
        later = own.only(own.origin == 1)
        missing = np.setdiff1d(np.arange(n), some)
        has = np.asarray(held.share[:, missing].sum(axis=1)).ravel() == 0
        np.testing.assert_array_equal(later.owner, np.flatnonzero(has))
        used = held.used(cuts.with_more(partly), own, (own.origin == 1).astype(float))
        assert not used[:n].any()
        np.testing.assert_array_equal(
            some[used[n:]], some[np.isin(some, np.unique(held.share[later.owner].nonzero()[1]))]
        )


def test_clients_that_become_the_worst_are_held_in_time():
    """At z = 0 the first clients are the worst, and where they are best, others that were left out."""
    n = 400
    slope = np.where(np.arange(n) < 300, 1.0, -np.linspace(1.0, 3.0, n))
    level = np.where(np.arange(n) < 300, 1.0, 0.5)
    cuts = Cuts.at_point(np.arange(n), level, slope[:, None], np.zeros(1))
    line = Box.cube(10.0, 1)
    for of in (Simplex(n), CappedSimplex(np.zeros(n), np.full(n, 4 / n))):
        model = ConeModel(line, line, of, (), nonnegative=True)
        found = solved(model, cuts, np.zeros(1), None, 1.0, NOBODY)
        whole = model.solve(cuts, np.zeros(1), None, 1.0)
        assert found.value == pytest.approx(whole.value, abs=1e-2)
        assert found.value >= found.answer.value - 1e-9
        assert found.answer.value <= whole.value + 1e-9
        assert bool(of.contains(jnp.asarray(found.alpha)))
        assert len(found.held.mixtures.polytope().offset) < n
    assert solved(model, cuts, np.zeros(1), None, 1.0, NOBODY).value < 1.0


def many(n, loss, of, seed=0, alike=False):
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((n, 6, 2))
    if alike:
        features[n // 2 :] = features[: n - n // 2]
    own = np.array([1.0, -0.5]) + 0.5 * rng.standard_normal((n, 2))
    own[n // 2 :] = own[: n - n // 2] if alike else own[n // 2 :]
    y = np.einsum("nrd,nd->nr", features, own)
    y = y + 0.3 * (np.zeros((n, 1)) if alike else rng.standard_normal((n, 6)))
    if loss.labels is not None:
        y, metric = np.where(y > 0, 1.0, -1.0), Transport.classification(3, 1.0)
    else:
        metric = Transport.features_only(3, 2.0 if isinstance(loss, Squared) else 1.0)
    clients = list(np.concatenate([features, y[:, :, None]], axis=2))
    federation = Federation.from_arrays(clients, "unbounded")
    return Problem(federation, loss, Box.cube(10.0, 2), metric, WassersteinBall(0.1), of)


@pytest.mark.parametrize("kind", mixtures_of(9, 0))
@pytest.mark.parametrize(
    "loss",
    [Squared(), Logistic(), pytest.param(Absolute(), marks=pytest.mark.slow)],
    ids=["squared", "logistic", "absolute"],
)
def test_few_clients_prove_what_all_of_them_do(monkeypatch, loss, kind):
    """At n = 60, also with every client there twice."""
    of = mixtures_of(60, 5)[kind]
    for alike in (False, True):
        problem = many(60, loss, of, alike=alike)
        monkeypatch.setattr(programs, "_FEW_TIMES", 1000)
        whole = solve(problem)
        monkeypatch.setattr(programs, "_FEW_TIMES", 1)
        monkeypatch.setattr(programs, "_NEAREST", 4)
        few = solve(problem)
        assert whole.gap <= 1e-6
        assert few.gap <= 1e-6
        assert max(few.lower, whole.lower) <= min(few.upper, whole.upper) * (1 + 1e-12)
        assert bool(of.contains(jnp.asarray(few.alpha)))
        assert few.rounds <= whole.rounds + 6


@pytest.mark.parametrize("kind", ["simplex", "cap", "least weights", "l1"])
def test_programs_do_not_grow_with_the_clients(monkeypatch, kind):
    n, sizes = 3000, []
    plain = ConeModel.solve

    def counted(self, cuts, *rest):
        sizes.append((self.mixtures.dimension, len(cuts.owner)))
        return plain(self, cuts, *rest)

    problem = many(n, Squared(), mixtures_of(n, 5)[kind])
    problem.clients  # noqa: B018
    monkeypatch.setattr(ConeModel, "solve", counted)
    tracemalloc.start()
    found = solve(problem, method="curvature")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.gap <= 1e-6
    assert max(size for size, _ in sizes) < 500
    # A table of clients by clients would take 72 million bytes.
    assert peak < 36e6
