"""The server's side of a deployed run: one function from a job and a carrier to the files of a model folder.

Everything that a run has received is kept in its folder (`runs`) until the run is done; then what the sites
sent is deleted, and the result and its audit are kept.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bidro.ambiguity import NonconcaveInnerWarning, UncheckedDomainWarning
from bidro.core.errors import BidroError
from bidro.core.pytrees import compilation_cache
from bidro.deploy.agreement.job import Job
from bidro.deploy.server.audit import audit_content, audit_of
from bidro.deploy.server.certified import federated_network, federated_scores
from bidro.deploy.server.check import verdicts_of
from bidro.deploy.server.describe import federated_table
from bidro.deploy.server.fit import federated_fit
from bidro.deploy.server.runs import (
    RECORD,
    Begun,
    RunProgress,
    begin,
    done,
    expire,
    failed,
    locked,
    result_folder,
    runs_folder,
)
from bidro.federated.engines.coordinator import Carrier, ClientsGoneError, Coordinator
from bidro.federated.engines.record import Record
from bidro.solvers.solve import GapNotReachedWarning
from bidro.workflow.folder import folder_files, write_folder

ERROR_FILE, AGAIN_FILE = "error.txt", "again.txt"


def serve(job: str, carrier: Carrier) -> dict[str, bytes]:
    """The files of the model folder; or `error.txt`, with one sentence, where there is none; or `again.txt`
    where the same job is to be submitted again, to be resumed, when all clients are back."""
    compilation_cache()
    try:
        runs = runs_folder()
        expire(runs)
        return run_job(Job.from_text(job), carrier, runs)
    except ClientsGoneError as error:
        return {AGAIN_FILE: str(error).encode()}
    except BidroError as error:
        return {ERROR_FILE: str(error).encode()}


def leave_files(job: str, carrier: Carrier, folder: Path) -> None:
    """Serve a job and leave its files in a folder that is not there before they all are."""
    os.umask(0o077)  # what the sites send, and the model, are the owner's
    files, partial = serve(job, carrier), folder.with_suffix(".part")
    partial.mkdir(parents=True)
    for name, content in files.items():
        (partial / name).write_bytes(content)
    partial.rename(folder)


def run_job(job: Job, carrier: Carrier, runs: Path) -> dict[str, bytes]:
    """Run the job, or go on with it. Raises BidroError where it cannot be run to its end."""
    if job.check:
        return verdicts_of(job, carrier, runs)
    folder = runs / job.run
    # Who resumes a run that goes on in a job of before, whose lead died, waits for its end.
    with locked(folder, job.run, job.policy.patience if job.resume else 0.0):
        begun = begin(folder, job)
        if begun.result is not None:
            return begun.result
        progress = RunProgress(folder, job.agreed.options.gap)
        try:
            files = _result(job, begun, carrier, folder, progress)
        except BaseException as error:
            progress.ended("stopped")
            if isinstance(error, BidroError) and not isinstance(error, ClientsGoneError):
                failed(folder, str(error))
            raise
        write_folder(result_folder(folder), files)
        progress.ended("done")
        return done(folder)


def _result(
    job: Job, begun: Begun, carrier: Carrier, folder: Path, progress: RunProgress
) -> dict[str, str | bytes]:
    with Record(folder / RECORD) as record, warnings.catch_warnings():
        for kind in (GapNotReachedWarning, NonconcaveInnerWarning, UncheckedDomainWarning):
            warnings.simplefilter("ignore", kind)
        coordinator = Coordinator(begun.name, carrier, record, job.policy, progress.say, progress.round)
        if job.describe:
            files = federated_table(job, coordinator)
            return {**files, "audit.json": _as_json(audit_of(job.run, record.heads))}
        if job.certify is not None:
            files = federated_scores(job, coordinator, begun.day)
            return {**files, "audit.json": _as_json(audit_of(job.run, record.heads))}
        if job.agreed.neural_network is not None:
            files = federated_network(job, coordinator, begun.day)
            return {**files, "audit.json": _as_json(audit_of(job.run, record.heads))}
        found = federated_fit(job, coordinator, begun.day, progress.solved_to)
        audit = audit_of(job.run, record.heads, found.influence)
        files = folder_files(replace(found, federated=audit_content(audit)))
        return {**files, "audit.json": _as_json(audit)}


def _as_json(audit: Mapping[str, Any]) -> str:
    return json.dumps(audit, indent=1) + "\n"
