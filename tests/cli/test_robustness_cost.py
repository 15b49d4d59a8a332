"""What robustness costs, and what is said of a model that may be of little use: never silently."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from bidro.certify.rounding import SHARE
from bidro.fit.fitted import Change, Changes, ClientLoss, Progress
from bidro.model.model_file import load_model
from bidro.selection.cross_validate import Candidate
from bidro.workflow import fit as workflow
from bidro.workflow.evaluation import evaluation
from bidro.workflow.fit import fit_tables
from bidro.workflow.options import FitOptions
from bidro.workflow.settings_summary import concerns, robustness_cost, verdict
from tests.cli.test_command import run, visits


def calibration(means=(1.0, 1.2), worst=(2.0, 1.5), candidates=None, place=1, radii=0.0):
    candidates = candidates or (Candidate(0.0, 1.0, 1.0), Candidate(0.0, np.inf, 1.0))
    return SimpleNamespace(
        candidates=candidates,
        means=np.array(means),
        worst_deciles=np.array(worst),
        pooled=0,
        place=place,
        chosen=candidates[place],
        radii=np.full(3, radii),
    )


def fitted(varies=1.0, found=None, changes=None):
    """Two clients that lose 1 under the shared model; changes are (mean, se) against pooled training."""
    by_name = {f"h{k}": Changes(Change(*one), Change(*one)) for k, one in enumerate(changes or ())}
    judged = {name: ClientLoss(1.0, 0.1, 20, 1.0) for name in by_name}
    return SimpleNamespace(
        varies=varies, trained=SimpleNamespace(calibration=found), changes=by_name or None, evaluation=judged
    )


def test_what_is_paid_is_against_pooled_training_or_not_said():
    assert robustness_cost(None) is None
    found = robustness_cost(calibration())
    assert (found["mean"], found["worst_decile"]) == pytest.approx((0.2, -0.25))
    assert (found["pooled"], found["same_radius"]) == (False, False)
    assert robustness_cost(calibration(place=0, radii=0.1)) == {
        **{"mean": 0.0, "worst_decile": 0.0, "pooled": True, "same_radius": True}
    }
    # One candidate that is not pooled training is nothing to compare with.
    alone = calibration((1.2,), (1.5,), (Candidate(0.0, np.inf, 1.0),), 0)
    assert robustness_cost(alone) is None


def test_a_client_gains_or_loses_beyond_two_standard_errors():
    for mean, se, said in (
        (0.21, 0.1, "loses"),
        (-0.21, 0.1, "gains"),
        (0.2, 0.1, None),
        (-0.19, 0.1, None),
        (9.0, None, None),
    ):
        assert verdict(Change(mean, se), 1.0) == said


def test_what_rounding_leaves_is_no_loss_and_no_gain():
    for mean in (2e-16, -2e-16, 1e-9):
        assert verdict(Change(mean, 0.0), 0.7) is None
        assert verdict(Change(mean, 1e-18), 0.7) is None
    # Of losses that are as small themselves it may be all.
    assert verdict(Change(2e-16, 0.0), 1e-15) == "loses"


def test_where_pooled_training_is_chosen_nobody_gains_or_loses_by_rounding(tmp_path):
    """The logistic model is solved twice, to different gaps: the differences are far below chance, but in
    every row alike, and so beyond their own standard errors."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(600, 2)).round(3)
    y = np.where(x @ [1.0, -1.0] + rng.logistic(size=600) > 0.5, "yes", "no")
    table = pd.DataFrame({"site": np.tile(["a", "b", "c"], 200), "u": x[:, 0], "v": x[:, 1], "y": y})
    table.to_csv(tmp_path / "t.csv", index=False)
    options = FitOptions(
        tables=(str(tmp_path / "t.csv"),), client="site", target="y", personal=None, curves=None
    )
    done = fit_tables(options, Progress())
    assert done.model.settings["robustness_cost"]["pooled"] is True
    assert not np.array_equal(done.trained.calibration.pooled_model, done.model.x)
    assert np.array_equal(done.model.pooled, done.model.x)
    found = evaluation(done.evaluation, done.changes)
    assert [one["personal_change"]["mean"] for one in found["clients"].values()] == [0.0, 0.0, 0.0]
    assert [one["verdict"] for one in found["clients"].values()] == [None, None, None]


def test_concerns_are_of_models_that_hardly_vary_cost_much_or_hurt_some():
    assert concerns(fitted()) == []
    assert concerns(fitted(varies=None)) == []
    (said,) = concerns(fitted(varies=0.2))
    assert "spread 20% as much as those of pooled training" in said
    (said,) = concerns(fitted(found=calibration()))
    assert "mean loss is 20% above that of pooled training, on rows left out in cross-validation" in said
    assert concerns(fitted(found=calibration((1.0, 1.04)))) == []
    # By a quarter, beyond chance; by a quarter, within it; by too little to say.
    (said,) = concerns(fitted(changes=[(0.2, 0.05), (0.2, 0.15), (0.02, 0.001)]))
    assert said.endswith("than by pooled training: 'h0' (+25%).")
    (said,) = concerns(fitted(changes=[(0.2, 0.05)] * 5))
    assert said.endswith(" and 2 more.")


def test_the_command_ends_with_the_concerns_and_the_page_begins_with_them(tmp_path, capsys, monkeypatch):
    visits().to_csv(tmp_path / "visits.csv", index=False)
    monkeypatch.setattr(workflow, "concerns", lambda fitted: ["It says nearly the same to everybody."])
    named = ("fit", tmp_path / "visits.csv", "--client", "hospital", "--target", "stay")
    code, out, err = run(capsys, *named, "--gap", "1e-3", "--out", tmp_path / "model")
    assert code == 0, err
    assert out.splitlines()[-1] == "CONCERN: It says nearly the same to everybody."
    page = json.loads((tmp_path / "model" / "report.json").read_text())
    assert page["concerns"] == ["It says nearly the same to everybody."]


def test_weights_that_are_given_are_not_called_pooled_training(tmp_path, capsys):
    visits().to_csv(tmp_path / "visits.csv", index=False)
    named = ("fit", tmp_path / "visits.csv", "--client", "hospital", "--target", "stay")
    given = ("--weights", "simplex", "--gap", "1e-3", "--json")
    code, out, err = run(capsys, *named, *given, "--out", tmp_path / "model")
    assert code == 0, err
    found, page = json.loads(out), json.loads((tmp_path / "model" / "report.json").read_text())
    assert "guarded against any mixture" in found["chosen"]["weights"]
    assert found["chosen"]["robustness_cost"].startswith("Against pooled training it")
    assert (found["robustness_cost"]["pooled"], page["calibration"]["given"]) == (False, True)
    # The comparison is with what weights="fixed" gives.
    given = ("--weights", "fixed", "--gap", "1e-6", "--json")
    code, out, err = run(capsys, *named, *given, "--out", tmp_path / "fixed")
    assert code == 0, err
    np.testing.assert_allclose(
        load_model(tmp_path / "model").pooled, load_model(tmp_path / "fixed").x, rtol=1e-4, atol=1e-4
    )
    # Each of three clients tells its mean to a quarter of what one of 26 held-out rows adds, a loss up to 4.
    assert json.loads(out)["evaluation"]["mean"] == pytest.approx(
        found["evaluation"]["pooled"]["mean"], abs=3 * SHARE * 4 / 26
    )
