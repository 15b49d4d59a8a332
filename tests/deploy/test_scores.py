"""A model from elsewhere, certified across sites that run it on their own rows and tell bounds alone."""

import json
from dataclasses import replace

import numpy as np
import pytest
from skl2onnx import to_onnx
from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor

from bidro.certify.certificate import Certificate
from bidro.certify.held_out import client_bound
from bidro.core.errors import BidroError
from bidro.deploy.agreement.agreement import Agreement, ScoresAgreement
from bidro.deploy.agreement.job import Job
from bidro.deploy.messages.queries import Scores
from bidro.deploy.server.audit import in_words
from bidro.deploy.server.certified import job_to_certify
from bidro.deploy.server.serve import run_job
from bidro.deploy.site.answers import rounded_up
from bidro.deploy.site.config import Site
from bidro.deploy.site.rows import SiteRows, holdout, site_log
from bidro.federated.engines.coordinator import InMemory, Policy, reply_message
from bidro.losses.predicted import PredictedLoss, Scored
from tests.deploy.sites import NAMES, PAIR, answering, carrier, retrained, table, write_sites
from tests.model.onnx.graphs import DOUBLE, STRING, linear, made, of_matrix
from tests.small import mostly_slow

ABSOLUTE = ScoresAgreement("absolute", largest=8.0)
ALLOWED = 'allows = ["scores"]'
FEW = {"hold_out": 0.4}


def boosted(classes=False):
    """A boosted model of two numbers and a coded level, in single precision, and its file."""
    past = table(classes)
    rows = np.column_stack([past["u"], past["v"], past["ward"] == "b"]).astype(np.float32)
    kind = GradientBoostingClassifier if classes else GradientBoostingRegressor
    model = kind(n_estimators=20, random_state=0).fit(rows, past["y"])
    return model, to_onnx(model, rows[:1]).SerializeToString()


def sites(folder, whole=None, scores=ABSOLUTE, extra=ALLOWED, **parts):
    return write_sites(
        folder, table() if whole is None else whole, None, extra, training=FEW, scores=scores, **parts
    )


def certified(folder, agreed, data, run="scores", names=PAIR, policy=None, through=None):
    query = Job(run, tuple(names), agreed, policy or Policy(), certify=data)
    return run_job(query, through or carrier(folder, names), folder / "runs")


def losses_at(folder, name, predict):
    """(losses (N,), mistakes or None) of a site's held-out rows, plainly."""
    site = Site.read(folder / f"{name}.toml")
    rows = SiteRows.load(site)
    kept = holdout(site, rows)
    features, target = rows.features[kept], rows.target[kept]
    return np.minimum(np.abs(predict(features.astype(np.float32)) - target), 8.0)


def test_bounds_are_those_of_the_rows_rounded_up(tmp_path):
    agreed = sites(tmp_path)
    model, data = boosted()
    files = certified(tmp_path, agreed, data)
    assert set(files) == {"certificate.json", "report.html", "report.json", "audit.json"}
    found = Certificate.from_json(files["certificate.json"].decode())
    assert found.names == PAIR
    assert "as reported by the sites" in str(found)
    for name in PAIR:
        losses = losses_at(tmp_path, name, model.predict)
        plain = client_bound(name, losses, 0.05, 8.0, "betting").bound
        step = 8.0 * 3 * 10 / len(losses)
        assert plain - 1e-5 <= found.clipped.clients[name] <= min(8.0, plain + step + 1e-5)
        assert found.clipped.rows[name] == len(losses)
    assert found.clipped.bound == max(found.clipped.clients.values())
    assert found.clipped.means == {}
    audit = json.loads(files["audit.json"])
    assert [kind["question"] for kind in audit["kinds"]] == ["score"]
    assert audit["kinds"][0]["fields"] == {"loss": [1], "mistakes": [0]}
    assert "rounded up to steps of what min_rows rows" in in_words(audit)
    page = json.loads(files["report.json"])
    assert page["overall"] is None
    assert [set(client) for client in page["clients"]] == [{"name", "held_out_rows"}] * 2


