"""Private runs between sites: what a site with a budget answers, once, and what follows at the server."""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load

from bidro.certify.certificate import Certificate
from bidro.core.errors import BidroError
from bidro.deploy.agreement.agreement import Agreement
from bidro.deploy.messages.queries import PRIVATE
from bidro.deploy.server.audit import in_words
from bidro.deploy.server.serve import run_job
from bidro.deploy.site.answers import ledger_of
from bidro.deploy.site.config import Site
from bidro.deploy.site.ledger import LEDGER, spent_content
from bidro.deploy.site.ledger import in_words as spent_words
from bidro.deploy.site.rows import SiteRows, holdout, site_log
from bidro.deploy.site.session import reply_of
from bidro.federated.engines.coordinator import Delivered, InMemory
from bidro.federated.engines.wire import header_of, pack, unpack
from bidro.fit.private_side import FACTOR
from bidro.fit.questions import GradientsQuery, NoisyMoments
from bidro.privacy.terms import Budget, Terms
from tests.deploy.fuzz_requests import changed
from tests.deploy.sites import (
    NAMES,
    PRIVACY,
    SIZES,
    agree,
    answering,
    carrier,
    job,
    private_sites,
    table,
    write_sites,
)


def private_job(agreed, run="test", clients=NAMES, **parts):
    return job(agreed, run, clients, privacy=agreed.privacy, **parts)


def listened(folder, names, transcripts):
    """The sites' answers, with all that is asked and answered by name."""

    def one(name, reply):
        def heard(request):
            found = reply(request)
            transcripts.setdefault(name, []).append((request, found))
            return found

        return heard

    return InMemory({name: one(name, reply) for name, reply in answering(folder, names).items()})


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """(the folder, what was agreed on, the run's files, all messages by site)."""
    folder, transcripts = tmp_path_factory.mktemp("private"), {}
    agreed = private_sites(folder)
    files = run_job(private_job(agreed), listened(folder, NAMES, transcripts), folder / "runs")
    return folder, agreed, files, transcripts


def test_a_run_asks_three_questions_and_says_what_is_private(ran):
    _, _, files, transcripts = ran
    for messages in transcripts.values():
        query = [header_of(request)["question"] for request, _ in messages]
        assert query == ["moments", *["gradients"] * 8, "losses"]
        for request, reply in messages:
            # No id of a table, no number of rows, no digest: arrays of whole numbers, and the budget.
            assert set(header_of(request)) == {"version", "run", "question", "round", "client", "agreed"}
            assert header_of(reply)["rows"] == 0
            assert set(header_of(reply)) == {"answers", "rows"}
            assert load(reply)["budget"].tolist() == [3.0, 1e-6, 1.0]
            assert load(reply)["values"].dtype == np.int64
    certificate = Certificate.from_json(files["certificate.json"].decode())
    words = certificate.privacy.promise
    assert "epsilon = 3 and delta = 1e-06, for adding or removing a row" in words
    assert "keeps account of all that it releases, in every run" in words
    assert not certificate.clipped.vacuous
    assert certificate.clipped.kind == "private"
    report = json.loads(files["report.json"])
    assert report["chosen"]["privacy"] == words
    assert "That is no upper end, and none is known" in report["chosen"]["noise"]
    assert "trained_rows.json" not in files
    audit = in_words(json.loads(files["audit.json"]))
    assert "with noise, over how many rows untold" in audit
    assert [kind["question"] for kind in json.loads(files["audit.json"])["kinds"]] == list(PRIVATE)
    assert "Under a" not in audit


def test_asked_again_in_another_run_sites_send_the_same_bytes_for_nothing(ran, tmp_path):
    folder, agreed, files, transcripts = ran
    before = {name: ledger_of(Site.read(folder / f"{name}.toml")).spent() for name in NAMES}
    again = {}
    second = run_job(private_job(agreed, "another"), listened(folder, NAMES, again), tmp_path / "runs")
    for name in NAMES:
        for (_, one), (_, other) in zip(transcripts[name], again[name], strict=True):
            for part in ("values", "budget"):
                assert load(one)[part].tobytes() == load(other)[part].tobytes()
        site = Site.read(folder / f"{name}.toml")
        assert ledger_of(site).spent() == before[name]
    assert second["certificate.json"] == files["certificate.json"]
    found = spent_content(ledger_of(Site.read(folder / "east.toml")), Budget(3.0))
    assert found["spent"] == 1.0
    assert 2.9 < found["epsilon"] <= 3.0
    assert sum(one["share"] for one in found["releases"]) == pytest.approx(1.0)
    assert len(found["releases"]) == 10
    assert {sent["about"]["run"] for one in found["releases"] for sent in one["sent"]} == {"test", "another"}
    words = spent_words(found)
    assert "100.0% spent" in words
    assert "restored from a copy has forgotten" in words
    assert "gradients 8 to run 'another'" in words


