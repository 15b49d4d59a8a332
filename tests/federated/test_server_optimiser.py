"""Optimisers at the server: PyTorch's own take the same steps."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from bidro.core.errors import BidroError
from bidro.federated.algorithms import Adam, Momentum, ServerOptimised
from bidro.federated.algorithms.server_optimiser import Memory
from bidro.federated.baselines import DRFA, FedAvg
from bidro.federated.contrib import BiDROCompressed, BiDROGossip, TopK
from bidro.federated.contrib.bidro_gossip import ring
from bidro.federated.engines.in_process import run
from bidro.risk.inner import Exact
from bidro.solvers.bundle.algorithm import ExactMWDRO
from tests.federated.cases import NAMES
from tests.small import SIZES, admissible, plain, rows

PAIRS = {
    "momentum": (Momentum(0.3, 0.8), lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.8)),
    "Adam": (Adam(0.05, 0.8, 0.95), lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.8, 0.95))),
}


@pytest.mark.parametrize("name", PAIRS)
def test_the_steps_are_those_of_pytorch(name):
    ours, theirs = PAIRS[name]
    moves = np.random.default_rng(0).normal(size=(12, 4))
    x, zero = np.zeros(4), jnp.zeros(4)
    memory = Memory(zero, zero, jnp.zeros((), int))
    reference = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    optimiser = theirs([reference])
    for move in moves:
        step, memory = ours.step(memory, jnp.asarray(move))
        x = x + np.asarray(step)
        reference.grad = torch.from_numpy(-move)
        optimiser.step()
        np.testing.assert_allclose(x, reference.detach().numpy(), rtol=1e-12, atol=1e-15)


def test_fedavg_with_momentum_in_plain_numpy():
    shares, data = np.array(SIZES) / sum(SIZES), list(rows().values())
    x, speed = np.zeros(3), np.zeros(3)
    for _ in range(6):
        slopes = [2 * part[:, :3].T @ (part[:, :3] @ x - part[:, 3]) / len(part) for part in data]
        speed = 0.8 * speed - 0.05 * shares @ np.array(slopes)
        x = x + 0.3 * speed
    found = run(ServerOptimised(FedAvg(eta_x=0.05), Momentum(0.3, 0.8)), plain(admissible()), 6)
    np.testing.assert_allclose(found.x, x, rtol=1e-11)


@pytest.mark.parametrize(
    ("own", "problem"),
    [
        (DRFA(eta_x=0.05, eta_alpha=0.02, local_steps=3), plain(admissible())),
        (BiDROCompressed(0.05, 0.02, TopK(1)), admissible()),
    ],
    ids=["DRFA", "compressed"],
)
def test_rate_one_and_no_momentum_change_nothing(own, problem):
    one, two = (run(a, problem, 9) for a in (own, ServerOptimised(own, Momentum(1.0, 0.0))))
    np.testing.assert_allclose(one.x, two.x, rtol=1e-13)
    np.testing.assert_array_equal(one.alpha, two.alpha)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Momentum(rate=-1.0), "rate"),
        (lambda: Momentum(momentum=1.0), "momentum"),
        (lambda: Adam(second=1.5), "second"),
        (lambda: ServerOptimised(FedAvg(), "adam"), "must be Momentum"),
        (lambda: ServerOptimised(ExactMWDRO(Exact())), "takes no steps"),
        (lambda: ServerOptimised(BiDROGossip(graph=ring(NAMES))).init(admissible()), "no one model"),
    ],
)
def test_bad_settings_say_what_is_wrong(make, word):
    with pytest.raises(BidroError, match=word):
        make()
