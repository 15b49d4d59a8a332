"""Train one model from several private data sources, robust to any mix of them.

The public names below are loaded on first use, so that `import bidro` and `bidro --help` stay fast.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

__version__ = "0.1.0"

# Duality gaps of 1e-8 are reported, so all arithmetic is in float64. JAX reads the variable when it
# is first imported; if the user imported it before us, its configuration is changed instead.
os.environ["JAX_ENABLE_X64"] = "true"
if "jax" in sys.modules:
    sys.modules["jax"].config.update("jax_enable_x64", True)

_HOME = {
    "Ball": "sets",
    "Box": "sets",
    "CappedSimplex": "sets",
    "L1SimplexBall": "sets",
    "Simplex": "sets",
    "WholeSpace": "sets",
    "Absolute": "losses",
    "CustomLoss": "losses",
    "Hinge": "losses",
    "Huber": "losses",
    "Logistic": "losses",
    "Pinball": "losses",
    "SmoothedHinge": "losses",
    "Softmax": "losses",
    "Squared": "losses",
    "Transport": "transport",
    "wasserstein_distance": "transport",
    "Federation": "federation",
    "BacktrackingAscent": "worst_case",
    "Exact": "worst_case",
    "FixedStepAscent": "worst_case",
    "Penalty": "client",
    "Problem": "problem",
    "WassersteinBall": "client",
    "AFL": "algorithms",
    "BiDROFL": "algorithms",
    "FedAvg": "algorithms",
    "BiDROCompressed": "algorithms",
    "BiDROGossip": "algorithms",
    "BiDROLocal": "algorithms",
    "DRFA": "algorithms",
    "EightBit": "algorithms",
    "FDRSVM": "algorithms",
    "GroupDRO": "algorithms",
    "GroupDROBalls": "algorithms",
    "MixtureBall": "algorithms",
    "QFFL": "algorithms",
    "TopK": "algorithms",
    "UnbalancedDRO": "algorithms",
    "barycentre": "algorithms.barycentre",
    "ExactMWDRO": "algorithms",
    "OneShotMWDRO": "algorithms",
    "run": "engines.in_process",
    "run_many": "engines.in_process",
    "Solution": "engines.solve",
    "solve": "engines.solve",
    "ball_bound": "guarantees",
    "bootstrap_radii": "guarantees",
    "calibrate": "guarantees",
    "Certificate": "guarantees",
    "certificate": "guarantees",
    "certify": "guarantees",
    "coverage": "guarantees",
    "explicit_rule": "guarantees",
    "held_out": "guarantees",
    "paper_rule": "guarantees",
    "plan": "guarantees",
    "risks_for": "guarantees",
    "shifted": "guarantees",
    "shifted_squared": "guarantees",
    "split_radii": "guarantees",
    "worst_decile": "guarantees",
    "convergence_bound": "guarantees",
    "implied_radii": "guarantees",
    "penalised_risk": "guarantees",
    "robust_risk": "guarantees",
    "worst_case_distribution": "guarantees",
    "worst_case_mixture": "guarantees",
    "RobustClassifier": "estimators",
    "RobustRegressor": "estimators",
    "example_visits": "workflow.example",
    "BidroError": "errors",
}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'bidro' has no attribute {name!r}")
    return getattr(importlib.import_module(f"bidro.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