@pytest.mark.parametrize("word", mostly_slow(["brier", "mistakes", "log loss"], lambda word: word == "brier"))
def test_classes_by_label_and_by_probability(word, tmp_path):
    """No owner has to trust the server with training for this."""
    whole, most = table(classes=True), 3.0 if word == "log loss" else 1.0
    model, data = boosted(classes=True)
    agreed = sites(tmp_path, whole, ScoresAgreement(word, largest=most if word == "log loss" else None))
    for path in tmp_path.glob("*.toml"):
        path.write_text(path.read_text().replace('release = "trusted"\n', ""))
    found = Certificate.from_json(certified(tmp_path, agreed, data)["certificate.json"].decode())
    site = Site.read(tmp_path / "west.toml")
    rows = SiteRows.load(site)
    kept = holdout(site, rows)
    shares = model.predict_proba(rows.features[kept].astype(np.float32))
    scored = Scored((rows.target[kept] + 1) / 2, shares, ("no", "yes"))
    wrong = client_bound("west", scored.mistakes, 0.05, 1.0, "clopper-pearson").bound
    assert wrong <= found.mistakes.clients["west"] <= min(1.0, wrong + 30 / kept.sum() + 1e-9)
    assert (found.held_out is None) == (word != "brier")
    if word != "mistakes":
        of_loss = found.held_out or found.clipped
        losses = np.minimum(PredictedLoss(word).values(scored), most)
        plain = client_bound("west", losses, 0.05, most, "betting").bound
        assert plain - 1e-6 <= of_loss.clients["west"] <= min(most, plain + most * 30 / kept.sum() + 1e-6)


def test_columns_by_their_names_and_the_client(tmp_path):
    """A model of a number, a level and the site's own name."""
    encode = {"domain": "ai.onnx.ml", "default_float": 0.0}
    nodes = [
        ("LabelEncoder", ["ward"], ["w"], {**encode, "keys_strings": ["b"], "values_floats": [1.0]}),
        ("LabelEncoder", ["site"], ["s"], {**encode, "keys_strings": ["west"], "values_floats": [100.0]}),
        ("Add", ["w", "s"], ["sum"], {}),
        ("Cast", ["sum"], ["of_texts"], {"to": DOUBLE}),
        ("Add", ["of_texts", "u"], ["y"], {}),
    ]
    text = (STRING, [None, 1])
    data = made(nodes, {"u": (DOUBLE, [None, 1]), "ward": text, "site": text}, {"y": (DOUBLE, [None, 1])})
    agreed = sites(tmp_path, scores=ScoresAgreement("absolute", largest=50.0))
    found = Certificate.from_json(certified(tmp_path, agreed, data)["certificate.json"].decode())
    assert found.clipped.clients["west"] == 50.0  # off by a hundred there
    losses = losses_at(tmp_path, "east", lambda x: x[:, 0] + x[:, 2])
    assert found.clipped.clients["east"] >= client_bound("east", losses, 0.05, 50.0, "betting").bound - 1e-5
    assert found.clipped.clients["east"] < 50.0


def test_nobody_scores_models_who_has_not_said_so(tmp_path):
    _, data = boosted()
    agreed = sites(tmp_path, extra="")
    with pytest.raises(
        BidroError, match=r"Client 'east': a model that the server sends .* set allows = \[.scores.\]"
    ):
        certified(tmp_path, agreed, data)
    other = sites(tmp_path, scores=None)
    with pytest.raises(BidroError, match=r"agree on \[scores\]"):
        certified(tmp_path, other, data, "another")
    # A server that asks all the same.
    sneaky = replace(other, scores=ABSOLUTE)
    object.__setattr__(sneaky, "digest", other.digest)
    with pytest.raises(BidroError, match="how models are scored was not agreed on"):
        certified(tmp_path, sneaky, data, "sneaky")


def test_so_many_models_over_a_table_and_no_more(tmp_path):
    agreed = sites(tmp_path)
    first, second, third = (linear([0.1 * k, -0.2, 1.0]) for k in range(3))
    told = [certified(tmp_path, agreed, data, f"run-{k}") for k, data in enumerate((first, second))]
    with pytest.raises(BidroError, match="'score' has been answered of 2 models over this table"):
        certified(tmp_path, agreed, third, "run-2")
    # One that was scored is no other when it is asked about again, and gets the same answer.
    again = certified(tmp_path, agreed, first, "run-3")
    assert again["certificate.json"] == told[0]["certificate.json"]
    log = [(e.question, e.outcome) for e in site_log(Site.read(tmp_path / "east.toml")).entries()]
    assert log.count(("score", "answered")) == 3
    assert ("score", "refused") in log


