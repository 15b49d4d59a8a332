"""A site's state folder: who may read it, what it survives, and several processes at once."""

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from datetime import datetime, timedelta

import numpy as np
import pytest

from bidro.core.errors import BidroError
from bidro.data.tables import Column, Schema
from bidro.deploy.site import state as site_log
from bidro.deploy.site.disclosure.memory import Demanded, RowMemory
from bidro.deploy.site.disclosure.rules import PolicyViolationError
from bidro.deploy.site.state import Question, RunLimits, SiteLog, SiteState, write_key


def test_a_state_is_for_its_owner_s_eyes_and_nothing_of_the_rows_is_in_it(tmp_path):
    folder = tmp_path / "new" / "state"
    state = SiteState.open(folder, "east")
    content = np.random.default_rng(0).normal(size=(50, 3))
    memory = RowMemory(state, Demanded(3, 2, 0))
    schema = Schema("site", "y", None, (Column("u"), Column("v")))
    known = memory.known(schema, content[:, :2], content[:, 2], np.arange(50, dtype=np.uint64))
    memory.release(known, {"rows": np.zeros(50, int), "sums": np.zeros(50, int)})
    state.table_id(content.tobytes())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    whole = b""
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        whole += path.read_bytes()
    for number in content.ravel():
        assert number.tobytes() not in whole
        assert number.astype(np.float32).tobytes() not in whole
    assert state.key.hex() not in repr(state) + repr(known) + repr(memory)


