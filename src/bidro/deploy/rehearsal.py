"""A whole federation on this machine: a file and a process for every client, and real TLS between them."""

from __future__ import annotations

import importlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd

from bidro.deploy.agreed import Agreed, written
from bidro.deploy.job import Job, Sites
from bidro.deploy.server import AGAIN_FILE, ERROR_FILE, PROGRESS_FILE
from bidro.errors import BidroError
from bidro.tables import learn_schema, read

ENGINES = ("flare", "flower")
# What a server may return: the files of a model folder, and the audit.
_FILES = {
    "model.safetensors",
    "certificate.json",
    "report.html",
    "report.json",
    "run.toml",
    "audit.json",
}


def engine(name: str, local: bool = False) -> ModuleType:
    """The module that drives runs on this network, or makes a network on this machine.

    Raises BidroError where the engine's package is not installed.
    """
    if name not in ENGINES:
        raise BidroError(f"The engine is {' or '.join(ENGINES)}; got '{name}'.")
    try:
        return importlib.import_module(f"bidro.deploy.{name}{'_local' if local else '_drive'}")
    except ImportError as error:
        raise BidroError(
            f"The engine '{name}' needs packages that are not installed ({error}); install bidro[{name}]."
        ) from error


def driven(job: Job, name: str, settings: Mapping[str, Any], say: Callable[[str], None]) -> dict[str, bytes]:
    """The files that a run on a network leaves. Raises BidroError where it leaves none."""
    patience = job.policy.patience if job.policy.lost == "wait" else 0.0
    how = {"clients": list(job.clients), "patience": patience, **settings}
    files = engine(name).drive(job.to_text(), how, say)
    began = time.monotonic()
    while AGAIN_FILE in files:
        why = files[AGAIN_FILE].decode(errors="replace")
        if time.monotonic() - began > patience:
            raise BidroError(why)
        say(why)
        files = engine(name).drive(replace(job, resume=True).to_text(), how, say)
    if ERROR_FILE in files:
        raise BidroError(files[ERROR_FILE].decode(errors="replace"))
    if set(files) != _FILES:
        odd = sorted(set(files) ^ _FILES)[0]
        raise BidroError(f"The server returned other files than a model folder has: '{odd}'; run it again.")
    return dict(files)


def split_by_client(table: Path, client: str, target: str, folder: Path, one_sample: bool = False) -> Sites:
    """Write each client's rows and configuration into `folder`, as sites would have them."""
    whole, column = read([table], client)
    schema = learn_schema(whole, column, target, None, None, "refuse")
    agreed = Agreed(schema, None)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schema.toml").write_text(written(agreed))
    names = schema.clients(whole)
    clients = tuple(sorted(set(names.tolist())))
    for k, name in enumerate(clients):
        own: pd.DataFrame = whole.loc[names == name].drop(columns=column)
        own.to_parquet(folder / f"site-{k}.parquet")
        lines = [
            f"client = {json.dumps(name, ensure_ascii=False)}",
            f'data = "site-{k}.parquet"',
            'schema = "schema.toml"',
        ]
        lines += ["one_sample_replies = true"] if one_sample else []
        (folder / f"site-{k}.toml").write_text("\n".join([*lines, ""]))
    return Sites(agreed, clients)


def rehearsed(job: Job, name: str, folder: Path, say: Callable[[str], None]) -> dict[str, bytes]:
    """The files of a run on a network of processes on this machine, with the sites in `folder`."""
    runs = folder / "runs"
    runs.mkdir(exist_ok=True)
    sites = {client: folder / f"site-{k}.toml" for k, client in enumerate(job.clients)}
    say(f"starting a server and {len(sites)} clients on this machine")
    with (
        engine(name, local=True).network(folder / "network", sites, runs) as net,
        _followed(runs / job.run / PROGRESS_FILE, say),
    ):
        return driven(job, name, net.settings, say)


@contextmanager
def _followed(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Say the lines that appear in a file while the block runs."""
    done = threading.Event()

    def follow() -> None:
        place = 0
        while not done.wait(0.3):
            if path.exists():
                with path.open() as file:
                    file.seek(place)
                    for line in file:
                        say(line.rstrip(os.linesep))
                    place = file.tell()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
