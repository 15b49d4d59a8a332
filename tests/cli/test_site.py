"""`bidro site check | log | approve | refuse | withdraw`: what an owner sees and decides."""

import json

import numpy as np
import pandas as pd
import pytest

from bidro.core.errors import BidroError
from bidro.deploy.server.serve import run_job
from bidro.deploy.site.config import Site
from bidro.deploy.site.rows import site_log
from bidro.deploy.site.state import Question
from tests.cli.test_command import run
from tests.deploy.sites import QUICK, carrier, job, table, write_sites
from tests.deploy.test_site import asked_of, frame, site_at


@pytest.fixture
def sites(tmp_path):
    """(the folder, what was agreed on)."""
    return tmp_path, write_sites(tmp_path, table())


def east(folder):
    return "--site", folder / "east.toml"


def test_check_says_what_would_be_answered_and_remembers_nothing(capsys, sites):
    folder, agreed = sites
    for _ in range(2):
        code, out, _ = run(capsys, "site", "check", *east(folder), "--json")
        found = json.loads(out)
        assert code == 0
        assert found["rows"] == found["training"] + found["held_out"] == 120
        assert (found["new"], found["gone"], found["refused"]) == (120, 0, None)
        assert (found["min_rows"], found["min_cell"], found["counted"]) == (10, 5, "rows")
    assert found["rare_levels"] == found["rare_cells"] == {}
    assert max(found["folds"]) >= 2
    run_job(job(agreed), carrier(folder), folder / "runs")
    found = json.loads(run(capsys, "site", "check", *east(folder), "--json")[1])
    assert (found["new"], found["gone"], found["refused"]) == (0, 0, None)
    # One patient more: said here, with what to do, before any run.
    own = pd.read_csv(folder / "east.csv")
    more = pd.concat([own, own.iloc[[0]].assign(u=9.0)])
    more.to_csv(folder / "east.csv", index=False)
    code, out, _ = run(capsys, "site", "check", *east(folder))
    assert code == 0
    assert "1 rows are new since earlier runs, and 0 that these used are gone." in out
    assert "A run would be refused: " in out
    assert "wait for more new rows" in out


def test_check_names_rare_levels_and_cells_with_their_counts(capsys, tmp_path):
    whole = table()
    own = np.flatnonzero(whole["site"] == "east")
    whole["sex"] = np.where(np.arange(len(whole)) % 2, "f", "m")
    whole.loc[own, "ward"] = np.where(np.arange(len(own)) < 7, "b", "a")
    write_sites(tmp_path, whole, training={"hold_out": 0.0})
    found = json.loads(run(capsys, "site", "check", *east(tmp_path), "--json")[1])
    assert found["rare_levels"] == {"ward=b": 7}
    assert found["rare_cells"] == {"ward=b with sex=f": 3, "ward=b with sex=m": 4}
    assert "min_rows = 10" in found["refused"]
    out = run(capsys, "site", "check", *east(tmp_path))[1]
    assert "Too rare levels, had by fewer rows than min_rows = 10:\n  ward=b: 7\n" in out
    assert "Too rare pairs of levels, had by fewer rows than min_cell = 5:\n  ward=b with sex=f: 3\n" in out


def test_the_log_shows_what_was_answered_and_refused(capsys, sites, monkeypatch):
    folder, agreed = sites
    monkeypatch.setenv("BIDRO_SITE", str(folder / "east.toml"))
    assert run(capsys, "site", "log")[1] == "There were no requests.\n"
    run_job(job(agreed, options=QUICK), carrier(folder), folder / "runs")
    site_log(Site.read(folder / "east.toml")).refused(Question("odd\x1b[2J", "rows", 1, "x"), "no.")
    code, out, _ = run(capsys, "site", "log")
    assert code == 0
    assert "\x1b" not in out
    lines = out.splitlines()
    assert "run 'test' prepare 1: answered over at least" in lines[0]
    assert " bytes" in lines[0]
    assert lines[-1].endswith("run 'odd?[2J' rows 1: refused: no.")
    found = json.loads(run(capsys, "site", "log", "--run", "test", "--json")[1])
    assert {entry["question"] for entry in found["questions"]} == {
        "prepare",
        "OneShotMWDRO",
        "assess",
        "bounds",
    }
    assert all(entry["outcome"] == "answered" and entry["rows"] >= 10 for entry in found["questions"])
    assert found["waiting"] == []


def test_a_run_waits_until_its_owner_approves(capsys, tmp_path):
    agreed = write_sites(tmp_path, table(), extra='approve = "ask"')
    wanted = job(agreed, options=QUICK)  # on which the sites agree from now on
    for name in ("mid", "north", "south", "west"):
        run(capsys, "site", "approve", "test", "--site", tmp_path / f"{name}.toml")
    with pytest.raises(BidroError, match="'east': its owner has not approved this run yet"):
        run_job(wanted, carrier(tmp_path), tmp_path / "runs")
    out = run(capsys, "site", "log", *east(tmp_path))[1]
    assert "run 'test'; `bidro site approve test` lets it begin, `bidro site refuse` does not" in out
    code, out, _ = run(capsys, "site", "approve", "test", *east(tmp_path))
    assert code == 0
    assert out.startswith("Run 'test' may begin, or go on, at this site until 20")
    assert "by the agreement and the table that it has now" in out
    again = job(agreed, options=QUICK, resume=True)
    assert "model.safetensors" in run_job(again, carrier(tmp_path), tmp_path / "runs")


