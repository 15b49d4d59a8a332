"""What can be promised about a model: so far, the statements about the penalised problem."""

from bidro.guarantees.convergence import ConvergenceBound, convergence_bound
from bidro.guarantees.penalty import (
    PenalisedRisk,
    ball_bound,
    implied_radii,
    penalised_risk,
)

__all__ = [
    "ConvergenceBound",
    "PenalisedRisk",
    "ball_bound",
    "convergence_bound",
    "implied_radii",
    "penalised_risk",
]
