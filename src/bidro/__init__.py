"""Train one model from several private data sources, robust to any mix of them.

The public names below are loaded on first use, so that `import bidro` and `bidro --help` stay fast.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import warnings
from typing import Any

__version__ = "0.1.0"

# Duality gaps of 1e-8 are reported, so all arithmetic is in float64. JAX reads the variable when it
# is first imported; if the user imported it before us, its configuration is changed instead.
os.environ["JAX_ENABLE_X64"] = "true"
if "jax" in sys.modules:
    sys.modules["jax"].config.update("jax_enable_x64", True)

# Where each public name lives. The stub that type checkers read is the only list of them.
with open(os.path.join(os.path.dirname(__file__), "__init__.pyi"), encoding="utf-8") as _stub:
    _HOME = {name: home for home, name in re.findall(r"^from (\S+) import (\w+) as \2$", _stub.read(), re.M)}

# Deprecated: names that were public, by the module that still has them, and those with a new name. They go as
# docs/releases.md says; until then they work with a warning.
_NO_LONGER_PUBLIC = {
    "bidro.certify": (
        *("ConvergenceBound", "Coverage", "EmpiricalRadii", "ExplicitRadius", "HeldOut", "Interval"),
        *("Paired", "PaperRadius", "Plan", "bootstrap_radii", "convergence_bound", "explicit_rule"),
        *("failure_probabilities", "paper_rule", "shifted", "shifted_squared", "split_radii"),
    ),
    "bidro.core.sets": (*("ConvexSet",),),
    "bidro.federated.algorithm": (*("Algorithm", "Snapshot"),),
    "bidro.federated.algorithms": (*("BiDROLocal",),),
    "bidro.federated.baselines": (*("FDRSVM", "GroupDRO", "GroupDROBalls", "QFFL", "UnbalancedDRO"),),
    "bidro.federated.baselines.barycentre": (*("barycentre",),),
    "bidro.federated.contrib": (*("BiDROCompressed", "BiDROGossip", "EightBit", "MixtureBall", "TopK"),),
    "bidro.federated.engines.in_process": (*("run_many",),),
    "bidro.fit.network": (*("Network",),),
    "bidro.neural.folder": (*("LoadedNetwork",),),
    "bidro.neural.shift": (*("ShiftEstimate",),),
    "bidro.neural.training": (*("TrainedNetwork",),),
    "bidro.problem.client": (*("Client", "PenalisedRisk"),),
    "bidro.problem.worst_case": (
        *("WorstCase", "ball_bound", "implied_radii", "penalised_risk", "worst_case_mixture"),
    ),
    "bidro.risk.inner": (*("Inner", "InnerMax", "Oracle"),),
    "bidro.risk.transport": (*("wasserstein_distance",),),
    "bidro.selection.calibrate": (*("Calibration",),),
    "bidro.solvers.bundle.algorithm": (*("ExactMWDRO",),),
    "bidro.solvers.bundle.one_shot": (*("OneShotMWDRO",),),
}
_RENAMED = {
    "Usual": ("bidro", "BaseAlgorithm"),
    "certificate": ("bidro", "certify_solution"),
    "coverage": ("bidro.certify", "coverage_probability"),
    "held_out": ("bidro", "held_out_bound"),
    "plan": ("bidro", "plan_sample_size"),
}
_DEPRECATED = {name: (home, name) for home, names in _NO_LONGER_PUBLIC.items() for name in names} | _RENAMED

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name in _DEPRECATED:
        home, new = _DEPRECATED[name]
        sentence = f"`bidro.{name}` is deprecated; write `from {home} import {new}`."
        warnings.warn(sentence, FutureWarning, stacklevel=2)
        return getattr(importlib.import_module(home), new)
    if name not in _HOME:
        raise AttributeError(f"module 'bidro' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
