"""`bidro site`: what a site's owner sees and decides, at the site and without any server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bidro.cli.consortium import FOLDER, UNITS, HealthPort, ServiceFolder, ServiceUser, Start, Units, started
from bidro.cli.options import AsJson
from bidro.cli.output import print_json, print_result
from bidro.core.errors import BidroError

if TYPE_CHECKING:
    from bidro.deploy.site.config import Site

app = typer.Typer(
    help="At a site: what it would answer, what it has answered, and whether a run may begin.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

_Run = Annotated[str, typer.Argument(help="The run's name, as `bidro site log` shows it.")]
Configuration = Annotated[
    Path | None, typer.Option("--site", help="The site's site.toml; else the one that BIDRO_SITE names.")
]


@app.command(
    epilog="Examples: `bidro site init --kit north.zip --table visits.parquet --person patient --start`; "
    "with a renewed kit `bidro site init --kit north.zip --start`"
)
def init(
    kit: Annotated[Path, typer.Option(help="The kit that the coordinator made for this site.")],
    table: Annotated[Path | None, typer.Option(help="CSV or Parquet: this site's rows.")] = None,
    database: Annotated[
        str | None, typer.Option(help="In place of a table: postgresql://user:${VARIABLE}@host/name.")
    ] = None,
    query: Annotated[str | None, typer.Option(help="Of the database: 'select ...'.")] = None,
    person: Annotated[
        str | None, typer.Option(help="Column of the person that a row is of, as in the agreement.")
    ] = None,
    ask: Annotated[bool, typer.Option("--ask", help="Let every run wait for your approval.")] = False,
    release: Annotated[
        str | None,
        typer.Option(help="The most that may leave: private, moments or trusted. [as agreed, never trusted]"),
    ] = None,
    folder: ServiceFolder = FOLDER,
    user: ServiceUser = "bidro",
    health: HealthPort = None,
    start: Start = False,
    units: Units = UNITS,
) -> None:
    """Set this site up from its kit: its folder, what you decide (site.toml), and a service. Then the table
    is looked at, as by `bidro site check --quick`. Where the site is set up already, its kit is replaced."""
    from bidro.data.tables import query_in
    from bidro.deploy.consortium import setup

    of_database = {"database": database, "query": query}
    source = query_in(of_database, Path(), "A site") or table
    if source is not None and table is not None and source is not table:
        raise BidroError("Give a table, or a database with a query, and not both.")
    unit = setup.set_up_site(kit, source, person, folder, user, ask, release, health, print)
    print(setup.checked(folder.resolve(), user))
    started(unit, start, units)


@app.command(epilog="Example: `bidro site run /var/lib/bidro`")
def run(folder: Annotated[Path, typer.Argument()] = FOLDER, health: HealthPort = None) -> None:
    """Take part: what the site's service runs. What changes is a line of JSON on standard output."""
    from bidro.deploy.consortium.service import run as run_service

    raise typer.Exit(run_service(folder, health))


@app.command(epilog="Example: `bidro site seal kits/bidro/prod_00/north`")
def seal(
    kit: Annotated[Path, typer.Argument(help="Folder of a FLARE startup kit.")],
    storage: Annotated[
        str | None, typer.Option(help="Of a server's kit: absolute path of the folder for its jobs.")
    ] = None,
) -> None:
    """Let a FLARE startup kit that bidro did not make allow bidro's jobs and nothing else: no code, no shell
    commands. Say until when its certificate is valid; fail for one that has expired."""
    from bidro.core.errors import require_package

    require_package("nvflare", "flare", "A FLARE kit")
    from bidro.deploy.transport.flare.kit import sealed

    print(sealed(kit, storage))


