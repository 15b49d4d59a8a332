"""`bidro fit`."""

from __future__ import annotations

import json as plain_json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bidro.cli.options import AsJson, names_of, with_options
from bidro.cli.output import SETTINGS_SHOWN, print_json, shown_progress
from bidro.core.errors import BidroError
from bidro.workflow.options import FitOptions

if TYPE_CHECKING:
    from bidro.workflow.fit import Fit


# Options that a schema does not say.
_WITH_A_SCHEMA = (
    *("tables", "database", "query", "memory", "schema", "epsilon", "delta", "rows_per_person", "honest"),
)
_COLUMNS = ("client", "target", "target_unit")
_OTHERS = tuple(name for name in names_of(FitOptions) if name not in _COLUMNS)


@with_options("tables", *_COLUMNS, "out", "prefer", *_OTHERS, "config", "verbose", "force", "json")
def fit(
    tables: Annotated[
        list[Path] | None,
        typer.Argument(
            help="CSV (also .gz) or Parquet: one table with a client column, or one file per client."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the model.")] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file with any of these options, as `run.toml` of a model folder."),
    ] = None,
    prefer: Annotated[
        Literal["mean", "balanced", "worst"] | None,
        typer.Option(
            help="What the shared model is to be good at: the mean over all rows, the worst-served clients "
            "whatever that costs on average, or both (balanced, the default: at most 2% on average)."
        ),
    ] = None,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            help="Print how training went, the whole certificate, and coefficients with intervals, too.",
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a model that is in --out already.")] = False,
    json: AsJson = False,
    **given: Any,
) -> None:
    """Train a model on tables from several clients, certify it, and write a model folder.

    The folder holds model.safetensors, certificate.json, report.html (open it in a browser), report.json,
    trained_rows.json (by which `bidro certify` notices rows that were trained on), and run.toml with every
    option, so that `bidro fit --config run.toml --out NEW` repeats the run.
    """
    import click

    from bidro.workflow.folder import require_place
    from bidro.workflow.offer import PREFERENCES

    if prefer is not None:
        if "max_cost" in given:
            raise click.UsageError("--prefer and --max-cost say the same; leave one of them out.")
        given["max_cost"] = PREFERENCES[prefer]
    if tables:
        given["tables"] = tuple(str(path) for path in tables)
    options = FitOptions(**given) if config is None else FitOptions.from_toml(config, **given)
    if out is None:
        raise click.UsageError("Name the folder for the model: --out DIR.")
    if not options.sources():
        raise click.UsageError("Give at least one table, CSV or Parquet, or --database with --query.")
    require_place(out, force)
    if "schema" in given:
        more = [name for name in given if name not in _WITH_A_SCHEMA]
        if more:
            raise click.UsageError(
                f"The schema says all of training; leave --{more[0].replace('_', '-')} out, or change it."
            )
    _run(options, out, json, verbose)


def _run(options: FitOptions, out: Path, as_json: bool, verbose: bool) -> None:
    from bidro.core.pytrees import compilation_cache
    from bidro.deploy.agreement.agreement import Agreement
    from bidro.workflow.evaluation import evaluation
    from bidro.workflow.fit import fit_tables
    from bidro.workflow.folder import folder_files, write_folder
    from bidro.workflow.survival import survival_evaluation

    compilation_cache()
    agreed, budget = None, options.budget()
    if options.schema is not None:
        whole = Agreement.read(Path(options.schema))
        if whole.neural_network is not None:
            raise BidroError(
                f"'{options.schema}' names a neural network, which `bidro fit` does not train; rehearse it "
                "by `bidro federate federate.toml --local TABLE`, or leave [neural_network] out."
            )
        terms = options.private_terms(whole.privacy)
        whole = replace(whole, privacy=terms, release=whole.release if terms is None else "private")
        options = replace(whole.options, **{name: getattr(options, name) for name in _WITH_A_SCHEMA})
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
            "evaluation": {"on": _evaluated_on(done), **evaluation(done.evaluation, done.changes)},
            **({} if done.watched is None else {"survival": survival_evaluation(done.watched)}),
            "certificate": plain_json.loads(done.certificate.to_json()),
        }
        print_json(summary)
        return
    _print(done, out, verbose)


def _evaluated_on(done: Fit) -> str:
    return "held-out rows" if done.held_out_rows else "training rows"


def _cut(done: Fit) -> str:
    """The clip level of held-out losses, in words."""
    clipped = done.certificate.clipped
    return "" if clipped is None else f"; a loss above {clipped.largest:.4g} counts as that"


def _print(done: Fit, out: Path, verbose: bool) -> None:
    from rich.console import Console

    from bidro.model.summary import summary_of
    from bidro.workflow import survival
    from bidro.workflow.evaluation import evaluation
    from bidro.workflow.offer import in_words, offer_of, promise, why

    console, losses = Console(), evaluation(done.evaluation, done.changes)

    def say(words: str) -> None:
        console.print(words, highlight=False, markup=False, soft_wrap=True)

    if done.watched is not None:
        say(survival.in_words(survival.survival_evaluation(done.watched)) + "\n")
    offer = offer_of(done, losses)
    on = f"{done.held_out_rows:,} held-out rows" if done.held_out_rows else "training rows"
    if offer is not None:
        say(in_words(offer, on) + "\n")
    if offer is None or verbose:
        say(_solved(done, losses))
    say(why(done))
    if (promised := promise(done)) is not None:
        say(promised)
    if (privacy := done.certificate.privacy) is not None and privacy.on_average is not None:
        say(privacy.average)
    if verbose:
        for words in done.model.settings["chosen"].values():
            say(words)
        say(done.certificate.in_words(done.model.schema.target_unit or ""))
        if done.trained_rows is not None:
            classes = None if done.model.schema.classes is None else list(done.model.schema.classes)
            say(f"\n{summary_of(done, done.model.schema.features, done.options.confidence, classes)}\n")
    say(f"Written to {out}: open {out / 'report.html'} in a browser.")
    for words in done.model.settings["concerns"]:
        say(f"CONCERN: {words}")


def _solved(done: Fit, losses: Mapping[str, Any]) -> str:
    """How training went and what losses it came to."""
    from bidro.losses.registry import entry_of

    trained = done.trained
    how = f"Training took {trained.rounds} round{'s' * (trained.rounds != 1)}"
    # Of sums with noise there is no gap to certify.
    if trained.gap is not None:
        what = "objective" if done.model.settings["surrogate"] is None else "surrogate of the worst case"
        how += f"; the best possible {what} is lower by a share of at most {trained.gap:.1e}"
    measure = done.model.schema.target_unit
    unit = "" if measure is None else f", in {entry_of(done.model.loss).unit_in(measure)}"
    return (
        f"On {_evaluated_on(done)}{unit}: mean loss {losses['mean']:.4g}, worst client "
        f"{losses['worst_client']:.4g}, worst tenth of the clients {losses['worst_decile']:.4g}{_cut(done)}. "
        f"{how}."
    )
