"""The runs that a server keeps: their names, their files, how long; and a lead's command that goes on."""

import json
import os
import stat
import threading
import time
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from bidro.cli import app
from bidro.core.errors import BidroError
from bidro.deploy.server.runs import (
    ROUNDS_FILE,
    Begun,
    RunFollower,
    RunProgress,
    begin,
    delete,
    expire,
    failed,
    find,
    in_words,
    listed,
    locked,
    mark,
    said_so_far,
)
from bidro.deploy.server.serve import run_job, serve
from bidro.deploy.transport import drive
from bidro.deploy.transport.drive import BrokenError, LostJobError, Persistent, submit_and_wait
from bidro.federated.engines.coordinator import Delivered, InMemory, Policy
from bidro.federated.engines.wire import header_of
from tests.deploy.sites import PAIR, SHORT, answering, job, table, write_sites

DAY = 86_400.0


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sites")
    return write_sites(folder, table()), answering(folder, PAIR)


def short(agreed, **parts):
    return job(agreed, clients=PAIR, options=SHORT, **parts)


def begun(agreed, runs, name, **parts):
    with locked(runs / name, name):
        return begin(runs / name, short(agreed, run=name, **parts))


class Listening(InMemory):
    """Notes the name of the run that requests say."""

    def exchange(self, messages, timeout):
        self.clients["names"].update(header_of(request)["run"] for request in messages.values())
        return super().exchange(messages, timeout)


class Refusing(InMemory):
    def exchange(self, messages, timeout):
        return Delivered({}, dict.fromkeys(messages, "no"))


def test_to_resume_a_run_that_never_began_is_to_begin_it(consortium, tmp_path):
    agreed, clients = consortium
    begun = run_job(short(agreed, run="one"), InMemory(clients), tmp_path)
    resumed = run_job(short(agreed, run="two", resume=True), InMemory(clients), tmp_path)
    assert begun["model.safetensors"] == resumed["model.safetensors"]


def test_a_failed_run_does_not_burn_its_name(consortium, tmp_path):
    """It begins anew with whatever settings; sites are asked under a name that they have not heard."""
    agreed, clients = consortium
    names = set()
    policy = Policy(timeout=0.01, patience=0.01)
    with pytest.raises(BidroError, match="has not answered"):
        run_job(short(agreed, policy=policy), Refusing(clients), tmp_path)
    assert find(tmp_path, "test").state == "failed"
    other = job(agreed, clients=PAIR, options={**SHORT, "radius": 0.2})
    files = run_job(other, Listening({**clients, "names": names}), tmp_path)
    assert names == {"test.2"}
    assert json.loads(files["audit.json"])["run"] == "test"
    assert find(tmp_path, "test").state == "done"
    with pytest.raises(BidroError, match="already, and it is done: get its result with --resume"):
        run_job(other, InMemory(clients), tmp_path)
    # Sites remember a run that was deleted on the server.
    delete(tmp_path, "test")
    assert listed(tmp_path) == []
    assert begun(agreed, tmp_path, "test").name == "test.3"
    assert begun(agreed, tmp_path, "test", resume=True).name == "test.3"


def test_a_failed_run_can_be_resumed_with_what_it_has(consortium, tmp_path):
    agreed, clients = consortium

    class Once(InMemory):
        left = 1

        def exchange(self, messages, timeout):
            if not self.left:
                return Delivered({}, dict.fromkeys(messages, "no"))
            type(self).left -= 1
            return super().exchange(messages, timeout)

    policy, names = Policy(timeout=0.01, patience=0.01), set()
    with pytest.raises(BidroError, match="has not answered"):
        run_job(short(agreed, policy=policy), Once(clients), tmp_path)
    kept = find(tmp_path, "test")
    assert kept.state == "failed"
    assert kept.record_bytes > 0
    assert "has not answered" in kept.why
    again = run_job(short(agreed, resume=True), Listening({**clients, "names": names}), tmp_path)
    assert names == {"test"}
    assert (
        again["model.safetensors"]
        == run_job(short(agreed, run="w"), InMemory(clients), tmp_path / "o")["model.safetensors"]
    )
    assert find(tmp_path, "test").record_bytes == 0


