"""Differential privacy: what is released of rows, with which noise, and what it has cost so far."""