def test_an_approval_is_not_for_another_table_or_agreement(capsys, tmp_path):
    """Many rows more, or one option of training: the owner is asked again, by the same name."""
    site = site_at(tmp_path, frame(200), approve="ask")
    (tmp_path / "site.toml").write_text((tmp_path / "site.toml").read_text() + 'approve = "ask"\n')
    here = "--site", tmp_path / "site.toml"

    def approved():
        code, _, _ = run(capsys, "site", "approve", "r", *here, "--days", 3)
        refused = asked_of(site, "prepare", run="r")[0]
        return code == 0 and refused is None

    assert "has not approved this run yet" in asked_of(site, "prepare", run="r")[0]
    assert approved()
    pd.concat([frame(200), frame(240)]).to_csv(site.data, index=False)
    assert "was for another agreement or table" in asked_of(site, "prepare", run="r")[0]
    assert approved()
    site.schema.write_text(site.schema.read_text().replace("seed = 0", "seed = 1"))
    assert "was for another agreement or table" in asked_of(site, "prepare", run="r")[0]
    assert "waiting since" in run(capsys, "site", "log", *here)[1]
    assert approved()


def test_an_owner_refuses_a_run_and_takes_it_back(capsys, tmp_path):
    site = site_at(tmp_path)
    here = "--site", tmp_path / "site.toml"
    code, out, _ = run(capsys, "site", "refuse", "r", *here)
    assert (code, "`bidro site withdraw r` takes that back" in out) == (0, True)
    assert "its owner has refused this run" in asked_of(site, "prepare", run="r")[0]
    found = json.loads(run(capsys, "site", "log", *here, "--json")[1])
    assert [(one["run"], one["outcome"]) for one in found["decisions"]] == [("r", "refused")]
    assert "run 'r' refused by the owner" in run(capsys, "site", "log", *here)[1]
    assert run(capsys, "site", "withdraw", "r", *here)[1] == "Run 'r' is no longer refused.\n"
    assert asked_of(site, "prepare", run="r")[0] is None
    for command, words in (
        (("withdraw", "r"), "is neither approved nor refused here"),
        (("refuse", "no such name"), "is no run's name"),
        (("approve", "../r"), "is no run's name"),
        (("approve", "r", "--days", 0), "approved for 1 to 366 days"),
    ):
        code, _, err = run(capsys, "site", *command, *here)
        assert code == 1
        assert words in err


def test_a_table_that_was_written_anew_is_nobody_else_s(capsys, sites):
    """Months for years: the same persons, whom no column names."""
    folder, agreed = sites
    run_job(job(agreed, options=QUICK), carrier(folder), folder / "runs")
    whole = table()
    whole["v"] = whole["v"] * 12
    write_sites(folder, whole)
    with pytest.raises(BidroError, match="no column tells whether these are the same people"):
        run_job(job(agreed, "second", options=QUICK), carrier(folder), folder / "runs")
    assert (
        "A run would be refused: rows that earlier runs used"
        in run(capsys, "site", "check", *east(folder))[1]
    )


def test_copies_are_counted_once_and_said(capsys, tmp_path):
    whole = table()
    write_sites(tmp_path, pd.concat([whole, whole]))
    out = run(capsys, "site", "check", *east(tmp_path))[1]
    assert "120 rows: " in out
    assert "120 of the 240 rows of the table are copies of others, as if every row were there 2 times" in out
    assert "has a join multiplied rows? Copies count as one person" in out
    two = pd.concat([whole.groupby("site").head(2)] * 100)
    write_sites(tmp_path, two)
    out = run(capsys, "site", "check", *east(tmp_path))[1]
    assert "A run would be refused: it has 2 different rows, too few" in out


def test_people_with_many_rows_whom_no_column_names_are_warned_about(capsys, tmp_path):
    """Eighteen people with thirty visits each, and what does not change between visits."""
    rng = np.random.default_rng(0)
    who = np.repeat(np.arange(18), 30)
    fixed = {f"x{j}": rng.normal(50, 10, 18).round(1)[who] for j in range(5)}
    visits = pd.DataFrame({**fixed, "day": rng.normal(size=540), "y": rng.normal(size=540), "site": "east"})
    for named, person in ((False, None), (True, "who")):
        write_sites(tmp_path, visits.assign(who=who) if named else visits, person=person)
        out = run(capsys, "site", "check", *east(tmp_path))[1]
        assert (
            "its columns x0, x1, x2, x3, x4 have 18 combinations of values in 540 rows" in out
        ) is not named
    # Whole numbers that come and go by themselves are no people.
    scales = pd.DataFrame(rng.integers(1, 8, (540, 6)), columns=[f"q{j}" for j in range(6)])
    write_sites(tmp_path, scales.assign(y=rng.normal(size=540), site="east"))
    assert "combinations of values" not in run(capsys, "site", "check", *east(tmp_path))[1]


def test_what_cannot_be_followed(capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("BIDRO_SITE", raising=False)
    code, _, err = run(capsys, "site", "log")
    assert code == 1
    assert "--site site.toml, or the environment variable BIDRO_SITE" in err
    write_sites(tmp_path, table())
    code, _, err = run(capsys, "site", "approve", *east(tmp_path))
    assert code == 2
    assert "Missing argument" in err
    for line, words in (
        ("min_cell = 0", "half of min_rows"),
        ('approve = "no"', "approve must be"),
    ):
        write_sites(tmp_path, table(), extra=line)
        code, _, err = run(capsys, "site", "check", *east(tmp_path))
        assert code == 1
        assert words in err
