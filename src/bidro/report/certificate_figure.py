"""The picture of a certificate: what is stated of the true cost, and every client's risks below it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bidro.guarantees.certificate import EACH_BY_ITSELF, Certificate
from bidro.report.style import BLUE, GREEN, GREY, ORANGE, VERMILION, Axes, Figure, caption, styled

# Of more clients than this, those with the highest risks are shown.
MOST_CLIENTS = 30


def certificate_figure(found: Certificate) -> Figure:
    """One line a client: mean loss, held-out bound, robust risk; above them a line for each statement."""
    marks: dict[str, tuple[NDArray[np.float64], str, str]] = {}
    fresh, rows = found.fresh, dict(zip(found.names, found.rows, strict=found.trained))
    if found.trained:
        marks["mean loss on training rows"] = (np.asarray(found.empirical), "o", GREY)
    elif fresh is not None:
        rows = dict(fresh.rows)
        if fresh.means:
            marks["mean loss on fresh rows"] = (np.array([fresh.means[n] for n in found.names]), "o", GREY)
    if fresh is not None:
        bounds = np.array([np.nan if n in fresh.vacuous_clients else fresh.clients[n] for n in found.names])
        marks["held-out bound" + (" (clipped)" if fresh.clipped else "")] = (bounds, "D", ORANGE)
    if found.interval is not None:
        marks["robust risk at the explicit radius"] = (found.interval.risks, "s", BLUE)
    top = next(reversed(marks.values()))[0]
    # Clients without a bound are the first to be left out.
    shown = np.argsort(np.nan_to_num(top, nan=-np.inf))[-MOST_CLIENTS:]
    with styled():
        figure = Figure(figsize=(8.4, 2.4 + 0.3 * len(shown)))
        axes = figure.subplots()
        places = np.arange(len(shown))
        every = np.stack([values[shown] for values, _, _ in marks.values()])
        axes.hlines(
            places, np.nanmin(every, axis=0), np.nanmax(every, axis=0), color=GREY, alpha=0.4, linewidth=1
        )
        for title, (values, marker, colour) in marks.items():
            axes.plot(values[shown], places, marker, color=colour, label=title, markersize=6)
        if np.all(every[~np.isnan(every)] > 0):
            axes.set_xscale("log")
            axes.set_xlim(0.5 * np.nanmin(every), 2 * max(np.nanmax(every), _ends(found).max(initial=0.0)))
        titles = _draw_statements(axes, found, len(shown))
        clients = [f"{found.names[i]} (N = {rows[found.names[i]]:,})" for i in shown]
        axes.set_yticks(np.arange(len(shown) + len(titles)), [*clients, *titles])
        for label, i in zip(axes.get_yticklabels(), shown, strict=False):
            label.set_fontweight("bold" if found.names[i] in found.counts_most else "normal")
        axes.axhline(len(shown) - 0.5, color=GREY, linewidth=0.8)
        axes.set_ylim(-0.6, len(shown) + len(titles) - 0.4)
        axes.set_xlabel("share of mistakes" if fresh is not None and fresh.mistakes else "loss")
        axes.grid(axis="y", visible=False)
        figure.legend(loc="upper center", ncols=3, fontsize=9, bbox_to_anchor=(0.5, 1.04))
        words = [
            f"Confidence {found.confidence:g}, for {found.mixtures}.",
            *(["What is in bold counts most in the worst mixture of training."] if found.counts_most else []),
        ]
        if found.fresh is not None and found.fresh.units:
            words.append("Bounds are of means of people, each with the mean of its rows.")
        if found.fresh is not None and found.fresh.each_by_itself:
            words.append(EACH_BY_ITSELF)
        if found.clipped is not None:
            where = "training" if found.trained else "other rows"
            largest = f"{found.clipped.largest:.3g}, a level from {where}"
            words.append(f"In the clipped cost a loss counts as at most {largest}.")
        words += [
            f"Too few {held.draws} for a bound of the {what} cost: {held.shortage}."
            for what, held in (("clipped", found.clipped), ("true", found.held_out))
            if held is not None and held.vacuous
        ]
        if hidden := len(found.names) - len(shown):
            words.append(f"{hidden} clients with lower risks are not shown.")
        caption(figure, " ".join(words))
        return figure


def _ends(found: Certificate) -> NDArray[np.float64]:
    """The upper ends of what is stated."""
    stated = {found.held_out, found.clipped, found.fresh}
    held = [part for part in stated if part is not None and not part.vacuous]
    ends = [part.bound for part in (*held, found.shift) if part is not None]
    return np.array(ends if found.interval is None else [*ends, found.interval.upper])


def _draw_statements(axes: Axes, found: Certificate, first: int) -> list[str]:
    """Bars from the lower to the upper end, from line `first` on; returns the lines' titles."""
    least = axes.get_xlim()[0]
    bars: list[tuple[str, float, float, str]] = []
    if found.clipped is not None and not found.clipped.vacuous:
        bars.append(("clipped cost, held out", least, found.clipped.bound, ORANGE))
    if found.fresh is not None and found.fresh.mistakes and not found.fresh.vacuous:
        bars.append(("share of mistakes, held out", least, found.fresh.bound, ORANGE))
    if found.shift is not None:
        title = f"clipped cost, shift up to {found.shift.radius:g}"
        bars.append((title, least, found.shift.bound, VERMILION))
    if found.held_out is not None and not found.held_out.vacuous:
        bars.append(("true cost, held out", least, found.held_out.bound, GREEN))
    if found.interval is not None:
        lower = max(found.interval.lower, least)
        bars.append(("true cost, Wasserstein interval", lower, found.interval.upper, BLUE))
    for k, (_, lower, upper, colour) in enumerate(bars):
        line = first + k
        axes.barh(line, upper - lower, left=lower, height=0.5, color=colour, alpha=0.35, edgecolor=colour)
        ends = f"≤ {upper:.3g}" if lower <= least else f"{lower:.3g} to {upper:.3g}"
        axes.annotate(ends, (upper, line), (4, 0), textcoords="offset points", va="center", fontsize=9)
    return [title for title, *_ in bars]
