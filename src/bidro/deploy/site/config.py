"""A site's own configuration, `site.toml`: what its owner decides."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bidro.core.errors import BidroError
from bidro.core.files import read_toml
from bidro.data.tables import Source, query_in
from bidro.deploy.site.disclosure.rules import RELEASES, SCORES, SINGLE_ROWS, Release
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
    state: Path  # folder for what the site remembers (see `state`), and for its personal models
    release: Release = "moments"  # the most that may leave, whatever is agreed on
    min_rows: int = 10
    approve: str = "always"  # or "ask": every run waits for `bidro site approve`
    privacy: Budget | None = None  # what all that leaves may cost the people in its rows; None for no budget
    privacy_given_up: bool = False  # whether exact sums may leave although some did under a budget before
    # What its owner consents to: SCORES, SINGLE_ROWS, and factories of neural networks that may be called.
    allows: tuple[str, ...] = ()

    @property
    def min_cell(self) -> int:
        """Rows, or people, with two levels at once: half of those with one."""
        return (self.min_rows + 1) // 2

    @property
    def personal(self) -> Path:
        """Folder for the site's personal models, one folder a run."""
        return self.state / "personal"

    @classmethod
    def read(cls, path: Path) -> Site:
        """Raises BidroError for a file that is none, saying what is wrong with it."""
        content = read_toml(path)
        for name in sorted(set(content) & set(_GONE)):
            raise BidroError(f"'{path}' says {name}, of an earlier version: {_GONE[name]}.")
        unknown = sorted(set(content) - set(KEYS))
        if unknown:
            raise BidroError(f"'{path}': there is no entry {unknown[0]}; a site has {', '.join(KEYS)}.")
        missing = [name for name in ("client", "data", "schema") if name not in content]
        if missing:
            raise BidroError(f"'{path}' does not say '{missing[0]}'.")
        for name, kind in KEYS.items():
            if name in content and kind is not None and type(content[name]) is not kind:
                word = "a whole number" if kind is int else "a text"
                raise BidroError(f"'{path}': {name} = {content[name]!r} must be {word}.")
        least = content.get("min_rows", 10)
        if least < 2:
            raise BidroError(f"'{path}': min_rows must be at least 2.")
        if content.get("approve", "always") not in ("always", "ask"):
            raise BidroError(f'\'{path}\': approve must be "always" or "ask".')
        release = content.get("release", "moments")
        if release not in RELEASES:
            words = ", ".join(f'"{one}"' for one in RELEASES)
            raise BidroError(
                f"'{path}': release, the most that may leave, must be one of {words}; got {release!r}."
            )
        part = content.get("privacy")
        data: Source = path.parent / content["data"]
        if "query" in content:
            found = query_in(
                {"database": content["data"], "query": content["query"]}, path.parent, f"'{path}'"
            )
            assert found is not None
            data = found
        elif "://" in content["data"]:
            raise BidroError(f"'{path}': data is a database; query says what of it, \"select ...\".")
        return cls(
            content["client"],
            data,
            path.parent / content["schema"],
            path.parent / content.get("state", "state"),
            release,
            least,
            content.get("approve", "always"),
            None if part == GIVEN_UP else _budget(part, path),
            part == GIVEN_UP,
            _allowed(content.get("allows", []), path),
        )


# All that `site.toml` may say; None for what is looked at by itself.
KEYS: dict[str, type | None] = {
    "client": str,
    "data": str,
    "query": str,
    "schema": str,
    "state": str,
    "release": str,
    "min_rows": int,
    "approve": str,
    "privacy": None,
    "allows": None,
}
_TRUSTED = 'release = "trusted" is the most that may leave where the server is trusted'
# What it said before, and what says it now.
_GONE = {
    "trusted_server": _TRUSTED,
    "losses_with_kinks": _TRUSTED,
    "one_sample_replies": f'{_TRUSTED}, and allows = ["{SINGLE_ROWS}"] lets replies from one row leave',
    "score_models": f'allows = ["{SCORES}"] lets models from elsewhere be scored',
    "networks": 'allows = ["package.module:function"] names the factories that may be called',
    "min_cell": "two levels at once are had by at least half of min_rows",
    "max_seconds": "seconds in [limits] of what is agreed on says it",
    "max_runs": "runs in [limits] of what is agreed on says it",
    "personal": "personal models stand in the folder of state",
    "own": "personal models stand in the folder of state",
    "database": "data names the database, and query what of it",
}


def _allowed(content: Any, path: Path) -> tuple[str, ...]:
    """What the owner consents to."""
    if not isinstance(content, list):
        raise BidroError(
            f'\'{path}\': allows is a list of "{SCORES}", "{SINGLE_ROWS}" and factories of networks, '
            '["package.module:function"].'
        )
    for name in content:
        if name in (SCORES, SINGLE_ROWS):
            continue
        try:
            require_factory_name(name)
        except BidroError as error:
            raise BidroError(
                f'\'{path}\': allows has "{SCORES}", "{SINGLE_ROWS}" and factories of networks: {error}'
            ) from error
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
