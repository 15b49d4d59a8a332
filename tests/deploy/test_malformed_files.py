"""Files that are nested, huge, not UTF-8 or of the wrong type: one sentence, never another error."""

import copy
import json
import tomllib
from contextlib import suppress

import pytest

from bidro.core import files as core_files
from bidro.core.errors import BidroError
from bidro.deploy.agreement.agreement import Agreement, written
from bidro.deploy.agreement.job import Config, Job
from bidro.deploy.server.audit import read_audit
from bidro.deploy.server.serve import run_job
from bidro.deploy.site.config import Site
from bidro.federated.engines.coordinator import InMemory
from bidro.workflow.options import FitOptions
from tests.deploy.sites import QUICK, SUPPORT, answering, job, table, write_sites

DEEP = 20_000
# As TOML and as JSON.
BROKEN = {
    "nested lists": (b"a = " + b"[" * DEEP + b"]" * DEEP, b'{"format": ' + b"[" * DEEP + b"]" * DEEP + b"}"),
    "nested tables": (b"a = " + b"{b = " * DEEP + b"1" + b"}" * DEEP, b'{"a": ' * DEEP + b"1" + b"}" * DEEP),
    "nested keys": (b"a." * DEEP + b"b = 1", b"[" * DEEP),
    "not UTF-8": (b'client = "\xff\xfe"', b'{"format": "\xff"}'),
    "bytes": (bytes(range(256)), bytes(range(256))),
    "a huge number": (b"a = " + b"9" * 10_000, b'{"a": ' + b"9" * 10_000 + b"}"),
    "a number beyond 64 bits": (b"a = " + b"9" * 400, b'{"a": ' + b"9" * 400 + b"}"),
    "nothing": (b"", b""),
    "no object": (b"[[a]]\n[a]", b"[1, 2]"),
}


def require_sentence(read):
    """The reader refuses with one line, and nothing else comes of it."""
    with pytest.raises(BidroError) as found:
        read()
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 2000


def readers(folder):
    toml, plain = folder / "odd.toml", folder / "audit.json"
    return {
        "site": lambda: Site.read(toml),
        "schema": lambda: Agreement.read(toml),
        "federate": lambda: Config.read(toml, "run"),
        "run": lambda: _unless_empty(toml) or FitOptions.from_toml(toml),
        "job": lambda: Job.from_text(plain.read_bytes().decode(errors="replace")),
        "audit": lambda: read_audit(plain),
    }


def _unless_empty(path):
    # A run.toml that says nothing asks for nothing in particular.
    if path.is_file() and not path.read_bytes():
        raise BidroError("empty")


@pytest.mark.parametrize("broken", list(BROKEN))
def test_broken_files_give_one_sentence(broken, tmp_path):
    toml, plain = BROKEN[broken]
    (tmp_path / "odd.toml").write_bytes(toml)
    (tmp_path / "audit.json").write_bytes(plain)
    for read in readers(tmp_path).values():
        require_sentence(read)


def test_folders_and_huge_files_give_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(core_files, "_LARGEST_SMALL", 1000)
    (tmp_path / "odd.toml").write_text("# " + "x" * 2000)
    (tmp_path / "audit.json").write_text(" " * 2000 + "{}")
    for name in ("site", "schema", "federate", "run", "audit"):
        require_sentence(readers(tmp_path)[name])
    for path in ("odd.toml", "audit.json"):
        (tmp_path / path).unlink()
        (tmp_path / path).mkdir()
    for name in ("site", "schema", "federate", "run"):
        require_sentence(readers(tmp_path)[name])
    require_sentence(lambda: read_audit(tmp_path / "audit.json"))


def deep(levels=400):
    value = 1
    for _ in range(levels):
        value = [value]
    return value


ODD = [None, True, -1, 0, 10**400, 1e308, float("nan"), float("inf"), "", "x" * 10_000, "\x1b", [], {}, [[]]]
ODD += [{"a": {}}, ["a", 1, None], deep()]


