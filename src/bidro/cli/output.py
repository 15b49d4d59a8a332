"""Progress on the screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bidro.fitting import Progress

_STAGES = {
    "reading": "reading tables",
    "preparing": "preparing",
    "choosing": "choosing radius and weights",
    "assessing": "assessing the model",
    "certifying": "certifying",
    "writing": "writing",
}
# What a script sees of a model's settings.
SETTINGS_SHOWN = ("chosen", "cap", "radii", "client_weights", "paid", "own", "varies", "concerns")


@contextmanager
def shown_progress(quiet: bool) -> Iterator[Progress]:
    """A line that says what is being done, with rounds and the gap; on stderr, and only on a terminal."""
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    from bidro.fitting import Progress

    bar = Bar(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=quiet,
    )
    with bar:
        task = bar.add_task("starting", total=None)
        yield Progress(
            stage=lambda name: bar.update(task, description=_STAGES.get(name, name)),
            calibration=lambda t, left: bar.update(
                task, description=f"choosing radius and weights: round {t}, {left} candidates to go"
            ),
            solving=lambda t, gap: bar.update(task, description=f"solving: round {t}, gap {gap:.1e}"),
        )


@contextmanager
def said_lines(quiet: bool) -> Iterator[Callable[[str], None]]:
    """A line on stderr that shows the last thing said, on a terminal; every thing said where it is none."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True)
    if quiet:
        yield lambda line: None
    elif not console.is_terminal:
        yield lambda line: console.print(line, highlight=False, markup=False, soft_wrap=True)
    else:
        with console.status("starting") as status:
            yield lambda line: status.update(escape(line))
