"""What a run shows while it goes on: one JSON line a round, and texts that do nothing to a screen."""

import hashlib
import json
import stat
from datetime import datetime

import numpy as np
import pytest
from safetensors.numpy import save

from bidro.core.errors import BidroError, one_line
from bidro.deploy.server.audit import in_words
from bidro.deploy.server.runs import RunProgress
from bidro.deploy.server.runs import in_words as in_words_of
from bidro.deploy.server.serve import run_job
from bidro.federated.engines.coordinator import Delivered, InMemory, Policy, refusal_message
from tests.deploy.sites import NAMES, QUICK, answering, job, table, write_sites


def lines_of(folder):
    path = folder / "runs" / "test" / "progress.jsonl"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_a_round_says_how_far_the_run_is(tmp_path):
    agreed = write_sites(tmp_path, table(sizes=(80,) * 5), None, 'min_rows = 2\nrelease = "trusted"')
    options = {**QUICK, "loss": "huber"}
    files = run_job(job(agreed, options=options), InMemory(answering(tmp_path)), tmp_path / "runs")
    lines, audit = lines_of(tmp_path), json.loads(files["audit.json"])
    assert len(lines) == audit["rounds"] + 1
    stages = [line["stage"] for line in lines]
    assert stages == ["preparing", *["solving"] * (len(lines) - 4), "assessing", "certifying", "done"]
    for line in lines:
        assert set(line) == {"time", "stage", "round", "gap", "waiting_for", "bytes", "seconds_left"}
        assert line["seconds_left"] is None or line["stage"] == "solving"
        assert line["waiting_for"] == ([] if line["stage"] == "done" else list(NAMES))
        assert datetime.fromisoformat(line["time"]).tzinfo is not None
    assert [line["round"] for line in lines if line["stage"] == "solving"] == list(range(1, len(lines) - 3))
    sent = [line["bytes"] for line in lines]
    assert sent[0] == 0
    assert np.all(np.diff(sent[:-1]) > 0)
    # The gap of a line is that after the round before it.
    gaps = [line["gap"] for line in lines]
    assert gaps[0] is None
    assert gaps[-1] <= 1e-6 < gaps[2]


class Late(InMemory):
    """Two clients miss the second exchange, one of them also the third."""

    def __init__(self, clients):
        super().__init__(clients)
        object.__setattr__(self, "late", [(), ("mid", "west"), ("mid",)])

    def exchange(self, messages, timeout):
        late = self.late.pop(0) if self.late else ()
        found = super().exchange({k: v for k, v in messages.items() if k not in late}, timeout)
        return Delivered(found.replies, dict.fromkeys(late, "late"))


def test_who_is_waited_for_is_in_the_last_line(tmp_path):
    agreed = write_sites(tmp_path, table(sizes=(80,) * 5), None, "min_rows = 2")
    policy = Policy(timeout=1e-6, patience=100)
    run_job(job(agreed, options=QUICK, policy=policy), Late(answering(tmp_path)), tmp_path / "runs")
    waiting = [line["waiting_for"] for line in lines_of(tmp_path) if line["stage"] == "solving"]
    assert waiting[:3] == [list(NAMES), ["mid", "west"], ["mid"]]


def test_a_run_that_stops_says_so(tmp_path):
    agreed = write_sites(tmp_path, table(sizes=(80,) * 5), None, "min_rows = 2")
    clients = answering(tmp_path)
    clients["mid"] = lambda request: refusal_message(request, "no")
    with pytest.raises(BidroError, match="Client 'mid': no"):
        run_job(job(agreed, options=QUICK), InMemory(clients), tmp_path / "runs")
    assert [line["stage"] for line in lines_of(tmp_path)] == ["preparing", "stopped"]


ODD = "done\x1b[2J\x1b]0;title\x07\r\nround 9\u202e\u2028\x00\u200b " + "x" * 5000


@pytest.mark.parametrize("how", ["refuses", "raises", "sends names"])
def test_texts_from_sites_are_one_line_that_does_nothing(how, tmp_path, capsys):
    agreed = write_sites(tmp_path, table(sizes=(80,) * 5), None, "min_rows = 2")
    clients = answering(tmp_path)

    def odd(request):
        if how == "raises":
            raise RuntimeError(ODD)
        if how == "sends names":
            header = {"answers": hashlib.sha256(request).hexdigest(), "rows": 50}
            return save({ODD[:90]: np.zeros(1)}, metadata={"bidro": json.dumps(header)})
        return refusal_message(request, ODD)

    clients["mid"] = odd
    policy = Policy(timeout=1e-6, on_client_loss="continue")
    files = run_job(job(agreed, options=QUICK, policy=policy), InMemory(clients), tmp_path / "runs")
    audit = json.loads(files["audit.json"])
    for text in (audit["lost"]["mid"], audit["faults"][0]["fault"], *in_words(audit).splitlines()):
        assert text.isprintable()
        assert len(text) < 2100
    assert "round 9" in audit["lost"]["mid"]
    assert "\x1b" not in capsys.readouterr().err
    words = (tmp_path / "runs" / "test" / "progress.txt").read_text()
    assert all(line.isprintable() and len(line) < 700 for line in words.splitlines())
    assert not any(line.startswith("round 9") for line in words.splitlines())


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("as it is", "as it is"),
        ("two\nlines\tand\x00more", "two lines and more"),
        ("\x1b[31mred\x1b[0m", "[31mred [0m"),
        ("caf\u00e9 \u4e2d\u6587", "caf\u00e9 \u4e2d\u6587"),
        ("evil\u202etxt", "evil txt"),
        ("x" * 99, "x" * 20 + "..."),
        (OSError(3, "no"), "[Errno 3] no"),
    ],
)
def test_one_line_keeps_words_and_nothing_else(text, line):
    assert one_line(text, 20) == line


def test_a_line_of_a_round_says_how_long_solving_will_take(tmp_path, monkeypatch):
    progress = RunProgress(tmp_path, 1e-6)
    monkeypatch.setattr(progress.time_left, "clock", lambda: 100.0)
    progress.solved_to(1e-2)
    progress.round("ExactMWDRO", 2, ["north"], 10)
    monkeypatch.setattr(progress.time_left, "clock", lambda: 103.0)
    progress.solved_to(1e-3)
    progress.round("ExactMWDRO", 3, ["north"], 20)
    progress.round("assess", 1, ["north"], 30)
    words = [in_words_of(line) for line in (tmp_path / "progress.jsonl").read_text().splitlines()]
    assert words == [
        "solving: round 2, gap 1.0e-02, waiting for north",
        "solving: round 3, gap 1.0e-03, waiting for north, about 9 s left",
        "assessing: round 1, gap 1.0e-03, waiting for north",
    ]
