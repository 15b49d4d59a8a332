"""The paper's algorithm and its variants: one algorithm, one file, pure functions of explicit state."""

from bidro.federated.algorithms.bidro_fl import BiDROFL
from bidro.federated.algorithms.bidro_local import BiDROLocal
from bidro.federated.algorithms.server_optimiser import Adam, Adaptive, Momentum, ServerOptimised

__all__ = ["Adam", "Adaptive", "BiDROFL", "BiDROLocal", "Momentum", "ServerOptimised"]
