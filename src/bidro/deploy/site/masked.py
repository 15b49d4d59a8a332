"""A site's part in masked sums: its key, the masks of what it sends, and that a server asks in order.

Which sites a sum is over, the agreement, the run, the round and what is asked are all in the masks, so that a
server that shows sites different things is left with random numbers. What a site can see of that by itself it
refuses in words that name the server: another question in the place of one that was asked, and a round before
the one that leads to it. Its ledger remembers what was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bidro.core.errors import BidroError
from bidro.deploy.messages.queries import Request
from bidro.deploy.site.config import Site
from bidro.deploy.site.disclosure.rules import PolicyViolationError
from bidro.deploy.site.ledger import ledger_in
from bidro.deploy.site.rows import SiteRows, state_of
from bidro.federated.engines.wire import pack
from bidro.privacy.ledger import Ledger
from bidro.privacy.masking import Release, SiteKey, masked

NO_BUDGET = (
    "noise is shared by agreement, and it has no privacy budget: its owner adds [privacy] to its site.toml."
)


def site_key(site: Site) -> SiteKey:
    """The site's own key pair: it follows from the secret of its state folder and from its ledger. A site
    that begins another ledger, with a budget that looks full, is not one that others have pinned: what it
    would draw anew would go out under masks that have hidden other noise."""
    state = state_of(site)
    ledger = ledger_in(state).identity.hex()
    return SiteKey(state.derived(f"site key of client {site.client}, ledger {ledger}"))


def require_pinned(site: Site, rows: SiteRows) -> None:
    """Raise PolicyViolationError where noise is shared and the agreement has not this site's key."""
    terms = rows.agreed.privacy
    if terms is None or terms.shared is None:
        return
    if dict(terms.shared.keys).get(site.client) != site_key(site).public.hex():
        raise PolicyViolationError(
            "noise is shared by agreement, and [privacy.shared.keys] of schema.toml has not this site's key, "
            "which `bidro site key` shows. Where ledger.sqlite was lost, its owner restores it: another has "
            "another key."
        )


def under_masks(site: Site, rows: SiteRows, request: Request, reply: Any) -> Any:
    """The reply as it may leave. Raises PolicyViolationError where the agreement pins another key."""
    assert request.roster is not None
    asked = request.run, request.round, request.question, pack(request.message)
    release = Release(request.roster, rows.agreed.digest, *asked)
    try:
        hidden = masked(np.asarray(reply.values), site.client, site_key(site), release)
    except BidroError as error:
        raise PolicyViolationError(str(error)) from error
    return reply._replace(values=hidden)


def asked_about(request: Request) -> dict[str, str]:
    """What stands in the ledger of a request."""
    about = {"run": request.run, "question": request.question, "round": str(request.round)}
    if request.roster is None:
        return about
    return {**about, "roster": request.roster.digest.hex(), "agreed": request.protocol.agreed.digest}


def require_in_order(ledger: Ledger, key: bytes, about: Mapping[str, str]) -> None:
    """Raise PolicyViolationError where a request of a run cannot be from a server that follows the protocol:
    it has asked this site something else in its place, or not for what leads to it."""
    asked = {
        (sent.about["question"], sent.about["round"]): release.key
        for release in ledger.releases()
        for sent in release.sent
        if all(sent.about.get(name) == about[name] for name in ("run", "roster"))
    }
    question, number = about["question"], int(about["round"])
    if asked.get((question, about["round"]), key) != key:
        raise PolicyViolationError(
            f"the server has asked for {question} {number} of run '{about['run']}' before, with another "
            "message: it, or who carries its messages, has altered one."
        )
    before = {
        "moments": None,
        "describe": None,
        "counts": ("moments", "1"),
        "losses": ("gradients", "1"),
    }.get(question, ("moments", "1") if number == 1 else ("gradients", str(number - 1)))
    if before is not None and before not in asked:
        raise PolicyViolationError(
            f"the server asks for {question} {number} of run '{about['run']}' without {' '.join(before)}, "
            "which comes first: it, or who carries its messages, has changed their order."
        )
