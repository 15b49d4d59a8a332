"""Which cases `make test` leaves to `make test-slow`: what was recorded in `durations.json` as long.

The file is written by `make durations` from real runs, never by hand. It names the cases that are left to
`make test-slow`, by file, with the processor's seconds that each took (null for one that was long before
anything was recorded). A name that is no test's is ignored, and dropped at the next recording; a test whose
name is not there is quick.

A recording adds a case that takes at least `LONG` seconds where another case of the same test stays in
`make test`, and drops one that takes less than `SHORT`, fixtures included. A long test that has no such other
case stays, unless its author marks it `slow`.
"""

import json
import os
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("durations.json")
LONG, SHORT = 0.5, 0.25


def recorded():
    """The seconds, or None, of every case that is left to `make test-slow`, by its whole name."""
    return {
        f"{file}::{name}": seconds
        for file, cases in json.loads(FILE.read_text()).items()
        for name, seconds in cases.items()
    }


def left_out(names, marked, known):
    """Which of the cases (whole names of whole files) are slow: those known as long, but for the shortest of
    a file of which nothing else is left. `marked` are those that are slow by their own marker."""
    slow = set(names) & set(known)
    quick = {_file(name) for name in names if name not in slow and name not in marked}
    for file in {_file(name) for name in slow} - quick:
        own = [name for name in names if name in slow and _file(name) == file]
        slow.remove(min(own, key=lambda name: (known[name] is None, known[name] or 0.0)))
    return slow


def updated(known, there, calls, wholes):
    """What is known after a run.

    Args:
        known: seconds by case, as `recorded`.
        there: all cases of the files that were collected.
        calls: the seconds of the cases that were run, without fixtures.
        wholes: the same with fixtures.

    Returns:
        As `known`, without cases that are no longer there.
    """
    files = {_file(name) for name in there}
    found = {
        name: seconds
        for name, seconds in known.items()
        if (name in there if _file(name) in files else (FILE.parents[1] / _file(name)).exists())
    }
    for name, seconds in wholes.items():
        if name in found and seconds < SHORT:
            del found[name]
        elif name in found:
            found[name] = round(seconds, 2)
    # The longest first, so that what stays of a test is the shortest of its cases.
    for name in sorted(calls, key=calls.get, reverse=True):
        others = (one for one in there if one != name and _test(one) == _test(name))
        if calls[name] >= LONG and name not in found and any(one not in found for one in others):
            found[name] = round(wholes[name], 2)
    return found


def _file(name):
    return name.split("::")[0]


def _test(name):
    return name.split("[")[0]


def _processor():
    """Seconds of this process and of those that it has waited for, so that others do not count."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


class Recorder:
    """Rewrites the file after a run; with several workers, their controller does."""

    def __init__(self, config):
        self.config = config
        self.there, self.calls, self.wholes, self.fixtures = set(), {}, {}, {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items):
        """Before any is deselected."""
        self.there |= {item.nodeid for item in items}

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef, request):
        began = _processor()
        try:
            return (yield)
        finally:
            self.fixtures[fixturedef.argname, fixturedef.baseid] = _processor() - began

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        began = _processor()
        try:
            return (yield)
        finally:
            self.calls[item.nodeid] = took = _processor() - began
            used = {one for parts in item._fixtureinfo.name2fixturedefs.values() for one in parts}
            costs = [self.fixtures.get((one.argname, one.baseid), 0.0) for one in used]
            # A fixture's seconds are also those of the fixtures that it needs itself.
            self.wholes[item.nodeid] = took + max(costs, default=0.0)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        """What a worker has found."""
        found = getattr(node, "workeroutput", {}).get("durations")
        if found is not None:
            self.there |= set(found[0])
            self.calls |= found[1]
            self.wholes |= found[2]

    def pytest_sessionfinish(self):
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["durations"] = [sorted(self.there), self.calls, self.wholes]
            return
        found = {}
        for name, seconds in sorted(updated(recorded(), self.there, self.calls, self.wholes).items()):
            file, case = name.split("::", 1)
            found.setdefault(file, {})[case] = seconds
        FILE.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
