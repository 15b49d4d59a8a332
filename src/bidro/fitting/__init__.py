"""One path for a fit: what is asked of clients, what they answer, and how a model comes of it."""

from bidro.fitting.fit import Fitted, Options, Progress, fit
from bidro.fitting.network import LocalNetwork, Network

__all__ = ["Fitted", "LocalNetwork", "Network", "Options", "Progress", "fit"]
