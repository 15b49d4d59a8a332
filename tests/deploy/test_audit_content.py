"""What the page shows of what left the sites."""

import json
import math

import pytest

from bidro.deploy.server.audit import audit_content, in_words
from bidro.deploy.server.serve import run_job
from bidro.federated.engines.coordinator import InMemory
from tests.deploy.sites import NAMES, answering, job, table, write_sites


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sites")
    agreed = write_sites(folder, table(sizes=(80,) * 5), None, "min_rows = 2")
    files = run_job(job(agreed), InMemory(answering(folder)), folder / "runs")
    return json.loads(files["audit.json"]), json.loads(files["report.json"])


def test_the_page_has_every_message_of_the_audit(done):
    audit, page = done
    shown = page["federated"]
    assert shown == audit_content(audit)
    for field, of in (("messages", "messages"), ("bytes", "bytes_up")):
        assert sum(kind[field] for kind in shown["left"]) == sum(kind[of] for kind in audit["kinds"])
    numbers = sum(
        kind["messages"] * sum(math.prod(shape) for shape in kind["fields"].values())
        for kind in audit["kinds"]
    )
    assert sum(kind["numbers"] for kind in shown["left"]) == numbers
    for kind in shown["left"]:
        assert set(kind["sites"]) == set(NAMES)
        for field in ("messages", "numbers", "bytes"):
            assert sum(own[field] for own in kind["sites"].values()) == kind[field]
    # Kinds that hold the same are together, over the fewest rows of all.
    whats = [kind["what"] for kind in audit["kinds"]]
    assert [kind["what"] for kind in shown["left"]] == list(dict.fromkeys(whats))
    fewest = min(kind["fewest_rows"] for kind in audit["kinds"])
    assert min(kind["fewest_rows"] for kind in shown["left"]) == fewest
    assert in_words(audit).startswith("Run 'test'")


def test_the_guess_of_a_run_across_machines_is_that_of_its_training_rows(done):
    _, page = done
    plainly = page["plainly"]
    assert plainly["guess"]["kind"] == "mean"
    assert plainly["guess_held_out"] is False
    assert plainly["models"]["shared"] == pytest.approx(math.sqrt(page["overall"]["mean"]))
    assert plainly["models"]["guess"] > plainly["models"]["shared"]


def test_texts_from_sites_are_one_line():
    audit = {
        "run": "r",
        "rounds": 1,
        "kinds": [],
        "faults": [{"client": "a", "question": "assess", "fault": "x\ny\x1b[31m"}],
        "lost": {"b": "gone\r\nfar"},
    }
    found = audit_content(audit)
    said = [found["refused"][0]["why"], found["lost"]["b"]]
    assert all("\n" not in words and "\x1b" not in words and "\r" not in words for words in said)
