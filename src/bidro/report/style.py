"""What all figures share. Colours are safe for colour-blind readers (Okabe and Ito).

Figures are drawn by few commands, so that matplotlib is an extra; it is imported here and nowhere else.
"""

from __future__ import annotations

import textwrap
from contextlib import AbstractContextManager
from pathlib import Path

from bidro.errors import BidroError

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Circle
except ImportError as error:
    raise BidroError(
        "Drawing needs a package that is not installed; pip install 'bidro[figures]'."
    ) from error

__all__ = [
    "BLUE",
    "GREEN",
    "GREY",
    "ORANGE",
    "VERMILION",
    "Axes",
    "Circle",
    "Figure",
    "caption",
    "save",
    "styled",
]

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
