"""`bidro site`: what a site's owner sees and decides, at the site and without any server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bidro.cli.use import AsJson

if TYPE_CHECKING:
    from bidro.deploy.site_config import Site

app = typer.Typer(
    help="At a site: what it would answer, what it has answered, and whether a run may begin.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Configuration = Annotated[
    Path | None, typer.Option("--site", help="The site's site.toml; else the one that BIDRO_SITE names.")
]


@app.command(epilog="Example: `bidro site check --site site.toml`")
def check(
    site: Configuration = None,
    json: AsJson = False,
) -> None:
    """Say which levels and pairs of levels are too rare, how many folds the site's rules allow, and whether
    a run would be answered. Nothing leaves, and nothing is remembered."""
    import json as plain_json

    from bidro.deploy.agreed import Agreed
    from bidro.deploy.promised import said_to_owner
    from bidro.deploy.site_rows import check_site, state_of

    chosen = _site(site)
    promised = said_to_owner(chosen, state_of(chosen), Agreed.read(chosen.schema).units_drafted)
    if chosen.privacy is not None and not json:
        print(
            f"This site has a privacy budget (epsilon = {chosen.privacy.epsilon:g}, delta = "
            f"{chosen.privacy.delta:g}): private runs are answered whatever rows it has, until that is spent "
            "(`bidro ledger`), and no others. What follows would hold without it."
        )
    found = check_site(chosen)
    if json:
        print(plain_json.dumps({**found.as_json(), "promised": promised}, indent=2))
        return
    print("\n".join([*promised, found.in_words()]))


@app.command(epilog="Example: `bidro site log --run stay-2026`")
def log(
    site: Configuration = None,
    run: Annotated[str | None, typer.Option(help="Of this run alone.")] = None,
    json: AsJson = False,
) -> None:
    """Show every question that the site answered or refused: when, for which run, over how many rows, how
    many bytes left; and the runs that wait for approval."""
    import json as plain_json

    from bidro.deploy.site_rows import site_log

    kept = site_log(_site(site))
    entries, waiting = kept.entries(run), kept.waiting()
    if json:
        content = {
            "questions": [entry._asdict() for entry in entries],
            "waiting": [run for run, _ in waiting],
        }
        print(plain_json.dumps(content, indent=2))
        return
    for entry in entries:
        print(_line(entry._asdict()))
    if not entries:
        print("Nothing was asked.")
    for name, since in waiting:
        print(
            f"waiting since {since}: run '{_plain(name)}'; `bidro site approve {_plain(name)}` lets it begin"
        )


@app.command(epilog="Example: `bidro site approve stay-2026`")
def approve(
    run: Annotated[str, typer.Argument(help="The run's name, as `bidro site log` shows it.")],
    site: Configuration = None,
) -> None:
    """Let a run begin at a site with `approve = "ask"`."""
    from bidro.deploy.site_rows import site_log

    site_log(_site(site)).approve(run)
    print(f"Run '{run}' may begin, or go on, at this site.")


def ledger(
    site: Annotated[
        Path | None, typer.Argument(help="The site's site.toml; else the one that BIDRO_SITE names.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Show what a site with a privacy budget has released: to which run, when, for how much, and what is
    left."""
    import json as plain_json

    from bidro.deploy.private_answers import ledger_of
    from bidro.deploy.promised import said_to_owner
    from bidro.deploy.site_rows import state_of
    from bidro.deploy.spent import in_words, spent_content
    from bidro.errors import BidroError

    chosen = _site(site)
    promised = said_to_owner(chosen, state_of(chosen))
    if chosen.privacy is None:
        raise BidroError(
            " ".join(
                ["This site has no privacy budget: set one by a part [privacy] in its site.toml.", *promised]
            )
        )
    found = spent_content(ledger_of(chosen), chosen.privacy, promised)
    print(plain_json.dumps(found, indent=2) if json else in_words(found))


def _site(path: Path | None) -> Site:
    from bidro.deploy.site import VARIABLE
    from bidro.deploy.site_config import Site
    from bidro.errors import BidroError

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
        over = f"over at least {entry['rows']} rows" if entry["rows"] else "with noise"
        return f"{head}answered {over}, {entry['bytes']:,} bytes"
    if entry["outcome"] == "refused":
        return f"{head}refused: {_plain(entry['reason'])}"
    return f"{head}asked; the site stopped before it answered"


def _plain(text: object) -> str:
    return "".join(c if c.isprintable() else "?" for c in str(text))[:500]
