"""The contract does not know its engine: every client in its own process gives the same model."""

import struct
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from bidro.engines.in_process import run
from bidro.engines.wire import pack, unpack
from tests.engines.client_process import ALGORITHMS
from tests.small import paper_like, rows

RHO = (15.0, 5.0, 2.5)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_clients_in_processes_of_their_own_give_the_same_model(name, tmp_path):
    algorithm, problem = ALGORITHMS[name], paper_like(RHO)
    processes = []
    for (client, data), rho in zip(rows().items(), RHO, strict=True):
        path = tmp_path / f"{client}.safetensors"
        save_file({"rows": data}, path)
        command = [sys.executable, "-m", "tests.engines.client_process", client, name, str(rho), path]
        root = Path(__file__).parents[2]
        processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root))
    try:
        state = algorithm.init(problem)
        for t in range(1, 5):
            message = pack(algorithm.broadcast(state))
            for process in processes:
                process.stdin.write(struct.pack("<II", t, len(message)) + message)
                process.stdin.flush()
            replies = []
            for process in processes:
                (length,) = struct.unpack("<I", process.stdout.read(4))
                replies.append(unpack(process.stdout.read(length), algorithm.reply_type))
            stacked = jax.tree.map(lambda *v: jnp.stack(v), *replies)
            state = algorithm.server(state, stacked, jnp.ones(3, bool))
    finally:
        for process in processes:
            process.stdin.close()
            process.wait(timeout=30)
    expected = run(algorithm, problem, 4, seed=9)
    np.testing.assert_allclose(algorithm.snapshot(state).x, expected.x, rtol=0, atol=1e-10)
    np.testing.assert_allclose(algorithm.snapshot(state).alpha, expected.alpha, rtol=0, atol=1e-10)
    np.testing.assert_allclose(algorithm.snapshot(state).x_average, expected.x_average, atol=1e-10)
