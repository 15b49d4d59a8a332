"""What can be promised about a model, and what each promise rests on."""

from bidro.certify.certificate import Certificate
from bidro.certify.convergence import ConvergenceBound, convergence_bound
from bidro.certify.coverage import Coverage, coverage_probability, failure_probabilities
from bidro.certify.held_out import HeldOut, Paired, held_out_bound, shifted, shifted_squared
from bidro.certify.out_of_sample import Interval, out_of_sample_interval
from bidro.certify.plan import SampleSizePlan, plan_sample_size
from bidro.certify.radius import (
    EmpiricalRadii,
    ExplicitRadius,
    PaperRadius,
    bootstrap_radii,
    explicit_rule,
    paper_rule,
    split_radii,
)
from bidro.certify.statements import certify_solution

__all__ = [
    "Certificate",
    "ConvergenceBound",
    "Coverage",
    "EmpiricalRadii",
    "ExplicitRadius",
    "HeldOut",
    "Interval",
    "Paired",
    "PaperRadius",
    "SampleSizePlan",
    "bootstrap_radii",
    "certify_solution",
    "convergence_bound",
    "coverage_probability",
    "explicit_rule",
    "failure_probabilities",
    "held_out_bound",
    "out_of_sample_interval",
    "paper_rule",
    "plan_sample_size",
    "shifted",
    "shifted_squared",
    "split_radii",
]
