"""Shared by all tests."""

import os
from pathlib import Path

import pytest

# Tests compile far more than they compute, so programs are neither optimised nor fused by XLA's own emitters
# nor cut in parts that threads compile, which halves the time of a large program. The machine has two cores
# and two test workers: one thread each keeps timings and memory calm.
_FLAGS = (
    "--xla_cpu_multi_thread_eigen=false",
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)
os.environ.setdefault("XLA_FLAGS", " ".join(_FLAGS))
# The same for BLAS and OpenMP: on small matrices, and with more threads than cores, several threads take more
# processor time than one.
for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")
# What one process has compiled, others (workers, commands, sites of a network) and the next run find again.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "compiled")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "0")


def pytest_configure(config):
    # Here and not in pyproject.toml, where naming the warning would import JAX before the settings above.
    config.addinivalue_line("filterwarnings", "error::bidro.problem.NonconcaveInnerWarning")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """What long_cases.txt names is slow; every file keeps something that is not."""
    long = set(Path(__file__).with_name("long_cases.txt").read_text().splitlines())
    found = {item.nodeid: item for item in items}
    for name in long & set(found):
        found[name].add_marker(pytest.mark.slow)
    if any("::" in one for one in config.args):
        return
    files = {name.split("::")[0] for name in found}
    gone = sorted(name for name in long - set(found) if name.split("::")[0] in files)
    quick = {name.split("::")[0] for name, item in found.items() if not item.get_closest_marker("slow")}
    alone = sorted({name.split("::")[0] for name in long & set(found)} - quick)
    if gone or alone:
        raise pytest.UsageError(
            f"tests/long_cases.txt names tests that there are not: {gone}, or all of a file: {alone}"
        )
