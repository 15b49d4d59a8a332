"""Federated rounds over NVIDIA FLARE: bidro is installed at every site, and a job carries no code.

The parts of a job are `Server`, with its `Controller`, and `Client`. Each imports what it needs when the job
begins, all at the same time.
"""

from __future__ import annotations

import copy
import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.apis.signal import Signal
from nvflare.collab import collab
from nvflare.collab.api.exceptions import CollabCallError, RunAborted
from nvflare.collab.runtime.controller import CollabController
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import new_cell_message
from nvflare.fuel.f3.mpm import MainProcessMonitor
from nvflare.widgets.info_collector import InfoCollector

from bidro.deploy.agreement.job import Job
from bidro.deploy.server.runs import NEVER, mark, said_so_far
from bidro.federated.engines.coordinator import Delivered

JOB = "job.json"  # in the server's part of the job
RESULT = "bidro"  # folder of the job's result
FAILURE = "bidro_failure.txt"  # instead of it, if the server's part raised
PROGRESS = "bidro"  # what the server tells of a run that goes on, among FLARE's statistics of the job
_LOOK = 1.0  # seconds between two looks at whether silent sites are still connected
_BREAK = 4.0  # seconds without connection after which a site is lost; FLARE reconnects after 1 and 3 s


class Connections:
    """Which processes of the sites have lost their connection to the server.

    A dead process is not connected, a busy one is. Those behind a relay cannot be seen, and count as
    connected.

    cells: by site, the address of its process, which has so many `parts` (one, or two for its part of a job),
    and more behind a relay. begun: whether all of them are connected already; else one that never was is not
    lost. patience: seconds without a connection that are taken for a short break of the network.
    """

    def __init__(
        self, network: Any, cells: Mapping[str, str], parts: int, begun: bool, patience: float = _BREAK
    ) -> None:
        self._network = network
        self._cells = cells
        self._relayed = {name for name, cell in cells.items() if len(FQCN.split(cell)) > parts}
        self._begun = set(cells) if begun else set()
        self._patience = patience
        self._missing: dict[str, float] = {}  # since when

    def lost(self) -> set[str]:
        there, now = self._there(), time.monotonic()
        self._begun |= there
        self._missing = {name: self._missing.get(name, now) for name in self._begun - there}
        return {name for name, since in self._missing.items() if now - since >= self._patience}

    def _there(self) -> set[str]:
        question = new_cell_message({}, "")
        reply = self._network.send_request("_net_manager", "peers", FQCN.ROOT_SERVER, question, timeout=_LOOK)
        if reply is None or not isinstance(reply.payload, list):
            return set(self._begun)  # the server does not say; then nobody is taken for lost
        return self._relayed | {name for name, cell in self._cells.items() if cell in reply.payload}


class FlareCarrier:
    """The sites of the running job; made inside it, from the proxies that FLARE hands to the server."""

    def __init__(self, sites: Sequence[Any], aborted: Signal) -> None:
        self._sites = {site.name: site.get_child("client") for site in sites}
        self._aborted = aborted
        backends = {name: site.backend for name, site in self._sites.items()}
        cells = {name: backend.target_fqcn for name, backend in backends.items()}
        network = next(iter(backends.values())).cell.core_cell
        # All have answered when the job started.
        self._connections = Connections(network, cells, 2, begun=True)

    def absent(self, names: Iterable[str]) -> frozenset[str]:
        """Nobody: a site that is not there cannot come to this job, only to the next."""
        return frozenset()

    def exchange(self, messages: Mapping[str, bytes], timeout: float) -> Delivered:
        known = [name for name in messages if name in self._sites]
        strangers = {name: "not part of this job" for name in messages if name not in known}
        delivered, gone = Delivered({}, strangers), set(strangers)
        stop = {name: Signal() for name in known}
        pool = ThreadPoolExecutor(max(1, len(known)))
        query = {pool.submit(self._ask, name, messages[name], timeout, stop[name]): name for name in known}
        pending = set(query)
        deadline, pause = time.monotonic() + timeout, _LOOK / 10
        try:
            while pending:
                left = deadline - time.monotonic()
                done, pending = wait(pending, timeout=max(0.0, min(pause, left)))
                for call in done:
                    answer = call.result()
                    if isinstance(answer, bytes):
                        delivered.replies[query[call]] = answer
                    else:
                        delivered.failures[query[call]] = str(answer)[:500]
                if self._aborted.triggered:
                    raise RunAborted("the job was aborted")
                if left <= 0:
                    lost = dict.fromkeys(pending, f"no reply within {timeout:g} s")
                else:
                    cut = self._connections.lost()
                    lost = {call: "connection lost" for call in pending if query[call] in cut}
                    gone |= {query[call] for call in lost}
                delivered.failures.update({query[call]: why for call, why in lost.items()})
                pending -= lost.keys()
                pause = min(2 * pause, _LOOK)
        finally:
            for signal in stop.values():
                signal.trigger(True)  # else a call to a dead site would keep the job from ending
            pool.shutdown(wait=False)
        # A site that comes back takes part in the next job, not in this one.
        return delivered._replace(gone=frozenset(gone))

    def _ask(self, name: str, message: bytes, timeout: float, stop: Signal) -> bytes | str:
        site = copy.copy(self._sites[name])
        site.backend = copy.copy(site.backend)
        site.backend.abort_signal = stop
        answer: bytes | str
        try:
            answer = site(timeout=timeout + _LOOK).answer(message)  # later than the deadline of `exchange`
        except (CollabCallError, RunAborted) as error:
            answer = f"no reply: {error}"
        return answer


