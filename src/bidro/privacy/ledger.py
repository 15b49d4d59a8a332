"""What a site has released under its budget: nothing is sent that was not first charged and stored.

A release is one transaction of an SQLite database (write-ahead log, every commit on the disk before it
returns). Where the key is known, the bytes that were sent before are sent again, at no cost. Otherwise the
budget is checked in exact fractions, the noise is drawn, the bytes are stored and committed, and only then
returned. Whatever ends a process or a machine, a query is answered once with one draw of noise: averaging
over repeated queries, runs or crashes yields nothing.

All releases are charged to one budget, whichever rows they are over. That nobody is both in training and held
out is true within one agreement and one version of a table: another hold_out, a column less or one corrected
cell splits the rows anew, and a person may be charged for releases of either side.

The key stands for all that determines a release; who requested it and when is stored with it and changes
nothing. What the ledger cannot see: a database restored from a copy has forgotten what was released since,
and two copies of a site each have the whole budget.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from bidro.core.database import create, reading, transaction
from bidro.core.errors import BidroError

_TABLES = (
    """CREATE TABLE IF NOT EXISTS releases (key BLOB PRIMARY KEY, part TEXT NOT NULL, rho TEXT NOT NULL,
       rows_per_person INTEGER NOT NULL, time TEXT NOT NULL, payload BLOB NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS sent (key BLOB NOT NULL, about TEXT NOT NULL, first TEXT NOT NULL,
       last TEXT NOT NULL, times INTEGER NOT NULL, PRIMARY KEY (key, about))""",
    "CREATE TABLE IF NOT EXISTS identity (one INTEGER PRIMARY KEY CHECK (one = 1), id BLOB NOT NULL)",
)


class OverspentError(BidroError):
    """A new query for which too little of a budget is left."""


class Sent(NamedTuple):
    """To whom and when a release was sent."""

    about: Mapping[str, str]
    first: str
    last: str
    times: int


class Release(NamedTuple):
    """One entry of a ledger."""

    key: bytes
    part: str  # of the rows that it is over, for its owner's eyes: all parts have one budget
    rho: Fraction  # what it cost
    rows_per_person: int  # for which it cost that
    time: str
    size: int  # bytes that were sent
    sent: tuple[Sent, ...]

    def cost(self, rows: int) -> Fraction:
        """To a person with so many rows, no fewer than it was for."""
        return self.rho * Fraction(rows, self.rows_per_person) ** 2


@dataclass(frozen=True)
class Ledger:
    """In a file of its own, for its owner's eyes only."""

    path: Path

    @classmethod
    def open(cls, path: Path) -> Ledger:
        """The ledger in a file, which is made where there is none. Raises BidroError where it cannot be."""
        ledger = cls(path)
        try:
            create(path)
            with transaction(path) as connection:
                for statement in _TABLES:
                    connection.execute(statement)
                connection.execute("INSERT OR IGNORE INTO identity VALUES (1, ?)", (secrets.token_bytes(32),))
        except (OSError, sqlite3.Error) as error:
            raise BidroError(
                f"The ledger of what this site has released cannot be kept in '{path}' ({error}); without it "
                "nothing can be released under a budget. Give it a disk that it may write to, or restore it."
            ) from error
        return ledger

    def release(
        self,
        key: bytes,
        part: str,
        rho: Fraction,
        budget: Fraction,
        about: Mapping[str, str],
        draw: Callable[[], bytes],
        rows_per_person: int = 1,
    ) -> bytes:
        """The bytes of the release that `key` stands for: those sent before, or else what `draw` gives,
        charged with rho to the one budget of all rows; `part` says which of them it is over.

        rho is what it costs a person with `rows_per_person` rows; where releases were for more rows a person,
        it is charged for as many as the most that ever were. `draw` is called inside the transaction, at most
        once. Raises OverspentError where the query is new and too little is left.
        """
        if rho <= 0:
            raise BidroError(f"A release must cost a positive rho; got {float(rho):g}.")
        try:
            with transaction(self.path) as connection:
                known = connection.execute("SELECT payload FROM releases WHERE key = ?", (key,)).fetchone()
                if known is None:
                    self._require(connection, rho, budget, rows_per_person)
                    payload = draw()
                    connection.execute(
                        "INSERT INTO releases VALUES (?, ?, ?, ?, ?, ?)",
                        (key, part, str(rho), rows_per_person, _now(), payload),
                    )
                else:
                    payload = bytes(known[0])
                connection.execute(
                    "INSERT INTO sent VALUES (?, ?, ?, ?, 1) ON CONFLICT (key, about) "
                    "DO UPDATE SET last = excluded.last, times = times + 1",
                    (key, json.dumps(dict(about), sort_keys=True), _now(), _now()),
                )
        except sqlite3.Error as error:
            raise BidroError(
                f"The ledger '{self.path}' cannot be written ({error}); nothing was released."
            ) from error
        return payload

    @property
    def identity(self) -> bytes:
        """32 random bytes that no other ledger has, not one that is begun anew in its place either."""
        with reading(self.path) as connection:
            return bytes(connection.execute("SELECT id FROM identity").fetchone()[0])

    def spent(self, rows_per_person: int = 1) -> Fraction:
        """What all releases have cost so far a person with so many rows, or with as many as the most that a
        release was for."""
        with reading(self.path) as connection:
            return _spent(connection, _most_rows(connection, rows_per_person))

    def most_rows(self, rows_per_person: int = 1) -> int:
        """The most rows a person that a release was for, or so many if that is more."""
        with reading(self.path) as connection:
            return _most_rows(connection, rows_per_person)

    def known(self) -> set[bytes]:
        """The keys of all releases."""
        with reading(self.path) as connection:
            return {bytes(key) for (key,) in connection.execute("SELECT key FROM releases")}

    def releases(self) -> list[Release]:
        """All entries, oldest first."""
        with reading(self.path) as connection:
            sent: dict[bytes, list[Sent]] = {}
            for key, about, first, last, times in connection.execute(
                "SELECT key, about, first, last, times FROM sent ORDER BY rowid"
            ):
                sent.setdefault(bytes(key), []).append(Sent(json.loads(about), first, last, times))
            rows = connection.execute(
                "SELECT key, part, rho, rows_per_person, time, length(payload) FROM releases ORDER BY rowid"
            )
            return [
                Release(bytes(key), part, Fraction(rho), k, time, size, tuple(sent[bytes(key)]))
                for key, part, rho, k, time, size in rows
            ]

    def _require(self, connection: sqlite3.Connection, rho: Fraction, budget: Fraction, k: int) -> None:
        most = _most_rows(connection, k)
        left, cost = budget - _spent(connection, most), rho * Fraction(most, k) ** 2
        if cost > left:
            share = max(float(left / budget), 0.0) if budget > 0 else 0.0
            raise OverspentError(
                f"This query is new to this site and would cost {float(cost / budget):.3g} of its privacy "
                f"budget, of which {share:.3g} is left; what was answered before is answered again for "
                "nothing."
                if budget > 0
                else "This site has no privacy budget, so that nothing can be released."
            )


def _most_rows(connection: sqlite3.Connection, rows_per_person: int) -> int:
    """For how many rows a person costs are added up: who was promised something stays promised, also when
    rows_per_person is lowered."""
    most = connection.execute("SELECT MAX(rows_per_person) FROM releases").fetchone()[0]
    return max(rows_per_person, most or 1)


def _spent(connection: sqlite3.Connection, most: int) -> Fraction:
    """Exactly. Noise that was drawn for people with k rows costs one with `most` rows, no fewer than k, as
    many times more as the square of their numbers says."""
    charged = connection.execute("SELECT rho, rows_per_person FROM releases")
    return sum((Fraction(rho) * Fraction(most, k) ** 2 for rho, k in charged), Fraction(0))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
