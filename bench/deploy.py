"""A federated run on this machine's loopback, over each engine: time to a certified model with 5 clients.

    python bench/deploy.py [flare] [flower]

Five processes share two cores here, so a round takes longer than on machines of their own. `wall_s` is from
the start of the run, on a network that is up, to the files in hand, `client_cpu_s` what the sites' processes
use meanwhile; `again` is a second run, which finds its programs compiled. There are two peers: the engine's
own hello-world with as many rounds on the same network (`hello_s`, and `times_hello`, the ratio of the second
run to it), and Algorithm 1 of the paper: `algorithm1_hours` extrapolates the median round of a short run to
10,000 rounds.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil

import hello
from bidro.deploy.agreement.agreement import Agreement
from bidro.deploy.agreement.job import Config, Sites
from bidro.deploy.transport.drive import engine, submit_and_wait
from bidro.deploy.transport.rehearsal import split_by_client
from bidro.fit.training import AlgorithmOne
from bidro.workflow.options import TableColumns

ROWS, FEATURES, CLIENTS = 400, 10, 5
ALGORITHM_1_ROUNDS = {"flare": 50, "flower": 4}


def table(path: Path) -> None:
    rng = np.random.default_rng(0)
    parts = []
    for i in range(CLIENTS):
        X = rng.normal(0.2 * i, 1.0, (ROWS, FEATURES))
        y = X @ (np.ones(FEATURES) + 0.1 * i) + rng.normal(size=ROWS)
        part = pd.DataFrame(X, columns=[f"x{j}" for j in range(FEATURES)])
        parts.append(part.assign(y=y, site=f"site-{i}"))
    pd.concat(parts).to_csv(path, index=False)


def client_seconds(net: Any) -> float:
    """Processor time of all clients' processes so far, those that have ended included."""
    total = 0.0
    for name, started in net.processes.items():
        if name == "server":
            continue
        root = psutil.Process(started.pid)
        for process in [root, *root.children(recursive=True)]:
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


@contextmanager
def network(name: str, folder: Path, agreed: Agreement | None = None) -> Iterator[tuple[Any, Sites]]:
    """A network that is up, of sites with the table's rows, and who they are."""
    folder.mkdir()
    sites = split_by_client(folder.parent / "all.csv", TableColumns(), folder / "sites", True, agreed)
    (folder / "runs").mkdir()
    tomls = {client: folder / "sites" / f"site-{k}.toml" for k, client in enumerate(sites.clients)}
    with engine(name, local=True).network(folder / "network", tomls, folder / "runs") as net:
        yield net, sites


def run(name: str, net: Any, sites: Sites, word: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(figures of a run, its audit)"""
    job = Config.read(None, word, sites).job
    before, began = client_seconds(net), time.perf_counter()
    audit = json.loads(submit_and_wait(job, name, net.settings, lambda _: None)["audit.json"])
    wall, used = time.perf_counter() - began, client_seconds(net) - before
    messages = sum(kind["messages"] for kind in audit["kinds"])
    figures = {
        "wall_s": round(wall, 1),
        "messages": messages,
        "client_cpu_s": round(used, 2),
        "client_cpu_s_per_message": round(used / messages, 3),
    }
    return figures, audit


def measured(name: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        table(folder / "all.csv")
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder / "compiled")
        if name == "flare":
            hello.allow_flares_classes()
        began = time.perf_counter()
        with network(name, folder / "exact") as (net, sites):
            up = time.perf_counter() - began
            first, audit = run(name, net, sites, "exact")
            second, _ = run(name, net, sites, "again")
            hello_world = getattr(hello, name)(net, CLIENTS, audit["rounds"])
        one = replace(sites.agreed, algorithm=AlgorithmOne(ALGORITHM_1_ROUNDS[name]))
        with network(name, folder / "one", one) as (net, sites):
            _, paper = run(name, net, sites, "one")
        sampled = next(k for k in paper["kinds"] if k["fewest_rows"] == 1)
        return {
            "network_up_s": round(up, 1),
            "first": first,
            "again": second,
            "hello_s": round(hello_world, 1),
            "times_hello": round(second["wall_s"] / hello_world, 2),
            "rounds": audit["rounds"],
            "bytes_up": sum(kind["bytes_up"] for kind in audit["kinds"]),
            "bytes_down": sum(kind["bytes_down"] for kind in audit["kinds"]),
            "algorithm1_s_per_round": sampled["seconds"],
            "algorithm1_hours": round(sampled["seconds"] * 10_000 / 3600, 2),
        }


if __name__ == "__main__":
    names = sys.argv[1:] or ["flare", "flower"]
    print(json.dumps({name: measured(name) for name in names}, indent=2))
