"""The owner's page: what waits for approval and what that would send, what was decided, what has left.

For owners who use no terminal. It is served on this machine alone by the standard library, as HTML without a
script. Who may see it and decide on it is who knows its address, which holds a secret of 256 bits:

- Other users of the machine reach the port, and without the secret get nothing but 404. It is in no command
  line, and no cookie, which browsers would send to every port of this machine.
- Other pages in the owner's browser cannot guess it either. A decision moreover needs the form's own token,
  an Origin that is this page's, and is refused where the browser says that another site asks.
- A name that somebody points at this machine (DNS rebinding) is no Host that is answered.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import html
import secrets
from collections.abc import Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any
from urllib.parse import parse_qs, quote

from bidro.core.errors import BidroError, one_line
from bidro.data.tables import Query
from bidro.deploy.agreement.agreement import Agreement
from bidro.deploy.messages.plan import protocol_of
from bidro.deploy.messages.queries import QUERIES, RUN_NAME, stage_of
from bidro.deploy.site.answers import ledger_of
from bidro.deploy.site.config import Site
from bidro.deploy.site.ledger import said_to_owner, spent_content
from bidro.deploy.site.rows import SiteRows, site_log, state_of
from bidro.deploy.site.session import approved_for
from bidro.deploy.site.state import Decision, Entry

HOST = "127.0.0.1"
# The names by which a browser on this machine may ask, whatever the port (which may have been forwarded).
HOSTS = (HOST, "localhost", "[::1]")
DAYS = 30  # for which a run is approved, if nothing else is said
MOST_DAYS = 366
_MOST_FORM = 10_000
_RUNS_SHOWN = 50
# Of rounds, in which the agreed algorithm says what is sent.
_ROUNDS = (
    "What the agreed training asks for, round by round",
    "Sums over the training rows: second moments, or the loss with its slopes and curvature at the models "
    "on the way. bidro audit lists them after a run.",
)
_DONE = {"approve": "approved", "refuse": "refused", "withdraw": "withdrawn"}


def decide(site: Site, what: str, run: str, days: int = DAYS) -> Decision | None:
    """Approve, refuse or withdraw a run: by the agreement and with the table that the site has now. What was
    decided, or of a withdrawal, what had been. Raises BidroError for what is no run or no decision."""
    if what != "withdraw" and not RUN_NAME.fullmatch(run):
        raise BidroError(f"'{one_line(run)}' is no run's name; see `bidro site log` for those that asked.")
    log = site_log(site)
    if what == "approve":
        if not 1 <= days <= MOST_DAYS:
            raise BidroError(f"A run is approved for 1 to {MOST_DAYS} days; got {days}.")
        return log.approve(run, *approved_for(site, SiteRows.load(site)), days)
    if what == "refuse":
        return log.refuse(run)
    was = log.withdraw(run)
    if was is None:
        raise BidroError(f"Run '{one_line(run)}' is neither approved nor refused here: see `bidro site log`.")
    return was


class Page(ThreadingHTTPServer):
    """The page of a site, at `address`; `serve_forever` answers."""

    daemon_threads = True

    def __init__(
        self, site: Site, port: int = 0, certificate_days: int | None = None, asks: str = ""
    ) -> None:
        """port: 0 for one that is free. certificate_days: for which the site's kit is valid, and asks: the
        server's machine, where known. Raises BidroError where the port is taken."""
        self.site, self.certificate_days, self.asks = site, certificate_days, asks
        self.secret, self.token = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        try:
            super().__init__((HOST, port), _Answer)
        except OSError as error:
            raise BidroError(f"The page cannot be served at port {port}: {one_line(error)}.") from error

    @property
    def address(self) -> str:
        """Whoever has it can decide for the owner."""
        return f"http://{HOST}:{self.server_port}{self.root}"

    @property
    def root(self) -> str:
        return f"/{self.secret}/"


