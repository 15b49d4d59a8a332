"""Table 1 across machines: one masked sum over all sites, by the rules and budgets of a private run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import bidro
from bidro.core.errors import BidroError
from bidro.deploy.agreement.job import Job
from bidro.deploy.server.fit import with_clients_left
from bidro.deploy.server.plausibility import ReportedWithNoise
from bidro.federated.engines.coordinator import Coordinator, Nothing
from bidro.fit.questions import NoisyTable
from bidro.privacy.masking import sum_of_masked
from bidro.privacy.mechanisms import Noisy
from bidro.privacy.table_one import TableOne
from bidro.workflow.describe import files_of, sentences


def federated_table(job: Job, coordinator: Coordinator) -> dict[str, str | bytes]:
    """The files of the table. Raises BidroError where noise is not shared by agreement, or the run must
    stop."""
    agreed = job.agreed
    shared = None if agreed.privacy is None else agreed.privacy.shared
    if shared is None:
        raise BidroError(
            "Across machines a table is described by masked sums: agree on [privacy.shared] in schema.toml, "
            "with the keys of all sites."
        )
    asked = TableOne.of(agreed.schema, agreed.units)

    def attempt(names: tuple[str, ...], lost: Mapping[str, str]) -> dict[str, str | bytes]:
        assert agreed.plan is not None
        plan, roster = agreed.plan.over(len(names)), shared.roster(names)
        about: dict[str, Any] = {"version": bidro.__version__, "agreed": agreed.digest}
        about["roster"] = list(roster.names)
        reported = {name: ReportedWithNoise(plan) for name in names}

        def check(name: str, reply: NoisyTable, rows: int) -> None:
            reported[name].masked(reply, rows)

        settings, messages = dict.fromkeys(names, about), dict.fromkeys(names, Nothing())
        like = NoisyTable.like(asked.numbers)
        told = coordinator.ask("describe", 1, settings, messages, like, check=check, counts_rows=False)
        whole = sum_of_masked(np.stack([np.asarray(one.values) for one in told.values()]))
        scale = asked.scale(*plan.charge("describe", shared.budget)).over_sites
        said = sentences(names, float(scale.sigma[0]), shared, plan.alone_describing)
        said += [f"Without {name}: {why}" for name, why in lost.items()]
        return files_of(asked.described(Noisy(whole, scale)), said)

    return with_clients_left(job, coordinator, attempt)
