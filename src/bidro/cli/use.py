"""The commands that use a trained model, and `compare`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from bidro.cli.columns import Categories, Dates, Drop
from bidro.cli.fit import names_in
from bidro.cli.notes import note, note_own_models, note_what_is_new, noted_here

if TYPE_CHECKING:
    from bidro.model_file import Model

ModelFolder = Annotated[Path, typer.Argument(help="Model folder that `bidro fit` wrote.")]
Tables = Annotated[list[Path], typer.Argument(help="CSV or Parquet, with the columns of training.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def predict(
    model: ModelFolder,
    table: Annotated[Path, typer.Argument(help="CSV or Parquet with the features.")],
    out: Annotated[
        Path | None, typer.Option(help="CSV file for the predictions; else they are printed.")
    ] = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Also what every feature contributes: shares that add up to the prediction, for classes to "
            "the score.",
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is in --out already.")] = False,
    json: AsJson = False,
) -> None:
    """Predict the target for every row of a table: by the row's client's own model, where it has one."""
    import sys

    from bidro.errors import BidroError
    from bidro.model_file import load_model
    from bidro.report.files import is_stream, require_file_place, write_text
    from bidro.tables import as_csv, read_one

    if out is not None:
        require_file_place(out)
        if out.is_file() and table.exists() and out.samefile(table):
            raise BidroError(
                f"'{out}' is the table itself, which predictions would replace; name another file."
            )
        if out.is_file() and not force and not is_stream(out):
            raise BidroError(f"'{out}' exists already; choose another --out, or replace it with --force.")
    loaded, rows = load_model(model), read_one(table)
    with noted_here():
        found = loaded.predict(rows)
        shares = loaded.explain(rows) if explain else None
    if shares is not None:
        names = [name if isinstance(name, str) else " for ".join(reversed(name)) for name in shares]
        found = found.join(shares.set_axis([f"share of {name}" for name in names], axis=1))
    note_what_is_new(loaded, rows)
    note_own_models(loaded, rows)
    unseen = {"unseen_levels": loaded.schema.unseen_levels(rows)}
    if out is not None:
        write_text(out, as_csv(found))
        words = f"{len(found):,} predictions written to {out}."
        _say_of_file(out, {"rows": len(found), "out": str(out), **unseen}, json, words)
    elif json:
        _print_json({"rows": len(found), **unseen, "predictions": found.to_dict("list")})
    else:
        sys.stdout.write(as_csv(found))


def export(
    model: ModelFolder,
    onnx: Annotated[Path, typer.Option(help="ONNX file to write.")],
    json: AsJson = False,
) -> None:
    """Write a model as an ONNX file: its inputs are the table's columns by their names.

    Numbers are doubles, categories texts, each one column wide. Coding, filling and curves are in the file,
    and levels that training did not see count as in `predict`; a cell that the model refuses gives NaN, and
    for classes an empty label. Where clients have models of their own, the client column is an input, too.
    """
    from bidro.model_file import load_model
    from bidro.report.files import require_file_place, write_bytes
    from bidro.scoring.exported import onnx_of

    require_file_place(onnx)
    loaded = load_model(model)
    data = onnx_of(loaded)
    write_bytes(onnx, data)
    inputs = [*loaded.schema.read]
    inputs += [loaded.schema.client] if loaded.own else []
    words = f"The model was written to {onnx}; its inputs are the columns {', '.join(inputs)}."
    _say_of_file(onnx, {"out": str(onnx), "bytes": len(data), "inputs": inputs}, json, words)


def evaluate(model: ModelFolder, tables: Tables, json: AsJson = False) -> None:
    """How good a model is on a table with known targets: under the shared model, the clients' own models and
    pooled training, with who gains and who loses.

    Of each the mean loss, the worst client and the worst decile, for classes with accuracy, mistakes, the
    area under the curve and calibration, for squared loss with the root mean squared error. Of more than 50
    clients the quantiles and the ten worst are shown; --json has all of them.
    """
    from bidro.model_file import load_model
    from bidro.tables import read
    from bidro.workflow.judged import evaluated, rows_by_client
    from bidro.workflow.judged_words import in_words

    loaded = load_model(model)
    whole, _ = read(tables, loaded.schema.client)
    with noted_here():
        found = evaluated(loaded, whole)
        note(loaded, whole, found["not_in_training"])
        _note_rows_trained_on(model, loaded, rows_by_client(loaded, whole))
    if json:
        _print_json(found)
    else:
        print(in_words(found))


def plan(
    model: ModelFolder,
    tables: Tables,
    radius: Annotated[float | None, typer.Option(help="Wanted largest explicit radius.")] = None,
    width: Annotated[float | None, typer.Option(help="Wanted width of the Wasserstein interval.")] = None,
    confidence: Annotated[float, typer.Option(help="Of the interval.")] = 0.95,
    delta: Annotated[
        float | None,
        typer.Option(help="Heterogeneity, if known beforehand; with --epsilon that of the budget. [1e-6]"),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Of a privacy budget: rows for which its noise costs little.")
    ] = None,
    excess: Annotated[
        float, typer.Option(help="With --epsilon: by which share noise may raise the mean squared error.")
    ] = 0.05,
    json: AsJson = False,
) -> None:
    """How many rows each client needs for a wanted radius or width, and which single client helps most.

    Needs a model fitted with --support and --metric joint: only then can a ball hold the true distribution.
    With --epsilon instead: how many rows a site needs so that a privacy budget costs little.
    """
    import dataclasses
    import math

    from bidro.engines.compiled import compilation_cache
    from bidro.guarantees.plan import check_plan
    from bidro.guarantees.plan import plan as planned
    from bidro.model_file import load_model
    from bidro.workflow.declared import declared_problem

    if epsilon is not None:
        if radius is not None or width is not None:
            raise click.UsageError("Give one target: --radius, --width or --epsilon.")
        from bidro.workflow.private_rows import private_rows

        loaded = load_model(model)
        budget = (epsilon, 1e-6 if delta is None else delta)
        private = private_rows(loaded, _rows_by_client(loaded, tables), *budget, excess)
        if json:
            _print_json({**dataclasses.asdict(private), "advice": private.advice})
        else:
            print(private.advice)
        return
    check_plan(radius, width, confidence, delta)
    compilation_cache()
    loaded = load_model(model)
    problem = declared_problem(loaded, _rows_by_client(loaded, tables))
    found = planned(problem, loaded.x, radius=radius, width=width, confidence=confidence, delta=delta)
    if json:
        content = dataclasses.asdict(found)
        content["radius"] = found.radius if math.isfinite(found.radius) else None
        _print_json({**content, "advice": found.advice})
        return
    lines = [f"Now the {found.target} is {found.now:.4g}; wanted is {found.wanted:.4g}."]
    for name, needed in found.needed.items():
        words = "no number of rows is enough" if needed is None else f"needs {needed:,} rows in all"
        lines.append(f"  {name:<20} has {found.rows[name]:,}, {words}")
    print("\n".join([*lines, found.advice]))


def compare(
    tables: Annotated[list[Path], typer.Argument(help="CSV or Parquet, as for `bidro fit`.")],
    client: Annotated[str | None, typer.Option(help="Column that names the client.")] = None,
    target: Annotated[str | None, typer.Option(help="Column to be predicted.")] = None,
    task: Annotated[str | None, typer.Option(help="regression or classification.")] = None,
    features: Annotated[str | None, typer.Option(help="Columns to use, separated by commas.")] = None,
    unit: Annotated[
        str | None,
        typer.Option(help="Column of the person or thing that a row is of: rows of one stay together."),
    ] = None,
    categories: Categories = None,
    drop: Drop = None,
    dates: Dates = None,
    missing: Annotated[
        str, typer.Option(help="refuse missing values, or median or median-alone, as in `bidro fit`.")
    ] = "refuse",
    methods: Annotated[
        str | None, typer.Option(help="Some of them, separated by commas; else all sixteen.")
    ] = None,
    passes: Annotated[int, typer.Option(min=2, help="Over the rows, for methods that take steps.")] = 100,
    splits: Annotated[int, typer.Option(min=1, help="Random splits into training and test rows.")] = 3,
    leave_clients_out: Annotated[
        bool,
        typer.Option("--leave-clients-out", help="Test on whole clients that were not in training."),
    ] = False,
    json: AsJson = False,
) -> None:
    """All methods on the same rows, each tuned over as many candidates by the same cross-validation.

    Every method is also judged with the clients' own corrections of its model, chosen in the same way for
    each. With --leave-clients-out it is trained without every fifth of the clients, and judged on these.
    """
    from bidro.cli.output import shown_progress
    from bidro.engines.compiled import compilation_cache
    from bidro.errors import BidroError
    from bidro.experiments.compare import compare_methods, comparison_table, grouped_from, known_methods
    from bidro.tables import learn_schema, read
    from bidro.workflow.options import check_task

    if target is None:
        raise BidroError("Name the column to be predicted: --target COLUMN.")
    check_task(task, missing)
    chosen = known_methods(None if methods is None else [name.strip() for name in methods.split(",")])
    compilation_cache()
    with shown_progress(quiet=json) as progress:
        progress.begin("reading")
        whole, owner = read(tables, client)
        kinds = (names_in(names) or () for names in (categories, drop, dates))
        schema = learn_schema(whole, owner, target, names_in(features), task, missing, unit, *kinds)
        grouped = grouped_from(schema, whole)
        found = compare_methods(grouped, splits, passes, chosen, progress, leave_clients_out)
    if json:
        _print_json(found)
    else:
        print(comparison_table(found))


def report(
    model: ModelFolder,
    out: Annotated[Path | None, typer.Option(help="Where to write it; else over the folder's own.")] = None,
    curves: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also a picture (PNG) of each curve, into this folder."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Write the report page of a model folder anew, and pictures of its curves."""
    from bidro.errors import BidroError
    from bidro.given_files import parsed_json, read_text
    from bidro.model_file import load_model
    from bidro.report.files import write_text
    from bidro.report.page import page_html

    load_model(model)
    source = model / "report.json"
    if not source.exists():
        raise BidroError(f"There is no report.json in '{model}'; give the folder that `bidro fit` wrote.")
    try:
        content = parsed_json(read_text(source))
    except ValueError as error:
        raise BidroError(f"'{source}' is damaged: {error}.") from error
    drawn = [] if curves is None else _draw_curves(content, curves, model)
    where = out or model / "report.html"
    write_text(where, page_html(content))
    words = f"Written to {where}: open it in a browser."
    if drawn:
        words += f" {len(drawn)} pictures are in {curves}."
    result = {"out": str(where), **({} if curves is None else {"curves": drawn})}
    _say_of_file(where, result, json, words)


