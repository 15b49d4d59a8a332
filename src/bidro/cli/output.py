"""Output of commands: results on stdout; progress, and notes about a table that a model is used on, on
stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from bidro.fit.fitted import Progress
    from bidro.model.model_file import Model

_STAGES = {
    "reading": "reading tables",
    "preparing": "preparing",
    "choosing": "choosing",
    "assessing": "assessing the model",
    "certifying": "certifying",
    "writing": "writing",
}
# Seconds from one plain line to the next of a round.
_BETWEEN_LINES = 3.0
# What a script sees of a model's settings.
SETTINGS_SHOWN = (
    "chosen",
    "max_weight_ratio",
    "radii",
    "client_weights",
    "robustness_cost",
    "personal",
    "varies",
    "concerns",
)


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
    from bidro.fit.fitted import Progress
    from bidro.fit.time_left import TimeLeft, left_in_words

    time_left = TimeLeft(gap)

    def begun(name: str) -> None:
        time_left.begin()
        stage(_STAGES.get(name, name))

    def part(what: str, share: float) -> None:
        if share == 0:
            begun(f"choosing {what}")
        else:
            of_round(f"choosing {what}: {share:.0%} done{left_in_words(time_left.at(share))}")

    def calibration(t: int, going_on: int) -> None:
        left = left_in_words(time_left.choosing(going_on))
        of_round(f"choosing radius and weights: round {t}, {going_on} candidates to go{left}")

    def solving(t: int, found: float) -> None:
        of_round(f"solving: round {t}, gap {found:.1e}{left_in_words(time_left.solving(found))}")

    return Progress(stage=begun, part=part, calibration=calibration, solving=solving)


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
    """Status lines on stderr: on a terminal the last one, elsewhere all of them."""
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


@contextmanager
def noted_here() -> Iterator[None]:
    """Silence warnings that `note` prints anyway."""
    import warnings

    from bidro.data.tables import UnseenLevelsWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnseenLevelsWarning)
        yield


def say(words: str) -> None:
    """One remark, on stderr."""
    print(f"bidro: {words}", file=sys.stderr)


def note_what_is_new(model: Model, table: pd.DataFrame) -> None:
    """Say which clients and how many levels of a table the model does not know."""
    named = model.schema.client in table
    new = sorted(set(model.schema.clients(table).tolist()) - set(model.clients)) if named else []
    note(model, table, new)


def note_personal_models(model: Model, table: pd.DataFrame) -> None:
    """Say for how many rows of a table clients' personal models are used."""
    import numpy as np

    client = model.schema.client
    if model.personal and client not in table:
        say(f"the table has no column '{client}', so all rows were predicted by the shared model.")
    elif model.personal:
        count = int(np.isin(model.schema.clients(table), list(model.personal)).sum())
        say(f"{count:,} of {len(table):,} rows were predicted by their client's personal model.")


def note(model: Model, table: pd.DataFrame, new_clients: Sequence[str] = ()) -> None:
    """Say how many cells of a table are filled, outside what was seen or count as another level or as the
    average one, and which clients are new."""
    from bidro.data.tables.schema import in_words_unseen

    table = model.schema.once(table)
    schema, columns = model.schema, {column.name: column for column in model.schema.columns}
    elsewhere = sorted(set((model.settings.get("personal") or {}).get("clients", [])) - set(model.personal))
    if elsewhere:
        which = f"'{elsewhere[0]}'" + (f" and {len(elsewhere) - 1} more" if len(elsewhere) > 1 else "")
        say(
            f"the personal model of {which} is not in this folder (after a federated run it is at its site); "
            "the shared model is used there."
        )
    if new_clients:
        which = f"client '{new_clients[0]}' was"
        if len(new_clients) > 1:
            which = f"{len(new_clients):,} clients ('{new_clients[0]}' and others) were"
        say(f"{which} not in training; no statement about the model covers such a client.")
    for name, count in model.outside(table).items():
        rows = "1 row lies" if count == 1 else f"{count:,} rows lie"
        drawn = f"the values that the curve of '{name}' is drawn over"
        say(f"{rows} outside {drawn}; it is extended by its last slope.")
    for name, count in schema.filled(table).items():
        cells = "1 missing cell" if count == 1 else f"{count:,} missing cells"
        say(f"{cells} of '{name}' filled by {columns[name].filled_by}, as in training.")
    for name, count in schema.counted_as_other(table).items():
        rows = "1 row has" if count == 1 else f"{count:,} rows have"
        other = columns[name].other
        say(f"{rows} a level of '{name}' that the model does not know by name; it counts as '{other}'.")
    if unseen := schema.unseen_levels(table):
        say(in_words_unseen(unseen))


def noted_rows(model: Model, table: pd.DataFrame) -> dict[str, Any]:
    """Rows (N_i, m) of every client in a table, in the units of training; says what `note` says."""
    from bidro.workflow.evaluation import rows_by_client

    with noted_here():
        found = rows_by_client(model, table)
    note(model, table)
    return found


def print_json(content: Any) -> None:
    """A result for programs, on stdout."""
    import json

    print(json.dumps(content, indent=2, allow_nan=False))


def print_result(content: Any, words: str, as_json: bool, out: Path | None = None) -> None:
    """A result for programs or for people: on stdout, or words on stderr where the file `out` that was
    written may itself be stdout."""
    from bidro.core.files import is_stream

    if as_json:
        print_json(content)
    else:
        print(words, file=sys.stderr if out is not None and is_stream(out) else sys.stdout)
