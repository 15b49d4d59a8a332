"""How well a model does, in words and units that people have."""

import math

import numpy as np
import pandas as pd
import pytest

from bidro.certify.certificate import Certificate
from bidro.certify.held_out import ClientBound, worst_mixture
from bidro.core.sets import Simplex
from bidro.fit.fitted import ClientLoss, Progress
from bidro.fit.network import LocalNetwork
from bidro.workflow.fit import fit_tables
from bidro.workflow.options import FitOptions
from bidro.workflow.page_content import hidden_by_noise, page_content, plain_promise


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """By task, the page's content and the held-out rows: features, target and client of each."""
    rng = np.random.default_rng(1)
    clients = np.repeat(["north", "south"], [90, 60])
    # Numbers that are in the table as they are here: what is held out hangs on them.
    x = rng.normal(size=150).round(2)
    number = (3 + 2 * x + rng.normal(size=150)).round(2)
    columns = {"number": number, "class": np.where(number > 2.5, "yes", "no")}
    found = {}
    for task, target in columns.items():
        path = tmp_path_factory.mktemp(task) / "table.csv"
        pd.DataFrame({"site": clients, "x": x, "y": target}).to_csv(path, index=False)
        options = FitOptions(tables=(str(path),), client="site", target="y", personal=None, weights="fixed")
        fit = fit_tables(options, Progress())
        code = number if task == "number" else np.where(target == "yes", 1.0, -1.0)
        network = LocalNetwork.of(x[:, None].copy(), code, clients, ["x", "y"], 0.2)
        found[task] = page_content(fit), network
    return found


def test_a_typical_error_is_the_root_of_the_mean_square_on_rows_kept_out(made):
    content, network = made["number"]
    slope, intercept = content["features"][0]["coefficient"], content["intercept"]
    fresh, sizes = network.fresh, network.holdout_sizes
    errors = fresh[:, -1] - (intercept + slope * fresh[:, 0])
    headline = content["plainly"]
    assert headline["measure"] == "error"
    assert headline["models"]["shared"] == pytest.approx(math.sqrt(np.mean(errors**2)))
    assert headline["clients"]["south"]["shared"] == pytest.approx(
        math.sqrt(np.mean(errors[sizes[0] :] ** 2))
    )
    mean = network.rows[:, -1].mean()
    assert headline["guess"] == {"kind": "mean", "value": pytest.approx(mean)}
    assert headline["models"]["guess"] == pytest.approx(math.sqrt(np.mean((fresh[:, -1] - mean) ** 2)))
    assert headline["guess_held_out"] is True
    assert "personal" not in headline["models"]
    level = content["levels"][content["default_level"]]
    assert level["plainly"]["bound"] == pytest.approx(math.sqrt(level["clipped"]["bound"]))
    assert level["plainly"]["largest"] == pytest.approx(math.sqrt(level["clipped"]["largest"]))


def test_of_classes_it_is_the_share_of_right_predictions(made):
    content, network = made["class"]
    fresh = network.fresh
    predicted = content["intercept"] + content["features"][0]["coefficient"] * fresh[:, 0] > 0
    right = predicted == (fresh[:, -1] > 0)
    headline = content["plainly"]
    assert headline["measure"] == "right"
    assert headline["models"]["shared"] == pytest.approx(right.mean())
    commonest = np.sign(network.rows[:, -1].mean())
    assert headline["guess"] == {"kind": "class", "value": "yes" if commonest > 0 else "no"}
    assert headline["models"]["guess"] == pytest.approx(np.mean(fresh[:, -1] == commonest))
    level = content["levels"][content["default_level"]]
    assert level["plainly"]["of"] == "mistakes"
    assert level["plainly"]["bound"] == pytest.approx(1 - level["mistakes"]["bound"])


def stated(bound):
    """A certificate with one clipped bound of two clients."""
    clients = {"a": ClientBound(bound, 0.5, 9), "b": ClientBound(0.6, 0.5, 40)}
    found = worst_mixture(clients, 0.95, 4.0, Simplex(2), "betting", clipped=True)
    parts = {"interval": None, "held_out": None, "clipped": found, "mistakes": None, "shift": None}
    return Certificate(0.95, ("a", "b"), (30, 160), (0.5, 0.5), "any mixture", **parts, absent={}, balls="")


def test_a_bound_that_says_nothing_has_no_number_but_how_many_rows_would_do():
    promised = plain_promise(stated(1.44), math.sqrt, True)
    assert promised["bound"] == pytest.approx(1.2)
    assert promised["largest"] == 2
    assert (promised["binding"], promised["rows"]) == ("a", 9)
    nothing = plain_promise(stated(4.0), math.sqrt, True)
    assert nothing["bound"] is None
    assert nothing["shortage"] == (
        f"'a' has 9, and {nothing['enough']} rows of the same mean loss would be enough for a promise"
    )
    # Of a loss that people have no unit for, nothing is said in one.
    assert plain_promise(stated(1.44), None, False) is None


def test_a_loss_that_is_no_larger_than_its_noise_is_less_than_both_together():
    judged = {
        "known": ClientLoss(4.0, 1.5, 80, 4.0),
        "hidden": ClientLoss(1.0, 0.75, 9, 1.0),
        "nought": ClientLoss(0.0, 3.0, 2, 0.0),
        "far": ClientLoss(5.0, 9.0, 1, 5.0),
        "single": ClientLoss(2.0, None, 1, 2.0),
    }
    assert hidden_by_noise(judged, 8.0) == {"hidden": 2.5, "nought": 6.0, "far": 8.0}
