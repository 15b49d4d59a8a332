"""Losses that a site tells, at the edge of every rule: against sizes and bounds worked out by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from bidro.certify.held_out import client_bounds
from bidro.core.errors import BidroError
from bidro.deploy.server.plausibility import Reported, require_assessment, require_bounds
from bidro.fit.questions import Assess, Assessment, HoldoutBounds, HoldoutQuery
from bidro.losses import Squared, losses_of
from bidro.risk.moments import Moments, of_clients
from bidro.risk.transport import Transport
from tests.deploy.test_reported import rows_of, told_of

ROWS = rows_of(np.random.default_rng(11), 40)
MOMENTS, SAMPLES = told_of(ROWS)
X = np.array([0.3, -0.2, 0.1, 0.5, 0.2])
POOLED = 0.5 * X
NONE = np.zeros(0)
LOSS = float(losses_of(Squared(True), X, SAMPLES).mean())
TRANSPORT = Transport.features_only(5, 2.0)
PROBLEM = SimpleNamespace(loss=Squared(True), transport=TRANSPORT)
LEVELS = np.array([0.1, 0.05])


def own(**changes):
    return Reported(
        MOMENTS, *{"rows": 40, "people": 40, "holdout": 20, "holdout_people": 20, **changes}.values()
    )


STILL = Assessment(LOSS, 0.1, LOSS, NONE, np.zeros((0, 1)), NONE, NONE, np.zeros(4), np.zeros(4))


def assessed(radii=NONE, shown=0.0, inverse_shrinkage=NONE, pooled=NONE, behind=40, **told):
    """With a radius of 0.5."""
    message = Assess(X, radii, np.zeros((0, 0)), np.asarray(shown), inverse_shrinkage, pooled)
    require_assessment(own(), PROBLEM, 0.5, message, STILL._replace(**told), behind)


def allowed_at(x, size):
    """1.01 times twice the square of the largest residual that columns of this size allow."""
    return 1.01 * 2 * (np.abs(x) @ np.append(size[:-1], 1.0) + size[-1]) ** 2


def test_an_assessment_that_fits():
    assessed()
    assessed(se=LOSS)
    assessed(behind=0)
    assessed(personal_loss=LOSS * (1 + 0.9e-6))
    assessed(inverse_shrinkage=np.array([0.1, 0.0]), personal_loss=0.2 * LOSS)
    assessed(personal_loss=0.0, loss=0.0, se=0.0)
    assessed(loss=0.999 * allowed_at(X, MOMENTS.size), personal_loss=0.999 * allowed_at(X, MOMENTS.size))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("41 rows behind", {"behind": 41}),
        ("below 0", {"loss": -1e-9}),
        ("which none has", {"se": 1.000002 * LOSS}),
        ("which none has", {"se": -1e-9}),
        (
            "'personal_loss', which is below 0",
            {"personal_loss": -1e-9, "inverse_shrinkage": np.array([0.1, 0.0])},
        ),
        ("its columns allow", {"loss": 1.001 * allowed_at(X, MOMENTS.size)}),
        ("which is the shared one", {"personal_loss": LOSS * (1 + 1.1e-6)}),
        ("which is the shared one", {"personal_loss": LOSS * (1 - 1.1e-6)}),
        ("'typical', which is below 0", {"typical": np.array([0, 0, -1e-9, 0])}),
        ("not asked for", {"typical": np.array([0, 0, 1e-3, 0])}),
        ("moves a mean by", {"shown": 1.0, "typical": np.full(4, 0.1), "moved": np.array([0, -0.11, 0, 0])}),
        ("its radius allows", {"shown": 1.0, "typical": np.array([0.52, 0, 0, 0])}),
    ],
)
def test_assessments_that_do_not_fit(words, told):
    with pytest.raises(BidroError, match=words):
        assessed(**told)


def test_moves_and_risks_of_balls_at_their_edges():
    typical = np.full(4, 1.009 * 0.5)
    assessed(shown=1.0, typical=typical, moved=-typical)
    # Risks rise with the radius, in whatever order these come, from the mean loss on.
    radii = np.array([0.2, 0.1])
    assessed(radii=radii, robust=np.array([3.0, 2.0]) * LOSS)
    assessed(radii=radii, robust=np.array([1.0, 1.0]) * LOSS * (1 - 0.4e-6))
    for robust in ([2.0, 3.0], [2.0, 0.999], [1 - 3e-6, 1 - 3e-6]):
        with pytest.raises(BidroError, match="in a larger one"):
            assessed(radii=radii, robust=np.array(robust) * LOSS)
    with pytest.raises(BidroError, match="the support allows"):
        assessed(radii=radii, robust=np.array([1e30, 1e30]))
    # What the agreed bounds allow: columns of that size.
    lower, upper = (np.clip(end, -1e60, 1e60) for end in MOMENTS.values.ends)
    centre, spread = MOMENTS.units
    most = allowed_at(X, np.maximum(np.abs(lower - centre), np.abs(upper - centre)) / spread)
    assessed(radii=radii, robust=np.full(2, 0.9999 * most))
    with pytest.raises(BidroError, match="the support allows"):
        assessed(radii=radii, robust=np.full(2, 1.0001 * most))


def test_predictions_lie_no_further_apart_than_columns_allow():
    most = 1.01 * np.abs(X[:4]) @ MOMENTS.size[:4]
    least = 1.01 * np.abs(POOLED[:4]) @ MOMENTS.size[:4]
    right = {"pooled": POOLED, "predicted": 3.99 * np.array([most, least]) ** 2}
    centre = 1.999 * np.array([[most + 0.2], [-(least + 0.1)]])
    assessed(**right, centre=centre)
    for wrong in (
        {"predicted": np.array([4.01 * most**2, 0.0])},
        {"predicted": np.array([0.0, 4.01 * least**2])},
        {"centre": 1.001 * centre * [[1], [0]]},
        {"centre": 1.001 * centre * [[0], [1]]},
    ):
        with pytest.raises(BidroError, match="lie further apart"):
            assessed(**{**right, "centre": centre, **wrong})
    with pytest.raises(BidroError, match="'predicted', which is below 0"):
        assessed(**{**right, "predicted": np.array([-1e-9, 0.0])}, centre=centre)


def test_a_distance_is_at_most_the_sizes_of_rows_and_cloud():
    scale = np.array([1.0, 2.0, 1.0, 0.5, 3.0])
    cloud = np.array([[1.0, 0, 0, 0, 0], [0.0, 3.0, 0, 0, 0]])
    most = 1.01 * (6.0 + np.linalg.norm(scale * MOMENTS.size))

    def told(distance, transport):
        problem = SimpleNamespace(loss=Squared(True), transport=transport)
        message = Assess(X, NONE, cloud, np.zeros(()), NONE, NONE)
        reply = STILL._replace(distance=np.array([distance]))
        require_assessment(own(), problem, 0.0, message, reply, 40)

    told(0.999 * most, Transport(scale, 2.0))
    with pytest.raises(BidroError, match="a distance of"):
        told(1.001 * most, Transport(scale, 2.0))
    # Nothing is known where a column cannot move, nor of other orders.
    told(1e9, Transport(np.append(scale[:4], np.inf), 2.0))
    told(1e9, Transport(scale, 3.0))


def test_own_models_are_hardly_worse_on_the_rows_that_they_are_trained_on():
    inverse_shrinkage = np.array([0.1, 0.0])
    slack = 1e-6 * allowed_at(X, MOMENTS.size)
    assessed(inverse_shrinkage=inverse_shrinkage, personal_loss=2 * LOSS + 0.9 * slack)
    with pytest.raises(BidroError, match="under its personal model, where"):
        assessed(inverse_shrinkage=inverse_shrinkage, personal_loss=2 * LOSS + 1.1 * slack)


OF = SimpleNamespace(loss=Squared(True), x=X, seen=8.0, largest=None)


def told_bounds(of=OF, own_told=None, behind=20, pooled=NONE, inverse_shrinkage=NONE, **told):
    means = np.array([1.5, 0, 0, 0, 0])
    clipped = bounds_of(np.full(20, 1.5), 8.0)
    reply = HoldoutBounds(1.5, 0.1, 1.5, NONE, NONE, clipped, NONE, NONE, NONE, NONE, means)
    message = HoldoutQuery(X, LEVELS, np.asarray(8.0), NONE, inverse_shrinkage, pooled)
    require_bounds(own_told or own(), of, message, reply._replace(**told), behind)


def bounds_of(draws, largest, kind="betting"):
    return np.array([one.bound for one in client_bounds("a", draws, LEVELS.tolist(), largest, kind)])


def test_bounds_that_fit():
    told_bounds()
    told_bounds(clipped=np.full(2, 8.0 * (1 + 0.9e-6)))
    told_bounds(means=np.array([1.5 * (1 + 0.9e-6), 0, 0, 0, 0]))
    told_bounds(own_told=own(holdout=1, holdout_people=1), behind=1, se=0.0, clipped=np.full(2, 8.0))
    wrong = {"means": np.array([1.5, 0, 0.25, 0, 0])}
    five = bounds_of((np.arange(20) < 5).astype(float), 1.0, "clopper-pearson")
    told_bounds(mistakes=five, **wrong)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("21 rows behind", {"behind": 21}),
        ("below 0", {"loss": -1e-9}),
        ("which none has", {"se": 1.6}),
        ("which none has", {"own_told": own(holdout=1, holdout_people=1), "behind": 1, "se": 0.1}),
        ("'means', which is below 0", {"means": np.array([-1e-9, 0, 0, 0, 0])}),
        ("which is the shared one", {"personal_loss": 1.5 * (1 + 1.1e-6)}),
        ("not asked for", {"means": np.array([1.5, 0, 0.5, 0, 0])}),
        ("with large ones cut", {"means": np.array([1.5 * (1 + 1.1e-6), 0, 0, 0, 0])}),
        ("with large ones cut", {"means": np.array([1.5 * (1 - 1.1e-6), 0, 0, 0, 0])}),
        (
            "nothing counts as more than 8",
            {"means": np.array([8.1, 0, 0, 0, 0]), "loss": 9.0, "personal_loss": 9.0},
        ),
        ("nothing counts as more than 8", {"clipped": np.full(2, 8.0 * (1 + 1.1e-6))}),
        ("can say no less", {"clipped": bounds_of(np.full(20, 1.5), 8.0) - 1.1e-5}),
        ("which 20 rows cannot", {"means": np.array([1.5, 0, 0.27, 0, 0]), "mistakes": np.full(2, 0.9)}),
        ("by their number is", {"means": np.array([1.5, 0, 0.25, 0, 0]), "mistakes": np.full(2, 0.9)}),
        ("can say no less", {"means": np.array([1.5, 0, 0.25, 0, 0]), "mistakes": np.full(2, 0.26)}),
    ],
)
def test_bounds_that_do_not_fit(words, told):
    with pytest.raises(BidroError, match=words):
        told_bounds(**told)


def test_no_mean_loss_is_above_the_declared_largest():
    largest = SimpleNamespace(loss=Squared(True), x=X, seen=8.0, largest=2.0)
    two = {"means": np.array([2.0, 0, 0, 0, 0]), "clipped": bounds_of(np.full(20, 2.0), 8.0)}
    told_bounds(of=largest, loss=2.0 * (1 + 0.9e-6), personal_loss=2.0, **two)
    with pytest.raises(BidroError, match="where no loss is above"):
        told_bounds(of=largest, loss=2.0 * (1 + 1.1e-6), personal_loss=2.0, **two)


def test_changes_are_those_of_the_losses():
    """Losses 1.5 and 1.2 under the personal model, 1.7 under that of pooled training."""
    inverse_shrinkage = np.array([0.1, 0.0])

    def told(shared=(-0.2, 0.1), by_personal=(-0.5, 0.1), personal_loss=1.2):
        changes = {"shared_change": np.array(shared), "personal_change": np.array(by_personal)}
        told_bounds(
            pooled=POOLED, inverse_shrinkage=inverse_shrinkage, personal_loss=personal_loss, **changes
        )

    told()
    told(by_personal=(-0.5 + 3e-6, 0.1))  # of sizes of 3.4 in all
    told(shared=(-0.2, 3.199), by_personal=(-0.5, 2.899))
    told(shared=(1.5, 0.1), by_personal=(1.2, 0.1))
    for words, how in (
        ("not those of its losses", {"by_personal": (-0.5 + 4e-6, 0.1)}),
        ("not those of its losses", {"personal_loss": 1.3}),
        ("losses below 0", {"shared": (1.6, 0.1), "by_personal": (1.3, 0.1)}),
        ("cannot have", {"shared": (-0.2, 3.21)}),
        ("cannot have", {"by_personal": (-0.5, 2.91)}),
        ("cannot have", {"shared": (-0.2, -1e-9)}),
    ):
        with pytest.raises(BidroError, match=words):
            told(**how)


def test_the_mean_loss_is_what_second_moments_make_it():
    whole = of_clients(SAMPLES, [40])
    known = own()
    known.whole = Moments(whole.mean[0], whole.around[0])
    slack = 1e-6 * LOSS + 1e-9 * allowed_at(X, MOMENTS.size)
    message = Assess(X, NONE, np.zeros((0, 0)), np.zeros(()), NONE, NONE)
    for off, refused in ((0.9, False), (-0.9, False), (1.1, True), (-1.1, True)):
        loss = LOSS + off * slack
        reply = STILL._replace(loss=loss, personal_loss=loss)
        if refused:
            with pytest.raises(BidroError, match="where its second moments make it"):
                require_assessment(known, PROBLEM, 0.0, message, reply, 40)
        else:
            require_assessment(known, PROBLEM, 0.0, message, reply, 40)


def test_of_a_loss_of_which_nothing_is_known_no_size_is_too_large():
    unknown = SimpleNamespace(nonnegative=True, infimum_at_infinity=False)
    all_of_it = SimpleNamespace(loss=unknown, x=X, seen=2e300, largest=None)
    told = {"loss": 1e300, "personal_loss": 1e300, "means": np.array([1e300, 0, 0, 0, 0])}
    told_bounds(of=all_of_it, **told, clipped=np.full(2, 2e300))
    problem = SimpleNamespace(loss=unknown, transport=TRANSPORT)
    huge = STILL._replace(loss=1e300, personal_loss=1e300, robust=np.full(1, 1e301))
    for inverse_shrinkage in (NONE, np.array([0.1, 0.0])):
        message = Assess(X, np.array([0.1]), np.zeros((0, 0)), np.zeros(()), inverse_shrinkage, NONE)
        require_assessment(own(), problem, 0.0, message, huge, 40)
