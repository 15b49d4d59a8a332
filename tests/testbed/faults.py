"""Kills a site, its job, the server's job, the server or the lead at random moments of a real run.

    python -m tests.testbed.faults --engine flare --times 20 [--kind site] [--seed 1]

prints, for every kind, how many runs were hit, how many of those finished by themselves and how many after
`--resume`, and how long the worst took. Every one must come to the bytes of an undisturbed run.
"""

import argparse
import functools
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from bidro.deploy.agreement.job import Job
from bidro.deploy.transport.drive import engine, submit_and_wait
from bidro.federated.engines.coordinator import Policy
from tests.deploy.sites import PAIR, SHORT, job
from tests.testbed.processes import Driven, consortium_of

KINDS = {
    "flare": ("site", "site's job", "server's job", "server", "lead"),
    "flower": ("site", "server's job", "server", "lead"),  # there a site is one process
}
_FILES = ("model.safetensors", "certificate.json")
_AWAY = 3.0  # seconds until a service starts again what died, at most
# What FLARE's client prints is kept from the terminal by taking it away, for all threads.
print = functools.partial(print, file=sys.__stdout__, flush=True)
_END = 400.0  # seconds in which every run must have come to its end


@dataclass
class Counts:
    runs: int = 0
    hit: int = 0  # were going on when something was killed
    by_itself: int = 0  # of those
    resumed: int = 0
    worst: float = 0.0  # seconds
    wrong: list[str] = field(default_factory=list)

    def __str__(self):
        good = f"{self.by_itself} finished by themselves, {self.resumed} after --resume"
        return (
            f"{self.runs} runs, {self.hit} hit: {good}, {len(self.wrong)} wrong; at most {self.worst:.0f} s"
        )


def strike(net, kind, away):
    """Kill this, and start again what a service would start again."""
    if kind == "site":
        net.kill_client(PAIR[0])
        time.sleep(away)
        net.restart_client(PAIR[0])
    elif kind == "site's job":
        net.kill_client_job(PAIR[0])
    elif kind == "server's job":
        net.kill_server_job()
    else:
        net.kill_server()
        time.sleep(away)
        net.restart_server()


def disturbed(name, made, kind, run, at, away):
    """(whether it was hit, whether it had to be resumed, the files or what went wrong)."""
    _, agreed, net, _ = made
    # On Flower a question to a site that died is lost, and asked again when the time is over.
    what = job(agreed, run, PAIR, options=SHORT, policy=Policy(timeout=10.0, patience=300.0))
    if kind == "lead":
        order = {"engine": name, "job": what.to_text(), "settings": net.settings}
        lead = subprocess.Popen([sys.executable, "-m", "tests.testbed.faults", "--lead", json.dumps(order)])
        time.sleep(at)
        hit = lead.poll() is None
        lead.kill()
        lead.wait()
        ends = Driven(name, replace(what, resume=True), net.settings).outcome(_END)
        return hit, True, ends.files or ends.error
    ends = Driven(name, what, net.settings)
    ends.start()
    ends.join(at)
    hit = ends.is_alive()
    strike(net, kind, away)
    ends.outcome(_END)
    if ends.error is None:
        return hit, False, ends.files
    first = ends.error
    ends = Driven(name, replace(what, resume=True), net.settings).outcome(_END)
    return hit, True, ends.files or f"{first}; then {ends.error}"


def counted(name, made, kind, times, seed):
    """Runs that are disturbed at moments drawn evenly from the time that a run takes."""
    rng, counts = np.random.default_rng([seed, KINDS[name].index(kind)]), Counts()
    _, agreed, net, _ = made
    began = time.monotonic()
    slug = f"{kind.replace(' ', '-').replace(chr(39), '')}-{seed}"
    whole = Driven(name, job(agreed, f"{slug}-whole", PAIR, options=SHORT), net.settings).outcome(_END)
    assert whole.error is None, whole.error
    # A lead of its own takes longer to begin.
    length = time.monotonic() - began + (3.0 if kind == "lead" else 0.0)
    for k in range(times):
        at, away = rng.uniform(0.0, length), rng.uniform(0.0, _AWAY)
        began = time.monotonic()
        hit, resumed, found = disturbed(name, made, kind, f"{slug}-{k}", at, away)
        seconds = time.monotonic() - began
        counts.runs += 1
        counts.hit += hit
        counts.worst = max(counts.worst, seconds)
        right = isinstance(found, dict) and all(found[file] == whole.files[file] for file in _FILES)
        if not right:
            counts.wrong.append(f"{kind} at {at:.2f} of {length:.2f} s: {found if found else 'other bytes'}")
        elif hit:
            counts.resumed += resumed
            counts.by_itself += not resumed
        print(f"  {kind} {k}: at {at:.1f} of {length:.1f} s, {seconds:.0f} s, {'right' if right else found}")
    print(f"{name}, {kind} killed: {counts}")
    return counts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", default="flare")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lead", help="be the lead of one run, as JSON describes it")
    given = parser.parse_args()
    if given.lead:
        order = json.loads(given.lead)
        submit_and_wait(Job.from_text(order["job"]), order["engine"], order["settings"], lambda line: None)
        return
    kinds = [given.kind] if given.kind else KINDS[given.engine]
    wrong = []
    local = engine(given.engine, local=True)
    with tempfile.TemporaryDirectory() as scratch, consortium_of(local, Path(scratch), PAIR) as made:
        for kind in kinds:
            wrong += counted(given.engine, made, kind, given.times, given.seed).wrong
    for line in wrong:
        print(f"WRONG: {line}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
