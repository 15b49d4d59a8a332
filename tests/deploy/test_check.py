"""`bidro federate --check`: every site's verdict at once, by the code that answers the run; nothing else
leaves."""

import json

import numpy as np
import pytest

from bidro.core.errors import BidroError
from bidro.deploy.agreement.job import Job
from bidro.deploy.messages.queries import WARNINGS
from bidro.deploy.server.check import VERDICTS, in_words, job_to_check
from bidro.deploy.server.serve import run_job
from bidro.deploy.site.config import Site
from bidro.deploy.site.rows import site_log
from bidro.federated.engines.coordinator import InMemory, Policy
from bidro.federated.engines.wire import header_of
from tests.deploy.sites import (
    NAMES,
    QUICK,
    answering,
    carrier,
    job,
    private_sites,
    table,
    write_sites,
)

SHORT = Policy(timeout=60.0, patience=1.0)


def verdicts(folder, agreed, by=None, names=NAMES, **how):
    asked = job_to_check(job(agreed, "checked", names, policy=SHORT, **how))
    found = run_job(Job.from_text(asked.to_text()), by or carrier(folder), folder / "runs")
    assert set(found) == {VERDICTS}
    return json.loads(found[VERDICTS])["sites"]


def test_all_would_answer_and_do(tmp_path):
    agreed = write_sites(tmp_path, table(), training=QUICK)
    before = snapshot(tmp_path)
    found = verdicts(tmp_path, agreed)
    assert {name: one["answers"] for name, one in found.items()} == dict.fromkeys(NAMES, True)
    assert in_words({"sites": found}).endswith("All 5 sites would answer.")
    # Asked again, and then the run: by the same name.
    assert verdicts(tmp_path, agreed) == found
    assert not (tmp_path / "runs" / "checked").exists()
    files = run_job(job(agreed, "checked", options=QUICK, policy=SHORT), carrier(tmp_path), tmp_path / "runs")
    assert "model.safetensors" in files
    kinds = [one.question for one in site_log(Site.read(tmp_path / "east.toml")).entries("checked")]
    assert kinds[0] == "check"
    assert before == snapshot(tmp_path)


def snapshot(folder):
    """The sites' files but for what they remember."""
    return {path.name: path.read_bytes() for path in folder.glob("*.csv")}


def test_all_who_refuse_are_named_as_the_run_would_refuse_them(tmp_path):
    """Each by another rule; the run itself stops at those same sites, with the same sentences."""
    agreed = write_sites(tmp_path, table(), training=QUICK)
    own = (tmp_path / "east.csv").read_text().splitlines()
    (tmp_path / "east.csv").write_text("\n".join(own[:30]) + "\n")
    text = (tmp_path / "mid.csv").read_text().splitlines()
    outlier = [line.split(",") for line in text[:2]]
    outlier[1][outlier[0].index("u")] = "1e6"
    (tmp_path / "mid.csv").write_text("\n".join([text[0], ",".join(outlier[1]), *text[2:]]) + "\n")
    (tmp_path / "north.toml").write_text('approve = "ask"\n' + (tmp_path / "north.toml").read_text())
    found = verdicts(tmp_path, agreed)
    assert [name for name in NAMES if not found[name]["answers"]] == ["east", "mid", "north"]
    assert "has not approved this run" in found["north"]["why"]
    words = in_words({"sites": found})
    assert words.splitlines()[0].startswith("east would refuse: it ")
    assert words.endswith("3 of 5 sites would refuse: `bidro site check` there says more, with counts.")
    for name in ("east", "mid"):
        with pytest.raises(BidroError) as stopped:
            run_job(
                job(agreed, f"run-{name}", (name, "west"), options=QUICK, policy=SHORT),
                carrier(tmp_path),
                tmp_path / "runs",
            )
        assert f"Client '{name}': {found[name]['why']}" in str(stopped.value)


def test_a_site_that_is_silent_is_named(tmp_path):
    agreed = write_sites(tmp_path, table(), training=QUICK)
    some = InMemory({name: reply for name, reply in answering(tmp_path).items() if name != "south"})
    found = verdicts(tmp_path, agreed, some)
    assert not found["south"]["answers"]
    assert found["west"]["answers"]


def test_only_the_verdict_leaves_and_it_is_logged(tmp_path):
    agreed = write_sites(tmp_path, table(), training=QUICK)
    left = {}

    def noted(name, reply):
        def by(request):
            left[name] = reply(request)
            return left[name]

        return by

    verdicts(tmp_path, agreed, InMemory({n: noted(n, r) for n, r in answering(tmp_path).items()}))
    for name in NAMES:
        header = header_of(left[name])
        assert set(header) == {"answers", "rows"}
        assert header["rows"] == 0
        assert len(left[name]) < 400
        (entry,) = site_log(Site.read(tmp_path / f"{name}.toml")).entries()
        assert (entry.run, entry.question, entry.outcome, entry.times) == ("checked", "check", "answered", 1)


def test_warnings_name_no_column_and_no_number(tmp_path):
    whole = table()
    agreed = write_sites(tmp_path, whole, training=QUICK)
    own = whole[whole["site"] == "east"].drop(columns="site")
    own.assign(v=own["v"] * 30).to_csv(tmp_path / "east.csv", index=False)
    found = verdicts(tmp_path, agreed, names=("east", "west"))
    assert found["east"]["warnings"] == [WARNINGS[0]]
    assert found["west"]["warnings"] == []
    assert f"  WARNING: {WARNINGS[0]}" in in_words({"sites": found})
    doubled = [own, own]
    import pandas as pd

    pd.concat(doubled).to_csv(tmp_path / "east.csv", index=False)
    found = verdicts(tmp_path, agreed, names=("east", "west"))
    if found["east"]["answers"]:
        assert found["east"]["warnings"] == [WARNINGS[1]]


def test_under_a_budget_nothing_of_the_rows_is_told(tmp_path):
    """Two tables that differ in everything that is looked at without a budget have the same verdict."""
    agreed = private_sites(tmp_path)
    before = verdicts(tmp_path, agreed, names=("east", "west"), privacy=agreed.privacy)
    assert before["east"] == {"answers": True, "why": None, "warnings": []}
    own = (tmp_path / "east.csv").read_text().splitlines()
    (tmp_path / "east.csv").write_text("\n".join([own[0], *([own[1]] * 40)]) + "\n")
    assert verdicts(tmp_path, agreed, names=("east", "west"), privacy=agreed.privacy) == before


def test_a_verdict_of_other_numbers_is_not_believed(tmp_path):
    agreed = write_sites(tmp_path, table(), training=QUICK)

    def lying(request):
        from bidro.deploy.messages.queries import Verdict
        from bidro.federated.engines.coordinator import reply_message

        return reply_message(Verdict(np.full(len(WARNINGS), 7.5)), request, 0)

    found = verdicts(tmp_path, agreed, InMemory({**answering(tmp_path), "east": lying}))
    assert "contradicts itself" in found["east"]["why"]
    assert found["west"]["answers"]
