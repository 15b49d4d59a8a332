"""`python -m tests.golden [FILE]`: what this code gives, as JSON; `--record` makes it what tests expect."""

import argparse
import json
import os
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).parent
# Processors differ in the last bits of sums, which decide where within the gap a solve ends. So BLAS, NumPy
# and XLA take the instructions that all of them have, and one thread; XLA optimises as it does for users.
ARITHMETIC = {
    "OPENBLAS_CORETYPE": "Haswell",
    "OPENBLAS_NUM_THREADS": "1",
    "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR",
    "XLA_FLAGS": "--xla_cpu_max_isa=AVX2 --xla_cpu_multi_thread_eigen=false",
}


def _written(found):
    """JSON with a line a number, so that differences can be read."""
    return json.dumps(found, indent=1, sort_keys=True) + "\n"


def _tried(made, name):
    """What is made, or why not: one case that fails hides no other."""
    try:
        return made(name)
    except Exception:
        return {"error": traceback.format_exc()}


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("file", nargs="?", default="/dev/stdout", help="to write to")
    parser.add_argument("--record", action="store_true", help="rewrite the recorded fits and messages")
    parser.add_argument("--only", default="", help="those alone whose name contains this")
    parser.add_argument("--times", action="store_true", help="say how long each takes")
    given = parser.parse_args()
    os.environ.update(ARITHMETIC)
    from tests.golden import fits, messages  # after the settings, which NumPy reads when it is imported

    found = {"fits": {}, "messages": {}}
    for kind, made, names in (
        ("fits", fits.made, fits.FITS),
        ("messages", messages.made, messages.EXCHANGES),
    ):
        for name in names:
            if given.only in name:
                began = time.process_time()
                found[kind][name] = made(name) if given.record else _tried(made, name)
                if given.times:
                    print(f"{time.process_time() - began:6.1f} s  {kind}: {name}", file=sys.stderr)
    if not given.record:
        Path(given.file).write_text(json.dumps(found))
        return
    for kind, own in found.items():
        path = HERE / f"{kind}.json"
        before = json.loads(path.read_text()) if given.only and path.exists() else {}
        path.write_text(_written({**before, **own}))


if __name__ == "__main__":
    main()
