"""The page of installing, typed as it stands: twelve commands from nothing to a model of three sites.

What is not typed is the installation of the package. What is another here: every participant has a folder, a
port and a user of this machine's; and systemd is a program of the test's that starts what a unit says.
"""

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import time
import tomllib
import urllib.request
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest

from bidro.certify.certificate import Certificate
from bidro.cli import main
from bidro.deploy.transport.local import free_port, kill

PAGE = Path(__file__).parents[2] / "docs" / "install.md"
SITES = ("north", "south", "west")
# The part of the page that each machine's operator reads.
ROLES = {"1": "north", "2": "coordinator", "3": "server", "4": "a site", "5": "coordinator"}
BIDRO = Path(sys.executable).with_name("bidro")
# Starts what the unit says, with its variables, as systemd does; what it does not know fails.
SYSTEMCTL = """#!{python}
import os, pathlib, shlex, subprocess, sys
units = pathlib.Path({units!r})
if sys.argv[1:] == ["daemon-reload"]:
    raise SystemExit
what, name = sys.argv[1:]
text = (units / f"{{name}}.service").read_text()
if what == "restart":
    (start,) = [l.partition("=")[2] for l in text.splitlines() if l.startswith("ExecStart=")]
    out = open(units / f"{{name}}.log", "ab")
    way = dict(stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True)
    child = subprocess.Popen(shlex.split(start), **way)
    (units / f"{{name}}.pid").write_text(str(child.pid))
elif what != "enable":
    raise SystemExit(1)
"""


def commands():
    """(role, command) in the order of the page's numbered parts; those of a site once for every site."""
    found = []
    for number, part in re.findall(
        r"^## (\d)\.(.*?)(?=^## )", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE
    ):
        lines = [
            line.removeprefix("$ ").removeprefix("# ")
            for block in re.findall(r"^```console\n(.*?)^```", part, re.DOTALL | re.MULTILINE)
            for line in block.replace("\\\n", " ").splitlines()
        ]
        lines = [one for line in lines for one in re.split(r"\s*(?:&&|;|\|\|?)\s*", line)]
        for role in SITES if ROLES[number] == "a site" else (ROLES[number],):
            # Who drafted has installed.
            installs = [
                line
                for line in lines
                if not (ROLES[number] == "a site" and role == "north" and "pipx" in line)
            ]
            found += [(role, line.replace("north.zip", f"{role}.zip")) for line in installs]
    return found


def test_twelve_commands_and_one_kit_a_site():
    found = commands()
    assert len(found) <= 12, found
    assert sum("pipx install" in line for _, line in found) == len({role for role, _ in found}) == 5
    others = [line for _, line in found if "pipx" not in line]
    assert all(line.startswith("bidro ") for line in others)
    # A kit each, which has the agreement in it; the draft goes to the coordinator.
    assert sum(".zip" in line for line in others) == len(SITES) + 1


