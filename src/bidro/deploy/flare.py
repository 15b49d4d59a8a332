"""Federated rounds over NVIDIA FLARE: bidro is installed at every site, and a job carries no code.

The parts of a job are `flare_server.Server` and `flare_site.Client`, which import what they need when the job
begins, all at the same time.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from nvflare.apis.signal import Signal
from nvflare.collab.api.exceptions import CollabCallError, RunAborted
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import new_cell_message
from nvflare.fuel.f3.mpm import MainProcessMonitor
from nvflare.lighter.spec import Builder

from bidro.engines.carrier import Delivered

JOB = "job.json"  # in the server's part of the job
RESULT = "bidro"  # folder of the job's result
FAILURE = "bidro_failure.txt"  # instead of it, if the server's part raised
# What a job needs on each participant's list of classes.
_PARTS = ("nvflare.collab.runtime", "bidro.deploy.flare_server", "bidro.deploy.flare_site")
_LOOK = 1.0  # seconds between two looks at whether silent sites are still connected
_BREAK = 4.0  # seconds without connection after which a site is lost; FLARE reconnects after 1 and 3 s


class FlareCarrier:
    """The sites of the running job; made inside it, from the proxies that FLARE hands to the server."""

    def __init__(self, sites: Sequence[Any], aborted: Signal) -> None:
        self._sites = {site.name: site.get_child("client") for site in sites}
        self._aborted = aborted
        self._cells = {name: site.backend.target_fqcn for name, site in self._sites.items()}
        self._direct = self._connected()  # not those behind a relay, whose connection cannot be seen
        self._missing: dict[str, float] = {}  # since when the connection is lost

    def present(self) -> frozenset[str]:
        return frozenset(self._sites) - (self._direct - self._connected())

    def exchange(self, messages: Mapping[str, bytes], timeout: float) -> Delivered:
        known = [name for name in messages if name in self._sites]
        strangers = {name: "not part of this job" for name in messages if name not in known}
        delivered, gone = Delivered({}, strangers), set(strangers)
        stop = {name: Signal() for name in known}
        pool = ThreadPoolExecutor(max(1, len(known)))
        asked = {pool.submit(self._ask, name, messages[name], timeout, stop[name]): name for name in known}
        pending = set(asked)
        deadline, pause = time.monotonic() + timeout, _LOOK / 10
        try:
            while pending:
                left = deadline - time.monotonic()
                done, pending = wait(pending, timeout=max(0.0, min(pause, left)))
                for call in done:
                    answer = call.result()
                    if isinstance(answer, bytes):
                        delivered.replies[asked[call]] = answer
                    else:
                        delivered.failures[asked[call]] = str(answer)[:500]
                if self._aborted.triggered:
                    raise RunAborted("the job was aborted")
                if left <= 0:
                    lost = dict.fromkeys(pending, f"no reply within {timeout:g} s")
                else:
                    cut = self._gone()
                    lost = {call: "connection lost" for call in pending if asked[call] in cut}
                    gone |= {asked[call] for call in lost}
                delivered.failures.update({asked[call]: why for call, why in lost.items()})
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

    def _gone(self) -> set[str]:
        """The sites whose connection is lost for so long that it was no short break of the network."""
        now = time.monotonic()
        self._missing = {name: self._missing.get(name, now) for name in self._direct - self._connected()}
        return {name for name, since in self._missing.items() if now - since >= _BREAK}

    def _connected(self) -> set[str]:
        """The sites whose job process is connected to the server: a dead one is not, a busy one is."""
        network = next(iter(self._sites.values())).backend.cell.core_cell
        question = new_cell_message({}, "")
        reply = network.send_request("_net_manager", "peers", FQCN.ROOT_SERVER, question, timeout=_LOOK)
        if not isinstance(reply.payload, list):
            return set(self._sites)
        return {name for name, cell in self._cells.items() if cell in reply.payload}


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


class BidroBuilder(Builder):  # type: ignore[misc]
    """A step for project.yml, after StaticFileBuilder: kits that take bidro's jobs, and send no log away.

    Without it a site would have to let jobs bring their own code (BYOC), and FLARE would copy each site's
    error log to the server, where a line may hold something of the site's data. The server keeps its jobs in
    `storage` (an absolute path there) and not in the system's temporary folder, and sees sooner that a site
    is gone or that a job has ended.
    """

    def __init__(self, storage: str) -> None:
        self.storage = storage

    def build(self, project: Any, ctx: Any) -> None:
        for participant in [project.get_server(), *project.get_clients()]:
            path = Path(ctx.get_local_dir(participant), "resources.json.default")
            resources = json.loads(path.read_text(encoding="utf-8").replace("/tmp/nvflare", self.storage))
            resources["class_allow_list"] += _PARTS
            resources["allow_log_streaming"] = False
            for server in resources.get("servers", []):
                server.update(heart_beat_timeout=60, check_engine_frequency=0.5)
            path.write_text(json.dumps(resources, indent=2), encoding="utf-8")
