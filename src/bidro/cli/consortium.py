"""`bidro consortium`: what the coordinator and the server's operator do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bidro.fit.settings import names_in

app = typer.Typer(
    help="Set up a consortium: kits for its sites, and its server.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

FOLDER, UNITS = Path("/var/lib/bidro"), Path("/etc/systemd/system")
ServiceFolder = Annotated[Path, typer.Option(help="Folder that the service reads and writes.")]
ServiceUser = Annotated[str, typer.Option(help="User whom the service runs as; made where there is none.")]
Start = Annotated[bool, typer.Option("--start", help="Start the service now, and with the machine; as root.")]
Units = Annotated[Path, typer.Option(help="Folder in which systemd looks for services.")]
HealthPort = Annotated[
    int | None, typer.Option("--health", help="Port of this machine at which /health answers.")
]


def started(unit: Path, start: bool, units: Path) -> None:
    """Start the service, or say how."""
    from bidro.deploy.consortium import setup

    if start:
        setup.start(unit, units, print)
        return
    print(f"Its service is {unit}: --start starts it, or systemctl enable --now {unit}.")


@app.command(
    epilog="Example: `bidro consortium init --agreement schema.toml --sites north,south,west --server "
    "fl.example.org`"
)
def init(
    agreement: Annotated[Path, typer.Option(help="schema.toml that the sites have agreed on.")],
    sites: Annotated[str, typer.Option(help="Names of the sites, by commas.")],
    server: Annotated[str, typer.Option(help="Name or address of the server's machine, as sites reach it.")],
    port: Annotated[int, typer.Option(help="Its one open port.")] = 8002,
    engine: Annotated[str, typer.Option(help="flare or flower.")] = "flare",
    out: Annotated[Path, typer.Option(help="Folder of the consortium; keep it offline.")] = Path(
        "consortium"
    ),
) -> None:
    """Make an authority, a kit for the server and for every site, and federate.toml for the lead. Called
    again it makes new kits under the same authority: to renew them, or for more sites."""
    from bidro.deploy.consortium.kits import FEDERATE, make_kits

    for path in make_kits(out, agreement, engine, server, port, names_in(sites)):
        print(f"Kit: {path}")
    print(
        "Each holds a key, and what was agreed on: hand it to its participant alone, by a safe way.\n"
        f"The lead trains by `bidro federate {out / FEDERATE} --engine {engine} --out MODEL`.\n"
        f"Who has {out / 'authority'} can be anybody: keep it offline; only adding and renewing needs it."
    )


@app.command(epilog="Example: `bidro consortium server --kit server.zip --start`")
def server(
    kit: Annotated[Path, typer.Option(help="The server's kit.")],
    folder: ServiceFolder = FOLDER,
    user: ServiceUser = "bidro",
    health: HealthPort = None,
    start: Start = False,
    units: Units = UNITS,
) -> None:
    """Set the server up from its kit: its folder and a service. Where it is set up already, its kit is
    replaced."""
    from bidro.deploy.consortium.setup import set_up_server

    started(set_up_server(kit, folder, user, health, print), start, units)


@app.command(epilog="Example: `bidro consortium serve /var/lib/bidro`")
def serve(folder: Annotated[Path, typer.Argument()] = FOLDER, health: HealthPort = None) -> None:
    """Be the server: what its service runs. What changes is a line of JSON on standard output."""
    from bidro.deploy.consortium.service import run

    raise typer.Exit(run(folder, health))
