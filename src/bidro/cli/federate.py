"""`bidro schema`, `bidro federate`, `bidro audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bidro.cli.columns import Categories, Dates, Drop
from bidro.cli.fit import names_in


def schema(
    table: Annotated[Path, typer.Argument(help="CSV or Parquet: the rows of one site, or of all.")],
    target: Annotated[str, typer.Option(help="Column to be predicted.")],
    measured_in: Annotated[
        str | None, typer.Option(help="What the target is counted in, such as days: for the report page.")
    ] = None,
    client: Annotated[
        str, typer.Option(help="Column that names the client; sites need not have it.")
    ] = "client",
    features: Annotated[str | None, typer.Option(help="Columns to use, separated by commas.")] = None,
    categories: Categories = None,
    drop: Drop = None,
    dates: Dates = None,
    unit: Annotated[
        str | None,
        typer.Option(help="Column of the person or thing that a row is of: rows of one stay together."),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="regression or classification; guessed if not given.")
    ] = None,
    missing: Annotated[
        str,
        typer.Option(
            help="refuse missing values; median: fill numbers by their median, tell which in a column of its "
            "own, and give categories a level 'missing'; median-alone: fill numbers by their median and "
            "categories by their commonest level."
        ),
    ] = "refuse",
    out: Annotated[Path | None, typer.Option(help="File to write; the screen by default.")] = None,
) -> None:
    """Draft what all sites agree on before a federated run: columns, levels, units, bounds, training."""
    import dataclasses

    from bidro.deploy.schema_file import draft
    from bidro.report.files import require_file_place, write_text
    from bidro.tables import learn_schema, read_one
    from bidro.tables.schema import require_measure
    from bidro.workflow.options import check_task

    check_task(task, missing)
    if measured_in is not None:
        require_measure(measured_in)
    if out is not None:
        require_file_place(out)
    rows = read_one(table)
    if client not in rows:
        rows = rows.assign(**{client: table.stem})
    kinds = (names_in(names) or () for names in (categories, drop, dates))
    learned = learn_schema(rows, client, target, names_in(features), task, missing, unit, *kinds)
    text = draft(dataclasses.replace(learned, measured_in=measured_in), rows)
    if out is None:
        print(text, end="")
        return
    write_text(out, text)
    print(f"Written to {out}: see to units, bounds and [training], and let every site keep the same copy.")


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
    client: Annotated[
        str | None, typer.Option(help="With --local and without a schema: column that names the client.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="With --local and without a schema: column to be predicted.")
    ] = None,
    measured_in: Annotated[
        str | None,
        typer.Option(help="With --local and without a schema: what the target is counted in, such as days."),
    ] = None,
    unit: Annotated[
        str | None, typer.Option(help="With --local: column of the person or thing that a row is of.")
    ] = None,
    categories: Annotated[
        str | None,
        typer.Option(help="With --local and without a schema: columns that are categories, by commas."),
    ] = None,
    drop: Annotated[
        str | None, typer.Option(help="With --local and without a schema: columns to leave out, by commas.")
    ] = None,
    dates: Annotated[
        str | None,
        typer.Option(
            help="With --local and without a schema: columns of dates, which count as days since 1970-01-01."
        ),
    ] = None,
    missing: Annotated[
        str | None,
        typer.Option(help="With --local and without a schema: refuse, median or median-alone. [refuse]"),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="With --local: every client's privacy budget, with delta = 1e-6, to rehearse it."),
    ] = None,
    certify: Annotated[
        Path | None,
        typer.Option(
            help="Train nothing, and certify the model in this ONNX file: sites that allow it run it on rows "
            "that they keep out, and tell bounds alone."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a model that is in --out already.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
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

    from bidro.cli.output import said_lines
    from bidro.deploy.certified import job_to_certify
    from bidro.deploy.drive import driven, require_engine
    from bidro.deploy.job import Config, agreement_in
    from bidro.deploy.rehearsal import rehearsed, split_by_client
    from bidro.errors import BidroError
    from bidro.privacy.terms import Budget
    from bidro.tables.learned import require_filling
    from bidro.tables.schema import require_measure
    from bidro.workflow.fit import require_place, write_folder

    if out is None:
        raise click.UsageError("Name the folder for the model: --out DIR.")
    if local is None and config is None:
        raise click.UsageError(
            "Give a configuration, or rehearse with --local TABLE --client COLUMN --target COLUMN."
        )
    agreed = agreement_in(config) if local is not None else None
    if local is not None and agreed is None and (client is None or target is None):
        raise click.UsageError(
            "A rehearsal needs --client COLUMN and --target COLUMN, or a configuration that names a schema."
        )
    kinds = (categories, drop, dates, missing)
    if agreed is not None and any(one is not None for one in (client, target, measured_in, unit, *kinds)):
        raise click.UsageError(
            "The schema says which columns these are; leave --client, --target, --measured-in, --unit, "
            "--categories, --drop, --dates, --missing out."
        )
    if local is None and any(one is not None for one in kinds):
        raise click.UsageError(
            "--categories, --drop, --dates and --missing are for a rehearsal; between sites the agreed "
            "schema says what columns are."
        )
    if missing is not None:
        require_filling(missing)
    if local is None and unit is not None:
        raise click.UsageError("--unit is for a rehearsal; between sites the agreed schema names the unit.")
    if local is None and measured_in is not None:
        raise click.UsageError("--measured-in is for a rehearsal; between sites the agreed schema says it.")
    if measured_in is not None:
        require_measure(measured_in)
    if local is None and epsilon is not None:
        raise click.UsageError("--epsilon is for a rehearsal; between sites each has a budget of its own.")
    budget = None if epsilon is None else Budget(epsilon)
    require_engine(engine)
    require_place(out, force)
    name = out.resolve().name if run is None else run
    with said_lines(quiet=json) as say, tempfile.TemporaryDirectory(prefix="bidro-") as scratch:
        sites = None
        if local is not None:
            if resume:
                raise click.UsageError("A rehearsal leaves nothing to resume; begin it again.")
            sites = split_by_client(
                local,
                client,
                target,
                Path(scratch),
                one_sample_replies,
                unit,
                agreed,
                budget,
                measured_in,
                missing or "refuse",
                *(names_in(names) or () for names in (categories, drop, dates)),
            )
        whole = Config.read(config, name, sites, resume)
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
            files = driven(whole.job, engine, whole.engines[engine], say)
        else:
            raise BidroError(f"'{config}' has no [{engine}] part that says how to reach the network.")
        write_folder(out, dict(files))
    if certify is not None:
        _print_certified(out, json)
    elif whole.job.agreed.neural_network is not None:
        _print_network(out, json)
    else:
        _print(out, json)


def audit(
    model: Annotated[Path, typer.Argument(help="Model folder that `bidro federate` wrote.")],
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """What left the sites in a federated run: each kind of message, its size, its rows, what it reveals."""
    import json as plain_json

    from bidro.deploy.audit import in_words, read_audit

    found = read_audit(model)
    print(plain_json.dumps(found, indent=2) if json else in_words(found))


def _print_certified(out: Path, as_json: bool) -> None:
    from bidro.guarantees.certificate import Certificate

    text = (out / "certificate.json").read_text()
    if as_json:
        print(text, end="")
        return
    print(Certificate.from_json(text))
    print(f"\nWritten to {out}: open {out / 'report.html'} in a browser.")
    print(f"What left the sites: bidro audit {out}")


def _print_network(out: Path, as_json: bool) -> None:
    import json as plain_json

    from bidro.deploy.audit import read_audit
    from bidro.guarantees.certificate import Certificate
    from bidro.networks.folder import CERTIFICATE_FILE, ONNX_FILE, load_network

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
        print(plain_json.dumps(summary, indent=2, allow_nan=False))
        return
    count = sum(one.size for one in found.weights.values())
    print(f"Trained the network of '{found.factory}', {count:,} weights, by {rounds} messages from sites.")
    print("No rows were kept out, so that nothing is stated of it." if certificate is None else certificate)
    print(f"\nWritten to {out}: bidro.load_network reads it, and runs nothing.")
    print(found.no_onnx or f"For other programs: {out / ONNX_FILE}")
    print(f"What left the sites: bidro audit {out}")


def _print(out: Path, as_json: bool) -> None:
    import json as plain_json

    from bidro.cli.output import SETTINGS_SHOWN
    from bidro.deploy.audit import read_audit
    from bidro.guarantees.certificate import Certificate
    from bidro.model_file import load_model
    from bidro.workflow.options import FitOptions

    certificate = Certificate.from_json((out / "certificate.json").read_text())
    audit, settings = read_audit(out), load_model(out).settings
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
        print(plain_json.dumps(summary, indent=2, allow_nan=False))
        return
    gap, wanted = settings["gap"], FitOptions.from_toml(out / "run.toml").gap
    words = "without a certified gap" if gap is None else f"to a certified gap of {gap:.1e}"
    if gap is not None and settings["surrogate"] is not None:
        words += " of a surrogate for the worst case"
    if gap is not None and gap > wanted:
        words += f", SHORT of the {wanted:.1e} that was asked for"
    print(f"Trained in {audit['rounds']} rounds {words}.")
    print("\n".join(settings["chosen"].values()))
    print(certificate)
    print(f"\nWritten to {out}: open {out / 'report.html'} in a browser.")
    print(f"What left the sites: bidro audit {out}")
    for concern in settings["concerns"]:
        print(f"CONCERN: {concern}")


def _evaluation(out: Path) -> dict[str, Any]:
    """How the clients fare on rows kept out, or on training rows, as the report page has it."""
    import json as plain_json

    content = plain_json.loads((out / "report.json").read_text())
    clients = {client.pop("name"): client for client in content["clients"]}
    on = "rows kept out" if content["held_out_rows"] else "training rows"
    return {"on": on, **content["overall"], "clients": clients}