def test_a_new_question_is_refused_when_the_budget_is_spent(ran):
    folder, _, _, transcripts = ran
    site = Site.read(folder / "west.toml")
    rows = SiteRows.load(site)
    request, _ = transcripts["west"][1]
    query = unpack(request, GradientsQuery)
    other = query._replace(x=query.x + 0.125)
    reply = header_of(reply_of(site, rows, pack(other, header_of(request))))
    assert "This query is new to this site and would cost 0.07 of its privacy budget" in reply["refused"]
    assert site_log(site).entries("test")[-1].outcome == "refused"
    # What was answered is answered again, under any name.
    header = {**header_of(request), "run": "yet-another"}
    assert "refused" not in header_of(reply_of(site, rows, pack(query, header)))


def test_a_site_with_a_budget_answers_nothing_else(ran, tmp_path):
    """Neither the questions of other runs, in a private run, nor by an agreement that is of none."""
    folder, agreed, _, _ = ran
    site = Site.read(folder / "east.toml")
    rows = SiteRows.load(site)
    public = write_sites(tmp_path, table(sizes=SIZES))
    heard = {}
    run_job(
        job(public, clients=("east", "west")), listened(tmp_path, ("east", "west"), heard), tmp_path / "r"
    )
    requests = [request for request, _ in heard["east"]]
    assert {header_of(one)["question"] for one in requests} >= {"prepare", "round", "assess", "bounds"}
    for request in requests:
        header = header_of(request)
        forged = pack(_message(request), {**header, "agreed": agreed.digest})
        assert "no such question" in header_of(reply_of(site, rows, forged))["refused"]
    # The same site, with a budget, by the agreement that is not private.
    path = tmp_path / "east.toml"
    path.write_text(f"{path.read_text()}\n{PRIVACY}")
    budgeted = Site.read(path)
    for request in requests:
        refused = header_of(reply_of(budgeted, SiteRows.load(budgeted), request))["refused"]
        assert "answers private runs alone" in refused


def _message(request):
    from collections import namedtuple

    arrays = load(request)
    return namedtuple("Any", arrays)(**arrays) if arrays else namedtuple("None_", [])()


def test_requests_that_no_honest_server_makes(ran):
    """None raises, none but the three questions is answered, and none costs more than the budget."""
    folder, _, _, transcripts = ran
    site = Site.read(folder / "mid.toml")
    rows, rng = SiteRows.load(site), np.random.default_rng(0)
    requests = [request for request, _ in transcripts["mid"]]
    known, answered = {reply for _, reply in transcripts["mid"]}, 0
    payloads = {load(one)["values"].tobytes() for one in known}
    for _ in range(400):
        reply = reply_of(site, rows, changed(rng, requests))
        header = header_of(reply)
        if "refused" in header:
            assert "Traceback" not in header["refused"]
            continue
        answered += 1
        # The budget is spent: whatever is answered was answered before.
        assert load(reply)["values"].tobytes() in payloads
    assert answered > 0
    assert ledger_of(site).spent() <= Budget(3.0).rho


@pytest.mark.parametrize("dies_after", [1, 3, 10])
def test_a_run_that_died_goes_on_to_the_same_bytes(dies_after, tmp_path):
    """The server dies after some rounds, and one reply was drawn, charged and lost on the way."""
    clients = ("east", "west")
    agreed = private_sites(tmp_path)
    answers, heard = answering(tmp_path, clients), []

    class Dying:
        def absent(self, names):
            return frozenset()

        def exchange(self, messages, timeout):
            delivered = Delivered({}, {})
            for name, message in messages.items():
                delivered.replies[name] = answers[name](message)
                heard.append((name, message, delivered.replies[name]))
            if len(heard) == 2 * dies_after:
                raise KeyboardInterrupt
            return delivered

    with pytest.raises(KeyboardInterrupt):
        run_job(private_job(agreed, clients=clients), Dying(), tmp_path / "runs")
    spent = ledger_of(Site.read(tmp_path / "east.toml")).spent()
    transcripts = {}
    resumed = private_job(agreed, clients=clients, resume=True)
    files = run_job(resumed, listened(tmp_path, clients, transcripts), tmp_path / "runs")
    # What was lost is sent again as it was, for nothing.
    lost = {name: (message, reply) for name, message, reply in heard[-2:]}
    for name, (message, reply) in lost.items():
        assert transcripts[name][0] == (message, reply)
    assert ledger_of(Site.read(tmp_path / "east.toml")).spent() >= spent
    whole = run_job(private_job(agreed, "whole", clients), carrier(tmp_path, clients), tmp_path / "runs")
    assert whole["certificate.json"] == files["certificate.json"]


