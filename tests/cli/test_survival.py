"""The command on times to an event, from a table to curves and what is said of it; on counts over times."""

import json

import numpy as np
import pandas as pd
import pytest

from bidro.cli import app
from bidro.core.errors import BidroError
from bidro.data.tables.survival import Observed
from bidro.model.model_file import load_model
from bidro.model.survival import brier_scores, concordance, kaplan_meier, restricted_means
from tests.cli.test_command import run
from tests.deploy.test_survival_sites import patients

ENDS = (90.0, 180.0, 365.0)
HOW = "--client site --event died --time days --time-grid 90,180,365 --target-unit days --curves none"
HOW += " --pairs none --weights simplex"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    at = tmp_path_factory.mktemp("survival")
    patients(150).to_csv(at / "patients.csv", index=False)
    patients(150, 1).to_csv(at / "later.csv", index=False)
    app(f"fit {at}/patients.csv {HOW} --out {at}/model".split(), standalone_mode=False)
    return at


def test_predictions_are_products_of_the_hazards_of_the_model_in_use(folder, capsys):
    model, rows = load_model(folder / "model"), pd.read_csv(folder / "later.csv")
    code, _, err = run(capsys, "predict", folder / "model", folder / "later.csv", "--out", folder / "p.csv")
    assert code == 0, err
    found = pd.read_csv(folder / "p.csv")
    assert list(found) == ["survives_90", "survives_180", "survives_365", "median", "mean", "risk"]
    # By hand: the score of each period, by the client's own coefficients.
    without, seen = np.ones(len(rows)), []
    for j in range(3):
        coded = [float(j == 1), float(j == 2)]
        features = np.column_stack([np.tile(coded, (len(rows), 1)), rows.age, rows.sex == "m"])
        scores = np.zeros(len(rows))
        for name in model.clients:
            w, b = model.predictor(model.used_by(name)).coefficients
            own = (rows.site == name).to_numpy()
            scores[own] = features[own] @ w[0] + b[0]
        without = without / (1 + np.exp(scores))
        seen.append(without)
    np.testing.assert_allclose(found.iloc[:, :3], np.column_stack(seen), rtol=1e-10)
    # Times and events are not needed.
    bare = model.predict(rows.drop(columns=["days", "died"]))
    np.testing.assert_allclose(bare["mean"], found["mean"], rtol=1e-12)
    # What features add to the score, of which the mean over the periods is shown.
    explained = model.explain(rows)
    assert explained["age"].corr(rows.age) > 0.9


def test_the_page_and_the_command_say_how_well_it_does_on_people_held_out(folder, capsys):
    content = json.loads((folder / "model" / "report.json").read_text())
    found, model = content["survival"], load_model(folder / "model")
    rows, kept = pd.read_csv(folder / "patients.csv"), content["survival"]["models"]["personal"]["rows"]
    assert found["held_out"]
    assert found["whose"] == "people"
    assert found["ends"] == [90, 180, 365]
    assert kept == sum(one["rows"] for one in found["clients"].values())
    assert 0.15 * len(rows) < kept < 0.25 * len(rows)
    # One curve for everybody tells nobody apart; Kaplan and Meier's is the best of them.
    assert found["models"]["guess"]["concordance"] == 0.5
    assert found["models"]["personal"]["brier"] < found["models"]["guess"]["brier"]
    assert content["plainly"] is None
    assert all(level.get("of_rows") is None for level in content["levels"])
    assert "a person is one draw" in content["chosen"]["survival"]
    # On other people: the same measures as by hand.
    _, out, _ = run(capsys, "evaluate", folder / "model", folder / "later.csv", "--json")
    later, other = pd.read_csv(folder / "later.csv"), json.loads(out)["survival"]
    seen = Observed(later.days.to_numpy(), later.died.to_numpy() == 1, np.zeros(len(later)))
    curves = model.survival_curves(later)
    used = other["models"]["personal"]
    assert used["concordance"] == pytest.approx(concordance(seen, -restricted_means(curves, ENDS)))
    scores = brier_scores(seen, curves, ENDS)
    assert used["brier"] == pytest.approx(np.trapezoid(scores, ENDS) / (ENDS[-1] - ENDS[0]))
    mid = later.site == "mid"
    of_mid = Observed(seen.time[mid], seen.event[mid], seen.entry[mid])
    np.testing.assert_allclose(other["clients"]["mid"]["observed"], kaplan_meier(of_mid, ENDS))
    np.testing.assert_allclose(other["clients"]["mid"]["predicted"], curves[mid].mean(axis=0))
    _, out, _ = run(capsys, "evaluate", folder / "model", folder / "later.csv")
    assert "On 450 held-out people, " in out
    assert "Harrell's C" in out


