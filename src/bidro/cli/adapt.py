"""`bidro adapt`: a newcomer's own correction of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bidro.cli.notes import note, noted_here
from bidro.cli.use import AsJson, ModelFolder


def adapt(
    model: ModelFolder,
    table: Annotated[
        Path, typer.Argument(help="CSV or Parquet with rows of the newcomer: features and target.")
    ],
    client: Annotated[str, typer.Option(help="The newcomer's name, as tables to predict for will have it.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for a copy of the model with it; else it is put into MODEL.")
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also for a client that is known, or over a model that is in --out."),
    ] = False,
    json: AsJson = False,
) -> None:
    """Give a client that was not in training its own correction of a model, from a few rows.

    It is held at the shared model as strongly as the clients of training tell, so that few rows do no harm;
    where these gain nothing by corrections, a newcomer is given none.
    """
    import json as plain_json

    from bidro.errors import BidroError
    from bidro.model_file import load_model
    from bidro.tables import read_one
    from bidro.workflow.adapt import (
        adapt as adapted_to,
    )
    from bidro.workflow.adapt import (
        newcomers_shrinkage,
        require_newcomer,
        write_adapted,
    )
    from bidro.workflow.fit import require_place

    if not model.is_dir():
        raise BidroError(f"'{model}' is not a folder; give the one that `bidro fit` wrote.")
    if out is not None:
        require_place(out, force)
    loaded = load_model(model)
    require_newcomer(loaded, client, force)
    shrinkage = newcomers_shrinkage(loaded)
    if shrinkage is None:
        words = (
            "The clients of this model gain nothing by corrections of their own, so that nothing was "
            f"written: '{client}' does best with the shared model."
        )
        print(plain_json.dumps({"client": client, "adapted": False}, indent=2) if json else words)
        return
    rows = read_one(table)
    with noted_here():
        found = adapted_to(loaded, rows, client, shrinkage)
    note(loaded, rows)
    write_adapted(model, loaded, found, out, force)
    if json:
        print(plain_json.dumps({**found.as_json(), "out": str(out or model)}, indent=2, allow_nan=False))
    else:
        words = found.in_words(loaded.schema.target, loaded.schema.measured_in)
        print(f"{words}\nWritten to {out or model}.")
