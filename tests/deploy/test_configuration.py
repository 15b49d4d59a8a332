"""Sites, schemas, jobs and audits as files: read whole, or refused with one sentence."""

import json
from dataclasses import replace

import numpy as np
import pytest

from bidro.core.errors import BidroError
from bidro.data.federation import Federation
from bidro.deploy.agreement.agreement import Agreement, draft, rounded
from bidro.deploy.agreement.job import Config, Job, Sites
from bidro.deploy.server.audit import in_words, read_audit
from bidro.deploy.server.serve import run_job, serve
from bidro.deploy.site.config import Site
from bidro.deploy.site.rows import SiteRows
from bidro.deploy.site.session import reply_to
from bidro.federated.engines.coordinator import InMemory, Nothing, Policy
from bidro.federated.engines.wire import header_of, pack
from bidro.model.model_file import Model
from bidro.workflow.folder import write_folder
from tests.deploy.sites import QUICK, SUPPORT, carrier, job, table, write_sites


def test_a_site_reads_its_configuration_from_the_environment(tmp_path, monkeypatch, caplog):
    write_sites(tmp_path, table())
    request = pack(Nothing(), {"question": "prepare"})
    monkeypatch.delenv("BIDRO_SITE", raising=False)
    assert "not in order" in header_of(reply_to(request))["refused"]
    assert "BIDRO_SITE names no site.toml" in caplog.text
    monkeypatch.setenv("BIDRO_SITE", str(tmp_path / "none.toml"))
    assert "not in order" in header_of(reply_to(request))["refused"]
    assert "There is no file" in caplog.text
    monkeypatch.setenv("BIDRO_SITE", str(tmp_path / "east.toml"))
    assert "another version" in header_of(reply_to(request))["refused"]
    text = (tmp_path / "east.csv").read_text()
    (tmp_path / "east.csv").write_text(text.replace(",a,", ",HIV positive,", 1))
    said = header_of(reply_to(request))["refused"]
    assert "HIV" not in said
    assert "'HIV positive' is not a level of 'ward'" in caplog.text


def test_the_server_says_in_one_sentence_why_there_is_no_model(tmp_path, monkeypatch):
    agreed = write_sites(tmp_path, table())
    monkeypatch.delenv("BIDRO_RUNS", raising=False)
    assert b"BIDRO_RUNS" in serve(job(agreed).to_text(), InMemory({}))["error.txt"]
    monkeypatch.setenv("BIDRO_RUNS", str(tmp_path / "runs"))
    assert b"cannot be read" in serve("{}", InMemory({}))["error.txt"]
    impatient = Policy(timeout=0.01, patience=0.01)
    found = serve(job(agreed, policy=impatient).to_text(), InMemory({}))
    assert b"has not answered" in found["error.txt"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('client = "a"\ndata = "a.csv"\n', "does not say 'schema'"),
        ('client = "a"\ndata = "a.csv"\nschema = "s"\nmin_rows = 1\n', "at least 2"),
        ('client = 3\ndata = "a.csv"\nschema = "s"\n', "client = 3"),
        ('client = "a"\nodd = 1\n', "there is no entry odd"),
    ],
)
def test_a_bad_site_configuration_says_what_is_wrong(text, words, tmp_path):
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(BidroError, match=words):
        Site.read(tmp_path / "site.toml")


def test_a_table_that_does_not_fit_the_schema_is_refused_in_the_sites_own_words(tmp_path):
    whole = table()
    write_sites(tmp_path, whole, SUPPORT)
    site = Site.read(tmp_path / "east.toml")
    own = whole[whole["site"] == "east"]
    for change, words in (
        (own.drop(columns="u"), "no column 'u'"),
        (own.assign(ward="c"), "'c' is not a level of 'ward'"),
        (own.assign(u=11.0), r"'u' is 11, outside the declared support \[-10, 10\]"),
        (own.assign(u=np.nan), "Row 1 below the header of .* has no 'u'"),
        (own.assign(site="west"), "rows of client 'west'"),
        (own.iloc[:0], "no rows"),
    ):
        change.to_csv(tmp_path / "east.csv", index=False)
        with pytest.raises(BidroError, match=words):
            SiteRows.load(site)


def test_a_level_that_is_not_agreed_on_counts_as_other_where_there_is_one(tmp_path, caplog):
    whole = table()
    rare = np.where(np.arange(len(whole)) % 200 == 0, "c", whole["ward"])
    agreed = write_sites(tmp_path, whole.assign(ward=rare))
    assert 'levels = ["a", "b", "other"]\nother = "other"' in (tmp_path / "schema.toml").read_text()
    assert Agreement.read(tmp_path / "schema.toml") == agreed
    own = whole[whole["site"] == "east"].assign(ward="never seen")
    own.to_csv(tmp_path / "east.csv", index=False)
    rows = SiteRows.load(Site.read(tmp_path / "east.toml"))
    assert rows.features[:, 2:].tolist() == [[0, 1]] * len(own)
    assert "120 row(s) have a level of 'ward' that is not in the schema" in caplog.text


