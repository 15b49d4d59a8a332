"""Minimax solvers over a `RiskOracle`."""
