"""`bidro describe`: Table 1 of rows that are here, and the files of one."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pandas as pd

from bidro.core.errors import BidroError
from bidro.data.tables import Schema
from bidro.fit.private_side import own_sums
from bidro.privacy.masking import sum_of_masked
from bidro.privacy.mechanisms import Noisy, Scale
from bidro.privacy.table_one import Described, TableOne, as_json, to_csv
from bidro.privacy.terms import Budget, Plan, SharedNoise
from bidro.report.table_one import table_one_html

CSV_FILE, PAGE_FILE, JSON_FILE = "table1.csv", "table1.html", "table1.json"


def together(asked: TableOne, told: Sequence[Noisy]) -> list[Described]:
    """The table of several clients' sums."""
    whole = sum_of_masked(np.stack([one.values for one in told]))
    return asked.described(Noisy(whole, _scale(told)))


def _scale(told: Sequence[Noisy]) -> Scale:
    """Of the sum over clients."""
    return told[0].scale._replace(sites=len(told)).over_sites


def files_of(found: Sequence[Described], said: Sequence[str]) -> dict[str, str | bytes]:
    content = {"said": list(said), "columns": as_json(found)}
    return {
        CSV_FILE: to_csv(found),
        PAGE_FILE: table_one_html(found, said),
        JSON_FILE: json.dumps(content, indent=1, allow_nan=False) + "\n",
    }


def sentences(
    sites: Sequence[str], noise: float, shared: SharedNoise | None, alone: Budget | None
) -> list[str]:
    """What a table of these sites rests on; `noise` is the standard deviation of that in a number of rows."""
    lines = [f"Of {len(sites)} clients together: {', '.join(sites)}."]
    if noise > 0:
        lines.append(
            f"Every number of rows has noise of standard deviation {noise:.3g}, and what follows from it; of "
            "numbers further than four agreed spreads from their centre the mean counts four."
        )
    if shared is not None and alone is not None:
        lines.append(
            f"It cost every person epsilon = {shared.epsilon:g} with delta = {shared.delta:g} as long as "
            f"{shared.honest:.0%} of the clients, its own among them, keep their noise to themselves, and "
            f"epsilon = {alone.epsilon:.3g} whatever all others do."
        )
    return lines


def described_here(
    schema: Schema,
    units: dict[str, tuple[float, float]],
    table: pd.DataFrame,
    budget: Budget | None = None,
    shared: SharedNoise | None = None,
) -> dict[str, str | bytes]:
    """The files for a table of all clients, each with noise of its own, or a share of it."""
    asked, names = TableOne.of(schema, units), schema.clients(table)
    clients = sorted(set(names.tolist()))
    plan = None if shared is None else Plan.of_sums(shared, len(clients))
    told = [own_sums(asked, schema, table.loc[names == name], budget, plan) for name in clients]
    if not told:
        raise BidroError("The table has no rows; there is nothing to describe.")
    found = together(asked, told)
    noise = float(_scale(told).sigma[0])
    return files_of(found, sentences(clients, noise, shared, None if plan is None else plan.alone_describing))
