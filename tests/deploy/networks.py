"""Sites that agree on a neural network, and the same training in one process."""

import numpy as np

from bidro import train_network
from bidro.core.packed import decoded
from bidro.data.federation import Federation
from bidro.deploy.agreement.agreement import NetworkAgreement, ScoresAgreement
from bidro.deploy.messages.plan import NetworkQueryPlan
from bidro.deploy.server.serve import run_job
from bidro.fit.network import LocalNetwork
from bidro.model.model_file import NETWORK_FILE, target_numbers
from tests.deploy.sites import PAIR, carrier, job, table, write_sites

FACTORY = "tests.networks.factories:with_arguments"
STEPS = {"eta_x": 0.05, "local_steps": 3, "batch": 40}
SCORES = ScoresAgreement("absolute", largest=8.0)
OF_CLASSES = ScoresAgreement("mistakes")
ALLOWED = f'allows = ["{FACTORY}", "single rows"]'


def network(rounds=3, arguments=None, settings=None, **parts):
    given = {"hidden": 5} if arguments is None else arguments
    return NetworkAgreement(FACTORY, rounds, arguments=given, settings=settings or STEPS, **parts)


def network_sites(
    folder, agreed_network=None, whole=None, scores=SCORES, extra=ALLOWED, training=None, person=None
):
    """What sites in the folder agree on: to train this network."""
    parts = {"scores": scores, "neural_network": agreed_network or network()}
    options = {"hold_out": 0.3, **(training or {})}
    whole = table() if whole is None else whole
    return write_sites(folder, whole, None, extra, person, training=options, **parts)


def run(folder, agreed, name="net", names=PAIR, through=None, **how):
    query = job(agreed, name, names, scores=agreed.scores, neural_network=agreed.neural_network, **how)
    return run_job(query, through or carrier(folder, names), folder / "runs")


def weights(files):
    """(d,) of the network in the files of its folder, in the order of its parameters."""
    found, _ = decoded(files[NETWORK_FILE], NETWORK_FILE)
    order = ["0.weight", "0.bias", "2.weight", "2.bias"]
    return np.concatenate([found[name].ravel() for name in order])


def in_one_process(agreed, whole, names=PAIR):
    """(d,) `train_network` over the same rows, which it has all, split by the agreed seed as sites are."""
    schema, protocol = agreed.schema, NetworkQueryPlan(agreed)
    some = whole[whole["site"].isin(names)]
    features, target = schema.matrix(some), target_numbers(schema, some)
    here = LocalNetwork.of(
        features,
        target,
        schema.clients(some),
        protocol.columns,
        agreed.options.hold_out,
        agreed.options.seed,
        schema.people(some),
    )
    samples, begin = {}, 0
    for name, size in zip(here.names, here.sizes, strict=True):
        own = here.rows[begin : begin + size]
        samples[name], begin = protocol.rows(own[:, :-1], own[:, -1]), begin + size
    federation = Federation.from_arrays(samples, "unbounded")
    problem = protocol.problem(federation)
    return train_network(protocol.algorithm, problem, protocol.network.rounds, agreed.options.seed).x
