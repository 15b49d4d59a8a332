"""What a federated run is to do, as one text that reaches the server: who takes part, and the agreement."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bidro.core.errors import BidroError, is_number, one_line
from bidro.core.files import json_object, read_toml, renamed
from bidro.deploy.agreement.agreement import Agreement
from bidro.federated.engines.coordinator import Policy
from bidro.fit.settings import TRAINING


@dataclass(frozen=True)
class Job:
    run: str  # its name; checkpoints are kept under it
    clients: tuple[str, ...]
    agreed: Agreement
    policy: Policy = field(default_factory=Policy)
    resume: bool = False
    max_weight: float = 1.0  # no site counts for more than this in training, however many rows it reports
    check: bool = False  # whether sites are asked for verdicts alone
    describe: bool = False  # whether sites are asked for Table 1 alone
    certify: bytes | None = None  # an ONNX file to be certified; None where a model is to be trained

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", self.run):
            raise BidroError(
                f"A run's name has letters, digits, dots, dashes and underscores only, not as '{self.run}': "
                "name it with --run NAME."
            )
        if not self.clients or len(set(self.clients)) < len(self.clients):
            raise BidroError('Name the clients that take part, each once: clients = ["north", "south"].')
        if not is_number(self.max_weight) or not 1 / len(self.clients) <= self.max_weight <= 1:
            raise BidroError(
                f"max_weight must be a share from 1 / {len(self.clients)}, as there are {len(self.clients)} "
                f"clients, to 1; got {self.max_weight!r}."
            )

    def to_text(self) -> str:
        content = {
            "run": self.run,
            "clients": list(self.clients),
            "agreed": self.agreed.to_dict(),
            "policy": dataclasses.asdict(self.policy),
            "resume": self.resume,
            "max_weight": self.max_weight,
        }
        if self.check:
            content["check"] = True
        if self.describe:
            content["describe"] = True
        if self.certify is not None:
            content["certify"] = base64.b64encode(self.certify).decode()
        return json.dumps(content, sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> Job:
        """Raises BidroError for what `to_text` would not have written."""
        try:
            content = json_object(text, "The job cannot be read")
            parts: dict[str, Any] = {
                "clients": tuple(content["clients"]),
                "agreed": Agreement.from_dict(content["agreed"]),
                "policy": Policy(**content["policy"]),
            }
            if "certify" in content:
                parts["certify"] = base64.b64decode(content["certify"], validate=True)
            return cls(**{**content, **parts})
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, LookupError) as error:
            if isinstance(error, BidroError):
                raise
            raise BidroError(f"The job cannot be read: {type(error).__name__}, {one_line(error)}.") from error


class Sites(NamedTuple):
    agreed: Agreement
    clients: tuple[str, ...]


@dataclass(frozen=True)
class Config:
    """`federate.toml`: the job, and how each engine reaches its network."""

    job: Job
    engines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path | None, run: str, sites: Sites | None = None, resume: bool = False) -> Config:
        """From the file, if there is one; `sites` stand in for what it says of clients and schema.

        Raises BidroError for anything in the file that is not understood.
        """
        content: dict[str, Any] = {} if path is None else read_toml(path)
        _require_entries(content, path)
        folder = Path() if path is None else path.parent
        engines: dict[str, Any] = {
            name: _paths(content[name], folder) for name in ("flare", "flower") if name in content
        }
        if sites is None:
            for name in ("schema", "clients"):
                if name not in content:
                    raise BidroError(f"'{path}' does not say '{name}'.")
            sites = Sites(schema_of(content, folder), tuple(map(str, content["clients"])))
        network = renamed(content.get("network", {}))
        most = network.pop("max_weight", 1.0)
        known = {one.name for one in dataclasses.fields(Policy)}
        unknown = sorted(set(network) - known)
        if unknown:
            raise BidroError(
                f"[network] of '{path}' has an unknown entry '{unknown[0]}'; there are "
                f"{', '.join(sorted({*known, 'max_weight'}))}."
            )
        return cls(Job(run, sites.clients, sites.agreed, Policy(**network), resume, most), engines)


def agreement_in(path: Path | None) -> Agreement | None:
    """The agreement that a configuration names, if there is a configuration and it names one."""
    if path is None:
        return None
    content = read_toml(path)
    _require_entries(content, path)
    return schema_of(content, path.parent) if "schema" in content else None


def schema_of(content: Mapping[str, Any], folder: Path) -> Agreement:
    return Agreement.read(folder / str(content["schema"]))


def _require_entries(content: Mapping[str, Any], path: Path | None) -> None:
    known = {"clients", "schema", "network", "flare", "flower"}
    for name in content:
        if name in (*TRAINING, "release", "algorithm", "training", "limits"):
            part = name if name in ("algorithm", "training", "limits") else "training"
            where = "" if name == "release" else f"[{part}] of "
            raise BidroError(
                f"'{path}' says '{name}', which sites agree on: it stands in {where}schema.toml."
            )
        if name not in known:
            raise BidroError(f"'{path}' has an unknown entry '{name}'; there are {', '.join(sorted(known))}.")
    for name in ("network", "flare", "flower"):
        if not isinstance(content.get(name, {}), dict):
            raise BidroError(f"'{path}': '{name}' is a part of its own, [{name}].")
    if not isinstance(content.get("clients", []), list):
        raise BidroError(f'\'{path}\': clients is a list of names, ["north", "south"].')


def _paths(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Entries that name files are relative to the configuration."""
    files = ("startup_kit", "root_certificates", "runs")
    for name in files:
        if not isinstance(settings.get(name, ""), str):
            raise BidroError(
                f"How to reach the network: {name} must be the name of a file or folder, a text."
            )
    return {name: str(folder / v) if name in files else v for name, v in settings.items()}
