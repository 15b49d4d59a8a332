"""A site: its own table, what was agreed on, and one function from a request to a reply.

The table never leaves. What does is one of the types in `questions`, or an algorithm's reply, computed over
at least `min_rows` rows; a request for anything else is answered with the reason why not.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from bidro.core.errors import BidroError
from bidro.core.pytrees import compilation_cache
from bidro.deploy.agreement.agreement import far_units_of
from bidro.deploy.messages.queries import PRIVATE, STATEMENTS, Request, checked_request
from bidro.deploy.site.answers import answered
from bidro.deploy.site.config import Site
from bidro.deploy.site.disclosure.rules import SCORED, SCORES, PolicyViolationError
from bidro.deploy.site.ledger import require_exact_may_leave
from bidro.deploy.site.rows import SiteRows, require_allowed, site_log, state_of, table_id, table_version
from bidro.deploy.site.snapshot import snapshot
from bidro.deploy.site.state import Question
from bidro.federated.engines.coordinator import refusal_message, reply_message
from bidro.federated.engines.wire import header_of, pack

_log = logging.getLogger(__name__)

_NOT_IN_ORDER = "its configuration or its table is not in order; its log says why."
# The environment variable with the path of the site's configuration.
VARIABLE = "BIDRO_SITE"


def reply_to(request: bytes) -> bytes:
    """The reply of the site whose configuration `BIDRO_SITE` names; never raises.

    What is wrong with the site's own files is said in its log, not to the server: it may hold data.
    """
    compilation_cache()
    try:
        path = os.environ.get(VARIABLE)
        if path is None:
            raise BidroError(f"The environment variable {VARIABLE} names no site.toml.")
        site = Site.read(Path(path))
    except Exception as error:
        _log.error("this site cannot answer: %s", error)
        return refusal_message(request, _NOT_IN_ORDER)
    try:
        rows = _loaded(site, _stamp(site, request))
    except Exception as error:
        _log.error("this site cannot answer: %s", error)
        _note_refusal(site, request, error)
        return refusal_message(request, _NOT_IN_ORDER)
    return reply_of(site, rows, request)


def reply_or_failure(request: Any) -> bytes | str:
    """The reply for a network, or why there is none; the text of an error stays in the site's log."""
    try:
        return reply_to(request)
    except Exception as error:
        _log.exception("no reply was sent")
        return f"{type(error).__name__}: see the log of the site"


def _note_refusal(site: Site, request: bytes, error: Exception) -> None:
    """Why nothing was answered, in the site's log: there its owner looks for it."""
    try:
        site_log(site).refused(_unchecked(header_of(request), request), _reason(error))
    except Exception as again:
        _log.error("this site's log cannot be written: %s", again)


def _unchecked(header: Mapping[str, Any], data: bytes) -> Question:
    """A question of which nothing is known yet but what it says."""
    digest = hashlib.sha256(data).hexdigest()
    return Question(str(header.get("run"))[:100], str(header.get("question"))[:100], 0, digest)


def _stamp(site: Site, request: bytes) -> tuple[Any, ...]:
    """Changes when the site's files do; a query is asked anew for every run."""
    files = [path for path in (site.data, site.schema) if isinstance(path, Path)]
    stats = [path.stat() if path.exists() else None for path in files]
    run = () if site.data in files else (str(header_of(request).get("run")),)
    return (*run, *(part for stat in stats if stat for part in (stat.st_mtime_ns, stat.st_size)))


@lru_cache(maxsize=1)
def _loaded(site: Site, stamp: tuple[Any, ...]) -> SiteRows:
    del stamp
    return SiteRows.load(site)


def reply_of(site: Site, rows: SiteRows, request: bytes) -> bytes:
    """The site's reply to a request: what is asked, or the reason why it is not given; never raises."""
    try:
        return _replied(site, rows, request)
    except PolicyViolationError as refused:
        return refusal_message(request, str(refused))
    except Exception as error:
        # Whatever else goes wrong, its text may hold data.
        _log.error("a request could not be followed: %s: %s", type(error).__name__, error)
        return refusal_message(request, "the request could not be followed; its log says why.")


