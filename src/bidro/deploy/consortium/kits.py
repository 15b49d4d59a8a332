"""Kits: what each participant of a consortium is handed, one file each, with its key in it.

`make_kits` is the coordinator's side. It makes the authority once; to call it again in the same folder, with
the same or more sites, is to renew: new keys under the same authority, which work beside the old ones.
`unpacked` is a participant's side.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from bidro.core.errors import BidroError, one_line
from bidro.core.files import json_object, write_text
from bidro.deploy.agreement.agreement import Agreement
from bidro.deploy.transport.drive import require_engine
from bidro.workflow.options import toml

ABOUT, PARTS, SCHEMA = "bidro.json", "kit", "schema.toml"
FEDERATE = "federate.toml"
SERVER = "server"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
# A kit has some twenty small files.
_MOST_FILES, _MOST_BYTES = 500, 32 << 20


@dataclass(frozen=True)
class Kit:
    engine: str  # "flare" or "flower"
    name: str  # of the site, as the consortium calls it; "server"
    host: str  # of the server, and
    port: int  # where sites reach it

    @property
    def of_server(self) -> bool:
        return self.name == SERVER


def make_kits(
    folder: Path, agreement: Path, engine: str, host: str, port: int, sites: Sequence[str]
) -> list[Path]:
    """Kits for the server and every site, in `folder`/kits; `federate.toml`, the agreement and the lead's own
    key in `folder`. Files that are there, and may have been edited, stay.

    Raises BidroError, before anything is written, for an agreement that cannot be read, a name that cannot be
    a site's, and a host that is none.
    """
    require_engine(engine)
    Agreement.read(agreement)
    for name in sites:
        if not _NAME.fullmatch(name) or name in (SERVER, "localhost", "lead"):
            raise BidroError(
                f"A site cannot be called '{one_line(name)}': letters, digits, dashes and underscores only, "
                f"and not '{SERVER}', 'localhost' or 'lead'."
            )
    if not sites or len(set(sites)) < len(sites):
        raise BidroError("Name the sites, each once, by commas: --sites north,south,west.")
    if not _HOST.fullmatch(host):
        raise BidroError(f"'{one_line(host)}' is no name of a machine; give one such as fl.example.org.")
    if engine == "flare":
        from bidro.deploy.transport.flare.kit import provisioned as made
    else:
        from bidro.deploy.transport.flower.kit import provisioned as made
    for part in (folder, folder / "kits"):
        part.mkdir(parents=True, exist_ok=True, mode=0o700)
        part.chmod(0o700)
    if not (folder / SCHEMA).exists():
        write_text(folder / SCHEMA, agreement.read_text("utf-8"))
    elif (folder / SCHEMA).read_bytes() != agreement.read_bytes():
        raise BidroError(
            f"'{folder / SCHEMA}' is another agreement than '{agreement}': sites hold copies of the first; "
            "replace it, if all have agreed to that, or name it."
        )
    paths = []
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        parts = made(folder / "authority", Path(scratch), host, port, sites)
        if not (folder / FEDERATE).exists():
            write_text(folder / FEDERATE, _federate(sites, parts.lead))
        if parts.lead_kit is not None:
            shutil.rmtree(folder / "lead", ignore_errors=True)
            shutil.move(parts.lead_kit, folder / "lead")
        for name, content in parts.kits.items():
            paths.append(folder / "kits" / f"{name}.zip")
            _pack(paths[-1], Kit(engine, name, host, port), content, folder)
    return paths


@dataclass(frozen=True)
class Provisioned:
    """What an engine makes: a folder with each participant's files, and how the lead reaches the network."""

    kits: Mapping[str, Path]
    lead: str  # the part of federate.toml
    lead_kit: Path | None = None  # the lead's own files, where the engine has some


def _federate(sites: Sequence[str], lead: str) -> str:
    return f"""\
# Who takes part, by what agreement, and how the lead reaches the server.
schema = "{SCHEMA}"
clients = {toml(list(sites))}

[network]
# timeout = 60            # seconds a round
# on_client_loss = "wait" # or "continue": go on without a site that does not answer, while there are
# min_clients = 2         # so many
# patience = 3600         # with "wait": seconds before the run stops, to be resumed
# max_weight = 0.5        # no site counts for more than this, however many rows it reports

{lead}"""


def _pack(path: Path, about: Kit, content: Path, folder: Path) -> None:
    """Whole, and for its owner's eyes only: it holds a key."""
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(ABOUT, json.dumps(asdict(about)))
        for name in (SCHEMA, *((FEDERATE,) if about.of_server else ())):
            packed.write(folder / name, name)
        for one in sorted(content.rglob("*")):
            if one.is_file():
                packed.write(one, f"{PARTS}/{one.relative_to(content)}")
    fresh.replace(path)


def unpacked(path: Path, folder: Path) -> Kit:
    """Put the parts of a kit into `folder`/kit, in place of those of an earlier one, and the agreement beside
    it where there is none. Raises BidroError for what is no kit."""
    no_kit = f"'{path}' is no kit of bidro, which `bidro consortium init` makes"
    try:
        with zipfile.ZipFile(path) as packed:
            entries = packed.infolist()
            if len(entries) > _MOST_FILES or sum(one.file_size for one in entries) > _MOST_BYTES:
                raise BidroError(f"{no_kit}: it is too large.")
            about = _about(packed.read(ABOUT).decode(), no_kit)
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                packed.extractall(scratch)  # which keeps to the folder, whatever the names
                for one in Path(scratch).rglob("*"):
                    one.chmod(0o700 if one.is_dir() else 0o600)
                for name in (SCHEMA, FEDERATE):
                    if Path(scratch, name).exists() and not (folder / name).exists():
                        Path(scratch, name).replace(folder / name)
                shutil.rmtree(folder / PARTS, ignore_errors=True)
                Path(scratch, PARTS).replace(folder / PARTS)
                Path(scratch, ABOUT).replace(folder / ABOUT)
    except (OSError, KeyError, ValueError, RuntimeError, zipfile.BadZipFile) as error:
        if isinstance(error, BidroError):
            raise
        raise BidroError(f"{no_kit}: {one_line(error)}.") from error
    return about


def kit_in(folder: Path) -> Kit:
    """The kit that a participant's folder was set up with. Raises BidroError where there is none."""
    path = folder / ABOUT
    if not path.exists():
        raise BidroError(
            f"'{folder}' is not set up: run `bidro site init` or `bidro consortium server` there."
        )
    return _about(path.read_text("utf-8"), f"'{path}' is damaged")


def _about(text: str, otherwise: str) -> Kit:
    content = json_object(text, otherwise)
    try:
        found = Kit(**content)
        sound = found.engine in ("flare", "flower") and isinstance(found.port, int)
        sound = sound and bool(_NAME.fullmatch(found.name) and _HOST.fullmatch(found.host))
    except TypeError:
        sound = False
    if not sound:
        raise BidroError(f"{otherwise}: its '{ABOUT}' says other things than such a file has.")
    return found


def days_left(folder: Path) -> int | None:
    """Days for which the certificate of a participant's kit is valid, below 0 where it has expired; None
    where it has none, as a site's on Flower."""
    from cryptography import x509

    places = ("startup/client.crt", "startup/server.crt", "server.pem")
    for path in (folder / PARTS / place for place in places):
        if path.is_file():
            until = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
            return (until - datetime.now(UTC)).days
    return None
