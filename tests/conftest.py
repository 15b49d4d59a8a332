"""Shared by all tests."""

import os

# The machine has two cores and two test workers: one thread each keeps timings and memory calm. Tests compile
# far more than they compute, so programs are not optimised.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false --xla_backend_optimization_level=0")