def test_what_does_not_fit_is_refused_and_does_not_count(tmp_path):
    agreed = sites(tmp_path)
    cases = {
        b"no model": "no ONNX model",
        linear([1.0, 2.0]): "takes 2 numbers a row, and there are 3 features: u, v, ward=b",
        of_matrix([("RandomNormalLike", ["X"], ["y"], {})]): "operator RandomNormalLike",
        made([("Identity", ["age"], ["y"], {})], {"age": (DOUBLE, [None, 1])}, {"y": (DOUBLE, [None, 1])}):
            "takes 1 numbers a row",
        made([("Identity", ["u"], ["y"], {})], {"u": (STRING, [None, 1])}, {"y": (STRING, [None, 1])}):
            "one output, one number a row",
        boosted(classes=True)[1]: "one output, one number a row",
    }  # fmt: skip
    for k, (data, words) in enumerate(cases.items()):
        with pytest.raises(BidroError, match=words):
            certified(tmp_path, agreed, data, f"odd-{k}")
        (tmp_path / "odd.onnx").write_bytes(data)
        with pytest.raises(BidroError, match=words):
            job_to_certify(Job("odd", PAIR, agreed), tmp_path / "odd.onnx")
    for k in range(2):
        assert certified(tmp_path, agreed, linear([0.1 * k, -0.2, 1.0]), f"run-{k}")


def test_a_site_that_tells_less_than_its_rows_can_say_is_named(tmp_path):
    agreed = sites(tmp_path)
    _, data = boosted()
    replies = answering(tmp_path, PAIR)

    def liar(request):
        return reply_message(Scores(np.array([0.01]), np.zeros(0)), request, 40)

    with pytest.raises(BidroError, match=r"Client 'west' contradicts itself: it tells a bound of 0\.01"):
        certified(tmp_path, agreed, data, through=InMemory({**replies, "west": liar}))
    found = certified(
        tmp_path,
        agreed,
        data,
        "without",
        policy=Policy(on_client_loss="continue"),
        through=InMemory({**replies, "west": liar}),
    )
    kept = Certificate.from_json(found["certificate.json"].decode())
    assert kept.names == ("east",)
    assert "not of 'west': lost" in kept.mixtures


def test_the_agreement_and_the_job_as_text(tmp_path):
    agreed = sites(tmp_path)
    assert Agreement.read(tmp_path / "schema.toml").digest == agreed.digest
    assert Agreement.from_dict(agreed.to_dict()) == agreed
    assert "scores" not in replace(agreed, scores=None).to_dict()
    query = Job("scores", NAMES, agreed, certify=b"\0\1")
    assert Job.from_text(query.to_text()) == query
    with pytest.raises(BidroError, match="job cannot be read"):
        Job.from_text(query.to_text().replace('"AAE="', '"A?"'))
    for parts, words in (
        ({}, "must name a loss"),
        ({"loss": "hinge"}, "loss must be one of"),
        ({"loss": "absolute"}, "has no largest value of its own"),
        ({"loss": "brier", "largest": 1.0}, "has a largest value of its own"),
        ({"loss": "absolute", "largest": -1.0}, "above 0"),
        ({"loss": "absolute", "largest": 1.0, "models": 99}, "whole number from 1 to 8"),
        ({"loss": "pinball", "largest": 1.0, "quantile": "high"}, "quantile in"),
    ):
        with pytest.raises(BidroError, match=words):
            ScoresAgreement(**parts)
    with pytest.raises(BidroError, match="not for a target that is a number"):
        replace(retrained(agreed), scores=ScoresAgreement("mistakes"))


def test_rounding_up_never_lowers_and_ends_at_the_largest():
    rng = np.random.default_rng(0)
    for _ in range(2000):
        bound, most, share, offset = rng.uniform(0, 3), 3.0, rng.uniform(0.01, 1.5), rng.uniform()
        found = rounded_up(bound, most, share, offset)
        assert bound <= found <= most
        assert found == most or found - bound < most * share * (1 + 1e-9)
        place = found / (most * share) - offset
        assert found == most or abs(place - round(place)) < 1e-6