def test_the_key_stays_and_one_that_is_lost_or_another_is_no_new_beginning(tmp_path):
    first = SiteState.open(tmp_path, "east")
    assert SiteState.open(tmp_path, "east") == first
    assert len({first.key, first.derived("rows"), first.derived("split"), first.derived("table")}) == 4
    write_key(tmp_path, bytes(32))
    assert SiteState.open(tmp_path, "east") == first
    (tmp_path / "key").rename(tmp_path / "away")
    with pytest.raises(BidroError, match="has lost its file 'key'"):
        SiteState.open(tmp_path, "east")
    write_key(tmp_path, bytes(32))
    with pytest.raises(BidroError, match="is that of another client than 'east', or of another key"):
        SiteState.open(tmp_path, "east")
    (tmp_path / "key").write_bytes(b"short")
    with pytest.raises(BidroError, match="must have 32 bytes"):
        SiteState.open(tmp_path, "east")
    (tmp_path / "key").unlink()
    (tmp_path / "away").rename(tmp_path / "key")
    assert SiteState.open(tmp_path, "east") == first
    (tmp_path / "file").write_text("")
    with pytest.raises(BidroError, match="This site's state cannot be kept in"):
        SiteState.open(tmp_path / "file", "east")
    (tmp_path / "state.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(BidroError, match="This site's state cannot be kept in"):
        SiteState.open(tmp_path, "east")


def test_a_table_s_id_is_its_own_and_says_nothing_of_it(tmp_path):
    state = SiteState.open(tmp_path / "one", "east")
    ids = {content: state.table_id(content) for content in (b"a", b"b", b"c")}
    assert len(set(ids.values())) == 3
    assert all(0 <= number < 2**52 and float(number) == number for number in ids.values())
    again = SiteState.open(tmp_path / "one", "east")
    assert {content: again.table_id(content) for content in ids} == ids
    # The same table at another site, or there from the beginning, has another.
    assert SiteState.open(tmp_path / "two", "east").table_id(b"a") not in ids.values()


def query(question="round", digest="d", run="r", models=1, at=1):
    return Question(run, question, at, digest, models)


@pytest.mark.parametrize("question", ["prepare", "segments", "assess", "bounds"])
def test_one_question_of_a_kind_and_the_same_again_is_no_other(question, tmp_path):
    log = SiteLog(SiteState.open(tmp_path, "east"), limits=RunLimits(each=1))
    for _ in range(3):
        log.allow(query(question))
    with pytest.raises(PolicyViolationError, match=f"has asked another '{question}' question already"):
        log.allow(query(question, "other"))
    log.allow(query(question, "other", run="second"))
    assert [entry.times for entry in log.entries("r")] == [3]
    SiteLog(log.state, limits=RunLimits(each=2)).allow(query(question, "other"))


def test_rounds_and_models_are_counted_and_refused_ones_are_not(tmp_path):
    state = SiteState.open(tmp_path, "east")
    log = SiteLog(state, limits=RunLimits(rounds=3, models=10, models_in_all=12))
    for digest, models in (("a", 4), ("b", 4), ("b", 4)):
        log.allow(query(digest=digest, models=models))
    with pytest.raises(PolicyViolationError, match="more than 10 models"):
        log.allow(query(digest="c", models=3))
    log.allow(query(digest="c", models=2))
    log.refused(query(digest="c", models=2), "no", True)
    log.allow(query(digest="d", models=2))
    with pytest.raises(PolicyViolationError, match="has asked for 3 rounds"):
        log.allow(query(digest="e", models=0))
    with pytest.raises(
        PolicyViolationError, match="all runs together would have asked for more than 12 models"
    ):
        log.allow(query(run="second", models=3))
    log.allow(query(run="second", models=2))
    assert [(e.run, e.outcome, e.models) for e in log.entries()].count(("r", "refused", 2)) == 1


@pytest.mark.parametrize("question", ["assess", "bounds"])
def test_statements_are_counted_over_all_runs_of_a_table(question, tmp_path):
    """What is refused is none, what was answered is answered again, and another table has its own."""
    log = SiteLog(SiteState.open(tmp_path, "east"), limits=RunLimits(statements=2))

    def statement(run, content, about="table"):
        return query(question, f"{run} {content}", run)._replace(about=about, content=content)

    log.allow(statement("a", "x"))
    log.refused(statement("a", "x"), "its level is too low.", True)
    for run, content in (("b", "y"), ("c", "z")):
        log.allow(statement(run, content))
        log.answered(statement(run, content), 30, 500)
    with pytest.raises(
        PolicyViolationError, match=f"'{question}' has been answered of 2 models over this table"
    ):
        log.allow(statement("d", "x"))
    log.allow(statement("d", "y"))
    log.refused(statement("d", "y"), "its table has changed.", True)
    with pytest.raises(PolicyViolationError, match="has been answered of 2 models"):
        log.allow(statement("e", "x"))
    log.allow(statement("e", "x", "another table"))
    # One that was asked when this site stopped counts.
    again = SiteLog(SiteState.open(tmp_path, "east"), limits=RunLimits(statements=1))
    with pytest.raises(PolicyViolationError, match="has been answered of 1 models"):
        again.allow(statement("f", "y", "another table"))


def test_a_run_has_so_much_of_a_site_s_time(tmp_path):
    log = SiteLog(SiteState.open(tmp_path, "east"), limits=RunLimits(seconds=10.0))
    log.allow(query(digest="a"))
    for seconds in (4.0, 5.0):
        log.worked("r", seconds)
    log.allow(query(digest="b"))
    log.worked("r", 2.0)
    for digest in ("a", "c"):
        with pytest.raises(
            PolicyViolationError, match="has used the agreed seconds = 10 of this site's time"
        ):
            log.allow(query(digest=digest))
    log.allow(query(digest="a", run="second"))


def test_the_log_says_what_was_asked_and_what_left(tmp_path):
    log = SiteLog(SiteState.open(tmp_path, "east"))
    log.allow(query("prepare", models=0))
    log.answered(query("prepare", models=0), 30, 500)
    log.allow(query("round", "x", models=7, at=2))
    for _ in range(2):
        log.refused(query("rows", "y"), "there is no such question.")
    prepare, round_, refused = log.entries("r")
    assert prepare[1:] == ("r", "prepare", 1, 0, "answered", 1, 30, 500, None)
    assert round_[1:] == ("r", "round", 2, 7, "asked", 1, None, None, None)
    assert refused[1:] == ("r", "rows", 1, 1, "refused", 2, None, None, "there is no such question.")
    assert log.entries("other") == []
    # An answer that has left stays so whatever comes after.
    log.refused(query("prepare", models=0), "its table has changed.")
    assert log.entries("r")[0].outcome == "answered"


def test_nobody_fills_the_disk_by_asking(tmp_path, monkeypatch):
    monkeypatch.setattr("bidro.deploy.site.state.ENTRIES", 5)
    log = SiteLog(SiteState.open(tmp_path, "east"), ask=True)
    for k in range(9):
        with pytest.raises(PolicyViolationError):
            log.allow(query(run=f"run{k}"))
        log.refused(query(run=f"run{k}"), "no")
    assert [entry.run for entry in log.entries()] == [f"run{k}" for k in range(4, 9)]
    assert [run for run, _ in log.waiting()] == [f"run{k}" for k in range(4, 9)]


def test_a_site_works_for_so_many_runs_and_keeps_nothing_of_others(tmp_path):
    """Whoever asks chooses the names: what it was answered once it may ask again, but not under new ones."""
    state = SiteState.open(tmp_path, "east")
    log = SiteLog(state, limits=RunLimits(runs=3))
    for k in range(50):
        question = query("assess", run=f"run{k}")._replace(about="table", content="the same")
        if k < 3:
            log.allow(question)
            log.answered(question, 30, 500)
        else:
            with pytest.raises(
                PolicyViolationError, match="has worked for 3 runs, as many as the agreed runs = 3 allow"
            ):
                log.allow(question)
        log.worked(question.run, 0.1)
    log.allow(query("assess", run="run1")._replace(about="table", content="the same"))
    with state.reading() as connection:
        for table in ("asked", "work"):
            assert connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone() == (3,)


def test_a_run_waits_for_its_owner(tmp_path):
    log = SiteLog(SiteState.open(tmp_path, "east"), ask=True)
    with pytest.raises(PolicyViolationError, match="its owner has not approved this run yet"):
        log.allow(query("prepare"))
    assert [run for run, _ in log.waiting()] == ["r"]
    assert log.decisions() == []
    log.approve("r", "", "", 30)
    log.approve("later", "", "", 30)  # a run that has not asked yet
    assert [one.run for one in log.decisions()] == ["later", "r"]
    assert log.waiting() == []
    log.allow(query("prepare"))
    log.allow(query("prepare", run="later"))
    with pytest.raises(PolicyViolationError):
        log.allow(query("prepare", run="another"))


def clock_ahead(days):
    """`datetime` whose clock is ahead."""

    class Ahead(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(days=days)

    return Ahead


def test_an_approval_is_for_one_agreement_and_one_table_and_for_some_days(tmp_path, monkeypatch):
    log = SiteLog(SiteState.open(tmp_path, "east"), ask=True)
    log.approve("r", "agreement", "table", 7)
    meant = query("prepare")._replace(agreed="agreement", table="table")
    log.allow(meant)
    for other in ({"agreed": "edited"}, {"table": "another"}):
        with pytest.raises(PolicyViolationError, match="expired, or was for another agreement or table"):
            log.allow(meant._replace(**other))
    log.allow(meant)
    assert [run for run, _ in log.waiting()] == ["r"]  # the owner sees that it asked for something else
    monkeypatch.setattr(site_log, "datetime", clock_ahead(6.9))
    log.allow(meant)
    monkeypatch.setattr(site_log, "datetime", clock_ahead(7.1))
    with pytest.raises(PolicyViolationError, match="has expired"):
        log.allow(meant)


@pytest.mark.parametrize("ask", [False, True])
def test_an_owner_refuses_a_run_and_takes_either_word_back(ask, tmp_path):
    log = SiteLog(SiteState.open(tmp_path, "east"), ask=ask)
    log.approve("r", "", "", 30)
    log.allow(query("prepare"))
    log.refuse("r")
    with pytest.raises(PolicyViolationError, match="its owner has refused this run"):
        log.allow(query("prepare"))
    assert log.waiting() == []
    assert log.withdraw("r").outcome == "refused"
    if ask:
        with pytest.raises(PolicyViolationError, match="not approved this run yet"):
            log.allow(query("prepare"))
        log.approve("r", "", "", 30)
        assert log.withdraw("r").outcome == "approved"
        with pytest.raises(PolicyViolationError, match="not approved this run yet"):
            log.allow(query("prepare"))
    else:
        log.allow(query("prepare"))
    assert log.withdraw("r") is None


def test_a_version_of_a_table_is_another_when_it_has_enough_new_people(tmp_path):
    """By any of the hashes of a row, and by people where these are named."""
    state = SiteState.open(tmp_path, "east")
    names = np.arange(300, dtype=np.uint64)

    def version(rows, people=None, written=0):
        # How a row is written may change its first hash; its second stays.
        hashes = [names[rows] + np.uint64(1000 * (1 + written)), names[rows] + np.uint64(10**6)]
        return state.version(hashes, names[rows] if people is None else people, 10)

    first = version(slice(0, 100))
    assert version(slice(0, 100), written=1) == version(slice(0, 109)) == version(slice(30, 60)) == first
    second = version(slice(0, 110))
    assert second != first
    assert version(slice(0, 110)) == version(slice(100, 110)) == second
    assert version(slice(0, 100)) == first
    # Fifty new rows of nine persons are no new people enough.
    people = np.concatenate([names[:110], names[200 + np.arange(50) % 9]])
    assert version(slice(0, 160), people) == second
    assert version(slice(250, 253)) not in (first, second)  # nobody is known


PROMISES = """
import sys, numpy as np
from pathlib import Path
from bidro.deploy.site.disclosure.memory import Demanded, RowMemory
from bidro.deploy.site.disclosure.rules import PolicyViolationError
from bidro.deploy.site.state import Question, RunLimits, SiteLog
from bidro.deploy.site.state import SiteState
from bidro.data.tables import Column, Schema

folder, seed = Path(sys.argv[1]), int(sys.argv[2])
rng = np.random.default_rng(seed)
content = np.random.default_rng(0).normal(size=(400, 3))
state = SiteState.open(folder, "east")
memory, log = RowMemory(state, Demanded(5, 3, 0)), SiteLog(state, limits=RunLimits(rounds=10**6, models=40))
schema = Schema("site", "y", None, (Column("u"), Column("v")))
print("ready", flush=True)
for k in range(10**6):
    first, last = sorted(rng.choice(81, 2, replace=False) * 5)
    if last - first < 100:
        continue
    known = memory.known(schema, content[first:last, :2], content[first:last, 2], None)
    marks = rng.permutation(last - first) % 7 if rng.random() < 0.2 else np.zeros(last - first, int)
    try:
        memory.release(known, {"rows": marks})
    except PolicyViolationError:
        continue
    log.allow(Question(f"run{k % 3}", "round", 1, f"{seed} {k}", 0))
    print("released", first, last, *marks, flush=True)
"""


def started(folder, seed):
    command = [sys.executable, "-c", PROMISES, str(folder), str(seed)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("kills", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_two_processes_that_are_killed_lose_nothing_that_was_promised(kills, tmp_path):
    """What a process has said that it released before it was killed is in the memory: atoms by plain sets."""
    promised, rng = [], np.random.default_rng(0)
    for kill in range(kills):
        pair = [started(tmp_path, 10 * kill + k) for k in range(2)]
        for one in pair:
            assert one.stdout.readline() == "ready\n"
        lines = [pair[0].stdout.readline().strip()]  # one promise at least
        time.sleep(0.5 * rng.random())
        for one in pair:
            os.kill(one.pid, signal.SIGKILL)
        for one in pair:
            with one.stdout as out:
                lines += out.read().split("\n")[:-1]  # the last may be half a line
            one.wait()
        promised += [[int(word) for word in line.split()[1:]] for line in lines]
    sets = []
    for first, last, *fold_ids in promised:
        rows = np.arange(first, last)
        sets += [set(rows[np.asarray(fold_ids) == mark].tolist()) for mark in set(fold_ids)]
    classes = {}
    for row in set().union(*sets):
        classes.setdefault(tuple(row in one for one in sets), set()).add(row)
    assert min(map(len, classes.values())) >= 5
    # The database is whole, and so is the rule: one row less than the last table is refused.
    with sqlite3.connect(tmp_path / "state.sqlite") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    memory = RowMemory(SiteState.open(tmp_path, "east"), Demanded(5, 3, 0))
    content = np.random.default_rng(0).normal(size=(400, 3))
    schema = Schema("site", "y", None, (Column("u"), Column("v")))
    for first, last, *fold_ids in promised:
        labels = {"rows": np.asarray(fold_ids)}
        memory.release(memory.known(schema, content[first:last, :2], content[first:last, 2], None), labels)
        fewer = memory.known(schema, content[first + 1 : last, :2], content[first + 1 : last, 2], None)
        with pytest.raises(PolicyViolationError):
            memory.release(fewer, {"rows": labels["rows"][1:]})
