"""A neural network trained across sites: what one process would train, stated from held-out rows."""

import json
import sys
import types
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.numpy import load, save

from bidro import BidroError, load_network
from bidro.certify.certificate import Certificate
from bidro.certify.held_out import client_bound
from bidro.deploy.agreement import agreement
from bidro.deploy.agreement.agreement import Agreement, NetworkAgreement
from bidro.deploy.agreement.job import Job
from bidro.deploy.server.audit import in_words
from bidro.deploy.server.serve import run_job
from bidro.deploy.site import rows as site_rows
from bidro.deploy.site.check import check_site
from bidro.deploy.site.config import Site
from bidro.deploy.site.rows import SiteRows, holdout, site_log
from bidro.federated.algorithms import first_order
from bidro.federated.engines.coordinator import InMemory, Policy
from bidro.federated.engines.wire import header_of
from tests.deploy.networks import (
    ALLOWED,
    FACTORY,
    OF_CLASSES,
    STEPS,
    in_one_process,
    network,
    network_sites,
    run,
    weights,
)
from tests.deploy.sites import PAIR, answering, carrier, table

ADAM = {"optimiser": "Adam", "optimiser_settings": {"rate": 0.02}}
STATED = {"certificate.json", "report.html", "report.json"}


class Heard:
    """Sites in memory whose requests are kept."""

    def __init__(self, folder, names=PAIR):
        self.requests = []
        self.carrier = InMemory({name: self._one(reply) for name, reply in answering(folder, names).items()})

    def _one(self, reply):
        def heard(request):
            self.requests.append(request)
            return reply(request)

        return heard


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """(folder, agreement, files of a run)."""
    folder = tmp_path_factory.mktemp("network")
    agreed = network_sites(folder, network(rounds=4))
    return folder, agreed, run(folder, agreed)


def held_out(folder, name):
    """(features in their own units, target) of the rows that a site holds out."""
    site = Site.read(folder / f"{name}.toml")
    rows = SiteRows.load(site)
    kept = holdout(site, rows)
    return rows.features[kept], rows.target[kept]


def predictions(agreed, files, features):
    """By PyTorch, from the weights in the folder."""
    module = torch.nn.Sequential(
        torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, len(agreed.schema.classes or "1"))
    ).double()
    torch.nn.utils.vector_to_parameters(torch.tensor(weights(files)), module.parameters())
    unit = agreed.units
    centre = np.array([unit["u"].centre, unit["v"].centre, 0.0])
    spread = np.array([unit["u"].spread, unit["v"].spread, 0.5])
    with torch.no_grad():
        found = module(torch.tensor((features - centre) / spread)).numpy()
    if agreed.schema.classes is not None:
        return found
    return unit["y"].centre + unit["y"].spread * found[:, 0]


def test_sites_train_what_one_process_trains(done):
    _, agreed, files = done
    assert set(files) == STATED | {"audit.json", "network.safetensors", "model.onnx"}
    found = in_one_process(agreed, table())
    np.testing.assert_allclose(weights(files), found, rtol=0, atol=1e-6)
    first = agreed.neural_network.made(None, 0)[1].initial(4)
    assert np.abs(found - first).max() > 0.02, "it has learnt something"


def test_rows_of_a_person_stay_together(tmp_path):
    """In training or out of it, and so do those of the bounds."""
    whole = table()
    whole = whole.assign(person=np.random.default_rng(0).integers(0, 40, len(whole)))
    agreed = network_sites(tmp_path, whole=whole, person="person")
    files = run(tmp_path, agreed)
    np.testing.assert_allclose(weights(files), in_one_process(agreed, whole), rtol=0, atol=1e-6)
    for name in PAIR:
        site = Site.read(tmp_path / f"{name}.toml")
        rows = SiteRows.load(site)
        kept = holdout(site, rows)
        assert not set(rows.people[kept]) & set(rows.people[~kept])
    assert Certificate.from_json(files["certificate.json"].decode()).clipped.people


ALGORITHMS = {
    "FedAvg": (STEPS, ADAM),
    "AFL": ({"eta_x": 0.1, "eta_alpha": 0.1, "batch": 30}, {}),
    "DRFA": (
        {"eta_x": 0.05, "eta_alpha": 0.1, "local_steps": 3, "sampled": 1, "batch": 30},
        {"optimiser": "Momentum", "optimiser_settings": {"rate": 0.8, "momentum": 0.5}},
    ),
    "q-FFL": ({"q": 2.0, "eta_x": 0.05, "local_steps": 2}, {}),
    "Group DRO": ({"eta_x": 0.1, "eta_alpha": 0.1, "batch": 30}, {}),
    "BiDRO-FL": ({"eta_x": 0.05, "eta_alpha": 0.1, "local_steps": 2, "batch": 20}, {"penalty": 4.0}),
}


