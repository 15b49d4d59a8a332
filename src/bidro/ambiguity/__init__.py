"""How far a client's distribution may lie from its rows: none, a penalty, a ball, a user's own."""

from bidro.ambiguity.base import Ambiguity
from bidro.ambiguity.chi_squared import ChiSquaredBall
from bidro.ambiguity.cvar import CVaR
from bidro.ambiguity.kl import KLBall
from bidro.ambiguity.none import NoAmbiguity
from bidro.ambiguity.penalty import NonconcaveInnerWarning, Penalty, UncheckedDomainWarning
from bidro.ambiguity.total_variation import TotalVariationBall
from bidro.ambiguity.wasserstein import WassersteinBall

__all__ = [
    "Ambiguity",
    "CVaR",
    "ChiSquaredBall",
    "KLBall",
    "NoAmbiguity",
    "NonconcaveInnerWarning",
    "Penalty",
    "TotalVariationBall",
    "UncheckedDomainWarning",
    "WassersteinBall",
]