def test_who_resumes_a_run_that_goes_on_waits_for_it(consortium, tmp_path):
    agreed, _ = consortium
    with locked(tmp_path / "one", "one"):
        begin(tmp_path / "one", short(agreed, run="one"))
        assert find(tmp_path, "one").state == "going on"
        with pytest.raises(BidroError, match="going on at this moment"), locked(tmp_path / "one", "one"):
            pass
        with pytest.raises(BidroError, match="going on at this moment"):
            delete(tmp_path, "one")
        waited = threading.Thread(target=lambda: locked(tmp_path / "one", "one", 60).__enter__())
        waited.daemon = True
        waited.start()
        waited.join(0.1)
        assert waited.is_alive()
    waited.join(10)
    assert not waited.is_alive()


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_what_a_run_keeps_is_its_owners_only(consortium, tmp_path, monkeypatch):
    agreed, clients = consortium
    monkeypatch.setenv("BIDRO_RUNS", str(tmp_path / "runs"))
    before = os.umask(0o022)
    try:
        seen = []

        class Looking(InMemory):
            def exchange(self, messages, timeout):
                seen.append(mode(tmp_path / "runs" / "test" / "record"))
                return super().exchange(messages, timeout)

        serve(short(agreed).to_text(), Looking(clients))
    finally:
        os.umask(before)
    assert set(seen) == {0o600}
    assert mode(tmp_path / "runs" / "test") == 0o700
    assert mode(tmp_path / "runs" / "test" / "job.json") == 0o600


def aged(folder, days):
    for path in folder.iterdir():
        os.utime(path, (time.time() - days * DAY,) * 2)


def test_runs_without_a_result_go_after_a_time(consortium, tmp_path, monkeypatch):
    agreed, clients = consortium
    for name in ("failed", "cut", "young", "done"):
        assert begun(agreed, tmp_path, name) == Begun(name, time.strftime("%Y-%m-%d", time.gmtime()), None)
    failed(tmp_path / "failed", "too few rows")
    (tmp_path / "done" / "result").mkdir()
    for name in ("failed", "cut", "done"):
        aged(tmp_path / name, 31)
    assert {run.name: run.state for run in listed(tmp_path)} == {
        "failed": "failed",
        "cut": "cut off",
        "young": "cut off",
        "done": "done",
    }
    assert expire(tmp_path, 32) == []
    # A server does it whenever a run begins.
    monkeypatch.setenv("BIDRO_RUNS", str(tmp_path))
    serve(short(agreed, run="next").to_text(), InMemory(clients))
    assert {run.name for run in listed(tmp_path)} == {"young", "done", "next"}
    monkeypatch.setenv("BIDRO_KEEP_DAYS", "a week")
    assert b"must be a number of days" in serve(short(agreed).to_text(), InMemory(clients))["error.txt"]


def test_the_command_lists_shows_and_deletes_runs(consortium, tmp_path):
    agreed, clients = consortium
    run_job(short(agreed, run="done"), InMemory(clients), tmp_path)
    begun(agreed, tmp_path, "failed")
    failed(tmp_path / "failed", "Client 'east': too few rows.")

    def said(*arguments):
        found = CliRunner().invoke(app, ["runs", *arguments, "--folder", str(tmp_path)])
        assert found.exit_code == 0, found.output
        return found.output

    listing = json.loads(said("list", "--json"))
    assert {run["name"]: run["state"] for run in listing} == {"done": "done", "failed": "failed"}
    assert "done: done, begun" in said("list")
    assert "failed: Client 'east': too few rows." in said("show", "failed")
    assert "solving: round 1" in said("show", "done")
    assert said("delete", "failed") == "Deleted failed.\n"
    assert said("delete", "--older-than", "0") == "There is nothing so old.\n"
    assert [run.name for run in listed(tmp_path)] == ["done"]
    for name in ("failed", "../sites", "."):
        gone = CliRunner().invoke(app, ["runs", "delete", name, "--folder", str(tmp_path)])
        assert "There is no run" in str(gone.exception)
    assert CliRunner().invoke(app, ["runs", "delete", "--folder", str(tmp_path)]).exit_code == 2


def test_progress_is_told_in_words(tmp_path):
    line = {"time": "2026-01-01T00:00:00Z", "stage": "solving", "round": 3, "gap": 1e-4, "waiting_for": ["b"]}
    assert in_words(json.dumps(line)) == "solving: round 3, gap 1.0e-04, waiting for b"
    assert in_words('{"stage": "preparing", "round": null, "gap": null, "waiting_for": []}') == "preparing"
    assert said_so_far("one", str(tmp_path)) == (0, [], "")


def test_what_a_run_says_is_said_once(tmp_path):
    folder, said = tmp_path / "one", []
    folder.mkdir()
    followed = RunFollower(said.append)
    (folder / "progress.txt").write_text("a\nb\n")
    followed.tell(said_so_far("one", str(tmp_path)))
    followed.tell(said_so_far("one", str(tmp_path)))
    assert said == ["a", "b"]
    for name in ("north, south", "north"):
        with (folder / ROUNDS_FILE).open("a") as file:
            file.write(json.dumps({"stage": "solving", "round": 2, "waiting_for": name.split(", ")}) + "\n")
        followed.tell(said_so_far("one", str(tmp_path)))
    with (folder / "progress.txt").open("a") as file:
        file.write("c\n")
    followed.tell(said_so_far("one", str(tmp_path)))
    waits = ["solving: round 2, waiting for north, south", "solving: round 2, waiting for north"]
    assert said == ["a", "b", *waits, "c"]


