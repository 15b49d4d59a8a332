"""Startup kits of NVIDIA FLARE that take bidro's jobs and nothing else.

`BidroBuilder` and `BidroCertBuilder` are steps of FLARE's provisioning, as `bidro consortium init` does it. A
site that makes its own key and kit (`nvflare cert request`, `nvflare package`), or that does not want to rely
on the coordinator's, does the same to the kit that it has, by `bidro site seal KIT`.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

from cryptography import x509
from nvflare.lighter.constants import CtxKey
from nvflare.lighter.impl.cert import CertBuilder, _CertState
from nvflare.lighter.prov_utils import prepare_builders
from nvflare.lighter.provision import prepare_project
from nvflare.lighter.provisioner import Provisioner
from nvflare.lighter.spec import Builder

from bidro.core.errors import BidroError
from bidro.deploy.consortium.kits import SERVER, Provisioned

# The classes that a job may name, and no others: some on FLARE's own list read and write files.
_CLASSES = (
    "bidro.deploy.transport.flare.job.Controller",
    "bidro.deploy.transport.flare.job.Server",
    "bidro.deploy.transport.flare.job.Client",
    "nvflare.collab.runtime.executor.CollabExecutor",
)
# Rights by role. Nobody may bring code ("byoc") or read files by shell commands, and nobody operates a site
# but who runs it; on the server the project's admin may shut sites out. Who is not named may do nothing.
_NOTHING = dict.fromkeys(
    (
        "submit_job",
        "clone_job",
        "manage_job",
        "configure_job_log",
        "download_job",
        "view",
        "operate",
        "shell_commands",
        "byoc",
        "server-predeployed-flwr",
    ),
    "none",
)
_MINE = {"manage_job": "n:submitter", "download_job": "n:submitter"}
_ROLES = {
    "project_admin": _NOTHING,
    "org_admin": _NOTHING,
    "lead": _NOTHING | _MINE | {"submit_job": "any", "view": "any"},
    "member": _NOTHING | {"view": "any"},
}
_SERVERS_ADMIN = _NOTHING | {"view": "any", "operate": "any", "manage_job": "any"}
# Tells the server's monitoring which sites are connected.
_WATCH = {"id": "bidro_watch", "path": "bidro.deploy.transport.flare.watch.Watch", "args": {}}
_DAY = timedelta(days=1)
_ROOT_DAYS = 3650  # of the authority; those of participants are valid for FLARE's 360


def seal(local: Path, storage: str | None, ending: str = "") -> None:
    """Write the participant's policy and resources into the folder `local` of its kit.

    storage: an absolute path on the server, for its jobs; None at a site. ending: of the files' names; FLARE
    takes files without `.default` before those with it. Raises BidroError for a folder that is no kit's.
    """
    try:
        text = (local / "resources.json.default").read_text(encoding="utf-8")
    except OSError as error:
        raise BidroError(f"'{local}' is not the folder 'local' of a startup kit: {error}") from error
    resources = json.loads(text if storage is None else text.replace(_TEMPORARY, storage))
    resources["class_list_enforcement_mode"] = "enforce"
    resources["class_allow_list"] = list(_CLASSES)
    resources["allow_log_streaming"] = False
    if storage is not None:
        known = [one for one in resources.get("components", []) if one["id"] != _WATCH["id"]]
        resources["components"] = [*known, _WATCH]
    for server in resources.get("servers", []):
        server.update(heart_beat_timeout=60, check_engine_frequency=0.5)
    roles = _ROLES if storage is None else {**_ROLES, "project_admin": _SERVERS_ADMIN}
    for name, content in {
        "resources": resources,
        "authorization": {"format_version": "1.0", "permissions": roles},
    }.items():
        (local / f"{name}.json{ending}").write_text(json.dumps(content, indent=2), encoding="utf-8")


class BidroBuilder(Builder):  # type: ignore[misc]
    """A step for project.yml, after StaticFileBuilder: kits that take bidro's jobs and nothing else.

    In FLARE's own kits a job of the role lead may bring code (BYOC), for which no list of classes counts, and
    FLARE copies each site's error log to the server, where a line may hold something of the site's data. Here
    no role may bring code, a job may name bidro's classes only, and logs stay. The server keeps its jobs in
    `storage` (an absolute path there) and not in the system's temporary folder, and sees sooner that a site
    is gone or that a job has ended. All kits, which hold keys, are in a folder that only its owner can read.
    """

    def __init__(self, storage: str) -> None:
        self.storage = storage

    def initialize(self, project: Any, ctx: Any) -> None:
        Path(ctx.get_workspace()).chmod(0o700)

    def build(self, project: Any, ctx: Any) -> None:
        server = project.get_server()
        for participant in [server, *project.get_clients()]:
            storage = self.storage if participant is server else None
            seal(Path(ctx.get_local_dir(participant)), storage, ".default")


class _RootOnly(_CertState):  # type: ignore[misc]
    """The state of provisioning with the authority's certificate and key alone."""

    def has_subject(self, subject: str) -> bool:
        return False

    def add_subject_cert(self, subject: str, cert: Any) -> None:
        """Not kept: it is in the participant's kit."""

    def add_subject_pri_key(self, subject: str, pri_key: Any) -> None:
        """Not kept: it is in the participant's kit."""

    def persist(self) -> None:
        path = Path(self.state_dir) / self.CERT_STATE_FILE
        path.touch(0o600)
        path.chmod(0o600)  # where it was there before
        super().persist()


