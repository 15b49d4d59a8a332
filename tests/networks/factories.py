"""Networks that tests name by their factories."""

import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from bidro.networks.models import JaxNetwork


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))


def other():
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))


def three_classes():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))


def in_jax():
    rng = np.random.default_rng(0)
    parameters = {"out": rng.normal(size=6) / 2, "hidden": rng.normal(size=(6, 3)) / 2}
    return JaxNetwork(lambda p, f: p["out"] @ jnp.tanh(p["hidden"] @ f), parameters)
