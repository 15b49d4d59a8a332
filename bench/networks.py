"""Networks: rounds a second against a bare PyTorch loop and Flower's simulation, and accuracies. Prints JSON.

    python bench/networks.py [--flower PYTHON] [--only speed|accuracy]

`speed`: FedAvg on scikit-learn's digits dealt to 10 clients, a CNN of 1,898 parameters in float32, 5 local
steps of 32 rows a round. The bare loop copies the global weights into one module client after client, takes
the same steps by torch.optim.SGD, and averages. Both run in one process, in turns, with one thread of
PyTorch's, and in another with one a core, of which the faster counts; figures are medians, after one run to
compile. Flower's simulation has a process of one thread a core. `--flower` is a Python that has torch and
flwr[simulation]: its rounds are timed between the server's evaluations, so that starting up does not count.
Where other programs run beside, seconds say little of many processes against one: the seconds of the
processor, of all of them, are there too.

`accuracy`: digits rotated by 0, 20, -20, 40 and -40 degrees at clients of 400, 200, 100, 60 and 40 rows; an
MLP of 2,410 parameters in float32, 200 rounds of 3 local steps of 32 rows for every algorithm (AFL has one a
round), each with the same five step sizes, of which the one with the lowest loss of the worst client on
validation rows is taken. Mean and worst-client accuracy on 100 test rows a client, by seed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

import numpy as np
import torch
from scipy.ndimage import rotate
from sklearn.datasets import load_digits
from torch import nn

from bidro import (
    AFL,
    DRFA,
    FedAvg,
    Federation,
    FixedStepAscent,
    Penalty,
    Problem,
    TorchLoss,
    Transport,
    WholeSpace,
    run,
)
from bidro.federated.algorithms import BiDROLocal
from bidro.federated.baselines import QFFL
from bidro.losses import losses_of, mistakes_of

CLIENTS, STEPS, BATCH, RATE = 10, 5, 32, 0.05
ANGLES, SIZES = (0, 20, -20, 40, -40), (400, 200, 100, 60, 40)
VALIDATION, TEST = 30, 100
ETAS, SEEDS, ROUNDS = (0.05, 0.15, 0.5, 1.5, 5.0), 5, 200

# The same training by Flower's simulation, run by another Python.
FLOWER = """
import glob, json, os, sys, time
import numpy as np, torch
from torch import nn
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation

clients, steps, batch, rate, rounds = json.loads(sys.argv[1])
data = np.load(sys.argv[2])
torch.set_num_threads(1)

def make():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10))

class Client(NumPyClient):
    def __init__(self, k):
        rows = data[k::clients]
        self.X = torch.from_numpy(rows[:, :-1].astype("float32"))
        self.y = torch.from_numpy(rows[:, -1].astype("int64"))
    def fit(self, parameters, config):
        module = make()
        with torch.no_grad():
            for own, new in zip(module.parameters(), parameters):
                own.copy_(torch.from_numpy(np.array(new)))
        optimiser = torch.optim.SGD(module.parameters(), lr=rate)
        for _ in range(steps):
            some = torch.randperm(len(self.X))[:batch]
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(self.X[some]), self.y[some]).backward()
            optimiser.step()
        return [p.detach().numpy() for p in module.parameters()], len(self.X), {}

def client_fn(context: Context):
    return Client(int(context.node_config["partition-id"])).to_client()

def of_this_tree():
    # Processor seconds of this process and all that it has started.
    parents, spent = {}, {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            text = open(path).read()
        except OSError:
            continue
        fields = text[text.rindex(")") + 2:].split()
        pid = int(path.split("/")[2])
        parents[pid], spent[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
    def ours(pid):
        while pid in parents and pid != os.getpid():
            pid = parents[pid]
        return pid == os.getpid()
    return sum(own for pid, own in spent.items() if ours(pid)) / os.sysconf("SC_CLK_TCK")

times = []
def evaluate(server_round, parameters, config):
    times.append((time.perf_counter(), of_this_tree()))
    return 0.0, {}

def server_fn(context: Context):
    first = ndarrays_to_parameters([p.detach().numpy() for p in make().parameters()])
    strategy = FedAvg(fraction_fit=1.0, fraction_evaluate=0.0, min_available_clients=clients,
                      initial_parameters=first, evaluate_fn=evaluate)
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=rounds))

