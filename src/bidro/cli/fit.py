"""`bidro fit`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bidro.cli.columns import Categories, Dates, Drop

if TYPE_CHECKING:
    from bidro.workflow.fit import Fit
    from bidro.workflow.options import FitOptions


# Options that a schema does not say.
_BESIDE_A_SCHEMA = ("tables", "schema", "epsilon", "delta", "rows_per_person")


def fit(
    tables: Annotated[
        list[Path] | None,
        typer.Argument(
            help="CSV (also .gz) or Parquet: one table with a client column, or one file per client."
        ),
    ] = None,
    client: Annotated[
        str | None, typer.Option(help="Column that names the client; without it, a file's name does.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Column to be predicted.")] = None,
    measured_in: Annotated[
        str | None, typer.Option(help="What the target is counted in, such as days: for the report page.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the model.")] = None,
    schema: Annotated[
        Path | None,
        typer.Option(
            help="schema.toml that sites agree on: columns, units and all of training are as it says, as in "
            "`bidro federate`."
        ),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="regression or classification; guessed if not given.")
    ] = None,
    features: Annotated[
        str | None, typer.Option(help="Columns to use, separated by commas; all by default.")
    ] = None,
    categories: Categories = None,
    drop: Drop = None,
    dates: Dates = None,
    unit: Annotated[
        str | None,
        typer.Option(
            help="Column of the person or thing that a row is of: rows of one stay together, and it is no "
            "feature."
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="squared, absolute, huber, pinball; logistic, 'smoothed hinge'. [squared or logistic]"
        ),
    ] = None,
    quantile: Annotated[float | None, typer.Option(help="Of the pinball loss. [0.5]")] = None,
    radius: Annotated[
        str | None,
        typer.Option(
            help="Shift inside clients to guard against: a number of standard deviations, cross-validate, "
            "bootstrap or explicit. [0]"
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="Mixtures to guard against: auto (within the price), simplex (any), fixed (by rows), or a "
            "cap such as 3. [auto]"
        ),
    ] = None,
    price: Annotated[
        str | None,
        typer.Option(
            help="By which share the mean loss may rise over pooled training for a better worst case, or "
            "inf. [0.02]"
        ),
    ] = None,
    criterion: Annotated[
        str | None,
        typer.Option(help="risk, or regret: beyond what each client could attain by itself. [risk]"),
    ] = None,
    own: Annotated[
        str | None,
        typer.Option(help="Each client's own correction of the shared model: auto, offset or none. [auto]"),
    ] = None,
    curves: Annotated[
        str | None,
        typer.Option(
            help="Curves in place of straight lines: auto (as many segments as cross-validation chooses), "
            "none, a number of segments, or by feature, such as age=8,bmi=none; age=8@sex for a curve at "
            "each level of a category. [auto]"
        ),
    ] = None,
    increasing: Annotated[
        str | None, typer.Option(help="Features with which the prediction must rise, separated by commas.")
    ] = None,
    decreasing: Annotated[str | None, typer.Option(help="Features with which it must fall.")] = None,
    metric: Annotated[
        str | None, typer.Option(help="features (targets do not move) or joint. [features]")
    ] = None,
    label_cost: Annotated[
        float | None,
        typer.Option(help="Cost of moving the target by one standard deviation, or of another label. [1]"),
    ] = None,
    support: Annotated[
        Path | None, typer.Option(help="TOML file with declared bounds: column = [lower, upper].")
    ] = None,
    confidence: Annotated[float | None, typer.Option(help="Of the certificate. [0.95]")] = None,
    shift: Annotated[
        float | None, typer.Option(help="Also bound the loss under a shift of so many standard deviations.")
    ] = None,
    hold_out: Annotated[
        float | None,
        typer.Option(help="Share of every client's rows kept for the certificate; 0 for none. [0.2]"),
    ] = None,
    missing: Annotated[
        str | None,
        typer.Option(
            help="refuse missing values; median: fill numbers by their median, tell which in a column of its "
            "own, and give categories a level 'missing'; median-alone: fill numbers by their median and "
            "categories by their commonest level. [refuse]"
        ),
    ] = None,
    folds: Annotated[int | None, typer.Option(help="Of cross-validation. [5]")] = None,
    gap: Annotated[float | None, typer.Option(help="Certified relative duality gap. [1e-6]")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the rows kept out and the folds. [0]")] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Privacy budget of every client, to try a private fit: needs --schema."),
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Of the privacy budget. [1e-6]")] = None,
    rows_per_person: Annotated[
        int | None, typer.Option(help="Rows that a person may have: needs a unit in the schema. [1]")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file with any of these options, as `run.toml` of a model folder."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a model that is in --out already.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a model on tables from several clients, certify it, and write a model folder.

    The folder holds model.safetensors, certificate.json, report.html (open it in a browser), report.json,
    trained_rows.json (by which `bidro certify` notices rows that were trained on), and run.toml with every
    option, so that `bidro fit --config run.toml --out NEW` repeats the run.
    """
    import click

    from bidro.workflow.fit import require_place
    from bidro.workflow.options import FitOptions
    from bidro.workflow.toml_files import read_toml

    base = FitOptions() if config is None else FitOptions.from_toml(config)
    given: dict[str, Any] = {
        "tables": tuple(str(path) for path in tables) if tables else None,
        "schema": None if schema is None else str(schema),
        "client": client,
        "target": target,
        "measured_in": measured_in,
        "task": task,
        "features": names_in(features),
        "categories": names_in(categories),
        "drop": names_in(drop),
        "dates": names_in(dates),
        "unit": unit,
        "loss": loss,
        "quantile": quantile,
        "radius": _number_or_word(radius),
        "weights": _number_or_word(weights),
        "price": price if price is None or price.strip() == "inf" else _number_or_word(price),
        "criterion": criterion,
        "own": own,
        "curves": None if curves is None else curves_asked(curves),
        "increasing": names_in(increasing),
        "decreasing": names_in(decreasing),
        "metric": metric,
        "label_cost": label_cost,
        "support": None if support is None else read_toml(support),
        "confidence": confidence,
        "shift": shift,
        "hold_out": hold_out,
        "missing": missing,
        "folds": folds,
        "gap": gap,
        "seed": seed,
        "epsilon": epsilon,
        "delta": delta,
        "rows_per_person": rows_per_person,
    }
    options = base.changed(given)
    if out is None:
        raise click.UsageError("Name the folder for the model: --out DIR.")
    if not options.tables:
        raise click.UsageError("Give at least one table, CSV or Parquet.")
    require_place(out, force)
    if schema is not None:
        more = [name for name, value in given.items() if value is not None and name not in _BESIDE_A_SCHEMA]
        if more:
            raise click.UsageError(
                f"The schema says all of training; leave --{more[0].replace('_', '-')} out, or change it."
            )
    _run(options, out, json)


