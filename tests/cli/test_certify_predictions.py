"""`bidro certify --predictions`: any model's predictions in a table, alone and against another's."""

import json
import re

import numpy as np
import pandas as pd
import pytest

import bidro
from bidro.certify.certificate import Certificate
from tests.cli.test_command import run, visits

COLUMNS = ("--client", "hospital", "--target", "stay", "--prediction", "predicted")


def scored(seed, noise=0.3):
    """Visits with a prediction that is off by chance, and with the probability of a long stay."""
    rng, table = np.random.default_rng(seed), visits(seed, (150, 200, 250))
    table["predicted"] = table["stay"] + noise * rng.normal(size=len(table))
    table["long"] = np.where(table["stay"] > 7, "yes", "no")
    chance = np.round(1 / (1 + np.exp(7 - table["predicted"])), 3)
    table["p_yes"], table["p_no"] = chance, np.round(1 - chance, 3)
    table["said"] = np.where(chance > 0.5, "yes", "no")
    table["visit"] = [f"v{k}" for k in range(len(table))]
    table["patient"] = table.groupby("hospital").cumcount() // 2
    return table


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("predictions")
    scored(0).to_csv(where / "scored.csv", index=False)
    scored(1).to_parquet(where / "other.parquet")
    worse = scored(0)
    worse["predicted"] += np.random.default_rng(5).normal(size=len(worse))
    worse.to_csv(where / "worse.csv", index=False)
    worse.sample(frac=1, random_state=0).to_csv(where / "mixed.csv", index=False)
    return where


def certified(capsys, folder, *options):
    return run(capsys, "certify", "--predictions", folder / "scored.csv", *options)


def test_the_command_states_what_python_does(folder, capsys):
    table, other = scored(0), scored(1)
    options = (*COLUMNS, "--clip-from", folder / "other.parquet", "--confidence", "0.9")
    code, out, err = certified(capsys, folder, *options, "--json")
    assert (code, err) == (0, "")
    expected = bidro.certify_predictions(
        table["stay"], table["predicted"], table["hospital"], confidence=0.9,
        clip_from=(other["stay"], other["predicted"]),
    )  # fmt: skip
    found = Certificate.from_json(out)
    assert found.clipped.bound == pytest.approx(expected.clipped.bound, rel=1e-9)
    code, out, _ = certified(capsys, folder, *options)
    assert code == 0
    assert "This model was not trained here. Losses are clipped at" in out
    code, out, _ = certified(capsys, folder, *options, "--person", "patient", "--json")
    assert dict(Certificate.from_json(out).clipped.rows) == {"h0": 75, "h1": 100, "h2": 125}


def test_classes_by_label_and_by_probability(folder, capsys):
    of_class = ("--client", "hospital", "--target", "long")
    code, out, _ = certified(capsys, folder, *of_class, "--prediction", "said", "--json")
    assert code == 0
    table = scored(0)
    wrong = (table["said"] != table["long"]).groupby(table["hospital"]).mean()
    assert dict(Certificate.from_json(out).mistakes.means) == pytest.approx(dict(wrong))
    by_chance = (*of_class, "--probability", "no=p_no", "--probability", "yes=p_yes", "--json")
    code, out, _ = certified(capsys, folder, *by_chance, "--loss", "brier")
    assert code == 0
    brier = ((table["p_yes"] - (table["long"] == "yes")) ** 2).groupby(table["hospital"]).mean()
    assert dict(Certificate.from_json(out).held_out.means) == pytest.approx(dict(brier))
    code, out, _ = certified(capsys, folder, *by_chance, "--loss", "log loss", "--largest", "12")
    assert code == 0
    assert Certificate.from_json(out).held_out.largest == 12


