"""One path for a fit: what is asked of clients, what they answer, and how a model comes of it."""

from bidro.fitting.fit import fit
from bidro.fitting.fitted import Fitted, Options, Progress
from bidro.fitting.network import LocalNetwork, Network

__all__ = ["Fitted", "LocalNetwork", "Network", "Options", "Progress", "fit"]
