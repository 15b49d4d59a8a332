"""Curves across machines: the model of one process with the same knots, and what is told of it."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm, truncnorm

from bidro.core.errors import BidroError
from bidro.data.splines import Basis
from bidro.data.tables import learn_schema
from bidro.deploy.agreement.agreement import Agreement, Unit, draft, drafted, written
from bidro.deploy.messages.plan import QueryPlan
from bidro.deploy.server.audit import in_words
from bidro.deploy.server.serve import run_job
from bidro.federated.engines.coordinator import InMemory, Policy
from bidro.federated.engines.wire import header_of
from bidro.fit.fitted import Progress
from bidro.fit.network import LocalClients, LocalNetwork
from bidro.fit.training import AlgorithmOne
from bidro.model.model_file import Model
from bidro.workflow.fit import fit_tables
from tests.deploy.liars import lying, only
from tests.deploy.sites import NAMES, answering, job, retrained, write_sites
from tests.small import mostly_slow

TRIO = NAMES[:3]
SAME = 1e-7
CURVES = {"curves": "auto"}


def table(classes=False, rows=1500, seed=5):
    """u bends at 0, v does not; sites differ in how steep u is."""
    rng = np.random.default_rng(seed)
    parts = []
    for i, name in enumerate(TRIO):
        u, v = rng.normal(0.2 * i, 1.0, rows), rng.normal(10.0, 5.0, rows)
        ward = rng.choice(["a", "b"], rows)
        y = 2 * np.abs(u) + 0.4 * i * u - 0.2 * v + (ward == "b") + 0.5 * rng.normal(size=rows)
        target = np.where(y > np.median(y), "yes", "no") if classes else y
        parts.append(pd.DataFrame({"site": name, "u": u, "v": v, "ward": ward, "y": target}))
    return pd.concat(parts, ignore_index=True)


def ran(folder, agreed, answers=None, run="test", **parts):
    clients = answers or answering(folder, TRIO)
    return run_job(job(agreed, run, TRIO, **parts), InMemory(clients), folder / "runs")


def model_of(files):
    return Model.from_bytes(files["model.safetensors"], "model")


@dataclass(frozen=True, eq=False)
class Reported(LocalClients):
    """Clients in one process with knots that are given."""

    knots: Basis | None = None

    def finest(self, most, folds, by=(), agreed=None):
        return self.knots, None


def in_one_process(monkeypatch, folder, whole, agreed, finest, folds):
    """What `fit` makes of all rows in one place with the finest knots of a federated run."""
    before = LocalNetwork.in_units

    def in_units(self, standard, prepared):
        found = before(self, standard, prepared)
        return Reported(
            found.federation, found.fresh, found.holdout_sizes, found.made, found.fresh_people, knots=finest
        )

    monkeypatch.setattr(LocalNetwork, "in_units", in_units)
    path = folder / "whole.csv"
    whole.to_csv(path, index=False)
    here = retrained(agreed, {"folds": folds})
    options = replace(here.options, tables=(str(path),))
    return fit_tables(options, Progress(), (here.schema, here.fit_options))


def finest_of(agreed, requests):
    """The finest knots that a round of a run was about."""
    protocol = QueryPlan(agreed)
    named = [header["curves"] for header in requests if header.get("curves")]
    return protocol.finest.thinned(max(named, key=lambda one: sum(one["segments"]))["segments"])


def listening(answers, heard):
    def one(name):
        def reply(request):
            heard.append(header_of(request))
            return answers[name](request)

        return reply

    return {name: one(name) for name in answers}


@pytest.mark.parametrize(
    ("classes", "training"),
    mostly_slow(
        [
            (False, {}),
            (False, {"personal": "none", "radius": 0.05, "weights": "simplex"}),
            (False, {"increasing": ["v"], "personal": "none"}),
            (True, {"personal": "none", "weights": "fixed"}),
            (False, {"loss": "huber", "personal": "none", "weights": "fixed"}),
        ],
        lambda case: case[1] == {},
    ),
)
def test_the_model_is_that_of_one_process_with_the_same_knots_and_folds(
    classes, training, tmp_path, monkeypatch
):
    whole = table(classes)
    agreed = write_sites(tmp_path, whole, extra='release = "trusted"', training={**CURVES, **training})
    heard = []
    files = ran(tmp_path, agreed, listening(answering(tmp_path, TRIO), heard))
    ours = model_of(files)
    report = json.loads(files["report.json"])
    assert max(ours.settings["curves"]["segments"].values()) > 1
    folds = max(header.get("folds", 0) for header in heard)
    finest = finest_of(agreed, heard)
    theirs = in_one_process(monkeypatch, tmp_path, whole, agreed, finest, folds)
    assert ours.loss.basis == theirs.model.loss.basis
    np.testing.assert_allclose(ours.x, theirs.model.x, rtol=0, atol=SAME)
    for name, value in theirs.model.settings["client_weights"].items():
        assert ours.settings["client_weights"][name] == pytest.approx(value, abs=1e-4)
    for one in report["clients"]:
        assert one["loss"] == pytest.approx(theirs.evaluation[one["name"]].loss, rel=1e-6)


def test_the_run_names_its_knots_and_the_audit_lists_the_messages(tmp_path):
    whole = table()
    agreed = write_sites(tmp_path, whole, training={**CURVES, "personal": "none"})
    files = ran(tmp_path, agreed)
    model, audit = model_of(files), json.loads(files["audit.json"])
    knots = model.loss.basis.in_units(model.standard.mean, model.standard.spread).knots
    units = agreed.standard
    assert len(knots[0]) >= 1
    assert knots[2] == ()  # a level
    for j in (0, 1):
        # Where as many rows would be between two if they were normal with the agreed centre and spread.
        of_normal = units.mean[j] + units.spread[j] * norm.ppf(np.arange(1, 16) / 16)
        assert all(np.isclose(of_normal, knot).any() for knot in knots[j])
    # Curves are drawn over four spreads on both sides: nobody has told its least and largest values.
    np.testing.assert_allclose(model.low[:2], (units.mean - 4 * units.spread)[:2])
    np.testing.assert_allclose(model.high[:2], (units.mean + 4 * units.spread)[:2])
    assert (model.low[2], model.high[2]) == (0.0, 1.0)
    kinds = {kind["question"]: kind for kind in audit["kinds"]}
    assert kinds["segments"]["fields"] == {"segments": [3]}
    assert "segments of the agreed curves" in " ".join(in_words(audit).split())
    # The steepest slopes are those that the rows were made with, about.
    curve = model.predictor().curves(model.schema.features, model.low, model.high)["u"]
    assert curve.slopes[0] < -1
    assert curve.slopes[-1] > 1
    # A second run, with the same knots, is answered and ends with the same model.
    again = ran(tmp_path, agreed, run="again")
    np.testing.assert_array_equal(model_of(again).x, model.x)


def test_small_sites_bear_straight_lines_and_are_answered(tmp_path):
    whole = table(rows=150)
    agreed = write_sites(tmp_path, whole, training={**CURVES, "personal": "none"})
    ours = model_of(ran(tmp_path, agreed))
    assert getattr(ours.loss, "basis", None) is None
    assert set(ours.settings["curves"]["segments"].values()) == {1}
    assert "too few rows" in ours.settings["chosen"]["curves"]


def test_an_agreement_has_curves_in_its_file(tmp_path):
    whole = table(rows=150)
    for training in (
        {"curves": 4, "increasing": ["v"], "decreasing": []},
        {
            "curves": {"u": 8, "v": "none", "ward=b": "none"},
            "radius": {"east": 0.1, "mid": 0.0, "north": 0.2},
        },
        {"curves": "auto"},
    ):
        agreed = write_sites(tmp_path, whole, training=training)
        read = Agreement.read(tmp_path / "schema.toml")
        assert read.digest == agreed.digest
        assert read.options.in_file()["curves"] == training["curves"]
        assert Agreement.from_dict(json.loads(json.dumps(agreed.to_dict()))).digest == agreed.digest
        assert written(read) == written(agreed)
    most = QueryPlan(write_sites(tmp_path, whole, training={"curves": 4})).wanted.most
    assert most == (4, 4, 1)


@pytest.mark.parametrize(
    ("training", "parts", "words"),
    [
        ({"curves": "many"}, {}, "curves are 'auto'"),
        ({"curves": {"w": 4}}, {}, "curves names 'w'"),
        ({"increasing": ["w"]}, {}, "increasing names 'w'"),
        ({"increasing": "u"}, {}, "increasing in .training. is a list"),
        ({"increasing": ["u"], "decreasing": ["u"]}, {}, "both increasing and decreasing"),
        ({"curves": 4}, {"algorithm": AlgorithmOne(3)}, "Algorithm 1 trains straight lines"),
        ({"increasing": ["u"]}, {"algorithm": AlgorithmOne(3)}, "Algorithm 1 trains straight lines"),
    ],
)
def test_curves_that_stand_for_nothing_are_not_agreed_on(training, parts, words, tmp_path):
    with pytest.raises(BidroError, match=words):
        write_sites(tmp_path, table(rows=150), training=training, **parts)


def test_curves_are_agreed_on_unless_something_else_is_said(tmp_path):
    whole = table(rows=150)
    schema = learn_schema(whole, "site", "y", None, None, "refuse")
    assert '# curves = "auto"' in draft(schema, whole)
    nothing_said = drafted(schema, whole)
    assert nothing_said.options.curves == "auto"
    assert QueryPlan(nothing_said).has_curves
    # Algorithm 1 has none, without a word of the user's.
    of_lines = drafted(schema, whole, algorithm=AlgorithmOne(3))
    assert of_lines.options.curves == "auto"
    assert not QueryPlan(of_lines).has_curves


def smaller(array):
    return np.where(array == 0, array, array * 0.9)


def shifted(array):
    """One column of u has another mean."""
    changed = array.copy()
    changed[..., 0] += 0.5
    return changed


def apart(array):
    """Of two columns of one curve one falls as the other grows."""
    changed = array.copy()
    changed[..., 0, 1] = changed[..., 1, 0] = -np.abs(changed[..., 0, 1])
    return changed


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (only("segments", segments=lambda a: a + 0.5), "bear [12468]+.5, .* segments"),
        (only("segments", segments=lambda a: a * 0), "bear 0, 0, 0 segments"),
        (only("segments", segments=lambda a: a + 1), "bear [3579], .* segments"),
        (only("segments", segments=lambda a: a * 0 + 32), "bear 32, 32, 32 segments"),
        (only("round", "FoldMoments", mean=lambda a: a + 0.5), "'mid' contradicts itself"),
        (only("round", "FoldMoments", mean=shifted), "a mean or deviation of 'u' other than"),
        (only("round", "FoldMoments", around=smaller), "'mid' contradicts itself"),
        (only("round", "FoldMoments", around=apart), "contradicts itself"),
        (only("assess", loss=lambda a: a * 0.5), "its second moments make it"),
    ],
)
def test_lies_about_curves_are_caught(lie, words, tmp_path):
    agreed = write_sites(tmp_path, table(rows=900), training={**CURVES, "personal": "none"})
    clients = answering(tmp_path, TRIO)
    clients["mid"] = lying(clients["mid"], lie)
    with pytest.raises(BidroError, match=words):
        ran(tmp_path, agreed, clients)


def test_what_would_be_without_a_site_is_known_for_curves(tmp_path):
    agreed = write_sites(tmp_path, table(), training={**CURVES, "personal": "none"})
    found = json.loads(ran(tmp_path, agreed)["audit.json"])["influence"]
    assert "exactly, from second moments" in found["words"]
    assert {one["site"] for one in found["sites"]} == set(TRIO)
    assert all(0 < one["moved"] < 5 for one in found["sites"])


def test_agreed_knots_by_hand(tmp_path):
    """As many normal rows between any two, inside the agreed bounds; every second of them are those of half
    as many segments; and a column whose centre lies outside its bounds has them at equal distances."""
    whole = table(rows=150)
    bounds = {"u": (-2.0, 3.0), "v": (200.0, 208.0), "y": (-50.0, 50.0)}
    units = {"u": Unit(0.5, 2.0), "v": Unit(10.0, 5.0), "y": Unit(0.0, 1.0)}
    schema = learn_schema(whole, "site", "y", None, None, "refuse")

    def knots(most, support):
        agreed = Agreement.of(schema, units, support, {"curves": most}, release="moments")
        plan = QueryPlan(agreed)
        return plan.finest.in_units(agreed.standard.mean, agreed.standard.spread).knots

    u, v, ward = knots(4, bounds)
    inside = truncnorm(-1.25, 1.25, 0.5, 2.0)
    np.testing.assert_allclose(u, inside.ppf([0.25, 0.5, 0.75]))
    np.testing.assert_allclose(v, [202.0, 204.0, 206.0])
    assert ward == ()
    np.testing.assert_allclose(knots(4, None)[1], norm.ppf([0.25, 0.5, 0.75], 10.0, 5.0))
    np.testing.assert_allclose(knots(16, bounds)[0][3::4], u)


def test_a_run_goes_on_without_a_site_that_is_lost(tmp_path):
    """All of it begins again, and the others are asked about knots anew."""
    agreed = write_sites(tmp_path, table(), training={**CURVES, "personal": "none"})
    clients = answering(tmp_path, TRIO)
    clients["mid"] = lying(clients["mid"], only("round", "FoldMoments", mean=lambda a: a + 0.5))
    files = ran(tmp_path, agreed, clients, policy=Policy(on_client_loss="continue", min_clients=2))
    model = model_of(files)
    assert model.clients == ("east", "north")
    assert max(model.settings["curves"]["segments"].values()) > 1


def test_sites_with_odd_columns_never_contradict_themselves(tmp_path):
    """A column of few values, one that is constant at a site, one far from 0, and two that go together: of
    these not both bend, as rows where they go apart are few."""
    whole, rng = table(), np.random.default_rng(1)
    whole["few"] = rng.integers(0, 4, len(whole)).astype(float)
    whole["flat"] = np.where(whole["site"] == "mid", 7.0, rng.normal(7, 1, len(whole)))
    whole["far"] = 1e6 + rng.exponential(1, len(whole))
    whole["alike"] = 0.9 * whole["u"] + 0.1 * rng.normal(size=len(whole))
    agreed = write_sites(tmp_path, whole, training={**CURVES, "personal": "none"})
    found = model_of(ran(tmp_path, agreed)).settings["curves"]["segments"]
    assert sorted(found[name] > 1 for name in ("u", "alike")) == [False, True]
    assert found["flat"] == 1
