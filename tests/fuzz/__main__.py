"""`python -m tests.fuzz`: random problems for some minutes, or one case by its number.

Prints JSON: how many cases of each kind ran, how many of each stalled or were refused, and every failure with
the number to run it again by.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import jax

import bidro  # noqa: F401 (float64)
from tests.fuzz.checks import Found, check
from tests.fuzz.problems import CASES_A_GROUP, Case, case_of

# Groups after which compiled programs are dropped: an hour of them would fill the memory.
_CLEAR_EVERY = 40
# Cases take seconds, and minutes on a busy machine.
_LONGEST_CASE_S = 900.0


class Tally:
    """Counts over all cases."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)
        self.stalls: dict[str, Counter[str]] = defaultdict(Counter)
        self.outcomes: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.failures: list[dict[str, object]] = []
        self.stalled: list[dict[str, object]] = []
        self.checks = 0

    def add(self, case: Case, found: Found) -> None:
        for kind, value in case.described().items():
            self.counts[kind][str(value)] += 1
            if found.outcome == "stalled":
                self.stalls[kind][str(value)] += 1
        self.outcomes[found.outcome] += 1
        self.checks += found.checks
        if found.outcome == "refused":
            self.refusals[found.refusal[:90]] += 1
        if found.outcome == "stalled":
            self.stalled.append({"case": case.number, "gap": found.gap, **case.described()})
        for failure in found.failures:
            self.failures.append({"case": case.number, **failure, "kind": case.described()})

    def summary(self) -> dict[str, object]:
        return {
            "cases": sum(self.outcomes.values()),
            "checks": self.checks,
            "outcomes": self.outcomes,
            "failures": len(self.failures),
            "failing cases": len({f["case"] for f in self.failures}),
            "by failure": Counter(str(f["what"]) for f in self.failures),
            "ran": self.counts,
            "stalled": self.stalls,
            "refusals": self.refusals,
        }


@contextmanager
def _given_up(case: Case, tally: Tally) -> Iterator[None]:
    """A case that does not end, perhaps inside a compiled program, ends the run: with the summary so far, and
    with the case among the failures."""

    def give_up() -> None:
        tally.failures.append({"case": case.number, "what": "did not end", "kind": case.described()})
        print(json.dumps(tally.summary(), indent=1, default=float), flush=True)
        print(json.dumps(tally.failures[-1]), file=sys.stderr, flush=True)
        os._exit(1)

    timer = threading.Timer(_LONGEST_CASE_S, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--case", type=int)
    parser.add_argument("--quick", action="store_true", help="the problems that the tests run")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    tally, started = Tally(), time.monotonic()
    number = options.first if options.case is None else options.case
    while True:
        case = case_of(number, options.quick)
        with _given_up(case, tally):
            found = check(case)
        tally.add(case, found)
        if options.verbose or found.failures:
            print(
                json.dumps(
                    {
                        "case": number,
                        "outcome": found.outcome,
                        "rounds": found.rounds,
                        "gap": found.gap,
                        "seconds": round(found.seconds, 2),
                        "failures": found.failures[:4],
                        **(case.described() if found.failures else {}),
                    }
                ),
                file=sys.stderr,
                flush=True,
            )
        number += 1
        if options.case is not None or time.monotonic() - started > 60 * options.minutes:
            break
        if number % (CASES_A_GROUP * _CLEAR_EVERY) == 0:
            jax.clear_caches()
    print(
        json.dumps(
            tally.summary() if options.case is None else {"failures": tally.failures, **case.described()},
            indent=1,
            default=float,
        )
    )
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
