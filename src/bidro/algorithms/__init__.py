"""One algorithm, one file: pure functions of explicit state, in the contract of `contract.py`."""

from bidro.algorithms.afl import AFL
from bidro.algorithms.bidro_fl import BiDROFL
from bidro.algorithms.contract import Algorithm, Snapshot
from bidro.algorithms.exact import ExactMWDRO
from bidro.algorithms.fedavg import FedAvg
from bidro.algorithms.one_shot import OneShotMWDRO

__all__ = ["AFL", "Algorithm", "BiDROFL", "ExactMWDRO", "FedAvg", "OneShotMWDRO", "Snapshot"]
