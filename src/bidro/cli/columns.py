"""Options that say what columns of a table are, the same in every command that reads one."""

from __future__ import annotations

from typing import Annotated

import typer

Categories = Annotated[
    str | None,
    typer.Option(help="Columns that are categories whatever their cells look like, separated by commas."),
]
Drop = Annotated[str | None, typer.Option(help="Columns to leave out, separated by commas.")]
Dates = Annotated[
    str | None,
    typer.Option(help="Columns of dates, separated by commas; they count as days since 1970-01-01."),
]
