"""The commands that use a trained model, `adapt` and `compare`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click
import typer

from bidro.cli.options import AsJson, with_options
from bidro.cli.output import (
    note,
    note_personal_models,
    note_what_is_new,
    noted_here,
    noted_rows,
    print_json,
    print_result,
    say,
    shown_progress,
)
from bidro.core.errors import BidroError
from bidro.workflow.options import TableColumns

if TYPE_CHECKING:
    from bidro.model.model_file import Model


ModelFolder = Annotated[Path, typer.Argument(help="Model folder that `bidro fit` wrote.")]
Tables = Annotated[list[Path], typer.Argument(help="CSV or Parquet, with the columns of training.")]


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
    interval: Annotated[
        float | None,
        typer.Option(
            help="Also where the target lies for this share of new rows, such as 0.9: `lower` and "
            "`upper`, or which classes it may be."
        ),
    ] = None,
    shift: Annotated[
        float | None,
        typer.Option(help="With --interval: room for rows that move by so many standard deviations."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is in --out already.")] = False,
    json: AsJson = False,
) -> None:
    """Predict the target for every row of a table: by the row's client's personal model, where it has one."""
    import numpy as np

    from bidro.certify.held_out import check_shift
    from bidro.core.files import is_stream, require_file_place, write_text
    from bidro.data.tables import as_csv, read_one
    from bidro.model.model_file import load_model

    check_shift(shift)
    if shift is not None and interval is None:
        raise click.UsageError("--shift goes with --interval SHARE.")
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
        if interval is not None:
            found = found.join(loaded.predict_interval(rows, interval, shift))
    if shares is not None:
        names = [name if isinstance(name, str) else " for ".join(reversed(name)) for name in shares]
        found = found.join(shares.set_axis([f"share of {name}" for name in names], axis=1))
    note_what_is_new(loaded, rows)
    note_personal_models(loaded, rows)
    unseen: dict[str, Any] = {"unseen_levels": loaded.schema.unseen_levels(loaded.schema.once(rows))}
    if interval is not None:
        assert loaded.intervals is not None
        unseen["promise"] = loaded.intervals.promise(interval, shift)
        say(unseen["promise"])
    if out is not None:
        write_text(out, as_csv(found))
        words = f"{len(found):,} predictions written to {out}."
        print_result({"rows": len(found), "out": str(out), **unseen}, words, json, out)
    elif json:
        # JSON has no infinite number: an end that is one is null.
        plain = found.replace([np.inf, -np.inf], None).to_dict("list")
        print_json({"rows": len(found), **unseen, "predictions": plain})
    else:
        sys.stdout.write(as_csv(found))


def export(
    model: ModelFolder,
    onnx: Annotated[Path | None, typer.Option(help="ONNX file to write.")] = None,
    numpy: Annotated[
        Path | None, typer.Option(help="Python file to write, which predicts with NumPy alone.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Write a model for places without bidro, as an ONNX file or as a Python file that needs NumPy alone: the
    inputs are the table's columns by their names.

    Numbers are doubles, categories texts, each one column wide. Coding, filling and curves are in the file,
    and levels that training did not see count as in `predict`; a cell that the model refuses gives NaN, and
    for classes an empty label. Where clients have personal models, the client column is an input, too.
    """
    from bidro.core.files import require_file_place, write_bytes
    from bidro.model.model_file import load_model
    from bidro.model.numpy_scorer import numpy_scorer
    from bidro.model.onnx.exported import onnx_of

    if (onnx is None) == (numpy is None):
        raise click.UsageError("Name one file to write: --onnx FILE or --numpy FILE.")
    out = onnx if numpy is None else numpy
    assert out is not None
    require_file_place(out)
    loaded = load_model(model)
    data = onnx_of(loaded) if numpy is None else numpy_scorer(loaded).encode()
    write_bytes(out, data)
    inputs = [*loaded.schema.read]
    inputs += [loaded.schema.client] if loaded.personal else []
    words = f"The model was written to {out}; its inputs are the columns {', '.join(inputs)}."
    print_result({"out": str(out), "bytes": len(data), "inputs": inputs}, words, json, out)


