"""What a site answers in a private run: sums over its rows, with noise that its budget pays for.

A site with a budget adds noise, and sends nothing that is not in its ledger, and noted in its state, first.
What it answers or refuses, and how, depends on its rows through these sums alone: no rule about rows is
looked at, rows that lie far out are scaled down, and a table with few rows, or none on one side, is answered
as any other.
A site without a budget answers the same questions exactly, by the rules of any other run, where its owner
trusts the server, which chooses where rows are clipped.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import Any

import numpy as np

from bidro.deploy.information import ROWS_A_PARAMETER
from bidro.deploy.promised import begin_release, end_release, exact_left, ledger_in
from bidro.deploy.requests import Request
from bidro.deploy.rules import CLIPPED, RefusedError, draws
from bidro.deploy.site_config import Site
from bidro.deploy.site_rows import SiteRows, holdout, releases, state_of
from bidro.engines.wire import pack, unpack
from bidro.errors import BidroError
from bidro.fitting.private_side import Answering, PrivateRows, in_agreed_units
from bidro.fitting.questions import NoisyGradients, NoisyLosses, NoisyMoments
from bidro.privacy.ledger import Ledger, OverspentError
from bidro.privacy.terms import Budget, Plan
from bidro.splits import holdout_of

_REPLIES: dict[str, Any] = {"moments": NoisyMoments, "gradients": NoisyGradients, "losses": NoisyLosses}


def answered_privately(site: Site, rows: SiteRows, request: Request) -> tuple[Any, int]:
    """(the reply, the fewest rows that a number in it rests on, which with noise is not told)."""
    plan = rows.agreed.plan
    assert plan is not None
    if site.privacy is None:
        over = _require_rules(site, rows, plan, request)
        return _reply(Answering(_rows(site, rows), plan, None), request), over
    return _released(site, rows, plan, site.privacy, request), 0


def ledger_of(site: Site) -> Ledger:
    """What the site has released under its budget."""
    return ledger_in(state_of(site))


def _released(site: Site, rows: SiteRows, plan: Plan, budget: Budget, request: Request) -> Any:
    """What the ledger has, or what is drawn now and then in it, and whether exact sums have left before.
    Raises RefusedError where the budget does not last, or what was spent of it is not known."""
    cost = plan.cost(request.question, budget)
    about = {"run": request.run, "question": request.question, "round": str(request.round)}

    def draw() -> bytes:
        return pack(_reply(Answering(_rows(site, rows), plan, budget), request))

    key, state, charged = _key(rows, budget, request), state_of(site), False
    ledger = ledger_in(state)
    begin_release(state, ledger, key)
    try:
        found = ledger.release(key, cost.part, cost.rho, budget.rho, about, draw, budget.rows_per_person)
        charged = True
    except OverspentError as error:
        raise RefusedError(str(error)) from error
    finally:
        end_release(state, key, charged)
    reply = unpack(found, _REPLIES[request.question])
    # As it is now, also of what was released before.
    return reply._replace(exact=np.array(float(exact_left(state))))


def _key(rows: SiteRows, budget: Budget, request: Request) -> bytes:
    """Of all that determines a release but the rows themselves: what was released stays released, whatever
    becomes of the table."""
    about = {
        "agreed": rows.agreed.digest,
        "question": request.question,
        "round": request.round,
        "budget": list(budget.numbers),
    }
    text = json.dumps(about, sort_keys=True).encode()
    return hashlib.sha256(text + b"\0" + pack(request.message)).digest()


def _reply(answering: Answering, request: Request) -> Any:
    if request.question == "moments":
        return answering.moments()
    if request.question == "gradients":
        return answering.gradients(request.message)
    return answering.losses(request.message)


@lru_cache(maxsize=2)
def _rows(site: Site, rows: SiteRows) -> PrivateRows:
    """The site's rows z, those of training and those kept out. Under a budget on which side a row is says
    nothing of others."""
    agreed, everyone = rows.agreed, np.zeros(len(rows.target), np.int64)
    if site.privacy is None:
        kept = holdout(site, rows)
    else:
        share, by_row = agreed.options.hold_out, rows.units is None
        kept = holdout_of(
            np.array([site.client]), everyone, rows.ids, share, state_of(site).key, by_row, alone=True
        )
    training, fresh = (
        in_agreed_units(
            agreed.standard.rows(rows.features[part], rows.target[part]), agreed.standard.target_spread
        )
        for part in (~kept, kept)
    )
    units = rows.units_of(~kept), rows.units_of(kept)
    try:
        return PrivateRows.of(training, fresh, *units, site.privacy)
    except BidroError as error:
        raise RefusedError(f"its site.toml cannot be followed: {error}") from error


def _require_rules(site: Site, rows: SiteRows, plan: Plan, request: Request) -> int:
    """The fewest rows that a reply without noise rests on. Raises RefusedError where these are too few."""
    if not site.trusted_server:
        # With the first question already, before others spend their budgets on the later ones.
        raise RefusedError(CLIPPED)
    kept, may = holdout(site, rows), releases(site, rows)
    if request.question != "losses":
        return may.folds(None)
    count = draws(kept, rows.units)
    if count <= ROWS_A_PARAMETER * (plan.degree + 1):
        raise RefusedError(
            f"it keeps out {count} rows, too few to tell {plan.degree + 1} sums of their losses without "
            "noise; agree on a smaller degree, or give this site a privacy budget."
        )
    return count