def _replied(site: Site, rows: SiteRows, data: bytes) -> bytes:
    """The reply, once the site's log knows of it."""
    log, header = site_log(site, rows.agreed), header_of(data)
    unchecked = _unchecked(header, data)
    try:
        if site.privacy is None:
            rows = snapshot(site, rows)
        if rows.agreed.neural_network is not None and header.get("question") != "score":
            # Before anything is imported by the name that was agreed on.
            require_allowed(site, rows)
        request = checked_request(rows.protocol, site.client, header, data)
    except Exception as error:
        log.refused(unchecked, _reason(error))
        raise
    try:
        _require_promised(site, request)
    except PolicyViolationError as error:
        log.refused(unchecked._replace(round=request.round, models=request.models), _reason(error))
        raise
    question = _question(site, rows, request, unchecked.digest)
    began = time.perf_counter()
    allowed = False
    try:
        _require_current(site, rows, request)
        log.allow(question)
        allowed = True
        reply, over = answered(site, rows, request)
        message = reply_message(reply, data, over)
    except Exception as error:
        log.refused(question, _reason(error), allowed)
        raise
    finally:
        log.worked(request.run, time.perf_counter() - began)
    log.answered(question, over, len(message), _remark(site, rows, request))
    return message


def _remark(site: Site, rows: SiteRows, request: Request) -> str | None:
    """What the owner should look at when a run begins: it stays here."""
    if request.question not in ("prepare", "moments"):
        return None
    found = far_units_of(rows.agreed, rows.features, rows.target)
    for one in found:
        _log.warning("run %s: %s", request.run, one.in_words(numbers=True))
    return " ".join(one.in_words(numbers=True) for one in found) or None


def _require_promised(site: Site, request: Request) -> None:
    """Raise PolicyViolationError where an answer would break what was promised to the people in the rows,
    before anything is looked at that depends on these: under a budget nothing is answered but the questions
    of a private run, and after one nothing exactly."""
    if site.privacy is None:
        require_exact_may_leave(site, state_of(site))
    elif request.question not in (*PRIVATE, "check"):
        raise PolicyViolationError(
            "it has a privacy budget and answers private runs alone: agree on one by a part [privacy] in "
            "schema.toml."
        )


def approved_for(site: Site, rows: SiteRows) -> tuple[str, str]:
    """(the digest of the agreement, the id of the snapshot) that an approval of a run is for. Under a privacy
    budget there is none: that the table has changed must not show in what is answered."""
    if site.privacy is not None:
        return rows.agreed.digest, ""
    return rows.agreed.digest, f"{table_id(site, snapshot(site, rows)):.0f}"


def _question(site: Site, rows: SiteRows, request: Request, digest: str) -> Question:
    agreed, table = approved_for(site, rows)
    if site.privacy is not None:
        # The ledger counts what is released; nothing that depends on the table may limit it beside.
        query = Question(request.run, request.question, request.round, digest, request.models)
        return query._replace(agreed=agreed, table=table)
    kind = request.query.without_noise or request.kind
    query = Question(request.run, kind, request.round, digest, request.models, agreed=agreed, table=table)
    if kind not in STATEMENTS:
        return query
    about_it = {"ambiguity": repr(request.ambiguity), "curves": repr(request.protocol.segments)}
    # The same numbers by another agreement, or of a table with other rows, are another statement.
    content = f"{agreed} {table} {hashlib.sha256(pack(request.message, about_it)).hexdigest()}"
    return query._replace(about=str(table_version(site, rows)), content=content, means=request.means)


def _reason(error: Exception) -> str:
    """What the site's own log says. What bidro says is a sentence for the owner; what another package raised
    may hold anything, and stands in the log of the process."""
    if isinstance(error, BidroError):
        return str(error)
    return f"it could not be followed ({type(error).__name__}); the log of this site's process says more."


def _require_current(site: Site, rows: SiteRows, request: Request) -> None:
    """Raise PolicyViolationError where the table is another than the run began with, or the owner does not
    want a loss like this, or models from elsewhere."""
    if request.table is not None and request.table != table_id(site, rows):
        raise PolicyViolationError("its table has changed since the run began; begin a new run.")
    if request.question == "check":
        return
    if request.question == "score":
        if SCORES not in site.allows:
            raise PolicyViolationError(SCORED)
        return
    if site.privacy is None:
        require_allowed(site, rows)