run_simulation(ServerApp(server_fn=server_fn), ClientApp(client_fn=client_fn), num_supernodes=clients,
               backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})
print("SECONDS", json.dumps(np.diff(times, axis=0).tolist()))
"""


def cnn() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def digits() -> np.ndarray:
    X, y = load_digits(return_X_y=True)
    return np.column_stack([X / 16.0, y])


def bare_rounds(module: nn.Module, parts: list[tuple[torch.Tensor, torch.Tensor]], rounds: int) -> None:
    sizes = torch.tensor([float(len(X)) for X, _ in parts])
    shares = sizes / sizes.sum()
    current = [p.detach().clone() for p in module.parameters()]
    optimiser = torch.optim.SGD(module.parameters(), lr=RATE)
    for _ in range(rounds):
        total = [torch.zeros_like(p) for p in current]
        for share, (X, y) in zip(shares, parts, strict=True):
            with torch.no_grad():
                for own, new in zip(module.parameters(), current, strict=True):
                    own.copy_(new)
            for _ in range(STEPS):
                some = torch.randperm(len(X))[:BATCH]
                optimiser.zero_grad()
                nn.functional.cross_entropy(module(X[some]), y[some]).backward()
                optimiser.step()
            with torch.no_grad():
                for own, new in zip(total, module.parameters(), strict=True):
                    own += share * new
        current = total


def rounds_of(threads: int) -> dict[str, object]:
    """Ours and the bare loop in turns, with so many threads of PyTorch's."""
    torch.set_num_threads(threads)
    rows, rounds = digits(), 40
    loss = TorchLoss(cnn(), "cross entropy", classes=10, dtype="float32")
    clients = {f"client-{k}": rows[k::CLIENTS] for k in range(CLIENTS)}
    dimension = loss.dimension(65)
    problem = Problem(
        Federation.from_arrays(clients, "unbounded"),
        loss,
        WholeSpace(dimension),
        Transport.classification(65),
    )
    algorithm = FedAvg(eta_x=RATE, local_steps=STEPS, batch=BATCH)
    parts = [
        (torch.from_numpy(own[:, :-1].astype(np.float32)), torch.from_numpy(own[:, -1].astype(np.int64)))
        for own in clients.values()
    ]
    module = cnn()
    works = {
        "ours": lambda: run(algorithm, problem, rounds),
        "bare_pytorch": lambda: bare_rounds(module, parts, rounds),
    }
    start = time.perf_counter()
    works["ours"]()
    compiled = time.perf_counter() - start
    works["bare_pytorch"]()
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for _ in range(7):
        for name, work in works.items():
            start, spent = time.perf_counter(), time.process_time()
            work()
            seconds[name].append((time.perf_counter() - start, time.process_time() - spent))
    medians = {name: (np.median(own, axis=0) / rounds).tolist() for name, own in seconds.items()}
    return {"parameters": dimension, "compiled": compiled, "medians": medians}


def speed(flower: str | None) -> dict[str, object]:
    by_threads = {}
    for threads in sorted({1, os.cpu_count() or 1}):
        command = [sys.executable, __file__, "--threads", str(threads)]
        here = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        done = subprocess.run(command, env=here, capture_output=True, text=True, check=True)
        by_threads[threads] = json.loads(done.stdout)
    fastest = {
        name: min(by_threads, key=lambda threads: by_threads[threads]["medians"][name][0])
        for name in ("ours", "bare_pytorch")
    }
    medians = {name: by_threads[threads]["medians"][name] for name, threads in fastest.items()}
    a_round = {name: own[0] for name, own in medians.items()}
    spent_a_round = {name: own[1] for name, own in medians.items()}
    found: dict[str, object] = {
        "parameters": by_threads[1]["parameters"],
        "first_run_with_compilation_seconds": by_threads[fastest["ours"]]["compiled"],
        "rounds_a_second": {name: 1 / own for name, own in a_round.items()},
        "threads": fastest,
        "bare_over_ours": a_round["bare_pytorch"] / a_round["ours"],
        "processor_seconds_a_round": spent_a_round,
        "load_of_the_machine": os.getloadavg()[0],
    }
    if flower is None:
        found["flower"] = "not run: give --flower a Python that has torch and flwr[simulation]"
        return found
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".npy") as file:
        np.save(file.name, digits())
        settings = json.dumps([CLIENTS, STEPS, BATCH, RATE, 8])
        done = subprocess.run(
            [flower, "-c", FLOWER, settings, file.name], capture_output=True, text=True, timeout=400
        )
    line = next((one for one in done.stdout.splitlines() if one.startswith("SECONDS")), None)
    if line is None:
        found["flower"] = f"failed: {done.stderr.strip().splitlines()[-1:]}"
        return found
    # The first two rounds start Ray's workers.
    median, spent_by_flower = np.median(json.loads(line.removeprefix("SECONDS"))[2:], axis=0).tolist()
    found["flower"] = {
        "rounds_a_second": 1 / median,
        "ours_over_flower": median / a_round["ours"],
        "processor_seconds_a_round": spent_by_flower,
        "processor_flower_over_ours": spent_by_flower / spent_a_round["ours"],
    }
    return found


