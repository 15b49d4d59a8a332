"""`bidro runs`: the runs that a server keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="runs",
    help="List, show and delete the runs that a server keeps. For the server's own user, on its machine.",
    no_args_is_help=True,
)

_Folder = Annotated[
    Path | None,
    typer.Option("--folder", help="Folder of the runs; by default that of BIDRO_RUNS."),
]
_Json = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]


@app.command("list", epilog="Example: `bidro runs list`")
def list_runs(folder: _Folder = None, json: _Json = False) -> None:
    """All runs, the latest first: done, failed, cut off or going on, and what is kept of what sites sent."""
    import json as plain_json

    from bidro.deploy.runs import listed, runs_folder

    found = listed(runs_folder() if folder is None else folder)
    if json:
        print(plain_json.dumps([run.to_dict() for run in found], indent=2))
        return
    for run in found:
        kept = f"{run.record_bytes:,} bytes from sites" if run.record_bytes else "nothing from sites"
        print(f"{run.name}: {run.state}, begun {run.began:%Y-%m-%d %H:%M}, keeps {kept}")
    if not found:
        print("There are no runs.")


@app.command(epilog="Example: `bidro runs show stay-model`")
def show(run: str, folder: _Folder = None, json: _Json = False) -> None:
    """One run: how far it came, why it failed, and the last lines that it said."""
    import json as plain_json

    from bidro.deploy.followed import said_so_far
    from bidro.deploy.runs import find, runs_folder

    runs = runs_folder() if folder is None else folder
    found, said = find(runs, run), said_so_far(run, str(runs))
    if json:
        print(plain_json.dumps({**found.to_dict(), "said": said.last, "now": said.now}, indent=2))
        return
    print(f"{found.name}: {found.state}")
    print(f"begun {found.began:%Y-%m-%d %H:%M}, last changed {found.changed:%Y-%m-%d %H:%M} (UTC)")
    print(f"keeps {found.record_bytes:,} bytes that sites sent")
    if found.why:
        print(f"failed: {found.why}")
    for line in [*said.last, said.now]:
        print(f"  {line}")


@app.command(epilog="Examples: `bidro runs delete stay-model`, `bidro runs delete --older-than 7`")
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

    from bidro.deploy import runs as kept

    if (run is None) == (older_than is None):
        raise click.UsageError("Name one run, or give --older-than DAYS.")
    runs = kept.runs_folder() if folder is None else folder
    if run is not None:
        kept.delete(runs, run)
        print(f"Deleted {run}.")
        return
    names = kept.expire(runs, older_than)
    print(f"Deleted {', '.join(names)}." if names else "There is nothing so old.")
