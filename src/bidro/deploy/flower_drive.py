"""Runs on a Flower network: start the run, wait for its end, and take the files that the server left.

It uses Flower's own client of the SuperLink's control API, not the `flwr` command: the command reads and
writes the user's home, and takes a second of processor time whenever it is asked how a run is.
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from flwr.cli.build import build_fab_from_files
from flwr.common.serde import user_config_to_proto
from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest, StopRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import FlowerError

from bidro.deploy.flower import result_folder
from bidro.errors import BidroError

_APP = b"""
[project]
name = "bidro"
version = "1.0.0"
[tool.flwr.app]
publisher = "bidro"
[tool.flwr.app.components]
serverapp = "bidro.deploy.flower:server_app"
clientapp = "bidro.deploy.flower:client_app"
[tool.flwr.app.config]
job = ""
token = ""
"""


def drive(job: str, settings: Mapping[str, Any], say: Callable[[str], None]) -> dict[str, bytes]:
    """Run a job on a Flower network, wait for its end, and return the files that the server made.

    settings: `address` (host:port) of the SuperLink; `root_certificates`, the file of the authority that
    signed its certificate; `runs`, the folder that its service has as BIDRO_RUNS: drive runs on the server's
    machine, or on one that sees this folder.
    """
    for name in ("address", "root_certificates", "runs"):
        if name not in settings:
            raise BidroError(f"How to reach the Flower network is not said: '{name}' is missing.")
    token = secrets.token_hex(8)
    fab, _ = build_fab_from_files({"pyproject.toml": _APP})
    start = StartRunRequest(
        fab=Fab(hash_str=hashlib.sha256(fab).hexdigest(), content=fab),
        override_config=user_config_to_proto({"job": job, "token": token}),
    )
    with control(settings) as superlink:
        run = superlink.StartRun(start).run_id
        if not run:
            raise BidroError(f"The SuperLink at {settings['address']} did not accept the run.")
        try:
            _wait(superlink, run, say)
        except KeyboardInterrupt:
            superlink.StopRun(StopRunRequest(run_id=run))
            say(f"run {run}: stopped")
            raise
    folder = result_folder(settings["runs"], token)
    if not folder.is_dir():
        raise BidroError(
            f"Run {run} ended well but its files are not in {folder}: "
            f"is {settings['runs']} the folder that the SuperLink's service has as BIDRO_RUNS?"
        )
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    shutil.rmtree(folder)
    return files


def _wait(superlink: ControlHttpClient, run: int, say: Callable[[str], None]) -> None:
    before = None
    while True:
        status = superlink.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
        if status.status != before:
            before = status.status
            say(f"run {run}: {before}")
        if before == "finished":
            break
        time.sleep(0.5)
    if status.sub_status != "completed":
        raise BidroError(f"Run {run} {status.sub_status}: {status.details or 'the SuperLink gave no reason'}")


@contextmanager
def control(settings: Mapping[str, Any]) -> Iterator[ControlHttpClient]:
    """A client of the SuperLink's control API, whose errors are one sentence."""
    address = settings["address"]
    try:
        authority = Path(settings["root_certificates"]).read_bytes()
        with ControlHttpClient.from_server_address(address, False, authority, []) as client:
            yield client
    except httpx.HTTPStatusError as error:
        known = FlowerError.from_json(error.response.text)
        why = f"{known.message} {known.public_details or ''}".strip() if known else str(error)
        raise BidroError(f"The SuperLink at {address} refused: {why}") from error
    except (OSError, httpx.HTTPError) as error:
        raise BidroError(f"The SuperLink at {address} cannot be reached: {error}") from error