def _draw_curves(content: dict[str, Any], folder: Path, model: Path) -> list[str]:
    """A picture for each column of a model with curves, what matters most first; the paths."""
    from bidro.errors import BidroError
    from bidro.report.files import write_whole

    if not content.get("curves"):
        raise BidroError(
            f"The model in '{model}' has no curves; it is of straight lines, or of an older bidro."
        )
    from bidro.report.curves_figure import curves_figure
    from bidro.report.style import save

    measure = content.get("measured_in")
    target = content["target"] if content["task"] == "regression" else "the score"
    target += "" if measure is None else f", in {measure}"
    found = []
    for place, column in enumerate(content["curves"]["columns"], 1):
        name = re.sub(r"[^A-Za-z0-9]+", "-", column["name"]).strip("-")[:60] or "column"
        path, figure = (
            folder / f"{place:02d}-{name}.png",
            curves_figure(column, target, content.get("classes")),
        )
        write_whole(path, lambda temporary, figure=figure: save(figure, temporary))  # type: ignore[misc]
        found.append(str(path))
    return found


def example(
    out: Annotated[Path, typer.Argument(help="CSV file to write.")] = Path("visits.csv"),
    seed: Annotated[int, typer.Option(help="Another seed gives fresh rows of the same hospitals.")] = 0,
    json: AsJson = False,
) -> None:
    """Write a made-up table of visits to six hospitals, to try the other commands on."""
    from bidro.report.files import write_text
    from bidro.workflow.example import example_visits

    table = example_visits(seed)
    write_text(out, table.to_csv(index=False))
    words = f"{len(table):,} made-up visits written to {out}."
    _say_of_file(out, {"rows": len(table), "out": str(out)}, json, words)


