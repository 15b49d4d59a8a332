"""Rounds and bytes of whole federated runs to a gap of 1e-6, with sites in this process. Prints JSON lines.

    python bench/federated_rounds.py [quick]

Preparation, cross-validation, solve and certificate are all counted; five clients whose models differ. The
peer is the paper's Algorithm 1, which needs 10,000 rounds. `quick` leaves out what takes minutes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bidro.data.tables import learn_schema
from bidro.deploy.agreement.agreement import drafted
from bidro.deploy.agreement.job import Config
from bidro.deploy.server.serve import run_job
from bidro.deploy.site.session import Site, SiteRows, reply_of
from bidro.deploy.transport.rehearsal import split_by_client
from bidro.federated.engines.coordinator import InMemory
from bidro.workflow.options import TableColumns

# (features, rows of the smallest client, loss, release, curves)
QUICK = [
    (30, 600, loss, release, curves)
    for curves in ("none", "auto")
    for loss, release in (("squared", "moments"), ("logistic", "trusted"))
]
LONG = [
    (100, 1400, "squared", "moments", "none"),
    (100, 1400, "logistic", "trusted", "none"),
    (10, 300, "absolute", "trusted", "none"),
]


def table(features: int, rows: int, classes: bool) -> pd.DataFrame:
    rng, parts = np.random.default_rng(0), []
    for i in range(5):
        n = rows + 20 * i
        X = rng.normal(size=(n, features)) + 0.2 * rng.normal(size=features)
        w = (1 + 0.3 * rng.normal(size=features)) / np.sqrt(features)
        y = X @ w + 0.7 * rng.normal(size=n)
        part = pd.DataFrame(X, columns=[f"x{j}" for j in range(features)])
        parts.append(part.assign(y=np.where(y > 0, "a", "b") if classes else y, site=f"s{i}"))
    return pd.concat(parts, ignore_index=True)


def measured(features: int, rows: int, loss: str, release: str, curves: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        whole = table(features, rows, loss == "logistic")
        whole.to_csv(folder / "all.csv", index=False)
        training = {"loss": loss, "curves": curves}
        agreed = drafted(learn_schema(whole, "site", "y"), whole, training=training, release=release)
        sites = split_by_client(folder / "all.csv", TableColumns(), folder / "sites", agreed=agreed)

        def client(k: int) -> Any:
            site = Site.read(folder / "sites" / f"site-{k}.toml")
            own = SiteRows.load(site)
            return lambda request: reply_of(site, own, request)

        carrier = InMemory({name: client(k) for k, name in enumerate(sites.clients)})
        files = run_job(Config.read(None, "run", sites).job, carrier, folder / "runs")
    audit, report = json.loads(files["audit.json"]), json.loads(files["report.json"])
    return {
        "features": features,
        "loss": loss,
        "release": release,
        "curves": curves,
        "rounds": audit["rounds"],
        "of_the_solve": report["solver"]["rounds"],
        "gap": report["solver"]["gap"],
        "bytes_up_a_client": sum(kind["bytes_up"] for kind in audit["kinds"]) // 5,
    }


if __name__ == "__main__":
    for case in QUICK + ([] if "quick" in sys.argv[1:] else LONG):
        print(json.dumps(measured(*case)), flush=True)
