"""A whole federation on this machine: a file and a process for every client, and real TLS between them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pandas as pd

from bidro.core.arrays import Floats
from bidro.core.splits import key_of_seed
from bidro.data.tables import read
from bidro.deploy.agreement.agreement import Agreement, drafted, written
from bidro.deploy.agreement.job import Job, Sites
from bidro.deploy.site.config import Site
from bidro.deploy.site.disclosure.rules import SCORES, SINGLE_ROWS
from bidro.deploy.site.masked import site_key
from bidro.deploy.site.state import write_key
from bidro.deploy.transport.drive import engine, submit_and_wait
from bidro.model.model_file import FILE as MODEL_FILE
from bidro.model.model_file import Model
from bidro.model.personal_file import FILE as PERSONAL_FILE
from bidro.model.personal_file import PersonalModels, personal_models_in
from bidro.privacy.terms import Budget, Terms
from bidro.workflow.options import TableColumns


def split_by_client(
    table: Path,
    columns: TableColumns,
    folder: Path,
    one_sample: bool = False,
    agreed: Agreement | None = None,
    budget: Budget | None = None,
) -> Sites:
    """Write each client's rows and configuration into `folder`, as sites would have them; without an
    agreement, by the one that the table drafts, with these columns. With a privacy budget, which every site
    has, the run is private. The sites' keys follow from the agreed seed, so that they split their rows as
    `bidro fit` does."""
    whole, column = read([table], agreed.schema.client if agreed is not None else columns.client)
    if agreed is None:
        learned = columns.learned(whole, column)
        numbers = learned.classes is None
        # All rows are on this machine, so that nothing gives any away.
        agreed = drafted(learned, whole, release="moments" if numbers else "trusted")
    if budget is not None and agreed.privacy is None:
        agreed = replace(agreed, release="private", privacy=Terms())
    schema = agreed.schema
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    names = schema.clients(whole)
    clients = tuple(sorted(set(names.tolist())))
    key = key_of_seed(agreed.options.seed)
    for k, name in enumerate(clients):
        own: pd.DataFrame = whole.loc[names == name].drop(columns=column)
        own.to_parquet(folder / f"site-{k}.parquet")
        lines = [
            f"client = {json.dumps(name, ensure_ascii=False)}",
            f'data = "site-{k}.parquet"',
            'schema = "schema.toml"',
            f'state = "state/site-{k}"',
        ]
        # All rows are on this machine, so that nothing gives any away.
        allows = [SCORES, *([SINGLE_ROWS] if one_sample else [])]
        allows += [] if agreed.neural_network is None else [agreed.neural_network.factory]
        lines += ['release = "trusted"', f"allows = {json.dumps(allows)}"]
        if budget is not None:
            lines += ["[privacy]", f"epsilon = {float(budget.epsilon)!r}", f"delta = {float(budget.delta)!r}"]
            lines.append(f"rows_per_person = {budget.rows_per_person}")
        (folder / f"site-{k}.toml").write_text("\n".join([*lines, ""]))
        state = folder / "state" / f"site-{k}"
        state.mkdir(parents=True, mode=0o700)
        write_key(state, key)
    if agreed.privacy is not None and agreed.privacy.shared is not None:
        sites = [Site.read(folder / f"site-{k}.toml") for k in range(len(clients))]
        keys = tuple((site.client, site_key(site).public.hex()) for site in sites)
        shared = replace(agreed.privacy.shared, keys=keys)
        agreed = replace(agreed, privacy=replace(agreed.privacy, shared=shared))
    (folder / "schema.toml").write_text(written(agreed))
    return Sites(agreed, clients)


def rehearsed(job: Job, name: str, folder: Path, say: Callable[[str], None]) -> dict[str, bytes]:
    """The files of a run on a network of processes on this machine, with the sites in `folder`."""
    runs = folder / "runs"
    runs.mkdir(exist_ok=True)
    sites = {client: folder / f"site-{k}.toml" for k, client in enumerate(job.clients)}
    say(f"starting a server and {len(sites)} clients on this machine")
    with engine(name, local=True).network(folder / "network", sites, runs) as net:
        files = submit_and_wait(job, name, net.settings, say)
    return {**files, **(_personal_models(job, folder, files) if MODEL_FILE in files else {})}


def _personal_models(job: Job, folder: Path, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The clients' personal models: between machines each stays at its site, but here all are at hand."""
    shared = Model.from_bytes(files[MODEL_FILE], MODEL_FILE).x
    found: dict[str, Floats] = {}
    for k in range(len(job.clients)):
        found |= personal_models_in(folder / "state" / f"site-{k}" / "personal" / job.run, shared)
    return {PERSONAL_FILE: PersonalModels(found, shared).to_bytes()} if found else {}
