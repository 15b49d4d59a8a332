"""The server's part of a job on NVIDIA FLARE."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.collab import collab
from nvflare.collab.api.exceptions import RunAborted
from nvflare.collab.runtime.controller import CollabController
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.widgets.info_collector import InfoCollector

from bidro.deploy.flare import FAILURE, JOB, PROGRESS, RESULT, Connections, FlareCarrier, end_promptly
from bidro.deploy.followed import NEVER, mark, said_so_far
from bidro.deploy.job import Job
from bidro.deploy.server import serve

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

    @collab.main  # type: ignore[untyped-decorator]
    def run(self) -> None:
        os.umask(0o077)  # what the sites send, and the model, are the owner's
        workspace, job_id = collab.workspace, collab.fl_ctx.get_job_id()
        folder = Path(workspace.get_result_root(job_id), RESULT)
        try:
            job = _job_text(workspace, job_id)
            files = serve(job, FlareCarrier(collab.context.clients, collab.context.abort_signal))
        except RunAborted:
            raise  # by FLARE, for what happened elsewhere: the run can go on in another job
        except Exception as error:
            folder.with_name(FAILURE).write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
            raise
        partial = folder.with_suffix(".part")
        partial.mkdir(parents=True)
        for name, content in files.items():
            (partial / name).write_bytes(content)
        partial.rename(folder)
        end_promptly()


def _job_text(workspace: Any, job_id: str) -> str:
    return Path(workspace.get_app_config_dir(job_id), JOB).read_text(encoding="utf-8")
