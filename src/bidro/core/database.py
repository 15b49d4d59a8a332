"""SQLite files that several processes of a site use at once. Whatever was committed is on the disk, so that a
process, or the machine, may end at any moment."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

_WAIT = 120.0  # seconds for another process of this site to end its transaction
_PAUSE = 0.01


def create(path: Path) -> None:
    """The file, for its owner's eyes only, where there is none. Raises OSError or sqlite3.Error where it
    cannot be.

    Where other processes do the same at this moment SQLite says at once that it is locked, whatever the
    connection's timeout: so it is tried again.
    """
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    path.chmod(0o600)
    last = time.monotonic() + _WAIT
    with reading(path) as connection:
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > last:
                    raise
                time.sleep(_PAUSE)


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """What is there, as it is now."""
    with closing(sqlite3.connect(path, timeout=_WAIT, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        yield connection


@contextmanager
def transaction(path: Path) -> Iterator[sqlite3.Connection]:
    """All of it or nothing, and no other process of this site between its first and its last step."""
    with reading(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")
