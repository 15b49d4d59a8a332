"""What a site has promised to the people in its rows, and whether it can still know that it keeps it.

Two databases of the state folder know what left: the ledger what was released with noise, and what that cost;
the state what was answered at all. Every release is noted in the state before it is charged, and again before
it leaves, so that whatever ends a process: what was sent is in both, and what is in the ledger is in the
state. Where that is not so one of them is gone, or was put back from an older copy, and a budget that looks
full may be spent: nothing more is released. And exact sums of rows are covered by no promise, whether they
left before there was a budget or would leave after it.

What was released under the budget is shown to the owner alone: `bidro ledger`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from bidro.certify.certificate import TO_TRY
from bidro.core.errors import one_line
from bidro.deploy.messages.queries import PRIVATE
from bidro.deploy.site.config import Site
from bidro.deploy.site.disclosure.rules import PolicyViolationError
from bidro.deploy.site.state import SiteState
from bidro.privacy.accounting import epsilon_of
from bidro.privacy.ledger import Ledger, Release
from bidro.privacy.terms import HELD_OUT, Budget

LEDGER = "ledger.sqlite"
# What stands with a masked release: on how many sites, this one among them, its cost relies.
RELIED_ON = "relied_on"

_LEDGER_LOST = (
    "its ledger.sqlite lacks releases that its state.sqlite remembers, so that what was spent of its privacy "
    "budget is not known; its owner restores the newest ledger.sqlite into its state folder."
)
_STATE_LOST = (
    "its state.sqlite lacks releases that its ledger.sqlite has, so that what else has left this site is not "
    "known; its owner restores the newest state.sqlite into its state folder."
)
_UNDER_A_BUDGET = (
    "sums of its rows were released under a privacy budget, which its site.toml does not have any more, and "
    "exact ones would break what was promised; its owner puts [privacy] back, or gives the promise up by "
    'privacy = "given up" in site.toml.'
)
EXACT_BEFORE = (
    "Exact sums over its rows have left this site in runs without a privacy budget: the budget does not "
    "cover these, and certificates of private runs say so."
)
# Answers that were given, with noise and without.
_WITH_NOISE = (
    f"SELECT 1 FROM asked WHERE outcome = 'answered' AND rows = 0 AND question IN {tuple(PRIVATE)} LIMIT 1"
)
_EXACTLY = "SELECT 1 FROM asked WHERE outcome = 'answered' AND rows > 0 LIMIT 1"


def ledger_in(state: SiteState) -> Ledger:
    """What the site has released under its budget."""
    return Ledger.open(state.folder / LEDGER)


def exact_left(state: SiteState) -> bool:
    """Whether exact sums over rows have ever left."""
    with state.reading() as connection:
        return _any(connection, _EXACTLY) or _any(connection, "SELECT 1 FROM memory LIMIT 1")


def disagreement(state: SiteState, ledger: Ledger) -> str | None:
    """What its owner is to restore, as the end of a sentence about the site; None where nothing is lost."""
    # Another process may release something meanwhile: what was sent is charged before, and what is charged
    # is noted before.
    sent = _noted(state, "SELECT key FROM released WHERE sent = 1")
    charged = ledger.known()
    noted = _noted(state, "SELECT key FROM released")
    if not noted:
        # Nothing was noted before there were notes; what was answered then is known from the log.
        with state.reading() as connection:
            answered = _any(connection, _WITH_NOISE)
        if answered == bool(charged):
            return None
        return _LEDGER_LOST if answered else _STATE_LOST
    if sent - charged:
        return _LEDGER_LOST
    return _STATE_LOST if charged - noted else None


def begin_release(state: SiteState, ledger: Ledger, key: bytes) -> None:
    """Note a release before it is charged. Raises PolicyViolationError where ledger and state disagree."""
    if (found := disagreement(state, ledger)) is not None:
        raise PolicyViolationError(found)
    with state.transaction() as connection:
        if not _any(connection, "SELECT 1 FROM released LIMIT 1"):
            # What was released before there were notes.
            earlier = [(one,) for one in ledger.known()]
            connection.executemany("INSERT INTO released VALUES (?, 1)", earlier)
        connection.execute("INSERT OR IGNORE INTO released VALUES (?, 0)", (key,))


def end_release(state: SiteState, key: bytes, charged: bool) -> None:
    """Note that a release is charged and about to leave; or that it was not charged."""
    with state.transaction() as connection:
        if charged:
            connection.execute("INSERT OR REPLACE INTO released VALUES (?, 1)", (key,))
        else:
            connection.execute("DELETE FROM released WHERE key = ? AND sent = 0", (key,))


def require_exact_may_leave(site: Site, state: SiteState) -> None:
    """Raise PolicyViolationError where exact sums would break a promise that was made by releases under a
    budget, and that the owner has not given up."""
    if site.privacy_given_up:
        return
    with state.reading() as connection:
        released = _any(connection, "SELECT 1 FROM released LIMIT 1") or _any(connection, _WITH_NOISE)
    if released or ((state.folder / LEDGER).exists() and ledger_in(state).known()):
        raise PolicyViolationError(_UNDER_A_BUDGET)


def said_to_owner(site: Site, state: SiteState, units_drafted: bool = False) -> list[str]:
    """Sentences on what the site's budget does not cover, and on what keeps it from being used."""
    if site.privacy is None:
        try:
            require_exact_may_leave(site, state)
        except PolicyViolationError as error:
            return [f"A run would be refused: {error}"]
        return []
    lines = []
    if (lost := disagreement(state, ledger_in(state))) is not None:
        lines.append(f"A run would be refused: {lost}")
    if exact_left(state):
        lines.append(EXACT_BEFORE)
    return [*lines, *([TO_TRY] if units_drafted else [])]


