"""A model card in Markdown from what the report page shows: what the model predicts, on whom it was trained,
how well it does and for whom badly, what is promised, and what is not stated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_NAMES = {
    "personal": "each client's own model",
    "shared": "shared model",
    "robust": "robust to any mix",
    "pooled": "pooled training",
    "guess": "one guess for everybody",
}
_MOST_CLIENTS = 10


def model_card(content: Mapping[str, Any]) -> str:
    """The card, of the content of a report page."""
    return (
        "\n\n".join(part for part in (*_head(content), *_performance(content), *_rest(content)) if part)
        + "\n"
    )


def _head(content: Mapping[str, Any]) -> list[str]:
    classes = content.get("classes")
    what = "" if not classes else f", one of {', '.join(map(_plain, classes))}"
    clients = [_plain(one["name"]) for one in content["clients"]]
    named = ", ".join(clients[:_MOST_CLIENTS]) + (" and others" if len(clients) > _MOST_CLIENTS else "")
    used = ", ".join(_plain(one["name"]) for one in content.get("features", []))
    return [
        f"# Model card: {_plain(content['title'])}",
        f"Predicts **{_plain(content['target'])}**{what} for {len(clients)} clients (column "
        f"{_plain(content['client_column'])}): {named}. Made on {content['created']} with bidro "
        f"{content['version']}.",
        f"**Inputs.** {used}." if used else "",
        f"**Rows.** {content['rows']:,} of training, {content['held_out_rows']:,} held out to judge it by.",
        *(f"**Before use.** {_plain(words)}" for words in content.get("concerns") or []),
    ]


def _performance(content: Mapping[str, Any]) -> list[str]:
    found = content.get("plainly")
    if found is None:
        return []
    right = found["measure"] == "right"
    unit = content.get("target_unit")
    title = "right predictions" if right else "typical error" + (f" in {_plain(unit)}" if unit else "")
    rows = [f"| model | {title} | worst client |", "| --- | --- | --- |"]
    for name, words in _NAMES.items():
        if name in found["models"]:
            each = [one[name] for one in found["clients"].values()]
            worst = min(each) if right else max(each)
            rows.append(f"| {words} | {_number(found['models'][name], right)} | {_number(worst, right)} |")
    used = next(name for name in _NAMES if name in found["models"])
    each_used = {name: one[used] for name, one in found["clients"].items()}
    ordered = sorted(each_used.items(), key=lambda one: one[1], reverse=not right)[:_MOST_CLIENTS]
    # Of a client whose loss is released with noise as large as it is only a bound is known.
    hidden = found.get("hidden_by_noise") or {}
    served = [
        f"- {_plain(name)}: " + (f"less than {hidden[name]:.3g}" if name in hidden else _number(value, right))
        for name, value in ordered
    ]
    on = "held-out rows" if content["held_out_rows"] else "the rows of training, which flatters it"
    return [
        f"## How well it does\n\nOn {on}.",
        "\n".join(rows),
        f"Worst served, by the model that each client uses ({_NAMES[used]}):\n\n" + "\n".join(served),
    ]


def _rest(content: Mapping[str, Any]) -> list[str]:
    level = content["levels"][content["default_level"]]
    promises = [_plain(words) for words in level["promises"].values()] or [
        _plain(words) for words in level["too_few"].values()
    ]
    how = [f"- {_plain(words)}" for words in (content.get("chosen") or {}).values()]
    absent = [f"- {_plain(why)}" for why in dict.fromkeys(content["absent"].values())]
    left = content.get("federated")
    return [
        "## What is promised\n\n" + ("\n\n".join(promises) or "Nothing: no rows were held out."),
        "## How it was chosen\n\n" + "\n".join(how) if how else "",
        "## What is not stated\n\n" + "\n".join(absent) if absent else "",
        "## What left the sites\n\nSee the report page and `audit.json` beside this model."
        if left
        else "## What left the sites\n\nThe rows were in one place when it was trained.",
    ]


def _number(value: float, right: bool) -> str:
    return f"{value:.1%}" if right else f"{value:.3g}"


def _plain(words: Any) -> str:
    """Text from elsewhere, of which nothing is markup."""
    return re.sub(r"([\\`*_{}\[\]<>|#~])", r"\\\1", " ".join(str(words).split()))
