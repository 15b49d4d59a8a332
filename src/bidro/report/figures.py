"""All figures: of a certificate, of a model's curves, and of the paper's simulation. Colours are safe for
colour-blind readers (Okabe and Ito).

Few commands draw, so matplotlib is an extra; this module alone imports it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression
from scipy.spatial import ConvexHull

from bidro.certify.certificate import EACH_BY_ITSELF, Certificate
from bidro.core.arrays import Floats
from bidro.core.errors import BidroError

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Figure
    from matplotlib.patches import Circle
except ImportError as error:
    raise BidroError(
        "Drawing needs a package that is not installed; pip install 'bidro[figures]'."
    ) from error

BLUE, ORANGE, GREEN, VERMILION, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#555555"


def styled() -> AbstractContextManager[None]:
    """The settings under which a figure is made."""
    return matplotlib.rc_context(
        {
            "font.size": 10,
            "axes.grid": True,
            "grid.alpha": 0.3,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "legend.frameon": False,
            "savefig.dpi": 160,
        }
    )


def caption(figure: Figure, text: str) -> None:
    """Write the text below the figure, in lines of its width."""
    width = int(figure.get_figwidth() * 15.5)
    figure.tight_layout()
    figure.text(0.01, -0.02, textwrap.fill(text, width), fontsize=8.5, va="top", color="#333333")


def save(figure: Figure, path: Path) -> None:
    """Write the figure as PNG."""
    figure.savefig(path, format="png", bbox_inches="tight", facecolor="white")


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
        if found.fresh is not None and found.fresh.people:
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


_COLOURS = (BLUE, ORANGE, VERMILION, "#009E73", "#CC79A7", "#56B4E9")
# Clients whose rows are shown below a curve.
_MOST_STRIPS = 12


def curves_figure(column: Mapping[str, Any], target: str, classes: list[str] | None) -> Figure:
    """Of one of the columns in the part `curves` of a report; `target` is in what it adds up, and `classes`
    are those of several scores."""
    values = np.asarray(column["values"], float)
    values = values[:, None] if values.ndim == 1 else values
    words = [None] if values.shape[1] == 1 else (classes or [str(k + 1) for k in range(values.shape[1])])
    with styled():
        rows = dict(list(column.get("rows", {}).items())[:_MOST_STRIPS])
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


def pair_figure(pair: Mapping[str, Any], target: str, classes: list[str] | None) -> Figure:
    """Of one of the pairs of features in the part `curves` of a report, a table for each of several classes;
    shades are of the size alone, and numbers say the rest."""
    values = np.asarray(pair["values"], float)
    values = values[..., None] if values.ndim == 2 else values
    words = [None] if values.shape[2] == 1 else (classes or [str(k + 1) for k in range(values.shape[2])])
    (first, second), (across, upwards) = pair["names"], pair["knots"]
    with styled():
        figure = Figure(figsize=(4.6, 3.2 * len(words)))
        for k, (axes, word) in enumerate(zip(np.ravel(figure.subplots(len(words), 1)), words, strict=True)):
            own = values[..., k].T
            most = float(np.abs(own).max()) or 1.0
            axes.imshow(np.abs(own), origin="lower", aspect="auto", cmap="Greys", vmin=0, vmax=2 * most)
            for (row, column), value in np.ndenumerate(own):
                axes.text(column, row, f"{value:+.2g}", ha="center", va="center", fontsize=7)
            axes.set_xticks(range(len(across)), [f"{v:.3g}" for v in across])
            axes.set_yticks(range(len(upwards)), [f"{v:.3g}" for v in upwards])
            axes.grid(visible=False)
            axes.set_xlabel(first)
            axes.set_ylabel(second)
            axes.set_title(f"added to {target}" + ("" if word is None else f", {word}"), fontsize=9)
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


_STYLE = {
    "BiDRO-FL": (BLUE, "-"),
    "DRO-FL": (ORANGE, "--"),
    "AFL": (GREEN, "-."),
    "FedAvg": (VERMILION, ":"),
}


@dataclass(frozen=True, eq=False)
class AmbiguityPicture:
    """Positions in the plane, in units of W_2, and radii; clients in the paper's order."""

    true: Floats  # (n, 2) the true distributions P_i
    empirical: Floats  # (n, 2) the samples
    mixtures: Floats  # (k, 2) mixtures of the true distributions
    radii: Floats  # (n,)
    sizes: tuple[int, ...]
    explained: float  # share of the squared distances that the plane shows


