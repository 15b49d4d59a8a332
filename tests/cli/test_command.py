"""The command from end to end: model folders, what scripts see, one sentence for every kind of trouble."""

import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidro import cli
from bidro.certify.certificate import Certificate
from bidro.core.errors import BidroError
from bidro.model.model_file import Model, load_model
from bidro.workflow import fit as workflow
from bidro.workflow import folder as folders

SUPPORT = "age = [0, 120]\nstay = [-20, 60]\n"


def visits(seed=0, rows=(30, 40, 60)):
    rng = np.random.default_rng(seed)
    parts = []
    for k, count in enumerate(rows):
        age = rng.uniform(20, 90, count)
        ward = rng.choice(["a", "b"], count)
        stay = 0.1 * age + 2.0 * (ward == "b") + k + rng.normal(size=count)
        parts.append(pd.DataFrame({"hospital": f"h{k}", "age": age, "ward": ward, "stay": stay}))
    return pd.concat(parts, ignore_index=True)


def run(capsys, *arguments):
    """(exit code, stdout, stderr) of the command in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["bidro", *map(str, arguments)])
        # Tests compile what they need and leave the user's cache alone.
        patch.setenv("JAX_COMPILATION_CACHE_DIR", os.path.join(tempfile.gettempdir(), "bidro-tests-compiled"))
        with pytest.raises(SystemExit) as left:
            cli.main()
    out = capsys.readouterr()
    return left.value.code, out.out, out.err


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("command")
    visits().to_csv(where / "visits.csv", index=False)
    visits(1).to_parquet(where / "fresh.parquet")
    (where / "support.toml").write_text(SUPPORT)
    return where


@pytest.fixture(scope="module")
def model(folder):
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from bidro.cli import main; main()", "fit", folder / "visits.csv"),
            *("--client", "hospital", "--target", "stay", "--out", folder / "model", "--radius", "0.1"),
            *("--support", folder / "support.toml", "--metric", "joint", "--confidence", "0.9"),
            *("--shift", "0.1", "--json"),
        ],
        capture_output=True,
        text=True,
        env={
            **{"PATH": "", "XDG_CACHE_HOME": str(folder / "cache"), "HOME": str(folder)},
            # Whichever bidro these tests are of, compiled as quickly and with as few threads as they are.
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            **{name: os.environ[name] for name in ("XLA_FLAGS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")},
        },
    )
    assert done.returncode == 0, done.stderr
    # Compiled programs are kept for the next run.
    assert any((folder / "cache" / "bidro" / "compiled").iterdir())
    return folder / "model", json.loads(done.stdout)


def test_a_model_folder(model):
    where, printed = model
    assert sorted(p.name for p in where.iterdir()) == [
        "certificate.json",
        "frontier.zip",
        "intervals.json",
        "model.safetensors",
        "personal.safetensors",
        "report.html",
        "report.json",
        "run.toml",
        "trained_rows.json",
    ]
    certificate = Certificate.from_json((where / "certificate.json").read_text())
    assert certificate.names == ("h0", "h1", "h2")
    kept = dict(certificate.held_out.rows)
    assert [trained + kept[name] for name, trained in zip(kept, certificate.rows, strict=True)] == [
        30,
        40,
        60,
    ]
    # A fifth of every client's rows.
    assert kept == {"h0": 6, "h1": 8, "h2": 12}
    assert certificate.interval is not None
    assert certificate.shift.radius == 0.1
    assert printed["certificate"]["confidence"] == 0.9
    assert printed["gap"] <= 1e-6
    content = json.loads((where / "report.json").read_text())
    assert [level["confidence"] for level in content["levels"]] == [0.5, 0.8, 0.9, 0.95, 0.99]
    assert content["levels"][content["default_level"]]["interval"]["upper"] == certificate.interval.upper
    assert "stay" in (where / "report.html").read_text()


def test_what_robustness_costs_personal_models_and_who_gains_are_said(model):
    where, printed = model
    settings, page = load_model(where).settings, json.loads((where / "report.json").read_text())
    for name in ("robustness_cost", "personal", "varies", "concerns"):
        assert printed[name] == settings[name]
    assert printed["concerns"] == page["concerns"]
    assert printed["personal"]["clients"] == sorted(load_model(where).personal)
    for client in page["clients"]:
        judged = printed["evaluation"]["clients"][client["name"]]
        assert client["has_personal"] == (client["name"] in printed["personal"]["clients"])
        for field in ("loss", "personal", "pooled", "personal_change", "verdict"):
            assert client[field] == judged[field]
        assert client["typical_error"] == pytest.approx(np.sqrt(client["personal"]))
        # To rounding: the means are of the clients' own sums.
        assert client["personal_change"]["mean"] == pytest.approx(
            client["personal"] - client["pooled"], abs=1e-9
        )
    found = page["calibration"]
    chosen, pooled = (found["candidates"][found[name]] for name in ("chosen", "pooled"))
    assert chosen["mean"] / pooled["mean"] - 1 == pytest.approx(printed["robustness_cost"]["mean"], abs=1e-12)
    assert found["personal"]["mean"] / chosen["mean"] - 1 == pytest.approx(printed["personal"]["mean"])
    assert (pooled["max_weight_ratio"], found["candidates"][found["afl"]]["max_weight_ratio"]) == (1.0, None)
    level = page["levels"][page["default_level"]]
    assert level["personal"]["bound"] == printed["certificate"]["personal"]["bound"]
    assert any(name == "Personal models" for name, _ in page["settings"])


def predicted_by(model, x, table):
    """By hand, from a model in the units of training."""
    age, ward = np.asarray(x[:2]) / model.standard.spread
    intercept = x[2] + model.standard.middle - model.standard.mean @ [age, ward]
    return table["age"] * age + (table["ward"] == "b") * ward + intercept


def test_evaluate_predict_and_certify_agree_with_the_model_by_hand(model, folder, capsys):
    where, _ = model
    fresh = visits(1)
    loaded = load_model(where)
    by_hand = predicted_by(loaded, loaded.x, fresh)
    used, has_personal = by_hand.copy(), fresh["hospital"].isin(loaded.personal)
    for name, x in loaded.personal.items():
        used[fresh["hospital"] == name] = predicted_by(loaded, x, fresh[fresh["hospital"] == name])
    assert has_personal.all()
    fresh.replace({"hospital": {"h0": "elsewhere"}}).to_csv(folder / "partly.csv", index=False)
    code, out, err = run(capsys, "predict", where, folder / "partly.csv")
    known = fresh["hospital"] != "h0"
    assert f"{known.sum()} of {len(fresh)} rows were predicted by their client's personal model" in err
    assert np.array(out.split()[1:], float) == pytest.approx(used.where(known, by_hand).to_numpy())
    code, out, err = run(capsys, "predict", where, folder / "fresh.parquet")
    assert code == 0
    assert f"{has_personal.sum()} of {len(fresh)} rows were predicted by their client's personal model" in err
    assert np.array(out.split()[1:], float) == pytest.approx(used.to_numpy())
    fresh.drop(columns="hospital").to_csv(folder / "nameless.csv", index=False)
    code, out, err = run(capsys, "predict", where, folder / "nameless.csv")
    assert "no column 'hospital', so all rows were predicted by the shared model" in err
    assert np.array(out.split()[1:], float) == pytest.approx(by_hand.to_numpy())
    code, out, _ = run(
        capsys, "predict", where, folder / "fresh.parquet", "--out", folder / "p.csv", "--json"
    )
    assert json.loads(out)["rows"] == len(fresh)
    assert pd.read_csv(folder / "p.csv")["prediction"].to_numpy() == pytest.approx(used.to_numpy())
    code, out, _ = run(capsys, "evaluate", where, folder / "fresh.parquet", "--json")
    found = json.loads(out)
    errors = (fresh["stay"] - by_hand) ** 2
    means = errors.groupby(fresh["hospital"]).mean()
    assert found["mean"] == pytest.approx(errors.mean())
    assert found["worst_client"] == found["worst_decile"] == pytest.approx(means.max())
    assert found["clients"]["h1"]["loss"] == pytest.approx(means["h1"])
    assert found["clients"]["h1"]["rows"] == 40
    assert found["clients"]["h1"]["se"] == pytest.approx(
        errors[fresh["hospital"] == "h1"].std(ddof=1) / np.sqrt(40)
    )
    assert run(capsys, "evaluate", where, folder / "fresh.parquet")[1].startswith("Typical error, on ")
    code, out, _ = run(capsys, "certify", where, folder / "fresh.parquet", "--confidence", "0.8", "--json")
    certificate = Certificate.from_json(out)
    assert certificate.clipped.rows["h2"] == 60
    assert certificate.clipped.means["h1"] <= found["clients"]["h1"]["loss"] + 1e-9
    counted = np.minimum((fresh["stay"] - used) ** 2, loaded.seen).groupby(fresh["hospital"]).mean()
    assert dict(certificate.personal.means) == pytest.approx(counted.to_dict())
    assert "0.9" in certificate.absent["interval"]


def test_certify_by_people_and_on_the_declared_support_only(model, folder, capsys):
    where, _ = model
    fresh = visits(1).assign(patient=lambda table: np.arange(len(table)) // 2)
    fresh.to_csv(folder / "patients.csv", index=False)
    code, out, _ = run(capsys, "certify", where, folder / "patients.csv", "--person", "patient", "--json")
    certificate = Certificate.from_json(out)
    assert certificate.clipped.rows["h2"] == 30
    assert certificate.clipped.people
    code, _, err = run(capsys, "certify", where, folder / "patients.csv", "--person", "person")
    assert code != 0
    assert "no column 'person'" in err
    fresh.loc[75, "age"] = 130
    fresh.to_csv(folder / "patients.csv", index=False)
    code, _, err = run(capsys, "certify", where, folder / "patients.csv")
    assert code != 0
    assert "Row 76 below the header of" in err
    assert "'age' is 130, outside the declared support" in " ".join(err.split())


def test_rows_that_were_trained_on_are_refused_and_losses_are_those_of_the_rows_given(folder, capsys):
    visits(2, (100, 100, 100)).to_csv(folder / "all.csv", index=False)
    visits(3, (100, 100, 100)).to_csv(folder / "others.csv", index=False)
    where = folder / "on_all"
    code, out, err = run(
        capsys, "fit", folder / "all.csv", "--client", "hospital", "--target", "stay", "--radius", "0.1",
        "--hold-out", "0", "--gap", "1e-3", "--out", where, "--verbose",
    )  # fmt: skip
    assert code == 0, err
    assert "training loss" in out
    assert "fresh" not in out.split("client ")[1]
    code, out, err = run(capsys, "certify", where, folder / "all.csv")
    assert code == 1
    assert "of these rows were in training" in err
    assert out == ""
    code, out, err = run(capsys, "certify", where, folder / "others.csv")
    assert (code, err) == (0, "")
    # Every loss is one of the rows given, clipped at the largest of training, and has its bound beside it.
    assert "training loss" not in out
    certified = json.loads(run(capsys, "certify", where, folder / "others.csv", "--json")[1])["clipped"]
    for name in ("h0", "h1", "h2"):
        line = next(line for line in out.splitlines() if line.strip().startswith(name))
        mean, bound = certified["means"][name], certified["clients"][name]
        assert line.replace("*", "").split() == [name, "100", f"{mean:.4g}", f"{bound:.4g}"]
    code, _, err = run(capsys, "evaluate", where, folder / "all.csv", "--json")
    assert code == 0
    assert "of these rows were in training" in err
    assert run(capsys, "evaluate", where, folder / "others.csv", "--json")[2] == ""
    others = visits(3, (100, 100, 100))
    others.loc[[0, 5], "ward"] = "z"
    others.to_csv(folder / "unseen.csv", index=False)
    code, _, err = run(capsys, "certify", where, folder / "unseen.csv")
    assert code == 0
    said = "bidro: Levels that training did not see: 'ward' in 2 rows; these are predicted as the average"
    assert err == f"{said} level.\n"
    # The sketch may be left out of what is passed on; then it is said that nothing is known.
    (where / "trained_rows.json").unlink()
    code, out, err = run(capsys, "certify", where, folder / "all.csv")
    assert code == 0
    assert "cannot be told" in err


def test_plan_and_report(model, folder, capsys):
    where, _ = model
    code, out, _ = run(capsys, "plan", where, folder / "visits.csv", "--radius", "20", "--json")
    assert code == 0
    assert set(json.loads(out)["needed"]) == {"h0", "h1", "h2"}
    code, out, _ = run(capsys, "plan", where, folder / "visits.csv", "--width", "5")
    assert code == 0
    assert "helps most" in out
    code, out, _ = run(capsys, "report", where, "--out", folder / "again.html")
    assert (folder / "again.html").read_text() == (where / "report.html").read_text()


def test_rows_for_a_privacy_budget(model, folder, capsys):
    """A tenth of epsilon needs more than five times as many rows, and half the excess 1.4 times."""
    where, _ = model
    call = ("plan", where, folder / "visits.csv", "--json", "--epsilon")
    found = {
        words: json.loads(run(capsys, *call, *words.split())[1])
        for words in ("10", "1", "1 --excess 0.025", "1 --delta 1e-9")
    }
    assert found["1"]["rows"] == {"h0": 30, "h1": 40, "h2": 60}
    # What it costs falls with the square of the rows, of which there are 130 / 3 a site.
    assert found["1"]["now"] == pytest.approx(0.05 * (found["1"]["needed"] * 3 / 130) ** 2, rel=0.05)
    assert found["1 --excess 0.025"]["needed"] == pytest.approx(2**0.5 * found["1"]["needed"], abs=2)
    assert found["10"]["needed"] < found["1"]["needed"] / 5 < found["1 --delta 1e-9"]["needed"] / 5
    code, out, _ = run(capsys, "plan", where, folder / "visits.csv", "--epsilon", "1")
    assert code == 0
    assert f"about {found['1']['needed']:,} rows a site" in out
    for wrong, words in (
        (("--epsilon", "1", "--width", "5"), "one target"),
        (("--epsilon", "0"), "positive"),
    ):
        code, _, err = run(capsys, "plan", where, folder / "visits.csv", *wrong)
        assert code != 0
        assert words in err


def test_a_run_is_repeated_by_its_own_options(model, folder, capsys):
    where, _ = model
    code, _, err = run(capsys, "fit", "--config", where / "run.toml", "--out", folder / "again", "--json")
    assert code == 0, err
    # To rounding: this process computes with other numbers of threads.
    first, again = load_model(where), load_model(folder / "again")
    np.testing.assert_allclose(again.x, first.x, rtol=1e-7)
    assert again.schema == first.schema
    assert (folder / "again" / "run.toml").read_text() == (where / "run.toml").read_text()


def test_files_of_clients_classes_and_no_rows_kept_out(folder, capsys):
    table = visits().assign(long=lambda t: np.where(t["stay"] > 6, "yes", "no")).drop(columns="stay")
    for name, part in table.groupby("hospital"):
        part.drop(columns="hospital").to_csv(folder / f"{name}.csv", index=False)
    files = [folder / f"h{k}.csv" for k in range(3)]
    code, out, err = run(
        capsys, "fit", *files, "--target", "long", "--out", folder / "classes", "--radius", "0.05",
        "--hold-out", "0", "--gap", "1e-4", "--verbose",
    )  # fmt: skip
    assert code == 0, err
    assert "absent: no rows were held out" in out
    assert "training rows" in out
    code, out, _ = run(capsys, "evaluate", folder / "classes", *files, "--json")
    assert json.loads(out)["loss"] == "logistic"
    code, out, _ = run(capsys, "evaluate", folder / "classes", files[1], "--json")
    assert list(json.loads(out)["clients"]) == ["h1"]
    code, out, _ = run(capsys, "predict", folder / "classes", files[0])
    assert out.splitlines()[0] == "prediction,probability of no,probability of yes"


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["fit", "visits.csv", "--client", "hospital", "--target", "stay"], 2, "--out"),
        (["fit", "--client", "hospital", "--target", "stay", "--out", "x"], 2, "at least one table"),
        (["fit", "visits.csv", "--client", "hospital", "--out", "x"], 1, "--target"),
        (["fit", "visits.csv", "--client", "clinic", "--target", "stay", "--out", "x"], 1, "'clinic'"),
        (
            [
                "fit",
                "visits.csv",
                "--client",
                "hospital",
                "--target",
                "stay",
                "--radius",
                "odd",
                "--out",
                "x",
            ],
            1,
            "radius",
        ),
        (
            [
                "fit",
                "visits.csv",
                "--client",
                "hospital",
                "--target",
                "stay",
                "--hold-out",
                "2",
                "--out",
                "x",
            ],
            1,
            "share",
        ),
        (
            [
                "fit",
                "gaps.csv",
                "--client",
                "hospital",
                "--target",
                "stay",
                "--missing",
                "refuse",
                "--out",
                "x",
            ],
            1,
            "1 in 'age' of 'h0'",
        ),
        (["fit", "visits.csv", "--config", "bad.toml", "--out", "x"], 1, "unknown option 'radii'"),
        (
            ["fit", "visits.csv", "--client", "hospital", "--target", "stay", "--out", "full"],
            1,
            "not a model folder",
        ),
        (
            [
                "fit",
                "tiny.csv",
                "--client",
                "hospital",
                "--target",
                "stay",
                "--features",
                "age",
                "--out",
                "x",
            ],
            1,
            "too few",
        ),
        (["predict", "model", "less.csv"], 1, "no column 'age'"),
        (["predict", "model", "odd.csv"], 1, "'age' must be a number; it is 'old'"),
        (["predict", "nothing", "visits.csv"], 1, "no model"),
        (["certify", "model", "new.csv"], 1, "was not in training"),
        (["certify", "model", "one.csv"], 1, "no rows of client 'h1'"),
        (["plan", "model", "visits.csv"], 1, "one target"),
        (["odd"], 2, "No such command"),
    ],
)
def test_trouble_is_one_sentence_and_leaves_nothing(
    model, folder, capsys, monkeypatch, arguments, code, word
):
    table = visits()
    table.assign(age=table["age"].where(table.index > 0)).to_csv(folder / "gaps.csv", index=False)
    table.groupby("hospital").head(2).to_csv(folder / "tiny.csv", index=False)
    table.drop(columns="age").to_csv(folder / "less.csv", index=False)
    table.assign(age="old").to_csv(folder / "odd.csv", index=False)
    table.assign(hospital="h9").to_csv(folder / "new.csv", index=False)
    table[table["hospital"] == "h0"].to_csv(folder / "one.csv", index=False)
    (folder / "bad.toml").write_text("radii = 3\n")
    (folder / "full").mkdir(exist_ok=True)
    (folder / "full" / "thesis.tex").write_text("years of work")
    monkeypatch.chdir(folder)
    before = sorted(p.name for p in folder.iterdir())
    found, _, err = run(capsys, *arguments)
    assert found == code
    assert word in err
    assert "Traceback" not in err
    assert sorted(p.name for p in folder.iterdir()) == before
    assert (folder / "full" / "thesis.tex").exists()


def test_a_new_client_at_predict_is_noted(model, folder, capsys):
    visits().assign(hospital="h9").to_csv(folder / "new.csv", index=False)
    code, out, err = run(capsys, "predict", model[0], folder / "new.csv")
    assert code == 0
    assert "'h9' was not in training" in err
    assert len(out.splitlines()) == 131


def test_an_interrupt_leaves_nothing(folder, capsys, monkeypatch):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    for where, name in ((workflow, "fit_tables"), (folders.os, "replace")):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, stop)
            before = sorted(p.name for p in folder.iterdir())
            code, _, err = run(
                capsys, "fit", folder / "visits.csv", "--client", "hospital", "--target", "stay",
                "--radius", "0.1", "--gap", "1e-2", "--out", folder / "stopped",
            )  # fmt: skip
            assert code == 1
            assert "interrupted; nothing was written" in err
            assert sorted(p.name for p in folder.iterdir()) == before


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_model_file_with_any_byte_changed_is_refused(model, data):
    good = (model[0] / "model.safetensors").read_bytes()
    if data.draw(st.booleans()):
        bad = good[: data.draw(st.integers(0, len(good) - 1))]
    else:
        place, change = data.draw(st.integers(0, len(good) - 1)), data.draw(st.integers(1, 255))
        bad = good[:place] + bytes([good[place] ^ change]) + good[place + 1 :]
    with pytest.raises(BidroError, match=r"damaged|not a whole model"):
        Model.from_bytes(bad, "model.safetensors")


def test_numbers_by_another_name_are_refused(model):
    """Also those that a model can do without, and so would not be missed."""
    good = (model[0] / "model.safetensors").read_bytes()
    for name in (b'"mean"', b'"model"', b'"pooled"', b'"spread"'):
        place = good.rindex(name) + 1
        bad = good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :]
        with pytest.raises(BidroError, match=r"damaged|not a whole model"):
            Model.from_bytes(bad, "model.safetensors")


def test_a_model_of_another_kind_or_version_is_refused(model):
    from bidro.model import model_file

    loaded = load_model(model[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_file, "VERSION", 99)
        newer = loaded.to_bytes()
    with pytest.raises(BidroError, match="version 99"):
        Model.from_bytes(newer, "model")
    assert Model.from_bytes(loaded.to_bytes(), "model").to_bytes() == loaded.to_bytes()


def test_help_teaches_and_is_light():
    """No heavy module is loaded for help: that is what keeps it instant."""
    code = (
        "import sys; sys.argv = ['bidro', 'fit', '--help']\n"
        "from bidro.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('jax', 'pandas', 'sklearn', 'matplotlib', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Example: bidro fit visits.csv" in done.stdout
    assert done.stdout.strip().endswith("[]")


def test_predictions_never_replace_the_table(model, folder, capsys):
    where, _ = model
    visits(4).to_csv(folder / "again.csv", index=False)
    before = (folder / "again.csv").read_bytes()
    code, _, err = run(capsys, "predict", where, folder / "again.csv", "--out", folder / "again.csv")
    assert code == 1
    assert "is the table itself" in err
    assert (folder / "again.csv").read_bytes() == before
