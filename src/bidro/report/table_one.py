"""`table_one_html`: Table 1 as one file that needs no network and has no script; all names are text in it."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence

from bidro.privacy.table_one import QUANTILES, Described

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#1c1c1c}"
    "table{border-collapse:collapse;width:100%}th,td{text-align:right;padding:.3rem .6rem;"
    "border-bottom:1px solid #ddd}th:first-child,td:first-child,th:nth-child(2),td:nth-child(2)"
    "{text-align:left}thead th{border-bottom:2px solid #555}"
)


def table_one_html(found: Sequence[Described], said: Sequence[str]) -> str:
    """`said` are sentences on what the table rests on."""
    names = [f"{share:.0%}" for share in QUANTILES]
    heads = ["Column", "Level", "Rows", "Share", "Missing", "Mean", "Deviation", *names]
    lines = [_line("th", heads)]
    body = []
    for one in found:
        places = [_number(v) for v in one.quantiles] if one.quantiles else [""] * len(names)
        first = [one.column, one.level, f"{one.rows:,.0f}", f"{one.share:.1%}", f"{one.missing:.1%}"]
        body.append(_line("td", [*first, _number(one.mean), _number(one.deviation), *places]))
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    words = "".join(f"<p>{html.escape(one)}</p>" for one in said)
    return (
        '<!doctype html>\n<html lang="en-GB"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>Table 1</title><style>{_STYLE}</style></head><body><h1>Table 1</h1>{words}"
        f"<table><thead>{''.join(lines)}</thead><tbody>{''.join(body)}</tbody></table></body></html>\n"
    )


def _line(kind: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{kind}>{html.escape(cell)}</{kind}>" for cell in cells) + "</tr>"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