@pytest.mark.parametrize("word", ALGORITHMS)
def test_every_algorithm_trains_what_one_process_trains(word, tmp_path):
    settings, parts = ALGORITHMS[word]
    agreed = network_sites(
        tmp_path,
        network(4, settings=settings, algorithm=word, **parts),
        scores=None,
        training={"hold_out": 0.0, "seed": 3},
    )
    files = run(tmp_path, agreed)
    assert set(files) == {"audit.json", "network.safetensors", "model.onnx"}
    np.testing.assert_allclose(weights(files), in_one_process(agreed, table()), rtol=0, atol=1e-6)


def test_the_work_of_a_site_is_the_code_of_one_process(done, tmp_path, monkeypatch):
    """Broken, it is broken in both, in the same way."""
    right = first_order.mean_and_gradient

    def wrong(client, x, rows):
        value, gradient = right(client, x, rows)
        return value, 0.2 * gradient

    monkeypatch.setattr(first_order, "mean_and_gradient", wrong)
    agreed = network_sites(tmp_path, network(rounds=4))
    found = weights(run(tmp_path, agreed))
    assert np.abs(found - weights(done[2])).max() > 0.01
    np.testing.assert_allclose(found, in_one_process(agreed, table()), rtol=0, atol=1e-6)


def test_bounds_are_those_of_the_rows_kept_out_rounded_up(done):
    folder, agreed, files = done
    stated = Certificate.from_json(files["certificate.json"].decode())
    assert stated.names == PAIR
    assert f"This is the network of '{FACTORY}', trained across the sites by 4 rounds of FedAvg" in str(
        stated
    )
    for name in PAIR:
        features, target = held_out(folder, name)
        losses = np.minimum(np.abs(predictions(agreed, files, features) - target), 8.0)
        plain = client_bound(name, losses, 0.05, 8.0, "betting").bound
        step = 8.0 * 3 * 10 / len(losses)
        assert plain - 1e-9 <= stated.clipped.clients[name] <= min(8.0, plain + step + 1e-9)
    audit = json.loads(files["audit.json"])
    assert [kind["question"] for kind in audit["kinds"]] == ["prepare", "train", "evaluate"]
    assert "can hold these rows nearly as they are" in in_words(audit)
    query = [(e.question, e.outcome) for e in site_log(Site.read(folder / "east.toml")).entries()]
    assert query.count(("train", "answered")) == 4
    assert query.count(("score", "answered")) == 1  # it counts as a model that was scored


def test_the_folder_loads_and_its_onnx_file_takes_the_columns_own_units(done, tmp_path):
    folder, agreed, files = done
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    found = load_network(tmp_path)
    assert (found.factory, found.arguments, found.features) == (FACTORY, {"hidden": 5}, ("u", "v", "ward=b"))
    features, _ = held_out(folder, "west")
    expected = predictions(agreed, files, features)
    module, units = found.build(), found.units
    with torch.no_grad():
        ours = module(torch.tensor((features - units.mean) / units.spread)).numpy()[:, 0]
    np.testing.assert_allclose(units.middle + units.target_spread * ours, expected, rtol=1e-12)
    session = onnxruntime.InferenceSession(files["model.onnx"], providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"features": features})[0][:, 0], expected, rtol=1e-6)


def test_classes_and_their_mistakes(tmp_path):
    agreed = network_sites(
        tmp_path, network(4, {"hidden": 5, "outputs": 2}, **ADAM), table(classes=True), OF_CLASSES
    )
    files = run(tmp_path, agreed)
    found = in_one_process(agreed, table(classes=True))
    np.testing.assert_allclose(weights(files), found, rtol=0, atol=1e-6)
    stated = Certificate.from_json(files["certificate.json"].decode())
    features, target = held_out(tmp_path, "west")
    wrong = predictions(agreed, files, features).argmax(axis=1) != (target > 0)
    plain = client_bound("west", wrong.astype(float), 0.05, 1.0, "clopper-pearson").bound
    assert plain - 1e-9 <= stated.mistakes.clients["west"] <= min(1.0, plain + 30 / len(wrong) + 1e-9)
    session = onnxruntime.InferenceSession(files["model.onnx"], providers=["CPUExecutionProvider"])
    shares = session.run(None, {"features": features})[0]
    assert np.array_equal(shares.argmax(axis=1) != (target > 0), wrong)


