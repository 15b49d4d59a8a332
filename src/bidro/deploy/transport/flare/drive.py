"""Runs on a FLARE network, as its admin: submit the job, wait for its end, bring the files back."""

from __future__ import annotations

import json
import logging
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

from nvflare.fuel.flare_api.api_spec import JobNotFound, NoConnection, NoReply, SessionClosed
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session

from bidro.core.errors import BidroError
from bidro.deploy.server.runs import RunFollower, Said
from bidro.deploy.transport.drive import BrokenError, LostJobError, Persistent
from bidro.deploy.transport.flare.job import FAILURE, JOB, PROGRESS, RESULT

T = TypeVar("T")

POLL = 0.5  # seconds between two questions about the job's status
_START = 20  # seconds in which all sites' parts of a job must have begun; twice as many after every lost job
_BROKEN = (OSError, NoConnection, NoReply, SessionClosed)


def drive(
    job: str, settings: Mapping[str, Any], say: Callable[[str], None], persistent: Persistent
) -> dict[str, bytes]:
    """Submit the job as the admin who has the startup kit, wait for its end and return the server's files.

    settings: `startup_kit`, the admin's folder; `clients`, the sites that take part; `on_client_loss`,
    whether to wait until all of them are connected, for up to `patience` seconds, or to continue with those
    that are; `resume`, whether the run goes on; `jobs_lost`, how many jobs of it were lost in turn. Raises
    LostJobError for a job that ended without a result by what happened around it.
    """
    if "startup_kit" not in settings:
        raise BidroError("How to reach the FLARE server is not said: 'startup_kit' is missing.")
    with tempfile.TemporaryDirectory() as scratch, _Lead(settings, persistent) as lead:
        clients = _sites_there(lead, settings, say)
        folder = _job_folder(Path(scratch), job, clients, settings["jobs_lost"])
        began = _started(lead)
        token = secrets.token_hex(16)  # by which a job that was submitted already is not taken for another
        job_id = lead.ask("submit the job", lambda admin: admin.submit_job(str(folder), token))
        say(f"FLARE job {job_id} submitted")
        try:
            meta = _wait(lead, job_id, began, say, RunFollower(say))
        except KeyboardInterrupt:
            lead.ask(f"abort the job {job_id}", lambda admin: admin.abort_job(job_id))
            raise
        what = f"download the result of the job {job_id}"
        workspace = (
            Path(lead.ask(what, lambda admin: admin.download_job_result(job_id, scratch))) / "workspace"
        )
        if (workspace / RESULT).is_dir():
            return {path.name: path.read_bytes() for path in (workspace / RESULT).iterdir()}
        why = f"the FLARE job {job_id} ended without a result: {_reason(meta, workspace)}"
        # What the server's part itself raised it would raise again.
        raise BidroError(why) if (workspace / FAILURE).exists() else LostJobError(why)


class _Lead:
    """The admin's connection to the server, made again where it breaks."""

    def __init__(self, settings: Mapping[str, Any], persistent: Persistent) -> None:
        self._settings = settings
        self._persistent = persistent
        self._admin: Session | None = None
        self._open = ExitStack()

    def __enter__(self) -> _Lead:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(BidroError):  # a session that cannot be closed ends by itself
            self._open.close()

    def ask(self, what: str, command: Callable[[Session], T]) -> T:
        return self._persistent(lambda: self._ask(what, command))

    def _ask(self, what: str, command: Callable[[Session], T]) -> T:
        if self._admin is None:
            self._admin = self._open.enter_context(session(self._settings))
        try:
            with _flare(what):
                return command(self._admin)
        except BrokenError:
            self._admin = None
            with suppress(BidroError):
                self._open.close()
            raise


def _sites_there(lead: _Lead, settings: Mapping[str, Any], say: Callable[[str], None]) -> list[str]:
    wanted, waits, patience = settings["clients"], settings["on_client_loss"] == "wait", settings["patience"]
    deadline, said = time.monotonic() + patience, False
    while True:
        info = lead.ask("list the sites", lambda admin: admin.get_system_info().client_info)
        there = {client.name for client in info}
        absent = [name for name in wanted if name not in there]
        if not absent or (not waits and len(absent) < len(wanted)):
            return [name for name in wanted if name in there]
        if time.monotonic() >= deadline:
            connected = ", ".join(sorted(there)) or "nobody"
            raise BidroError(f"not connected to the FLARE server: {', '.join(absent)}; it has {connected}")
        if not said:
            say(f"waiting for {', '.join(absent)}")
            said = True
        time.sleep(POLL)


def _started(lead: _Lead) -> Any:
    """When the server was started."""
    return lead.ask("ask the server", lambda admin: admin.get_system_info().server_info.start_time)


def _wait(
    lead: _Lead, job_id: str, began: Any, say: Callable[[str], None], followed: RunFollower
) -> dict[str, Any]:
    before = "SUBMITTED"
    while True:
        try:
            meta: dict[str, Any] = lead.ask(
                f"ask how the job {job_id} is doing", lambda admin: admin.get_job_meta(job_id)
            )
        except _UnknownJobError as error:
            raise LostJobError(f"the server knows no FLARE job {job_id} any more") from error
        status = meta["status"]
        if status != before:
            say(f"FLARE job {_words(status)}")
        if status.startswith("FINISHED"):
            return meta
        # A server that was started again takes up what was only submitted, and calls running what ran before.
        started = _started(lead)
        if status == "SUBMITTED":
            began = started
        elif started != began:
            raise LostJobError(f"the server was started again, and the FLARE job {job_id} ended with it")
        if status == "RUNNING":
            _tell(lead, job_id, followed)
        before = status
        time.sleep(POLL)


def _tell(lead: _Lead, job_id: str, followed: RunFollower) -> None:
    try:
        told = lead.ask("ask how the run goes", lambda admin: admin.show_stats(job_id, "server"))
    except BidroError:
        return  # it has just ended
    said = told.get("server", {}).get(PROGRESS)
    if said:  # else it has not begun
        followed.tell(Said(**said))


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


def _job_folder(scratch: Path, job: str, clients: Sequence[str], lost: int) -> Path:
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
        "components": [{"id": "server", "path": "bidro.deploy.transport.flare.job.Server", "args": {}}],
        "workflows": [
            {
                "id": "controller",
                "path": "bidro.deploy.transport.flare.job.Controller",
                "args": {"server_obj_id": "server", "sync_task_timeout": _START * 2**lost},
            }
        ],
    }
    client = {
        "format_version": 2,
        "components": [{"id": "client", "path": "bidro.deploy.transport.flare.job.Client", "args": {}}],
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


class _UnknownJobError(BidroError):
    """The server has no such job."""


@contextmanager
def _flare(what: str) -> Iterator[None]:
    """Keep what FLARE prints out of the terminal, and say its errors in one sentence."""
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            yield
    except Exception as error:
        kind = BrokenError if isinstance(error, _BROKEN) else BidroError
        kind = _UnknownJobError if isinstance(error, JobNotFound) else kind
        raise kind(f"cannot {what}: {error}") from error
