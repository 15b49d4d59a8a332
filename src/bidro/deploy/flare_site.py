"""A site's part of a job on NVIDIA FLARE."""

from __future__ import annotations

import logging
from pathlib import Path

from nvflare.apis.fl_constant import FLMetaKey
from nvflare.collab import collab

from bidro.deploy.flare import end_promptly
from bidro.deploy.site import reply_to


class Client:
    """A site's part of a job."""

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
        """The reply, or why there is none; the text of an error stays in the site's log."""
        try:
            return reply_to(message)
        except Exception as error:
            logging.getLogger(__name__).exception("no reply")
            return f"{type(error).__name__}: see the log of the site"
