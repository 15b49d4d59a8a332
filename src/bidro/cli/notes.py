"""Lines on stderr about a table that a model is used on: what is new in it, filled, or done by own models."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from bidro.model_file import Model


@contextmanager
def noted_here() -> Iterator[None]:
    """Inside, what `note` says is not said as a warning, too."""
    import warnings

    from bidro.tables import UnseenLevelsWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnseenLevelsWarning)
        yield


def note_what_is_new(model: Model, table: pd.DataFrame) -> None:
    """Say which clients and how many levels of a table the model does not know."""
    named = model.schema.client in table
    new = sorted(set(model.schema.clients(table).tolist()) - set(model.clients)) if named else []
    note(model, table, new)


def note_own_models(model: Model, table: pd.DataFrame) -> None:
    """Say for how many rows of a table clients' own models are used."""
    import numpy as np

    if not model.own:
        return
    if model.schema.client not in table:
        words = (
            f"the table has no column '{model.schema.client}', so all rows were predicted by the shared model"
        )
    else:
        count = int(np.isin(model.schema.clients(table), list(model.own)).sum())
        words = f"{count:,} of {len(table):,} rows were predicted by their client's own model"
    print(f"bidro: {words}.", file=sys.stderr)


def note(model: Model, table: pd.DataFrame, new_clients: Sequence[str] = ()) -> None:
    """Say how many cells of a table are filled, outside what was seen or count as another level or as the
    average one, and which clients are new."""
    from bidro.tables.schema import in_words_unseen

    elsewhere = sorted(set((model.settings.get("own") or {}).get("clients", [])) - set(model.own))
    if elsewhere:
        which = f"'{elsewhere[0]}'" + (f" and {len(elsewhere) - 1} more" if len(elsewhere) > 1 else "")
        print(
            f"bidro: the own model of {which} is not in this folder (after a federated run it is at its "
            "site); the shared model is used there.",
            file=sys.stderr,
        )
    if new_clients:
        which = f"client '{new_clients[0]}' was"
        if len(new_clients) > 1:
            which = f"{len(new_clients):,} clients ('{new_clients[0]}' and others) were"
        print(
            f"bidro: {which} not in training; no statement about the model covers such a client.",
            file=sys.stderr,
        )
    for name, count in model.outside(table).items():
        rows = "1 row lies" if count == 1 else f"{count:,} rows lie"
        print(
            f"bidro: {rows} outside the values of '{name}' seen in training; its curve is extended by its "
            "last slope.",
            file=sys.stderr,
        )
    others = {column.name: column.other for column in model.schema.columns}
    for name, count in model.schema.filled(table).items():
        cells = "1 missing cell" if count == 1 else f"{count:,} missing cells"
        column = next(column for column in model.schema.columns if column.name == name)
        print(f"bidro: {cells} of '{name}' filled by {column.filled_by}, as in training.", file=sys.stderr)
    for name, count in model.schema.counted_as_other(table).items():
        rows = "1 row has" if count == 1 else f"{count:,} rows have"
        print(
            f"bidro: {rows} a level of '{name}' that the model does not know by name; it counts as "
            f"'{others[name]}'.",
            file=sys.stderr,
        )
    if unseen := model.schema.unseen_levels(table):
        print(f"bidro: {in_words_unseen(unseen)}", file=sys.stderr)
