"""Methods to compare with, in the same contract: one method, one file."""

from bidro.federated.baselines.afl import AFL
from bidro.federated.baselines.ditto import Ditto
from bidro.federated.baselines.drfa import DRFA
from bidro.federated.baselines.fdr_svm import FDRSVM
from bidro.federated.baselines.fedavg import FedAvg
from bidro.federated.baselines.group_dro import GroupDRO
from bidro.federated.baselines.group_dro_balls import GroupDROBalls
from bidro.federated.baselines.q_ffl import QFFL
from bidro.federated.baselines.scaffold import Scaffold
from bidro.federated.baselines.unbalanced import UnbalancedDRO

__all__ = [
    "AFL",
    "DRFA",
    "FDRSVM",
    "QFFL",
    "Ditto",
    "FedAvg",
    "GroupDRO",
    "GroupDROBalls",
    "Scaffold",
    "UnbalancedDRO",
]
