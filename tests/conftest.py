"""Shared by all tests."""

import os
from pathlib import Path

# The machine has two cores and two test workers: one thread each keeps timings and memory calm. Tests compile
# far more than they compute, so programs are not optimised, and what one process has compiled the others, and
# the next run, find again.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false --xla_backend_optimization_level=0")
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "compiled")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "0")


def pytest_configure(config):
    # Here and not in pyproject.toml, where naming the warning would import JAX before the settings above.
    config.addinivalue_line("filterwarnings", "error::bidro.problem.NonconcaveInnerWarning")