def places(content, path=()):
    """Every place in nested lists and tables."""
    if not isinstance(content, dict | list):
        return
    for key, value in content.items() if isinstance(content, dict) else enumerate(content):
        yield (*path, key)
        yield from places(value, (*path, key))


def changes(content):
    for path in list(places(content)):
        for odd in ODD:
            changed = copy.deepcopy(content)
            inside = changed
            for key in path[:-1]:
                inside = inside[key]
            inside[path[-1]] = odd
            yield path, odd, changed
        changed = copy.deepcopy(content)
        inside = changed
        for key in path[:-1]:
            inside = inside[key]
        del inside[path[-1]]
        yield path, "left out", changed


def requires(read, content):
    """Whatever is in it, it is read or refused with one sentence."""
    with suppress(BidroError):
        read(content)


def test_a_job_with_any_part_of_the_wrong_type_is_read_or_refused(tmp_path):
    agreed = write_sites(tmp_path, table(sizes=(80,) * 5), SUPPORT)
    whole = json.loads(job(agreed, options={**QUICK, "radius": 0.1}).to_text())
    for path, odd, changed in changes(whole):
        try:
            requires(Job.from_text, json.dumps(changed))
        except Exception as error:
            raise AssertionError(f"{path} = {str(odd)[:50]!r}: {type(error).__name__}, {error}") from error


def test_an_audit_with_any_part_of_the_wrong_type_is_read_or_refused(tmp_path):
    agreed = write_sites(tmp_path, table(sizes=(80,) * 5), None, "min_rows = 2")
    files = run_job(job(agreed, options=QUICK), InMemory(answering(tmp_path)), tmp_path / "runs")
    whole = json.loads(files["audit.json"])
    whole["kinds"], whole["influence"]["sites"] = whole["kinds"][:1], whole["influence"]["sites"][:1]
    whole["faults"] = [{"client": "a", "question": "b", "fault": "c"}]
    path = tmp_path / "audit.json"
    for at, odd, changed in changes(whole):
        path.write_text(json.dumps(changed))
        try:
            requires(lambda _: read_audit(path), None)
        except Exception as error:
            raise AssertionError(f"{at} = {str(odd)[:50]!r}: {type(error).__name__}, {error}") from error


@pytest.mark.parametrize("kind", ["site", "schema", "federate"])
def test_a_file_with_any_part_of_the_wrong_type_is_read_or_refused(kind, tmp_path, monkeypatch):
    agreed = write_sites(tmp_path, table(sizes=(80,) * 5), SUPPORT)
    (tmp_path / "federate.toml").write_text(
        'schema = "schema.toml"\nclients = ["a", "b"]\nradius = 0.1\nweights = "fixed"\nloss = "huber"\n'
        'folds = 3\ngap = 1e-3\nseed = 1\n[network]\ntimeout = 9\non_client_loss = "wait"\nmax_weight = 0.6\n'
        "[algorithm]\nrounds = 3\nrho = 2.0\n[flare]\nstartup_kit = 'x'\n"
    )
    text = {"site": (tmp_path / "east.toml").read_text(), "schema": written(agreed)}
    text["federate"] = (tmp_path / "federate.toml").read_text()
    read = {"site": Site.read, "schema": Agreement.read, "federate": lambda path: Config.read(path, "run")}[
        kind
    ]
    content, real = tomllib.loads(text[kind]), core_files.read_toml
    given = {}
    for module in ("site.config", "agreement.agreement", "agreement.job"):
        monkeypatch.setattr(
            f"bidro.deploy.{module}.read_toml",
            lambda path: copy.deepcopy(given["content"]) if path.name == "given" else real(path),
        )
    for path, odd, changed in changes(content):
        if odd == 10**400:
            continue  # `read_toml` refuses it
        given["content"] = changed
        try:
            requires(read, tmp_path / "given")
        except Exception as error:
            raise AssertionError(f"{path} = {str(odd)[:50]!r}: {type(error).__name__}, {error}") from error
