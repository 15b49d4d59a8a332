"""What left the sites in a run: kinds of messages, their numbers, their size, and over how many rows."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bidro.core.errors import BidroError, one_line
from bidro.core.files import read_json

FORMAT, VERSION = "bidro audit", 1
_LONGEST_LINE = 2000
_NOTHING = {"messages": 0, "numbers": 0, "bytes": 0}


def audit_of(
    run: str, heads: Sequence[Mapping[str, Any]], influence: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The content of `audit.json` from a run's record, with how much the model rests on each site."""
    # An audit is read without what a run needs.
    from bidro.deploy.messages.queries import content_of

    kinds: dict[tuple[Any, ...], dict[str, Any]] = {}
    for head in heads:
        if "request" not in head:
            continue
        key = (head["question"], json.dumps(head["fields"]))
        content = content_of(head["question"], head["fields"], head["rows"])
        one = kinds.setdefault(
            key,
            {
                "question": head["question"],
                "what": content.what,
                "fields": head["fields"],
                "reveals": content.reveals,
                "clients": [],
                "numbers": sum(math.prod(shape) for shape in head["fields"].values()),
                "by_client": {},
                "messages": 0,
                "bytes_up": 0,
                "bytes_down": 0,
                "fewest_rows": head["rows"],
                "seconds": [],
            },
        )
        if head["client"] not in one["clients"]:
            one["clients"] = sorted([*one["clients"], head["client"]])
        own = one["by_client"].setdefault(head["client"], {"messages": 0, "bytes_up": 0})
        own["messages"] += 1
        own["bytes_up"] += head["bytes_up"]
        one["messages"] += 1
        one["seconds"].append(head["seconds"])
        one["bytes_up"] += head["bytes_up"]
        one["bytes_down"] += head["bytes_down"]
        one["fewest_rows"] = min(one["fewest_rows"], head["rows"])
    for one in kinds.values():
        one["seconds"] = statistics.median(one["seconds"])
    answered = Counter(head["client"] for head in heads if "request" in head)
    return {
        "format": FORMAT,
        "version": VERSION,
        "run": run,
        "rounds": max(answered.values(), default=0),
        "kinds": list(kinds.values()),
        "faults": [dict(head) for head in heads if "fault" in head],
        "lost": {name: why for head in heads for name, why in head.get("lost", {}).items()},
        "influence": influence,
    }


def audit_content(audit: Mapping[str, Any]) -> dict[str, Any]:
    """What the report page shows of an audit: kinds of messages that hold the same together, with how many
    numbers and bytes of each every site sent.

    `left` has for each `what` it holds and `reveals`, over how many rows each number is at least, messages,
    numbers and bytes in all, and the same by site.
    """
    left: dict[str, dict[str, Any]] = {}
    for kind in audit["kinds"]:
        one = left.setdefault(
            kind["what"],
            {
                "what": kind["what"],
                "reveals": kind["reveals"],
                "fewest_rows": kind["fewest_rows"],
                **_NOTHING,
                "sites": {},
            },
        )
        one["fewest_rows"] = min(one["fewest_rows"], kind["fewest_rows"])
        for client, sent in kind["by_client"].items():
            own = one["sites"].setdefault(client, dict(_NOTHING))
            counted = {
                "messages": sent["messages"],
                "numbers": sent["messages"] * kind["numbers"],
                "bytes": sent["bytes_up"],
            }
            for name, number in counted.items():
                own[name] += number
                one[name] += number
    return {
        "run": audit["run"],
        "rounds": audit["rounds"],
        "left": list(left.values()),
        "refused": [
            {"site": fault["client"], "why": one_line(str(fault["fault"]), _LONGEST_LINE)}
            for fault in audit["faults"]
        ],
        "lost": {name: one_line(str(why), _LONGEST_LINE) for name, why in audit["lost"].items()},
    }


def read_audit(folder: Path) -> dict[str, Any]:
    """The audit in a model folder. Raises BidroError where there is none."""
    path = folder / "audit.json" if folder.is_dir() else folder
    if not path.exists():
        raise BidroError(f"There is no audit in '{folder}': only `bidro federate` leaves one.")
    content = read_json(path, "an audit of bidro")
    if content.get("format") != FORMAT or content.get("version") != VERSION:
        raise BidroError(f"'{path}' is not an audit that this version of bidro reads.")
    try:
        in_words(content)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise BidroError(f"'{path}' is damaged or not an audit of bidro.") from error
    return content


def in_words(audit: Mapping[str, Any]) -> str:
    """A table a kind of message, and what it reveals."""
    up = sum(kind["bytes_up"] for kind in audit["kinds"])
    down = sum(kind["bytes_down"] for kind in audit["kinds"])
    lines = [f"Run '{audit['run']}': {audit['rounds']} rounds, {up:,} bytes from sites, {down:,} to sites."]
    for kind in audit["kinds"]:
        names = ", ".join(f"{name}{_shape(shape)}" for name, shape in kind["fields"].items())
        lines += [
            "",
            f"{kind['question']}: {kind['messages']} messages from {len(kind['clients'])} clients, "
            f"{kind['bytes_up']:,} bytes, {_over(kind['fewest_rows'])}, {kind['seconds']:.2g} s a round",
            f"  sent: {names}",
            f"  reveals: {kind['reveals']}",
        ]
    for fault in audit["faults"]:
        lines += ["", f"not accepted from '{fault['client']}' ({fault['question']}): {fault['fault']}"]
    for name, why in audit["lost"].items():
        lines += ["", f"lost: '{name}' ({why}); the model and its certificate do not cover it."]
    if (found := audit.get("influence")) is not None:
        lines += ["", found["words"], *(_influence_line(one) for one in found["sites"])]
    # The file may come from elsewhere, and holds texts that sites have written.
    return "\n".join(line[: len(line) - len(line.lstrip())] + one_line(line, _LONGEST_LINE) for line in lines)


def _over(rows: int) -> str:
    return f"each number over at least {rows:,} rows" if rows else "with noise, over how many rows untold"


def _influence_line(one: Mapping[str, Any]) -> str:
    """What would be without one site."""
    felt = [f"{', '.join(one[who])} {who}" for who in ("gain", "lose") if one[who]]
    return (
        f"  without '{one['site']}' (weight {one['weight']:.1%}) predictions move by {one['moved']:.3g}; "
        f"{'; '.join(felt) or 'nobody else gains or loses'}"
    )


def _shape(shape: Sequence[int]) -> str:
    return f" ({' x '.join(map(str, shape))})" if shape else ""
