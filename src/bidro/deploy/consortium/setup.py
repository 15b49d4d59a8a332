"""A site, or the server, from its kit: one folder with all that it needs, and a service of systemd.

site.toml, schema.toml   what the site's owner decides, and what all have agreed on
kit/                     who it is in the network: its key
state/, cache/           what it remembers; compiled programs
environment              variables of the service, such as a database's password
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bidro.core.errors import BidroError
from bidro.core.files import write_text
from bidro.data.tables import Query, Source
from bidro.deploy.agreement.agreement import Agreement
from bidro.deploy.consortium.kits import FEDERATE, PARTS, SCHEMA, Kit, days_left, unpacked
from bidro.deploy.site.disclosure.rules import RELEASES, Release
from bidro.workflow.options import toml

SITE = "site.toml"
_ENVIRONMENT = "environment"
# Folders that a service sees only where its unit says so.
_HOMES = ("/home", "/root", "/run/user")
Say = Callable[[str], None]


def set_up_site(
    kit: Path,
    source: Source | None,
    person: str | None,
    folder: Path,
    user: str,
    ask: bool,
    release: str | None,
    health: int | None,
    say: Say,
) -> Path:
    """Make the folder of a site, and its unit; that is returned. Where there is a `site.toml`, the kit alone
    is replaced, as for a renewed certificate.

    Raises BidroError for a kit that is not a site's or has expired, a table that is not there, and a person
    who is not the one agreed on, before a service is started.
    """
    fresh = not (folder / SITE).exists()
    if release is not None and release not in RELEASES:
        raise BidroError(
            f"--release, the most that may leave, is one of {', '.join(RELEASES)}; got {release!r}."
        )
    if fresh and source is None:
        raise BidroError("Name the site's table: --table visits.parquet, or --database with --query.")
    if not fresh and source is not None:
        raise BidroError(
            f"'{folder / SITE}' is there already: change it there; without a table, init replaces the kit."
        )
    if isinstance(source, Path) and not source.is_file():
        raise BidroError(f"There is no file '{source}'.")
    about = _taken(kit, folder, False, say)
    if fresh:
        agreed = Agreement.read(folder / SCHEMA)
        if person != agreed.schema.person:
            named, given = (f"'{one}'" if one else "no column" for one in (agreed.schema.person, person))
            raise BidroError(
                f"The agreement names {named} as the person that a row is of, and --person names {given}: "
                "agree on one, person in schema.toml, or leave --person out where every row is another's."
            )
        write_text(folder / SITE, _site_toml(about, source, ask, release or _most_of(agreed)))
    return _finished(about, folder, user, health, _visible(source), say)


def set_up_server(kit: Path, folder: Path, user: str, health: int | None, say: Say) -> Path:
    """Make the folder of the server, and its unit; that is returned. Raises BidroError as `set_up_site`."""
    about = _taken(kit, folder, True, say)
    (folder / "runs").mkdir(exist_ok=True, mode=0o700)
    if about.engine == "flower":
        from bidro.deploy.transport.flower.kit import proxy

        write_text(folder / "nginx.conf", proxy(about.host, about.port, (folder / PARTS).resolve()))
        say(
            f"The sites' part of the server is passed on by nginx: link '{folder / 'nginx.conf'}' into "
            "/etc/nginx/sites-enabled and reload it. The lead works here, as this service's user: "
            f"bidro federate {folder / FEDERATE} --engine flower --out MODEL."
        )
    else:
        (folder / FEDERATE).unlink(missing_ok=True)  # the lead has it
    return _finished(about, folder, user, health, (), say)


def _taken(kit: Path, folder: Path, server: bool, say: Say) -> Kit:
    about = unpacked(kit, folder)
    if about.of_server != server:
        right = "bidro consortium server" if about.of_server else "bidro site init"
        raise BidroError(f"'{kit}' is the kit of {_who(about)}: set that up by `{right}`.")
    if about.engine == "flare":
        from bidro.deploy.transport.flare.kit import sealed

        say(sealed(folder / PARTS, str((folder / "state" / "flare").resolve()) if server else None))
    elif (left := days_left(folder)) is not None and left < 0:
        raise BidroError(f"The certificate in '{kit}' has expired: ask the coordinator for a new kit.")
    return about


def _who(about: Kit) -> str:
    return "the server" if about.of_server else f"site '{about.name}'"


def _most_of(agreed: Agreement) -> Release:
    """The most that a site permits where its owner says nothing: trust in the server takes a word of his."""
    return "moments" if agreed.release == "trusted" else agreed.release


def _site_toml(about: Kit, source: Source | None, ask: bool, release: str) -> str:
    if isinstance(source, Query):
        rows = [f"data = {toml(source.database)}", f"query = {toml(source.query)}"]
    else:
        rows = [f"data = {toml(str(Path(source or '').resolve()))}"]
    lines = [
        "# What the owner of this site decides; paths are relative to this file.",
        f"client = {toml(about.name)}",
        *rows,
        f"schema = {toml(SCHEMA)}",
        'state = "state"',
        '# "ask": every run waits for its owner: `bidro site page`, or `bidro site approve`.',
        f"approve = {toml('ask' if ask else 'always')}",
        '# The most that may leave, whatever is agreed on: sums with noise alone ("private"), second moments',
        '# too ("moments"), or what the algorithm asks, to a server that is trusted ("trusted").',
        f"release = {toml(release)}",
    ]
    lines += [
        "# Under this budget noise is added; it is for all that leaves.",
        "[privacy]",
        "epsilon = 1.0",
    ] * (release == "private")
    return "\n".join([*lines, ""])


def _visible(source: Source | None) -> tuple[str, ...]:
    """Folders of homes that the service must see to read the table."""
    path = str(source.resolve()) if isinstance(source, Path) else ""
    return tuple(home for home in _HOMES if path.startswith(f"{home}/"))


def _finished(
    about: Kit, folder: Path, user: str, health: int | None, homes: Sequence[str], say: Say
) -> Path:
    folder = folder.resolve()
    for name in ("state", "cache"):
        (folder / name).mkdir(exist_ok=True, mode=0o700)
    environment = folder / _ENVIRONMENT
    if not environment.exists():
        write_text(environment, "# Variables of the service, a line each, such as VISITS_PASSWORD=...\n")
    unit = folder / f"bidro-{about.name if about.of_server else f'site-{about.name}'}.service"
    write_text(unit, unit_of(about, folder, user, health, bool(homes)))
    _give(folder, user)
    say(f"Set up {_who(about)} in '{folder}'.")
    return unit


def _give(folder: Path, user: str) -> None:
    """Let the service's user, who is made where there is none, read what is in the folder, and write to the
    folders in it alone. What root does here never follows a link that the service has left."""
    if os.geteuid() != 0:
        if user != (own := pwd.getpwuid(os.geteuid()).pw_name):
            raise BidroError(
                f"Only root can set up a service for another user: run this as root, or say --user {own}."
            )
    else:
        try:
            pwd.getpwnam(user)
        except KeyError:
            _call("useradd", "--system", "--home-dir", str(folder), "--shell", "/usr/sbin/nologin", user)
    known = pwd.getpwnam(user)
    for one in folder.iterdir():
        if one.is_dir() and not one.is_symlink():
            for path in (one, *one.rglob("*")):
                os.lchown(path, known.pw_uid, known.pw_gid)
        else:
            os.lchown(one, os.geteuid(), known.pw_gid)
            # Systemd reads the variables as root.
            one.chmod(0o600 if one.name == _ENVIRONMENT else 0o640)
    os.lchown(folder, os.geteuid(), known.pw_gid)
    folder.chmod(0o750)


def unit_of(about: Kit, folder: Path, user: str, health: int | None, homes: bool) -> str:
    """The service, which may write to its folder and nowhere else, and sees homes where a table is there."""
    group = "consortium serve" if about.of_server else "site run"
    what = "server" if about.of_server else f"site {about.name}"
    port = "" if health is None else f" --health {health}"
    engine = {"flare": "NVIDIA FLARE", "flower": "Flower"}[about.engine]
    return f"""\
