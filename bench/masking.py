"""How long one site takes to mask its numbers, by how many sites there are. Prints JSON.

    python -m bench.masking [--numbers 500000] [--sites 3 10 50]

Processor seconds of one site for one release, keys agreed on anew: the median of five.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

from bidro.privacy.masking import Release, Roster, SiteKey, masked


def seconds(sites: int, numbers: int) -> float:
    keys = {f"site-{i:02d}": SiteKey.made() for i in range(sites)}
    release = Release(Roster({name: one.public for name, one in keys.items()}), "", "", 1, "gradients")
    values, found = np.arange(numbers), []
    for _ in range(5):
        begun = time.process_time()
        masked(values, "site-01", keys["site-01"], release)
        found.append(time.process_time() - begun)
    return float(np.median(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--numbers", type=int, default=500_000)
    parser.add_argument("--sites", type=int, nargs="+", default=[3, 10, 50])
    given = parser.parse_args()
    print(json.dumps({str(n): round(seconds(n, given.numbers), 4) for n in given.sites}, indent=1))


if __name__ == "__main__":
    main()
