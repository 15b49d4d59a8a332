"""SQLite files that several processes write: changes go into a log first, and survive a crash."""

from __future__ import annotations

import sqlite3
import time

_PAUSE = 0.01


def write_ahead(connection: sqlite3.Connection, seconds: float) -> None:
    """Let the file keep its log. Where other processes do the same at this moment SQLite says at once that it
    is locked, whatever the connection's timeout: so it is tried again for so many seconds. Raises
    sqlite3.OperationalError after that."""
    last = time.monotonic() + seconds
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > last:
                raise
            time.sleep(_PAUSE)
