"""The rank plot of a comparison. Colours are safe for colour-blind readers (Okabe and Ito)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bidro.report.figures import Figure, styled

_MARKS = "osD^vP*XphdH"
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")


def ranks_figure(ranks: Mapping[str, Mapping[str, int]], ours: str) -> Figure:
    """Ranks of methods on tables, 1 being best; `ours` is printed bold. Methods are shown in the order given,
    the first on top."""
    tables = list(dict.fromkeys(table for places in ranks.values() for table in places))
    with styled():
        figure = Figure(figsize=(8.5, 1.2 + 0.36 * len(ranks)))
        axes = figure.subplots()
        # Tables side by side within a row, so that equal ranks do not hide each other.
        offsets = np.linspace(0.26, -0.26, len(tables)) if len(tables) > 1 else np.zeros(1)
        for k, table in enumerate(tables):
            rows = [(place, y) for y, one in enumerate(ranks.values()) for place in [one.get(table)] if place]
            axes.scatter(
                [place for place, _ in rows],
                [y - offsets[k] for _, y in rows],
                s=26,
                color=_COLOURS[k % len(_COLOURS)],
                marker=_MARKS[k % len(_MARKS)],
                label=table,
                zorder=3,
            )
        for y, one in enumerate(ranks.values()):
            mean = float(np.mean(list(one.values())))
            axes.plot([mean, mean], [y - 0.38, y + 0.38], color="#555555", linewidth=2.5, zorder=2)
        axes.set_yticks(range(len(ranks)), list(ranks))
        for label in axes.get_yticklabels():
            if label.get_text() == ours:
                label.set_fontweight("bold")
        axes.set_ylim(len(ranks) - 0.4, -0.6)
        axes.set_xlim(0.4, len(ranks) + 0.6)
        axes.set_xticks(range(1, len(ranks) + 1))
        axes.set_xlabel("rank by worst decile of the clients' test losses (1 is best); bar: mean rank")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), title="table")
        figure.tight_layout()
    return figure