def test_a_function_of_jax_and_why_it_has_no_onnx_file(tmp_path):
    name = "tests.networks.factories:in_jax"
    agreed = network_sites(
        tmp_path,
        NetworkAgreement(name, 3, settings={"eta_x": 0.05}),
        extra=f'allows = ["{name}"]',
    )
    files = run(tmp_path, agreed)
    assert "model.onnx" not in files
    for part, data in files.items():
        (tmp_path / part).write_bytes(data)
    found = load_network(tmp_path)
    assert "only PyTorch modules" in found.no_onnx
    # A pytree is flat in the order of its keys.
    ours = np.concatenate([found.weights["['hidden']"].ravel(), found.weights["['out']"]])
    np.testing.assert_allclose(ours, in_one_process(agreed, table()), rtol=0, atol=1e-6)


def test_a_run_that_was_cut_off_goes_on_to_the_same_bits(done, tmp_path):
    """The server's job dies after two rounds; resumed, it asks for the others alone."""
    agreed = network_sites(tmp_path, network(rounds=4))
    heard = Heard(tmp_path)

    class Dies:
        absent = heard.carrier.absent

        def exchange(self, messages, timeout):
            if len(heard.requests) >= 2 * 3:
                raise KeyboardInterrupt
            return heard.carrier.exchange(messages, timeout)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, agreed, through=Dies())
    assert len(heard.requests) == 6  # to prepare, and two rounds
    files = run(tmp_path, agreed, through=heard.carrier, resume=True)
    assert len(heard.requests) == 6 + 2 * 3
    assert files["network.safetensors"] == done[2]["network.safetensors"]


def test_without_a_lost_site_it_is_the_others_network(tmp_path):
    agreed = network_sites(tmp_path, network(rounds=3))
    (tmp_path / "mid.toml").write_text((tmp_path / "mid.toml").read_text().replace(ALLOWED, ""))
    policy = Policy(on_client_loss="continue")
    files = run(tmp_path, agreed, names=(*PAIR, "mid"), policy=policy)
    stated = Certificate.from_json(files["certificate.json"].decode())
    assert stated.names == PAIR
    assert "not of 'mid': lost" in stated.mixtures
    np.testing.assert_allclose(weights(files), in_one_process(agreed, table()), rtol=0, atol=1e-6)


def test_a_site_that_tells_absurd_weights_is_named(tmp_path):
    agreed = network_sites(tmp_path, network(rounds=2))
    replies = answering(tmp_path, PAIR)

    def liar(factor):
        def reply(request):
            answer = replies["west"](request)
            if header_of(request)["question"] != "train":
                return answer
            content = {name: factor * value for name, value in load(answer).items()}
            return save(content, metadata={"bidro": json.dumps(header_of(answer), sort_keys=True)})

        return InMemory({**replies, "west": reply})

    assert run(tmp_path, agreed, "near", through=liar(1.5))
    with pytest.raises(BidroError, match=r"Client 'west' contradicts itself: it tells weights of up to"):
        run(tmp_path, agreed, "far", through=liar(1e6))


def test_the_agreement_as_text(tmp_path):
    odd = {"hidden": 5, "activation": "relu", "an odd name": [1, 2.5, {"deep": True}]}
    agreed = network_sites(tmp_path, network(arguments=odd, input_shape=[1, 3], **ADAM))
    assert Agreement.read(tmp_path / "schema.toml").digest == agreed.digest
    assert Agreement.from_dict(json.loads(json.dumps(agreed.to_dict()))) == agreed
    query = Job("net", PAIR, agreed)
    assert Job.from_text(query.to_text()) == query
    assert "neural_network" not in replace(agreed, neural_network=None).to_dict()


BAD = {
    "A factory is named 'package.module:function'": {"factory": "small"},
    "for how many rounds": {"rounds": 0},
    "arguments in .* is a table of numbers": {"arguments": {"depth": float("nan")}},
    "dtype in": {"dtype": "float16"},
    "input_shape in .* is a list": {"input_shape": [0, 2]},
    "algorithm in .* must be one of FedAvg, AFL": {"algorithm": "fedsgd"},
    "FedAvg has no 'eta_alpha'; it has eta_x, local_steps, batch": {"settings": {"eta_alpha": 0.1}},
    "BiDRO-FL has no 'oracle'": {"algorithm": "BiDRO-FL", "penalty": 1.0, "settings": {"oracle": 1}},
    "local_steps = 2.5 is no local_steps of FedAvg": {"settings": {"local_steps": 2.5}},
    "at least one local step": {"settings": {"local_steps": 0}},
    "batch must be a whole number": {"settings": {"batch": 0}},
    'name it: optimiser = "Adam"': {"optimiser_settings": {"rate": 0.1}},
    "optimiser in .* must be one of": {"optimiser": "SGD"},
    "which needs it, and for no other": {"penalty": 1.0},
    "penalty in .* must be above 0": {"algorithm": "BiDRO-FL", "penalty": -1.0},
}