def convergence(
    rounds: NDArray[np.int64], objective: Floats, horizons: NDArray[np.int64], gap: Floats
) -> Figure:
    """Fig. 2a: objective (runs, records) minus the common reference; gap (runs, horizons)."""
    with styled():
        figure = Figure(figsize=(10.5, 4.6))
        left, right = figure.subplots(1, 2)
        _band(left, rounds, objective, "BiDRO-FL, paper's setting", BLUE, "-")
        _rate(left, rounds, objective.mean(axis=0))
        left.set_title("Paper's setting (penalties below the curvature)", fontsize=10)
        left.set_xlabel("communication rounds t")
        left.set_ylabel(r"$\max_\alpha F(\bar x_t, \alpha)$ − common reference")
        _log_or_symlog(left, objective)

        mean = gap.mean(axis=0)
        low, high = np.quantile(gap, [0.1, 0.9], axis=0)
        right.plot(horizons, mean, "o-", color=BLUE, label="BiDRO-FL, exact inner supremum")
        right.fill_between(horizons, low, high, color=BLUE, alpha=0.15, linewidth=0)
        _rate(right, horizons, mean)
        right.set_title("Admissible problem (penalties above the curvature)", fontsize=10)
        right.set_xlabel("rounds T, steps 1/√T")
        right.set_ylabel("gap of the averaged model to the run's optimum")
        right.set_xscale("log")
        right.set_yscale("log")
        for axes in (left, right):
            axes.legend(loc="upper right", fontsize=9)
        below = int(np.sum(objective[:, -1] < 0))
        caption(
            figure,
            "Left: the objective is the largest client mean of l − ρc with the inner supremum by the same "
            "30-step ascent as in training, over all samples; the common reference is its minimum on the "
            "first run's data, so for other runs the difference can be negative "
            f"(at the end it is for {below} of {len(objective)}). Right: every penalty at least 8, "
            "‖(x,−1)‖² ≤ 7.75 on the model set, own reference for each run, a run of its own for each T. "
            "Lines are means over runs; shading is ± one standard deviation (left) and the 10th to 90th "
            "percentile (right).",
        )
        return figure


