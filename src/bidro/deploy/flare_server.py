"""The server's part of a job on NVIDIA FLARE."""

from __future__ import annotations

from pathlib import Path

from nvflare.collab import collab

from bidro.deploy.flare import FAILURE, JOB, RESULT, FlareCarrier, end_promptly
from bidro.deploy.server import serve


class Server:
    """The server's part of a job."""

    @collab.main  # type: ignore[untyped-decorator]
    def run(self) -> None:
        workspace, job_id = collab.workspace, collab.fl_ctx.get_job_id()
        job = Path(workspace.get_app_config_dir(job_id), JOB).read_text(encoding="utf-8")
        folder = Path(workspace.get_result_root(job_id), RESULT)
        try:
            files = serve(job, FlareCarrier(collab.context.clients, collab.context.abort_signal))
        except Exception as error:
            folder.with_name(FAILURE).write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
            raise
        partial = folder.with_suffix(".part")
        partial.mkdir(parents=True)
        for name, content in files.items():
            (partial / name).write_bytes(content)
        partial.rename(folder)
        end_promptly()