@pytest.mark.parametrize("heading", ["1", "2", "3", "4", "5"])
def test_what_a_role_reads_fits_on_a_screen(heading):
    (part,) = re.findall(rf"^## {heading}\.(.*?)(?=^## )", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert len(part.split()) < 200


def test_a_first_model_is_within_1500_words():
    text = PAGE.read_text("utf-8")
    assert len(text.split()) <= 1500


def tables(folder):
    """Each site's own, with several visits of some patients."""
    rng = np.random.default_rng(3)
    for name, shift in zip(SITES, (0.0, 0.5, 1.0), strict=True):
        n = 240
        age, ward = rng.integers(18, 90, n), rng.choice(["a", "b"], n)
        stay = age / 10 + (ward == "b") + shift + rng.normal(size=n)
        people = [f"{name}-{k}" for k in np.sort(rng.integers(0, 220, n))]
        visits = pd.DataFrame({"patient": people, "age": age, "ward": ward, "stay": stay.round(2)})
        (folder / name).mkdir(parents=True)
        visits.to_parquet(folder / name / "visits.parquet")
    for name in ("coordinator", "server"):
        (folder / name).mkdir()


class Typed:
    """Machines that are folders."""

    quick = False

    def __init__(self, folder):
        self.folder, self.units, self.port = folder, folder / "units", free_port()
        self.user = subprocess.run(["id", "-un"], capture_output=True, text=True).stdout.strip()
        self.health = {name: free_port() for name in (*SITES, "server")}
        tables(folder)
        (folder / "bin").mkdir()
        self.units.mkdir()
        (folder / "bin/systemctl").write_text(SYSTEMCTL.format(python=sys.executable, units=str(self.units)))
        (folder / "bin/systemctl").chmod(0o755)

    def type(self, role, line, extra=()):
        words = shlex.split(line.replace("fl.example.org", "localhost"))
        words = [
            str(self.folder / role / "visits.parquet") if w.endswith("visits.parquet") else w for w in words
        ]
        if words[1] == "consortium" and words[2] == "init":
            words += ["--port", str(self.port)]
        elif "--kit" in words:
            place = ("--folder", self.folder / role / "bidro", "--units", self.units, "--user", self.user)
            words += [*map(str, place), "--health", str(self.health[role])]
        code, out = self.run(role, [*words[1:], *extra])
        assert code == 0, f"{role}: {line}\n{out}"
        # What is handed over.
        if words[1] == "schema":
            shutil.copy(self.folder / role / "schema.toml", self.folder / "coordinator")
        if words[1:3] == ["consortium", "init"]:
            for name in (*SITES, "server"):
                shutil.copy(self.folder / "coordinator/consortium/kits" / f"{name}.zip", self.folder / name)
        return out

    def run(self, role, words):
        """(exit code, output) of a process; with `quick`, of the command in this process."""
        path = os.pathsep.join([str(self.folder / "bin"), os.environ["PATH"]])
        if not self.quick:
            way = {"cwd": self.folder / role, "env": {**os.environ, "PATH": path}}
            done = subprocess.run([str(BIDRO), *words], capture_output=True, text=True, **way)
            return done.returncode, done.stdout + done.stderr
        out = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
            patch.setattr(sys, "argv", ["bidro", *words])
            patch.chdir(self.folder / role)
            with pytest.raises(SystemExit) as end, contextlib.redirect_stderr(out):
                main()
        return end.value.code, out.getvalue()

    def told(self, name):
        unit = "bidro-server" if name == "server" else f"bidro-site-{name}"
        lines = (self.units / f"{unit}.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith('{"time"')]

    def close(self):
        for path in self.units.glob("*.pid"):
            try:
                process = psutil.Process(int(path.read_text()))
            except psutil.NoSuchProcess:
                continue
            kill([*process.children(recursive=True), process])


@pytest.fixture
def typed(tmp_path):
    made = Typed(tmp_path)
    yield made
    made.close()


def without_start(line):
    return line.replace(" --start", "")


def test_what_is_set_up_without_a_network(typed):
    """All but the services: folders for their owners' eyes, units that systemd accepts, ten keys at most."""
    said, typed.quick = {}, True
    for role, line in commands():
        # The others' are the same.
        if "pipx" not in line and "federate" not in line and role not in ("south", "west"):
            said.setdefault(role, []).append(typed.type(role, without_start(line)))
    for name in ("north",):
        home = typed.folder / name / "bidro"
        assert stat.S_IMODE(home.stat().st_mode) == 0o750
        assert stat.S_IMODE((home / "environment").stat().st_mode) == 0o600
        assert stat.S_IMODE((home / "kit").stat().st_mode) == 0o700
        assert stat.S_IMODE((home / "kit/startup/client.key").stat().st_mode) == 0o600
        assert len(tomllib.loads((home / "site.toml").read_text())) <= 10
        assert "The certificate is valid until" in said[name][-1]
        assert "people" in said[name][-1]
        roles = json.loads((home / "kit/local/authorization.json").read_text())["permissions"]
        assert {rights["byoc"] for rights in roles.values()} == {"none"}
        assert name in (home / f"bidro-site-{name}.service").read_text()
    # No participant's key is left with the coordinator but in its kit.
    keys = [p.name for p in (typed.folder / "coordinator/consortium").rglob("*.key")]
    assert keys == ["client.key"]  # the lead's own
    kits = typed.folder / "coordinator/consortium/kits"
    assert {stat.S_IMODE(path.stat().st_mode) for path in kits.iterdir()} == {0o600}
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here, by which units are verified")
    for unit in typed.folder.glob("*/bidro/*.service"):
        done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert str(unit) not in done.stderr


def asked(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=30) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return json.loads(error.read())


@pytest.mark.deploy
def test_typed_as_it_stands_it_gives_a_model(typed):
    for role, line in commands():
        if "pipx" not in line:
            if "federate" in line:
                _await(lambda: asked(typed.health["server"])["sites"] == sorted(SITES))
                assert asked(typed.health["north"])["ok"], asked(typed.health["north"])
            typed.type(role, line)
    model = typed.folder / "coordinator/stay-model"
    assert Certificate.from_json((model / "certificate.json").read_text()).names == SITES
    found = asked(typed.health["server"])
    assert [(run["name"], run["state"], run["stage"]) for run in found["runs"]] == [
        ("stay-model", "done", "done")
    ]
    assert 350 < found["certificate_days"] <= 360
    at_site = asked(typed.health["west"])
    assert at_site["last"]["run"] == "stay-model"
    assert at_site["last"]["outcome"] == "answered"
    # Who is gone is told, in the answer and as an event.
    process = psutil.Process(int((typed.units / "bidro-site-south.pid").read_text()))
    kill([*process.children(recursive=True), process])
    _await(lambda: asked(typed.health["server"])["sites"] == ["north", "west"])
    _await(lambda: ("site south", "away") in {(one["event"], one["is"]) for one in typed.told("server")})
    assert ("run stay-model", "done") in {(one["event"], one["is"]) for one in typed.told("server")}


def _await(ready, seconds=90):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if ready():
                return
        except OSError:
            pass
        time.sleep(0.5)
    raise AssertionError("not in time")