def test_a_schema_is_drafted_agreed_on_and_read_back(tmp_path):
    whole = table()
    agreed = write_sites(tmp_path, whole, SUPPORT)
    assert Agreement.read(tmp_path / "schema.toml") == agreed
    assert Agreement.from_dict(json.loads(json.dumps(agreed.to_dict()))).digest == agreed.digest
    drafted = draft(agreed.schema, whole)
    (tmp_path / "draft.toml").write_text(drafted)
    without = replace(agreed, support=None, options=replace(agreed.options, support=None, curves="auto"))
    # And that its units are read off rows stands in it, until somebody takes it out.
    assert Agreement.read(tmp_path / "draft.toml") == replace(without, units_drafted=True)
    (tmp_path / "draft.toml").write_text(drafted.replace("units_drafted = true\n", ""))
    assert Agreement.read(tmp_path / "draft.toml") == without
    bounds = drafted.replace("# support", "support").replace("# target_support", "target_support")
    (tmp_path / "draft.toml").write_text(bounds)
    low, high = Agreement.read(tmp_path / "draft.toml").support["u"]
    assert (low, high) == (whole["u"].min(), whole["u"].max())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.replace('name = "u"', 'name = "v"'), "names 'v' twice"),
        (lambda s: "units_drafted = 3\n" + s, "must be true or false"),
        (lambda s: s.replace('name = "u"', 'nam = "u"'), "needs a name"),
        (lambda s: s.replace("levels =", "level ="), "unknown entry 'level'"),
        (lambda s: s.replace('["a", "b"]', "[]"), "at least 1"),
        (lambda s: s.replace('["a", "b"]', '["a", "b"]\nother = "c"'), "other = 'c' must be one of its"),
        (lambda s: s.replace('name = "u"', 'name = "u"\nfiller = "c"'), "must be a finite number"),
        (lambda s: s.replace("target =", "goal ="), "unknown entry 'goal'"),
        (lambda s: s.replace("support = [-20.0, 40.0]", ""), "no bounds of 'v'"),
        (lambda s: s.replace("[-20.0, 40.0]", "[40.0, -20.0]"), "lower < upper"),
        (lambda s: s.replace("centre = 10.0\n", ""), "centre of 'v' must be a number"),
        (lambda s: s.replace("spread = 5.0", "spread = 0.0"), "spread of 'v' must be a positive"),
        (lambda s: s.replace("spread = 5.0", "spread = -5"), "spread of 'v' must be a positive"),
        (lambda s: s.replace("spread = 5.0", "spread = inf"), "spread of 'v' must be a positive"),
        (lambda s: s.replace("spread = 5.0", 'spread = "5"'), "spread of 'v' must be a positive"),
        (lambda s: s.replace("centre = 10.0\nspread = 5.0\n", ""), "in which unit 'v' is measured"),
        (lambda s: s.replace("target_spread", "target_width"), "unknown entry 'target_width'"),
        (lambda s: s.replace('"b"]', '"b"]\ncentre = 0.5'), "has levels, whose centre is 0"),
        (lambda s: s.replace('"b"]', '"b"]\nspread = 0'), "spread of 'ward' must be a positive"),
        (lambda s: s.replace("rounds = 1000", "rounds = 0"), "rounds in .limits. must be"),
        (lambda s: s.replace("rounds = 1000", "rounds = 1.5"), "rounds in .limits. must be"),
        (lambda s: s.replace("largest_coefficient = 20.0", "largest_coefficient = 1e6"), "at most 1000"),
        (lambda s: s.replace("rounds = 1000", "odd = 1"), "unknown entry 'odd'"),
        (lambda s: s.replace("seed = 0", "odd = 1"), "unknown entry 'odd'"),
        (lambda s: s.replace('curves = "none"', "curves = 800"), "from 1 to 64"),
        (lambda s: s.replace("increasing = []", 'increasing = ["w"]'), "names 'w', which is no feature"),
        (lambda s: s.replace("[training]", '[training]\nreplies = "gradient"'), "of an earlier version"),
        (lambda s: s.replace('release = "moments"\n', ""), "must say what leaves the sites"),
        (lambda s: s.replace('release = "moments"', 'release = "all"'), "got 'all'"),
        (lambda s: s.replace("radius = 0.0", 'loss = "absolute"'), "needs|asks for exact numbers"),
        (lambda s: s.replace("[training]", "[algorithm]\nrounds = 0\n[training]"), "whole number of rounds"),
        (lambda s: s.replace("radius = 0.0", 'radius = "bootstrap"'), "bootstrap"),
        (lambda s: s.replace("hold_out = 0.2", "hold_out = 1.5"), "hold_out must be"),
        (lambda s: s.replace("confidence = 0.95", "confidence = 95"), "The confidence must be"),
        (lambda s: s.replace("gap = 1e-06", "gap = -1"), "The gap must be"),
        (lambda s: s.replace("seed = 0", "shift = -1.0"), "The shift is"),
        (lambda s: s.replace("seed = 0", "folds = 1"), "folds must be"),
        (lambda s: s.replace("seed = 0", "seed = -1"), "random seed must be"),
        (lambda s: s.replace("label_cost = 1.0", "label_cost = 0"), "label_cost must be"),
        (lambda s: s.replace("seed = 0", 'loss = "odd"'), "loss must be one of"),
        (lambda s: s.replace('weights = "auto"', 'weights = "odd"'), "weights must be"),
        (lambda s: s.replace('metric = "features"', 'metric = "odd"'), "metric must be"),
        (lambda s: "training = 3\n" + s.replace("[training]", "[limits]"), "a part of its own|valid TOML"),
    ],
)
def test_a_bad_schema_says_what_is_wrong(change, words, tmp_path):
    write_sites(tmp_path, table(), SUPPORT)
    path = tmp_path / "schema.toml"
    path.write_text(change(path.read_text()))
    with pytest.raises(BidroError, match=words):
        Agreement.read(path)