def names_in(text: str | None) -> tuple[str, ...] | None:
    """Names of columns that are separated by commas; None where none were given."""
    return None if text is None else tuple(name.strip() for name in text.split(","))


def curves_asked(text: str) -> int | str | dict[str, int | str]:
    """A word, a number of segments, or one of these by feature."""

    def one(word: str) -> int | str:
        return int(word) if word.strip().isdigit() else word.strip()

    if "=" not in text:
        return one(text)
    # The last "=" is ours: a level of a category is a feature with one of its own.
    return {name.strip(): one(word) for name, word in (part.rsplit("=", 1) for part in text.split(","))}


def _number_or_word(text: str | None) -> float | str | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def _run(options: FitOptions, out: Path, as_json: bool) -> None:
    import json as plain_json

    from bidro.cli.output import SETTINGS_SHOWN, shown_progress
    from bidro.deploy.agreed import Agreed
    from bidro.engines.compiled import compilation_cache
    from bidro.errors import BidroError
    from bidro.workflow.asked_for import private_terms
    from bidro.workflow.fit import fit_tables, write_folder
    from bidro.workflow.folder import folder_files
    from bidro.workflow.judged import evaluation

    compilation_cache()
    agreed, budget = None, options.budget()
    if options.schema is not None:
        whole = Agreed.read(Path(options.schema))
        if whole.neural_network is not None:
            raise BidroError(
                f"'{options.schema}' names a neural network, which `bidro fit` does not train; rehearse it "
                "by `bidro federate federate.toml --local TABLE`, or leave [neural_network] out."
            )
        whole = replace(whole, privacy=private_terms(whole.privacy, budget))
        options = replace(whole.options, **{name: getattr(options, name) for name in _BESIDE_A_SCHEMA})
        agreed = whole.schema, whole.fit_options
    with shown_progress(as_json, options.gap) as progress:
        done = fit_tables(options, progress, agreed, budget)
        progress.begin("writing")
        write_folder(out, folder_files(done))
    if as_json:
        summary = {
            "out": str(out),
            "rounds": done.trained.rounds,
            "gap": done.trained.gap,
            **{name: done.model.settings[name] for name in SETTINGS_SHOWN},
            "evaluation": {"on": _judged_on(done), **evaluation(done.judged, done.changes)},
            "certificate": plain_json.loads(done.certificate.to_json()),
        }
        print(plain_json.dumps(summary, indent=2, allow_nan=False))
        return
    _print(done, out)


def _judged_on(done: Fit) -> str:
    return "rows kept out" if done.held_out_rows else "training rows"


def _cut(done: Fit) -> str:
    """What a row kept out counts as at the most."""
    clipped = done.certificate.clipped
    return "" if clipped is None else f", none counted as more than {clipped.largest:.4g}"


def _print(done: Fit, out: Path) -> None:
    from rich.console import Console

    from bidro.losses.registry import entry_of
    from bidro.workflow.judged import evaluation

    console = Console()
    trained, judged = done.trained, evaluation(done.judged)
    how = f"Solved in {trained.rounds} round{'s' * (trained.rounds != 1)}"
    # Of sums with noise there is no gap to certify.
    gap = "" if trained.gap is None else f" to a certified relative gap of {trained.gap:.1e}"
    if gap and done.model.settings["surrogate"] is not None:
        gap += " of a surrogate for the worst case"
    measure = done.model.schema.measured_in
    unit = "" if measure is None else f", in {entry_of(done.model.loss).unit_in(measure)}"
    console.print(
        f"{how}{gap}. On {_judged_on(done)}{_cut(done)}{unit}: mean loss {judged['mean']:.4g}, worst client "
        f"{judged['worst_client']:.4g}, worst decile {judged['worst_decile']:.4g}.",
        highlight=False,
        markup=False,
    )
    for words in done.model.settings["chosen"].values():
        console.print(words, highlight=False, markup=False, soft_wrap=True)
    console.print(str(done.certificate), highlight=False, markup=False)
    console.print(
        f"\nWritten to {out}: open {out / 'report.html'} in a browser.", highlight=False, soft_wrap=True
    )
    for words in done.model.settings["concerns"]:
        console.print(f"CONCERN: {words}", highlight=False, markup=False, soft_wrap=True)