@pytest.mark.parametrize("sentence", BAD)
def test_what_stands_for_nothing_is_said_before_anything_is_imported(sentence):
    given = {"factory": "nowhere.nets:make", "rounds": 3, **BAD[sentence]}
    with pytest.raises(BidroError, match=sentence):
        NetworkAgreement(**given)


def test_parts_of_an_agreement_that_do_not_go_together(done):
    agreed = done[1]
    for sentence, parts in {
        'must be "squared" or "absolute" for this target': {"neural_network": network(loss="cross entropy")},
        "5000 rounds, and .limits. rounds = 1000": {"neural_network": network(5000)},
        'agree on it .loss = "absolute"': {"scores": None},
    }.items():
        with pytest.raises(BidroError, match=sentence):
            replace(agreed, **parts)
    from bidro.fit.training import AlgorithmOne
    from bidro.privacy.terms import Terms

    for part in ({"privacy": Terms()}, {"algorithm": AlgorithmOne(3)}):
        with pytest.raises(BidroError, match="do not go together"):
            replace(agreed, **part)


def test_a_factory_that_draws_anew_every_time_is_refused(tmp_path, monkeypatch):
    """A resumed run would begin with other weights."""
    module = types.ModuleType("drawing")
    rng = np.random.default_rng()
    module.make = lambda: torch.nn.Linear(3, 1).requires_grad_(True)
    monkeypatch.setitem(sys.modules, "drawing", module)
    assert NetworkAgreement("drawing:make", 1).made(None, 0)[1].dimension(4) == 4

    def anew():
        made = torch.nn.Linear(3, 1)
        with torch.no_grad():
            made.weight.copy_(torch.tensor(rng.normal(size=(1, 3))))
        return made

    module.make = anew
    with pytest.raises(BidroError, match="makes another network every time"):
        NetworkAgreement("drawing:make", 1).made(None, 0)


def test_the_owner_sees_that_a_network_is_not_allowed(tmp_path):
    network_sites(tmp_path, extra="")
    found = check_site(Site.read(tmp_path / "east.toml"))
    assert f'set allows = ["{FACTORY}"]' in found.refused
    network_sites(tmp_path)
    assert check_site(Site.read(tmp_path / "east.toml")).refused is None


NOT_THERE = {
    "package": ("No module named 'hospital'", "install the package that it is in; its log says why"),
    "torch": ("No module named 'torch'", r"and PyTorch \(bidro\[torch\]\), which is not there"),
}


@pytest.mark.parametrize("missing", NOT_THERE)
def test_a_site_where_the_factory_cannot_be_called_says_so_in_one_sentence(missing, tmp_path, monkeypatch):
    raised, sentence = NOT_THERE[missing]
    agreed = network_sites(tmp_path)
    replies = answering(tmp_path, PAIR)

    def without(request):
        with pytest.MonkeyPatch.context() as patch:

            def gone(*_):
                raise BidroError(f"the factory cannot be called: {raised}; secret/path/of/a/row")

            patch.setattr(agreement, "from_factory", gone)
            if missing == "torch":
                for module in (agreement, site_rows):
                    patch.setattr(module, "find_spec", lambda name: None)
            return replies["west"](request)

    with pytest.raises(BidroError, match=f"Client 'west': it cannot make the agreed .*{sentence}") as error:
        run(tmp_path, agreed, through=InMemory({**replies, "west": without}))
    assert "secret" not in str(error.value)


def test_a_server_without_the_factory_or_pytorch_says_so(tmp_path, monkeypatch):
    agreed = network_sites(tmp_path, NetworkAgreement("nowhere.nets:make", 1))
    with pytest.raises(BidroError, match=r"The factory 'nowhere.nets:make' cannot be called: No module"):
        run(tmp_path, agreed)
    (tmp_path / "needs_torch.py").write_text("raise ImportError('no torch', name='torch')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(BidroError, match=r"pip install 'bidro\[torch\]'"):
        agreement.from_factory("needs_torch:make")


def test_its_onnx_file_is_certified_as_a_model_from_elsewhere_to_the_same_bounds(done):
    """The other way to the same rows: ONNX Runtime, row by row, in a process of its own."""
    folder, agreed, files = done
    for name in PAIR:
        path = folder / f"{name}.toml"
        path.write_text(path.read_text().replace('"single rows"', '"single rows", "scores"'))
    query = Job("again", PAIR, agreed, certify=files["model.onnx"])
    again = run_job(query, carrier(folder, PAIR), folder / "runs")
    ours, theirs = (Certificate.from_json(one["certificate.json"].decode()) for one in (files, again))
    assert theirs.clipped.clients == pytest.approx(ours.clipped.clients, rel=1e-6)
