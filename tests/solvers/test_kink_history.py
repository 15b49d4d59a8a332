"""Which models go along with a question where kinks of a loss are followed."""

import numpy as np
import pytest

from bidro.core.sets import WholeSpace
from bidro.losses import Absolute, Hinge, Huber, Logistic, Pinball
from bidro.risk.inner import Inner
from bidro.risk.transport import Transport
from bidro.solvers.bundle.state import Following, Smoothing, kink_history


def test_the_last_models_go_along_and_none_but_the_same_before_the_first():
    known = Smoothing(1.0)
    for t in range(5):
        x, width = np.array([t, -t], float), np.asarray(0.1**t)
        sent = Following.of(x, width, known.history, 3)
        wanted = [[s, -s, 0.1**s] for s in range(t)][-3:] or [[0.0, 0.0, 1.0]]
        np.testing.assert_array_equal(sent.before, [wanted[0]] * (3 - len(wanted)) + wanted)
        assert (sent.x is x, sent.width is width) == (True, True)
        known = known._replace(width=float(width)).after(x, 3)
        assert len(known.history) == min(t + 1, 3)
    assert Smoothing(0.5).after(x, 0).history.shape == (0, 0)


@pytest.mark.parametrize(
    ("loss", "p", "follows"),
    [
        (Absolute(), 1.0, True),
        (Pinball(quantile=0.2), 1.0, True),
        (Hinge(), 1.0, True),
        (Hinge(), 2.0, False),
        (Huber(threshold=1.0), 1.0, False),
        (Logistic(), 1.0, False),
    ],
)
def test_kinks_are_followed_where_samples_stay_and_curvature_is_sent(loss, p, follows):
    transport = Transport.features_only(4, p) if loss.labels is None else Transport.classification(4, p)
    inner = Inner(transport, WholeSpace(4), loss)
    assert (kink_history(inner, True) > 0) == follows
    assert kink_history(inner, False) == 0