@app.command(epilog="Example: `bidro site check --site site.toml`")
def check(
    site: Configuration = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Count only, without a rehearsal, which takes as long as a run.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Say which levels and pairs of levels are too rare, how many folds the site's rules allow, which columns
    look as if they were in another unit, and whether a run would be answered, by a rehearsal with this site
    alone. Nothing leaves, and nothing is remembered."""
    from bidro.deploy.agreement.agreement import Agreement
    from bidro.deploy.site.check import check_site
    from bidro.deploy.site.ledger import said_to_owner
    from bidro.deploy.site.rows import state_of

    chosen = _site(site)
    promised = said_to_owner(chosen, state_of(chosen), Agreement.read(chosen.schema).units_drafted)
    if chosen.privacy is not None and not json:
        print(
            f"This site has a privacy budget (epsilon = {chosen.privacy.epsilon:g}, delta = "
            f"{chosen.privacy.delta:g}): private runs are answered whatever rows it has, until that is spent "
            "(`bidro ledger`), and no others. Levels, folds and moments below are what rules without it say."
        )
    found = check_site(chosen, rehearse=not quick)
    words = "\n".join([*promised, found.in_words()])
    print_result({**found.as_json(), "promised": promised}, words, json)


@app.command(epilog="Example: `bidro site key --site site.toml`")
def key(site: Configuration = None) -> None:
    """Show this site's public key, a line for [privacy.shared.keys] of schema.toml: where noise is shared,
    sums are masked by these keys, and all sites agree on all of them."""
    from bidro.deploy.site.masked import site_key
    from bidro.workflow.options import toml

    chosen = _site(site)
    print(f"{toml(chosen.client)} = {toml(site_key(chosen).public.hex())}")


@app.command(epilog="Example: `bidro site log --run stay-2026`")
def log(
    site: Configuration = None,
    run: Annotated[str | None, typer.Option(help="Of this run alone.")] = None,
    json: AsJson = False,
) -> None:
    """Show every question that the site answered or refused: when, for which run, over how many rows, how
    many bytes left; the runs that wait for approval, and what the owner has decided."""
    from bidro.deploy.site.rows import site_log

    kept = site_log(_site(site))
    entries, waiting, decided = kept.entries(run), kept.waiting(), kept.decisions()
    if json:
        content = {
            "questions": [entry._asdict() for entry in entries],
            "waiting": [run for run, _ in waiting],
            "decisions": [one._asdict() for one in decided],
        }
        print_json(content)
        return
    for entry in entries:
        print(_line(entry._asdict()))
    if not entries:
        print("There were no requests.")
    for one in decided:
        until = f" until {one.until}, by agreement {one.agreed[:12]}" if one.outcome == "approved" else ""
        table = f" and with table {one.table}" if one.table else ""
        print(f"{one.time} run '{_plain(one.run)}' {one.outcome} by the owner{until}{table}")
    for name, since in waiting:
        print(
            f"waiting since {since}: run '{_plain(name)}'; `bidro site approve {_plain(name)}` lets it "
            "begin, `bidro site refuse` does not"
        )


@app.command(epilog="Example: `bidro site approve stay-2026 --days 7`")
def approve(
    run: _Run,
    site: Configuration = None,
    days: Annotated[int, typer.Option(help="For how many days the run may be answered.")] = 30,
) -> None:
    """Let a run begin at a site with `approve = "ask"`: by the agreement and with the table that the site has
    now, for some days."""
    from bidro.deploy.site.page import decide

    done = decide(_site(site), "approve", run, days)
    assert done is not None
    what = "agreement and the table" if done.table else "agreement"
    print(
        f"Run '{run}' may begin, or go on, at this site until {done.until}, by the {what} that it has now: "
        "another needs another approval."
    )


@app.command(epilog="Example: `bidro site refuse stay-2026`")
def refuse(run: _Run, site: Configuration = None) -> None:
    """Answer nothing more to a run, also at a site that answers runs without asking its owner."""
    from bidro.deploy.site.page import decide

    decide(_site(site), "refuse", run)
    print(f"Run '{run}' is answered nothing more; `bidro site withdraw {run}` takes that back.")


@app.command(epilog="Example: `bidro site withdraw stay-2026`")
def withdraw(run: _Run, site: Configuration = None) -> None:
    """Take back that a run was approved, or refused; what it was answered before stays answered."""
    from bidro.deploy.site.page import decide

    was = decide(_site(site), "withdraw", run)
    assert was is not None
    print(f"Run '{run}' is no longer {was.outcome}.")


@app.command(epilog="Example: `sudo -u bidro bidro site page --site /var/lib/bidro/site.toml`")
def page(
    site: Configuration = None,
    port: Annotated[int, typer.Option(help="Of this machine; 0 for one that is free.")] = 0,
) -> None:
    """Serve the owner's page on this machine, for a browser: what waits for approval and what that would
    send, what has left, the budget. Whoever has its address can decide for you; Ctrl-C ends it."""
    from bidro.deploy.consortium.kits import ABOUT, days_left, kit_in
    from bidro.deploy.site.page import Page

    chosen = _site(site)
    folder = chosen.schema.parent
    asks = kit_in(folder).host if (folder / ABOUT).exists() else ""
    with Page(chosen, port, days_left(folder), asks) as served:
        print(f"Open this address, and tell it to nobody: {served.address}", flush=True)
        try:
            served.serve_forever()
        except KeyboardInterrupt:
            print("The page is closed.")


def ledger(
    site: Annotated[
        Path | None, typer.Argument(help="The site's site.toml; else the one that BIDRO_SITE names.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Show what a site with a privacy budget has released: to which run, when, for how much, and what is
    left."""
    from bidro.deploy.site.answers import ledger_of
    from bidro.deploy.site.ledger import in_words, said_to_owner, spent_content
    from bidro.deploy.site.rows import state_of

    chosen = _site(site)
    promised = said_to_owner(chosen, state_of(chosen))
    if chosen.privacy is None:
        raise BidroError(
            " ".join(
                ["This site has no privacy budget: set one by a part [privacy] in its site.toml.", *promised]
            )
        )
    found = spent_content(ledger_of(chosen), chosen.privacy, promised)
    print_result(found, in_words(found), json)


def _site(path: Path | None) -> Site:
    from bidro.deploy.site.config import Site
    from bidro.deploy.site.session import VARIABLE

    named = os.environ.get(VARIABLE) if path is None else path
    if named is None:
        raise BidroError(
            f"Name the site's configuration: --site site.toml, or the environment variable {VARIABLE}."
        )
    return Site.read(Path(named))


def _line(entry: dict[str, object]) -> str:
    """An entry of the log; names come from the server."""
    times = f" ({entry['times']} times)" if entry["times"] != 1 else ""
    head = (
        f"{entry['time']} run '{_plain(entry['run'])}' {_plain(entry['question'])} {entry['round']}{times}: "
    )
    if entry["outcome"] == "answered":
        without = "by a verdict" if entry["question"] == "check" else "with noise"
        over = f"over at least {entry['rows']} rows" if entry["rows"] else without
        remark = f"; WARNING: {_plain(entry['reason'])}" if entry["reason"] else ""
        return f"{head}answered {over}, {entry['bytes']:,} bytes{remark}"
    if entry["outcome"] == "refused":
        return f"{head}refused: {_plain(entry['reason'])}"
    return f"{head}asked; the site stopped before it answered"


def _plain(text: object) -> str:
    return "".join(c if c.isprintable() else "?" for c in str(text))[:500]