[Unit]
Description=bidro {what} ({engine})
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
User={user}
EnvironmentFile=-{folder / _ENVIRONMENT}
ExecStart={_executable()} {group} {folder}{port}
Restart=always
RestartSec=5
KillMode=control-group
NoNewPrivileges=true
ProtectSystem=strict
ProtectHome={"read-only" if homes else "true"}
PrivateTmp=true
PrivateDevices=true
ReadWritePaths={folder}
UMask=0077

[Install]
WantedBy=multi-user.target
"""


def _executable() -> str:
    beside = Path(sys.executable).with_name("bidro")
    found = str(beside) if beside.exists() else shutil.which("bidro")
    if found is None:
        raise BidroError("The command `bidro` is not installed where this Python is; install the package.")
    return found


def start(unit: Path, units: Path, say: Say) -> None:
    """Let systemd start the service now, and with the machine. Raises BidroError where it does not."""
    write_text(units / unit.name, unit.read_text("utf-8"))
    _call("systemctl", "daemon-reload")
    _call("systemctl", "enable", unit.stem)
    _call("systemctl", "restart", unit.stem)
    say(f"Started the service {unit.stem}: journalctl -u {unit.stem} shows what it says.")


def checked(folder: Path, user: str) -> str:
    """What `bidro site check --quick` says as the service's user, who must be able to read the table."""
    command = [_executable(), "site", "check", "--quick", "--site", str(folder / SITE)]
    as_user: dict[str, Any] = {}
    if os.geteuid() == 0:
        known = pwd.getpwnam(user)
        groups = os.getgrouplist(user, known.pw_gid)
        as_user = {"user": known.pw_uid, "group": known.pw_gid, "extra_groups": groups}
    place = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run(
        command, env=place, cwd=folder, capture_output=True, text=True, check=False, **as_user
    )
    if done.returncode != 0:
        raise BidroError(
            f"{done.stderr.strip().removeprefix('bidro: ')} See to it, and run `bidro site check` again."
        )
    return done.stdout.strip()


def _call(*command: str) -> None:
    if shutil.which(command[0]) is None:
        raise BidroError(
            f"There is no '{command[0]}' on this machine; do by hand what `{' '.join(command)}` does."
        )
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BidroError(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.stdout.strip()}")
