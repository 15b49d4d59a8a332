"""The app that a run brings to a Flower network: it holds no code, only the names of bidro's two parts.

Sites know it by its hash, which is the same wherever bidro and Flower are of the same versions, and answer no
run that brings another.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import NamedTuple

from flwr.cli.build import build_fab_from_files

_APP = b"""
[project]
name = "bidro"
version = "1.0.0"
[tool.flwr.app]
publisher = "bidro"
[tool.flwr.app.components]
serverapp = "bidro.deploy.flower:server_app"
clientapp = "bidro.deploy.flower:client_app"
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
