"""Shared by all tests."""

import os

# The machine has two cores and two test workers: one thread each keeps timings and memory calm.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
