"""Statements from held-out rows hold as often as they promise, whatever order the rows stand in."""

import math

import numpy as np
import pytest

from bidro.certify.held_out import client_bound
from bidro.certify.mean_bounds import betting

REPETITIONS, CONFIDENCE = 2000, 0.9
BETA = 1 - CONFIDENCE
# Three standard errors of a share at the promised confidence.
ALLOWED = CONFIDENCE - 3 * math.sqrt(CONFIDENCE * (1 - CONFIDENCE) / REPETITIONS)
ORDERS = ("as drawn", "by target", "by class", "by feature", "by loss")
LEVEL = 2.0  # that losses are clipped at


def rows(rng, n):
    """(feature, target, class, losses, mistakes) of n draws; two thirds of the losses come from one class."""
    feature = rng.normal(size=n)
    kind = rng.uniform(size=n) < 0.3
    target = feature + np.where(kind, 1.0, 0.3) * rng.normal(size=n)
    wrong = rng.uniform(size=n) < np.where(kind, 0.4, 0.05)
    return feature, target, kind, (target - feature) ** 2, wrong.astype(float)


def ordered(order, feature, target, kind, losses, wrong):
    if order == "as drawn":
        return losses, wrong
    key = {"by target": target, "by class": kind, "by feature": feature, "by loss": losses}[order]
    places = np.argsort(key, kind="stable")
    return losses[places], wrong[places]


@pytest.fixture(scope="module")
def true():
    drawn = rows(np.random.default_rng(0), 2_000_000)
    return {"clipped": np.minimum(drawn[3], LEVEL).mean(), "mistakes": 0.3 * 0.4 + 0.7 * 0.05}


@pytest.mark.parametrize("n", [20, 60, 200])
def test_every_bound_in_every_order(n, true):
    """Bounds are the same in every order, to the bit, and cover as often as promised."""
    held = dict.fromkeys(("betting", "bernstein", "clopper-pearson"), 0)
    for k in range(REPETITIONS):
        drawn = rows(np.random.default_rng([n, k]), n)
        orders = ORDERS if k < 20 else ORDERS[:1]
        found = []
        for order in orders:
            losses, wrong = ordered(order, *drawn)
            found.append(
                {
                    "betting": client_bound("a", losses, BETA, LEVEL, "betting", clipped=True).bound,
                    "bernstein": client_bound("a", losses, BETA, LEVEL, "bernstein", clipped=True).bound,
                    "clopper-pearson": client_bound("a", wrong, BETA, 1.0, "clopper-pearson").bound,
                }
            )
        assert all(one == found[0] for one in found)
        for kind, bound in found[0].items():
            held[kind] += bound >= true["mistakes" if kind == "clopper-pearson" else "clipped"]
    for kind, count in held.items():
        assert count / REPETITIONS >= ALLOWED, kind


def test_rows_sorted_by_client_and_an_unseen_mixture():
    means = {"a": 0.1, "b": 0.3, "c": 0.2}
    held, repetitions = 0, 1000
    for k in range(repetitions):
        rng = np.random.default_rng([7, k])
        losses = {name: np.sort(rng.beta(1, 1 / mean - 1, 40))[::-1] for name, mean in means.items()}
        bounds = [client_bound(name, own, BETA, 1.0, "betting").bound for name, own in losses.items()]
        held += max(bounds) >= max(means.values())
    assert held / repetitions >= CONFIDENCE - 3 * math.sqrt(0.09 / repetitions)


def test_people_cover_what_rows_of_the_same_person_do_not():
    """Twenty people of thirty rows that are all alike: as rows they promise far more than they know."""
    by_people = by_rows = 0
    repetitions = 500
    for k in range(repetitions):
        rng = np.random.default_rng([8, k])
        losses = np.repeat((rng.uniform(size=20) < 0.2).astype(float), 30)
        labels = np.repeat(np.arange(20), 30)
        shuffled = rng.permutation(600)
        known = client_bound("a", losses[shuffled], BETA, 1.0, "betting", people=labels[shuffled])
        assert known.rows == 20
        by_people += known.bound >= 0.2
        by_rows += client_bound("a", losses, BETA, 1.0, "betting").bound >= 0.2
    assert by_people / repetitions >= CONFIDENCE - 3 * math.sqrt(0.09 / repetitions)
    assert by_rows / repetitions < CONFIDENCE - 6 * math.sqrt(0.09 / repetitions)


def test_losses_sorted_upwards_bet_as_those_sorted_downwards():
    rng = np.random.default_rng(9)
    values = rng.permutation(np.r_[np.ones(20), np.zeros(40)])
    assert betting(np.sort(values), 0.1) == betting(values, 0.1) == betting(values[::-1], 0.1)
    assert betting(values, 0.1) > 1 / 3
