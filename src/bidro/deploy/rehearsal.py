"""A whole federation on this machine: a file and a process for every client, and real TLS between them."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from bidro.deploy.agreed import Agreed, written
from bidro.deploy.drive import driven, engine
from bidro.deploy.job import Job, Sites
from bidro.deploy.server import PROGRESS_FILE
from bidro.tables import learn_schema, read


def split_by_client(
    table: Path,
    client: str,
    target: str,
    folder: Path,
    one_sample: bool = False,
    unit: str | None = None,
) -> Sites:
    """Write each client's rows and configuration into `folder`, as sites would have them."""
    whole, column = read([table], client)
    schema = learn_schema(whole, column, target, None, None, "refuse", unit)
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
            f'own = "own/site-{k}"',
        ]
        # All rows are on this machine, so that losses with kinks give nothing away.
        lines += ["losses_with_kinks = true", *(["one_sample_replies = true"] if one_sample else [])]
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
