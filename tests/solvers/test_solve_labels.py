"""Labels that change at a price, where the model's slope is 0: cuts there must hold for every model."""

import numpy as np
import pytest

from bidro.ambiguity import WassersteinBall
from bidro.core.sets import Box
from bidro.data.federation import Federation
from bidro.losses import Hinge, Logistic, SmoothedHinge
from bidro.problem.problem import Problem
from bidro.problem.worst_case import robust_risk
from bidro.risk.transport import Transport
from bidro.solvers.solve import solve
from tests.small import rows

DATA = {k: np.column_stack([v[:, :3], np.where(v[:, 3] > 0.2, 1.0, -1.0)]) for k, v in rows().items()}


def problem(loss, kappa):
    fed = Federation.from_arrays({"all": np.concatenate(list(DATA.values()))}, "unbounded")
    transport = Transport.classification(4, 2.0, kappa)
    return Problem(fed, loss, Box.cube(10.0, 3), transport, WassersteinBall(0.1))


@pytest.mark.slow
@pytest.mark.parametrize("loss", [Logistic(), SmoothedHinge(), Hinge()], ids=lambda v: type(v).__name__)
def test_the_certified_lower_bound_is_below_every_model_s_risk(loss):
    """p = 2, unbounded: the solver starts at x = 0, where moving features earns nothing but changing labels
    does not come free."""
    found = solve(problem(loss, 1.0), 1e-3)
    other = solve(problem(loss, np.inf), 1e-3).x
    assert found.lower <= found.upper
    for x in (other, 0.5 * other, found.x, np.zeros(3), np.ones(3)):
        assert found.lower <= float(robust_risk(problem(loss, 1.0), x).value[0]) + 1e-9


def test_at_zero_the_risk_is_that_of_no_move():
    """At x = 0 the loss is log 2 whatever feature or label a row has: worked out by hand."""
    risk = robust_risk(problem(Logistic(), 1.0), np.zeros(3))
    assert float(risk.value[0]) == pytest.approx(np.log(2), rel=1e-12)
    assert float(risk.attained[0]) == pytest.approx(np.log(2), rel=1e-12)