class _Answer(BaseHTTPRequestHandler):
    server: Page
    server_version, sys_version, timeout = "bidro", "", 20

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if not self._known(path, self.server.root) or self._from_elsewhere({"same-origin", "none"}):
            self._send(404, "text/plain", "There is nothing here.\n")
            return
        said = parse_qs(query).get("said", [""])[0]
        self._page(200, _DONE.get(said, ""), parse_qs(query).get("run", [""])[0])

    def do_POST(self) -> None:
        known = self._known(self.path, f"{self.server.root}decide")
        size = self.headers.get("Content-Length", "")
        if not known or not size.isascii() or not size.isdigit() or int(size) > _MOST_FORM:
            self._send(404, "text/plain", "There is nothing here.\n")
            return
        form = parse_qs(self.rfile.read(int(size)).decode("utf-8", "replace"))
        given = {name: values[0] for name, values in form.items()}
        own = f"http://{self.headers.get('Host')}"
        whole = self.headers.get("Origin") == own and not self._from_elsewhere({"same-origin"})
        if not whole or not hmac.compare_digest(given.get("token", "").encode(), self.server.token.encode()):
            self._send(403, "text/plain", "Another page has asked for this; nothing was decided.\n")
            return
        what, run = given.get("what", ""), given.get("run", "")
        try:
            days = int(given.get("days", str(DAYS)))
            if what not in _DONE:
                raise BidroError("There is no such decision.")
            decide(self.server.site, what, run, days)
        except (BidroError, ValueError) as error:
            words = str(error) if isinstance(error, BidroError) else "The days must be a whole number."
            self._page(400, f"Nothing was decided. {words}", "")
            return
        self.send_response(303)
        self.send_header("Location", f"{self.server.root}?said={what}&run={quote(run)}")
        self._headers("text/plain", 0)

    def _known(self, path: str, expected: str) -> bool:
        host = self.headers.get("Host", "").rsplit(":", 1)[0]
        return host in HOSTS and hmac.compare_digest(path.encode(), expected.encode())

    def _from_elsewhere(self, allowed: Iterable[str]) -> bool:
        """Whether the browser says that another site has made it ask."""
        return self.headers.get("Sec-Fetch-Site") not in (None, *allowed)

    def _page(self, status: int, said: str, run: str) -> None:
        try:
            text = page_html(self.server, f"Run {run}: {said}." if run and said in _DONE.values() else said)
        except BidroError as error:
            status, text = 500, _whole("This site", f"<p>{_text(error)}</p>")
        self._send(status, "text/html", text)

    def _send(self, status: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self._headers(kind, len(body))
        self.wfile.write(body)

    def _headers(self, kind: str, size: int) -> None:
        policy = f"default-src 'none'; style-src {_STYLE_DIGEST}; form-action 'self'; base-uri 'none'; "
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(size),
            "Cache-Control": "no-store",
            "Content-Security-Policy": f"{policy}frame-ancestors 'none'",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            # Not "no-referrer", with which a form's Origin would be withheld; the address goes nowhere else.
            "Referrer-Policy": "same-origin",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
        }.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """The address is a secret."""


_STYLE = resources.files("bidro.deploy.site").joinpath("page.css").read_text(encoding="utf-8")
_STYLE_DIGEST = f"'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'"


def page_html(page: Page, said: str = "") -> str:
    """The page as it is now. Names of runs come from the server, and are text here."""
    site = page.site
    log, agreed = site_log(site), Agreement.read(site.schema)
    waiting, decided = log.waiting(), log.decisions()
    parts = [
        f'<p class="said" role="status">{_text(said)}</p>' if said else "",
        _about(page, agreed),
        _waiting(page, agreed, waiting),
        _decided(page, decided),
        _left(log.entries()),
    ]
    return _whole(f"Site {site.client}", "\n".join(parts))


def _whole(title: str, body: str) -> str:
    return f"""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_text(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<h1>{_text(title)}</h1>
{body}
</main>
</body>
</html>
"""


def _about(page: Page, agreed: Agreement) -> str:
    site, state = page.site, state_of(page.site)
    rows = f"a query of {site.data}" if isinstance(site.data, Query) else str(site.data)
    facts = {
        "Rows": rows,
        "Agreement": f"{agreed.digest[:12]}: {_training(agreed)}",
        "Runs": "wait for you"
        if site.approve == "ask"
        else "are answered by the agreement, without asking you",
    }
    if page.certificate_days is not None:
        left = page.certificate_days
        soon = "; ask the coordinator for a new kit" if left < DAYS else ""
        facts["Certificate"] = f"valid for {left} more days{soon}" if left >= 0 else f"has expired{soon}"
    if site.privacy is not None:
        spent = spent_content(ledger_of(site), site.privacy)
        facts["Privacy budget"] = (
            f"{spent['left']:.1%} of epsilon = {site.privacy.epsilon:g} is left, over all that ever leaves"
        )
    warned = "".join(f'<p class="warning">{_text(one)}</p>' for one in said_to_owner(site, state))
    lines = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in facts.items())
    return f'<dl class="facts">{lines}</dl>{warned}'


def _training(agreed: Agreement) -> str:
    schema = agreed.schema
    columns = ", ".join(column.name for column in schema.columns[:8])
    more = f" and {len(schema.columns) - 8} more" if len(schema.columns) > 8 else ""
    return f"{schema.target} from {columns}{more}"


def what_would_leave(agreed: Agreement) -> list[tuple[str, str, str]]:
    """(when, what is sent, what that reveals) of every question that a run by this agreement asks."""
    plan = protocol_of(agreed)
    asked = [query for query in QUERIES.values() if query.asked_by(plan)]
    return [
        (stage_of(query.name), query.what or _ROUNDS[0], query.reveals or _ROUNDS[1])
        for query in asked
        if query.by != "any" and (query.name != "score" or agreed.scores is not None)
    ]


