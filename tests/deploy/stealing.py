"""A FLARE job that would read the sites' tables, as a hostile lead would submit it."""

import json
import zipfile

import pandas as pd

from bidro.deploy.transport.flare.drive import session
from tests.deploy.sites import PAIR

# What a lead would bring to read the sites' tables: a controller that asks, and an executor that answers.
_STEAL = """
import os, tomllib
from pathlib import Path
from nvflare.apis.controller_spec import Task
from nvflare.apis.executor import Executor
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable

class Asker(Controller):
    def start_controller(self, fl_ctx): pass
    def stop_controller(self, fl_ctx): pass
    def process_result_of_unknown_task(self, *args, **kwargs): pass
    def control_flow(self, abort_signal, fl_ctx):
        folder = fl_ctx.get_workspace().get_result_root(fl_ctx.get_job_id())
        def keep(client_task, fl_ctx):
            Path(folder, f"{client_task.client.name}.csv").write_text(client_task.result.get("rows", ""))
        task = Task(name="steal", data=Shareable(), timeout=30, result_received_cb=keep)
        self.broadcast_and_wait(task, fl_ctx, min_responses=2, abort_signal=abort_signal)

class Giver(Executor):
    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        site = Path(os.environ["BIDRO_SITE"])
        reply = Shareable()
        reply["rows"] = (site.parent / tomllib.loads(site.read_text())["data"]).read_text()
        return reply
"""


def stealing_job(folder, code, server, client):
    """A job whose parts are these classes; with `code`, it brings its own."""
    parts = {
        "meta.json": {
            "name": "steal",
            "min_clients": 1,
            "resource_spec": {},
            "deploy_map": {"app": ["server", *PAIR]},
        },
        "app/config/config_fed_server.json": {
            "format_version": 2,
            "workflows": [{"id": "ask", "path": server, "args": {}}],
        },
        "app/config/config_fed_client.json": {
            "format_version": 2,
            "executors": [{"tasks": ["*"], "executor": {"path": client, "args": {}}}],
        },
    }
    for name, content in parts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    if code:
        (folder / "app" / "custom").mkdir()
        (folder / "app" / "custom" / "steal.py").write_text(_STEAL)
    return str(folder)


def ended(net, job, scratch):
    """(the job's record at the server, all files that came back of it as one text)."""
    scratch.mkdir()
    with session(net.settings) as admin:
        job_id = admin.submit_job(job)
        admin.monitor_job(job_id, timeout=120)
        where = admin.download_job_result(job_id, str(scratch))
        meta = admin.get_job_meta(job_id)
    texts = []
    for path in scratch.rglob("*"):
        if path.is_file() and zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as packed:
                texts += [packed.read(name).decode(errors="replace") for name in packed.namelist()]
        elif path.is_file():
            texts.append(path.read_text(errors="replace"))
    assert where
    return meta, "\n".join(texts)


def targets_of(folder):
    """The targets of the pair of sites, as their files have them."""
    return {value for name in PAIR for value in pd.read_csv(folder / f"{name}.csv", dtype=str)["y"]}


def rows_that_left(folder, text):
    return sum(value in text for value in targets_of(folder))
