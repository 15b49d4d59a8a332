"""Loss functions l(x, xi) of a model and a sample, with what is known of each of them."""

from bidro.losses.base import Growth, Loss, errors_of, has_curves, losses_of, mistakes_of, parts_of
from bidro.losses.custom import CustomLoss
from bidro.losses.linear import (
    Absolute,
    Hinge,
    Huber,
    LinearLoss,
    LinearScores,
    Logistic,
    MarginLoss,
    Pinball,
    ResidualLoss,
    SmoothedHinge,
    Squared,
)
from bidro.losses.log_link import Gamma, Poisson, Tweedie
from bidro.losses.piecewise_linear import PiecewiseLinear
from bidro.losses.softmax import ScoreDifference, Softmax
from bidro.losses.torch_loss import TorchLoss

__all__ = [
    "Absolute",
    "CustomLoss",
    "Gamma",
    "Growth",
    "Hinge",
    "Huber",
    "LinearLoss",
    "LinearScores",
    "Logistic",
    "Loss",
    "MarginLoss",
    "PiecewiseLinear",
    "Pinball",
    "Poisson",
    "ResidualLoss",
    "ScoreDifference",
    "SmoothedHinge",
    "Softmax",
    "Squared",
    "TorchLoss",
    "Tweedie",
    "errors_of",
    "has_curves",
    "losses_of",
    "mistakes_of",
    "parts_of",
]
