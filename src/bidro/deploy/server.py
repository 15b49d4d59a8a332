"""The server's side of a deployed run: one function from a job and a carrier to the files of a model folder.

Everything that a run has received is kept under its name in the folder that `BIDRO_RUNS` names, until the run
is done; then what the sites sent is deleted, and the result and its audit are kept.
"""

from __future__ import annotations

import fcntl
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from bidro.deploy.audit import audit_of
from bidro.deploy.job import Job
from bidro.deploy.progress import RunProgress
from bidro.deploy.site_network import federated_fit
from bidro.engines.carrier import Carrier
from bidro.engines.compiled import compilation_cache
from bidro.engines.coordinator import ClientsGoneError, Coordinator, Policy
from bidro.engines.record import Record
from bidro.engines.solve import GapNotReachedWarning
from bidro.errors import BidroError
from bidro.problem import NonconcaveInnerWarning, UncheckedDomainWarning
from bidro.workflow.fit import write_folder
from bidro.workflow.folder import folder_files

# The environment variable with the folder of the server's runs.
VARIABLE = "BIDRO_RUNS"
ERROR_FILE, AGAIN_FILE = "error.txt", "again.txt"
_RECORD, _JOB, _RESULT = "record", "job.json", "result"


def serve(job: str, carrier: Carrier) -> dict[str, bytes]:
    """The files of the model folder; or `error.txt`, with one sentence, where there is none; or `again.txt`
    where the same job is to be submitted again, to be resumed, when all clients are back."""
    compilation_cache()
    try:
        runs = os.environ.get(VARIABLE)
        if runs is None:
            raise BidroError(
                f"On the server, the environment variable {VARIABLE} must name a folder for runs."
            )
        return run_job(Job.from_text(job), carrier, Path(runs))
    except ClientsGoneError as error:
        return {AGAIN_FILE: str(error).encode()}
    except BidroError as error:
        return {ERROR_FILE: str(error).encode()}


def run_job(job: Job, carrier: Carrier, runs: Path) -> dict[str, bytes]:
    """Run the job, or go on with it. Raises BidroError where it cannot be run to its end."""
    folder = runs / job.run
    with _locked(folder, job.run):
        result = _begun(folder, job)
        if result is not None:
            return result
        progress = RunProgress(folder)
        with Record(folder / _RECORD) as record, warnings.catch_warnings():
            for kind in (GapNotReachedWarning, NonconcaveInnerWarning, UncheckedDomainWarning):
                warnings.simplefilter("ignore", kind)
            coordinator = Coordinator(job.run, carrier, record, job.policy, progress.say, progress.round)
            began = datetime.fromtimestamp((folder / _JOB).stat().st_mtime, UTC).date()
            try:
                done = federated_fit(job, coordinator, began.isoformat(), progress.solved_to)
            except BaseException:
                progress.ended("stopped")
                raise
            files = {**folder_files(done), "audit.json": audit_of(job.run, record.heads, done.influence)}
        write_folder(folder / _RESULT, files)
        (folder / _RECORD).unlink()
        progress.ended("done")
        return _read(folder / _RESULT)


def _begun(folder: Path, job: Job) -> dict[str, bytes] | None:
    """Begin the run or find it begun; its result, if it is done."""
    # What to do about lost clients may be another when a run goes on.
    path, text = folder / _JOB, replace(job, resume=False, policy=Policy()).to_text()
    if job.resume:
        if not path.exists():
            raise BidroError(f"There is no run '{job.run}' on the server to resume.")
        if path.read_text() != text:
            raise BidroError(f"Run '{job.run}' was begun with other settings or another schema; use these.")
        if not (folder / _RESULT).exists():
            return None
        (folder / _RECORD).unlink(missing_ok=True)
        return _read(folder / _RESULT)
    if path.exists():
        raise BidroError(f"There is a run '{job.run}' on the server already; add --resume, or name another.")
    fresh = folder / f".{_JOB}.new"
    fresh.write_text(text)
    os.replace(fresh, path)
    return None


def _read(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@contextmanager
def _locked(folder: Path, run: str) -> Iterator[None]:
    """One process at a time works on a run; the lock goes with the process."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise BidroError(f"Run '{run}' is going on at this moment; wait for it, or stop it.") from error
        yield