def end_promptly() -> None:
    """End this job's process when its part of the job is over.

    When FLARE has ended a run in a process it pauses for three seconds, and the interpreter takes one more to
    leave; the job is over, and its result can be fetched, only when all of its processes have left.
    """

    def leave() -> None:
        while not MainProcessMonitor.is_stopping():
            time.sleep(_LOOK / 20)
        logging.shutdown()
        os._exit(0)

    threading.Thread(target=leave, daemon=True).start()


_PAUSE = 0.5  # seconds between two looks at whether sites have died


class Controller(CollabController):  # type: ignore[misc]
    """FLARE's controller, but a site that dies while the job starts is noticed, and the lead can ask how the
    run goes.

    FLARE itself waits for a site that has died as long as for one that is slow. Here the job ends within
    seconds, and the lead's command begins another when the site is back.
    """

    begun = NEVER  # how far the run was when this job began

    def broadcast_and_wait(
        self,
        task: Any,
        fl_ctx: Any,
        targets: Any = None,
        min_responses: int = 1,
        wait_time_after_min_received: int = 0,
        abort_signal: Any = None,
    ) -> None:
        self.broadcast(task, fl_ctx, targets, min_responses, wait_time_after_min_received)
        sites = {client.name: client.get_fqcn() for client in fl_ctx.get_engine().get_clients()}
        jobs = {name: FQCN.join([cell, fl_ctx.get_job_id()]) for name, cell in sites.items()}
        network = self.cell.core_cell
        watched = [
            # A site that was away for a moment may have been started again, and then knows no job.
            Connections(network, sites, 1, begun=True, patience=0.0),
            Connections(network, jobs, 2, begun=False),
        ]
        while task.completion_status is None:
            gone = set[str]().union(*(connections.lost() for connections in watched))
            if gone or (abort_signal is not None and abort_signal.triggered):
                if gone:
                    self.log_error(fl_ctx, f"left while the job started: {', '.join(sorted(gone))}")
                self.cancel_task(task, fl_ctx=fl_ctx)
                return
            time.sleep(_PAUSE)

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        super().handle_event(event_type, fl_ctx)
        if event_type not in (EventType.START_RUN, InfoCollector.EVENT_TYPE_GET_STATS):
            return
        run = Job.from_text(_job_text(fl_ctx.get_workspace(), fl_ctx.get_job_id())).run
        if event_type == EventType.START_RUN:
            self.begun = mark(run)
            return
        collector = fl_ctx.get_prop(InfoCollector.CTX_KEY_STATS_COLLECTOR)
        collector.set_info(PROGRESS, said_so_far(run, None, self.begun)._asdict())


class Server:
    """The server's part of a job."""

    def __init__(self) -> None:
        from bidro.deploy.server.serve import leave_files

        self._leave_files = leave_files

    @collab.main  # type: ignore[untyped-decorator]
    def run(self) -> None:
        workspace, job_id = collab.workspace, collab.fl_ctx.get_job_id()
        folder = Path(workspace.get_result_root(job_id), RESULT)
        try:
            carrier = FlareCarrier(collab.context.clients, collab.context.abort_signal)
            self._leave_files(_job_text(workspace, job_id), carrier, folder)
        except RunAborted:
            raise  # by FLARE, for what happened elsewhere: the run can go on in another job
        except Exception as error:
            folder.with_name(FAILURE).write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
            raise
        end_promptly()


def _job_text(workspace: Any, job_id: str) -> str:
    return Path(workspace.get_app_config_dir(job_id), JOB).read_text(encoding="utf-8")


class Client:
    """A site's part of a job."""

    def __init__(self) -> None:
        from bidro.deploy.site.session import reply_or_failure

        self._reply = reply_or_failure

    @collab.init  # type: ignore[untyped-decorator]
    def survive(self) -> None:
        """Let the job go on without this site if this process is killed: code 127 is no failure to FLARE.

        The file stays if the process ends by itself, where the code means nothing either.
        """
        run = collab.workspace.get_run_dir(collab.fl_ctx.get_job_id())
        Path(run, FLMetaKey.PROCESS_RC_FILE).write_text("127")
        end_promptly()

    @collab.publish  # type: ignore[untyped-decorator]
    def answer(self, message: bytes) -> bytes | str:
        return self._reply(message)