def _waiting(page: Page, agreed: Agreement, waiting: list[tuple[str, str]]) -> str:
    if not waiting:
        return _section("Waiting for you", "<p>No run waits for your approval.</p>")
    would = "".join(
        f"<tr><td>{_text(when)}</td><td>{_text(what)}</td><td>{_text(reveals)}</td></tr>"
        for when, what, reveals in what_would_leave(agreed)
    )
    cards, who = [], f", {page.asks}," if page.asks else ""
    for k, (run, since) in enumerate(waiting[:_RUNS_SHOWN]):
        cards.append(
            f'<article aria-labelledby="run-{k}"><h3 id="run-{k}">{_text(run)}</h3>'
            f"<p>The server of your consortium{_text(who)} has asked since {_time(since)}. You approve it by "
            "the agreement and with the table that this site has now; another needs another approval.</p>"
            + _form(
                page,
                "approve",
                run,
                f'<label>for <input name="days" type="number" min="1" max="{MOST_DAYS}" '
                f'value="{DAYS}" required> days</label>',
            )
            + _form(page, "refuse", run)
            + "</article>"
        )
    table = _table(
        "What a run by this agreement would send", ("When", "What leaves", "What it reveals"), would
    )
    return _section(f"Waiting for you: {len(waiting)}", "".join(cards) + table)


def _decided(page: Page, decided: list[Decision]) -> str:
    if not decided:
        return _section("Decided", "<p>You have approved and refused nothing.</p>")
    lines = []
    for one in reversed(decided[-_RUNS_SHOWN:]):
        until = f" until {_time(one.until)}" if one.outcome == "approved" else ""
        lines.append(
            f"<tr><td>{_text(one.run)}</td><td>{_text(one.outcome)}{until}</td><td>{_time(one.time)}</td>"
            f"<td>{_form(page, 'withdraw', one.run)}</td></tr>"
        )
    return _section(
        "Decided", _table("Your decisions", ("Run", "Decision", "When", "Take back"), "".join(lines))
    )


def _left(entries: list[Entry]) -> str:
    """By run, the latest first; of each question how often it was answered, and the rest."""
    runs: dict[str, list[Entry]] = {}
    for one in entries:
        runs.setdefault(one.run, []).append(one)
    if not runs:
        return _section("What has left", "<p>Nothing has been asked of this site.</p>")
    lines = []
    for run, asked in list(reversed(runs.items()))[:_RUNS_SHOWN]:
        for outcome in ("answered", "refused", "asked"):
            for kind in dict.fromkeys(one.question for one in asked if one.outcome == outcome):
                some = [one for one in asked if (one.outcome, one.question) == (outcome, kind)]
                lines.append(_line(run, kind, outcome, some))
    heads = ("Run", "Question", "What came of it", "Over at least", "Bytes", "Last")
    return _section("What has left", _table("All that this site was asked", heads, "".join(lines)))


def _line(run: str, kind: str, outcome: str, some: list[Entry]) -> str:
    why = next((one.reason for one in reversed(some) if one.reason), None)
    words = {"asked": "asked; the site stopped before it answered"}.get(outcome, outcome)
    times = sum(one.times for one in some)
    rows = [one.rows for one in some if one.rows]
    over = f"{min(rows):,}" if rows else "a verdict" if kind == "check" else "with noise"
    cells = [
        run,
        kind,
        f"{words}{f', {times} times' if times > 1 else ''}{f': {why}' if why else ''}",
        over if outcome == "answered" else "",
        f"{sum(one.bytes or 0 for one in some):,}" if outcome == "answered" else "",
    ]
    last = _time(max(one.time for one in some))
    return f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in cells)}<td>{last}</td></tr>"


def _form(page: Page, what: str, run: str, more: str = "") -> str:
    fields: Mapping[str, str] = {"token": page.token, "run": run, "what": what}
    hidden = "".join(f'<input type="hidden" name="{k}" value="{_text(v)}">' for k, v in fields.items())
    word = what.capitalize()
    return (
        f'<form method="post" action="{page.root}decide">{hidden}'
        f'<button class="{what}" aria-label="{word} run {_text(run)}">{word}</button>'
        f"{more}</form>"
    )


def _section(title: str, body: str) -> str:
    return f"<section><h2>{_text(title)}</h2>{body}</section>"


def _table(caption: str, heads: Iterable[str], lines: str) -> str:
    """It scrolls by itself where the window is narrow, also by keys."""
    titles = "".join(f'<th scope="col">{_text(head)}</th>' for head in heads)
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{_text(caption)}"><table>'
        f"<caption>{_text(caption)}</caption><thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def _time(text: str) -> str:
    """ "2026-11-18 23:59", in UTC."""
    shown = text.replace("T", " ")[:16]
    return f'<time datetime="{_text(text)}">{_text(shown)} UTC</time>'


def _text(value: object) -> str:
    return html.escape(one_line(value, 600))
