"""`bidro schema`, `bidro federate`, `bidro audit`, and `bidro runs`: the runs that a server keeps."""

from __future__ import annotations

import json as plain_json
from pathlib import Path
from typing import Annotated, Any

import typer

from bidro.cli.options import AsJson, with_options
from bidro.cli.output import SETTINGS_SHOWN, print_json, print_result, said_lines
from bidro.core.errors import BidroError
from bidro.workflow.options import FitOptions, TableColumns

# What the columns of a table are that a run is rehearsed with.
_OF_A_REHEARSAL = (
    *("client", "target", "target_unit", "person", "categories", "drop", "dates", "missing"),
    *("event", "time", "time_grid", "entry"),
)


@with_options(
    *(
        "table",
        "target",
        "target_unit",
        "client",
        "features",
        "categories",
        "drop",
        "dates",
        "person",
        "task",
        "event",
        "time",
        "time_grid",
        "entry",
    ),
    *("missing", "database", "query", "out"),
    client="Column that names the client; sites need not have it. [client]",
)
def schema(
    table: Annotated[
        Path | None, typer.Argument(help="CSV or Parquet: the rows of one site, or of all.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; the screen by default.")] = None,
    **given: Any,
) -> None:
    """Draft what all sites agree on before a federated run: columns, levels, units, bounds, training."""
    import click

    from bidro.core.files import require_file_place, write_text
    from bidro.data.tables import query_in, read_one
    from bidro.deploy.agreement.agreement import draft

    of_database = {name: given.pop(name, None) for name in ("database", "query")}
    source = query_in(of_database, Path(), "A draft") or table
    if source is None or (table is not None and source is not table):
        raise click.UsageError("Give one table, CSV or Parquet, or --database with --query.")
    columns = TableColumns(**{"client": "client", **given})
    columns.require_target()
    if out is not None:
        require_file_place(out)
    rows, client = read_one(source), columns.client or "client"
    if client not in rows:
        rows = rows.assign(**{client: "rows"})
    text = draft(columns.learned(rows, client), rows)
    if out is None:
        print(text, end="")
        return
    write_text(out, text)
    print(f"Written to {out}: see to units, bounds and [training], and let every site keep the same copy.")