def test_a_configuration_is_read_whole_or_refused(tmp_path):
    agreed = write_sites(tmp_path, table())
    path = tmp_path / "federate.toml"
    path.write_text(
        'schema = "schema.toml"\nclients = ["east", "west"]\n'
        '[network]\non_client_loss = "continue"\ntimeout = 30\n[flare]\nstartup_kit = "kit"\n'
    )
    found = Config.read(path, "stay", resume=True)
    assert found.job == Job(
        "stay",
        ("east", "west"),
        agreed,
        Policy(on_client_loss="continue", timeout=30),
        True,
    )
    assert Job.from_text(found.job.to_text()) == found.job
    assert found.engines["flare"]["startup_kit"] == str(tmp_path / "kit")
    for line, words in (
        ("odd = 1", "unknown entry 'odd'"),
        ("tables = []", "unknown entry 'tables'"),
        ("[network]\nodd = 1", "unknown entry 'odd'"),
        ("[algorithm]\nrounds = 3", r"says 'algorithm', which sites agree on: it stands in \[algorithm\]"),
        ("network = 3", "a part of its own"),
        ("hold_out = 0.3", r"says 'hold_out', which sites agree on: it stands in \[training\]"),
        ('release = "trusted"', "says 'release', which sites agree on: it stands in schema.toml"),
        ("[network]\nmax_weight = 0.5", "max_weight must be a share from 1 / 1"),
        ('[network]\nmax_weight = "half"', "max_weight must be"),
    ):
        path.write_text(f'schema = "schema.toml"\nclients = ["east"]\n{line}\n')
        with pytest.raises(BidroError, match=words):
            Config.read(path, "stay")
    path.write_text('schema = "schema.toml"\nclients = "east"\n')
    with pytest.raises(BidroError, match="a list of names"):
        Config.read(path, "stay")
    with pytest.raises(BidroError, match="letters, digits"):
        job(agreed, "../up")
    # A rehearsal takes clients and schema from its table.
    path.write_text('schema = "none.toml"\nclients = ["other"]\n')
    assert Config.read(path, "stay", Sites(agreed, ("east",))).job.clients == ("east",)


def test_a_draft_s_units_have_one_digit_of_the_deviation():
    assert rounded(9.93, 4.87) == (10.0, 5.0)
    assert rounded(-0.01234, 0.00361) == (-0.012, 0.004)
    assert rounded(123456.7, 961.0) == (123500.0, 1000.0)
    assert rounded(0.04, 96.1) == (0.0, 100.0)
    # What does not vary has its size for a unit, or 1.
    assert rounded(3.7, 1e-17) == (4.0, 4.0)
    assert rounded(0.0, 0.0) == (0.0, 1.0)


def test_an_audit_is_read_back_or_refused(tmp_path):
    agreed = write_sites(tmp_path, table())
    files = run_job(job(agreed, options=QUICK), carrier(tmp_path), tmp_path / "runs")
    write_folder(tmp_path / "model", files)
    audit = read_audit(tmp_path / "model")
    assert audit["rounds"] == max(kind["messages"] for kind in audit["kinds"]) // 5 + 3
    words = in_words(audit)
    assert "second moments" in words
    fewest = min(Model.from_bytes(files["model.safetensors"], "model").settings["rows"].values())
    assert f"each number over at least {fewest} rows" in words
    with pytest.raises(BidroError, match="no audit"):
        read_audit(tmp_path)
    (tmp_path / "model" / "audit.json").write_text("{}")
    with pytest.raises(BidroError, match="not an audit"):
        read_audit(tmp_path / "model")


def test_rows_kept_elsewhere_are_not_here():
    federation = Federation.elsewhere({"a": 10, "b": 20}, ["u", "y"])
    assert (federation.n, federation.m, federation.sizes) == (2, 2, (10, 20))
    for use in (lambda: federation.host_rows, lambda: federation.client_samples("a")):
        with pytest.raises(BidroError, match="at its clients"):
            use()
