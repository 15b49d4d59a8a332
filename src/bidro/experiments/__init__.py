"""The paper's simulation and the studies built on it."""