def test_sites_with_and_without_a_budget_in_one_run(tmp_path):
    agreed = private_sites(tmp_path, without=("mid", "west"), extra='release = "trusted"')
    transcripts = {}
    files = run_job(private_job(agreed), listened(tmp_path, NAMES, transcripts), tmp_path / "runs")
    promise = Certificate.from_json(files["certificate.json"].decode()).privacy.promise
    assert "All that left 'east', 'north', 'south'" in promise
    assert "Nothing is promised to the people at 'mid', 'west', which has no budget." in promise
    for name in NAMES:
        exact = name in ("mid", "west")
        for _, reply in transcripts[name]:
            assert (header_of(reply)["rows"] > 0) == exact
            assert (load(reply)["budget"] == 0).all() == exact
    # Without noise the sums are those of the rows: the last but one is a count, scaled.
    assert not (tmp_path / "state" / "mid" / LEDGER).exists()


def test_a_site_without_a_budget_keeps_its_own_rules(tmp_path):
    agreed = private_sites(tmp_path, without=NAMES, extra='min_rows = 400\nrelease = "trusted"')
    with pytest.raises(BidroError, match="fewer than its min_rows = 400"):
        run_job(private_job(agreed), carrier(tmp_path), tmp_path / "runs")
    # Under a budget no rule about rows is looked at: refusals would tell of them.
    for name in NAMES:
        path = tmp_path / f"{name}.toml"
        path.write_text(f"{path.read_text()}\n{PRIVACY}")
    run_job(private_job(agreed, "again"), carrier(tmp_path), tmp_path / "runs")


@pytest.mark.parametrize("trusted", [True, False])
def test_without_a_budget_a_server_that_chooses_where_to_clip_finds_a_row(trusted, ran, tmp_path):
    """Of exact sums the number of rows that are not clipped tells how many targets lie above any number:
    forty questions, and the largest one is known. So sites must trust the server, or have a budget."""
    agreed = private_sites(tmp_path, without=NAMES, extra='release = "trusted"' if trusted else "")
    site = Site.read(tmp_path / "mid.toml")
    rows, d = SiteRows.load(site), agreed.plan.columns - 1
    header = {**header_of(ran[3]["mid"][1][0]), "agreed": agreed.digest}
    x, along = np.zeros(d), np.zeros((d, d))
    x[-1], along[-1, 0] = 8.0, 1.0

    def above(least):
        """How many training rows have a target of at least so many spreads; or why that is not told."""
        clip = 2 * (8.0 - least) / np.sqrt(1 - FACTOR**2)
        query = GradientsQuery(x, along, np.array(clip), np.array(1.0))
        reply = reply_of(site, rows, pack(query, header))
        if "refused" in header_of(reply):
            return header_of(reply)["refused"]
        scale = agreed.plan.gradients_scale(None, clip, 1.0)
        return float(load(reply)["values"][-2] * scale.unit[-2]) / (FACTOR * clip)

    if not trusted:
        assert "give this site a privacy budget" in above(0.0)
        return
    low, high = -4.0, 7.9
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if above(middle) > 0.5 else (low, middle)
    unit = agreed.standard
    targets = (rows.target[~holdout(site, rows)] - unit.middle) / unit.target_spread
    assert low == pytest.approx(targets.max(), abs=0.01)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_however_few_rows_a_site_has_it_answers_as_any_other(rows, tmp_path):
    whole = table(sizes=SIZES)
    few = whole[whole["site"] == "east"].head(rows)
    agreed = private_sites(tmp_path, whole=whole)
    few.drop(columns="site").to_csv(tmp_path / "east.csv", index=False)
    files = run_job(private_job(agreed), carrier(tmp_path), tmp_path / "runs")
    assert "certificate.json" in files


def test_values_far_out_are_scaled_down_and_refuse_nothing(tmp_path):
    whole = table(sizes=SIZES)
    support = {"u": (-10.0, 10.0), "v": (-20.0, 40.0), "y": (-40.0, 40.0)}
    agreed = private_sites(tmp_path, whole=whole, support=support)
    own = whole[whole["site"] == "east"].drop(columns="site").copy()
    own.loc[own.index[:3], "u"] = 1e9
    own.to_csv(tmp_path / "east.csv", index=False)
    run_job(private_job(agreed), carrier(tmp_path), tmp_path / "runs")


def test_classes_have_a_bound_of_their_mistakes(tmp_path):
    agreed = private_sites(tmp_path, classes=True)
    files = run_job(private_job(agreed), carrier(tmp_path), tmp_path / "runs")
    found = Certificate.from_json(files["certificate.json"].decode())
    assert found.mistakes.kind == "private"
    assert 0 < found.mistakes.bound < 1