def _noted(state: SiteState, query: str) -> set[bytes]:
    with state.reading() as connection:
        return {bytes(key) for (key,) in connection.execute(query)}


def _any(connection: sqlite3.Connection, query: str) -> bool:
    return connection.execute(query).fetchone() is not None


def spent_content(ledger: Ledger, budget: Budget, promised: Sequence[str] = ()) -> dict[str, Any]:
    """As JSON: the budget, what of it is spent, every release, and sentences on what the budget does not
    cover."""
    most = ledger.most_rows(budget.rows_per_person)
    spent = ledger.spent(most)
    releases = [
        {
            "time": one.time,
            "part": one.part,
            "share": float(one.cost(most) / budget.rho),
            "bytes": one.size,
            "sent": [{**sent._asdict(), "about": dict(sent.about)} for sent in one.sent],
        }
        for one in ledger.releases()
    ]
    alone = sum((one.cost(most) * _relied_on(one) for one in ledger.releases()), Fraction(0))
    return {
        "budget": {
            "epsilon": budget.epsilon,
            "delta": budget.delta,
            "rows_per_person": budget.rows_per_person,
            # For which costs are added up: the most that a release was ever for.
            "most_rows": most,
        },
        "spent": float(spent / budget.rho),
        "left": max(float(1 - spent / budget.rho), 0.0),
        # Of what was spent so far, at the delta of the budget.
        "epsilon": epsilon_of(spent, budget.delta),
        # The same whatever all other sites do, whose noise is relied on in masked sums.
        "alone": epsilon_of(alone, budget.delta),
        "releases": releases,
        "promised": list(promised),
    }


def _relied_on(release: Release) -> int:
    return max(int(sent.about.get(RELIED_ON, 1)) for sent in release.sent)


def in_words(found: Mapping[str, Any]) -> str:
    """A line a release, and what is left."""
    lines = []
    for one in found["releases"]:
        part = "held-out" if one["part"] == HELD_OUT else one["part"]  # a ledger keeps the name it began with
        lines.append(f"{one['time']} {part} rows, {one['share']:.1%} of the budget, {one['bytes']:,} bytes:")
        for sent in one["sent"]:
            about = sent["about"]
            times = f", {sent['times']} times until {sent['last']}" if sent["times"] > 1 else ""
            lines.append(
                f"  {one_line(about['question'])} {one_line(about['round'])} to run "
                f"'{one_line(about['run'])}'{times}"
            )
    if not found["releases"]:
        lines.append("Nothing was released.")
    budget = found["budget"]
    rows = budget["most_rows"]
    lines.append(
        f"Budget: epsilon = {budget['epsilon']:g}, delta = {budget['delta']:g}, for people with at most "
        f"{rows} row{'s' * (rows > 1)}, over all that is released of them."
    )
    if rows > budget["rows_per_person"]:
        lines.append(
            f"  rows_per_person is {budget['rows_per_person']} now; costs stay those of people with {rows}."
        )
    lines.append(f"  {found['spent']:.1%} spent (epsilon = {found['epsilon']:.3g}), {found['left']:.1%} left")
    if found["alone"] > found["epsilon"]:
        lines.append(
            "  that is as long as enough sites keep their noise to themselves; whatever all others do, "
            f"epsilon = {found['alone']:.3g}"
        )
    lines += found["promised"]
    lines.append("A folder that is restored from a copy has forgotten what was released since.")
    return "\n".join(lines)