class BidroCertBuilder(CertBuilder):  # type: ignore[misc]
    """FLARE's step for certificates, but every provisioning makes new ones, and keeps no participant's key.

    FLARE's own keeps all private keys in `state/cert.json` and gives every participant its old certificate
    again, so that none can be renewed. Here the state holds the authority's key only, which is valid for ten
    years, and to provision again is to renew. What was handed out before stays valid until it expires.
    """

    def __init__(self, root_valid_days: int = _ROOT_DAYS) -> None:
        super().__init__(root_valid_days)

    def initialize(self, project: Any, ctx: Any) -> None:
        super().initialize(project, ctx)
        state = _RootOnly(ctx.get_state_dir())
        state.is_available = self.root_cert is not None
        self.persistent_state: _CertState = state


def valid_until(kit: Path) -> datetime:
    """When the certificate of a kit expires. Raises BidroError where there is none."""
    for name in ("client.crt", "server.crt"):
        path = kit / "startup" / name
        if path.is_file():
            return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    raise BidroError(f"'{kit}' is not a startup kit: it has no certificate in 'startup'.")


def sealed(kit: Path, storage: str | None = None) -> str:
    """Seal a participant's kit, whoever made it, and say until when its certificate is valid.

    storage: of a server, the absolute path of the folder for its jobs. Raises BidroError for what is no kit,
    and for one that has expired.
    """
    server = (kit / "startup" / "fed_server.json").is_file()
    if server != (storage is not None):
        raise BidroError("--storage is needed for the kit of a server, and for no other.")
    if not (kit / "startup" / "fed_admin.json").is_file():
        seal(kit / "local", storage)
    kit.chmod(0o700)
    until = valid_until(kit)
    left = until - datetime.now(UTC)
    if left.total_seconds() <= 0:
        raise BidroError(
            f"The certificate of '{kit}' expired on {until:%Y-%m-%d}, {-left // _DAY} days ago: no other "
            "participant accepts it; ask the coordinator for a new kit."
        )
    return f"The certificate is valid until {until:%Y-%m-%d}, {left // _DAY} days."


def kits_of(
    folder: Path, host: str, port: int, sites: Sequence[str], admins: Mapping[str, str], storage: str
) -> Path:
    """The folder of new startup kits, one a participant, under the authority in `folder`, which is made where
    there is none; the server's is named by its host. admins are roles by name."""
    ports = {"fed_learn_port": port, "admin_port": port}
    people: list[dict[str, Any]] = [{"name": host, "type": "server", **ports}]
    people += [{"name": name, "type": "client"} for name in sites]
    people += [{"name": name, "type": "admin", "role": role} for name, role in admins.items()]
    steps = {
        "nvflare.lighter.impl.workspace.WorkspaceBuilder": {},
        "nvflare.lighter.impl.static_file.StaticFileBuilder": {"config_folder": "config", "scheme": "tcp"},
        f"{__name__}.BidroBuilder": {"storage": storage},
        f"{__name__}.BidroCertBuilder": {},
        "nvflare.lighter.impl.signature.SignatureBuilder": {},
    }
    project = {
        "api_version": 4,
        "name": "bidro",
        "participants": [{**one, "org": "bidro"} for one in people],
        "builders": [{"path": path, "args": arguments} for path, arguments in steps.items()],
    }
    provisioner = Provisioner(str(folder), prepare_builders(project))
    with redirect_stdout(StringIO()):
        return Path(provisioner.provision(prepare_project(project))[CtxKey.CURRENT_PROD_DIR])


_LEAD = "lead@bidro.local"
_TEMPORARY = "/tmp/nvflare"  # where FLARE's own kits of servers keep jobs


def provisioned(authority: Path, scratch: Path, host: str, port: int, sites: Sequence[str]) -> Provisioned:
    """Kits for the server, which is told its storage when it is set up, and the sites; the lead's own."""
    made = kits_of(authority, host, port, sites, {_LEAD: "lead"}, _TEMPORARY)
    names = {SERVER: host, **{name: name for name in sites}, "lead": _LEAD}
    kits = {name: scratch / name for name in names}
    for name, called in names.items():
        (made / called).rename(kits[name])
    shutil.rmtree(made)  # participants' keys are in their kits alone
    return Provisioned(kits, '[flare]\nstartup_kit = "lead"\n', kits.pop("lead"))


def command(kit: Path, name: str, server: bool) -> list[str]:
    """What runs the participant with this kit."""
    role = "server" if server else "client"
    ways = ["secure_train=true", "org=bidro", "config_folder=config"]
    ways += [] if server else [f"uid={name}"]
    module = f"nvflare.private.fed.app.{role}.{role}_train"
    return [sys.executable, "-m", module, "-m", str(kit), "-s", f"fed_{role}.json", "--set", *ways]
