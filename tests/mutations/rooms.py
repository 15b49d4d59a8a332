"""Which tests are to notice a change of which file: the quick and close ones first."""

from __future__ import annotations

from typing import NamedTuple

_SUPREMA = ("tests/worst_case/test_ascent.py", "tests/worst_case/test_exact.py")
_BALLS = ("tests/guarantees/test_robust.py", "tests/guarantees/test_penalised.py")
_SOLVE = (
    "tests/engines/test_solve_labels.py",
    "tests/algorithms/test_exact.py",
    "tests/engines/test_solve.py",
)
_OUT = ("tests/guarantees/test_out_of_sample.py",)
_CERTIFICATE = ("tests/guarantees/test_certificate.py",)
_SITES = ("tests/deploy/test_configuration.py", "tests/deploy/test_federated.py")

# By file under src/bidro.
TESTS: dict[str, tuple[str, ...]] = {
    "sets/base.py": ("tests/sets",),
    "sets/vectors.py": ("tests/sets",),
    "sets/weights.py": ("tests/sets",),
    "worst_case/exact.py": _SUPREMA,
    "worst_case/path.py": _SUPREMA,
    "worst_case/scalar_maxima.py": _SUPREMA,
    "worst_case/inner.py": _SUPREMA,
    "worst_case/ascent.py": _SUPREMA,
    "worst_case/atoms.py": (*_BALLS, *_SOLVE),
    "worst_case/risk.py": (*_BALLS, *_SOLVE),
    "worst_case/ball.py": (*_BALLS, *_SOLVE),
    "algorithms/exact.py": _SOLVE,
    "algorithms/cone_model.py": _SOLVE,
    "algorithms/cone_program.py": _SOLVE,
    "algorithms/cuts.py": _SOLVE,
    "algorithms/working_set.py": ("tests/algorithms/test_working_set.py",),
    "guarantees/calibration.py": ("tests/guarantees/test_calibration.py",),
    "guarantees/certificate.py": _CERTIFICATE,
    "guarantees/coverage.py": ("tests/guarantees/test_radius.py", *_OUT),
    "guarantees/empirical_radius.py": ("tests/guarantees/test_empirical_radius.py",),
    "guarantees/held_out.py": ("tests/guarantees/test_held_out.py", *_CERTIFICATE),
    "guarantees/heterogeneity.py": ("tests/guarantees/test_heterogeneity.py",),
    "guarantees/on_support.py": (*_OUT, *_CERTIFICATE),
    "guarantees/out_of_sample.py": (*_OUT, *_CERTIFICATE),
    "guarantees/penalty.py": ("tests/guarantees/test_penalised.py",),
    "guarantees/plan.py": _CERTIFICATE,
    "guarantees/radius.py": ("tests/guarantees/test_radius.py", *_OUT),
    "guarantees/robust.py": _BALLS,
    "guarantees/statements.py": (*_CERTIFICATE, "tests/estimators/test_estimators.py"),
    "engines/coordinator.py": ("tests/engines/test_coordinator.py",),
    "deploy/rules.py": ("tests/deploy/test_rules.py",),
    "deploy/site.py": _SITES,
    "model_file.py": ("tests/test_model_file.py",),
}


def files_of(room: str) -> list[str]:
    """The files of a room (`sets`) or one file (`sets/weights.py`)."""
    return [file for file in TESTS if file == room or file.startswith(f"{room}/")]


class Equivalent(NamedTuple):
    """Changes that change nothing that is promised, so that no test could or should notice."""

    file: str
    line: str  # the line's text, without the spaces around it
    after: str  # what is put there; "" for whatever is
    why: str


_SPEED = "where a slower way begins; both are right"
EQUIVALENT: tuple[Equivalent, ...] = (
    Equivalent("guarantees/heterogeneity.py", "MOST_PAIRED = 12", "", _SPEED),
    Equivalent("guarantees/heterogeneity.py", "EXACT_ROWS = 2000", "", _SPEED),
    Equivalent("guarantees/heterogeneity.py", "REFERENCE_POINTS = 500", "", _SPEED),
    Equivalent(
        "sets/weights.py",
        "first = near - _water_level(near, lower, upper, total)",
        "(near + _water_level(near, lower, upper, total))",
        "the second pass finds the level from any shift",
    ),
    Equivalent(
        "sets/weights.py",
        "return jnp.where(count > 0, level, middle)",
        "(count >= 0)",
        "nothing moves only where lower = upper, and then any level will do",
    ),
    *(
        Equivalent(
            "worst_case/path.py",
            "return Pieces(side, 0 * one, jnp.inf * one, rate * one, 0 * one, 0 * one)",
            after,
            "divided by 1",
        )
        for after in ("(0 / one)", "(jnp.inf / one)", "(rate / one)")
    ),
)


def why_equivalent(file: str, line: str, after: str) -> str | None:
    """None where the change must be noticed."""
    for one in EQUIVALENT:
        if (one.file, one.line) == (file, line) and one.after in ("", after):
            return one.why
    return None
