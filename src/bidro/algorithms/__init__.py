"""One algorithm, one file: pure functions of explicit state, in the contract of `contract.py`."""

from bidro.algorithms.afl import AFL
from bidro.algorithms.bidro_compressed import BiDROCompressed, EightBit, TopK
from bidro.algorithms.bidro_fl import BiDROFL
from bidro.algorithms.bidro_gossip import BiDROGossip
from bidro.algorithms.bidro_local import BiDROLocal
from bidro.algorithms.contract import Algorithm, Snapshot, Usual
from bidro.algorithms.drfa import DRFA
from bidro.algorithms.exact import ExactMWDRO
from bidro.algorithms.fdr_svm import FDRSVM
from bidro.algorithms.fedavg import FedAvg
from bidro.algorithms.group_dro import GroupDRO
from bidro.algorithms.group_dro_balls import GroupDROBalls
from bidro.algorithms.mixture_ball import MixtureBall
from bidro.algorithms.one_shot import OneShotMWDRO
from bidro.algorithms.q_ffl import QFFL
from bidro.algorithms.server_optimiser import Adam, Momentum, ServerOptimised
from bidro.algorithms.unbalanced import UnbalancedDRO

__all__ = [
    "AFL",
    "DRFA",
    "FDRSVM",
    "QFFL",
    "Adam",
    "Algorithm",
    "BiDROCompressed",
    "BiDROFL",
    "BiDROGossip",
    "BiDROLocal",
    "EightBit",
    "ExactMWDRO",
    "FedAvg",
    "GroupDRO",
    "GroupDROBalls",
    "MixtureBall",
    "Momentum",
    "OneShotMWDRO",
    "ServerOptimised",
    "Snapshot",
    "TopK",
    "UnbalancedDRO",
    "Usual",
]
