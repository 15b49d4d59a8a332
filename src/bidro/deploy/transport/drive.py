"""A run on a network, from outside of it: submit the job, wait, and check what comes back. The network may
break for a while."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any, TypeVar

from bidro.certify.intervals import FILE as INTERVALS
from bidro.core.errors import BidroError, one_line, require_package
from bidro.deploy.agreement.job import Job
from bidro.deploy.server.check import VERDICTS
from bidro.deploy.server.serve import AGAIN_FILE, ERROR_FILE
from bidro.model.model_file import NETWORK_FILE
from bidro.workflow.describe import CSV_FILE, JSON_FILE, PAGE_FILE

T = TypeVar("T")

_FIRST, _LONGEST = 0.5, 15.0  # seconds between two attempts: twice as long each time


class BrokenError(BidroError):
    """The other side cannot be reached now; it may be later."""


class LostJobError(BidroError):
    """A job has ended without a result, by what happened around it; the run can go on in another."""


class Persistent:
    """Makes a call that fails by the network again, ever more seldom, for up to `patience` seconds.

    Only once a call has succeeded: before that, an address or a key is wrong more often than a network is
    broken.
    """

    def __init__(self, patience: float, say: Callable[[str], None]) -> None:
        self._patience = patience
        self._say = say
        self._reached = False

    def __call__(self, call: Callable[[], T]) -> T:
        """What the call returns. Raises BrokenError when the patience has ended, and what else it raises."""
        began, pause = time.monotonic(), _FIRST
        while True:
            try:
                found = call()
            except BrokenError as error:
                if not self._reached or time.monotonic() + pause - began > self._patience:
                    raise
                self._say(f"{error}; trying again in {pause:g} s")
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST)
            else:
                self._reached = True
                return found


# The module of each engine's package.
_MODULES = {"flare": "nvflare", "flower": "flwr"}
ENGINES = tuple(_MODULES)
_LOST = 5  # jobs that are lost in turn, and without a word from the server, before the run is given up
_MOST_SHOWN = 600  # characters that a client's reason has, at most
_CALM = 600.0  # seconds; a job that went well for so long was not lost by what lost the one before
# What a server may return: the files of a model folder, and the audit.
_FILES = {
    "model.safetensors",
    "certificate.json",
    "report.html",
    "report.json",
    "run.toml",
    "audit.json",
}
# And of a run that certifies a model from elsewhere.
_CERTIFIED = {"certificate.json", "report.html", "report.json", "audit.json"}
# And of one that trains a network: these, what is stated of it, and ONNX where the network allows it.
_NETWORK = {NETWORK_FILE, "audit.json"}


def require_engine(name: str) -> None:
    """Raise BidroError for a word that is no engine, and where the engine's package is not installed."""
    if name not in ENGINES:
        raise BidroError(f"The engine is {' or '.join(ENGINES)}; got '{name}'.")
    require_package(_MODULES[name], name, f"The engine '{name}'")


def engine(name: str, local: bool = False) -> ModuleType:
    """The module that drives runs on this network, or makes a network on this machine.

    Raises BidroError where the engine's package is not installed.
    """
    require_engine(name)
    try:
        return importlib.import_module(f"bidro.deploy.transport.{name}.{'local' if local else 'drive'}")
    except ImportError as error:
        raise BidroError(
            f"The engine '{name}' needs packages that are not installed ({error}); install bidro[{name}]."
        ) from error


def submit_and_wait(
    job: Job, name: str, settings: Mapping[str, Any], say: Callable[[str], None]
) -> dict[str, bytes]:
    """The files that a run on a network leaves. Raises BidroError where it leaves none.

    A job that is lost, because a site, the server or its job died, is followed by another, in which the run
    goes on, for up to the policy's patience.
    """
    policy = job.policy
    how = {
        "clients": list(job.clients),
        "run": job.run,
        "on_client_loss": policy.on_client_loss,
        "patience": policy.patience,
    }
    persistent = Persistent(policy.patience, say)
    since, lost = time.monotonic(), 0
    while True:
        began = time.monotonic()
        try:
            way = {**how, "resume": job.resume, "jobs_lost": lost, **settings}
            files = engine(name).drive(job.to_text(), way, say, persistent)
        except LostJobError as error:
            why, lost = str(error), lost + 1
        else:
            if AGAIN_FILE not in files:
                break
            why = one_line(files[AGAIN_FILE].decode(errors="replace"))
        if time.monotonic() - began > _CALM:
            since, lost = time.monotonic(), 0
        if time.monotonic() - since > policy.patience or lost == _LOST:
            raise BidroError(f"{why}; what was received is kept: go on with --resume.")
        say(f"{why}; it goes on in another job")
        job = replace(job, resume=True)
    if ERROR_FILE in files:
        # It may name every client, with a sentence each.
        most = _MOST_SHOWN * (1 + len(job.clients))
        raise BidroError(one_line(files[ERROR_FILE].decode(errors="replace"), most))
    expected, more = files_of(job)
    if odd := sorted((expected - set(files)) | (set(files) - expected - more)):
        raise BidroError(
            f"The server returned other files than such a run leaves: '{one_line(odd[0])}'; run it again."
        )
    return dict(files)


def files_of(job: Job) -> tuple[set[str], set[str]]:
    """(the files that a run leaves, those that it may leave besides)."""
    if job.check:
        return {VERDICTS}, set()
    if job.describe:
        return {CSV_FILE, PAGE_FILE, JSON_FILE, "audit.json"}, set()
    if job.certify is not None:
        return _CERTIFIED, set()
    if job.agreed.neural_network is None:
        return _FILES, {INTERVALS}
    held_out = _CERTIFIED if job.agreed.options.hold_out > 0 else set()
    return _NETWORK | held_out, {"model.onnx"}
