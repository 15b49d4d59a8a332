"""Which sites are connected to a FLARE server, for its monitoring: a component that its kit names."""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent

from bidro.core.files import write_text
from bidro.deploy.server.runs import VARIABLE

CONNECTED = "connected.json"  # in the folder of the server's runs
_LOOK = 2.0  # seconds between two looks
# A site tells every few seconds that it is there; one that has been silent for so long is not.
_SILENT = 20.0


class Watch(FLComponent):  # type: ignore[misc]
    """Writes the names of the connected sites into the folder of runs, whenever these change."""

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        if event_type == EventType.SYSTEM_START and VARIABLE in os.environ:
            place = Path(os.environ[VARIABLE]) / CONNECTED
            threading.Thread(target=_watch, args=(fl_ctx.get_engine(), place), daemon=True).start()


def _watch(engine: Any, place: Path) -> None:
    before = None
    while True:
        with suppress(Exception):  # monitoring never ends a server
            now = time.time()
            there = sorted(one.name for one in engine.get_clients() if now - one.last_connect_time < _SILENT)
            if there != before:
                write_text(place, json.dumps(there))
                before = there
        time.sleep(_LOOK)
