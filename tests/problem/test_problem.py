"""Problems: which have a finite value, and what is said of those that do not."""

import jax.numpy as jnp
import numpy as np
import pytest

from bidro.ambiguity import NonconcaveInnerWarning, Penalty, UncheckedDomainWarning
from bidro.core.errors import BidroError
from bidro.core.sets import Box, CappedSimplex, ScaledNormCut, Simplex, WholeSpace
from bidro.data.federation import Federation
from bidro.losses import Absolute, CustomLoss, Hinge, Logistic, Softmax, Squared
from bidro.problem.client import Client
from bidro.problem.problem import Problem
from bidro.risk.inner import Exact
from bidro.risk.transport import Transport
from tests.small import admissible, federation, rows

UNBOUNDED = Federation.from_arrays(rows(), "unbounded")
LABELLED = {k: np.column_stack([v[:, :3], np.sign(v[:, 3]) + (v[:, 3] == 0)]) for k, v in rows().items()}


def problem(loss=None, models=None, transport=None, rho=5.0, fed=UNBOUNDED, **kwargs):
    return Problem(
        fed,
        loss or Squared(),
        models or Box.cube(1.5, 3),
        transport or Transport.euclidean(4),
        None if rho is None else Penalty(rho),
        **kwargs,
    )


def test_defaults():
    made = admissible()
    assert isinstance(made.mixture_set, Simplex)
    np.testing.assert_allclose(made.initial_weights, np.array([7, 12, 30]) / 49)
    np.testing.assert_array_equal(made.initial_model, np.zeros(3))


def test_on_an_unbounded_support_models_are_kept_where_the_loss_is_finite():
    """rho = 5 > ||(w, -1)||^2 means ||w||^2 < 4; the projection stays inside and the loss finite."""
    made = problem(rho=[9.0, 5.0, 7.0])
    assert isinstance(made.models, Box)
    assert isinstance(made.domain, ScaledNormCut)
    assert float(made.domain.radius) == pytest.approx(2.0, rel=1e-5)
    x = made.domain.project(jnp.array([9.0, 9.0, 9.0]))
    assert float(jnp.linalg.norm(x)) <= 2.0
    assert np.isfinite(Exact().maximise(made.inner, x, made.federation.samples[0], 5.0).value)


def test_p_1_keeps_models_where_the_penalty_exceeds_the_slope():
    made = problem(Absolute(), rho=1.4, transport=Transport.euclidean(4, 1.0))
    assert float(made.domain.radius) == pytest.approx(np.sqrt(1.4**2 - 1))
    free = problem(Absolute(), rho=0.1, transport=Transport.features_only(4, 1.0))
    assert float(free.domain.radius) == pytest.approx(0.1)


def test_linear_growth_against_a_squared_cost_needs_no_domain():
    with pytest.warns(NonconcaveInnerWarning):
        made = problem(Absolute(), rho=0.1)
    assert isinstance(made.domain, Box)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: problem(rho=0.9), ["rho = 0.9", "infinite for every model", "target"]),
        (
            lambda: problem(rho=5.0, models=Box(2 * np.ones(3), 3 * np.ones(3))),
            ["rho = 5", "infinite for every model in X", "raise rho"],
        ),
        (lambda: problem(transport=Transport.euclidean(4, 1.0)), ["order 2", "p = 1", "every model"]),
        (lambda: problem(rho=[1.0, 2.0]), ["3 clients", "(2,)"]),
        (lambda: problem(rho=-1.0), ["positive"]),
        (lambda: problem(rho=np.nan), ["positive"]),
        (lambda: problem(rho="a"), ["numbers", "'a'"]),
        (lambda: problem(mixtures=Box.cube(1.0, 3)), ["mixtures must be a Simplex"]),
        (lambda: problem(models="ball"), ["models must be a Box"]),
        (lambda: problem(transport=2.0), ["must be a Transport"]),
        (lambda: problem(Squared), ["Squared()"]),
        (
            lambda: Problem(federation(), Squared(), Box.cube(1, 3), Transport.euclidean(4), 5.0),
            ["Penalty(rho)", "5.0"],
        ),
        (lambda: problem(transport=Transport.euclidean(5)), ["5 coordinates", "4"]),
        (lambda: problem(models=Box.cube(1.0, 4)), ["dimension 4", "3 parameters"]),
        (lambda: problem(mixtures=Simplex(4)), ["4 clients", "3"]),
        (lambda: problem(Hinge()), ["discrete labels", "Transport.classification"]),
        (lambda: problem(transport=Transport.classification(4)), ["continuous target"]),
        (
            lambda: problem(Logistic(), transport=Transport.classification(4)),
            ["'site-0'", "row 0", "column-4", "-1, 1", "recode"],
        ),
    ],
)
def test_impossible_problems_get_one_clear_sentence(make, words):
    with pytest.raises(BidroError) as error:
        make()
    for word in words:
        assert word in str(error.value), str(error.value)


def test_a_penalty_below_the_curvature_warns_with_the_number_and_is_no_error():
    with pytest.warns(NonconcaveInnerWarning, match=r"rho = 2.5 of client 'site-2'.*30001"):
        Problem(federation(), Squared(), Box.cube(100.0, 3), Transport.euclidean(4), Penalty([15, 10, 2.5]))


