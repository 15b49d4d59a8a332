"""The curves of a model for papers: one picture a column, as the report page draws them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bidro.report.style import BLUE, GREY, ORANGE, VERMILION, Axes, Figure, styled

_COLOURS = (BLUE, ORANGE, VERMILION, "#009E73", "#CC79A7", "#56B4E9")
# Clients whose rows are shown below a curve.
MOST_CLIENTS = 12


def curves_figure(column: Mapping[str, Any], target: str, classes: list[str] | None) -> Figure:
    """Of one of the columns in the part `curves` of a report; `target` is in what it adds up, and `classes`
    are those of several scores."""
    values = np.asarray(column["values"], float)
    values = values[:, None] if values.ndim == 1 else values
    words = [None] if values.shape[1] == 1 else (classes or [str(k + 1) for k in range(values.shape[1])])
    with styled():
        rows = dict(list(column.get("rows", {}).items())[:MOST_CLIENTS])
        figure = Figure(figsize=(4.6, 3.2 + 0.16 * len(rows)))
        if rows:
            upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3.0, 0.2 + 0.16 * len(rows)])
            _strips(lower, rows)
            lower.set_xlabel(column["name"])
        else:
            upper = figure.subplots()
            upper.set_xlabel(column["name"])
        if "levels" in column:
            _bars(upper, column["levels"], values, words)
        else:
            for k, word in enumerate(words):
                colour = _COLOURS[k % len(_COLOURS)]
                upper.plot(column["knots"], values[:, k], color=colour, label=word)
                upper.plot(column["knots"][1:-1], values[1:-1, k], "o", color=colour, markersize=3.5)
        upper.axhline(0, color=GREY, linewidth=0.8)
        upper.set_ylabel(f"added to {target}")
        if len(words) > 1:
            upper.legend(fontsize=8)
        figure.tight_layout()
        return figure


def _bars(axes: Axes, levels: list[str], values: Any, words: list[Any]) -> None:
    wide = 0.7 / len(words)
    places = np.arange(len(levels))
    for k, word in enumerate(words):
        off = (k - (len(words) - 1) / 2) * wide
        axes.bar(places + off, values[:, k], wide, color=_COLOURS[k % len(_COLOURS)], label=word)
    axes.set_xticks(places, levels)


def _strips(axes: Axes, rows: Mapping[str, Any]) -> None:
    """Where clients' rows lie: four fifths, half, and the median."""
    for place, (least, low, middle, high, most) in enumerate(rows.values()):
        axes.plot([least, most], [place, place], color=GREY, linewidth=0.8)
        axes.plot([low, high], [place, place], color=GREY, linewidth=3.5, solid_capstyle="butt")
        axes.plot([middle], [place], "|", color="black", markersize=7)
    axes.set_yticks(np.arange(len(rows)), list(rows), fontsize=7)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
