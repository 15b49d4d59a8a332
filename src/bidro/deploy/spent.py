"""What a site has released under its privacy budget, for its owner's eyes: `bidro ledger`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bidro.errors import one_line
from bidro.privacy.accounting import epsilon_of
from bidro.privacy.ledger import Ledger
from bidro.privacy.terms import Budget


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
        "releases": releases,
        "promised": list(promised),
    }


def in_words(found: Mapping[str, Any]) -> str:
    """A line a release, and what is left."""
    lines = []
    for one in found["releases"]:
        lines.append(
            f"{one['time']} {one['part']} rows, {one['share']:.1%} of the budget, {one['bytes']:,} bytes:"
        )
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
    lines += found["promised"]
    lines.append("A folder that is restored from a copy has forgotten what was released since.")
    return "\n".join(lines)
