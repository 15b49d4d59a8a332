"""The services: a participant's process of its engine, what monitoring may ask of it, and what it tells.

`run` starts the engine's process and ends with it. Meanwhile `/health` on this machine says in JSON how it is
(200, or 503 where something is wrong), and every change of that is one line of JSON on standard output, which
is systemd's journal: `{"time": ..., "event": ..., "was": ..., "is": ...}`. Neither tells anything of rows.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bidro.core.errors import BidroError, one_line
from bidro.deploy.consortium.kits import PARTS, Kit, days_left, kit_in
from bidro.deploy.consortium.setup import SITE
from bidro.deploy.server.runs import ROUNDS_FILE, listed
from bidro.deploy.server.runs import VARIABLE as RUNS
from bidro.deploy.site.session import VARIABLE as CONFIGURED

Health = dict[str, Any]
HOST = "127.0.0.1"
# By which a browser on this machine may ask: not by a name that somebody else's server has pointed here.
HOSTS = (HOST, "localhost", "[::1]")
_LOOK = 5.0  # seconds between two looks at what has changed
_SOON = 30  # days before a certificate ends, from which on that is something wrong
_GRACE = 10.0  # seconds for the engine's process to stop when it is asked to


def run(folder: Path, port: int | None = None) -> int:
    """Run the participant that was set up in the folder until it ends; the exit code of its process. `port`
    is where `/health` answers, if it is to."""
    folder = folder.resolve()
    about = kit_in(folder)
    if not about.of_server and not (folder / SITE).exists():
        raise BidroError(f"'{folder}' has no {SITE}: set the site up by `bidro site init`.")
    command, added = _command(about, folder)
    os.umask(0o077)  # what sites send, and models, are their owner's
    child = subprocess.Popen(command, env={**os.environ, **added}, cwd=folder, stdin=subprocess.DEVNULL)

    def look() -> Health:
        return health(about, folder, child)

    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    server = None if port is None else _serve(port, look)
    try:
        _follow(look, lambda: child.poll() is not None or stopped.wait(_LOOK))
    finally:
        if server is not None:
            server.shutdown()
        if child.poll() is None:
            child.terminate()
            with suppress(subprocess.TimeoutExpired):
                child.wait(_GRACE)
            child.kill()
        _tell("ended", None, child.wait())
    return 0 if stopped.is_set() else child.returncode


def _command(about: Kit, folder: Path) -> tuple[list[str], dict[str, str]]:
    """(what runs the engine's process, what is added to its environment)."""
    kit, places = folder / PARTS, {"XDG_CACHE_HOME": str(folder / "cache")}
    if about.of_server:
        places |= {RUNS: str(folder / "runs"), "NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": "10"}
    else:
        places[CONFIGURED] = str(folder / SITE)
    if about.engine == "flare":
        from bidro.deploy.transport.flare.kit import command

        return command(kit, about.name, about.of_server), places
    from bidro.deploy.transport.flower.kit import ENVIRONMENT, server_command, site_command

    # Flower finds its own commands by name.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    places |= {**ENVIRONMENT, "FLWR_HOME": str(folder / "state" / "flwr"), "PATH": path}
    if not about.of_server:
        return site_command(kit, f"{about.host}:{about.port}"), places
    return server_command(kit, folder / "state" / "flower.db"), places


def health(about: Kit, folder: Path, child: subprocess.Popen[bytes]) -> Health:
    """How the participant is: `ok`, and what that is made of."""
    found: Health = {
        "role": "server" if about.of_server else "site",
        "name": about.name,
        "engine": about.engine,
        "running": child.poll() is None,
        "certificate_days": days_left(folder),
    }
    found |= _of_server(about, folder) if about.of_server else _of_site(about, folder, child)
    days = found["certificate_days"]
    wrong = [] if found["running"] else ["its process has ended"]
    if days is not None and days < _SOON:
        wrong.append("its certificate has expired" if days < 0 else f"its certificate ends in {days} days")
    if found.get("connected") is False:
        wrong.append("it is not connected to the server")
    if found.get("budget_left") == 0.0:
        wrong.append("its privacy budget is spent")
    return {"ok": not wrong, "wrong": wrong, **found}


def _of_site(about: Kit, folder: Path, child: subprocess.Popen[bytes]) -> Health:
    from bidro.deploy.site.answers import ledger_of
    from bidro.deploy.site.config import Site
    from bidro.deploy.site.ledger import spent_content
    from bidro.deploy.site.rows import site_log

    site = Site.read(folder / SITE)
    log = site_log(site)
    found: Health = {"connected": _connected(child, about.port), "waiting": len(log.waiting())}
    if last := log.entries()[-1:]:
        found["last"] = {
            "time": last[0].time,
            "run": one_line(last[0].run, 100),
            "question": one_line(last[0].question, 100),
            "outcome": last[0].outcome,
        }
    if site.privacy is not None:
        found["budget_left"] = round(spent_content(ledger_of(site), site.privacy)["left"], 4)
    return found


def _connected(child: subprocess.Popen[bytes], port: int) -> bool:
    """Whether the process, or one that it started, has a connection to this port of another machine."""
    import psutil

    with suppress(psutil.Error):
        whole = psutil.Process(child.pid)
        for process in (whole, *whole.children(recursive=True)):
            for one in process.net_connections("tcp"):
                if one.status == psutil.CONN_ESTABLISHED and one.raddr and one.raddr.port == port:
                    return True
    return False


def _of_server(about: Kit, folder: Path) -> Health:
    found: Health = {"sites": _sites(about, folder)}
    runs = []
    for one in listed(folder / "runs"):
        rounds = folder / "runs" / one.name / ROUNDS_FILE
        with suppress(OSError, ValueError, IndexError):
            last = json.loads(rounds.read_text("utf-8").splitlines()[-1])
            runs.append(
                {"name": one.name, "state": one.state, "stage": last["stage"], "round": last["round"]}
            )
            continue
        runs.append({"name": one.name, "state": one.state, "stage": None, "round": None})
    return {**found, "runs": runs}


def _sites(about: Kit, folder: Path) -> list[str] | None:
    """The names of the connected sites; None as long as the server does not say."""
    if about.engine == "flare":
        from bidro.deploy.transport.flare.watch import CONNECTED

        with suppress(OSError, ValueError):
            return [str(name) for name in json.loads((folder / "runs" / CONNECTED).read_text("utf-8"))]
        return None
    from bidro.deploy.transport.flower.drive import online
    from bidro.deploy.transport.flower.kit import AUTHORITY, LOOPBACK, PORT, registered

    settings = {"address": f"{LOOPBACK}:{PORT}", "root_certificates": str(folder / PARTS / AUTHORITY)}
    with suppress(BidroError):
        registered(folder / PARTS, settings)
        return online(settings)
    return None


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(what, what it was, what it is) of all that has changed; runs and sites by their names."""
    found = []
    for name in after:
        was, now = before.get(name), after[name]
        if name == "runs":
            known = {one["name"]: one for one in was or ()}
            found += [
                (f"run {one['name']}", known.get(one["name"], {}).get("state"), one["state"])
                for one in now
                if one["state"] != known.get(one["name"], {}).get("state")
            ]
        elif name == "sites":
            found += [(f"site {one}", "away", "connected") for one in sorted({*(now or ())} - {*(was or ())})]
            found += [(f"site {one}", "connected", "away") for one in sorted({*(was or ())} - {*(now or ())})]
        elif was != now:
            found.append((name, was, now))
    return found


def _follow(look: Callable[[], Health], ended: Callable[[], bool]) -> None:
    before: Health = {}
    while not ended():
        try:
            now = look()
        except Exception as error:  # the engine's process goes on; what is wrong is told
            now = {**before, "ok": False, "wrong": [one_line(error)]}
        for what, was, becomes in changes(before, now):
            _tell(what, was, becomes)
        before = now


def _tell(event: str, was: Any, now: Any) -> None:
    when = datetime.now(UTC).isoformat(timespec="seconds")
    print(json.dumps({"time": when, "event": event, "was": was, "is": now}), flush=True)


def _serve(port: int, look: Callable[[], Health]) -> ThreadingHTTPServer:
    class Answer(BaseHTTPRequestHandler):
        server_version, sys_version = "bidro", ""

        def do_GET(self) -> None:
            name = self.headers.get("Host", "").rsplit(":", 1)[0]
            if self.path != "/health" or name not in HOSTS:
                self._send(404, {"wrong": ["there is /health, and nothing else"]})
                return
            try:
                found = look()
            except Exception as error:
                found = {"ok": False, "wrong": [one_line(error)]}
            self._send(200 if found["ok"] else 503, found)

        def _send(self, status: int, content: Health) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            for name, value in {
                "Content-Type": "application/json",
                "Content-Length": str(len(body)),
                "Cache-Control": "no-store",
                "X-Content-Type-Options": "nosniff",
            }.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Events are told, and no questions."""

    try:
        server = ThreadingHTTPServer((HOST, port), Answer)
    except OSError as error:
        raise BidroError(f"/health cannot answer at port {port}: {one_line(error)}.") from error
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
