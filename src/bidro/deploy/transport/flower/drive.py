"""Runs on a Flower network: start the run, wait for its end, and take the files that the server left.

It uses Flower's own client of the SuperLink's control API, not the `flwr` command: the command reads and
writes the user's home, and takes a second of processor time whenever it is asked how a run is.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from flwr.common.serde import user_config_to_proto
from flwr.proto.control_pb2 import ListNodesRequest, ListRunsRequest, StartRunRequest, StopRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import FlowerError

from bidro.core.errors import BidroError
from bidro.deploy.server.runs import Mark, RunFollower, mark, said_so_far
from bidro.deploy.transport.drive import BrokenError, LostJobError, Persistent
from bidro.deploy.transport.flower.app import bidros_app, result_folder

_POLL = 0.5  # seconds between two questions about the run's status


def drive(
    job: str, settings: Mapping[str, Any], say: Callable[[str], None], persistent: Persistent
) -> dict[str, bytes]:
    """Run a job on a Flower network, wait for its end, and return the files that the server made.

    settings: `address` (host:port) of the SuperLink; `root_certificates`, the file of the authority that
    signed its certificate; `runs`, the folder that its service has as BIDRO_RUNS: drive runs on the server's
    machine, or on one that sees this folder; `run`, the run's name. Raises LostJobError for a job that ended
    without a result by what happened around it.
    """
    for name in ("address", "root_certificates", "runs"):
        if name not in settings:
            raise BidroError(f"How to reach the Flower network is not said: '{name}' is missing.")
    token, before = secrets.token_hex(8), mark(settings["run"], settings["runs"])
    run = persistent(lambda: _started(job, token, settings))
    try:
        _wait(run, settings, say, persistent, before)
    except KeyboardInterrupt:
        with control(settings) as superlink:
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


def _started(job: str, token: str, settings: Mapping[str, Any]) -> int:
    """The number of the run with this token, which is started if it was not."""
    app = bidros_app()
    start = StartRunRequest(
        fab=Fab(hash_str=app.digest, content=app.content),
        override_config=user_config_to_proto({"job": job, "token": token}),
    )
    with control(settings) as superlink:
        for number, known in superlink.ListRuns(ListRunsRequest()).run_dict.items():
            if known.override_config["token"].string == token:
                return int(number)
        run: int = superlink.StartRun(start).run_id
    if not run:
        raise BidroError(f"The SuperLink at {settings['address']} did not accept the run.")
    return run


def _wait(
    run: int, settings: Mapping[str, Any], say: Callable[[str], None], persistent: Persistent, since: Mark
) -> None:
    before, followed = None, RunFollower(say)
    while True:
        status = persistent(lambda: _status(run, settings))
        if status.status != before:
            before = status.status
            say(f"run {run}: {before}")
        followed.tell(said_so_far(settings["run"], settings["runs"], since))
        if before == "finished":
            break
        time.sleep(_POLL)
    if status.sub_status != "completed":
        why = status.details or "the SuperLink gave no reason"
        raise LostJobError(f"Run {run} {status.sub_status}: {why}")


def _status(run: int, settings: Mapping[str, Any]) -> Any:
    with control(settings) as superlink:
        known = superlink.ListRuns(ListRunsRequest(run_id=run)).run_dict
    if run not in known:
        raise LostJobError(f"The SuperLink at {settings['address']} knows no run {run} any more")
    return known[run].status


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
        raise BrokenError(f"The SuperLink at {address} cannot be reached: {error}") from error


def online(settings: Mapping[str, Any]) -> list[str]:
    """The names of the nodes that are connected."""
    with control(settings) as superlink:
        nodes = superlink.ListNodes(ListNodesRequest()).nodes_info
    return sorted(node.name for node in nodes if node.status == "online")