def test_classes_that_a_spreadsheet_would_compute(tmp_path, capsys):
    """`bidro predict` writes them with an apostrophe, the table of the truth has none."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=300)
    truth = pd.DataFrame({"site": ["a", "b"] * 150, "x": x})
    truth["y"] = np.where(x + rng.normal(size=300) > 0, "=yes", "<=no")
    truth.to_csv(tmp_path / "rows.csv", index=False)
    fitted = (
        "--client",
        "site",
        "--target",
        "y",
        "--curves",
        "none",
        "--personal",
        "none",
        "--weights",
        "fixed",
    )
    assert run(capsys, "fit", tmp_path / "rows.csv", *fitted, "--out", tmp_path / "model")[0] == 0
    said = tmp_path / "said.csv"
    assert run(capsys, "predict", tmp_path / "model", tmp_path / "rows.csv", "--out", said)[0] == 0
    baselines = truth.join(pd.read_csv(said))
    assert set(baselines["prediction"]) == {"'=yes", "<=no"}
    baselines.to_csv(tmp_path / "scored.csv", index=False)
    wrong = (baselines["prediction"].str.lstrip("'") != baselines["y"]).groupby(baselines["site"]).mean()
    by_chance = [f"{name}=probability of {name}" for name in ("=yes", "<=no")]
    chances = ("--probability", by_chance[0], "--probability", by_chance[1])
    for given in (("--prediction", "prediction"), chances):
        code, out, err = certified(capsys, tmp_path, *fitted[:4], *given, "--loss", "mistakes", "--json")
        assert (code, err) == (0, "")
        assert dict(Certificate.from_json(out).mistakes.means) == pytest.approx(dict(wrong))


def test_a_class_and_a_column_that_can_be_cut_in_two_ways(tmp_path, capsys):
    table = pd.DataFrame({"site": ["a"] * 4, "y": ["a", "b"] * 2, "b=p": [0.5] * 4, "p": [0.5] * 4})
    table.to_csv(tmp_path / "scored.csv", index=False)
    code, _, err = certified(
        capsys, tmp_path, "--client", "site", "--target", "y", "--probability", "a=b=p", "--loss", "brier"
    )
    assert code == 1
    assert "may mean the column 'b=p' or 'p'" in err


def test_against_another_model(folder, capsys):
    options = (*COLUMNS, "--clip-from", folder / "other.parquet", "--json", "--against")
    code, out, _ = certified(capsys, folder, *options, folder / "worse.csv")
    assert code == 0
    found = Certificate.from_json(out)
    assert found.against.lower
    assert not found.against.better
    code, out, _ = certified(capsys, folder, *options, folder / "mixed.csv", "--key", "visit")
    assert code == 0
    assert out == found.to_json()
    code, _, err = certified(capsys, folder, *options, folder / "mixed.csv")
    assert code == 1
    assert "so that it is not the same row" in err
    assert "--key COLUMN" in err


def test_the_page_leaves_out_what_is_not_known(folder, capsys):
    page = folder / "page.html"
    options = ("--largest", "900", "--against", folder / "worse.csv", "--confidence", "0.93", "--json")
    code, out, err = certified(capsys, folder, *COLUMNS, *options, "--report", page)
    assert code == 0
    assert str(page) in err
    text = page.read_text()
    content = json.loads(text.split('id="content">', 1)[1].split("</script>", 1)[0])
    found = Certificate.from_json(out)
    level = content["levels"][content["default_level"]]
    assert level["confidence"] == 0.93
    assert level["held_out"]["bound"] == found.held_out.bound
    assert level["against"]["clients"] == [found.against.clients[name] for name in found.names]
    assert content["trained"] is False
    assert not {"solver", "calibration", "features", "worst_case", "chosen"} & set(content)


def changed(folder, name, **columns):
    """A copy of the table with other columns; a function of the table, or its values."""
    table = scored(0)
    table = table.assign(**columns)
    table.to_csv(folder / name, index=False)
    return folder / name


def test_one_sentence_for_every_kind_of_trouble(folder, capsys):
    other = folder / "other.parquet"
    base = (*COLUMNS, "--largest", "900")
    probable = ("--client", "hospital", "--target", "long", "--probability", "no=p_no", "--probability")
    gap = changed(folder, "gap.csv", predicted=lambda t: t["predicted"].where(t["stay"] != t["stay"][4]))
    odd = changed(folder, "odd.csv", p_no=lambda t: t["p_no"].where(t.index != 3, 0.99))
    twice = changed(folder, "twice.csv", visit="same")
    alone = changed(folder, "alone.csv", visit=lambda t: t["visit"].where(t.index != 2, "new"))
    moved = changed(folder, "moved.csv", hospital=lambda t: t["hospital"].where(t.index != 1, "h2"))
    short, one = folder / "short.csv", folder / "one.csv"
    scored(0)[:-1].to_csv(short, index=False)
    scored(0)[:1].to_csv(one, index=False)
    table = folder / "scored.csv"
    for where, options, words in (
        (table, COLUMNS, "no largest value of its own"),
        (table, (*COLUMNS, "--clip-from", table), "is the table to certify itself"),
        (table, (*COLUMNS, "--clip-from", folder / "worse.csv", "--largest", "-1"), "finite number above 0"),
        (table, (*COLUMNS, "--clip-from", short), "those to certify"),
        (table, (*COLUMNS, "--clip-from", folder / "worse.csv"), "those to certify"),
        (table, ("--client", "clinic", *base[2:]), "has no column 'clinic'"),
        (table, ("--client", "client", *base[2:]), "has no column 'client'"),
        (table, (*base, "--target", "nothing"), "has no column 'nothing'"),
        (table, (*base, "--person", "nobody"), "has no column 'nobody'"),
        (table, (*base, "--loss", "hinge"), "loss must be one of"),
        (table, (*base, "--loss", "mistakes"), "is a class of the target"),
        (table, (*probable[:4], "--prediction", "said", "--loss", "brier"), "a probability of every class"),
        (table, (*base, "--probability", "yes=p_yes"), "Name the column of the predictions"),
        (table, (*base[:4], "--largest", "9"), "Name the column of the predictions"),
        (table, (*probable, "p_yes"), "--probability is CLASS=COLUMN"),
        (table, (*probable, "maybe=p_yes"), "no column of probabilities for the class 'yes'"),
        (table, (*probable, "yes=p_yes", "--loss", "squared"), "probabilities are of classes"),
        (table, (*COLUMNS, "--confidence", "1.5", "--largest", "9"), "confidence must be"),
        (odd, (*probable, "yes=p_yes"), "Row 4 below the header of"),
        (gap, base, "Row 5 below the header of"),
        (one, base, "too few rows"),
        (table, (*base, "--against", table), "is the table to certify itself"),
        (table, (*base, "--against", short), "has 600 rows and"),
        (table, (*base, "--against", moved), "Row 2 below the header"),
        (table, (*base, "--against", moved, "--key", "visit"), "another 'hospital'"),
        (table, (*base, "--against", twice, "--key", "visit"), "is 'same' in 600 rows"),
        (table, (*base, "--against", alone, "--key", "visit"), "row with 'visit' v2 and"),
        (table, (*base, "--against", folder / "worse.csv", "--key", "none"), "has no column 'none'"),
        (folder / "absent.csv", base, "There is no file"),
        (table, (*base, "--report", folder), "is a folder; name a file"),
    ):
        code, out, err = run(capsys, "certify", "--predictions", where, *options)
        assert (code, out) == (1, ""), (words, err)
        assert words in err, err
        assert err.startswith("bidro: ")
        assert err.count("\n") == 1
    for options, words in (
        (("--predictions", table, "--target", "stay"), "needs --client COLUMN"),
        (("--predictions", table, *COLUMNS, "--shift", "0.1"), "--shift needs a model that was trained here"),
        ((folder, table, "--predictions", table), "not two of them"),
        ((folder, table, "--against", other), "--against goes with --predictions"),
        ((folder,), "Give a model folder and tables"),
        ((), "Give a model folder and tables"),
    ):
        code, out, err = run(capsys, "certify", *options)
        assert (code, out) == (2, "")
        assert words in " ".join(err.replace("│", " ").split())


def test_a_key_may_be_missing_nowhere(folder, capsys):
    gap = changed(folder, "unnamed.csv", visit=lambda t: t["visit"].where(t.index != 2))
    code, _, err = certified(capsys, folder, *COLUMNS, "--largest", "900", "--against", gap, "--key", "visit")
    assert code == 1
    assert "the key 'visit' is '' in 1 rows" in err


def test_rows_that_may_be_the_same_are_said(folder, capsys):
    mixed = pd.concat([scored(1), scored(0)[:2]])
    mixed.to_csv(folder / "some.csv", index=False)
    code, _, err = certified(capsys, folder, *COLUMNS, "--clip-from", folder / "some.csv")
    assert code == 0
    assert "2 of the other rows" in err


def test_intervals_of_any_model_are_the_clients_order_statistics(folder, capsys):
    table, options = scored(0), (*COLUMNS, "--largest", "1000", "--interval", "0.9")
    code, out, err = certified(capsys, folder, *options, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert Certificate.from_json(json.dumps({k: v for k, v in found.items() if k != "intervals"})).of_rows
    for name, own in (table["stay"] - table["predicted"]).abs().groupby(table["hospital"]):
        exact = np.sort(own)[int(np.ceil(0.9 * (len(own) + 1))) - 1]
        assert found["intervals"]["clients"][name] == pytest.approx(exact)
    assert found["intervals"]["any_mixture"] == max(found["intervals"]["clients"].values())
    assert "on average over calibration rows" in found["intervals"]["promise"]
    code, out, _ = certified(capsys, folder, *options)
    assert code == 0
    assert "Scores of 90% of new rows are at most" in out
    # Rounded up, so that what is shown holds, too.
    for name, q in found["intervals"]["clients"].items():
        (shown,) = re.findall(rf"^  {name} +\d+ rows +(\S+)$", out, re.MULTILINE)
        assert q <= float(shown) <= q * 1.001
    classes = ("--client", "hospital", "--target", "long", "--interval", "0.9", "--json")
    shares = ("--probability", "yes=p_yes", "--probability", "no=p_no", "--largest", "20")
    code, out, _ = certified(capsys, folder, *classes, *shares, "--loss", "log loss")
    assert code == 0
    chance = np.where(table["long"] == "yes", table["p_yes"], table["p_no"])
    own = np.sort(-np.log(chance[table["hospital"] == table["hospital"][0]]))
    rank = int(np.ceil(0.9 * (len(own) + 1)))
    assert json.loads(out)["intervals"]["clients"][table["hospital"][0]] == pytest.approx(own[rank - 1])
    code, _, err = certified(capsys, folder, *classes, "--prediction", "said")
    assert code == 1
    assert "--probability CLASS=COLUMN" in err


def test_an_interval_needs_a_share_and_predictions(folder, capsys):
    code, _, err = certified(capsys, folder, *COLUMNS, "--largest", "1000", "--interval", "90")
    assert code == 1
    assert "strictly between 0 and 1" in err
    code, _, err = run(capsys, "certify", folder, folder / "scored.csv", "--interval", "0.9")
    assert code == 2
    assert "--interval goes with --predictions" in err
