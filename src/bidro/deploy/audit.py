"""What left the sites in a run: kinds of messages, their numbers, their size, and over how many rows."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bidro.errors import BidroError, one_line
from bidro.workflow.toml_files import read_json

FORMAT, VERSION = "bidro audit", 1
_LONGEST_LINE = 2000
_NOTHING = {"messages": 0, "numbers": 0, "bytes": 0}

# What a message holds, in a few words.
_WHAT = {
    "prepare": "Rows, means and spreads",
    "spread": "Where values lie",
    "bends": "Segments that rows bear",
    "assess": "Losses in training",
    "bounds": "Losses on rows kept out",
    "score": "Bounds of another model's losses",
    "train": "Steps of a network",
    "evaluate": "Bounds of a network's losses",
    "curvature": "Risks with curvature",
    "moments": "Second moments",
    "gradient": "Risks with gradients",
    "scores": "Losses of candidates",
    "own": "Losses of own models",
    "average": "Steps of the model",
    "one row": "Gradients of single rows",
    "private moments": "Second moments with noise",
    "private gradients": "Gradients with noise",
    "private losses": "Losses on rows kept out, with noise",
}

# What the numbers of a message tell whoever reads them, by the names of the fields.
_REVEALS = {
    "prepare": (
        "How many rows (and units) the site has, over how many folds it answers, with curvature or without, "
        "and mean and deviation of each of its columns: of levels and classes, how many rows have them."
    ),
    "spread": (
        "At which places of a public grid the site's rows are cut into parts of as many rows each: about "
        "where the quantiles of each feature that may be a curve are, to a step of the grid, and no count."
    ),
    "bends": (
        "How many segments of the curves that were asked about the site's rows bear, with enough rows in "
        "every one, in every fold and together with every level and other curve: a number a feature."
    ),
    "assess": (
        "Mean loss of the model, and of the site's own, on its training rows, how much their predictions "
        "vary, and how far its worst case moves each feature "
        "on average; with a declared support also its robust risks and its distance to a cloud that "
        "everybody has. No row."
    ),
    "bounds": (
        "Mean losses of the shared model, of the site's own and of pooled training on the rows kept out, how "
        "much they differ, and confidence bounds. No row."
    ),
    "score": (
        "Confidence bounds of the mean loss of a model from elsewhere on the rows kept out, and of its share "
        "of mistakes, rounded up to steps of what min_rows rows can change. No mean and no row."
    ),
    "train": (
        "The network after its steps over the site's rows, or gradients of it, from batches whose rows the "
        "seed tells. With more weights than rows they can hold these rows nearly as they are: whoever reads "
        "them must be trusted not to look."
    ),
    "evaluate": (
        "Confidence bounds of the trained network's mean loss on the rows kept out, and of its share of "
        "mistakes, rounded up to steps of what min_rows rows can change. No mean and no row."
    ),
    "curvature": (
        "Value, gradient and curvature of the site's risk at the models asked for. For squared loss these "
        "determine the site's second moments: the covariances of all its columns. For other smooth losses "
        "they are sums over all rows; for losses with kinks, which a site must allow, the last rounds can "
        "tell single rows."
    ),
    "folds": (
        "As above for every fold's training rows; differences between folds tell the same of the rows of one "
        "fold, and these are what the least number of rows counts."
    ),
    "moments": (
        "Means and second moments of the site's rows, in cross-validation fold by fold: the covariances of "
        "all its columns; where curves are agreed on, of what of a column lies in each segment."
    ),
    "gradient": (
        "Value and gradient of the site's risk at the models asked for: averages over all its rows, and less "
        "than curvature tells; many rounds together still narrow down the second moments."
    ),
    "scores": "One mean loss a candidate, over the rows of each fold.",
    "own": (
        "How well the site would do with a model of its own: one mean loss for every strength with which "
        "that is held at the shared one, on its rows left out and on those trained on."
    ),
    "average": "A step of the model by the gradient over all the site's rows, and its mean loss.",
    "one row": (
        "Gradient and value of ONE row's loss. With the settings, which the server knows, four fifths of the "
        "sampled records can be rebuilt from them."
    ),
    # Of a private run, where every number has noise that the site's privacy budget pays for.
    "private moments": (
        "Sums of products of all columns over the training rows, with noise; rows far out count less. At a "
        "site without a budget the same without noise: the covariances of all its columns."
    ),
    "private gradients": (
        "Sums over the training rows of the loss and its slopes at a model, none counted as more than a "
        "level, and how many slopes are below it, with noise; without noise at a site without a budget."
    ),
    "private losses": (
        "Sums over the rows kept out of how many have a loss about so large, with noise; without noise at a "
        "site without a budget."
    ),
}


def audit_of(
    run: str, heads: Sequence[Mapping[str, Any]], influence: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The content of `audit.json` from a run's record, with how much the model rests on each site."""
    kinds: dict[tuple[Any, ...], dict[str, Any]] = {}
    for head in heads:
        if "request" not in head:
            continue
        key = (head["question"], json.dumps(head["fields"]))
        one = kinds.setdefault(
            key,
            {
                "question": head["question"],
                "what": _WHAT[_kind(head)],
                "fields": head["fields"],
                "reveals": _reveals(head),
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


def _kind(head: Mapping[str, Any]) -> str:
    """What a message is, by its question and fields."""
    question, fields = str(head["question"]), head["fields"]
    if (private := f"private {question}") in _REVEALS:
        return private
    if question != "round":
        return question
    if head["rows"] == 1:
        return "one row"
    if "around" in fields:
        return "moments"
    if "curvature" in fields:
        return "curvature" if fields["curvature"][-1] else "gradient"
    if "left_out" in fields:
        return "own"
    return "scores" if list(fields) == ["loss", "rows"] else "average"


def _reveals(head: Mapping[str, Any]) -> str:
    found = _REVEALS[_kind(head)]
    of_folds = "curvature" in head["fields"] and len(head["fields"]["gradient"]) > 1
    return f"{found} {_REVEALS['folds']}" if of_folds and head["rows"] != 1 else found


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