@pytest.mark.parametrize("resume", [False, True])
def test_what_was_said_before_a_run_went_on_or_began_again_is_not_said_again(resume, consortium, tmp_path):
    """Whoever follows begins before the server does: also what is there until then is of the run before."""
    folder, said = tmp_path / "one", []
    begun(consortium[0], tmp_path, "one")
    progress = RunProgress(folder)
    progress.say("Client 'east': its min_rows = 10.")
    progress.ended("stopped")
    failed(folder, "Client 'east': its min_rows = 10.")
    followed, since = RunFollower(said.append), mark("one", str(tmp_path))
    followed.tell(said_so_far("one", str(tmp_path), since))
    begun(consortium[0], tmp_path, "one", resume=resume)
    followed.tell(said_so_far("one", str(tmp_path), since))
    assert said == []
    progress = RunProgress(folder)
    progress.say("preparing")
    progress.round("prepare", 1, ["east"], 0)
    followed.tell(said_so_far("one", str(tmp_path), since))
    assert said == ["preparing", "preparing: round 1, waiting for east"]


class Clock:
    def __init__(self, monkeypatch, module):
        self.now, self.slept = 0.0, []
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep))

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


def failing(times, error=BrokenError):
    """A call that fails so many times."""
    left = [times]

    def call():
        left[0] -= 1
        if left[0] >= 0:
            raise error("cannot reach it")
        return "found"

    return call


def test_a_broken_network_is_tried_again_ever_more_seldom(monkeypatch):
    clock, said = Clock(monkeypatch, drive), []
    calls = Persistent(100.0, said.append)
    with pytest.raises(BrokenError):  # never reached: most likely a wrong address
        calls(failing(1))
    assert calls(failing(0)) == calls(failing(7)) == "found"
    assert clock.slept == [0.5, 1, 2, 4, 8, 15, 15]
    assert said[0] == "cannot reach it; trying again in 0.5 s"
    with pytest.raises(BrokenError):
        calls(failing(10**6))
    assert 85 < clock.now - sum(clock.slept[:7]) <= 100
    with pytest.raises(ValueError, match="cannot"):
        calls(failing(1, ValueError))
    # What is left of the patience is used.
    half_a_second = Persistent(0.5, said.append)
    assert half_a_second(failing(0)) == half_a_second(failing(1)) == "found"


def driving(monkeypatch, ends):
    """An engine whose jobs end so, in turn; (its jobs' texts, the clock)."""
    jobs, clock = [], Clock(monkeypatch, drive)

    def one(text, settings, say, calls):
        jobs.append(json.loads(text))
        seconds, end = ends.pop(0)
        clock.now += seconds
        if isinstance(end, Exception):
            raise end
        return end

    monkeypatch.setattr(drive, "engine", lambda name: SimpleNamespace(drive=one))
    return jobs


WHOLE = dict.fromkeys(drive._FILES, b"")
LOST = LostJobError("the job was lost")


def test_a_lost_job_is_followed_by_another_in_which_the_run_goes_on(consortium, monkeypatch):
    said = []
    jobs = driving(monkeypatch, [(5, LOST), (5, {"again.txt": b"west left"}), (5, WHOLE)])
    assert submit_and_wait(short(consortium[0]), "flare", {}, said.append) == WHOLE
    assert [one["resume"] for one in jobs] == [False, True, True]
    assert said == ["the job was lost; it goes on in another job", "west left; it goes on in another job"]


@pytest.mark.parametrize(
    ("ends", "jobs"),
    [
        ([(5, LOST)] * 9, 5),  # again and again without a word from the server
        ([(400, {"again.txt": b"west left"})] * 9, 3),  # until the patience ends
        ([(700, LOST)] * 9 + [(5, WHOLE)], 10),  # after a long time it is something else each time
    ],
)
def test_a_run_is_given_up_when_the_patience_ends(ends, jobs, consortium, monkeypatch):
    found = driving(monkeypatch, list(ends))
    run = short(consortium[0], policy=Policy(patience=1000.0))
    if ends[-1][1] is WHOLE:
        assert submit_and_wait(run, "flare", {}, lambda line: None) == WHOLE
    else:
        with pytest.raises(BidroError, match="what was received is kept: go on with --resume"):
            submit_and_wait(run, "flare", {}, lambda line: None)
    assert len(found) == jobs


def test_the_lead_is_told_every_site_s_reason_in_full(consortium, monkeypatch):
    said = " ".join(f"Client '{name}': {'too few rows ' * 40}." for name in PAIR)
    files = {"error.txt": said.encode()}
    monkeypatch.setattr(drive, "engine", lambda name: SimpleNamespace(drive=lambda *_: files))
    with pytest.raises(BidroError) as refused:
        submit_and_wait(short(consortium[0], run="one"), "flare", {}, print)
    assert str(refused.value) == " ".join(said.split())
