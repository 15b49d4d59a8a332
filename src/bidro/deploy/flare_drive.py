"""Runs on a FLARE network, as its admin: submit the job, wait for its end, bring the files back."""

from __future__ import annotations

import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from nvflare.fuel.flare_api.flare_api import Session, new_secure_session

from bidro.deploy.flare import FAILURE, JOB, RESULT
from bidro.errors import BidroError

_POLL = 0.5  # seconds between two questions about the job's status


def drive(job: str, settings: Mapping[str, Any], say: Callable[[str], None]) -> dict[str, bytes]:
    """Submit the job as the admin who has the startup kit, wait for its end and return the server's files.

    settings: `startup_kit`, the admin's folder; `clients`, the sites that take part; `patience`, the seconds
    to wait until all of them are connected, or 0 to begin with those that are.
    """
    if "startup_kit" not in settings:
        raise BidroError("How to reach the FLARE server is not said: 'startup_kit' is missing.")
    with tempfile.TemporaryDirectory() as scratch, session(settings) as admin:
        clients = _sites_there(admin, settings["clients"], settings["patience"], say)
        with _flare("submit the job"):
            job_id = admin.submit_job(str(_job_folder(Path(scratch), job, clients)))
        say(f"FLARE job {job_id} submitted")
        try:
            meta = _wait(admin, job_id, say)
        except KeyboardInterrupt:
            with _flare(f"abort the job {job_id}"):
                admin.abort_job(job_id)
            raise
        with _flare(f"download the result of the job {job_id}"):
            workspace = Path(admin.download_job_result(job_id, scratch)) / "workspace"
        if (workspace / RESULT).is_dir():
            return {path.name: path.read_bytes() for path in (workspace / RESULT).iterdir()}
        raise BidroError(f"the FLARE job {job_id} ended without a result: {_reason(meta, workspace)}")


def _sites_there(
    admin: Session, wanted: Sequence[str], patience: float, say: Callable[[str], None]
) -> list[str]:
    deadline, said = time.monotonic() + patience, False
    while True:
        with _flare("list the sites"):
            there = {client.name for client in admin.get_system_info().client_info}
        absent = [name for name in wanted if name not in there]
        if not absent or (patience == 0 and len(absent) < len(wanted)):
            return [name for name in wanted if name in there]
        if time.monotonic() >= deadline:
            connected = ", ".join(sorted(there)) or "nobody"
            raise BidroError(f"not connected to the FLARE server: {', '.join(absent)}; it has {connected}")
        if not said:
            say(f"waiting for {', '.join(absent)}")
            said = True
        time.sleep(_POLL)


def _wait(admin: Session, job_id: str, say: Callable[[str], None]) -> dict[str, Any]:
    before = "SUBMITTED"
    while True:
        with _flare(f"ask how the job {job_id} is doing"):
            meta: dict[str, Any] = admin.get_job_meta(job_id)
        status = meta["status"]
        if status != before:
            say(f"FLARE job {_words(status)}")
        if status.startswith("FINISHED"):
            return meta
        before = status
        time.sleep(_POLL)


def _words(status: str) -> str:
    return status.replace("FINISHED:", "ended, ").replace("_", " ").lower()


def _reason(meta: Mapping[str, Any], workspace: Path) -> str:
    """All that FLARE and the server's part of the job tell about a job that gave no result."""
    told = [_words(meta["status"]).removeprefix("ended, ")]
    told += [detail for detail in meta.get("job_deploy_detail") or [] if not detail.endswith(": OK")]
    failure = workspace / FAILURE
    if failure.exists():
        told.append(failure.read_text(encoding="utf-8"))
    if len(told) == 1:
        told.append("the logs of the server and of the sites may tell why")
    return "; ".join(told)


def _job_folder(scratch: Path, job: str, clients: Sequence[str]) -> Path:
    folder = scratch / "bidro"
    meta = {
        "name": "bidro",
        "min_clients": 1,  # so that a lost site does not end the job; how many are enough is bidro's to say
        "resource_spec": {},
        "deploy_map": {"server": ["server"], "client": list(clients)},
    }
    server = {
        "format_version": 2,
        "server": {"task_request_interval": 0.5},
        "components": [{"id": "server", "path": "bidro.deploy.flare_server.Server", "args": {}}],
        "workflows": [
            {
                "id": "controller",
                "path": "nvflare.collab.runtime.controller.CollabController",
                "args": {"server_obj_id": "server", "sync_task_timeout": 120},
            }
        ],
    }
    client = {
        "format_version": 2,
        "components": [{"id": "client", "path": "bidro.deploy.flare_site.Client", "args": {}}],
        "executors": [
            {
                "tasks": ["*"],
                "executor": {
                    "path": "nvflare.collab.runtime.executor.CollabExecutor",
                    "args": {"client_obj_id": "client", "max_inbound_call_threads": 1},
                },
            }
        ],
    }
    for path, content in {
        "meta.json": json.dumps(meta),
        "server/config/config_fed_server.json": json.dumps(server),
        f"server/config/{JOB}": job,
        "client/config/config_fed_client.json": json.dumps(client),
    }.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content, encoding="utf-8")
    return folder


@contextmanager
def session(settings: Mapping[str, Any]) -> Iterator[Session]:
    """The admin's connection to the server, without FLARE's log in the terminal."""
    kit = Path(settings["startup_kit"])
    try:
        config = json.loads((kit / "startup" / "fed_admin.json").read_text(encoding="utf-8"))["admin"]
    except OSError as error:
        raise BidroError(f"{kit} is not the startup kit of a FLARE admin: {error}") from error
    logger = logging.getLogger("nvflare")
    nothing, before = logging.NullHandler(), logger.propagate
    logger.addHandler(nothing)
    logger.propagate = False
    try:
        with _flare(f"reach the FLARE server {config['host']}:{config['port']}"):
            admin = new_secure_session(settings.get("username", config["username"]), str(kit))
        try:
            yield admin
        finally:
            with _flare("log out"):
                admin.close()
    finally:
        logger.propagate = before
        logger.removeHandler(nothing)


@contextmanager
def _flare(what: str) -> Iterator[None]:
    """Keep what FLARE prints out of the terminal, and say its errors in one sentence."""
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            yield
    except Exception as error:
        raise BidroError(f"cannot {what}: {error}") from error