def rotated(seed: int) -> tuple[dict[str, np.ndarray], ...]:
    """(training, validation, test) rows by client."""
    rng = np.random.default_rng(seed)
    X, y = load_digits(return_X_y=True)
    order = rng.permutation(len(X))
    parts: tuple[dict[str, np.ndarray], ...] = ({}, {}, {})
    begin = 0
    for angle, size in zip(ANGLES, SIZES, strict=True):
        own = order[begin : begin + size + VALIDATION + TEST]
        begin += len(own)
        images = rotate(X[own].reshape(-1, 8, 8) / 16.0, angle, axes=(2, 1), reshape=False, order=1)
        rows = np.column_stack([images.reshape(len(own), -1), y[own]])
        for part, some in zip(parts, np.split(rows, [size, size + VALIDATION]), strict=True):
            part[f"{angle} degrees"] = some
    return parts


def accuracy() -> dict[str, object]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    loss = TorchLoss(network, "cross entropy", classes=10, dtype="float32")
    ascent = FixedStepAscent(steps=5, step_size=0.05, perturbation=0.0)
    several = {"local_steps": 3, "batch": 32}
    methods = {
        "FedAvg": lambda eta: FedAvg(eta_x=eta, **several),
        "AFL": lambda eta: AFL(eta_x=eta, eta_alpha=0.02, batch=32),
        "DRFA": lambda eta: DRFA(eta_x=eta, eta_alpha=0.02, sampled=3, **several),
        "q-FFL": lambda eta: QFFL(q=1.0, eta_x=eta, **several),
        "BiDRO-FL local": lambda eta: BiDROLocal(eta_x=eta, eta_alpha=0.02, oracle=ascent, **several),
    }
    found: dict[str, dict[str, list[float]]] = {
        name: {"mean": [], "worst": [], "eta_x": []} for name in methods
    }
    for seed in range(SEEDS):
        training, validation, test = rotated(seed)
        federation = Federation.from_arrays(training, "unbounded")
        problem = Problem(
            federation, loss, WholeSpace(loss.dimension(65)), Transport.classification(65), Penalty(2.0)
        )
        for name, method in methods.items():
            models = {eta: run(method(eta), problem, ROUNDS, seed=seed).x for eta in ETAS}
            worst = {
                eta: max(losses_of(loss, x, rows).mean() for rows in validation.values())
                for eta, x in models.items()
            }
            eta = min(worst, key=lambda one: worst[one])
            right = [1 - mistakes_of(loss, models[eta], rows).mean() for rows in test.values()]
            for key, value in (("mean", np.mean(right)), ("worst", min(right)), ("eta_x", eta)):
                found[name][key].append(round(float(value), 4))
        now = {name: (own["mean"][-1], own["worst"][-1]) for name, own in found.items()}
        print(f"seed {seed}: mean and worst {now}", file=sys.stderr, flush=True)
    return {
        name: {
            **own,
            "mean_over_seeds": float(np.mean(own["mean"])),
            "worst_over_seeds": float(np.mean(own["worst"])),
        }
        for name, own in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--flower")
    parser.add_argument("--only", choices=("speed", "accuracy"))
    parser.add_argument("--threads", type=int, help="only ours and the bare loop, with so many threads")
    asked = parser.parse_args()
    if asked.threads is not None:
        print(json.dumps(rounds_of(asked.threads)))
        return
    found = {}
    if asked.only != "accuracy":
        found["speed"] = speed(asked.flower)
    if asked.only != "speed":
        found["accuracy"] = accuracy()
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
