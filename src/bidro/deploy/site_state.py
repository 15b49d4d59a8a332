"""The folder in which a site keeps what it must not forget: its key, a random id for its table, and a
database of what it has answered.

Several processes of one site use it at once (NVIDIA FLARE starts one a job). Whatever was committed is on
the disk before a reply that rests on it leaves, so that a process, or the machine, may end at any moment.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bidro.errors import BidroError
from bidro.privacy.write_ahead import write_ahead
from bidro.splits import cut_alone

KEY_FILE, DATABASE = "key", "state.sqlite"
_KEY_BYTES = 32
# A table's id is a whole number that a double holds exactly.
_ID_BITS = 52
_WAIT = 120.0  # seconds for another process of this site to end its transaction

_TABLES = """
CREATE TABLE IF NOT EXISTS folder (of_key BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS tables (digest BLOB PRIMARY KEY, id INTEGER NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS waiting (run TEXT PRIMARY KEY, first TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS decisions (run TEXT PRIMARY KEY, outcome TEXT NOT NULL, time TEXT NOT NULL,
  until TEXT NOT NULL, agreed TEXT NOT NULL, of_table TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS versions (id INTEGER PRIMARY KEY, people BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS asked (
  id INTEGER PRIMARY KEY, time TEXT NOT NULL, run TEXT NOT NULL, question TEXT NOT NULL,
  round INTEGER NOT NULL, digest TEXT NOT NULL, models INTEGER NOT NULL, outcome TEXT NOT NULL,
  times INTEGER NOT NULL,
  rows INTEGER, bytes INTEGER, reason TEXT);
CREATE INDEX IF NOT EXISTS asked_of_run ON asked (run, question, digest);
CREATE TABLE IF NOT EXISTS stated (question TEXT NOT NULL, about TEXT NOT NULL, content TEXT NOT NULL,
  answered INTEGER NOT NULL, means INTEGER NOT NULL, PRIMARY KEY (question, about, content));
CREATE TABLE IF NOT EXISTS work (run TEXT PRIMARY KEY, seconds REAL NOT NULL);
CREATE TABLE IF NOT EXISTS memory (coding TEXT PRIMARY KEY, content BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS people (id INTEGER PRIMARY KEY CHECK (id = 1), content BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS released (key BLOB PRIMARY KEY, sent INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS cuts (dealt_by TEXT NOT NULL, share REAL NOT NULL, cut TEXT NOT NULL,
  PRIMARY KEY (dealt_by, share));
CREATE TABLE IF NOT EXISTS looked (coding TEXT NOT NULL, knots TEXT NOT NULL, borne TEXT NOT NULL,
  PRIMARY KEY (coding, knots));
"""


@dataclass(frozen=True)
class SiteState:
    folder: Path
    key: bytes

    def __repr__(self) -> str:
        """Where it is, never the key."""
        return f"SiteState({str(self.folder)!r})"

    @classmethod
    def open(cls, folder: Path, client: str) -> SiteState:
        """The state of a client in a folder, which is made where there is none, for its owner's eyes only.

        Raises BidroError where it cannot be written, where it is another client's, or where its key is gone
        or another: under a new key no row would be known any more.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.chmod(0o700)
            database = folder / DATABASE
            if not (folder / KEY_FILE).exists():
                if database.exists() and database.stat().st_size:
                    raise BidroError(
                        f"'{folder}' has lost its file '{KEY_FILE}', without which this site knows none of "
                        "the rows that it has used; restore the folder from a copy."
                    )
                write_key(folder, secrets.token_bytes(_KEY_BYTES))
            state = cls(folder, (folder / KEY_FILE).read_bytes())
            if len(state.key) != _KEY_BYTES:
                raise BidroError(
                    f"'{folder / KEY_FILE}' must have {_KEY_BYTES} bytes; restore it from a copy."
                )
            os.close(os.open(database, os.O_CREAT | os.O_RDWR, 0o600))
            state._begin(client)
        except (OSError, sqlite3.Error) as error:
            raise BidroError(
                f"This site's state cannot be kept in '{folder}' ({error}); set state in its site.toml to a "
                "folder on a disk of its own that it may write to."
            ) from error
        return state

    def _begin(self, client: str) -> None:
        with closing(self._connection()) as connection:
            write_ahead(connection, _WAIT)
        check = self.derived(f"client {client}")
        with self.transaction() as connection:
            for statement in _TABLES.split(";"):
                connection.execute(statement)
            found = connection.execute("SELECT of_key FROM folder").fetchone()
            if found is None:
                connection.execute("INSERT INTO folder VALUES (?)", (check,))
            elif found[0] != check:
                raise BidroError(
                    f"The state in '{self.folder}' is that of another client than '{client}', or of another "
                    "key; give every site a folder of its own, state in its site.toml, or restore it from a "
                    "copy."
                )

    def derived(self, purpose: str) -> bytes:
        """32 bytes that only who has the key can know, others for every purpose."""
        return hashlib.blake2b(purpose.encode(), key=self.key, digest_size=32).digest()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All of it or nothing, and no other process of this site between its first and its last step."""
        with closing(self._connection()) as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """What is there, as it is now."""
        with closing(self._connection()) as connection:
            yield connection

    def _connection(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.folder / DATABASE, timeout=_WAIT, isolation_level=None)
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    def table_id(self, *content: bytes | NDArray[np.generic]) -> int:
        """A random number for a table with this content, the same whenever it is asked for; another content
        has another. It says nothing of the table."""
        hashed = hashlib.blake2b(key=self.derived("table"), digest_size=32)
        for part in content:
            hashed.update(part if isinstance(part, bytes) else np.ascontiguousarray(part).data)
        digest = hashed.digest()
        with self.transaction() as connection:
            found = connection.execute("SELECT id FROM tables WHERE digest = ?", (digest,)).fetchone()
            if found is not None:
                return int(found[0])
            while True:
                new = secrets.randbits(_ID_BITS)
                known = connection.execute("SELECT 1 FROM tables WHERE id = ?", (new,)).fetchone()
                if known is None:
                    connection.execute("INSERT INTO tables VALUES (?, ?)", (digest, new))
                    return new

    def version(self, people: Sequence[NDArray[np.uint64]], units: NDArray[np.uint64], least: int) -> int:
        """The number of the version of the site's table that these rows are, by the people in it: a new one
        where at least so many of the `units` (N,) are in none before, else the newest that has one of them.
        `people` are several hashes (N,) of each row, by any of which it is known again."""
        with self.transaction() as connection:
            versions = {
                int(number): np.frombuffer(content, np.uint64)
                for number, content in connection.execute("SELECT id, people FROM versions ORDER BY id DESC")
            }
            newest = np.zeros(len(units), np.int64)  # of the versions that have each row; 0 for none
            for number, kept in versions.items():
                known = np.logical_or.reduce([np.isin(hashes, kept) for hashes in people])
                newest[known & (newest == 0)] = number
            fresh = newest == 0
            if not fresh.all() and len(np.unique(units[fresh])) < least:
                return int(newest.max())
            content = np.unique(np.concatenate([hashes[fresh] for hashes in people])).tobytes()
            made = connection.execute("INSERT INTO versions (people) VALUES (?)", (content,))
            assert made.lastrowid is not None
            return made.lastrowid

    def cut(self, dealt_by: str, share: float) -> int | None:
        """Up to which random bits rows, or units, were kept out when sums over them first left, by what they
        are dealt by and the share that was wanted; None where none did. Where sums left before cuts were
        kept, each row was dealt by itself, and stays where it was."""
        asked = (dealt_by, float(share))
        with self.reading() as connection:
            found = connection.execute(
                "SELECT cut FROM cuts WHERE dealt_by = ? AND share = ?", asked
            ).fetchone()
            kept, used = (
                connection.execute(f"SELECT EXISTS (SELECT 1 FROM {name})").fetchone()[0]
                for name in ("cuts", "memory")
            )
        if found is not None:
            return int(found[0])
        return cut_alone(share) if used and not kept else None

    def keep_cut(self, dealt_by: str, share: float, cut: int) -> None:
        """Remember a cut for good; the first stays."""
        with self.transaction() as connection:
            connection.execute(
                "INSERT OR IGNORE INTO cuts VALUES (?, ?, ?)", (dealt_by, float(share), str(cut))
            )


def write_key(folder: Path, key: bytes) -> None:
    """Put a key of 32 bytes into a folder that has none; one that another process has put there stays."""
    handle, name = tempfile.mkstemp(dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(name, folder / KEY_FILE)
        except FileExistsError:
            return
    finally:
        Path(name).unlink()
