"""What a federated run is to do, as one text that reaches the server: `federate.toml` and the schema."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bidro.deploy.agreed import Agreed
from bidro.engines.coordinator import Policy
from bidro.errors import BidroError, one_line
from bidro.guarantees.asked import is_number
from bidro.training import AlgorithmOne, Replies
from bidro.workflow.fit import fit_options
from bidro.workflow.options import FitOptions
from bidro.workflow.toml_files import json_object, read_toml

# Options of `bidro fit` that have no place here: the schema and the sites' own files say these things.
_NOT_HERE = ("tables", "client", "target", "task", "features", "support", "missing", "unit")


@dataclass(frozen=True)
class Job:
    run: str  # its name; checkpoints are kept under it
    clients: tuple[str, ...]
    agreed: Agreed
    options: FitOptions
    policy: Policy = field(default_factory=Policy)
    replies: Replies = "curvature"
    algorithm: AlgorithmOne | None = None
    resume: bool = False
    max_weight: float = 1.0  # no site counts for more than this in training, however many rows it reports

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", self.run):
            raise BidroError(
                f"A run's name has letters, digits, dots, dashes and underscores only, not as '{self.run}': "
                "name it with --run NAME."
            )
        if not self.clients or len(set(self.clients)) < len(self.clients):
            raise BidroError('Name the clients that take part, each once: clients = ["north", "south"].')
        if self.options.radius == "bootstrap":
            raise BidroError(
                "radius = 'bootstrap' is not for machines apart; use 'cross-validate' or numbers."
            )
        if not is_number(self.max_weight) or not 1 / len(self.clients) <= self.max_weight <= 1:
            raise BidroError(
                f"max_weight must be a share from 1 / {len(self.clients)}, as there are {len(self.clients)} "
                f"clients, to 1; got {self.max_weight!r}."
            )
        # What training would refuse is said before any site is asked.
        self.options.check()
        fit_options(self.options, self.agreed.schema, self.replies)

    def to_text(self) -> str:
        content = {**dataclasses.asdict(self), "agreed": self.agreed.to_dict()}
        return json.dumps(content, sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> Job:
        """Raises BidroError for what `to_text` would not have written."""
        try:
            content = json_object(text, "The job cannot be read")
            options: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in content["options"].items()
            }
            agreed, one = Agreed.from_dict(content["agreed"]), content["algorithm"]
            options["support"] = agreed.support
            parts: dict[str, Any] = {
                "clients": tuple(content["clients"]),
                "agreed": agreed,
                "options": FitOptions(**options),
                "policy": Policy(**content["policy"]),
                "algorithm": None if one is None else AlgorithmOne(**one),
            }
            return cls(**{**content, **parts})
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, LookupError) as error:
            if isinstance(error, BidroError):
                raise
            raise BidroError(f"The job cannot be read: {type(error).__name__}, {one_line(error)}.") from error


class Sites(NamedTuple):
    agreed: Agreed
    clients: tuple[str, ...]


@dataclass(frozen=True)
class Config:
    """`federate.toml`: the job, and how each engine reaches its network."""

    job: Job
    engines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path | None, run: str, sites: Sites | None = None, **given: Any) -> Config:
        """From the file, if there is one; `sites` stand in for what it says of clients and schema.

        `given` are parts of the job that count more than the file's. Raises BidroError for anything in the
        file that is not understood.
        """
        content: dict[str, Any] = {} if path is None else read_toml(path)
        for name in ("network", "algorithm", "flare", "flower"):
            if not isinstance(content.get(name, {}), dict):
                raise BidroError(f"'{path}': '{name}' is a part of its own, [{name}].")
        if not isinstance(content.get("clients", []), list):
            raise BidroError(f'\'{path}\': clients is a list of names, ["north", "south"].')
        folder = Path() if path is None else path.parent
        engines: dict[str, Any] = {
            name: _paths(content.pop(name), folder) for name in ("flare", "flower") if name in content
        }
        if sites is None:
            for name in ("schema", "clients"):
                if name not in content:
                    raise BidroError(f"'{path}' does not say '{name}'.")
            agreed = Agreed.read(folder / str(content.pop("schema")))
            sites = Sites(agreed, tuple(map(str, content.pop("clients"))))
        else:
            content = {name: value for name, value in content.items() if name not in ("schema", "clients")}
        network = dict(content.pop("network", {}))
        sent, most = network.pop("replies", "curvature"), network.pop("max_weight", 1.0)
        algorithm = content.pop("algorithm", None)
        known = {f.name for f in dataclasses.fields(FitOptions)} - set(_NOT_HERE)
        for found, allowed in (
            (content, known),
            (network, {f.name for f in dataclasses.fields(Policy)}),
            (algorithm or {}, {f.name for f in dataclasses.fields(AlgorithmOne)}),
        ):
            unknown = sorted(set(found) - allowed)
            if unknown:
                raise BidroError(
                    f"'{path}' has an unknown entry '{unknown[0]}'; there are {', '.join(sorted(allowed))}."
                )
        parts: dict[str, Any] = {
            "policy": Policy(**network),
            "replies": sent,
            "max_weight": most,
            "algorithm": None if algorithm is None else AlgorithmOne(**{"rounds": 0, **algorithm}),
            **{name: value for name, value in given.items() if value is not None},
        }
        return cls(Job(run, sites.clients, sites.agreed, options_of(sites.agreed, content), **parts), engines)


def options_of(agreed: Agreed, given: Mapping[str, Any]) -> FitOptions:
    """The options of `bidro fit` that these are, with what the schema says."""
    schema = agreed.schema
    return FitOptions(
        client=schema.client,
        target=schema.target,
        task="regression" if schema.classes is None else "classification",
        features=tuple(column.name for column in schema.columns),
        support=agreed.support,
        unit=schema.unit,
        **given,
    )


def _paths(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Entries that name files are relative to the configuration."""
    files = ("startup_kit", "root_certificates", "runs")
    for name in files:
        if not isinstance(settings.get(name, ""), str):
            raise BidroError(
                f"How to reach the network: {name} must be the name of a file or folder, a text."
            )
    return {name: str(folder / v) if name in files else v for name, v in settings.items()}