def _rows_by_client(model: Model, tables: list[Path]) -> dict[str, Any]:
    """Rows (N_i, m) of every client in the tables, in the units of training."""
    from bidro.tables import read
    from bidro.workflow.judged import rows_by_client

    whole, _ = read(tables, model.schema.client)
    with noted_here():
        found = rows_by_client(model, whole)
    note(model, whole)
    return found


def _note_rows_trained_on(folder: Path, model: Model, rows: dict[str, Any]) -> None:
    """A line about rows that were trained on, and about a client's that its own model was adapted on: losses
    on them are no guide to losses on new ones."""
    import sys

    from bidro.guarantees.trained_rows import trained_rows_in
    from bidro.own_file import own_file_in

    known = trained_rows_in(folder)
    sketches = [] if known is None else [known]
    adapted = own_file_in(folder, model.x).adapted
    sketches += [sketch for name, sketch in adapted.items() if name in rows]
    for sketch in sketches:
        if (equal := sketch.compare(rows).equal_rows) is not None:
            print(f"bidro: {equal}; losses on new ones may be larger.", file=sys.stderr)


def _print_json(content: Any) -> None:
    import json

    print(json.dumps(content, indent=2, allow_nan=False))


def _say_of_file(out: Path, content: dict[str, Any], as_json: bool, words: str) -> None:
    """What was written where; on stderr where the result itself may go to stdout."""
    import sys

    from bidro.report.files import is_stream

    if as_json:
        _print_json(content)
    else:
        print(words, file=sys.stderr if is_stream(out) else sys.stdout)
