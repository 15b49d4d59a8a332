"""`bidro evaluate`: what goes beside the loss, clients and levels that training did not see, many clients."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from bidro.data.standardise import Standard
from bidro.data.tables import Column, Schema, UnseenLevelsWarning
from bidro.fit.baselines import area_under_curve
from bidro.losses import Logistic, Poisson, Softmax, Squared
from bidro.model.model_file import Model, load_model
from bidro.model.personal_file import PersonalModels
from bidro.workflow.evaluation import calibration_error
from tests.cli.test_command import run

STANDARD = Standard(np.array([10.0, 0.2]), np.array([2.0, 0.5]), 0.0, 1.0)
WARD = Column("ward", ("a", "other"), None, "other")


def saved(folder, loss, x, classes=None, other=True, pooled=None, personal=None, person=None):
    ward = WARD if other else Column("ward", ("a", "other"))
    schema = Schema("site", "y", classes, (Column("age"), ward), person)
    # What the logarithm is of is not centred.
    as_it_is = classes or isinstance(loss, Poisson)
    standard = STANDARD if as_it_is else Standard(STANDARD.mean, STANDARD.spread, 3.0, 1.0)
    model = Model(
        schema, loss, x, standard, ("s0", "s1"), 1.0, None, None, False, {}, {}, pooled, personal or {}
    )
    (folder / "model.safetensors").write_bytes(model.to_bytes())
    if personal:
        (folder / "personal.safetensors").write_bytes(PersonalModels(personal, x).to_bytes())
    return model


def table(classes=None, clients=3, rows=20):
    rng = np.random.default_rng(2)
    n = clients * rows
    y = rng.normal(3, 1, n) if classes is None else rng.choice(classes, n)
    return pd.DataFrame(
        {
            "site": np.repeat([f"s{k}" for k in range(clients)], rows),
            "age": rng.normal(10, 2, n),
            "ward": rng.choice(["a", "new", "other"], n),
            "y": y,
        }
    )


def test_root_mean_squared_error_new_clients_and_new_levels(tmp_path, capsys):
    model = saved(tmp_path, Squared(intercept=True), np.array([0.5, -0.2, 0.1]))
    fresh = table()
    fresh.to_csv(tmp_path / "t.csv", index=False)
    code, out, err = run(capsys, "evaluate", tmp_path, tmp_path / "t.csv", "--json")
    found = json.loads(out)
    errors = (fresh["y"] - model.predict(fresh)["prediction"]) ** 2
    assert code == 0
    assert found["root_mean_squared_error"] == pytest.approx(np.sqrt(errors.mean()))
    own = errors[fresh["site"] == "s2"].mean()
    assert found["clients"]["s2"]["root_mean_squared_error"] == pytest.approx(np.sqrt(own))
    assert found["not_in_training"] == ["s2"]
    new = int((fresh["ward"] == "new").sum())
    assert found["counted_as_other"] == {"ward": new}
    assert "client 's2' was not in training" in err
    assert f"{new} rows have a level of 'ward' that the model does not know by name" in err
    _, out, _ = run(capsys, "evaluate", tmp_path, tmp_path / "t.csv")
    assert f"the shared model {np.sqrt(errors.mean()):#.3g}".split() == out.splitlines()[1].split()[:4]
    (line,) = (line for line in out.splitlines() if line.startswith("s2"))
    assert line.split() == ["s2", "20", f"{np.sqrt(own):#.3g}", "not", "in", "training"]
    _, _, err = run(capsys, "predict", tmp_path, tmp_path / "t.csv")
    assert "counts as 'other'" in err


@pytest.mark.parametrize(
    ("loss", "x", "classes"),
    [
        (Logistic(intercept=True), np.array([0.5, -0.2, 0.1]), ("no", "yes")),
        (
            Softmax(3, intercept=True),
            np.array([0.5, -0.2, 0.1, 0.3, -0.7, 0.2, -0.4, 0.1, 0.6]),
            ("hi", "lo", "mid"),
        ),
    ],
)
def test_accuracy_is_that_of_the_predictions(loss, x, classes, tmp_path, capsys):
    model = saved(tmp_path, loss, x, classes)
    fresh = table(classes)
    fresh.to_csv(tmp_path / "t.csv", index=False)
    _, out, _ = run(capsys, "evaluate", tmp_path, tmp_path / "t.csv", "--json")
    found, right = json.loads(out), model.predict(fresh)["prediction"] == fresh["y"]
    assert 0 < right.mean() < 1
    assert found["accuracy"] == pytest.approx(right.mean())
    assert found["clients"]["s1"]["accuracy"] == pytest.approx(right[fresh["site"] == "s1"].mean())
    _, out, _ = run(capsys, "evaluate", tmp_path, tmp_path / "t.csv")
    worst = right.groupby(fresh["site"]).mean().min()
    assert out.splitlines()[0].startswith("Right predictions, on 60 rows")
    assert out.splitlines()[1].split() == ["the", "shared", "model", f"{right.mean():.1%}", f"{worst:.1%}"]


SHARED, POOLED, OWN = (np.array(x) for x in ([0.5, -0.2, 0.1], [0.1, 0.0, 0.8], [-0.1, 0.05, 0.0]))


def test_three_models_side_by_side_and_who_gains(tmp_path, capsys):
    model = saved(tmp_path, Squared(intercept=True), SHARED, pooled=POOLED, personal={"s1": OWN})
    fresh = table(rows=60)
    fresh.to_csv(tmp_path / "t.csv", index=False)
    code, out, err = run(capsys, "evaluate", tmp_path, tmp_path / "t.csv", "--json")
    assert code == 0, err
    found, rows = json.loads(out), model.rows(fresh)
    losses = {
        "shared": (rows[:, :2] @ SHARED[:2] + SHARED[2] - rows[:, 2]) ** 2,
        "pooled": (rows[:, :2] @ POOLED[:2] + POOLED[2] - rows[:, 2]) ** 2,
    }
    # Only a client that has a personal model uses one; that the model does not know s2 is no matter.
    with_personal = (rows[:, :2] @ OWN[:2] + OWN[2] - rows[:, 2]) ** 2
    losses["personal"] = np.where(fresh["site"] == "s1", with_personal, losses["shared"])
    by_client = pd.DataFrame(losses).groupby(fresh["site"]).mean()
    for which in ("personal", "pooled"):
        assert found[which]["mean"] == pytest.approx(losses[which].mean())
        assert found[which]["worst_decile"] == pytest.approx(by_client[which].max())
        assert found[which]["root_mean_squared_error"] == pytest.approx(np.sqrt(losses[which].mean()))
    for name, one in found["clients"].items():
        assert [one["loss"], one["personal"], one["pooled"]] == pytest.approx(
            by_client.loc[name, ["shared", "personal", "pooled"]].tolist()
        )
        assert one["root_mean_squared_error"] == pytest.approx(np.sqrt(by_client.loc[name, "personal"]))
        apart = (losses["personal"] - losses["pooled"])[fresh["site"] == name]
        mean, se = apart.mean(), apart.std(ddof=1) / np.sqrt(60)
        assert one["personal_change"] == pytest.approx({"mean": mean, "se": se})
        assert one["verdict"] == (None if abs(mean) < 2 * se else "gains" if mean < 0 else "loses")
    assert found["clients"]["s1"]["verdict"] == "gains"
    scores = {which: rows[:, :2] @ x[:2] for which, x in (("shared", SHARED), ("pooled", POOLED))}
    assert found["deviation"] == pytest.approx({which: one.std() for which, one in scores.items()})
    _, out, _ = run(capsys, "evaluate", tmp_path, tmp_path / "t.csv")
    models = {
        "pooled training": "pooled",
        "the shared model": "shared",
        "each client's own model": "personal",
    }
    for line, (name, which) in zip(out.splitlines()[1:], models.items(), strict=False):
        typical = [np.sqrt(loss) for loss in (losses[which].mean(), by_client[which].max())]
        assert line.startswith(name)
        assert line[len(name) :].split()[:2] == [f"{error:#.3g}" for error in typical]
        against = f"{typical[0] / np.sqrt(losses['pooled'].mean()) - 1:+.1%}"
        assert line.endswith(against) is (which != "pooled")
    gaining = [name for name, one in found["clients"].items() if one["verdict"] == "gains"]
    assert f"{len(gaining)} of 3 clients gain by more than two standard errors" in out
    (line,) = (line for line in out.splitlines() if line.startswith("s1"))
    each = [f"{error:#.3g}" for error in np.sqrt(by_client.loc["s1", ["pooled", "shared", "personal"]])]
    assert line.split()[1:5] == ["60", *each]
    changed = by_client.loc["s1", "personal"] / by_client.loc["s1", "pooled"] - 1
    assert f" {changed:+.1%} ± " in line
    assert line.endswith("gains")


def test_counts_are_evaluated_by_how_far_they_lie_from_their_prediction(tmp_path, capsys):
    model = saved(tmp_path, Poisson(intercept=True), np.array([0.2, -0.2, 0.1]))
    fresh = table()
    fresh["y"] = np.random.default_rng(0).poisson(2.0, len(fresh))
    fresh.to_csv(tmp_path / "t.csv", index=False)
    errors = (fresh["y"] - model.predict(fresh)["prediction"]).abs()
    code, out, err = run(capsys, "evaluate", tmp_path, tmp_path / "t.csv")
    assert code == 0, err
    assert out.splitlines()[0].startswith("Typical error, on 60 rows")
    shown = [f"{error:#.3g}" for error in (errors.mean(), errors.groupby(fresh["site"]).mean().max())]
    assert out.splitlines()[1].split() == ["the", "shared", "model", *shown]


def test_errors_of_differences_are_by_person(tmp_path, capsys):
    saved(tmp_path, Squared(intercept=True), SHARED, pooled=POOLED, person="person")
    once = table(rows=10)
    thrice = pd.concat([once] * 3).assign(person=np.tile(np.arange(len(once)), 3))
    once.assign(person=np.arange(len(once))).to_csv(tmp_path / "once.csv", index=False)
    thrice.to_csv(tmp_path / "thrice.csv", index=False)
    errors = []
    for name in ("once.csv", "thrice.csv"):
        found = json.loads(run(capsys, "evaluate", tmp_path, tmp_path / name, "--json")[1])
        assert found["personal"] is None
        errors.append([one["personal_change"]["se"] for one in found["clients"].values()])
    # The same rows over again tell nothing new.
    assert errors[0] == pytest.approx(errors[1])


def test_classes_are_told_apart_and_calibrated_as_by_hand(tmp_path, capsys):
    model = saved(
        tmp_path, Logistic(intercept=True), SHARED, ("no", "yes"), pooled=POOLED, personal={"s1": OWN}
    )
    fresh = table(("no", "yes"))
    fresh.to_csv(tmp_path / "t.csv", index=False)
    found = json.loads(run(capsys, "evaluate", tmp_path, tmp_path / "t.csv", "--json")[1])
    used, yes = model.predict(fresh)["probability of yes"], fresh["y"] == "yes"
    assert found["personal"]["auc"] == pytest.approx(roc_auc_score(yes, used))
    assert found["personal"]["mistakes"] == pytest.approx(((used > 0.5) != yes).mean())
    assert found["personal"]["expected_minus_observed"] == pytest.approx(used.mean() - yes.mean())
    apart = [
        abs((used - yes)[(used > k / 10) & (used <= (k + 1) / 10)].sum()) / len(fresh) for k in range(10)
    ]
    assert found["personal"]["calibration_error"] == pytest.approx(sum(apart))
    mine = fresh["site"] == "s1"
    assert found["clients"]["s1"]["auc"] == pytest.approx(roc_auc_score(yes[mine], used[mine]))
    assert "calibration_error" not in found["clients"]["s1"]
    _, out, _ = run(capsys, "evaluate", tmp_path, tmp_path / "t.csv")
    used = found["personal"]
    assert f"area under the curve {used['auc']:.3f}, expected minus observed" in out
    assert f"calibration error {used['calibration_error']:.3f} (10 bins)" in out


def test_three_classes_one_against_the_rest(tmp_path, capsys):
    x = np.array([0.5, -0.2, 0.1, 0.3, -0.7, 0.2, -0.4, 0.1, 0.6])
    classes = ("hi", "lo", "mid")
    model = saved(tmp_path, Softmax(3, intercept=True), x, classes)
    fresh = table(classes)
    fresh.to_csv(tmp_path / "t.csv", index=False)
    found = json.loads(run(capsys, "evaluate", tmp_path, tmp_path / "t.csv", "--json")[1])
    chances = model.predict(fresh)[[f"probability of {name}" for name in classes]].to_numpy()
    assert found["auc"] == pytest.approx(
        roc_auc_score(fresh["y"], chances, multi_class="ovr", labels=list(classes))
    )
    assert 0 < found["calibration_error"] < 1
    assert "expected_minus_observed" not in found


def test_areas_and_calibration_of_hand_worked_rows():
    scores, positive = np.array([0.1, 0.4, 0.4, 0.8]), np.array([False, True, False, True])
    assert area_under_curve(scores, positive) == pytest.approx(3.5 / 4)
    assert area_under_curve(scores, np.ones(4, bool)) is None
    assert calibration_error(np.array([[0.0], [1.0]]), np.array([[False], [True]])) == 0
    # One bin holds both rows: 0.32 on average, of which a half are true.
    assert calibration_error(np.array([[0.31], [0.33]]), np.array([[False], [True]])) == pytest.approx(0.18)


def test_many_clients_are_summarised_and_all_are_in_json(tmp_path, capsys):
    saved(tmp_path, Squared(intercept=True), np.array([0.5, -0.2, 0.1]))
    for clients, lines in ((50, 54), (51, 15)):
        table(clients=clients, rows=3).to_csv(tmp_path / "t.csv", index=False)
        _, out, err = run(capsys, "evaluate", tmp_path, tmp_path / "t.csv")
        assert len(out.splitlines()) == lines
        assert f"{clients - 2} clients ('s10' and others) were not in training" in err
    _, printed, _ = run(capsys, "evaluate", tmp_path, tmp_path / "t.csv", "--json")
    found = json.loads(printed)
    losses = sorted(one["loss"] for one in found["clients"].values())
    assert len(losses) == 51
    typical = np.sqrt(losses)
    assert f"half below {np.median(typical):#.3g}, nine in ten below {np.quantile(typical, 0.9):#.3g}" in out
    assert f"{typical[-10]:#.3g}" in out.splitlines()[-1]


def test_a_level_that_training_did_not_see_is_the_average_level_and_counted(tmp_path, capsys):
    saved(tmp_path, Squared(intercept=True), np.array([0.5, -0.2, 0.1]), other=False)
    fresh = table()
    fresh.to_csv(tmp_path / "t.csv", index=False)
    count = int((fresh["ward"] == "new").sum())
    said = f"bidro: Levels that training did not see: 'ward' in {count} rows; these are predicted"
    for command in ("evaluate", "predict"):
        code, out, err = run(capsys, command, tmp_path, tmp_path / "t.csv", "--json")
        assert code == 0, err
        assert err.count("training did not see") == err.count(said) == 1
        assert json.loads(out)["unseen_levels"] == {"ward": count}
    model, new = load_model(tmp_path), fresh[fresh["ward"] == "new"]
    with pytest.warns(UnseenLevelsWarning, match=f"'ward' in {count} rows"):
        found = model.predict(new)["prediction"]
    each = [model.predict(new.assign(ward=level))["prediction"] for level in ("a", "other")]
    np.testing.assert_allclose(found, np.mean(each, axis=0), rtol=1e-12)
    assert not np.allclose(*each)


def test_cells_that_are_filled_on_use_are_counted(tmp_path, capsys):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"site": np.repeat(["a", "b"], 40), "x": rng.normal(size=80)})
    table["w"] = rng.choice(["p", "q"], 80)
    table["y"] = table["x"] + rng.normal(size=80)
    table.loc[[3, 50], "w"] = None
    table.to_csv(tmp_path / "gaps.csv", index=False)
    code, _, err = run(
        capsys, "fit", tmp_path / "gaps.csv", "--client", "site", "--target", "y", "--missing", "median",
        "--radius", "0.1", "--weights", "simplex", "--gap", "1e-3", "--out", tmp_path / "model",
    )  # fmt: skip
    assert code == 0, err
    code, _, err = run(capsys, "predict", tmp_path / "model", tmp_path / "gaps.csv")
    assert code == 0
    assert "2 missing cells of 'w' filled by" in err
