"""What can be promised about a model, and what each promise rests on."""

from bidro.guarantees.calibration import Calibration, calibrate
from bidro.guarantees.certificate import Certificate
from bidro.guarantees.convergence import ConvergenceBound, convergence_bound
from bidro.guarantees.coverage import Coverage, coverage, failure_probabilities
from bidro.guarantees.empirical_radius import EmpiricalRadii, bootstrap_radii, split_radii
from bidro.guarantees.held_out import HeldOut, held_out, shifted, shifted_squared
from bidro.guarantees.out_of_sample import Interval, out_of_sample_interval
from bidro.guarantees.paired import Paired
from bidro.guarantees.penalty import (
    PenalisedRisk,
    ball_bound,
    implied_radii,
    penalised_risk,
)
from bidro.guarantees.plan import Plan, plan
from bidro.guarantees.price import worst_decile
from bidro.guarantees.radius import ExplicitRadius, PaperRadius, explicit_rule, paper_rule
from bidro.guarantees.robust import WorstCase, robust_risk, worst_case_distribution, worst_case_mixture
from bidro.guarantees.statements import certificate

__all__ = [
    "Calibration",
    "Certificate",
    "ConvergenceBound",
    "Coverage",
    "EmpiricalRadii",
    "ExplicitRadius",
    "HeldOut",
    "Interval",
    "Paired",
    "PaperRadius",
    "PenalisedRisk",
    "Plan",
    "WorstCase",
    "ball_bound",
    "bootstrap_radii",
    "calibrate",
    "certificate",
    "convergence_bound",
    "coverage",
    "explicit_rule",
    "failure_probabilities",
    "held_out",
    "implied_radii",
    "out_of_sample_interval",
    "paper_rule",
    "penalised_risk",
    "plan",
    "robust_risk",
    "shifted",
    "shifted_squared",
    "split_radii",
    "worst_case_distribution",
    "worst_case_mixture",
    "worst_decile",
]
