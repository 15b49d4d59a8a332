"""How far a client's distribution may lie from its rows: none, a penalty, a ball, a user's own."""

from bidro.ambiguity.base import Ambiguity
from bidro.ambiguity.none import NoAmbiguity
from bidro.ambiguity.penalty import NonconcaveInnerWarning, Penalty, UncheckedDomainWarning
from bidro.ambiguity.wasserstein import WassersteinBall

__all__ = [
    "Ambiguity",
    "NoAmbiguity",
    "NonconcaveInnerWarning",
    "Penalty",
    "UncheckedDomainWarning",
    "WassersteinBall",
]
