"""The command: see the package."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests import conftest  # noqa: F401  its environment is that of the tests: compiled programs are shared
from tests.mutations.changes import changes
from tests.mutations.rooms import TESTS, files_of, why_equivalent
from tests.mutations.trial import Copy, sample

ROOT = Path(__file__).parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--room", action="append", help="a folder or file under src/bidro; all by default")
    parser.add_argument("--budget", type=int, default=20, help="changes a file, a random choice")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", type=Path, help="a report: only what survived in it is tried")
    given = parser.parse_args()
    files = [file for room in given.room or TESTS for file in files_of(room)]
    if not files:
        parser.error(f"there are no tests for {given.room} in tests/mutations/rooms.py")
    before = json.loads(given.again.read_text())["survived"] if given.again else None

    limits: dict[tuple[str, ...], float] = {}
    report = {"seed": given.seed, "budget": given.budget, "files": {}, "survived": [], "equivalent": []}
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy.of(ROOT / "src", ROOT, Path(folder) / "src")
        for file in files:
            every = changes((ROOT / "src" / "bidro" / file).read_text())
            if before is None:
                chosen = sample(every, given.budget, f"{given.seed} {file}")
            else:
                again = {(s["file"], s["text"], s["what"]) for s in before}
                chosen = [c for c in every if (file, c.text, c.what) in again]
            report["files"][file] = _tried(copy, file, chosen, len(every), limits, report)
    counts = list(report["files"].values())
    tried = sum(count["tried"] for count in counts)
    report["tried"] = tried
    report["share_survived"] = round(len(report["survived"]) / tried, 4) if tried else 0.0
    json.dump(report, sys.stdout, indent=1)
    print()


def _tried(
    copy: Copy, file: str, chosen: list, possible: int, limits: dict[tuple[str, ...], float], report: dict
) -> dict:
    """The counts of one file; what survived is added to the report, and the time that its tests may take to
    `limits`, as several files have the same."""
    counts = {"possible": possible, "tried": 0, "killed": 0, "timeout": 0, "survived": 0}
    must = []
    for change in chosen:
        entry = {"file": file, "line": change.line, "text": change.text, "what": change.what}
        why = why_equivalent(file, change)
        if why is None:
            must.append((change, entry))
        else:
            report["equivalent"].append({**entry, "why": why})
    tests = TESTS[file]
    if must and tests not in limits:
        limits[tests] = copy.limit(tests)
    for change, entry in must:
        outcome = copy.tried(f"bidro/{file}", change, tests, limits[tests])
        counts["tried"] += 1
        counts[outcome] += 1
        if outcome == "survived":
            report["survived"].append(entry)
        print(f"{outcome:9} {file}:{change.line}: {change.what}", file=sys.stderr, flush=True)
    return counts


if __name__ == "__main__":
    main()
