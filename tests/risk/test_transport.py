"""Transport costs by hand, and Wasserstein distances against POT's own and a linear program."""

import jax.numpy as jnp
import numpy as np
import ot
import pytest
from scipy.optimize import linprog

from bidro.core.errors import BidroError
from bidro.risk.transport import Transport, wasserstein_distance


def test_cost_by_hand():
    zeta, xi = jnp.array([1.0, 2.0, 1.0]), jnp.array([4.0, 6.0, 1.0])
    assert float(Transport.euclidean(3).cost(zeta, xi)) == pytest.approx(25.0)
    assert float(Transport.euclidean(3, 1.0).cost(zeta, xi)) == pytest.approx(5.0)
    assert float(Transport.euclidean(3, 3.0).cost(zeta, xi)) == pytest.approx(125.0)
    scaled = Transport(np.array([2.0, 0.5, 1.0]), 2.0)
    assert float(scaled.cost(zeta, xi)) == pytest.approx(36.0 + 4.0)


def test_labels_that_cannot_move_and_labels_with_a_price():
    zeta, xi = jnp.array([0.0, 0.0, -1.0]), jnp.array([3.0, 4.0, 1.0])
    assert np.isinf(Transport.features_only(3).cost(zeta, xi))
    assert np.isinf(Transport.classification(3).cost(zeta, xi))
    priced = Transport.classification(3, 2.0, label_cost=1.5)
    assert float(priced.cost(zeta, xi)) == pytest.approx(25.0 + 2.25)
    # An immovable feature stays immovable where labels have a price.
    frozen = Transport(np.array([1.0, np.inf, 1.0]), 2.0, discrete_label=True, label_cost=1.5)
    assert np.isinf(frozen.cost(zeta, xi))
    assert float(frozen.cost(zeta, jnp.array([3.0, 0.0, 1.0]))) == pytest.approx(9.0 + 2.25)


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_distance_in_one_dimension_against_the_closed_form(p):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(40, 1)), rng.normal(size=(55, 1)) + 1
    expected = ot.wasserstein_1d(a[:, 0], b[:, 0], p=p) ** (1 / p)
    assert wasserstein_distance(a, b, Transport.euclidean(1, p)) == pytest.approx(expected)


@pytest.mark.parametrize("transport", [Transport.euclidean(3, 1.0), Transport.classification(3, 2.0, 0.8)])
def test_distance_against_a_linear_program(transport):
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(6, 3)), rng.normal(size=(7, 3))
    a[:, 2], b[:, 2] = rng.choice([-1.0, 1.0], 6), rng.choice([-1.0, 1.0], 7)
    masses = rng.dirichlet(np.ones(6))
    costs = np.array([[float(transport.cost(jnp.asarray(u), jnp.asarray(v))) for v in b] for u in a])
    rows = np.kron(np.eye(6), np.ones(7))
    columns = np.kron(np.ones(6), np.eye(7))
    plan = linprog(
        costs.ravel(), A_eq=np.vstack([rows, columns]), b_eq=np.concatenate([masses, np.full(7, 1 / 7)])
    )
    found = wasserstein_distance(a, b, transport, a_masses=masses)
    assert found == pytest.approx(plan.fun ** (1 / transport.p), rel=1e-8)


def test_distance_is_infinite_where_labels_cannot_match():
    a, b = np.array([[0.0, -1.0], [0.0, -1.0]]), np.array([[0.0, -1.0], [0.0, 1.0]])
    assert np.isinf(wasserstein_distance(a, b, Transport.classification(2)))
    assert wasserstein_distance(a, a + np.array([1.0, 0.0]), Transport.classification(2)) == pytest.approx(
        1.0
    )


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Transport.euclidean(3, 0.5), "at least 1"),
        (lambda: Transport(np.array([1.0, 0.0])), "positive"),
        (lambda: Transport(np.ones(2), 2.0, True, -1.0), "label cost"),
        (lambda: Transport(np.ones(2), 2.0, False, 1.0), "discrete"),
        (lambda: wasserstein_distance(np.ones((2, 3)), np.ones((2, 2)), Transport.euclidean(3)), "columns"),
    ],
)
def test_bad_input_says_what_is_wrong(make, word):
    with pytest.raises(BidroError, match=word):
        make()
