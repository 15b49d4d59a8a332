"""`bidro federate --check`: would every site answer a run by this agreement? All verdicts at once.

Each site is asked one question, `check`, which it answers by the code that would answer the run, rehearsed
at the site on a copy of what it remembers. What leaves is the verdict: that it would, with four warnings that
are there or not; or the sentence with which the run itself would be refused.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import bidro
from bidro.core.errors import BidroError, one_line
from bidro.deploy.agreement.job import Job
from bidro.deploy.messages.queries import WARNINGS, Verdict
from bidro.federated.engines.coordinator import (
    Carrier,
    Coordinator,
    LostClientsError,
    Nothing,
    Policy,
)
from bidro.federated.engines.record import Record

VERDICTS = "verdicts.json"


def job_to_check(job: Job) -> Job:
    """The job, to ask for verdicts in place of a run; of the sites that are there, without waiting for
    others."""
    policy = Policy(timeout=job.policy.timeout, on_client_loss="continue", patience=job.policy.timeout)
    return dataclasses.replace(job, policy=policy, check=True)


def verdicts_of(job: Job, carrier: Carrier, folder: Path) -> dict[str, bytes]:
    """The file of the verdicts: by site whether it `answers`, else `why` not, and `warnings`. Nothing is kept
    of it at the server; `folder` is for the meantime."""
    folder.mkdir(parents=True, exist_ok=True)
    header = {"version": bidro.__version__, "agreed": job.agreed.digest}
    with tempfile.TemporaryDirectory(dir=folder) as scratch, Record(Path(scratch, "record")) as record:
        coordinator = Coordinator(job.run, carrier, record, job.policy)
        like = Verdict(np.zeros(len(WARNINGS)))
        told: dict[str, Verdict] = {}

        def noted(name: str, reply: Verdict, rows: int) -> None:
            if not np.all(np.isin(reply.warnings, (0.0, 1.0))):
                raise BidroError("its verdict has other numbers than 0 and 1.")
            told[name] = reply

        # Who refuses, or is silent, is on the record, and named with all others.
        with suppress(LostClientsError, BidroError):
            coordinator.ask(
                "check",
                1,
                dict.fromkeys(job.clients, header),
                dict.fromkeys(job.clients, Nothing()),
                like,
                check=noted,
                counts_rows=False,
            )
        faults = {head["client"]: str(head["fault"]) for head in record.heads if "fault" in head}
    sites: dict[str, Any] = {}
    for name in job.clients:
        if name in faults or name not in told:
            why = one_line(faults.get(name, "it was not asked")).removeprefix(f"Client '{name}': ")
            sites[name] = {"answers": False, "why": why, "warnings": []}
        else:
            warned = [words for words, there in zip(WARNINGS, told[name].warnings, strict=True) if there]
            sites[name] = {"answers": True, "why": None, "warnings": warned}
    return {VERDICTS: json.dumps({"sites": sites}, indent=1).encode()}


def in_words(verdicts: Mapping[str, Any]) -> str:
    """A line a site, those that refuse first, and what to do."""
    sites = verdicts["sites"]
    lines = [f"{name} would refuse: {one['why']}" for name, one in sites.items() if not one["answers"]]
    refusing = len(lines)
    for name, one in sites.items():
        if one["answers"]:
            lines.append(f"{name} would answer.")
            lines += [f"  WARNING: {words}" for words in one["warnings"]]
    whole = f"All {len(sites)} sites would answer."
    some = f"{refusing} of {len(sites)} sites would refuse: `bidro site check` there says more, with counts."
    return "\n".join([*lines, some if refusing else whole])
