"""Progress on the screen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from bidro.fitting import Progress

_STAGES = {
    "reading": "reading tables",
    "preparing": "preparing",
    "choosing": "choosing radius and weights",
    "assessing": "assessing the model",
    "certifying": "certifying",
    "writing": "writing",
}
# Seconds from one plain line to the next of a round.
_BETWEEN_LINES = 5.0
# What a script sees of a model's settings.
SETTINGS_SHOWN = ("chosen", "cap", "radii", "client_weights", "paid", "own", "varies", "concerns")


@contextmanager
def shown_progress(quiet: bool, gap: float = 0.0) -> Iterator[Progress]:
    """What is being done, with rounds, the gap on its way to the wanted one, and about how long it will take,
    on stderr: one line that changes on a terminal; elsewhere a line a stage, and now and then one of a round.
    """
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if quiet:
        yield _progress(lambda words: None, lambda words: None, gap)
        return
    if not console.is_terminal:
        lines = _Lines(console)
        yield _progress(lines.stage, lines.round, gap)
        return
    bar = Bar(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    with bar:
        task = bar.add_task("starting", total=None)

        def show(words: str) -> None:
            bar.update(task, description=words)

        yield _progress(show, show, gap)


def _progress(stage: Callable[[str], None], of_round: Callable[[str], None], gap: float) -> Progress:
    """Calls that say what goes on in words."""
    from bidro.fitting import Progress
    from bidro.fitting.pace import Pace, left_in_words

    pace = Pace(gap)

    def begun(name: str) -> None:
        pace.begin()
        stage(_STAGES.get(name, name))

    def calibration(t: int, going_on: int) -> None:
        left = left_in_words(pace.choosing(going_on))
        of_round(f"choosing radius and weights: round {t}, {going_on} candidates to go{left}")

    def solving(t: int, found: float) -> None:
        of_round(f"solving: round {t}, gap {found:.1e}{left_in_words(pace.solving(found))}")

    return Progress(stage=begun, calibration=calibration, solving=solving)


class _Lines:
    """Plain lines: every stage, and a round only some time after the last line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = time.monotonic()

    def stage(self, words: str) -> None:
        self._last = time.monotonic()
        self._console.print(words, highlight=False, markup=False, soft_wrap=True)

    def round(self, words: str) -> None:
        if time.monotonic() - self._last >= _BETWEEN_LINES:
            self.stage(words)


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
