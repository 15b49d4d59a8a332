"""A whole federated run without a network: the same model, certificate and report as `bidro fit`."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load, save

from bidro.ambiguity import Penalty
from bidro.certify.certificate import Certificate
from bidro.certify.intervals import Calibration, Fits, HeldOutFits
from bidro.certify.rounding import among_people
from bidro.core.errors import BidroError
from bidro.deploy.agreement.agreement import AskLimits
from bidro.deploy.server.audit import in_words
from bidro.deploy.server.serve import run_job
from bidro.deploy.site.config import Site
from bidro.deploy.site.rows import SiteRows, table_id
from bidro.deploy.site.session import reply_of
from bidro.deploy.transport.drive import files_of
from bidro.federated.algorithms import BiDROFL
from bidro.federated.engines.coordinator import Delivered, InMemory, Policy
from bidro.federated.engines.in_process import run
from bidro.federated.engines.wire import header_of
from bidro.fit.settings import FitSettings
from bidro.fit.training import AlgorithmOne, folds_of, transport_of, unrestricted
from bidro.model.model_file import Model, load_model
from bidro.model.personal_file import personal_models_in
from bidro.selection.calibrate import FoldLimits
from tests.deploy.sites import (
    NAMES,
    QUICK,
    SINGLE,
    SUPPORT,
    alone,
    answering,
    carrier,
    job,
    table,
    write_sites,
)
from tests.small import mostly_slow

# `fit` sums rows in another order, and a solve to a gap of 1e-6 can end a little elsewhere for it; the same
# sites on any network give the same bits.
SAME = 1e-6


def model_of(files):
    return Model.from_bytes(files["model.safetensors"], "model")


@pytest.mark.parametrize("classes", mostly_slow([False, True], lambda classes: not classes))
def test_with_default_options_the_model_is_that_of_fit(classes, tmp_path):
    """Preparation, cross-validation, solve and certificate: in at most 25 rounds; in as many folds as sites
    allow."""
    whole = table(classes, sizes=(200, 240, 200, 240, 240))
    agreed = write_sites(tmp_path, whole)
    files = run_job(job(agreed), carrier(tmp_path), tmp_path / "runs")
    # A network brings home these, and no others.
    always, maybe = files_of(job(agreed))
    assert always <= set(files) <= always | maybe
    folds = json.loads(files["report.json"])["calibration"]["folds"]
    ours, theirs = model_of(files), alone(tmp_path, whole, folds=folds)
    np.testing.assert_allclose(ours.x, theirs.model.x, rtol=0, atol=SAME)
    for name, value in theirs.model.settings["client_weights"].items():
        # The weights are those of the lower bound, which the gap leaves some room.
        assert ours.settings["client_weights"][name] == pytest.approx(value, abs=1e-4)
    assert ours.settings["gap"] <= 1e-6
    # The same clients have personal models, which are the same and have stayed where they are.
    adopted = ours.settings["personal"]["clients"]
    assert adopted == theirs.model.settings["personal"]["clients"] == sorted(theirs.model.personal)
    assert len(adopted) >= 2
    assert "personal.safetensors" not in files
    for name in NAMES:
        at_site = personal_models_in(tmp_path / "state" / name / "personal" / "test", ours.x)
        assert set(at_site) == ({name} if name in adopted else set())
        if name in adopted:
            np.testing.assert_allclose(at_site[name], theirs.model.personal[name], rtol=0, atol=SAME)
    assert ours.settings["robustness_cost"] == pytest.approx(
        theirs.model.settings["robustness_cost"], abs=1e-6
    )
    audit = json.loads(files["audit.json"])
    assert audit["rounds"] <= 25
    report = json.loads(files["report.json"])
    for one, other in zip(report["clients"], _clients_of(theirs), strict=True):
        assert one["loss"] == pytest.approx(other.loss, rel=1e-6)
        assert one["se"] == pytest.approx(other.se, rel=1e-6)
    certificate = Certificate.from_json(files["certificate.json"].decode())
    assert certificate.names == NAMES
    np.testing.assert_allclose(certificate.empirical, theirs.certificate.empirical, rtol=1e-6)
    if classes:
        assert certificate.mistakes.bound == pytest.approx(theirs.certificate.mistakes.bound)
    assert certificate.personal.bound <= theirs.certificate.personal.bound * (1 + 1e-9)
    assert certificate.clipped.bound <= theirs.certificate.clipped.bound * (1 + 1e-9)
    # Without a radius no worst case moves anything.
    assert report["worst_case"] == []


def _clients_of(fit):
    return [fit.evaluation[name] for name in NAMES]


@pytest.mark.parametrize("person", [None, "person"])
def test_what_is_promised_of_rows_is_what_one_process_promises_rounded_up(person, tmp_path):
    """From the same held-out rows: of the models that clients use, and of the shared one for rows that nobody
    knows the client of; nothing of a site with few."""
    rows = np.array([160, 240, 260, 240, 240])
    whole = table(sizes=tuple(rows if person is None else rows * [2, 3, 3, 3, 3]))
    whole["y"] += whole["site"].map({name: 3.0 * k for k, name in enumerate(NAMES)})
    if person:
        whole[person] = [f"{name}-{k // 2}" for k, name in enumerate(whole["site"])]
    agreed = write_sites(tmp_path, whole, person=person)
    options = {"radius": 0.0, "weights": "fixed", "hold_out": 0.15}
    run_in = run_job(job(agreed, options=options), carrier(tmp_path), tmp_path / "runs")
    theirs = alone(tmp_path, whole, **options)
    ours = Certificate.from_json(run_in["certificate.json"].decode()).of_rows
    exact = row_fits(theirs)
    people = person is not None
    assert ours.people is people
    assert ours.personal == bool(theirs.model.personal) is True
    with_few = {name for name in NAMES if name not in theirs.certificate.of_rows.clients}
    assert set(ours.others) == with_few
    assert "east" in with_few
    folder = tmp_path / "model"
    folder.mkdir()
    for name, content in run_in.items():
        (folder / name).write_bytes(content)
    model = load_model(folder)
    kept = model.intervals.at(0.9)[0]
    for name in NAMES:
        for fits, told in ((exact.used, kept.clients[name]), (exact.shared, None)):
            own = Calibration.of(fits.scores[name], exact.people[name] if people else None)
            bound = own.bound(0.1, 0.95)
            rounded = np.inf if np.isinf(bound) else among_people(bound, own.scores, own.draws, 5)
            if told is not None:
                assert told == pytest.approx(rounded)
                assert name in with_few or ours.clients[name] == pytest.approx(rounded, rel=0.011)
    assert kept.any_mixture == np.inf
    assert f"Nothing is promised of '{ours.others[0]}'" in ours.promise
    # A client whose personal model has stayed at its site has what holds under any mixture.
    rows = whole[whole["site"] == "west"].head(3)
    assert np.isinf(model.predict_interval(rows).to_numpy()).all()
    personal = replace(model, personal=theirs.model.personal).predict_interval(rows)
    assert np.allclose((personal["upper"] - personal["lower"]) / 2, kept.clients["west"])
    with pytest.raises(BidroError, match=r"kept for 0\.9 of the rows"):
        model.predict_interval(rows, 0.8)


def row_fits(fit):
    """How well the held-out rows of a fit in one process fit its models."""
    names, model = fit.clients.federation.names, fit.model
    sizes, people = fit.clients.holdout_sizes, fit.clients.fresh_people
    ends = np.cumsum(sizes)[:-1]
    parts = dict(zip(names, np.split(fit.clients.fresh, ends), strict=True))
    used = {name: model.used_by(name) for name in names}
    labels = None if people is None else dict(zip(names, np.split(people, ends), strict=True))
    shared = Fits.of(model.loss, parts, dict.fromkeys(names, model.x))
    return HeldOutFits(Fits.of(model.loss, parts, used), shared, people=labels)


@pytest.mark.slow
def test_with_a_declared_support_the_interval_is_that_of_fit(tmp_path):
    whole = table()
    agreed = write_sites(tmp_path, whole, SUPPORT)
    options = {**QUICK, "metric": "joint", "shift": 0.1}
    files = run_job(job(agreed, options=options), carrier(tmp_path), tmp_path / "runs")
    ours = Certificate.from_json(files["certificate.json"].decode())
    both = alone(tmp_path, whole, **options)
    theirs = both.certificate
    assert ours.interval.upper == pytest.approx(theirs.interval.upper, rel=1e-9)
    np.testing.assert_allclose(ours.interval.radii, theirs.interval.radii, rtol=1e-12)
    np.testing.assert_allclose(ours.interval.risks, theirs.interval.risks, rtol=1e-9)
    # Across machines delta goes through a cloud that everybody has, so it may be larger, never too small.
    assert ours.interval.lower <= theirs.interval.lower + 1e-9
    assert ours.interval.delta >= theirs.interval.delta * (1 - 1e-9) or math.isclose(
        ours.interval.delta, theirs.interval.delta
    )
    assert ours.held_out.bound == pytest.approx(theirs.held_out.bound, rel=1e-9)
    assert ours.shift is not None
    shown = {one["client"]: one["moved"] for one in json.loads(files["report.json"])["worst_case"]}
    assert shown
    for name, found in both.displaced.items():
        np.testing.assert_allclose([f["in_sd"] for f in shown[name]], found.typical, rtol=1e-6, atol=1e-12)


def test_algorithm_1_is_that_of_one_process(tmp_path):
    whole = table()
    agreed = write_sites(tmp_path, whole, extra=SINGLE)
    settings = AlgorithmOne(3, rho=20.0, eta_x=0.05, eta_alpha=0.02)
    files = run_job(job(agreed, algorithm=settings), carrier(tmp_path), tmp_path / "runs")
    theirs = alone(tmp_path, whole, **QUICK)
    standard, loss = theirs.model.standard, theirs.model.loss
    federation = theirs.trained.problem.federation
    transport = transport_of(loss, federation.m, FitSettings(), standard.target_spread)
    problem = replace(
        unrestricted(federation, loss, transport, standard.target_spread), ambiguity=Penalty(20.0)
    )
    expected = run(BiDROFL(0.05, 0.02), problem, 3, seed=0)
    np.testing.assert_allclose(model_of(files).x, expected.x, rtol=0, atol=1e-9)
    report = json.loads(files["report.json"])
    assert report["solver"]["gap"] is None
    assert Certificate.from_json(files["certificate.json"].decode()).clipped is not None
    assert "ONE row" in in_words(json.loads(files["audit.json"]))


def test_sites_refuse_one_sample_replies_unless_they_are_allowed(tmp_path):
    agreed = write_sites(tmp_path, table(), extra='release = "trusted"')
    with pytest.raises(BidroError, match="four fifths of the sampled rows"):
        run_job(job(agreed, algorithm=AlgorithmOne(3)), carrier(tmp_path), tmp_path / "runs")


class StopsError(Exception):
    pass


class Dying(InMemory):
    """The server dies in the exchange with this number."""

    def __init__(self, clients, at):
        super().__init__(clients)
        object.__setattr__(self, "left", [at])

    def exchange(self, messages, timeout):
        self.left[0] -= 1
        if self.left[0] < 0:
            raise StopsError
        return super().exchange(messages, timeout)


def test_a_run_that_was_cut_off_anywhere_resumes_to_the_same_bytes(tmp_path):
    agreed = write_sites(tmp_path, table())
    clients, runs = answering(tmp_path), tmp_path / "runs"
    whole = run_job(job(agreed, "whole", options=QUICK), InMemory(clients), runs)
    rounds = json.loads(whole["audit.json"])["rounds"]
    for at in (0, 1, rounds // 2, rounds - 1):
        name = f"cut-{at}"
        with pytest.raises(StopsError):
            run_job(job(agreed, name, options=QUICK), Dying(clients, at), runs)
        assert not (runs / name / "result").exists()
        again = run_job(job(agreed, name, options=QUICK, resume=True), InMemory(clients), runs)
        assert again["model.safetensors"] == whole["model.safetensors"]
        assert again["certificate.json"] == whole["certificate.json"]
        assert json.loads(again["audit.json"])["rounds"] == rounds
        # What the sites sent is gone; a finished run gives its result again.
        assert not (runs / name / "record").exists()
        assert run_job(job(agreed, name, options=QUICK, resume=True), InMemory({}), runs) == again


def test_resuming_needs_the_same_run(tmp_path):
    agreed = write_sites(tmp_path, table())
    runs, clients = tmp_path / "runs", answering(tmp_path)
    with pytest.raises(StopsError):
        run_job(job(agreed, options=QUICK), Dying(clients, 2), runs)
    with pytest.raises(BidroError, match="a run 'test' on the server already"):
        run_job(job(agreed, options=QUICK), InMemory(clients), runs)
    with pytest.raises(BidroError, match="other settings"):
        run_job(job(agreed, options={**QUICK, "radius": 0.2}, resume=True), InMemory(clients), runs)


class Losing(InMemory):
    """One client answers no more from the exchange with this number on."""

    def __init__(self, clients, name, at):
        super().__init__(clients)
        object.__setattr__(self, "fate", [name, at])

    def exchange(self, messages, timeout):
        self.fate[1] -= 1
        name = self.fate[0]
        if self.fate[1] >= 0 or name not in messages:
            return super().exchange(messages, timeout)
        found = super().exchange({k: v for k, v in messages.items() if k != name}, timeout)
        return Delivered(found.replies, {**found.failures, name: "connection lost"})


def test_without_a_lost_client_the_model_is_that_of_the_others_and_says_so(tmp_path):
    whole = table()
    agreed = write_sites(tmp_path, whole)
    policy = Policy(timeout=1e-6, on_client_loss="continue", min_clients=2)
    parts = {"options": QUICK, "policy": policy}
    clients, runs = answering(tmp_path), tmp_path / "runs"
    files = run_job(job(agreed, **parts), Losing(clients, "mid", 3), runs)
    left = tuple(name for name in NAMES if name != "mid")
    others = run_job(job(agreed, "others", left, **parts), InMemory(clients), runs)
    assert np.array_equal(model_of(files).x, model_of(others).x)
    theirs = alone(tmp_path, whole[whole["site"] != "mid"], **QUICK)
    np.testing.assert_allclose(model_of(files).x, theirs.model.x, rtol=0, atol=SAME)
    certificate = Certificate.from_json(files["certificate.json"].decode())
    assert certificate.names == left
    assert "any mixture of east, north, south, west (not of 'mid'" in str(certificate)
    audit = json.loads(files["audit.json"])
    assert audit["lost"] == {"mid": "connection lost"}
    assert "do not cover it" in in_words(audit)


def test_a_run_that_lost_a_client_resumes_without_it(tmp_path):
    agreed = write_sites(tmp_path, table())
    policy = Policy(timeout=1e-6, on_client_loss="continue")
    parts = {"options": QUICK, "policy": policy}
    clients, runs = answering(tmp_path), tmp_path / "runs"

    class Both(Losing):
        def exchange(self, messages, timeout):
            if self.fate[1] < -1:
                raise StopsError
            return super().exchange(messages, timeout)

    with pytest.raises(StopsError):
        run_job(job(agreed, **parts), Both(clients, "mid", 2), runs)
    files = run_job(job(agreed, **parts, resume=True), InMemory(clients), runs)
    assert "mid" not in model_of(files).clients


@pytest.mark.parametrize(
    ("sizes", "options", "words"),
    [
        ((75, 9, 75, 75, 75), {"hold_out": 0.0}, "'mid': it trains on 9 of its 9 rows, fewer than its"),
        ((75, 40, 75, 75, 75), {}, r"Client 'mid': it holds out \d of its 40 rows"),
        ((60, 50, 60, 60, 60), {"hold_out": 0.46}, "too few people, or too few with a rare level"),
    ],
)  # fmt: skip
def test_nothing_leaves_a_site_that_rests_on_too_few_rows(sizes, options, words, tmp_path):
    agreed = write_sites(tmp_path, table(sizes=sizes))
    with pytest.raises(BidroError, match=words):
        run_job(job(agreed, options=options), carrier(tmp_path), tmp_path / "runs")


def test_folds_are_fewer_where_sites_are_small():
    def folds(answered, **chosen):
        return folds_of(100, FitSettings(**chosen), FoldLimits(answered))

    assert folds((1, 2, 3, 4, 5)) == 5
    assert folds((1, 2, 4)) == 4
    assert folds((1, 2, 3), folds=3) == 3
    with pytest.raises(BidroError, match="weights fixed, personal none"):
        folds((1,))


def test_a_site_refuses_a_server_with_another_schema(tmp_path):
    agreed = write_sites(tmp_path, table())
    other = replace(agreed, limits=AskLimits(rounds=7))
    with pytest.raises(BidroError, match="agree on one"):
        run_job(job(other), carrier(tmp_path), tmp_path / "runs")


def test_a_site_refuses_folds_and_curvature_that_tell_too_much(tmp_path):
    """By itself, whatever the server asks: here by requests that no honest server makes."""
    agreed = write_sites(tmp_path, table())
    folded = last_requests(tmp_path, agreed, {})["round FoldMoments"]
    answer = answering(tmp_path, ("east",))["east"]
    for folds in (1, 6, 30, -2, 2.0, True):
        query = {**header_of(folded), "folds": folds}
        assert "refused" in header_of(answer(_rewritten(folded, query)))
    other = tmp_path / "other"
    other.mkdir()
    agreed = write_sites(other, table())
    whole = last_requests(other, agreed, {**QUICK, "hold_out": 0.0})["round OneShotMWDRO"]
    (other / "east.csv").write_text("\n".join((other / "east.csv").read_text().splitlines()[:9]))
    strict = replace(Site.read(other / "east.toml"), min_rows=2, state=other / "strict")
    rows = SiteRows.load(strict)
    query = {**header_of(whole), "table": table_id(strict, rows)}
    refused = header_of(reply_of(strict, rows, _rewritten(whole, query)))["refused"]
    assert "too few people" in refused


@pytest.mark.parametrize("rare", ["level", "class"])
def test_a_rare_level_or_class_is_not_summed_over(rare, tmp_path):
    """A sum against a column of two values is a sum over the rows of one of them: here of a single row."""
    whole = table(classes=rare == "class")
    first = whole.index[whole["site"] == "mid"]
    column, values = ("ward", ("a", "b")) if rare == "level" else ("y", ("no", "yes"))
    whole.loc[first, column] = values[0]
    whole.loc[first[:5], column] = values[1]
    agreed = write_sites(tmp_path, whole)
    with pytest.raises(BidroError, match="'mid': a level or class is had by fewer than its min_rows = 10"):
        run_job(job(agreed, options=QUICK), carrier(tmp_path), tmp_path / "runs")


def test_a_table_that_changes_in_the_midst_of_a_run_ends_it(tmp_path):
    """Else rows that were trained on would be among those held out."""
    agreed = write_sites(tmp_path, table())
    clients = answering(tmp_path)
    with pytest.raises(StopsError):
        run_job(job(agreed, options=QUICK), Dying(clients, 2), tmp_path / "runs")
    lines = (tmp_path / "west.csv").read_text().splitlines()
    # Another order of the same rows is the same table; a row less is another.
    (tmp_path / "west.csv").write_text("\n".join([lines[0], *reversed(lines[2:])]))
    with pytest.raises(BidroError, match="'west': its table has changed since the run began"):
        run_job(job(agreed, options=QUICK, resume=True), carrier(tmp_path), tmp_path / "runs")


@pytest.mark.slow
def test_a_loss_with_kinks_needs_the_sites_consent(tmp_path):
    whole = table()
    agreed = write_sites(tmp_path, whole)
    options = {**QUICK, "loss": "absolute", "gap": 1e-3}
    with pytest.raises(BidroError, match='set release = "trusted"'):
        run_job(job(agreed, "no", options=options), carrier(tmp_path), tmp_path / "runs")
    agreed = write_sites(tmp_path, whole, extra='release = "trusted"')
    files = run_job(job(agreed, "yes", options=options), carrier(tmp_path), tmp_path / "runs")
    assert model_of(files).settings["gap"] <= 1e-3


def test_algorithm_1_resumes_to_the_same_bits_also_where_a_client_missed_rounds(tmp_path):
    """A client that stood still in a round is not asked for it again when the run goes on."""
    agreed = write_sites(tmp_path, table(), extra=SINGLE)
    policy = Policy(timeout=1e-6, on_client_loss="continue")
    parts = {"algorithm": AlgorithmOne(4, rho=20.0, eta_x=0.05), "policy": policy}
    parts["options"] = {"hold_out": 0.0}
    clients, runs = answering(tmp_path), tmp_path / "runs"

    class Misses(Dying):
        def exchange(self, messages, timeout):
            if self.left[0] == self.late and "mid" in messages:
                self.left[0] -= 1
                found = InMemory.exchange(self, {k: v for k, v in messages.items() if k != "mid"}, timeout)
                return Delivered(found.replies, {"mid": "late"})
            return super().exchange(messages, timeout)

    def missing(at, late):
        made = Misses(clients, at)
        object.__setattr__(made, "late", late)
        return made

    whole = run_job(job(agreed, "whole", **parts), missing(20, 18), runs)
    with pytest.raises(StopsError):
        run_job(job(agreed, "cut", **parts), missing(4, 2), runs)
    again = run_job(job(agreed, "cut", **parts, resume=True), InMemory(clients), runs)
    assert np.array_equal(model_of(again).x, model_of(whole).x)
    other = run_job(job(agreed, "other", **parts), InMemory(clients), runs)
    assert not np.array_equal(model_of(other).x, model_of(whole).x)


def test_a_column_that_does_not_vary_is_not_followed(tmp_path):
    """3.7 has no exact mean: what rounding leaves of it must not become a feature."""
    whole = table().assign(still=3.7)
    agreed = write_sites(tmp_path, whole)
    files = run_job(job(agreed, options=QUICK), carrier(tmp_path), tmp_path / "runs")
    assert model_of(files).settings["gap"] <= 1e-6
    theirs = alone(tmp_path, whole, **QUICK)
    np.testing.assert_allclose(model_of(files).x, theirs.model.x, rtol=0, atol=1e-6)


def last_requests(tmp_path, agreed, options=QUICK, clients=NAMES):
    """The last request of each kind that an honest run makes to 'east'."""
    answers, requests = answering(tmp_path, clients), {}
    asking = job(agreed, "honest", clients, options=options)

    def listened(request):
        header = header_of(request)
        kind = f"{header['question']} {header['algorithm']['kind']}" if "algorithm" in header else ""
        requests[kind or header["question"]] = request
        return answers["east"](request)

    run_job(asking, InMemory({**answers, "east": listened}), tmp_path / "runs" / str(len(options)))
    return requests


def _rewritten(request, header):
    return save(load(request), metadata={"bidro": json.dumps(header, sort_keys=True)})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda h: {**h, "question": "rows"}, "no such question"),
        (lambda h: {k: v for k, v in h.items() if k != "agreed"}, "agree on one"),
        (lambda h: {**h, "algorithm": {"kind": "os.system"}}, "not agreed on"),
        (lambda h: {**h, "algorithm": {"kind": "Exact"}}, "not agreed on"),
        (lambda h: {**h, "loss": {"kind": "Squared"}}, "not agreed on"),
        (lambda h: {**h, "standard": None}, "not agreed on"),
        (lambda h: {**h, "seed": 10**30}, "the seed must be"),
        (lambda h: {**h, "client": "west"}, "names another client"),
        (lambda h: {**h, "version": "0.0"}, "the server another version"),
        (lambda h: {**h, "table": 1.0}, "its table has changed"),
        (lambda h: {**h, "ambiguity": None}, "a radius is missing"),
        (lambda h: {**h, "ambiguity": {"kind": "WassersteinBall", "radius": 1e9}}, "a radius must be"),
        (lambda h: {**h, "run": "../up"}, "not one that a folder can have"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_and_runs_nothing(change, words, tmp_path):
    agreed = write_sites(tmp_path, table())
    last = last_requests(tmp_path, agreed)["round OneShotMWDRO"]
    answer = answering(tmp_path, ("east",))["east"]
    assert words in header_of(answer(_rewritten(last, change(header_of(last)))))["refused"]


def test_messages_that_are_filled_up_to_whole_passes_are_answered(tmp_path):
    """Two candidates on five folds and on all rows are twelve models, and twenty in the message."""
    agreed = write_sites(tmp_path, table(True, sizes=(500,) * 5))
    options = {"weights": "simplex", "personal": "offset", "gap": 1e-3}
    files = run_job(job(agreed, options=options), carrier(tmp_path), tmp_path / "runs")
    assert json.loads(files["report.json"])["calibration"]["folds"] == 5
