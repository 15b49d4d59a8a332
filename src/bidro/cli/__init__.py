"""The command `bidro`. Heavy modules are imported inside the commands, so that help is instant."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from bidro.cli import certify, consortium, describe, federate, fit, reproduce, site, use

app = typer.Typer(
    name="bidro",
    help="Train one model from several private data sources, robust to any mix of them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from bidro import __version__

        print(f"bidro {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the full traceback of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Say which version this is.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    # `main` looks for --debug itself: an error can also come from parsing.
    del debug, version


app.command(
    rich_help_panel="Train",
    epilog="Example: `bidro fit visits.csv --client hospital --target stay --out stay-model`",
)(fit.fit)
app.command(
    rich_help_panel="Use a model", epilog="Example: `bidro predict stay-model new.csv --out predictions.csv`"
)(use.predict)
app.command(
    rich_help_panel="Use a model",
    epilog="Examples: `bidro export stay-model --onnx stay.onnx`, `bidro export stay-model --numpy stay.py`",
)(use.export)
app.command(rich_help_panel="Train", epilog="Example: `bidro adapt stay-model south.csv --client south`")(
    use.adapt
)
app.command(rich_help_panel="Train", epilog="Example: `bidro choose stay-model --max-cost 0.1`")(use.choose)
app.command(rich_help_panel="Use a model", epilog="Example: `bidro evaluate stay-model test.csv --json`")(
    use.evaluate
)
app.command(
    rich_help_panel="Promise",
    epilog="Examples: `bidro certify stay-model fresh.csv --confidence 0.9 --shift 0.1`, "
    "`bidro certify --predictions scored.csv --client hospital --target stay --prediction predicted "
    "--clip-from other.csv`, `bidro certify --onnx model.onnx fresh.csv --client hospital --target stay "
    "--largest 30`",
)(certify.certify)
app.command(rich_help_panel="Promise", epilog="Example: `bidro plan stay-model visits.csv --width 2.0`")(
    use.plan
)
app.command(
    rich_help_panel="Federate", epilog="Example: `bidro schema north.csv --target stay --out schema.toml`"
)(federate.schema)
app.command(
    rich_help_panel="Federate",
    epilog="Examples: `bidro describe visits.csv --schema schema.toml --out table1`, "
    "`bidro describe federate.toml --engine flare --out table1`",
)(describe.describe)
app.command(
    rich_help_panel="Federate",
    epilog="Examples: `bidro federate --local visits.csv --client hospital --target stay --out rehearsal`, "
    "`bidro federate federate.toml --engine flare --out stay-model`",
)(federate.federate)
app.command(rich_help_panel="Federate", epilog="Example: `bidro audit stay-model`")(federate.audit)
app.add_typer(consortium.app, name="consortium", rich_help_panel="Federate")
app.add_typer(site.app, name="site", rich_help_panel="At a site")
app.command(rich_help_panel="At a site", epilog="Example: `bidro ledger site.toml`")(site.ledger)
app.add_typer(federate.runs, rich_help_panel="Federate")
app.command(rich_help_panel="Use a model", epilog="Example: `bidro report stay-model --out stay.html`")(
    use.report
)
app.command(rich_help_panel="Train", epilog="Example: `bidro example visits.csv`")(use.example)
app.command(
    rich_help_panel="Study",
    epilog="Example: `bidro compare visits.csv --client hospital --target stay --methods 'FedAvg,AFL'`",
)(use.compare)
app.command(
    rich_help_panel="Study", epilog="Example: `bidro reproduce --runs 5 --rounds 2000 --out out/quick`"
)(reproduce.reproduce)


def main() -> None:
    """Entry point: one clear sentence on stderr instead of a traceback; exit codes 0, 1, 2."""
    import click

    interrupted = 130  # what typer makes of Ctrl-C
    debug = "--debug" in sys.argv
    # The flag is accepted anywhere, also after the command's name.
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        code = app(arguments, standalone_mode=False) or 0
    except click.exceptions.Exit as finished:
        code = finished.exit_code
    except click.ClickException as error:
        error.show()
        code = 2
    except (KeyboardInterrupt, click.Abort):
        code = interrupted
    except Exception as error:
        if debug:
            raise
        from bidro.core.errors import BidroError

        kind = "" if isinstance(error, BidroError | OSError) else f"{type(error).__name__}: "
        print(f"bidro: {kind}{error}", file=sys.stderr)
        code = 1
    if code == interrupted:
        print("bidro: interrupted; nothing was written.", file=sys.stderr)
        code = 1
    sys.exit(code)
