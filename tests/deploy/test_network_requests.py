"""What a site does not answer about a neural network, whoever asks; each refusal is one sentence."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load, save

from bidro import BidroError
from bidro.deploy.messages.queries import Weights
from bidro.deploy.site.config import Site
from bidro.federated.engines.coordinator import InMemory
from bidro.federated.engines.wire import header_of, pack
from tests.deploy.networks import ALLOWED, FACTORY, STEPS, network, network_sites, run
from tests.deploy.sites import PAIR, answering, table, write_sites


def asked_in(folder, agreed):
    """The requests to the first site in a run, by question and round."""
    replies, heard = answering(folder, PAIR), {}

    def one(name):
        def reply(request):
            header = header_of(request)
            if name == PAIR[0]:
                heard[header["question"], header["round"]] = request
            return replies[name](request)

        return reply

    run(folder, agreed, through=InMemory({name: one(name) for name in PAIR}))
    return heard, replies[PAIR[0]]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(requests to a site in a run, what the site answers)."""
    folder = tmp_path_factory.mktemp("requests")
    settings = {**STEPS, "eta_alpha": 0.1, "sampled": 2}
    return asked_in(folder, network_sites(folder, network(4, settings=settings, algorithm="DRFA")))


def other(request, arrays=None, **said):
    """The request with other arrays, and other entries of its header; `...` takes one away."""
    header = {**header_of(request), "run": "hostile", **said}
    header = {name: value for name, value in header.items() if value is not ...}
    content = {**load(request), **(arrays or {})}
    return save(content, metadata={"bidro": json.dumps(header, sort_keys=True)})


def x_of(request):
    return load(request)["x"]


HOSTILE = {
    "round 5, and 4 were agreed on": lambda r: other(r, round=5),
    "drawn from the agreed seed, 0": lambda r: other(r, seed=1),
    "over all training rows": lambda r: other(r, folds=2),
    "another penalty than was agreed on": lambda r: other(r, ambiguity={"kind": "Penalty", "rho": 1.0}),
    "round of something that was not agreed on": lambda r: other(
        r, algorithm={**header_of(r)["algorithm"], "batch": 1}
    ),
    "makes another network here than at the server": lambda r: other(r, network="0" * 64),
    r"weights of shape \(25,\), and the agreed network has 26": lambda r: other(r, {"x": x_of(r)[:-1]}),
    r"weights of shape \(1, 26\)": lambda r: other(r, {"x": x_of(r)[None]}),
    "'x' in a message of type Broadcast is not finite": lambda r: other(
        r, {"x": np.where(np.arange(26) == 3, np.nan, x_of(r))}
    ),
    "larger weights than the agreed largest_coefficient = 20": lambda r: other(r, {"x": x_of(r) + 30.0}),
    "number of another shape or size": lambda r: other(r, {"in_b": np.array(2)}),
    "of another shape or size than": lambda r: other(r, {"step": np.array(-1)}),
    "larger than anything that was agreed on": lambda r: other(r, {"x": np.zeros(10**6)}),
    "there is no such question": lambda r: other(r, question="round", network=...),
    "its table has changed": lambda r: other(r, table=1.0),
    "something that was not agreed on": lambda r: other(r, more=1),
}


@pytest.mark.parametrize("sentence", HOSTILE)
def test_a_round_of_something_else_is_refused(sentence, made):
    requests, reply = made
    found = header_of(reply(HOSTILE[sentence](requests["train", 1])))

    assert re.search(sentence, found["refused"]), found
    assert "answers" in found


def test_an_untouched_round_is_answered_by_the_same_weights_again(made):
    """So that refusals above are by what was changed."""
    requests, reply = made
    first, again = (reply(other(requests["train", 1])) for _ in range(2))
    assert "refused" not in header_of(first)
    assert first == again


def test_other_weights_are_not_evaluated_without_end(made):
    """As of models from elsewhere: so many over a table."""
    requests, reply = made
    request = requests["evaluate", 1]
    header = {**header_of(request), "run": "curious"}

    def evaluated(shift):
        return header_of(reply(pack(Weights(x_of(request) + shift), header)))

    assert "refused" not in evaluated(0.1)
    assert "'score' has been answered of 2 models over this table" in evaluated(0.2)["refused"]
    assert "weights of shape" in header_of(reply(other(request, {"x": np.zeros(3)})))["refused"]


def test_a_linear_agreement_trains_no_network_and_a_network_no_linear_model(made, tmp_path):
    requests, reply = made
    agreed = write_sites(tmp_path, table())
    linear = answering(tmp_path, PAIR)[PAIR[0]]
    query = other(requests["train", 1], agreed=agreed.digest)
    assert header_of(linear(query))["refused"] == "there is no such question."
    for question in ("assess", "bounds", "segments"):
        query = other(requests["train", 1], question=question)
        assert header_of(reply(query))["refused"] == "there is no such question."


REFUSED = {
    f'set allows = \\["{FACTORY}"\\] in this': ALLOWED.replace(FACTORY, "tests.networks.factories:small"),
    'set release = "trusted"': ALLOWED + '\nrelease = "moments"',
    r"a batch of 40 rows, .* fewer rows than its min_rows = 10": ALLOWED.replace(', "single rows"', ""),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_an_owner_who_has_not_said_so_trains_no_network(sentence, tmp_path):
    agreed = network_sites(tmp_path, extra=REFUSED[sentence])
    with pytest.raises(BidroError, match=f"Client 'east': .*{sentence}"):
        run(tmp_path, agreed)


def test_a_factory_that_is_not_allowed_is_not_called(tmp_path, monkeypatch):
    agreed = network_sites(tmp_path)
    heard, _ = asked_in(tmp_path, agreed)
    called = []
    monkeypatch.setattr("bidro.deploy.agreement.agreement.from_factory", lambda *given: called.append(given))
    path = tmp_path / "east.toml"
    path.write_text(path.read_text().replace(ALLOWED, ""))
    reply = answering(tmp_path, PAIR)["east"]
    for request in heard.values():
        assert "has not allowed the network" in header_of(reply(request))["refused"]
    assert called == []


def test_a_batch_below_min_rows_is_refused_where_no_column_is_of_levels(tmp_path):
    """Without levels and classes the batch itself is what counts: 12 rows are enough, and 8 are not."""
    whole, extra = table().drop(columns="ward"), ALLOWED.replace(', "single rows"', "")
    name = "tests.networks.factories:of_two"
    extra = extra.replace(FACTORY, name)
    parts = {"factory": name, "arguments": {}}
    enough = replace(network(1, settings={"batch": 12}), **parts)
    run(tmp_path, network_sites(tmp_path, enough, whole, extra=extra))
    agreed = network_sites(tmp_path, replace(network(1, settings={"batch": 8}), **parts), whole, extra=extra)
    with pytest.raises(BidroError, match=r"a batch of 8 rows, .* fewer rows than its min_rows = 10"):
        run(tmp_path, agreed, "few")


def test_networks_in_the_configuration_of_a_site_are_names(tmp_path):
    network_sites(tmp_path)
    path = tmp_path / "east.toml"
    assert Site.read(path).allows == (FACTORY, "single rows")
    text = path.read_text()
    for line, sentence in (
        ('allows = "a:b"', "allows is a list of"),
        ("allows = [1]", "A factory is named 'package.module:function'"),
    ):
        path.write_text(text.replace(ALLOWED, line))
        with pytest.raises(BidroError, match=sentence):
            Site.read(path)
