"""What `judged.evaluated` found, in words: a line a model, who gains and who loses, a line a client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bidro.losses import registry
from bidro.workflow.measures import BINS

# More clients than this are summarised on the screen: quantiles, and so many of the worst.
MOST_LISTED = 50
_WORST_LISTED = 10
_MOST_NAMED = 5
_MODELS = {"own": "with own models", "pooled": "pooled training"}


def in_words(found: Mapping[str, Any]) -> str:
    """To read: every client, or of many the quantiles and the worst."""
    measure = found["measured_in"]
    unit = "" if measure is None else f", in {registry.unit_of(found['loss'], measure)}"
    lines = [f"{found['loss']} loss{unit}: {_model_line(found, measure)}", *_classes_line(found)]
    for which, title in _MODELS.items():
        if found[which] is not None:
            lines += [f"  {title}: {_model_line(found[which], measure)}", *_classes_line(found[which])]
    lines += _against_pooled(found)
    worst_first = sorted(found["clients"].items(), key=lambda item: -item[1]["own"])
    shown = worst_first
    if len(worst_first) > MOST_LISTED:
        quantiles = np.quantile([one["own"] for _, one in worst_first], (0, 0.1, 0.5, 0.9, 1))
        words = ("best", "10%", "median", "90%", "worst")
        lines.append(
            f"  {len(worst_first):,} clients, mean losses: "
            + ", ".join(f"{word} {value:.4g}" for word, value in zip(words, quantiles, strict=True))
        )
        lines.append(f"  the {_WORST_LISTED} worst (--json has all):")
        shown = worst_first[:_WORST_LISTED]
    lines += _in_columns([_client_cells(name, one, found) for name, one in shown])
    return "\n".join(lines)


def _model_line(found: Mapping[str, Any], measure: str | None) -> str:
    return (
        f"mean {found['mean']:.4g}{_beside(found, measure)}, worst client {found['worst_client']:.4g}, "
        f"worst decile {found['worst_decile']:.4g}"
    )


def _classes_line(found: Mapping[str, Any]) -> list[str]:
    """How well classes are told apart, and calibrated; nothing for a number."""
    if "mistakes" not in found:
        return []
    parts = [f"mistakes {found['mistakes']:.1%}"]
    if found["auc"] is not None:
        parts.append(f"area under the curve {found['auc']:.3f}")
    if "expected_minus_observed" in found:
        parts.append(f"expected minus observed {found['expected_minus_observed']:+.1%}")
    if "calibration_error" in found:
        parts.append(f"calibration error {found['calibration_error']:.3f} ({BINS} bins)")
    return [f"    {', '.join(parts)}"]


def _against_pooled(found: Mapping[str, Any]) -> list[str]:
    """How the shared model varies, and who gains or loses by the model it uses, beyond chance."""
    if found["pooled"] is None:
        return []
    shared, pooled = found["deviation"]["shared"], found["deviation"]["pooled"]
    lines = [f"  deviation of the predictions {shared:.4g}, under pooled training {pooled:.4g}"]
    for verdict in ("gains", "loses"):
        who = [name for name, one in found["clients"].items() if one["verdict"] == verdict]
        named = ", ".join(who[:_MOST_NAMED])
        more = f" and {len(who) - _MOST_NAMED:,} more" if len(who) > _MOST_NAMED else ""
        word = verdict.removesuffix("s")
        lines.append(
            f"  {len(who):,} of {len(found['clients']):,} clients {word} by more than two standard errors "
            f"against pooled training{': ' if who else ''}{named}{more}"
        )
    return lines


def _client_cells(name: str, one: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Its name, its loss under the shared model, its own and pooled training, what changed, its rows."""
    se = "" if one["se"] is None else f" ± {one['se']:.2g}"
    shared = f"{one['loss']:.4g}{se}"
    cells = [f"{name:<20} {shared}"]
    if found["own"] is not None:
        cells.append(f"own {one['own']:.4g}")
    cells[-1] += _beside(one, found["measured_in"])
    if "pooled" in one:
        change = one["own_change"]
        error = "" if change["se"] is None else f" ± {change['se']:.2g}"
        cells += [f"pooled {one['pooled']:.4g}", f"{change['mean']:+.4g}{error}", one["verdict"] or ""]
    new = ", not in training" if name in found["not_in_training"] else ""
    rows = "1 row" if one["rows"] == 1 else f"{one['rows']:,} rows"
    return [*cells, f"({rows}{new})"]


def _in_columns(lines: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def _beside(found: Mapping[str, Any], measure: str | None) -> str:
    if "accuracy" in found:
        return f" (accuracy {found['accuracy']:.1%})"
    if "root_mean_squared_error" in found:
        unit = "" if measure is None else f" {measure}"
        return f" (root {found['root_mean_squared_error']:.4g}{unit})"
    return ""