def test_other_losses_warn_too_and_silence_means_nothing_is_known():
    models = Box.cube(100.0, 3)
    bent = CustomLoss(lambda w, xi: jnp.sum(w * xi[:3]) ** 2, jnp.zeros(3), curvature_bound=1000.0)
    with pytest.warns(NonconcaveInnerWarning, match="up to 500"):
        problem(bent, models, rho=1.0, fed=federation())
    with pytest.warns(NonconcaveInnerWarning, match="kinks"):
        problem(Absolute(), models, rho=1.0, fed=federation())
    classes = {k: np.column_stack([v[:, :3], (v[:, 3] > 0).astype(float)]) for k, v in rows().items()}
    fed = Federation.from_arrays(classes, Box.cube(3.0, 4))
    with pytest.warns(NonconcaveInnerWarning, match="Softmax"):
        problem(Softmax(), Box.cube(100.0, 6), Transport.classification(4), 1.0, fed)


def test_softmax_on_an_unbounded_support():
    classes = {k: np.column_stack([v[:, :3], (v[:, 3] > 0).astype(float)]) for k, v in rows().items()}
    fed = Federation.from_arrays(classes, "unbounded")
    transport = Transport.classification(4, 1.0)
    with pytest.warns(UncheckedDomainWarning, match="too steep for rho = 1"):
        problem(Softmax(), Box.cube(5.0, 6), transport, 1.0, fed)
    apart = Box(np.array([10.0, 0, 0, -10.0, 0, 0]), np.array([11.0, 1, 1, -9.0, 1, 1]))
    with pytest.raises(BidroError, match="differ by at least 19"):
        problem(Softmax(), apart, transport, 1.0, fed)


def test_no_warning_where_the_domain_itself_keeps_the_problem_concave(recwarn):
    """rho = 2 on an unbounded support, labels fixed: models are cut to ||w||^2 < 2."""
    problem(rho=2.0, transport=Transport.features_only(4))
    assert not [w for w in recwarn if w.category is NonconcaveInnerWarning]


def test_a_client_alone_is_checked_like_a_problem():
    good = LABELLED["site-0"]
    made = Client.single("a", good, Logistic(), Transport.classification(4), Box.cube(3.0, 4), Penalty(2.0))
    assert float(made.rho) == 2.0
    with pytest.raises(BidroError, match="recode"):
        Client.single("a", rows()["site-0"], Logistic(), Transport.classification(4), Box.cube(3.0, 4))
    with pytest.raises(BidroError, match="5 coordinates"):
        Client.single("a", good, Logistic(), Transport.classification(5), Box.cube(3.0, 4))
    with pytest.raises(BidroError, match="positive"):
        Client.single("a", good, Logistic(), Transport.classification(4), Box.cube(3.0, 4), Penalty(-3.0))


def test_labels_that_can_change_must_lie_in_the_support():
    ones = {"a": np.array([[0.1, 0.2, 0.3, 1.0]])}
    fed = Federation.from_arrays(ones, Box(np.array([-1, -1, -1, 1.0]), np.ones(4)))
    with pytest.raises(BidroError, match=r"keeps them in \[1, 1\]"):
        problem(Logistic(), transport=Transport.classification(4, 2.0, 0.5), fed=fed)


def test_logistic_on_labels():
    fed = Federation.from_arrays(LABELLED, Box.cube(3.0, 4))
    made = Problem(
        fed,
        Logistic(intercept=True),
        Box.cube(2.0, 4),
        Transport.classification(4),
        Penalty(5.0),
        mixtures=CappedSimplex.around_proportions(fed.sizes, 2.0),
    )
    assert made.dimension == 4
    assert bool(made.mixture_set.contains(made.initial_weights))


def test_whole_space_models_on_a_bounded_support():
    with pytest.warns(NonconcaveInnerWarning, match="up to inf"):
        problem(fed=federation(), models=WholeSpace(3))


def test_what_is_printed_names_clients_and_columns_but_holds_no_row():
    """A row in a log or a traceback has left its client."""
    secret = 1234.5678
    parts = {"north": np.full((3, 2), secret), "south": np.full((4, 2), secret)}
    made = problem(
        models=Box.cube(1.5, 1),
        transport=Transport.euclidean(2),
        rho=None,
        fed=Federation.from_arrays(parts, "unbounded", ["age", "y"]),
    )
    for shown in (made.federation, made, made.clients, made.clients.rows):
        assert "1234" not in repr(shown)
        assert len(repr(shown)) < 500
    assert "north: 3, south: 4" in repr(made.federation)
    assert "age, y" in repr(made)
    assert "(7, 2)" in repr(made.clients)
    many = Federation.from_arrays([np.ones((1, 2))] * 50, "from data")
    assert "50 in all" in repr(many)
    assert len(repr(many)) < 300
    repr(made.clients.client_axes())
    assert "elsewhere" in repr(Federation.elsewhere({"a": 3}, ["x", "y"]))
    alone = Client.single("a", np.full((3, 2), secret), Squared(), Transport.euclidean(2), WholeSpace(2))
    assert "1234" not in repr(alone)
