"""`bidro certify`: of a model folder, of any model's predictions, or of any model in an ONNX file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from bidro.cli.options import AsJson
from bidro.cli.output import noted_rows, print_json, say
from bidro.core.errors import BidroError, check_confidence

if TYPE_CHECKING:
    from bidro.certify.certificate import Certificate
    from bidro.model.model_file import Model
    from bidro.workflow.certify import ScoredRows

_PREDICTED = "A model that was not trained here"
_NOT_LOCKED = (
    "this machine cannot shut the model's process off from network and files; its file was checked, and the "
    "process has limits of memory and time alone."
)


def _other(help: str) -> Any:
    """An option of a model that was not trained here."""
    return typer.Option(help=help, rich_help_panel=_PREDICTED)


def certify(
    model: Annotated[Path | None, typer.Argument(help="Model folder that `bidro fit` wrote.")] = None,
    tables: Annotated[
        list[Path] | None, typer.Argument(help="CSV or Parquet, with the columns of training.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="Of every statement.")] = 0.95,
    shift: Annotated[
        float | None, typer.Option(help="Also bound the loss under a shift of so many standard deviations.")
    ] = None,
    person: Annotated[
        str | None,
        typer.Option(
            help="Column that names the person or thing that a row is of, where some have several. [that of "
            "the fit, if any]"
        ),
    ] = None,
    rows_per_person: Annotated[
        int | None,
        typer.Option(
            help="The largest number of rows that a person can have, known beforehand: means over rows are "
            "then bounded, too.",
            min=1,
        ),
    ] = None,
    json: AsJson = False,
    predictions: Annotated[
        Path | None, _other("CSV or Parquet with the predictions of any model and the true targets.")
    ] = None,
    onnx: Annotated[
        Path | None, _other("ONNX file of any model, which is run on the tables in a process of its own.")
    ] = None,
    features: Annotated[
        str | None,
        _other("With --onnx, for a model that takes all columns as one input: these, separated by commas."),
    ] = None,
    client: Annotated[str | None, _other("Column that names the client.")] = None,
    target: Annotated[str | None, _other("Column of the truth.")] = None,
    prediction: Annotated[str | None, _other("Column of the predicted number or class.")] = None,
    probability: Annotated[
        list[str] | None, _other("CLASS=COLUMN: the column of a class's probabilities; once for every class.")
    ] = None,
    loss: Annotated[
        str | None,
        _other("squared, absolute, pinball; mistakes, log loss, brier. [squared, or for classes mistakes]"),
    ] = None,
    quantile: Annotated[float, _other("Of the pinball loss.")] = 0.5,
    largest: Annotated[float | None, _other("The largest loss that is possible, known beforehand.")] = None,
    clip_from: Annotated[
        Path | None, _other("Table of other rows: losses count as at most the largest of theirs.")
    ] = None,
    against: Annotated[
        Path | None,
        _other(
            "Table of another model's predictions of the same rows, to bound the difference; with "
            "--onnx the file of another model."
        ),
    ] = None,
    key: Annotated[
        str | None, _other("Column that names every row, where the rows of --against are in another order.")
    ] = None,
    interval: Annotated[
        float | None,
        _other(
            "Also how far this share of new rows, such as 0.9, lies from predictions at most, by client; of "
            "probabilities -log p of the true class."
        ),
    ] = None,
    report: Annotated[Path | None, _other("Also write a report page there.")] = None,
) -> None:
    """What rows that training never saw say of a model, under any mixture of its clients.

    Rows must be independent draws, in any order. With --person, a person is one draw, with the mean loss of
    its rows; no row of it may have been trained on. With --predictions the model may be of any kind: only
    what it predicted is needed. With --onnx FILE TABLES it is run here: its inputs are columns by their
    names, or all
    --features as one.
    """
    from bidro.certify.held_out import check_shift

    check_confidence(confidence)
    check_shift(shift)
    given = {
        "--client": client, "--target": target, "--prediction": prediction, "--probability": probability,
        "--loss": loss, "--largest": largest, "--clip-from": clip_from, "--against": against,
        "--key": key, "--report": report, "--features": features, "--interval": interval,
    }  # fmt: skip
    fresh = [*([] if model is None else [model]), *(tables or [])]
    _require_usage(given, fresh, predictions, onnx, shift)
    quantiles = None
    if predictions is None and onnx is None:
        found, unit = _of_folder(fresh[0], fresh[1:], confidence, shift, person, rows_per_person)
    else:
        from bidro.core.files import require_file_place

        if report is not None:
            require_file_place(report)
        assert client is not None
        assert target is not None
        if predictions is not None:
            from bidro.workflow.certify import Columns, read_scored

            columns = Columns(
                client, target, prediction, _by_class(probability or [], predictions), person, key
            )
            scored = read_scored(predictions, columns, loss, quantile, largest, clip_from, against)
        else:
            from bidro.workflow.certify import OnnxScores

            assert onnx is not None
            chosen = tuple(name.strip() for name in features.split(",")) if features else ()
            by = OnnxScores(client, target, person, chosen, loss, quantile)
            scored, locked = by.scored(onnx, fresh, largest, clip_from, against)
            if not locked:
                say(_NOT_LOCKED)
        scored = dataclasses.replace(scored, rows_per_person=rows_per_person)
        quantiles = None if interval is None else scored.intervals(interval)
        found, unit = _stated(scored, confidence, report), ""
    if quantiles is None:
        print(found.to_json() if json else found.in_words(unit), end="" if json else "\n")
    elif json:
        from bidro.certify.intervals import plain_quantiles
        from bidro.core.files import parsed_json

        content = parsed_json(found.to_json())
        print_json({**content, "intervals": plain_quantiles(quantiles) | {"promise": quantiles.promise}})
    else:
        print(f"{found.in_words(unit)}\n{quantiles}")


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


def _stated(table: ScoredRows, confidence: float, report: Path | None) -> Certificate:
    if table.known.note is not None:
        say(table.known.note)
    found = table.certificate(confidence)
    if report is not None:
        from bidro.core.files import write_text
        from bidro.report.page import page_html
        from bidro.workflow.page_content import scored_content

        write_text(report, page_html(scored_content(table, confidence)))
        say(f"the report is in {report}: open it in a browser.")
    return found


def _by_class(given: list[str], predictions: Path) -> dict[str, str]:
    """Columns of probabilities by class, from texts CLASS=COLUMN. Both may have '=' in them ("<=50K"): of
    several ways to cut a text the one whose column the table has is meant."""
    from bidro.data.tables import read_one

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
    person: str | None,
    rows_per_person: int | None,
) -> tuple[Certificate, str]:
    """(what the rows say of the model of a folder, the target's unit)."""
    from bidro.certify.certificate import Certificate
    from bidro.certify.statements import with_holdout
    from bidro.core.files import read_text
    from bidro.core.pytrees import compilation_cache
    from bidro.data.tables.survival import OF_PERIODS
    from bidro.model.model_file import load_model

    compilation_cache()
    loaded = load_model(model)
    path = model / "certificate.json"
    if not path.exists():
        raise BidroError(f"There is no certificate in '{model}'; give the folder that `bidro fit` wrote.")
    if loaded.schema.survival is not None:
        say(OF_PERIODS.format(event=loaded.schema.target))
    fresh, people = _holdout_rows(loaded, tables, person)
    missing = [name for name in loaded.clients if name not in fresh]
    unknown = [name for name in fresh if name not in loaded.clients]
    if unknown:
        raise BidroError(f"Client '{unknown[0]}' was not in training; certify rows of the same clients.")
    if missing:
        raise BidroError(f"There are no rows of client '{missing[0]}'; every client of the model needs some.")
    personal_is_told = _refuse_rows_trained_on(model, loaded, fresh)
    ordered = {name: fresh[name] for name in loaded.clients}
    found = with_holdout(
        Certificate.from_json(read_text(path)),
        loaded.assessed,
        ordered,
        confidence,
        shift,
        people=people,
        personal=(loaded.personal or None) if personal_is_told else None,
        rows_per_person=rows_per_person,
    )
    return found, loaded.schema.target_unit or ""


def _holdout_rows(
    model: Model, tables: list[Path], person: str | None
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """(rows (N_i, m) of every client in the standard units of training, the person or thing that each is of,
    by the column `person` or that of the fit; None where there is neither).

    Raises BidroError for a row outside the support that the model was declared on.
    """
    from bidro.data.tables import read, require_declared
    from bidro.workflow.evaluation import people_by_client

    schema = model.schema if person is None else dataclasses.replace(model.schema, person=person)
    whole, _ = read(tables, schema.client)
    people = people_by_client(schema, whole)
    if (declared := model.settings["support"]) is not None:
        require_declared(declared, schema, whole)
    return noted_rows(model, whole), people


def _refuse_rows_trained_on(folder: Path, model: Model, rows: dict[str, Any]) -> bool:
    """Raise BidroError for rows that were trained on, or that a client's personal model was adapted on, and
    note where that is not known. Returns whether these rows may speak of personal models: few rows are
    adapted on, so that of these it must be plain that they are others."""
    from bidro.certify.trained_rows import FILE, trained_rows_in
    from bidro.model.personal_file import personal_file_in

    known, adapted = trained_rows_in(folder), personal_file_in(folder, model.x).adapted
    of_personal = [sketch.refused_or_note(rows) for name, sketch in adapted.items() if name in rows]
    doubts = [
        f"{words} The statement with personal models is left out."
        for words in of_personal
        if words is not None
    ]
    if known is None:
        said: str | None = (
            f"There is no {FILE} in '{folder}' (a federated run leaves none), so that it cannot be told "
            "whether these rows were trained on; statements hold only for rows that training never saw."
        )
    else:
        said = known.refused_or_note(rows)
    for words in [*([] if said is None else [said]), *doubts]:
        say(words)
    return not doubts
