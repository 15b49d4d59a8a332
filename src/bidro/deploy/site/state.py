"""The folder in which a site keeps what it must not forget: its key, a random id for its table, and a
database of what it has answered.

Several processes of one site use it at once (NVIDIA FLARE starts one a job). Whatever was committed is on
the disk before a reply that rests on it leaves, so that a process, or the machine, may end at any moment.

`SiteLog` is what the site was asked, run by run, what it answered or refused, and how much more a run may
ask. A question is written down before it is worked on and again when its reply leaves, so that one that was
asked and has no outcome is one during which this site stopped.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from bidro.core.database import create, reading, transaction
from bidro.core.errors import BidroError
from bidro.core.splits import cut_alone
from bidro.deploy.messages.queries import ONCE, STATEMENTS
from bidro.deploy.site.disclosure.rules import PolicyViolationError

KEY_FILE, DATABASE = "key", "state.sqlite"
_KEY_BYTES = 32
# A table's id is a whole number that a double holds exactly.
_ID_BITS = 52

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
CREATE TABLE IF NOT EXISTS dealt (what TEXT PRIMARY KEY, content BLOB NOT NULL);
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
            create(database)
            state._begin(client)
        except (OSError, sqlite3.Error) as error:
            raise BidroError(
                f"This site's state cannot be kept in '{folder}' ({error}); set state in its site.toml to a "
                "folder on a disk of its own that it may write to."
            ) from error
        return state

    def _begin(self, client: str) -> None:
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

    def transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        """See `database.transaction`."""
        return transaction(self.folder / DATABASE)

    def reading(self) -> AbstractContextManager[sqlite3.Connection]:
        """See `database.reading`."""
        return reading(self.folder / DATABASE)

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

    def version(self, people: Sequence[NDArray[np.uint64]], named: NDArray[np.uint64], least: int) -> int:
        """The number of the version of the site's table that these rows are, by the people in it: a new one
        where at least so many of the `named` (N,) are in none before, else the newest that has one of them.
        `people` are several hashes (N,) of each row, by any of which it is known again."""
        with self.transaction() as connection:
            versions = {
                int(number): np.frombuffer(content, np.uint64)
                for number, content in connection.execute("SELECT id, people FROM versions ORDER BY id DESC")
            }
            newest = np.zeros(len(named), np.int64)  # of the versions that have each row; 0 for none
            for number, kept in versions.items():
                known = np.logical_or.reduce([np.isin(hashes, kept) for hashes in people])
                newest[known & (newest == 0)] = number
            fresh = newest == 0
            if not fresh.all() and len(np.unique(named[fresh])) < least:
                return int(newest.max())
            content = np.unique(np.concatenate([hashes[fresh] for hashes in people])).tobytes()
            made = connection.execute("INSERT INTO versions (people) VALUES (?)", (content,))
            assert made.lastrowid is not None
            return made.lastrowid

    def cut(self, dealt_by: str, share: float) -> int | None:
        """Up to which random bits rows, or people, were held out when sums over them first left, by what they
        are dealt by, whatever share is wanted now; None where none did. Where sums left before cuts were
        kept, each row was dealt by itself with this share, and stays where it was."""
        first = "SELECT cut FROM cuts WHERE dealt_by = ? ORDER BY rowid LIMIT 1"
        with self.reading() as connection:
            found = connection.execute(first, (dealt_by,)).fetchone()
            kept, used = (
                connection.execute(f"SELECT EXISTS (SELECT 1 FROM {name})").fetchone()[0]
                for name in ("cuts", "memory")
            )
        if found is not None:
            return int(found[0])
        return cut_alone(share) if used and not kept and share > 0 else None

    def dealt(self, what: str) -> NDArray[np.uint64]:
        """(3, M) the hashes of rows, or people, when sums over them first left, rising; what each was dealt
        by, and its folds (`packed`)."""
        with self.reading() as connection:
            return _dealt_in(connection, what)

    def keep_dealt(self, what: str, dealt: NDArray[np.uint64]) -> None:
        """Remember (3, N) how rows, or people, were dealt, for good; the first stays."""
        if np.isin(dealt[0], self.dealt(what)[0]).all():
            return
        with self.transaction() as connection:
            every = np.concatenate([_dealt_in(connection, what), dealt], axis=1)
            _, first = np.unique(every[0], return_index=True)
            content = sqlite3.Binary(every[:, first].tobytes())
            connection.execute("INSERT OR REPLACE INTO dealt VALUES (?, ?)", (what, content))

    def keep_cut(self, dealt_by: str, share: float, cut: int) -> None:
        """Remember a cut for good; the first stays."""
        with self.transaction() as connection:
            connection.execute(
                "INSERT INTO cuts SELECT ?1, ?2, ?3 "
                "WHERE NOT EXISTS (SELECT 1 FROM cuts WHERE dealt_by = ?1)",
                (dealt_by, float(share), str(cut)),
            )


def _dealt_in(connection: sqlite3.Connection, what: str) -> NDArray[np.uint64]:
    found = connection.execute("SELECT content FROM dealt WHERE what = ?", (what,)).fetchone()
    return np.frombuffer(found[0] if found else b"", np.uint64).reshape(3, -1)


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


# Refusals and runs that wait are kept up to so many, the newest: nobody can fill a site's disk by asking.
ENTRIES = 10_000
_FIELDS = "time, run, question, round, models, outcome, times, rows, bytes, reason"


@dataclass(frozen=True)
class RunLimits:
    """How much is answered: of a kind of which one is enough, that many different requests, because a run
    that loses a client begins again with the others; of statements about a table, so many in all runs, and,
    where there are several, so many mean losses in them, and of later versions of it one, until all versions
    together have had as many beyond their first; of models from elsewhere so many over a table; rounds,
    models and seconds of this site's time of a run; models of all runs, and how many of these there are.
    Which agreement a run is by makes no difference to what was told of a table."""

    each: int = 4
    statements: int = 4
    means: int = 12
    scored: int = 0
    rounds: int = 1_000
    models: int = 100_000
    models_in_all: int = 10_000_000
    seconds: float = 3600.0
    runs: int = 1_000


class Question(NamedTuple):
    run: str
    question: str
    round: int
    digest: str  # of the whole request: the same request again is no new question
    models: int = 0  # that it asks to be evaluated
    about: str = ""  # of a statement: of which version of the table
    content: str = ""  # of a statement: of the message alone; the same asked by another run is no new one
    means: int = 0  # of a statement: mean losses in it, each of one model and clipped at one level
    agreed: str = ""  # the digest of the agreement that it is by
    table: str = ""  # the table's id; under a privacy budget, where nothing may depend on the table, none


class Decision(NamedTuple):
    """The owner's word about a run."""

    run: str
    outcome: str  # "approved" or "refused"
    time: str  # UTC
    until: str  # of an approval
    agreed: str  # by which agreement, by its digest, and
    table: str  # with which table it may be answered


