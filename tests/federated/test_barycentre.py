"""The barycentre against closed forms, and WRM against plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import ot
import pytest

from bidro.ambiguity import Penalty, WassersteinBall
from bidro.core.errors import BidroError
from bidro.core.sets import Box
from bidro.core.splits import client_id
from bidro.data.federation import Federation
from bidro.federated.algorithm import client_key
from bidro.federated.algorithms import BiDROFL
from bidro.federated.baselines.barycentre import barycentre
from bidro.federated.engines.in_process import run
from bidro.losses import Squared
from bidro.problem.problem import Problem
from bidro.risk.inner import Exact
from bidro.risk.transport import Transport
from bidro.solvers.solve import solve
from tests.small import rows


def distance(one, other):
    """W_2 of two clouds of equal masses."""
    return np.sqrt(ot.emd2([], [], ot.dist(np.asarray(one), np.asarray(other))))


def test_copies_shifted_apart_have_a_copy_between_them():
    cloud = np.random.default_rng(0).normal(size=(25, 3))
    apart = np.array([4.0, 0.0, -2.0])
    fed = Federation.from_arrays({"a": cloud, "b": cloud + apart}, "unbounded")
    centre = np.asarray(barycentre(fed, 25).samples)
    assert distance(centre, cloud + apart / 2) < 1e-5


def test_in_one_dimension_it_averages_quantiles():
    """By size: N_i / N of the sorted rows."""
    rng = np.random.default_rng(1)
    a, b = np.sort(rng.normal(size=30)), np.sort(3 + 2 * rng.normal(size=30))
    fed = Federation.from_arrays({"a": a[:, None], "b": np.concatenate([b, b])[:, None]}, "unbounded")
    centre = np.asarray(barycentre(fed, 30).samples)[:, 0]
    np.testing.assert_allclose(np.sort(centre), a / 3 + 2 * b / 3, atol=1e-6)


def test_what_only_differs_between_clients_is_gone():
    """A column that is constant at each client, with mean 0 over all: exactly 0, no trace of rounding."""
    rng = np.random.default_rng(5)
    clients = [np.column_stack([np.full(12, c), rng.normal(size=12)]) for c in (0.3, 0.1, -0.4)]
    centre = np.asarray(barycentre(Federation.from_arrays(clients, "unbounded"), 10).samples)
    np.testing.assert_array_equal(centre[:, 0], 0.0)
    assert centre[:, 1].std() > 0.1


def test_of_one_client_it_is_the_client():
    cloud = np.random.default_rng(2).normal(size=(20, 2))
    fed = Federation.from_arrays({"a": cloud}, "unbounded")
    assert distance(barycentre(fed, 20).samples, cloud) < 1e-6


def test_labels_stay_labels_in_their_shares():
    rng = np.random.default_rng(3)
    a = np.column_stack([rng.normal(size=(30, 2)), np.repeat([-1.0, 1.0], [20, 10])])
    b = np.column_stack([rng.normal(size=(10, 2)), np.full(10, 1.0)])
    centre = np.asarray(barycentre(Federation.from_arrays([a, b], "unbounded"), 12, classes=True).samples)
    assert sorted(centre[:, 2].tolist()) == [-1.0] * 6 + [1.0] * 6
    # Only the first client has the other class: its barycentre has that client's mean.
    np.testing.assert_allclose(
        centre[centre[:, 2] == -1, :2].mean(axis=0), a[:20, :2].mean(axis=0), atol=1e-6
    )
    with pytest.raises(BidroError, match="2 classes"):
        barycentre(Federation.from_arrays([a, b], "unbounded"), 1, classes=True)


def test_it_is_the_same_by_seed_and_takes_some_of_many_rows():
    big = np.random.default_rng(4).normal(size=(500, 2))
    fed = Federation.from_arrays({"a": big}, "unbounded")
    one, two, other = (np.asarray(barycentre(fed, 20, 50, seed=s).samples) for s in (0, 0, 1))
    np.testing.assert_array_equal(one, two)
    assert not np.allclose(one, other)


def test_wrm_against_plain_numpy():
    """BiDRO-FL on pooled rows is stochastic descent on the penalised loss u^2 rho / (rho - |w|^2)."""
    rho, eta, seed = 20.0, 0.05, 3
    fed = Federation.from_arrays(rows(), "unbounded").pooled()
    problem = Problem(fed, Squared(), Box.cube(1.5, 3), Transport.features_only(4), Penalty(rho))
    found = run(BiDROFL(eta, 0.0, Exact()), problem, 30, seed=seed)
    data, x = np.asarray(fed.samples), np.zeros(3)
    for t in range(1, 31):
        key = client_key(jax.random.key(seed), t, jnp.asarray(client_id("all")))
        zeta = data[int(float(jax.random.uniform(key)) * len(data))]
        u, room = zeta[:3] @ x - zeta[3], rho - x @ x
        x = x - eta * (2 * u * rho / room * zeta[:3] + 2 * u**2 * rho / room**2 * x)
    np.testing.assert_allclose(found.x, x, rtol=1e-10)


def test_the_ball_around_it_is_solved():
    """(RMSE + eps |w|)^2 on the points, against scipy."""
    from scipy.optimize import minimize

    fed = barycentre(Federation.from_arrays(rows(), "unbounded"), 15)
    plain = Problem(fed, Squared(), Box.cube(1.5, 3), Transport.features_only(4), WassersteinBall(0.2))
    data = np.asarray(fed.samples)

    def risk(x):
        return (np.sqrt(np.mean((data[:, :3] @ x - data[:, 3]) ** 2)) + 0.2 * np.linalg.norm(x)) ** 2

    best = minimize(risk, np.full(3, 0.3), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-13})
    assert solve(plain, 1e-9).upper == pytest.approx(best.fun, rel=1e-6)
