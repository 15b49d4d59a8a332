"""Shared by all tests."""

import contextlib
import os
import random
import secrets
from pathlib import Path

import pytest

from tests import durations

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


def pytest_addoption(parser):
    parser.addoption(
        "--record-durations", action="store_true", help="rewrite tests/durations.json by what this run takes"
    )


def pytest_configure(config):
    # Here and not in pyproject.toml, where naming the warning would import JAX before the settings above.
    config.addinivalue_line("filterwarnings", "error::bidro.ambiguity.NonconcaveInnerWarning")
    if config.getoption("--record-durations"):
        config.pluginmanager.register(durations.Recorder(config))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """What was recorded as long is slow (see `durations`)."""
    found, known = {item.nodeid: item for item in items}, durations.recorded()
    slow = set(found) & set(known)
    if not any("::" in one for one in config.args):
        marked = {name for name, item in found.items() if item.get_closest_marker("slow")}
        slow = durations.left_out(list(found), marked, known)
    for name in slow:
        found[name].add_marker(pytest.mark.slow)


@contextlib.contextmanager
def _secrets_of(name):
    """Keys and noise that this process draws from the operating system follow from a test's name instead, so
    that what passes once passes always."""
    drawn = random.Random(name)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(secrets, "token_bytes", lambda count=32: drawn.randbytes(count))
        patched.setattr(secrets, "randbits", drawn.getrandbits)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    with _secrets_of(item.nodeid):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    with _secrets_of(f"{request.node.nodeid} {fixturedef.argname}"):
        return (yield)
