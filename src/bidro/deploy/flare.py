"""Federated rounds over NVIDIA FLARE: bidro is installed at every site, and a job carries no code.

The parts of a job are `flare_server.Server` and `flare_site.Client`, which import what they need when the job
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
from typing import Any

from nvflare.apis.signal import Signal
from nvflare.collab.api.exceptions import CollabCallError, RunAborted
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import new_cell_message
from nvflare.fuel.f3.mpm import MainProcessMonitor

from bidro.engines.carrier import Delivered

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
                    cut = self._connections.lost()
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