@with_options(
    *("config", "engine", "out", "run", "resume", "one_sample_replies", "local", *_OF_A_REHEARSAL, "epsilon"),
    *("certify", "check", "force", "json"),
    client="With --local and without a schema: column that names the client.",
    target="With --local and without a schema: column to be predicted.",
    target_unit="With --local and without a schema: what the target is counted in, such as days.",
    person="With --local: column of the person (or thing) that a row is of.",
    categories="With --local and without a schema: columns that are categories, by commas.",
    drop="With --local and without a schema: columns to leave out, by commas.",
    dates="With --local and without a schema: columns of dates, which count as days since 1970-01-01.",
    missing="With --local and without a schema: refuse, median or median-alone. [refuse]",
    epsilon="With --local: every client's privacy budget, with delta = 1e-6, to rehearse it.",
)
def federate(
    config: Annotated[Path | None, typer.Argument(help="federate.toml: clients, schema, network.")] = None,
    engine: Annotated[str, typer.Option(help="flare or flower.")] = "flare",
    out: Annotated[Path | None, typer.Option(help="Folder for the model.")] = None,
    run: Annotated[
        str | None, typer.Option(help="Name of the run on the server; that of --out by default.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run of this name, or begin it if it never began.")
    ] = False,
    one_sample_replies: Annotated[
        bool,
        typer.Option(
            "--one-sample-replies",
            help="Allow Algorithm 1 of the paper: a curious server can rebuild most of the sampled records.",
        ),
    ] = False,
    local: Annotated[
        Path | None,
        typer.Option(help="Rehearse on this machine with this table, a process for every client."),
    ] = None,
    certify: Annotated[
        Path | None,
        typer.Option(
            help="Train nothing, and certify the model in this ONNX file: sites that allow it run it on rows "
            "that they hold out, and tell bounds alone."
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Train nothing: ask every site whether it would answer, and name those that would not. The "
            "verdict leaves, and nothing else; sites log it.",
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a model that is in --out already.")] = False,
    json: AsJson = False,
    **given: Any,
) -> None:
    """Train across machines that keep their rows, over NVIDIA FLARE or Flower, and write a model folder.

    The folder is that of `bidro fit`, with audit.json: all that left the sites. When sites, the server or the
    network fail, it goes on by itself for a while; when this command itself was cut off, --resume goes on to
    the same model. With --certify, a model from elsewhere is certified instead, and the folder has its
    certificate, a report page and the audit. Where sites have agreed on a neural network, that is trained,
    and the folder has its weights too, and ONNX where the network allows it.
    """
    import dataclasses
    import tempfile

    import click

    from bidro.deploy.agreement.job import Config, agreement_in
    from bidro.deploy.server.certified import job_to_certify
    from bidro.deploy.server.check import VERDICTS, in_words, job_to_check
    from bidro.deploy.transport.drive import require_engine, submit_and_wait
    from bidro.deploy.transport.rehearsal import rehearsed, split_by_client
    from bidro.privacy.terms import Budget
    from bidro.workflow.folder import require_place, write_folder

    if out is None and not check:
        raise click.UsageError("Name the folder for the model: --out DIR.")
    if check and (certify is not None or resume):
        raise click.UsageError("--check trains and certifies nothing; leave --certify and --resume out.")
    if local is None and config is None:
        raise click.UsageError(
            "Give a configuration, or rehearse with --local TABLE --client COLUMN --target COLUMN."
        )
    agreed = agreement_in(config) if local is not None else None
    epsilon = given.pop("epsilon", None)
    if (
        local is not None
        and agreed is None
        and not ("client" in given and {"target", "event"} & given.keys())
    ):
        raise click.UsageError(
            "A rehearsal needs --client COLUMN and --target COLUMN, or a configuration that names a schema."
        )
    if agreed is not None and given:
        raise click.UsageError(
            "The schema says which columns these are; leave --client, --target, --target-unit, --person, "
            "--categories, --drop, --dates, --missing, --event, --time, --time-grid, --entry out."
        )
    if local is None and given.keys() - {"client", "target"}:
        first = next(name for name in _OF_A_REHEARSAL[2:] if name in given)
        says = "names the person" if first == "person" else "says it"
        raise click.UsageError(
            f"--{first.replace('_', '-')} is for a rehearsal; between sites the agreed schema {says}."
        )
    if local is None and epsilon is not None:
        raise click.UsageError("--epsilon is for a rehearsal; between sites each has a budget of its own.")
    columns = TableColumns(**given)
    budget = None if epsilon is None else Budget(epsilon)
    require_engine(engine)
    if out is not None:
        require_place(out, force)
    name = run or (out.resolve().name if out is not None else "check")
    with said_lines(quiet=json) as say, tempfile.TemporaryDirectory(prefix="bidro-") as scratch:
        sites = None
        if local is not None:
            if resume:
                raise click.UsageError("A rehearsal leaves nothing to resume; begin it again.")
            sites = split_by_client(local, columns, Path(scratch), one_sample_replies, agreed, budget)
        whole = Config.read(config, name, sites, resume)
        if check:
            whole = dataclasses.replace(whole, job=job_to_check(whole.job))
        if certify is not None:
            whole = dataclasses.replace(whole, job=job_to_certify(whole.job, certify))
        if whole.job.agreed.algorithm is not None and certify is None and not one_sample_replies:
            raise BidroError(
                "Algorithm 1 sends replies computed from one row each, from which a curious server can "
                "rebuild about four fifths of the sampled records; say --one-sample-replies if that is "
                "acceptable."
            )
        if local is not None:
            files = rehearsed(whole.job, engine, Path(scratch), say)
        elif engine in whole.engines:
            files = submit_and_wait(whole.job, engine, whole.engines[engine], say)
        else:
            raise BidroError(f"'{config}' has no [{engine}] part that says how to reach the network.")
        if out is not None and not check:
            write_folder(out, dict(files))
    if check:
        verdicts = plain_json.loads(files[VERDICTS])
        print_result(verdicts, in_words(verdicts), json)
        raise typer.Exit(int(not all(one["answers"] for one in verdicts["sites"].values())))
    assert out is not None
    if certify is not None:
        _print_certified(out, json)
    elif whole.job.agreed.neural_network is not None:
        _print_network(out, json)
    else:
        _print(out, json)


def audit(
    model: Annotated[Path, typer.Argument(help="Model folder that `bidro federate` wrote.")],
    json: AsJson = False,
) -> None:
    """What left the sites in a federated run: each kind of message, its size, its rows, what it reveals."""
    from bidro.deploy.server.audit import in_words, read_audit

    found = read_audit(model)
    print_result(found, in_words(found), json)


def _print_certified(out: Path, as_json: bool) -> None:
    from bidro.certify.certificate import Certificate

    text = (out / "certificate.json").read_text()
    if as_json:
        print(text, end="")
        return
    print(Certificate.from_json(text))
    print(f"\nWritten to {out}: open {out / 'report.html'} in a browser.")
    print(f"What left the sites: bidro audit {out}")


def _print_network(out: Path, as_json: bool) -> None:
    from bidro.certify.certificate import Certificate
    from bidro.deploy.server.audit import read_audit
    from bidro.neural.folder import CERTIFICATE_FILE, ONNX_FILE, load_network

    found, audit = load_network(out), read_audit(out)
    stated = out / CERTIFICATE_FILE
    certificate = Certificate.from_json(stated.read_text()) if stated.exists() else None
    rounds = sum(kind["messages"] for kind in audit["kinds"] if kind["question"] == "train")
    if as_json:
        summary = {
            "out": str(out),
            "factory": found.factory,
            "messages_in_training": rounds,
            "bytes_up": sum(kind["bytes_up"] for kind in audit["kinds"]),
            "bytes_down": sum(kind["bytes_down"] for kind in audit["kinds"]),
            "lost": audit["lost"],
            "no_onnx": found.no_onnx,
            "certificate": None if certificate is None else plain_json.loads(certificate.to_json()),
        }
        print_json(summary)
        return
    count = sum(one.size for one in found.weights.values())
    print(f"Trained the network of '{found.factory}', {count:,} weights, by {rounds} messages from sites.")
    print("No rows were held out, so that nothing is stated of it." if certificate is None else certificate)
    print(f"\nWritten to {out}: bidro.load_network reads it, and runs nothing.")
    print(found.no_onnx or f"For other programs: {out / ONNX_FILE}")
    print(f"What left the sites: bidro audit {out}")


def _print(out: Path, as_json: bool) -> None:
    from bidro.certify.certificate import Certificate
    from bidro.deploy.server.audit import read_audit
    from bidro.model.model_file import load_model

    certificate = Certificate.from_json((out / "certificate.json").read_text())
    audit, model = read_audit(out), load_model(out)
    settings = model.settings
    if as_json:
        summary = {
            "out": str(out),
            "rounds": audit["rounds"],
            "gap": settings["gap"],
            **{name: settings[name] for name in SETTINGS_SHOWN},
            "evaluation": _evaluation(out),
            "bytes_up": sum(kind["bytes_up"] for kind in audit["kinds"]),
            "bytes_down": sum(kind["bytes_down"] for kind in audit["kinds"]),
            "lost": audit["lost"],
            "certificate": plain_json.loads(certificate.to_json()),
        }
        print_json(summary)
        return
    gap, wanted = settings["gap"], FitOptions.from_toml(out / "run.toml").gap
    words = "without a certified gap" if gap is None else f"to a certified gap of {gap:.1e}"
    if gap is not None and settings["surrogate"] is not None:
        words += " of a surrogate for the worst case"
    if gap is not None and gap > wanted:
        words += f", SHORT of the {wanted:.1e} that was requested"
    print(f"Trained in {audit['rounds']} rounds {words}.")
    print("\n".join(settings["chosen"].values()))
    print(certificate.in_words(model.schema.target_unit or ""))
    print(f"\nWritten to {out}: open {out / 'report.html'} in a browser.")
    print(f"What left the sites: bidro audit {out}")
    for concern in settings["concerns"]:
        print(f"CONCERN: {concern}")


def _evaluation(out: Path) -> dict[str, Any]:
    """The clients' losses on held-out rows, or on training rows, as the report page has it."""
    content = plain_json.loads((out / "report.json").read_text())
    clients = {client.pop("name"): client for client in content["clients"]}
    on = "held-out rows" if content["held_out_rows"] else "training rows"
    return {"on": on, **content["overall"], "clients": clients}


runs = typer.Typer(
    name="runs",
    help="List, show and delete the runs that a server keeps. For the server's own user, on its machine.",
    no_args_is_help=True,
)

_Folder = Annotated[
    Path | None,
    typer.Option("--folder", help="Folder of the runs; by default that of BIDRO_RUNS."),
]


@runs.command("list", epilog="Example: `bidro runs list`")
def list_runs(folder: _Folder = None, json: AsJson = False) -> None:
    """All runs, the latest first: done, failed, cut off or going on, and what is kept of what sites sent."""
    from bidro.deploy.server.runs import listed, runs_folder

    found = listed(runs_folder() if folder is None else folder)
    if json:
        print_json([run.to_dict() for run in found])
        return
    for run in found:
        kept = f"{run.record_bytes:,} bytes from sites" if run.record_bytes else "nothing from sites"
        print(f"{run.name}: {run.state}, begun {run.began:%Y-%m-%d %H:%M}, keeps {kept}")
    if not found:
        print("There are no runs.")


@runs.command(epilog="Example: `bidro runs show stay-model`")
def show(run: str, folder: _Folder = None, json: AsJson = False) -> None:
    """One run: how far it came, why it failed, and the last lines that it said."""
    from bidro.deploy.server.runs import find, runs_folder, said_so_far

    where = runs_folder() if folder is None else folder
    found, said = find(where, run), said_so_far(run, str(where))
    if json:
        print_json({**found.to_dict(), "said": said.last, "now": said.now})
        return
    print(f"{found.name}: {found.state}")
    print(f"begun {found.began:%Y-%m-%d %H:%M}, last changed {found.changed:%Y-%m-%d %H:%M} (UTC)")
    print(f"keeps {found.record_bytes:,} bytes that sites sent")
    if found.why:
        print(f"failed: {found.why}")
    for line in [*said.last, said.now]:
        print(f"  {line}")


@runs.command(epilog="Examples: `bidro runs delete stay-model`, `bidro runs delete --older-than 7`")
def delete(
    run: Annotated[str | None, typer.Argument(help="Its name.")] = None,
    older_than: Annotated[
        float | None,
        typer.Option(help="Instead: all without a result, unchanged for so many days."),
    ] = None,
    folder: _Folder = None,
) -> None:
    """Delete a run with all that is kept of it, or all old ones that failed or were cut off."""
    import click

    from bidro.deploy.server import runs as kept

    if (run is None) == (older_than is None):
        raise click.UsageError("Name one run, or give --older-than DAYS.")
    where = kept.runs_folder() if folder is None else folder
    if run is not None:
        kept.delete(where, run)
        print(f"Deleted {run}.")
        return
    names = kept.expire(where, older_than)
    print(f"Deleted {', '.join(names)}." if names else "There is nothing so old.")
