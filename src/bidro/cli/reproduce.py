"""`bidro reproduce`: the paper's simulation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from bidro.experiments.reproduce import Reproduction


def reproduce(
    runs: Annotated[int, typer.Option(min=1, help="Repetitions, one data seed each.")] = 20,
    rounds: Annotated[int, typer.Option(min=1, help="Communication rounds a run.")] = 10_000,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("out/reproduce"),
    seed_base: Annotated[int, typer.Option(min=0, help="Seed of the first run; the others follow.")] = 2026,
) -> None:
    """Run the paper's simulation: BiDRO-FL, DRO-FL, AFL and FedAvg on the data of Section VI.

    Writes results.json and the figures convergence.png (Fig. 2a), clean_test_loss.png (Fig. 2b) and
    ambiguity_set.png (Fig. 1), and prints our figures next to the paper's.
    """
    import warnings

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from bidro.ambiguity import NonconcaveInnerWarning
    from bidro.core.files import require_writable
    from bidro.experiments import reproduce as experiment
    from bidro.risk.transport import require_distances

    console = Console()
    require_distances()
    require_writable(out)
    out.mkdir(parents=True, exist_ok=True)
    bar = Progress(
        TextColumn("{task.description:<24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )
    with warnings.catch_warnings(), bar:
        # The paper's own penalties are below the curvature; the note printed at the end says so once.
        warnings.simplefilter("ignore", NonconcaveInnerWarning)
        stages = experiment.stages(runs, rounds)
        tasks = {s.name: bar.add_task(s.name, total=s.total, start=False) for s in stages}

        def report(stage: str, done: int) -> None:
            bar.start_task(tasks[stage])
            bar.update(tasks[stage], completed=done)

        done = experiment.reproduce(runs, rounds, seed_base, report)
        paths = experiment.write(done, out)
    _print_table(console, done)
    console.print(f"\n{experiment.NOTE}", highlight=False)
    console.print("\nWritten:")
    for path in paths:
        console.print(f"  {path}", highlight=False, soft_wrap=True)


def _print_table(console: Console, done: Reproduction) -> None:
    from rich.table import Table

    from bidro.experiments.reproduce import PAPER_ROUNDS, summary

    table = Table(
        title=f"Clean-test MSE after {done.rounds:,} rounds, {len(done.seeds)} runs ({done.seconds:.1f} s)"
    )
    theirs = "paper" if done.rounds == PAPER_ROUNDS else f"paper, {PAPER_ROUNDS:,} rounds"
    for head in ("method", "ours, mean ± s.e.", "std over runs", theirs, "final weights (mean)"):
        table.add_column(head, justify="left" if head == "method" else "right")
    for name, row in summary(done)["methods"].items():
        paper = "not shown" if row["paper"] is None else f"{row['paper']:.5f}"
        weights = " ".join(f"{w:.2f}" for w in row["final_weights_mean"].values())
        several = row["mse_se"] is not None
        mean = f"{row['mse_mean']:.5f}" + (f" ± {row['mse_se']:.5f}" if several else "")
        table.add_row(name, mean, f"{row['mse_std']:.5f}" if several else "–", paper, weights)
    console.print(table)
