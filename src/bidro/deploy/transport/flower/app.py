"""Federated rounds over Flower: the carrier, and the two Flower apps.

The app that a run brings to the network (`bidros_app`) holds no code, only the names of the two below: bidro
is installed at every site, and its node there (`node`) calls the second itself. Sites know it by its hash,
which is the same wherever bidro and Flower are of the same versions, and answer no run that brings another. A
job travels as the run's configuration. Flower brings no files back, so the server's files are left in a
folder of the server, under a name that `drive` chose and reads.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.cli.build import build_fab_from_files
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from bidro.federated.engines.coordinator import Delivered

_APP = b"""
[project]
name = "bidro"
version = "1.0.0"
[tool.flwr.app]
publisher = "bidro"
[tool.flwr.app.components]
serverapp = "bidro.deploy.transport.flower.app:server_app"
clientapp = "bidro.deploy.transport.flower.app:client_app"
[tool.flwr.app.config]
job = ""
token = ""
"""


class App(NamedTuple):
    content: bytes
    digest: str


@cache
def bidros_app() -> App:
    content, _ = build_fab_from_files({"pyproject.toml": _APP})
    return App(content, hashlib.sha256(content).hexdigest())


# Between two looks for replies, a share of the time since they were asked for, within limits in seconds.
_SHARE, _SHORTEST, _LONGEST = 0.1, 0.1, 1.0
_QUESTION = 60.0  # seconds for a node to answer with its client's name, after which it is asked again


def _records(**values: bytes | str) -> RecordDict:
    return RecordDict({"bidro": ConfigRecord({**values})})


def _values(message: Message) -> dict[str, Any]:
    return dict(message.content.config_records.get("bidro", {}))


class FlowerCarrier:
    """Clients by name over a Flower grid.

    A node's name is the one its key was registered under (`flwr supernode register --name`); a node that was
    registered without one is asked for it. When two nodes have one name, a registered name counts before a
    claimed one, so that no site can pose as another; among equals the node that connected last counts,
    because a site that lost its key comes back as a new node while the old one still seems online.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._claimed: dict[int, str] = {}  # by node
        self._asked: dict[str, int] = {}  # the node, by the message that asks it

    def absent(self, names: Iterable[str]) -> frozenset[str]:
        return frozenset(names) - frozenset(self._nodes())

    def exchange(self, messages: Mapping[str, bytes], timeout: float) -> Delivered:
        began = time.monotonic()
        deadline = began + timeout
        delivered = Delivered({}, dict.fromkeys(messages, "not connected"))
        nodes = self._nodes()
        reached = [name for name in messages if name in nodes]
        # A message that outlived its round would be worked on by a site that comes back late.
        sent = self._push(
            [
                Message(_records(bytes=messages[name]), nodes[name], MessageType.TRAIN, ttl=timeout)
                for name in reached
            ]
        )
        waiting = {id_: name for id_, name in zip(sent, reached, strict=True) if id_}
        delivered.failures.update(dict.fromkeys(waiting.values(), f"no reply in {timeout:g} s"))
        while waiting and time.monotonic() < deadline:
            for reply in self._grid.pull_messages(list(waiting)):
                name = waiting.pop(reply.metadata.reply_to_message_id)
                values = {"failure": reply.error.reason} if reply.has_error() else _values(reply)
                content = values.get("bytes")
                if isinstance(content, bytes):
                    delivered.replies[name] = content
                    del delivered.failures[name]
                else:
                    delivered.failures[name] = str(values.get("failure") or "a reply without content")
            if waiting:
                time.sleep(min(max(_SHARE * (time.monotonic() - began), _SHORTEST), _LONGEST))
        return delivered

    def _push(self, messages: list[Message]) -> list[str]:
        return list(self._grid.push_messages(messages)) if messages else []

    def _nodes(self) -> dict[str, int]:
        """The nodes that are online, by name; nodes whose name is not known are asked, without waiting."""
        online = sorted(self._grid.get_nodes(), key=lambda node: (bool(node.name), node.last_activated_at))
        for reply in self._grid.pull_messages(list(self._asked)) if self._asked else []:
            node_id = self._asked.pop(reply.metadata.reply_to_message_id)
            if reply.has_content():
                self._claimed[node_id] = str(_values(reply).get("name", ""))
        known = self._claimed.keys() | set(self._asked.values())
        strangers = [node.node_id for node in online if not node.name and node.node_id not in known]
        questions = [Message(_records(), id_, MessageType.QUERY, ttl=_QUESTION) for id_ in strangers]
        self._asked |= {id_: node for id_, node in zip(self._push(questions), strangers, strict=True) if id_}
        names = {node.node_id: node.name or self._claimed.get(node.node_id) for node in online}
        return {name: node_id for node_id, name in names.items() if name}


server_app = ServerApp()
client_app = ClientApp()


@server_app.main()
def _main(grid: Grid, context: Context) -> None:
    from bidro.deploy.server.serve import leave_files

    folder = result_folder(os.environ["BIDRO_RUNS"], str(context.run_config["token"]))
    leave_files(str(context.run_config["job"]), FlowerCarrier(grid), folder)


@client_app.query()
def _name(message: Message, context: Context) -> Message:
    site = tomllib.loads(Path(os.environ["BIDRO_SITE"]).read_text(encoding="utf-8"))
    return Message(_records(name=site["client"]), reply_to=message)


@client_app.train()
def _reply(message: Message, context: Context) -> Message:
    from bidro.deploy.site.session import reply_or_failure

    found = reply_or_failure(_values(message).get("bytes"))
    records = _records(bytes=found) if isinstance(found, bytes) else _records(failure=found)
    return Message(records, reply_to=message)


def refused(message: Message) -> Message:
    """A site's reply to a run that brings another app than bidro's."""
    logging.getLogger(__name__).warning("a run that brings another app than bidro's was not answered")
    return Message(_records(failure="the run's app is not bidro's of this site's version"), reply_to=message)


def result_folder(runs: str, token: str) -> Path:
    return Path(runs) / "flower" / token
