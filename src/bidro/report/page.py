"""`page_html`: the report of a trained model as one file that needs no network.

Names of clients and columns come from others' data, so nothing of the content is ever markup: the page holds
it as JSON, its script writes it as text, and its policy allows that one script and one style sheet only.

In the content, `rows` are those that training used and `held_out_rows` held-out ones, both for each
client and in all. Where no rows were held out, the losses of `overall` are those of training.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from importlib import resources
from typing import Any

# One script, in this order.
_SCRIPTS = tuple(
    f"page_{part}.js"
    for part in ("parts", "promises", "message", "cost", "clients", "curves", "survival", "sites", "training")
)
# In a script element the parser looks for these, whatever the JSON around them.
_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def page_html(content: dict[str, Any]) -> str:
    """The whole page. `content` must be what JSON can hold, with finite numbers (else ValueError)."""
    style, script = _part("page.css"), "\n".join(map(_part, _SCRIPTS))
    parts = {
        "title": html.escape(str(content.get("title", "Report"))),
        "policy": _policy(style, script),
        "style": style,
        "script": script,
        "content": json_in_script(content),
    }
    # One pass over the template, so that text put in is never searched for places itself.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _part("page.html"))


def json_in_script(content: Any) -> str:
    """JSON that can stand inside a script element."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).translate(_ESCAPES)


def _part(name: str) -> str:
    return resources.files("bidro.report").joinpath(name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Nothing is loaded from anywhere, and only this script and this style sheet count."""
    allowed = f"script-src {_digest(script)}; style-src {_digest(style)}"
    return f"default-src 'none'; {allowed}; img-src data:; base-uri 'none'; form-action 'none'"


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
