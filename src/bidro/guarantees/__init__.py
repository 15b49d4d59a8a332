"""What can be promised about a model: its risk over Wasserstein balls and under penalties."""

from bidro.guarantees.convergence import ConvergenceBound, convergence_bound
from bidro.guarantees.penalty import (
    PenalisedRisk,
    ball_bound,
    implied_radii,
    penalised_risk,
)
from bidro.guarantees.robust import WorstCase, robust_risk, worst_case_distribution

__all__ = [
    "ConvergenceBound",
    "PenalisedRisk",
    "WorstCase",
    "ball_bound",
    "convergence_bound",
    "implied_radii",
    "penalised_risk",
    "robust_risk",
    "worst_case_distribution",
]
