"""What is shown while people wait."""

import io
import time

import pytest
from rich.console import Console

from bidro.cli import output
from bidro.fit.time_left import TimeLeft


def said(monkeypatch, terminal, quiet=False):
    """What goes to the screen of a short fit."""
    screen = io.StringIO()
    made = Console(file=screen, force_terminal=terminal, width=120)
    monkeypatch.setattr("rich.console.Console", lambda stderr: made)
    with output.shown_progress(quiet, 1e-6) as progress:
        progress.begin("reading")
        progress.begin("choosing")
        progress.part("curves", 0.0)
        progress.part("curves", 0.5)
        progress.calibration(1, 40)
        progress.solving(1, 1e-2)
        progress.solving(2, 1e-4)
        progress.begin("certifying")
    return screen.getvalue()


@pytest.fixture
def slowly(monkeypatch):
    """Four seconds pass from one look at the clock to the next."""
    times = iter(range(0, 4000, 4))
    monkeypatch.setattr("time.monotonic", lambda: float(next(times)))
    monkeypatch.setattr("bidro.fit.time_left.TimeLeft", lambda gap: TimeLeft(gap, time.monotonic))


def test_lines_where_it_is_no_terminal(monkeypatch):
    assert said(monkeypatch, False).splitlines() == [
        "reading tables",
        "choosing",
        "choosing curves",
        "certifying",
    ]


def test_of_rounds_there_is_a_line_now_and_then(monkeypatch, slowly):
    lines = said(monkeypatch, False).splitlines()
    assert any(line.startswith("choosing curves: 50% done, about ") for line in lines)
    assert "solving: round 1, gap 1.0e-02" in lines
    assert any(line.startswith("solving: round 2, gap 1.0e-04, about ") for line in lines)


def test_one_line_that_changes_on_a_terminal(monkeypatch):
    shown = said(monkeypatch, True)
    assert "certifying" in shown
    assert "\x1b[" in shown


def test_nothing_where_a_script_asks(monkeypatch):
    assert said(monkeypatch, False, quiet=True) == ""
