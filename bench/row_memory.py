"""What a site's memory of rows costs: a million rows, forty columns of numbers, ten categories among them.

Seconds of the processor, as JSON: `python bench/row_memory.py [ROWS]`.
"""

import json
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from bidro.data.tables import Column, Schema
from bidro.deploy.site.disclosure.memory import Demanded, Releases, RowMemory
from bidro.deploy.site.disclosure.rules import PolicyViolationError
from bidro.deploy.site.state import DATABASE, SiteState

NUMBERS, CATEGORIES, LEVELS = 10, 10, "abcd"


def seconds(step, *given):
    """(processor time, what came of it)."""
    began = time.process_time()
    try:
        found = step(*given)
    except PolicyViolationError as refused:
        found = str(refused)
    return round(time.process_time() - began, 2), found


def measured(rows, people):
    rng = np.random.default_rng(0)
    columns = [Column(f"u{k}") for k in range(NUMBERS)]
    columns += [Column(f"c{k}", tuple(LEVELS)) for k in range(CATEGORIES)]
    codes = rng.integers(0, len(LEVELS), (rows, CATEGORIES))
    coded = [codes[:, k] == level for k in range(CATEGORIES) for level in range(1, len(LEVELS))]
    features, target = np.column_stack([rng.normal(size=(rows, NUMBERS)), *coded]), rng.normal(size=rows)
    whose = rng.integers(0, rows // 3, rows).astype(np.uint64) if people else None
    kept, share = rng.random(rows) < 0.2, rng.random(rows)
    with tempfile.TemporaryDirectory() as folder:
        state = SiteState.open(Path(folder), "bench")
        memory = RowMemory(state, Demanded(10, 5, features.shape[1] + 1))
        known = memory.known(Schema("client", "y", None, tuple(columns)), features, target, whose)
        own = Releases(memory, known, kept)
        marks = np.floor(share[~kept] * 5).astype(int)
        found = {"hashes": seconds(lambda: known.hashes)[0], "training": seconds(own.training)[0]}
        found["five folds"], found["fewest"] = seconds(own.folds, marks)
        found["the same again"] = seconds(own.folds, marks)[0]
        found["file MB"] = round((Path(folder) / DATABASE).stat().st_size / 1e6)
    return found


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    report = {"rows": count, "by rows": measured(count, False), "by people": measured(count, True)}
    report["peak MB"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)
    print(json.dumps(report, indent=1))
