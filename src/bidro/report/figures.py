"""The figures of the paper's simulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import ConvexHull

from bidro.arrays import Floats
from bidro.report.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    VERMILION,
    Axes,
    Circle,
    Figure,
    caption,
    styled,
)

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
            # The label stands on the circle, on the side away from the nearest other client.
            others = np.delete(picture.empirical, k, axis=0)
            away = place - others[np.argmin(np.linalg.norm(others - place, axis=1))]
            spot = place + radius * away / np.linalg.norm(away)
            axes.annotate(
                f"client {k + 1}\nN = {picture.sizes[k]}",
                spot,
                ha="center",
                va="center",
                fontsize=8.5,
                bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"},
            )
        axes.plot(*picture.empirical.T, "s", color="black", markersize=6, label="samples")
        axes.plot(*picture.true.T, "o", color=VERMILION, markersize=6, label="true distributions")
        axes.set_aspect("equal", adjustable="box")
        axes.margins(0.08)
        axes.set_xlabel("first coordinate (units of $W_2$)")
        axes.set_ylabel("second coordinate (units of $W_2$)")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.2), ncols=2, fontsize=9)
        caption(
            figure,
            "The clients of the simulation's first run, placed by exact 2-Wasserstein distances between "
            f"their rows (classical scaling; the plane shows {picture.explained:.0%} of the squared "
            "distances; 300 fresh rows stand for each true distribution, dots are random mixtures of "
            "them). ε_i contains the client's true distribution in 95% of 40 fresh draws of N_i samples.",
        )
        return figure


def _spread(values: Floats) -> Floats:
    spread = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])
    return np.asarray(spread)


def _band(axes: Axes, rounds: NDArray[np.int64], values: Floats, label: str, colour: str, style: str) -> None:
    mean, spread = values.mean(axis=0), _spread(values)
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
