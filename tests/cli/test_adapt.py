"""`bidro adapt`: a newcomer's correction is put beside the others, or refused with one sentence."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from bidro.core.errors import BidroError
from bidro.fit.fitted import Progress
from bidro.losses import losses_of
from bidro.model.model_file import load_model
from bidro.workflow.adapt import adapt, newcomers_freedom, require_newcomer
from bidro.workflow.fit import fit_tables
from bidro.workflow.folder import folder_files, write_folder
from bidro.workflow.options import FitOptions
from tests.cli.test_command import run


def visits(offsets, rows=40, seed=0):
    rng = np.random.default_rng(seed)
    parts = []
    for name, offset in offsets.items():
        age = rng.uniform(20, 90, rows)
        stay = 0.1 * age + offset + rng.normal(size=rows)
        ill = np.where(stay + rng.normal(size=rows) > 6, "yes", "no")
        parts.append(pd.DataFrame({"hospital": name, "age": age, "stay": stay, "ill": ill}))
    return pd.concat(parts, ignore_index=True)


OFFSETS = {f"h{k}": 2.0 * (k - 3) for k in range(7)}


def fitted(where, table, target="stay", **options):
    where.mkdir()
    table.to_csv(where / "visits.csv", index=False)
    done = fit_tables(
        FitOptions(
            tables=[str(where / "visits.csv")], client="hospital", target=target, features=["age"], **options
        ),
        Progress(),
    )
    write_folder(where / "model", folder_files(done))
    return where / "model"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return fitted(tmp_path_factory.mktemp("adapt") / "differ", visits(OFFSETS))


@pytest.fixture
def newcomer(tmp_path):
    visits({"new": 5.0}, 12, 7).to_csv(tmp_path / "new.csv", index=False)
    return tmp_path / "new.csv"


def test_a_newcomer_is_predicted_by_its_personal_model_and_the_others_as_before(
    capsys, model, newcomer, tmp_path
):
    out = tmp_path / "with-new"
    code, said, err = run(capsys, "adapt", model, newcomer, "--client", "new", "--out", out)
    assert (code, err) == (0, "")
    assert "12 rows" in said
    assert "No statement covers it" in said
    assert f"Written to {out}" in said
    before, after = load_model(model), load_model(out)
    assert set(after.personal) == {*before.personal, "new"}
    assert "new" not in before.personal
    assert all(np.array_equal(after.personal[name], x) for name, x in before.personal.items())
    assert sorted(path.name for path in out.iterdir()) == sorted({p.name for p in model.iterdir()})
    fresh = visits({"new": 5.0}, 200, 8)
    losses = [np.mean((one.predict(fresh)["prediction"] - fresh["stay"]) ** 2) for one in (before, after)]
    assert losses[1] < 0.7 * losses[0]
    others = visits(OFFSETS, 5, 9)
    assert np.array_equal(before.predict(others), after.predict(others))


def test_what_is_said_is_how_far_predictions_move(model, newcomer):
    loaded, rows = load_model(model), pd.read_csv(newcomer)
    found = adapt(loaded, rows, "new", newcomers_freedom(loaded))
    shared = loaded.scores(loaded.rows(rows))[:, 0]
    own = loaded.scores(loaded.rows(rows), found.x)[:, 0]
    assert found.change == pytest.approx(np.sqrt(np.mean((own - shared) ** 2)))
    assert found.deviation == pytest.approx(shared.std())
    # The client's column is not needed.
    alone = adapt(loaded, rows.drop(columns="hospital"), "new", found.freedom)
    assert np.array_equal(alone.x, found.x)


def test_in_place_and_again_only_with_force(capsys, model, newcomer, tmp_path):
    place = tmp_path / "copy"
    write_folder(place, {path.name: path.read_bytes() for path in model.iterdir()})
    assert run(capsys, "adapt", place, newcomer, "--client", "new")[0] == 0
    first = load_model(place).personal["new"]
    code, _, err = run(capsys, "adapt", place, newcomer, "--client", "new")
    assert code == 1
    assert "already" in err
    assert err.count("\n") == 1
    pd.read_csv(newcomer).head(5).to_csv(newcomer, index=False)
    code, said, _ = run(capsys, "adapt", place, newcomer, "--client", "new", "--force", "--json")
    assert code == 0
    assert json.loads(said)["rows"] == 5
    assert not np.array_equal(load_model(place).personal["new"], first)


def test_what_cannot_be_used_is_refused_before_anything_is_written(capsys, model, newcomer, tmp_path):
    def sentence(*arguments):
        code, _, err = run(capsys, "adapt", *arguments)
        assert code == 1
        assert err.startswith("bidro: ")
        assert err.count("\n") == 1
        return err

    before = {path.name: path.read_bytes() for path in model.iterdir()}
    assert "already" in sentence(model, newcomer, "--client", "h0")
    known = replace(load_model(model), personal={})
    with pytest.raises(BidroError, match="was in training"):
        require_newcomer(known, "h0", force=False)
    assert "rows of 'new'" in sentence(model, newcomer, "--client", "other")
    assert "holds a model already" in sentence(model, newcomer, "--client", "new", "--out", model)
    assert "not a folder" in sentence(model / "model.safetensors", newcomer, "--client", "new")
    pd.read_csv(newcomer).head(0).to_csv(tmp_path / "none.csv", index=False)
    assert "rows" in sentence(model, tmp_path / "none.csv", "--client", "new")
    pd.read_csv(newcomer).drop(columns="stay").to_csv(tmp_path / "no-target.csv", index=False)
    assert "stay" in sentence(model, tmp_path / "no-target.csv", "--client", "new")
    with pytest.raises(BidroError, match="Name the newcomer"):
        require_newcomer(load_model(model), " ", force=True)
    assert {path.name: path.read_bytes() for path in model.iterdir()} == before


def test_clients_that_gain_nothing_tell_that_a_newcomer_would_not(capsys, newcomer, tmp_path):
    model = fitted(tmp_path / "alike", visits(dict.fromkeys(OFFSETS, 0.0), seed=3))
    assert load_model(model).settings["personal"]["newcomers"] == [0.0, 0.0]
    before = sorted(path.name for path in model.iterdir())
    code, said, _ = run(capsys, "adapt", model, newcomer, "--client", "new")
    assert code == 0
    assert "gain nothing" in said
    code, said, _ = run(capsys, "adapt", model, newcomer, "--client", "new", "--json")
    assert json.loads(said) == {"client": "new", "adapted": False}
    assert sorted(path.name for path in model.iterdir()) == before


@pytest.mark.parametrize("target", ["stay", "ill"])
def test_of_a_model_without_personal_models_a_clients_own_rows_say_how_freely_it_differs(
    capsys, target, tmp_path
):
    """As of a private one, whose sites make their own, of which nothing leaves: a client with an offset gains
    on fresh rows, and one without has the shared model, whose slope is its own for a number."""
    model = fitted(tmp_path / "without", visits(OFFSETS), target=target, personal=None)
    loaded = load_model(model)
    for name, offset, rows in (("h6", 6.0, 60), ("h3", 0.0, 60), ("h2", 0.0, 4)):
        visits({name: offset}, rows, 7).to_csv(tmp_path / f"{name}.csv", index=False)
    assert run(capsys, "adapt", model, tmp_path / "h6.csv", "--client", "h6")[0] == 0
    if target == "stay":
        code, said, _ = run(capsys, "adapt", model, tmp_path / "h3.csv", "--client", "h3")
        assert code == 0
        assert "Rows left out gain nothing by personal models" in said
    adapted, fresh = load_model(model), visits({"h6": 6.0}, 2000, 8)
    assert list(adapted.personal) == ["h6"]
    rows = adapted.rows(fresh)
    before, after = (losses_of(loaded.loss, x, rows).mean() for x in (loaded.x, adapted.personal["h6"]))
    assert after < (0.2 if target == "stay" else 0.9) * before
    assert "fewer than the 5 folds" in run(capsys, "adapt", model, tmp_path / "h2.csv", "--client", "h2")[2]


def test_of_classes_it_is_said_how_many_change(tmp_path):
    model = load_model(fitted(tmp_path / "classes", visits(OFFSETS), target="ill"))
    rows = visits({"new": 6.0}, 20, 7)
    found = adapt(model, rows, "new", newcomers_freedom(model))
    assert found.deviation is None
    assert 0 < found.change <= 1
    assert "the predicted class differs" in found.in_words("ill")


def test_rows_that_a_client_was_adapted_on_cannot_certify_it(capsys, model, tmp_path):
    seen, fresh = visits(OFFSETS, 150, 11), visits(OFFSETS, 150, 12)
    # One client's rows of seven: the others' must not hide them.
    mixed = pd.concat([fresh[fresh["hospital"] != "h3"], seen[seen["hospital"] == "h3"]])
    few = pd.concat([part.head(20) for _, part in mixed.groupby("hospital")])
    tables = {"seen": seen, "h3": seen[seen["hospital"] == "h3"], "fresh": fresh, "mixed": mixed, "few": few}
    for name, table in tables.items():
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    out = tmp_path / "adapted"
    assert run(capsys, "certify", model, tmp_path / "mixed.csv")[0] == 0
    assert run(capsys, "adapt", model, tmp_path / "h3.csv", "--client", "h3", "--force", "--out", out)[0] == 0
    # What other clients were adapted on is kept when one more is.
    visits({"new": 5.0}, 12, 7).to_csv(tmp_path / "new.csv", index=False)
    assert run(capsys, "adapt", out, tmp_path / "new.csv", "--client", "new")[0] == 0
    for rows in ("seen", "mixed"):
        code, _, err = run(capsys, "certify", out, tmp_path / f"{rows}.csv")
        assert code == 1
        assert "of the rows of 'h3' are those that its personal model was adapted on" in err
        assert err.count("\n") == 1
    _, _, err = run(capsys, "evaluate", out, tmp_path / "mixed.csv")
    assert "its personal model was adapted on; losses on new ones may be larger" in err
    code, said, err = run(capsys, "certify", out, tmp_path / "fresh.csv")
    assert (code, err) == (0, "")
    assert "Personal" in said
    # Of few rows it cannot be told, and then nothing is said of personal models.
    pd.read_csv(tmp_path / "h3.csv").head(20).to_csv(tmp_path / "h3.csv", index=False)
    adapted = run(capsys, "adapt", out, tmp_path / "h3.csv", "--client", "h3", "--force")
    assert adapted[0] == 0
    code, said, err = run(capsys, "certify", out, tmp_path / "few.csv")
    assert code == 0
    assert "The statement with personal models is left out" in err
    assert "Personal" not in said
    assert "Clipped" in said
