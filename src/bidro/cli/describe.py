"""`bidro describe`: Table 1 of the rows of all clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bidro.cli.options import AsJson
from bidro.cli.output import print_result, said_lines
from bidro.core.errors import BidroError


def describe(
    source: Annotated[
        Path,
        typer.Argument(help="A table of all clients' rows; or federate.toml, whose sites are then asked."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for table1.csv, table1.html and table1.json.")],
    schema: Annotated[Path | None, typer.Option(help="With a table: its schema, of `bidro schema`.")] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="With a table: a privacy budget of every client, to try noise.")
    ] = None,
    delta: Annotated[float, typer.Option(help="With a table: of the budget.")] = 1e-6,
    rows_per_person: Annotated[int, typer.Option(help="With a table: rows that a person may have.")] = 1,
    honest: Annotated[
        float | None,
        typer.Option(
            help="With a table: noise that clients share, of whom this share keep theirs to themselves."
        ),
    ] = None,
    engine: Annotated[str, typer.Option(help="With federate.toml: flare or flower.")] = "flare",
    run: Annotated[
        str | None, typer.Option(help="Name of the run on the server; that of --out by default.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run of this name.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a folder that is there already.")] = False,
    json: AsJson = False,
) -> None:
    """Describe every column over the rows of all clients: numbers of rows, what is missing, means,
    deviations, quantiles and levels. Between sites, by [privacy.shared] of their agreement, sums are masked,
    and no site's table is seen by anybody."""
    import json as plain_json

    import click

    from bidro.workflow.describe import CSV_FILE, JSON_FILE, PAGE_FILE
    from bidro.workflow.folder import write_folder

    if out.exists() and not force:
        raise BidroError(f"'{out}' is there already: name another folder, or replace it by --force.")
    if source.suffix == ".toml":
        if schema is not None or epsilon is not None or honest is not None:
            raise click.UsageError("Between sites schema and budgets are agreed on; leave these options out.")
        files = _of_sites(source, engine, run or out.resolve().name, resume, json)
    else:
        if schema is None:
            raise click.UsageError(
                "Give --schema schema.toml, which says what the columns are: draft it by `bidro schema`."
            )
        files = _of_table(source, schema, epsilon, delta, rows_per_person, honest)
    write_folder(out, files)
    content = plain_json.loads(files[JSON_FILE])
    lines = [
        *content["said"],
        f"Written to {out}: open {out / PAGE_FILE} in a browser; {CSV_FILE} is a table.",
    ]
    print_result(content, "\n".join(lines), json)


def _of_sites(config: Path, engine: str, run: str, resume: bool, quiet: bool) -> dict[str, str | bytes]:
    import dataclasses

    from bidro.deploy.agreement.job import Config
    from bidro.deploy.transport.drive import require_engine, submit_and_wait

    require_engine(engine)
    whole = Config.read(config, run, None, resume)
    if engine not in whole.engines:
        raise BidroError(f"'{config}' has no [{engine}] part that says how to reach the network.")
    job = dataclasses.replace(whole.job, describe=True)
    with said_lines(quiet=quiet) as say:
        return dict(submit_and_wait(job, engine, whole.engines[engine], say))


def _of_table(
    table: Path, schema: Path, epsilon: float | None, delta: float, most: int, honest: float | None
) -> dict[str, str | bytes]:
    from bidro.data.tables import read
    from bidro.deploy.agreement.agreement import Agreement
    from bidro.privacy.terms import Budget, SharedNoise
    from bidro.workflow.describe import described_here

    if epsilon is None and honest is not None:
        raise BidroError("honest is of shared noise, which needs a budget: give --epsilon, too.")
    budget = None if epsilon is None else Budget(epsilon, delta, most)
    shared = None if epsilon is None or honest is None else SharedNoise(epsilon, delta, most, honest)
    agreed = Agreement.read(schema)
    whole, _ = read([table], agreed.schema.client)
    return described_here(agreed.schema, dict(agreed.units), whole, budget, shared)