def clean_test_loss(
    rounds: NDArray[np.int64],
    mse: Mapping[str, Floats],
    paper: Mapping[str, float | None],
    paper_rounds: int,
) -> Figure:
    """Fig. 2b: clean-test MSE (runs, records) of each method; with the paper's final figures where they are
    for as many rounds."""
    with styled():
        figure = Figure(figsize=(7.6, 5.0))
        axes = figure.subplots()
        comparable = int(rounds[-1]) == paper_rounds
        thin = slice(len(rounds) - 1, None, -max(1, len(rounds) // 120))
        for name, values in mse.items():
            colour, style = _STYLE[name]
            label = f"{name}  {values[:, -1].mean():.5f}"
            _band(axes, rounds[thin], values[:, thin], label, colour, style)
            if comparable and (stated := paper.get(name)) is not None:
                axes.plot(
                    rounds[-1] * 1.02,
                    stated,
                    "D",
                    color=colour,
                    markeredgecolor="black",
                    markersize=6,
                )
        if comparable:
            axes.plot([], [], "D", color=GREY, markersize=6, label="final value in the paper")
        axes.set_yscale("log")
        axes.set_xlim(0, rounds[-1] * 1.04)
        axes.set_xlabel("communication rounds")
        axes.set_ylabel("mean squared error on clean test data")
        axes.legend(title="method and final mean", loc="upper right", fontsize=9)
        runs = len(next(iter(mse.values())))
        caption(
            figure,
            f"Common clean test mixture of 4,000 samples in each run, allotted by BiDRO-FL's final weights. "
            f"Mean over {runs} runs; shading is ± one standard deviation. FedAvg (proportional weights) is "
            "not in the paper."
            + (
                ""
                if comparable
                else f" The paper's final values are for {paper_rounds:,} rounds and not shown here."
            ),
        )
        return figure


def ambiguity_set(picture: AmbiguityPicture) -> Figure:
    """Fig. 1: true and empirical distributions, balls and mixtures, placed by Wasserstein distances."""
    with styled():
        figure = Figure(figsize=(8.6, 4.7))
        axes = figure.subplots()
        cloud = np.concatenate([picture.true, picture.mixtures])
        hull = cloud[ConvexHull(cloud).vertices]
        axes.fill(*hull.T, color=ORANGE, alpha=0.22, label="mixtures of the true distributions")
        axes.plot(*picture.mixtures.T, ".", color=ORANGE, markersize=4, alpha=0.8)
        for k, (place, radius) in enumerate(zip(picture.empirical, picture.radii, strict=True)):
            axes.add_patch(
                Circle(
                    (float(place[0]), float(place[1])),
                    float(radius),
                    fill=False,
                    edgecolor=BLUE,
                    linestyle="--",
                    label=r"ball $\mathcal{W}_i(\varepsilon_i)$ around the samples" if k == 0 else None,
                )
            )
        spots = _apart(picture)
        for k, spot in enumerate(spots):
            place, radius = picture.empirical[k], picture.radii[k]
            axes.annotate(
                f"client {k + 1}\nN = {picture.sizes[k]}",
                place + radius * (spot - place) / np.linalg.norm(spot - place),
                spot,
                ha="center",
                va="center",
                fontsize=8.5,
                arrowprops={"arrowstyle": "-", "color": BLUE, "linewidth": 0.7},
            )
        axes.plot(*picture.empirical.T, "s", color="black", markersize=6, label="samples")
        axes.plot(*picture.true.T, "o", color=VERMILION, markersize=6, label="true distributions")
        axes.set_aspect("equal", adjustable="box")
        axes.margins(0.04)
        axes.set_ylim(spots[:, 1].min() - 0.4, spots[:, 1].max() + 0.4)
        axes.set_xlabel("first coordinate (units of $W_2$)")
        axes.set_ylabel("second coordinate (units of $W_2$)")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.18), ncols=2, fontsize=9)
        caption(
            figure,
            "The five clients of the simulation's first run, and a sixth as the paper draws it, placed by "
            "exact 2-Wasserstein distances between their rows (classical scaling; the plane shows "
            f"{picture.explained:.0%} of the squared "
            "distances; 300 fresh rows stand for each true distribution, dots are random mixtures of "
            "them). ε_i contains the client's true distribution in 95% of 40 fresh draws of N_i samples.",
        )
        return figure


def _apart(picture: AmbiguityPicture) -> Floats:
    """(n, 2) places for labels that do not cover each other: in a row above all circles and a row below, by
    turns from left to right, each as near its circle as the width of a label allows."""
    centres, radii = picture.empirical, picture.radii
    top, bottom = np.max(centres[:, 1] + radii), np.min(centres[:, 1] - radii)
    wide = 0.16 * float(np.max(centres[:, 0] + radii) - np.min(centres[:, 0] - radii))
    spots, order = np.empty_like(centres), np.argsort(centres[:, 0])
    for side, height in ((order[::2], top), (order[1::2], bottom)):
        # The least squares of the distances to the circles' middles: pooled where labels would touch.
        steps = wide * np.arange(len(side))
        along = isotonic_regression(centres[side, 0] - steps).x + steps
        away = 0.35 * wide if height == top else -0.35 * wide
        spots[side] = np.column_stack([along, np.full(len(side), height + away)])
    return spots


def _band(axes: Axes, rounds: NDArray[np.int64], values: Floats, label: str, colour: str, style: str) -> None:
    mean = values.mean(axis=0)
    spread = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])
    axes.plot(rounds, mean, style, color=colour, label=label, linewidth=1.8)
    low = mean - spread
    # On a logarithmic axis a band that reaches zero is cut at a tenth of the smallest mean.
    if np.all(mean > 0):
        low = np.maximum(low, mean.min() / 10)
    axes.fill_between(rounds, low, mean + spread, color=colour, alpha=0.15, linewidth=0)


def _rate(axes: Axes, rounds: NDArray[np.int64], values: Floats) -> None:
    """A line of slope T^-1/2 through the last value."""
    line = np.abs(values[-1]) * np.sqrt(rounds[-1] / rounds)
    axes.plot(rounds, line, color=GREY, linestyle=":", label=r"$T^{-1/2}$")


def _log_or_symlog(axes: Axes, values: Floats) -> None:
    axes.set_xscale("log")
    if np.all(values.mean(axis=0) > 0):
        axes.set_yscale("log")
    else:
        axes.set_yscale("symlog", linthresh=float(np.median(np.abs(values[:, -1]))) or 1e-6)
