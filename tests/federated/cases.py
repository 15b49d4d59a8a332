"""Every algorithm of the contract with a small problem that suits it, and clients that answer as sites do."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from bidro.ambiguity import Penalty, WassersteinBall
from bidro.core.sets import Box
from bidro.data.federation import Federation
from bidro.federated.algorithms import Adam, Adaptive, BiDROFL, BiDROLocal, Momentum, ServerOptimised
from bidro.federated.baselines import (
    AFL,
    DRFA,
    FDRSVM,
    QFFL,
    Ditto,
    FedAvg,
    GroupDRO,
    GroupDROBalls,
    Scaffold,
    UnbalancedDRO,
)
from bidro.federated.contrib import BiDROCompressed, BiDROGossip, EightBit, MixtureBall, TopK
from bidro.federated.contrib.bidro_gossip import ring
from bidro.federated.engines.coordinator import Coordinator, InMemory, Policy, reply_message
from bidro.federated.engines.record import Record
from bidro.federated.engines.remote import Participant, Remote
from bidro.federated.engines.wire import described, header_of, unpack
from bidro.losses import Hinge, Squared
from bidro.problem.problem import Problem
from bidro.risk.inner import Exact
from bidro.risk.transport import Transport
from bidro.solvers.bundle.algorithm import ExactMWDRO
from bidro.solvers.bundle.one_shot import OneShotMWDRO
from tests.small import rows

NAMES = ("site-0", "site-1", "site-2")
RHO = {"site-0": 20.0, "site-1": 12.0, "site-2": 9.0}
EPS = {"site-0": 0.3, "site-1": 0.2, "site-2": 0.1}


def penalised(names=NAMES, rho=RHO):
    """Penalties above the curvature: concave inner problems."""
    data = rows()
    fed = Federation.from_arrays({k: data[k] for k in names}, Box.cube(3.0, 4))
    return Problem(fed, Squared(), Box.cube(1.5, 3), Transport.euclidean(4), Penalty([rho[k] for k in names]))


def plain(names=NAMES):
    """Mean losses: no ambiguity inside the clients."""
    return replace(penalised(names), ambiguity=None)


def evenly(names=NAMES):
    """Mean losses; all clients count alike."""
    return plain(names).begun_at(alpha=np.full(len(names), 1 / len(names)))


def shared_penalty(names=NAMES):
    return penalised(names, dict.fromkeys(NAMES, 20.0))


def balls(names=NAMES, eps=EPS):
    fed = Federation.from_arrays({k: rows()[k] for k in names}, "unbounded")
    radii = WassersteinBall([eps[k] for k in names])
    return Problem(fed, Squared(), Box.cube(1.5, 3), Transport.features_only(4), radii)


def shared_ball(names=NAMES):
    return balls(names, dict.fromkeys(NAMES, 0.2))


def labelled_balls(names=NAMES):
    """Hinge loss; features and labels can move."""
    data = {k: np.column_stack([v[:, :3], np.where(v[:, 3] > 0, 1.0, -1.0)]) for k, v in rows().items()}
    fed = Federation.from_arrays({k: data[k] for k in names}, "unbounded")
    radii = WassersteinBall([EPS[k] for k in names])
    return Problem(fed, Hinge(), Box.cube(5.0, 3), Transport.classification(4, 1.0, 1.0), radii)


class Case(NamedTuple):
    algorithm: object
    problem: object = penalised  # of the clients' names, in any order
    alpha_moves: bool = True  # whether a step changes the weights


CASES = {
    "FedAvg": Case(FedAvg(eta_x=0.05), plain, alpha_moves=False),
    "FedAvg, 3 local steps": Case(FedAvg(eta_x=0.05, local_steps=3), plain, alpha_moves=False),
    "FedProx": Case(FedAvg(eta_x=0.05, local_steps=3, prox_weight=2.0), plain, alpha_moves=False),
    "SCAFFOLD": Case(Scaffold(eta_x=0.05, local_steps=3), evenly, alpha_moves=False),
    "SCAFFOLD, batches": Case(Scaffold(eta_x=0.05, local_steps=3, batch=8), evenly, alpha_moves=False),
    "Ditto": Case(Ditto(eta_x=0.05, local_steps=3), plain, alpha_moves=False),
    "Ditto, batches": Case(Ditto(eta_x=0.05, local_steps=3, batch=8), plain, alpha_moves=False),
    "FedAdam": Case(ServerOptimised(FedAvg(eta_x=0.05), Adaptive("adam", 0.02)), plain, alpha_moves=False),
    "FedYogi": Case(ServerOptimised(FedAvg(eta_x=0.05), Adaptive("yogi", 0.02)), plain, alpha_moves=False),
    "FedAdagrad": Case(
        ServerOptimised(FedAvg(eta_x=0.05), Adaptive("adagrad", 0.1, first=0.0)), plain, alpha_moves=False
    ),
    "AFL": Case(AFL(eta_x=0.05, eta_alpha=0.02), plain),
    "DRFA": Case(DRFA(eta_x=0.05, eta_alpha=0.02, local_steps=3, sampled=2), plain),
    "q-FFL": Case(QFFL(q=2.0, eta_x=0.1), plain),
    "Group DRO": Case(GroupDRO(eta_x=0.1, eta_alpha=0.02), plain),
    "Group DRO by weights, adjusted": Case(
        GroupDRO(eta_x=0.05, eta_alpha=0.01, adjustment=0.5, sampling="weights"), plain
    ),
    "Group DRO with balls": Case(GroupDROBalls(eta_x=0.05, eta_alpha=0.05), balls),
    "mixture ball": Case(MixtureBall(eta_x=0.05), shared_ball, alpha_moves=False),
    "unbalanced up": Case(UnbalancedDRO(tau=0.05, eta_x=0.05, eta_alpha=0.02), shared_penalty),
    "unbalanced down": Case(UnbalancedDRO(tau=0.05, eta_x=0.05, eta_alpha=0.02, sign="down"), shared_penalty),
    "FDR-SVM": Case(FDRSVM(c=0.5, inner_steps=40), labelled_balls, alpha_moves=False),
    "exact MW-DRO": Case(ExactMWDRO(Exact()), balls),
    "exact MW-DRO, one-shot": Case(OneShotMWDRO(1e-6), balls),
    "BiDRO-FL": Case(BiDROFL(eta_x=0.05, eta_alpha=0.02)),
    "BiDRO-FL, exact": Case(BiDROFL(eta_x=0.05, eta_alpha=0.02, oracle=Exact())),
    "BiDRO-FL, local steps, part of the clients": Case(
        BiDROLocal(eta_x=0.02, eta_alpha=0.02, local_steps=3, participation=0.6)
    ),
    "FedAvg, batches": Case(FedAvg(eta_x=0.05, local_steps=3, batch=8), plain, alpha_moves=False),
    "AFL, batches": Case(AFL(eta_x=0.05, eta_alpha=0.02, batch=8), plain),
    "DRFA, batches": Case(DRFA(eta_x=0.05, eta_alpha=0.02, local_steps=3, sampled=2, batch=8), plain),
    "q-FFL, batches": Case(QFFL(q=2.0, eta_x=0.1, local_steps=2, batch=8), plain),
    "Group DRO, batches": Case(GroupDRO(eta_x=0.1, eta_alpha=0.02, batch=8), plain),
    "BiDRO-FL, batches": Case(
        BiDROLocal(eta_x=0.02, eta_alpha=0.02, local_steps=3, participation=0.6, batch=8)
    ),
    "FedAvg, Adam": Case(ServerOptimised(FedAvg(eta_x=0.05), Adam(0.02)), plain, alpha_moves=False),
    "DRFA, momentum": Case(
        ServerOptimised(DRFA(eta_x=0.05, eta_alpha=0.02, local_steps=3), Momentum(0.5, 0.8)), plain
    ),
    "BiDRO-FL, batches, Adam": Case(
        ServerOptimised(BiDROLocal(eta_x=0.02, eta_alpha=0.02, participation=0.6, batch=8), Adam(0.02))
    ),
    "BiDRO-FL, top-k": Case(BiDROCompressed(eta_x=0.05, eta_alpha=0.02, compressor=TopK(1))),
    "BiDRO-FL, 8 bits": Case(BiDROCompressed(eta_x=0.05, eta_alpha=0.02, compressor=EightBit())),
    "BiDRO-FL, gossip": Case(BiDROGossip(eta_x=0.02, eta_alpha=0.01, graph=ring(NAMES))),
}


def answering(problem, algorithm):
    """What the site of each client answers to a request: from its own rows, and what it has agreed on."""
    federation = problem.federation

    def one(i, name):
        own = np.asarray(federation.client_samples(name))
        here = Federation.from_arrays({name: own}, "unbounded")
        agreed = problem.loss, problem.transport, federation.support, problem.own_ambiguity(i)

        def reply(request):
            header = header_of(request)
            assert header["algorithm"] == described(algorithm)
            message = unpack(request, algorithm.broadcast_type)
            found = Participant.of(algorithm, here, *agreed).reply(message, header["seed"], header["round"])
            return reply_message(found, request, len(own))

        return reply

    return {name: one(i, name) for i, name in enumerate(federation.names)}


def over_transport(problem, algorithm, folder, silent=()):
    """A network whose messages are bytes; clients in `silent` never reply."""
    clients = answering(problem, algorithm)
    carrier = InMemory({name: one for name, one in clients.items() if name not in silent})
    policy = Policy(timeout=1.0, on_client_loss="continue") if silent else Policy(patience=20.0)
    record = Record(folder / "record")
    coordinator = Coordinator("run", carrier, record, policy)
    settings = {name: {} for name in problem.federation.names}
    return replace(Remote(coordinator, settings), needs_all=not silent)
