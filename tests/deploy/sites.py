"""Five small sites on disk, as a consortium would have them, and their answers without a network."""

from pathlib import Path

import numpy as np
import pandas as pd

from bidro.deploy.agreed import Agreed, written
from bidro.deploy.job import Job, options_of
from bidro.deploy.site import Site, SiteRows, reply_of
from bidro.engines.carrier import InMemory
from bidro.tables import learn_schema

NAMES = ("east", "mid", "north", "south", "west")
# The sites of the networks that `make test` starts.
PAIR = ("east", "west")
# Radii are given where cross-validation is not the point: it is most of the time.
QUICK = {"radius": 0.1, "weights": "simplex", "own": "none"}
# Rounds are dear on a network: a wide gap, and no rows kept out.
SHORT = {**QUICK, "hold_out": 0.0, "gap": 1e-2}
SUPPORT = {"u": (-10.0, 10.0), "v": (-20.0, 40.0), "y": (-40.0, 40.0)}


def table(classes: bool = False, sizes: tuple[int, ...] = (120, 150, 120, 150, 150)) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    parts = []
    for i, (name, n) in enumerate(zip(NAMES, sizes, strict=True)):
        u, v = rng.normal(0.3 * i, 1.0, n), rng.normal(10.0, 5.0, n)
        ward = rng.choice(["a", "b"], n)
        y = (1 + 0.1 * i) * u - 0.2 * v + (ward == "b") + 0.5 * rng.normal(size=n)
        target = np.where(y > y.mean(), "yes", "no") if classes else y
        parts.append(pd.DataFrame({"site": name, "u": u, "v": v, "ward": ward, "y": target}))
    return pd.concat(parts, ignore_index=True)


def write_sites(folder: Path, whole: pd.DataFrame, support=None, extra: str = "", unit=None) -> Agreed:
    """`schema.toml`, and NAME.csv and NAME.toml of every client in the table."""
    agreed = Agreed(learn_schema(whole, "site", "y", None, None, "refuse", unit), support)
    (folder / "schema.toml").write_text(written(agreed))
    for name, own in whole.groupby("site"):
        own.drop(columns="site").to_csv(folder / f"{name}.csv", index=False)
        lines = [f'client = "{name}"', f'data = "{name}.csv"', 'schema = "schema.toml"', extra]
        lines += [f'own = "own/{name}"', f'state = "state/{name}"', ""]
        (folder / f"{name}.toml").write_text("\n".join(lines))
    return agreed


def answering(folder: Path, names=NAMES) -> dict:
    """What each site answers, by name."""

    def one(name):
        site = Site.read(folder / f"{name}.toml")
        rows = SiteRows.load(site)
        return lambda request: reply_of(site, rows, request)

    return {name: one(name) for name in names}


def carrier(folder: Path, names=NAMES) -> InMemory:
    return InMemory(answering(folder, names))


def job(agreed: Agreed, run: str = "test", clients=NAMES, *, options=None, **parts) -> Job:
    return Job(run, tuple(clients), agreed, options_of(agreed, options or {}), **parts)
