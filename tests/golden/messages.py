"""The exchanges: all bytes between a server and sites in this process, both ways, and the files that follow.

Names, order, shapes, types and headers are compared to the byte. What is random by design (ids of tables,
noise) and what depends on the last bits of numbers (digests of requests) stands for itself by a word.
"""

import hashlib
import json
import tempfile
import warnings
from pathlib import Path

import numpy as np
from safetensors.numpy import load

import bidro
from bidro.deploy.server.serve import run_job
from bidro.federated.engines.coordinator import InMemory
from bidro.federated.engines.wire import header_of
from bidro.fit.training import AlgorithmOne
from bidro.model.model_file import Model
from bidro.privacy.terms import Terms
from tests.deploy.networks import network, network_sites
from tests.deploy.sites import NAMES, PAIR, PRIVACY, QUICK, SINGLE, answering, job, private_sites, write_sites
from tests.golden import tables

TRIO = NAMES[:3]
# Of longer arrays three sums are kept.
_LONGEST = 24
# Random by design: ids of tables, and the grids by which bounds of a network's losses are rounded.
_RANDOM = ("table",)
_RANDOM_REPLIES = ("evaluate",)


def _sums(values):
    """Three numbers that tell arrays of one shape apart: their norm, sum, and a sum with changing weights."""
    flat = np.asarray(values, float).ravel()
    weights = np.cos(np.arange(len(flat), dtype=float))
    return [float(np.linalg.norm(flat)), float(flat.sum()), float(flat @ weights)]


def _layout(data):
    """The bytes before the arrays, as text: names in their order, types, shapes, places."""
    length = int.from_bytes(data[:8], "little")
    content = json.loads(data[8 : 8 + length])
    content.pop("__metadata__", None)
    return json.dumps(content)


def _described(data, request=None, noisy=False):
    """One message as it is compared."""
    header = header_of(data)
    for name in _RANDOM:
        if name in header:
            header[name] = f"a {type(header[name]).__name__}"
    if "version" in header:
        assert header["version"] == bidro.__version__
        header["version"] = "ours"
    if request is not None:
        assert header["answers"] == hashlib.sha256(request).hexdigest()
        header["answers"] = "its request"
    arrays = load(data)
    numbers = {}
    for name, value in arrays.items():
        if name in _RANDOM or noisy:
            continue
        own = np.asarray(value, float)
        numbers[name] = own.ravel().tolist() if own.size <= _LONGEST else _sums(own)
    return {
        "header": json.dumps(header, sort_keys=True),
        "arrays": _layout(data),
        "after": len(data) - 8 - int.from_bytes(data[:8], "little"),
        "numbers": numbers,
    }


def _heard(folder, names, noisy):
    """(a carrier to the sites in the folder, a list of all that it carries)."""
    said = []

    def one(name, reply):
        def heard(request):
            found, asked = reply(request), header_of(request)["question"]
            said.append(
                {
                    "to": name,
                    # After the first reply with noise, what is asked depends on it.
                    "request": _described(request, noisy=noisy and bool(said)),
                    "reply": _described(found, request, noisy or asked in _RANDOM_REPLIES),
                }
            )
            return found

        return heard

    return InMemory({name: one(name, reply) for name, reply in answering(folder, names).items()}), said


def _exchange(folder, agreed, names=TRIO, noisy=False, **parts):
    carried, said = _heard(folder, names, noisy)
    files = run_job(job(agreed, "golden", names, **parts), carried, folder / "runs")
    found = {"said": said, "files": sorted(files)}
    if "model.safetensors" in files and not noisy:
        model = Model.from_bytes(files["model.safetensors"], "model")
        found["model"] = np.asarray(model.x).tolist()
        found["weights"] = list(model.settings["client_weights"].values())
    return found


def _sites(folder, training=None, count=None, rows=200, names=TRIO, **how):
    """Of the numbers or classes of a made table."""
    return _exchange(
        folder, write_sites(folder, tables.sites(names, rows, count), training=training, **how), names
    )


def _by_parts(folder, names=TRIO, extra="", **parts):
    """With parts of the agreement beside its training."""
    agreed = write_sites(folder, tables.sites(names, 200), extra=extra, training=QUICK, **parts)
    return _exchange(folder, agreed, names, **parts)


def _private(folder):
    whole = tables.sites(TRIO, 400)
    agreed = private_sites(folder, whole=whole, terms=Terms(), privacy=PRIVACY)
    return _exchange(folder, agreed, noisy=True, privacy=agreed.privacy)


def _network(folder):
    agreed = network_sites(folder, network(), tables.sites(PAIR, 200))
    return _exchange(folder, agreed, PAIR, scores=agreed.scores, neural_network=agreed.neural_network)


EXCHANGES = {
    "squared, a radius": lambda folder: _sites(folder, QUICK),
    "squared, all chosen": lambda folder: _sites(folder),
    "squared, curves": lambda folder: _sites(folder, {"curves": "auto"}, rows=600, names=PAIR),
    "absolute, a radius": lambda folder: _sites(
        folder, {**QUICK, "loss": "absolute"}, names=PAIR, extra='release = "trusted"'
    ),
    "logistic, all chosen": lambda folder: _sites(folder, count=2, rows=300, names=PAIR),
    "softmax, a radius": lambda folder: _sites(folder, QUICK, count=3, rows=300, names=PAIR),
    "Algorithm 1": lambda folder: _by_parts(
        folder,
        extra=SINGLE,
        algorithm=AlgorithmOne(3, rho=20.0, eta_x=0.05, eta_alpha=0.02),
    ),
    "private": _private,
    "a neural network": _network,
}


def made(name):
    """What is compared of an exchange, as JSON has it."""
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        return EXCHANGES[name](Path(folder))