class Entry(NamedTuple):
    """A line of the log."""

    time: str  # UTC; of the last time where it was asked several times
    run: str
    question: str
    round: int
    models: int
    outcome: str  # "answered", "refused", or "asked" where the site stopped before it was either
    times: int
    rows: int | None  # the fewest that a number of the reply rests on
    bytes: int | None  # of the reply
    reason: str | None  # of a refusal; of an answer, what its owner should look at


@dataclass(frozen=True)
class SiteLog:
    state: SiteState
    ask: bool = False  # whether every run waits for the owner's word
    limits: RunLimits = RunLimits()

    def allow(self, query: Question) -> None:
        """Note that this is worked on. Raises PolicyViolationError where the owner has refused the run or has
        not approved it, where the run has asked another question of this kind, or more than the limits."""
        decided = self._decided(query.run)
        if decided is not None and decided.outcome == "refused":
            raise PolicyViolationError("its owner has refused this run; ask the owner why.")
        if self.ask and not _approves(decided, query):
            self._wait(query.run, decided)
        with self.state.transaction() as connection:
            self._require_room(connection, query.run)
            self.reserve(connection, query)
            of_run = "FROM asked WHERE outcome != 'refused' AND run = ?"
            known = connection.execute(
                f"SELECT id {of_run} AND question = ? AND digest = ?",
                (query.run, query.question, query.digest),
            ).fetchone()
            if known is not None:
                connection.execute(
                    "UPDATE asked SET time = ?, times = times + 1 WHERE id = ?", (_now(), *known)
                )
                return
            before, models = connection.execute(
                f"SELECT COUNT(*), (SELECT TOTAL(models) {of_run}) {of_run} AND question = ?",
                (query.run, query.run, query.question),
            ).fetchone()
            in_all = connection.execute(
                "SELECT TOTAL(models) FROM asked WHERE outcome != 'refused'"
            ).fetchone()[0]
            self._require_within(query, int(before), int(models), int(in_all))
            _add(connection, query, "asked", None)

    def _require_room(self, connection: sqlite3.Connection, run: str) -> None:
        """And that the run is one of so many that this site has ever worked for: of each it keeps a log and
        perhaps a model, and whoever asks chooses the names."""
        spent = connection.execute("SELECT seconds FROM work WHERE run = ?", (run,)).fetchone()
        if spent is None:
            kept = int(connection.execute("SELECT COUNT(*) FROM work").fetchone()[0])
            if kept >= self.limits.runs:
                raise PolicyViolationError(
                    f"it has worked for {kept} runs, as many as the agreed runs = {self.limits.runs} allow, "
                    "and keeps something of each; go on with an earlier run, or agree on more in [limits]."
                )
            connection.execute("INSERT INTO work VALUES (?, 0.0)", (run,))
        elif spent[0] > self.limits.seconds:
            raise PolicyViolationError(
                f"this run has used the agreed seconds = {self.limits.seconds:g} of this site's time; begin "
                "another that asks for less, or agree on more in [limits]."
            )

    def reserve(self, connection: sqlite3.Connection, query: Question) -> None:
        """Count a statement, which the same asked again is not, before it is worked on."""
        if query.question not in STATEMENTS:
            return
        of_table = "FROM stated WHERE question = ? AND about = ?"
        known = connection.execute(
            f"SELECT 1 {of_table} AND content = ?", (query.question, query.about, query.content)
        ).fetchone()
        if known is not None:
            return
        counted = connection.execute(
            f"SELECT COUNT(*), TOTAL(means) {of_table}", (query.question, query.about)
        )
        others, means = map(int, counted.fetchone())
        if query.question == "score":
            spent = others >= self.limits.scored
        else:
            too_many = others > 0 and means + query.means > self.limits.means
            spent = others >= self.limits.statements or too_many
        if spent:
            raise PolicyViolationError(
                f"'{query.question}' has been answered of {others} models over this table, all that may be, "
                "by whatever agreement: a row has more numbers than that; begin again when the table has "
                "more rows."
            )
        in_all, versions = connection.execute(
            "SELECT COUNT(*), COUNT(DISTINCT about) FROM stated WHERE question = ?", (query.question,)
        ).fetchone()
        if others and in_all - versions >= self.limits.statements - 1:
            raise PolicyViolationError(
                f"'{query.question}' has been answered of {in_all} models over {versions} versions of this "
                "table, all that may be, by whatever agreement: one of each, and a few more; begin again "
                "when the table has more rows."
            )
        connection.execute(
            "INSERT INTO stated VALUES (?, ?, ?, 0, ?)",
            (query.question, query.about, query.content, query.means),
        )

    def worked(self, run: str, seconds: float) -> None:
        """Note how long a request of a run took, if it was allowed any."""
        with self.state.transaction() as connection:
            connection.execute("UPDATE work SET seconds = seconds + ? WHERE run = ?", (seconds, run))

    def _wait(self, run: str, decided: Decision | None) -> NoReturn:
        """Note a run that its owner is to decide on, and refuse."""
        with self.state.transaction() as connection:
            connection.execute("INSERT OR IGNORE INTO waiting VALUES (?, ?)", (run, _now()))
            oldest = "SELECT run FROM waiting ORDER BY rowid DESC LIMIT -1 OFFSET ?"
            connection.execute(f"DELETE FROM waiting WHERE run IN ({oldest})", (ENTRIES,))
        if decided is not None:
            raise PolicyViolationError(
                "its owner's approval of this run has expired, or was for another agreement or table: "
                "`bidro site approve RUN` at that site, then resume it."
            )
        raise PolicyViolationError(
            "its owner has not approved this run yet: `bidro site approve RUN` at that site, then resume it."
        )

    def _require_within(self, query: Question, before: int, models: int, in_all: int) -> None:
        limits = self.limits
        if query.question in ONCE:
            if before >= limits.each:
                raise PolicyViolationError(
                    f"this run has asked another '{query.question}' question already, and one is enough; "
                    "begin a new run."
                )
        elif before >= limits.rounds:
            raise PolicyViolationError(
                f"this run has asked for {before} rounds, all that it may; begin a new run."
            )
        if models + query.models > limits.models:
            raise PolicyViolationError(
                f"this run would have asked for more than {limits.models} models, all that it may; use fewer "
                "candidates or folds."
            )
        if in_all + query.models > limits.models_in_all:
            raise PolicyViolationError(
                f"all runs together would have asked for more than {limits.models_in_all} models, all that "
                "were agreed on; its owner and the others agree on more, or no more is answered."
            )

    def answered(self, query: Question, rows: int, size: int, remark: str | None = None) -> None:
        """Note that a reply of `size` bytes leaves, over at least so many rows, and what its owner should
        look at."""
        with self.state.transaction() as connection:
            connection.execute(
                "UPDATE asked SET outcome = 'answered', rows = ?, bytes = ?, reason = ? "
                "WHERE outcome != 'refused' AND run = ? AND question = ? AND digest = ?",
                (rows, size, remark, query.run, query.question, query.digest),
            )
            if query.question in STATEMENTS:
                connection.execute(
                    "INSERT OR REPLACE INTO stated VALUES (?, ?, ?, 1, ?)",
                    (query.question, query.about, query.content, query.means),
                )

    def refused(self, query: Question, reason: str, allowed: bool = False) -> None:
        """Note that it is not answered, and why; a question that was `allowed` is none any more. One that was
        not may be worked on by another process, to which it was, and counts there."""
        with self.state.transaction() as connection:
            if allowed:
                connection.execute(
                    "DELETE FROM asked WHERE outcome = 'asked' AND run = ? AND question = ? AND digest = ?",
                    (query.run, query.question, query.digest),
                )
                connection.execute(
                    "DELETE FROM stated WHERE answered = 0 AND question = ? AND about = ? AND content = ?",
                    (query.question, query.about, query.content),
                )
            same = connection.execute(
                "SELECT id FROM asked WHERE outcome = 'refused' AND run = ? AND question = ? AND reason = ?",
                (query.run, query.question, reason),
            ).fetchone()
            if same is None:
                _add(connection, query, "refused", reason)
                oldest = "SELECT id FROM asked WHERE outcome = 'refused' ORDER BY id DESC LIMIT -1 OFFSET ?"
                connection.execute(f"DELETE FROM asked WHERE id IN ({oldest})", (ENTRIES,))
            else:
                connection.execute(
                    "UPDATE asked SET time = ?, times = times + 1 WHERE id = ?", (_now(), *same)
                )

    def approve(self, run: str, agreed: str, table: str, days: float) -> Decision:
        """The owner's word for a run, also for one that has not asked yet: it is answered by this agreement
        and with this table, for so many days."""
        until = _now(timedelta(days=days))
        return self._decide(Decision(run, "approved", _now(), until, agreed, table))

    def refuse(self, run: str) -> Decision:
        """The owner's word against a run, whatever it is by: nothing more is answered."""
        return self._decide(Decision(run, "refused", _now(), "", "", ""))

    def _decide(self, what: Decision) -> Decision:
        with self.state.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO decisions VALUES (?, ?, ?, ?, ?, ?)", what)
            connection.execute("DELETE FROM waiting WHERE run = ?", (what.run,))
        return what

    def withdraw(self, run: str) -> Decision | None:
        """Take the owner's word about a run back; returns what it was, None where there was none."""
        was = self._decided(run)
        with self.state.transaction() as connection:
            connection.execute("DELETE FROM decisions WHERE run = ?", (run,))
        return was

    def _decided(self, run: str) -> Decision | None:
        return next((one for one in self.decisions() if one.run == run), None)

    def decisions(self) -> list[Decision]:
        """The owner's words that stand, the oldest first."""
        with self.state.reading() as connection:
            found = connection.execute(
                "SELECT run, outcome, time, until, agreed, of_table FROM decisions ORDER BY time, run"
            )
            return [Decision(*line) for line in found]

    def waiting(self) -> list[tuple[str, str]]:
        """(run, since when) of the runs that have asked and wait for the owner's word, the oldest first."""
        with self.state.reading() as connection:
            found = connection.execute("SELECT run, first FROM waiting ORDER BY first, run")
            return [(str(run), str(first)) for run, first in found]

    def entries(self, run: str | None = None) -> list[Entry]:
        """The log, the oldest line first; of one run or of all."""
        with self.state.reading() as connection:
            found = connection.execute(
                f"SELECT {_FIELDS} FROM asked WHERE ?1 IS NULL OR run = ?1 ORDER BY time, id", (run,)
            )
            return [Entry(*line) for line in found]


def _add(connection: sqlite3.Connection, query: Question, outcome: str, reason: str | None) -> None:
    connection.execute(
        "INSERT INTO asked (time, run, question, round, digest, models, outcome, times, reason) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, 1, ?)",
        (_now(), query.run, query.question, query.round, query.digest, query.models, outcome, reason),
    )


def _approves(decided: Decision | None, query: Question) -> bool:
    """Whether an approval stands for this question."""
    if decided is None or decided.outcome != "approved":
        return False
    return (decided.agreed, decided.table) == (query.agreed, query.table) and _now() < decided.until


def _now(later: timedelta = timedelta(0)) -> str:
    return (datetime.now(UTC) + later).isoformat(timespec="seconds")
