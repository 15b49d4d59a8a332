"""`bidro certify`: of a model folder, of any model's predictions, or of any model in an ONNX file."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from bidro.cli.notes import note, noted_here
from bidro.cli.use import AsJson

if TYPE_CHECKING:
    from bidro.guarantees.certificate import Certificate
    from bidro.model_file import Model
    from bidro.workflow.scored import ScoredTable

_PREDICTED = "A model that was not trained here"
_NOT_LOCKED = (
    "this machine cannot shut the model's process off from network and files; its file was checked, and the "
    "process has limits of memory and time alone."
)


def certify(
    model: Annotated[Path | None, typer.Argument(help="Model folder that `bidro fit` wrote.")] = None,
    tables: Annotated[
        list[Path] | None, typer.Argument(help="CSV or Parquet, with the columns of training.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="Of every statement.")] = 0.95,
    shift: Annotated[
        float | None, typer.Option(help="Also bound the loss under a shift of so many standard deviations.")
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(
            help="Column that names the person or thing that a row is of, where some have several. [that of "
            "the fit, if any]"
        ),
    ] = None,
    rows_per_unit: Annotated[
        int | None,
        typer.Option(
            help="The largest number of rows that a unit can have, known beforehand: means over rows are "
            "then bounded, too.",
            min=1,
        ),
    ] = None,
    json: AsJson = False,
    predictions: Annotated[
        Path | None,
        typer.Option(
            help="CSV or Parquet with the predictions of any model beside the truth.",
            rich_help_panel=_PREDICTED,
        ),
    ] = None,
    onnx: Annotated[
        Path | None,
        typer.Option(
            help="ONNX file of any model, which is run on the tables in a process of its own.",
            rich_help_panel=_PREDICTED,
        ),
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            help="With --onnx, for a model that takes all columns as one input: these, separated by commas.",
            rich_help_panel=_PREDICTED,
        ),
    ] = None,
    client: Annotated[
        str | None, typer.Option(help="Column that names the client.", rich_help_panel=_PREDICTED)
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Column of the truth.", rich_help_panel=_PREDICTED)
    ] = None,
    prediction: Annotated[
        str | None,
        typer.Option(help="Column of the predicted number or class.", rich_help_panel=_PREDICTED),
    ] = None,
    probability: Annotated[
        list[str] | None,
        typer.Option(
            help="CLASS=COLUMN: the column of a class's probabilities; once for every class.",
            rich_help_panel=_PREDICTED,
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="squared, absolute, pinball; mistakes, log loss, brier. [squared, or for classes mistakes]",
            rich_help_panel=_PREDICTED,
        ),
    ] = None,
    quantile: Annotated[float, typer.Option(help="Of the pinball loss.", rich_help_panel=_PREDICTED)] = 0.5,
    largest: Annotated[
        float | None,
        typer.Option(help="The largest loss that is possible, known beforehand.", rich_help_panel=_PREDICTED),
    ] = None,
    clip_from: Annotated[
        Path | None,
        typer.Option(
            help="Table of other rows: losses count as at most the largest of theirs.",
            rich_help_panel=_PREDICTED,
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            help="Table of another model's predictions of the same rows, to bound the difference; with "
            "--onnx the file of another model.",
            rich_help_panel=_PREDICTED,
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            help="Column that names every row, where the rows of --against are in another order.",
            rich_help_panel=_PREDICTED,
        ),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Also write a report page there.", rich_help_panel=_PREDICTED)
    ] = None,
) -> None:
    """What rows that training never saw say of a model, under any mixture of its clients.

    Rows must be independent draws, in any order. With --unit, a unit is one draw, with the mean loss of its
    rows; no row of it may have been trained on. With --predictions the model may be of any kind: only what it
    predicted is needed. With --onnx FILE TABLES it is run here: its inputs are columns by their names, or all
    --features as one.
    """
    from bidro.guarantees.asked import check_confidence, check_shift

    check_confidence(confidence)
    check_shift(shift)
    given = {
        "--client": client, "--target": target, "--prediction": prediction, "--probability": probability,
        "--loss": loss, "--largest": largest, "--clip-from": clip_from, "--against": against,
        "--key": key, "--report": report, "--features": features,
    }  # fmt: skip
    fresh = [*([] if model is None else [model]), *(tables or [])]
    _require_usage(given, fresh, predictions, onnx, shift)
    if predictions is None and onnx is None:
        found = _of_folder(fresh[0], fresh[1:], confidence, shift, unit, rows_per_unit)
    else:
        from bidro.report.files import require_file_place

        if report is not None:
            require_file_place(report)
        assert client is not None
        assert target is not None
        if predictions is not None:
            from bidro.workflow.scored import Columns, read_scored

            columns = Columns(
                client, target, prediction, _by_class(probability or [], predictions), unit, key
            )
            scored = read_scored(predictions, columns, loss, quantile, largest, clip_from, against)
        else:
            from bidro.workflow.scored_onnx import OnnxScores

            assert onnx is not None
            chosen = tuple(name.strip() for name in features.split(",")) if features else ()
            by = OnnxScores(client, target, unit, chosen, loss, quantile)
            scored, locked = by.scored(onnx, fresh, largest, clip_from, against)
            if not locked:
                print(f"bidro: {_NOT_LOCKED}", file=sys.stderr)
        found = _stated(dataclasses.replace(scored, rows_per_unit=rows_per_unit), confidence, report)
    print(found.to_json() if json else found, end="" if json else "\n")


def _require_usage(
    given: dict[str, Any], fresh: list[Path], predictions: Path | None, onnx: Path | None, shift: float | None
) -> None:
    """Raise UsageError for options that do not go together."""
    which = "--onnx" if onnx is not None else "--predictions"
    if predictions is None and onnx is None:
        if odd := [name for name, value in given.items() if value is not None]:
            raise click.UsageError(f"{odd[0]} goes with --predictions TABLE or --onnx FILE.")
        if len(fresh) < 2:
            raise click.UsageError(
                "Give a model folder and tables of fresh rows, or --predictions TABLE, or --onnx FILE TABLES."
            )
        return
    if predictions is not None and (fresh or onnx is not None):
        raise click.UsageError("Give a model folder, --predictions or --onnx, not two of them.")
    if shift is not None:
        raise click.UsageError(f"--shift needs a model that was trained here, and {which} is of any.")
    if given["--client"] is None or given["--target"] is None:
        raise click.UsageError(f"{which} needs --client COLUMN and --target COLUMN.")
    if onnx is None:
        if given["--features"] is not None:
            raise click.UsageError("--features goes with --onnx FILE.")
        return
    if not fresh:
        raise click.UsageError("--onnx FILE needs tables of fresh rows.")
    if odd := [name for name in ("--prediction", "--probability", "--key") if given[name] is not None]:
        raise click.UsageError(f"{odd[0]} goes with --predictions TABLE: an ONNX model predicts here.")


def _stated(table: ScoredTable, confidence: float, report: Path | None) -> Certificate:
    if table.known.note is not None:
        print(f"bidro: {table.known.note}", file=sys.stderr)
    found = table.certificate(confidence)
    if report is not None:
        from bidro.report.files import write_text
        from bidro.report.page import page_html
        from bidro.workflow.scored_page import scored_content

        write_text(report, page_html(scored_content(table, confidence)))
        print(f"bidro: the report is in {report}: open it in a browser.", file=sys.stderr)
    return found


def _by_class(given: list[str], predictions: Path) -> dict[str, str]:
    """Columns of probabilities by class, from texts CLASS=COLUMN. Both may have '=' in them ("<=50K"): of
    several ways to cut a text the one whose column the table has is meant."""
    from bidro.errors import BidroError
    from bidro.tables import read_one

    names = read_one(predictions).columns if any(text.count("=") > 1 for text in given) else ()
    found: dict[str, str] = {}
    for text in given:
        cuts = [(text[:k], text[k + 1 :]) for k, letter in enumerate(text) if letter == "="]
        cuts = [(name, column) for name, column in cuts if name and column]
        known = [cut for cut in cuts if cut[1] in names] or cuts[:1]
        if not known or known[0][0] in found:
            raise BidroError(f"--probability is CLASS=COLUMN, once for every class; got '{text}'.")
        if len(known) > 1:
            raise BidroError(
                f"--probability '{text}' may mean the column '{known[0][1]}' or '{known[1][1]}'; name the "
                "columns of probabilities otherwise."
            )
        found[known[0][0]] = known[0][1]
    return found


def _of_folder(
    model: Path,
    tables: list[Path],
    confidence: float,
    shift: float | None,
    unit: str | None,
    rows_per_unit: int | None,
) -> Certificate:
    from bidro.engines.compiled import compilation_cache
    from bidro.errors import BidroError
    from bidro.given_files import read_text
    from bidro.guarantees.certificate import Certificate
    from bidro.guarantees.statements import with_holdout
    from bidro.model_file import load_model

    compilation_cache()
    loaded = load_model(model)
    path = model / "certificate.json"
    if not path.exists():
        raise BidroError(f"There is no certificate in '{model}'; give the folder that `bidro fit` wrote.")
    fresh, units = _holdout_rows(loaded, tables, unit)
    missing = [name for name in loaded.clients if name not in fresh]
    unknown = [name for name in fresh if name not in loaded.clients]
    if unknown:
        raise BidroError(f"Client '{unknown[0]}' was not in training; certify rows of the same clients.")
    if missing:
        raise BidroError(f"There are no rows of client '{missing[0]}'; every client of the model needs some.")
    own_is_told = _refuse_rows_trained_on(model, loaded, fresh)
    ordered = {name: fresh[name] for name in loaded.clients}
    return with_holdout(
        Certificate.from_json(read_text(path)),
        loaded.assessed,
        ordered,
        confidence,
        shift,
        units=units,
        own=(loaded.own or None) if own_is_told else None,
        rows_per_unit=rows_per_unit,
    )


def _holdout_rows(
    model: Model, tables: list[Path], unit: str | None
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """(rows (N_i, m) of every client in the standard units of training, the person or thing that each is of,
    by the column `unit` or that of the fit; None where there is neither).

    Raises BidroError for a row outside the support that the model was declared on.
    """
    from bidro.tables import read, require_declared
    from bidro.workflow.judged import rows_by_client, units_by_client

    schema = model.schema if unit is None else dataclasses.replace(model.schema, unit=unit)
    whole, _ = read(tables, schema.client)
    units = units_by_client(schema, whole)
    if (declared := model.settings["support"]) is not None:
        require_declared(declared, schema, whole)
    with noted_here():
        by_client = rows_by_client(model, whole)
    note(model, whole)
    return by_client, units


def _refuse_rows_trained_on(folder: Path, model: Model, rows: dict[str, Any]) -> bool:
    """Raise BidroError for rows that were trained on, or that a client's own model was adapted on, and note
    it where that cannot be told. Returns whether these rows may speak of own models: few rows are adapted on,
    so that of these it must be plain that they are others."""
    from bidro.guarantees.trained_rows import FILE, trained_rows_in
    from bidro.own_file import own_file_in

    known, adapted = trained_rows_in(folder), own_file_in(folder, model.x).adapted
    of_own = [sketch.refused_or_note(rows) for name, sketch in adapted.items() if name in rows]
    doubts = [f"{words} The statement with own models is left out." for words in of_own if words is not None]
    if known is None:
        said: str | None = (
            f"There is no {FILE} in '{folder}' (a federated run leaves none), so that it cannot be told "
            "whether these rows were trained on; statements hold only for rows that training never saw."
        )
    else:
        said = known.refused_or_note(rows)
    for words in [*([] if said is None else [said]), *doubts]:
        print(f"bidro: {words}", file=sys.stderr)
    return not doubts
