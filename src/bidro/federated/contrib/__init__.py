"""Published variants that no part of bidro runs, in the same contract and tested by the same suite."""

from bidro.federated.contrib.bidro_compressed import BiDROCompressed, EightBit, TopK
from bidro.federated.contrib.bidro_gossip import BiDROGossip
from bidro.federated.contrib.mixture_ball import MixtureBall

__all__ = ["BiDROCompressed", "BiDROGossip", "EightBit", "MixtureBall", "TopK"]
