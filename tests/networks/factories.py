"""Networks that tests name by their factories."""

import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from bidro.neural.models import JaxNetwork


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


def with_arguments(hidden, activation="tanh", outputs=1):
    torch.manual_seed(3)
    kind = {"tanh": nn.Tanh, "relu": nn.ReLU}[activation]
    return nn.Sequential(nn.Linear(3, hidden), kind(), nn.Linear(hidden, outputs))


def convolution():
    torch.manual_seed(4)
    return nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))


class Spectral(nn.Module):
    """By a transform of complex numbers, which ONNX has no operator of in this version."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(2, 1)

    def forward(self, features):
        return self.last(torch.fft.rfft(features).abs())


def spectral():
    torch.manual_seed(5)
    return Spectral()


def of_two():
    torch.manual_seed(6)
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))


def broken():
    raise RuntimeError("no such\nactivation")