def test_what_is_certified_is_of_periods_and_of_people(folder, capsys):
    code, out, err = run(capsys, "certify", folder / "model", folder / "later.csv")
    assert code == 0, err
    assert "fresh people" in out
    assert "Losses are of periods, in each of which 'died' happens" in err
    code, _, err = run(capsys, "predict", folder / "model", folder / "later.csv", "--interval", "0.9")
    assert code == 1
    assert "A time to an event has no interval here" in err


def test_a_run_repeats_and_a_newcomer_adapts(folder, capsys):
    run_toml = folder / "model" / "run.toml"
    assert 'event = "died"' in run_toml.read_text()
    code, _, err = run(capsys, "fit", "--config", run_toml, "--out", folder / "again")
    assert code == 0, err
    assert np.array_equal(load_model(folder / "again").x, load_model(folder / "model").x)
    rows = pd.read_csv(folder / "later.csv")
    rows[rows.site == "mid"].drop(columns="site").to_csv(folder / "new.csv", index=False)
    code, _, err = run(capsys, "adapt", folder / "again", folder / "new.csv", "--client", "hill")
    assert code == 0, err


def test_rows_may_be_in_any_order(folder, capsys):
    rows = pd.read_csv(folder / "patients.csv").sample(frac=1, random_state=1)
    rows.to_csv(folder / "mixed.csv", index=False)
    app(f"fit {folder}/mixed.csv {HOW} --out {folder}/mixed".split(), standalone_mode=False)
    np.testing.assert_allclose(load_model(folder / "mixed").x, load_model(folder / "model").x, atol=1e-8)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("--event died --time days", "A time to an event needs three things"),
        ("--target age --event died --time days --time-grid 90", "leave --target out"),
        ("--event died --time days --time-grid 90,a", "time_grid is a list of numbers"),
        ("--target age --entry days", "A time to an event needs three things"),
    ],
)
def test_half_a_time_is_refused(folder, capsys, more, words):
    code, _, err = run(
        capsys, "fit", folder / "patients.csv", "--client", "site", *more.split(), "--out", "x"
    )
    assert code == 1
    assert words in err


def test_periods_do_not_move_inside_a_ball(folder):
    at = folder / "ball"
    app(
        f"fit {folder}/patients.csv {HOW} --radius 0.03 --personal none --out {at}".split(),
        standalone_mode=False,
    )
    found = json.loads((at / "report.json").read_text())["worst_case"]
    assert found
    for one in found:
        far = {part["name"]: part["in_sd"] for part in one["moved"]}
        assert far.pop("days=90 to 180") == far.pop("days=180 to 365") == 0
        assert max(far.values()) > 0


def test_counts_over_times_that_differ(tmp_path, capsys):
    """`--exposure`: twice the time, twice the count; a time of 0 is refused, and so is another loss."""
    rng = np.random.default_rng(0)
    whole = pd.DataFrame({"ward": np.repeat(["a", "b", "c"], 200), "age": rng.uniform(40, 90, 600)})
    whole["years"] = rng.uniform(0.1, 3, 600)
    whole["falls"] = rng.poisson(whole.years * np.exp(0.02 * (whole.age - 60)))
    whole.to_csv(tmp_path / "falls.csv", index=False)
    how = (
        "fit",
        tmp_path / "falls.csv",
        "--client",
        "ward",
        "--target",
        "falls",
        "--out",
        tmp_path / "model",
    )
    code, out, err = run(capsys, *how, "--loss", "tweedie", "--power", "1.1", "--exposure", "years")
    assert code == 0, err
    assert "of new rows lie within" in out  # what is promised is in counts
    model = load_model(tmp_path / "model")
    assert model.loss.power == 1.1
    assert model.schema.exposure == "years"
    assert 'exposure = "years"' in (tmp_path / "model" / "run.toml").read_text()
    twice = model.predict(whole.assign(years=2 * whole.years))
    np.testing.assert_allclose(twice, 2 * model.predict(whole), rtol=1e-12)
    with pytest.raises(
        BidroError, match="Row 1 below the header: the exposure 'years' is 0, and must be above"
    ):
        model.predict(whole.assign(years=0.0))
    code, _, err = run(capsys, *how, "--force", "--exposure", "years")
    assert code == 1
    assert "An exposure is for losses of counts and costs" in err
    code, _, err = run(capsys, *how, "--force", "--loss", "poisson", "--exposure", "days")
    assert code == 1
    assert "There is no feature 'days' for --exposure" in err
