"""Which clients take a personal model, and how strongly it is held: the rule by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from bidro.core.errors import BidroError
from bidro.losses import Softmax, Squared
from bidro.selection.personal import SCALES, Losses
from bidro.selection.personalise import (
    Freedoms,
    attainable,
    can_be_personal,
    check_personal,
    personal_choice,
)

ROWS = np.array([10.0, 20.0, 30.0, 40.0])
FREE = Freedoms(np.array([[0.0, 0.0], [0.1, 0.4]]), np.array([0.3, 0.6]), None, np.arange(2))
# What one standard error is of an estimate from four clients.
STUDENT = stats.t.ppf(stats.norm.cdf(1.0), 3)


def problem(rows=ROWS, draws=None):
    return SimpleNamespace(
        federation=SimpleNamespace(counted=rows, draw_counts=rows if draws is None else draws)
    )


def losses(totals, errors=0.0):
    """From how far each client's total loss (n, scales) is below that of the shared model."""
    left_out = 5.0 - totals / ROWS[:, None]
    return Losses(left_out, np.broadcast_to(errors, left_out.shape), left_out)


def gains(ratio, of_folds=0.0):
    """(n,) gains of clients, in all so many times the error that is asked: of their spread, and of their
    folds."""
    spread = np.array([3.0, -1.0, -1.5, -0.5])
    error = STUDENT * np.sqrt(4 * np.var(spread, ddof=1) + np.sum((ROWS * of_folds) ** 2))
    return spread + ratio * error / 4


def at(place, totals):
    """(n, scales) with these at one place."""
    found = np.zeros((len(totals), len(SCALES)))
    found[:, place] = totals
    return found


@pytest.mark.parametrize("of_folds", [0.0, 0.02])
@pytest.mark.parametrize(("ratio", "scale"), [(1.01, 0.25), (0.99, 0.0), (-1.0, 0.0)])
def test_personal_models_gain_more_than_a_standard_error_over_clients_and_folds(ratio, scale, of_folds):
    told = losses(at(2, gains(ratio, of_folds)), of_folds)
    found = personal_choice(told, FREE, problem())
    assert found.scale == scale
    np.testing.assert_allclose(found.freedom, scale * np.array([0.1, 0.4]))
    np.testing.assert_array_equal(found.shared, 5.0)
    assert found.adopts.any() == (scale > 0)


@pytest.mark.parametrize(("place", "scale"), [(1, 1 / 16), (3, 1 / 2), (8, 1 / 2)])
def test_newcomers_differ_at_most_by_half(place, scale):
    found = personal_choice(losses(at(place, np.full(4, 40.0))), FREE, problem())
    assert found.scale == SCALES[place]
    np.testing.assert_allclose(found.newcomers, scale * np.array([0.1, 0.4]))


def test_a_client_keeps_what_its_own_rows_confirm():
    """By how many standard errors of its own it gains; where the folds agree to the bit, all or nothing."""
    gain, error = (
        np.array([*[1.0] * 9, 0.2, -0.2, 1.0, 0.0, 1.0]),
        np.array([*[0.1] * 9, 0.2, 0.2, 0, 0, 0.1]),
    )
    rows, left_out = np.ones(14), 5.0 - at(4, gain)
    told = Losses(left_out, at(4, error), left_out)
    found = personal_choice(told, FREE, problem(rows, np.array([*[9] * 13, 1])))
    one = stats.norm.cdf(1.0)
    np.testing.assert_allclose(found.share, [*[1.0] * 9, one, 1 - one, 1.0, 0.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(found.used[9:11], [5 - 0.2 * one, 5 + 0.2 * (1 - one)])


def test_the_loss_that_each_client_could_attain():
    """That of the scale which is best on rows left out, half way to what it is inside training."""
    told = Losses(
        np.array([[3.0, 2.0, 4.0], [1.0, 2.0, 3.0]]), np.zeros((2, 3)), np.array([[9, 1, 0], [0.5, 0, 0]])
    )
    np.testing.assert_allclose(attainable(told), [1.5, 0.75])


def test_two_clients_can_have_personal_models_and_one_alone_cannot():
    for n, loss, can in (
        (1, Squared(), False),
        (2, Squared(), True),
        (2, Softmax(3), True),
        (5, None, False),
    ):
        assert can_be_personal(SimpleNamespace(n=n, loss=loss)) == can
    for word in ("auto", "offset", None):
        check_personal(word)
    for word in ("none", True, 1):
        with pytest.raises(BidroError, match="'auto', 'offset' or None"):
            check_personal(word)