def choose(
    model: ModelFolder,
    max_cost: Annotated[
        float | None,
        typer.Option(help="By which share the mean loss may rise over pooled training, such as 0.1, or inf."),
    ] = None,
    prefer: Annotated[
        Literal["mean", "balanced", "worst"] | None, typer.Option(help="As in `bidro fit`.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Take another model that a fit gave, without training: one that costs more or less on average for its
    worst-served clients. Without an option, which there are.

    What is stated of it is stated of all of them at once, as you may have looked at each. Intervals for rows
    are those of the fit's own model, and leave the folder with it.
    """
    from bidro.core.files import parsed_json, read_text
    from bidro.selection.rule import check_max_cost
    from bidro.workflow.folder import write_folder
    from bidro.workflow.frontier import as_json, in_words, read_frontier, taken
    from bidro.workflow.offer import PREFERENCES

    if max_cost is not None and prefer is not None:
        raise click.UsageError("--prefer and --max-cost say the same; leave one of them out.")
    wanted = PREFERENCES[prefer] if prefer is not None else max_cost
    if wanted is not None:
        check_max_cost(wanted)
    found, files = read_frontier(model)
    place = None if wanted is None else found.place(wanted)
    if place is not None:
        write_folder(model, taken(model, files[place]))
    else:
        own = (model / "certificate.json").read_bytes()
        place = next((k for k, one in enumerate(files) if one["certificate.json"] == own), None)
    words = in_words(found, place)
    if place is None:
        chosen = parsed_json(read_text(model / "report.json"))["calibration"]["max_cost"]
        words += (
            "\nIn the folder is the model that the fit chose, for a largest cost of "
            f"{'inf' if chosen is None else chosen}, with its intervals for rows."
        )
    elif (promised := found.models[place].promise) is not None:
        words += f"\n{promised} All {len(found.models)} promises hold at once with {found.confidence:.0%}."
    print_result({**as_json(found), "in_the_folder": place}, words, json)


def evaluate(model: ModelFolder, tables: Tables, json: AsJson = False) -> None:
    """How good a model is on a table with known targets: under the shared model, the clients' personal models
    and pooled training, with who gains and who loses.

    Of each the mean loss, the worst client and the worst decile, for classes with accuracy, mistakes, the
    area under the curve and calibration, for squared loss with the root mean squared error. Of more than 50
    clients the quantiles and the ten worst are shown; --json has all of them.
    """
    from bidro.data.tables import read
    from bidro.model.model_file import load_model
    from bidro.workflow.evaluation import evaluated, in_words, rows_by_client

    loaded = load_model(model)
    whole, _ = read(tables, loaded.schema.client)
    with noted_here():
        found = evaluated(loaded, whole)
        note(loaded, whole, found["not_in_training"])
        _note_rows_trained_on(model, loaded, rows_by_client(loaded, whole))
    print_result(found, in_words(found), json)


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

    from bidro.certify.plan import check_plan
    from bidro.certify.plan import plan_sample_size as planned
    from bidro.core.pytrees import compilation_cache
    from bidro.data.tables import read
    from bidro.model.model_file import load_model
    from bidro.workflow.plan import declared_problem

    if epsilon is not None:
        if radius is not None or width is not None:
            raise click.UsageError("Give one target: --radius, --width or --epsilon.")
        from bidro.workflow.plan import rows_for_budget

        loaded = load_model(model)
        budget = (epsilon, 1e-6 if delta is None else delta)
        private = rows_for_budget(
            loaded, noted_rows(loaded, read(tables, loaded.schema.client)[0]), *budget, excess
        )
        print_result({**dataclasses.asdict(private), "advice": private.advice}, private.advice, json)
        return
    check_plan(radius, width, confidence, delta)
    compilation_cache()
    loaded = load_model(model)
    problem = declared_problem(loaded, noted_rows(loaded, read(tables, loaded.schema.client)[0]))
    found = planned(problem, loaded.x, radius=radius, width=width, confidence=confidence, delta=delta)
    if json:
        content = dataclasses.asdict(found)
        content["radius"] = found.radius if math.isfinite(found.radius) else None
        print_json({**content, "advice": found.advice})
        return
    lines = [f"Now the {found.target} is {found.now:.4g}; wanted is {found.wanted:.4g}."]
    for name, needed in found.needed.items():
        words = "no number of rows is enough" if needed is None else f"needs {needed:,} rows in all"
        lines.append(f"  {name:<20} has {found.rows[name]:,}, {words}")
    print("\n".join([*lines, found.advice]))


@with_options(
    *("tables", "client", "target", "task", "features", "person", "categories", "drop", "dates", "missing"),
    *("methods", "passes", "splits", "leave_clients_out", "json"),
)
def compare(
    tables: Annotated[list[Path], typer.Argument(help="CSV or Parquet, as for `bidro fit`.")],
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
    **given: Any,
) -> None:
    """All methods on the same rows, each tuned over as many candidates by the same cross-validation.

    Every method is also evaluated with the clients' personal models around its model, chosen in the same way
    for each. With --leave-clients-out it is trained without every fifth of the clients, and evaluated on
    these.
    """
    from bidro.core.pytrees import compilation_cache
    from bidro.data.tables import read
    from bidro.experiments.compare import compare_methods, comparison_table, grouped_from, known_methods

    columns = TableColumns(**given)
    columns.require_target()
    chosen = known_methods(None if methods is None else [name.strip() for name in methods.split(",")])
    compilation_cache()
    with shown_progress(quiet=json) as progress:
        progress.begin("reading")
        whole, owner = read(tables, columns.client)
        grouped = grouped_from(columns.learned(whole, owner), whole)
        found = compare_methods(grouped, splits, passes, chosen, progress, leave_clients_out)
    print_result(found, comparison_table(found), json)


def report(
    model: ModelFolder,
    out: Annotated[Path | None, typer.Option(help="Where to write it; else over the folder's own.")] = None,
    curves: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also a picture (PNG) of each curve, into this folder."),
    ] = None,
    card: Annotated[Path | None, typer.Option(help="Also a model card in Markdown, into this file.")] = None,
    json: AsJson = False,
) -> None:
    """Write the report page of a model folder anew, pictures of its curves, and a model card."""
    from bidro.core.files import parsed_json, read_text, write_text
    from bidro.model.model_file import load_model
    from bidro.report.card import model_card
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
    if card is not None:
        write_text(card, model_card(content))
        words += f" The model card is {card}."
    if drawn:
        words += f" {len(drawn)} pictures are in {curves}."
    result = {"out": str(where), **({} if curves is None else {"curves": drawn})}
    print_result(result, words, json, where)


def _draw_curves(content: dict[str, Any], folder: Path, model: Path) -> list[str]:
    """A picture for each column of a model with curves, what matters most first; the paths."""
    from bidro.core.files import write_whole

    if not content.get("curves"):
        raise BidroError(
            f"The model in '{model}' has no curves; it is of straight lines, or of an older bidro."
        )
    from bidro.report.figures import curves_figure, pair_figure, save

    measure = content.get("target_unit")
    target = content["target"] if content["task"] == "regression" else "the score"
    target += "" if measure is None else f", in {measure}"
    found = []
    columns: list[tuple[str, Any, Any]] = [
        (one["name"], one, curves_figure) for one in content["curves"]["columns"]
    ]
    columns += [("-".join(one["names"]), one, pair_figure) for one in content["curves"].get("pairs", ())]
    for place, (title, column, picture) in enumerate(columns, 1):
        name = re.sub(r"[^A-Za-z0-9]+", "-", title).strip("-")[:60] or "column"
        path, figure = folder / f"{place:02d}-{name}.png", picture(column, target, content.get("classes"))
        write_whole(path, lambda temporary, figure=figure: save(figure, temporary))  # type: ignore[misc]
        found.append(str(path))
    return found


def example(
    out: Annotated[Path, typer.Argument(help="CSV file to write.")] = Path("visits.csv"),
    seed: Annotated[int, typer.Option(help="Another seed gives fresh rows of the same hospitals.")] = 0,
    later: Annotated[
        bool,
        typer.Option(
            "--later", help="Visits of a year later: another mix of the hospitals, one with a worn device."
        ),
    ] = False,
    json: AsJson = False,
) -> None:
    """Write a made-up table of visits to six hospitals, to try the other commands on."""
    from bidro.core.files import write_text
    from bidro.data.example import example_visits

    table = example_visits(seed, later)
    write_text(out, table.to_csv(index=False))
    words = f"{len(table):,} made-up visits written to {out}."
    print_result({"rows": len(table), "out": str(out)}, words, json, out)


def _note_rows_trained_on(folder: Path, model: Model, rows: dict[str, Any]) -> None:
    """A line about rows that were trained on, and about a client's that its personal model was adapted on:
    losses on them are no guide to losses on new ones."""
    from bidro.certify.trained_rows import trained_rows_in
    from bidro.model.personal_file import personal_file_in

    known = trained_rows_in(folder)
    sketches = [] if known is None else [known]
    adapted = personal_file_in(folder, model.x).adapted
    sketches += [sketch for name, sketch in adapted.items() if name in rows]
    for sketch in sketches:
        if (equal := sketch.compare(rows).equal_rows) is not None:
            say(f"{equal}; losses on new ones may be larger.")


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
    """Give a client that was not in training its personal version of a model, from a few rows.

    It differs from the shared model at most half as freely as the clients of training do, so that few rows do
    no harm; where these gain nothing by corrections, a newcomer is given none. Of a model without personal
    models, as under a privacy budget, any client's own rows say how freely.
    """
    from bidro.data.tables import read_one
    from bidro.model.model_file import load_model
    from bidro.workflow.adapt import adapt as adapted_to
    from bidro.workflow.adapt import freedom_by_rows, newcomers_freedom, require_newcomer, write_adapted
    from bidro.workflow.folder import require_place

    if not model.is_dir():
        raise BidroError(f"'{model}' is not a folder; give the one that `bidro fit` wrote.")
    if out is not None:
        require_place(out, force)
    loaded = load_model(model)
    require_newcomer(loaded, client, force)
    rows = read_one(table)
    if by_rows := loaded.settings.get("personal") is None:
        with noted_here():
            freedom = freedom_by_rows(loaded, rows, client)
    else:
        freedom = newcomers_freedom(loaded)
    if freedom is None:
        who = "Rows left out" if by_rows else "The clients of this model"
        words = (
            f"{who} gain nothing by personal models, so that nothing was written: '{client}' does best with "
            "the shared model."
        )
        print_result({"client": client, "adapted": False}, words, json)
        return
    with noted_here():
        found = adapted_to(loaded, rows, client, freedom)
    note(loaded, rows)
    write_adapted(model, loaded, found, out, force)
    words = found.in_words(loaded.schema.target, loaded.schema.target_unit)
    result = {**found.as_json(), "out": str(out or model)}
    print_result(result, f"{words}\nWritten to {out or model}.", json)