def test_people_with_several_rows_count_by_no_more_than_the_budget_is_for(tmp_path):
    whole = table(sizes=SIZES)
    whole["person"] = [f"p{i // 3}" for i in range(len(whole))]
    privacy = PRIVACY + "rows_per_person = 2\n"
    agreed = private_sites(tmp_path, whole=whole, person="person", privacy=privacy)
    transcripts = {}
    files = run_job(private_job(agreed), listened(tmp_path, NAMES, transcripts), tmp_path / "runs")
    promise = Certificate.from_json(files["certificate.json"].decode()).privacy.promise
    assert "adding or removing one person, of whom at most 2 rows count" in promise
    plan, budget = agreed.plan, Budget(3.0, 1e-6, 2)
    assert plan.people
    # A person's losses are one value, so that of held-out rows about a third as many are told of.
    losses = next(r for q, r in transcripts["east"] if header_of(q)["question"] == "losses")
    told = load(losses)["values"] * plan.losses_scale(budget).unit
    assert told.sum() == pytest.approx(0.2 * 300 / 3, abs=60)
    assert plan.losses_scale(budget).variance == plan.losses_scale(Budget(3.0)).variance
    assert plan.moments_scale(budget).sigma[0] == pytest.approx(2 * plan.moments_scale(Budget(3.0)).sigma[0])


def test_several_rows_a_person_need_a_column_that_says_whose_they_are(tmp_path):
    agreed = private_sites(tmp_path, privacy=PRIVACY + "rows_per_person = 2\n")
    with pytest.raises(BidroError, match="needs a column that says whose a row is"):
        run_job(private_job(agreed), carrier(tmp_path), tmp_path / "runs")
    site = Site.read(tmp_path / "east.toml")
    assert ledger_of(site).releases() == []


def test_a_table_that_changed_is_charged_with_the_old_one(ran, tmp_path):
    """What was released stays released: the same question has the old answer, and a new one no budget."""
    agreed = private_sites(tmp_path)
    transcripts = {}
    run_job(private_job(agreed), listened(tmp_path, NAMES, transcripts), tmp_path / "runs")
    rows = table(sizes=SIZES)
    rows[rows["site"] == "east"].head(50).drop(columns="site").to_csv(tmp_path / "east.csv", index=False)
    again = {}
    run_job(private_job(agreed, "again"), listened(tmp_path, NAMES, again), tmp_path / "runs")
    for (_, one), (_, other) in zip(transcripts["east"], again["east"], strict=True):
        assert load(one)["values"].tobytes() == load(other)["values"].tobytes()
    # By another agreement, all questions are new.
    other = agree(tmp_path, replace(agreed, privacy=Terms(degree=5)))
    with pytest.raises(BidroError, match="is new to this site"):
        run_job(private_job(other, "third"), carrier(tmp_path), tmp_path / "runs")


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("[privacy]\nepsilon = 0.0\n", "epsilon must be a positive number"),
        ("[privacy]\nepsilon = 1.0\ndelta = 1\n", "delta must be"),
        ("[privacy]\ndelta = 1e-6\n", "says epsilon"),
        ("[privacy]\nepsilon = 1.0\nrounds = 3\n", "says epsilon"),
        ("privacy = 3\n", "says epsilon"),
    ],
)
def test_a_site_s_configuration_says_what_is_wrong(part, words, tmp_path):
    private_sites(tmp_path, privacy=part)
    with pytest.raises(BidroError, match=words):
        Site.read(tmp_path / "east.toml")


def test_the_agreement_comes_back_from_its_file_and_from_a_job(ran, tmp_path):
    _, agreed, _, _ = ran
    terms = Terms(gradients=3, moments=0.4, clip=2.5, degree=6)
    whole = agree(tmp_path, replace(agreed, privacy=terms))
    back = Agreement.read(tmp_path / "schema.toml")
    assert back.privacy == terms
    assert back.digest == whole.digest != agreed.digest
    assert Agreement.from_dict(whole.to_dict()).digest == whole.digest
    for training, words in (
        ({"radius": 0.1}, "radius must be 0"),
        ({"curves": 8}, "curves are of named features"),
    ):
        with pytest.raises(BidroError, match=words):
            Agreement.of(agreed.schema, agreed.units, None, training, release="private", privacy=terms)


def test_a_liar_is_left_out_with_its_name(tmp_path):
    agreed = private_sites(tmp_path)
    answers = answering(tmp_path)

    def lying(request):
        reply = answers["mid"](request)
        arrays, header = load(reply), header_of(reply)
        arrays["values"] = -np.abs(arrays["values"]) * 1000 - 2**55
        return pack(NoisyMoments(arrays["values"], arrays["budget"]), header)

    with pytest.raises(BidroError, match="Client 'mid' contradicts itself: it reports second moments"):
        run_job(private_job(agreed), InMemory({**answers, "mid": lying}), tmp_path / "runs")
