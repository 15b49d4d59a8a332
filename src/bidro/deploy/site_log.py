"""What a site was asked, run by run: what it answered or refused, and how much more a run may ask.

A question is written down before it is worked on and again when its reply leaves, so that one that was asked
and has no outcome is one during which this site stopped.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, NoReturn

from bidro.deploy.rules import RefusedError
from bidro.deploy.site_state import SiteState

# Refusals and runs that wait are kept up to so many, the newest: nobody can fill a site's disk by asking.
_KEPT = 10_000
# Questions of which a run needs one.
ONCE = ("prepare", "spread", "bends", "assess", "bounds", "score", "moments", "losses", "exact losses")
# Those of them whose answers are no function of second moments.
STATEMENTS = ("assess", "bounds", "score", "exact losses")
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

    def allow(self, asked: Question) -> None:
        """Note that this is worked on. Raises RefusedError where the owner has refused the run or has not
        approved it, where the run has asked another question of this kind, or more than the limits."""
        decided = self._decided(asked.run)
        if decided is not None and decided.outcome == "refused":
            raise RefusedError("its owner has refused this run; ask the owner why.")
        if self.ask and not _approves(decided, asked):
            self._wait(asked.run, decided)
        with self.state.transaction() as connection:
            self._require_room(connection, asked.run)
            self._reserve(connection, asked)
            of_run = "FROM asked WHERE outcome != 'refused' AND run = ?"
            known = connection.execute(
                f"SELECT id {of_run} AND question = ? AND digest = ?",
                (asked.run, asked.question, asked.digest),
            ).fetchone()
            if known is not None:
                connection.execute(
                    "UPDATE asked SET time = ?, times = times + 1 WHERE id = ?", (_now(), *known)
                )
                return
            before, models = connection.execute(
                f"SELECT COUNT(*), (SELECT TOTAL(models) {of_run}) {of_run} AND question = ?",
                (asked.run, asked.run, asked.question),
            ).fetchone()
            in_all = connection.execute(
                "SELECT TOTAL(models) FROM asked WHERE outcome != 'refused'"
            ).fetchone()[0]
            self._require_within(asked, int(before), int(models), int(in_all))
            _add(connection, asked, "asked", None)

    def _require_room(self, connection: sqlite3.Connection, run: str) -> None:
        """And that the run is one of so many that this site has ever worked for: of each it keeps a log and
        perhaps a model, and whoever asks chooses the names."""
        spent = connection.execute("SELECT seconds FROM work WHERE run = ?", (run,)).fetchone()
        if spent is None:
            kept = int(connection.execute("SELECT COUNT(*) FROM work").fetchone()[0])
            if kept >= self.limits.runs:
                raise RefusedError(
                    f"it has worked for {kept} runs, as many as its max_runs = {self.limits.runs} allows, "
                    "and keeps something of each; go on with an earlier run, or raise max_runs at that site."
                )
            connection.execute("INSERT INTO work VALUES (?, 0.0)", (run,))
        elif spent[0] > self.limits.seconds:
            raise RefusedError(
                f"this run has used its max_seconds = {self.limits.seconds:g} of this site's time; begin "
                "another that asks for less, or raise max_seconds at that site."
            )

    def _reserve(self, connection: sqlite3.Connection, asked: Question) -> None:
        """Count a statement, which the same asked again is not, before it is worked on."""
        if asked.question not in STATEMENTS:
            return
        of_table = "FROM stated WHERE question = ? AND about = ?"
        known = connection.execute(
            f"SELECT 1 {of_table} AND content = ?", (asked.question, asked.about, asked.content)
        ).fetchone()
        if known is not None:
            return
        counted = connection.execute(
            f"SELECT COUNT(*), TOTAL(means) {of_table}", (asked.question, asked.about)
        )
        others, means = map(int, counted.fetchone())
        if asked.question == "score":
            spent = others >= self.limits.scored
        else:
            too_many = others > 0 and means + asked.means > self.limits.means
            spent = others >= self.limits.statements or too_many
        if spent:
            raise RefusedError(
                f"'{asked.question}' has been answered of {others} models over this table, all that may be, "
                "by whatever agreement: a row has more numbers than that; begin again when the table has "
                "more rows."
            )
        in_all, versions = connection.execute(
            "SELECT COUNT(*), COUNT(DISTINCT about) FROM stated WHERE question = ?", (asked.question,)
        ).fetchone()
        if others and in_all - versions >= self.limits.statements - 1:
            raise RefusedError(
                f"'{asked.question}' has been answered of {in_all} models over {versions} versions of this "
                "table, all that may be, by whatever agreement: one of each, and a few more; begin again "
                "when the table has more rows."
            )
        connection.execute(
            "INSERT INTO stated VALUES (?, ?, ?, 0, ?)",
            (asked.question, asked.about, asked.content, asked.means),
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
            connection.execute(f"DELETE FROM waiting WHERE run IN ({oldest})", (_KEPT,))
        if decided is not None:
            raise RefusedError(
                "its owner's approval of this run has expired, or was for another agreement or table: "
                "`bidro site approve RUN` at that site, then resume it."
            )
        raise RefusedError(
            "its owner has not approved this run yet: `bidro site approve RUN` at that site, then resume it."
        )

    def _require_within(self, asked: Question, before: int, models: int, in_all: int) -> None:
        limits = self.limits
        if asked.question in ONCE:
            if before >= limits.each:
                raise RefusedError(
                    f"this run has asked another '{asked.question}' question already, and one is enough; "
                    "begin a new run."
                )
        elif before >= limits.rounds:
            raise RefusedError(f"this run has asked for {before} rounds, all that it may; begin a new run.")
        if models + asked.models > limits.models:
            raise RefusedError(
                f"this run would have asked for more than {limits.models} models, all that it may; use fewer "
                "candidates or folds."
            )
        if in_all + asked.models > limits.models_in_all:
            raise RefusedError(
                f"all runs together would have asked for more than {limits.models_in_all} models, all that "
                "were agreed on; its owner and the others agree on more, or no more is answered."
            )

    def answered(self, asked: Question, rows: int, size: int, remark: str | None = None) -> None:
        """Note that a reply of `size` bytes leaves, over at least so many rows, and what its owner should
        look at."""
        with self.state.transaction() as connection:
            connection.execute(
                "UPDATE asked SET outcome = 'answered', rows = ?, bytes = ?, reason = ? "
                "WHERE outcome != 'refused' AND run = ? AND question = ? AND digest = ?",
                (rows, size, remark, asked.run, asked.question, asked.digest),
            )
            if asked.question in STATEMENTS:
                connection.execute(
                    "INSERT OR REPLACE INTO stated VALUES (?, ?, ?, 1, ?)",
                    (asked.question, asked.about, asked.content, asked.means),
                )

    def refused(self, asked: Question, reason: str, allowed: bool = False) -> None:
        """Note that it is not answered, and why; a question that was `allowed` is none any more. One that was
        not may be worked on by another process, to which it was, and counts there."""
        with self.state.transaction() as connection:
            if allowed:
                connection.execute(
                    "DELETE FROM asked WHERE outcome = 'asked' AND run = ? AND question = ? AND digest = ?",
                    (asked.run, asked.question, asked.digest),
                )
                connection.execute(
                    "DELETE FROM stated WHERE answered = 0 AND question = ? AND about = ? AND content = ?",
                    (asked.question, asked.about, asked.content),
                )
            same = connection.execute(
                "SELECT id FROM asked WHERE outcome = 'refused' AND run = ? AND question = ? AND reason = ?",
                (asked.run, asked.question, reason),
            ).fetchone()
            if same is None:
                _add(connection, asked, "refused", reason)
                oldest = "SELECT id FROM asked WHERE outcome = 'refused' ORDER BY id DESC LIMIT -1 OFFSET ?"
                connection.execute(f"DELETE FROM asked WHERE id IN ({oldest})", (_KEPT,))
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


def _add(connection: sqlite3.Connection, asked: Question, outcome: str, reason: str | None) -> None:
    connection.execute(
        "INSERT INTO asked (time, run, question, round, digest, models, outcome, times, reason) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, 1, ?)",
        (_now(), asked.run, asked.question, asked.round, asked.digest, asked.models, outcome, reason),
    )


def _approves(decided: Decision | None, asked: Question) -> bool:
    """Whether an approval stands for this question."""
    if decided is None or decided.outcome != "approved":
        return False
    return (decided.agreed, decided.table) == (asked.agreed, asked.table) and _now() < decided.until


def _now(later: timedelta = timedelta(0)) -> str:
    return (datetime.now(UTC) + later).isoformat(timespec="seconds")
