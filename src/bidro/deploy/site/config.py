"""A site's own configuration, `site.toml`: what its owner decides."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from bidro.core.errors import BidroError
from bidro.core.files import read_toml, renamed
from bidro.data.tables import Source, query_in
from bidro.neural.models import require_factory_name
from bidro.privacy.terms import Budget

# In place of a part [privacy]: the owner does not keep what was promised by releases under a budget.
GIVEN_UP = "given up"


@dataclass(frozen=True)
class Site:
    """`site.toml`; paths are relative to it."""

    client: str
    data: Source  # a file, or what a query of a database gives
    schema: Path
    personal: Path  # folder for the site's personal models, one folder a run
    state: Path  # folder for what the site remembers: see `state`
    min_rows: int = 10
    min_cell: int = 5
    approve: str = "always"  # or "ask": every run waits for `bidro site approve`
    max_seconds: int = 3600  # of this site's time that one run may use
    max_runs: int = 1000  # that it works for, by their names: it keeps something of each
    one_sample_replies: bool = False
    losses_with_kinks: bool = False
    trusted_server: bool = False  # to ask about the models that bidro asks about, and no others
    privacy: Budget | None = None  # what all that leaves may cost the people in its rows; None for no budget
    privacy_given_up: bool = False  # whether exact sums may leave although some did under a budget before
    score_models: bool = False  # whether to run models that the server sends on held-out rows
    networks: tuple[str, ...] = ()  # factories of neural networks that may be called here

    @classmethod
    def read(cls, path: Path) -> Site:
        content = renamed(read_toml(path))
        part = content.pop("privacy", None)
        given_up = part == GIVEN_UP
        privacy = None if given_up else _budget(part, path)
        networks = _factories(content.pop("networks", []), path)
        of_database: dict[str, Any] = {
            name: content.pop(name) for name in ("database", "query") if name in content
        }
        query = query_in(of_database, path.parent, f"'{path}'")
        if query is not None and "data" in content:
            raise BidroError(f"'{path}' names both data and a database; a site has one table.")
        kinds = {"Path": "str", "Source": "str"}
        known = {one.name: kinds.get(str(one.type), str(one.type)) for one in fields(cls)}
        known["privacy_given_up"] = "privacy"  # which has been taken out
        for name, value in content.items():
            if type(value).__name__ != known.get(name):
                raise BidroError(
                    f"'{path}': there is no entry {name} = {value!r}; a site has client, data (or database "
                    "and query), schema, personal, state, approve (texts), min_rows, min_cell, max_seconds, "
                    "max_runs (numbers), "
                    "one_sample_replies, losses_with_kinks, trusted_server and score_models (true or false), "
                    "networks (a list of texts), and a part [privacy]."
                )
        wanted = ("client", "data", "schema") if query is None else ("client", "schema")
        missing = [name for name in wanted if name not in content]
        if missing:
            raise BidroError(f"'{path}' does not say '{missing[0]}'.")
        if content.get("min_rows", 10) < 2:
            raise BidroError(f"'{path}': min_rows must be at least 2.")
        if content.get("min_cell", 5) < 1:
            raise BidroError(f"'{path}': min_cell must be at least 1.")
        for name in ("max_seconds", "max_runs"):
            if content.get(name, 1) < 1:
                raise BidroError(f"'{path}': {name} must be at least 1.")
        if content.get("approve", "always") not in ("always", "ask"):
            raise BidroError(f'\'{path}\': approve must be "always" or "ask".')
        content = {"personal": "personal", "state": "state", **content}
        named = [name for name in ("data", "schema", "personal", "state") if name in content]
        paths: dict[str, Any] = {name: path.parent / content[name] for name in named}
        if query is not None:
            paths["data"] = query
        return cls(**{**content, **paths}, privacy=privacy, privacy_given_up=given_up, networks=networks)


def _factories(content: Any, path: Path) -> tuple[str, ...]:
    """The names of factories that are allowed."""
    if not isinstance(content, list):
        raise BidroError(f"'{path}': networks is a list of factories, [\"package.module:function\"].")
    for name in content:
        try:
            require_factory_name(name)
        except BidroError as error:
            raise BidroError(f"'{path}': networks: {error}") from error
    return tuple(content)


def _budget(content: Any, path: Path) -> Budget | None:
    """The part [privacy]; None where there is none."""
    if content is None:
        return None
    known = {"epsilon", "delta", "rows_per_person", "honest"}
    if not isinstance(content, dict) or "epsilon" not in content or not set(content) <= known:
        raise BidroError(
            f"'{path}': [privacy] says epsilon, and may say delta, rows_per_person and honest, as in "
            f'[privacy] epsilon = 1; or, where a budget is given up, privacy = "{GIVEN_UP}".'
        )
    try:
        return Budget(**content)
    except BidroError as error:
        raise BidroError(f"'{path}': {error}") from error
