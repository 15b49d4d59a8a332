"""Which clients take a personal model, and how strongly it is held: the rule by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from bidro.core.errors import BidroError
from bidro.losses import Softmax, Squared
from bidro.selection.personal import NONE, Losses, Shrinkage
from bidro.selection.personalise import (
    SHRINKAGES,
    attainable,
    can_be_personal,
    check_personal,
    personal_choice,
)

ROWS = np.array([10.0, 20.0, 30.0, 40.0])
PROBLEM = SimpleNamespace(federation=SimpleNamespace(counted=ROWS))
# What one standard error is of an estimate from four clients.
STUDENT = stats.t.ppf(stats.norm.cdf(1.0), 3)


def losses(totals, errors=0.0):
    """From how far each client's total loss (n, shrinkages) is below that of the shared model."""
    left_out = 5.0 - totals / ROWS[:, None]
    return Losses(left_out, np.broadcast_to(errors, left_out.shape), left_out)


def gains(ratio, of_folds=0.0):
    """(n,) gains of clients, in all so many times the error that is asked: of their spread, and of their
    folds."""
    spread = np.array([3.0, -1.0, -1.5, -0.5])
    error = STUDENT * np.sqrt(4 * np.var(spread, ddof=1) + np.sum((ROWS * of_folds) ** 2))
    return spread + ratio * error / 4


def test_shrinkages_from_the_strongest_to_the_weakest():
    inf = np.inf
    assert SHRINKAGES["offset"] == (NONE, *(Shrinkage(offset, inf) for offset in (256, 64, 16, 4)))
    assert SHRINKAGES["auto"][:5] == SHRINKAGES["offset"]
    assert SHRINKAGES["auto"][5:] == tuple(
        Shrinkage(offset, slopes) for slopes in (1024, 256, 64) for offset in (256, 64, 16, 4)
    )


@pytest.mark.parametrize("of_folds", [0.0, 0.02])
@pytest.mark.parametrize(("ratio", "place"), [(1.01, 2), (0.99, 0), (-1.0, 0)])
def test_personal_models_gain_more_than_a_standard_error_over_clients_and_folds(ratio, place, of_folds):
    nothing = np.zeros(4)
    told = losses(np.stack([nothing, nothing, gains(ratio, of_folds), nothing, nothing], axis=1), of_folds)
    found = personal_choice(told, "offset", PROBLEM)
    assert found.shrinkage == SHRINKAGES["offset"][place]
    np.testing.assert_array_equal(found.shared, 5.0)
    np.testing.assert_array_equal(found.personal, told.left_out[:, place])


def test_newcomers_are_held_as_strongly_as_is_hardly_worse():
    """The best is the fourth of five; the second is within a standard error of it, the first is not."""
    best = np.full(4, 40.0)
    totals = np.stack([np.zeros(4), best - gains(1.01), best - gains(0.99), best, best - 0.01], axis=1)
    found = personal_choice(losses(totals), "offset", PROBLEM)
    assert (found.shrinkage, found.newcomers) == (SHRINKAGES["offset"][3], SHRINKAGES["offset"][2])
    alone = np.stack([np.zeros(4), *[best - gains(1.01)] * 2, best, np.zeros(4)], axis=1)
    assert personal_choice(losses(alone), "offset", PROBLEM).newcomers == SHRINKAGES["offset"][3]


def test_a_client_takes_its_personal_model_for_half_a_standard_error():
    """Nine clients gain without a doubt; of four others one just enough, one too little, two nothing."""
    gain = np.array([*[1.0] * 9, 0.102, 0.098, 0.0, -0.5])
    error = np.array([*[0.1] * 9, 0.2, 0.2, 0.0, 0.0])
    left_out = np.stack([np.full(13, 5.0), 5.0 - gain, *[np.full(13, 6.0)] * 3], axis=1)
    told = Losses(left_out, np.outer(error, [0, 1, 0, 0, 0]), left_out)
    found = personal_choice(told, "offset", SimpleNamespace(federation=SimpleNamespace(counted=np.ones(13))))
    assert found.shrinkage == SHRINKAGES["offset"][1]
    assert found.adopts.tolist() == [*[True] * 10, False, False, False]


def test_the_loss_that_each_client_could_attain():
    """That of the shrinkage which is best on rows left out, half way to what it is inside training."""
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
