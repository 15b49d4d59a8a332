"""Five small sites on disk, as a consortium would have them, and their answers without a network."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from bidro.core.splits import key_of_seed
from bidro.data.tables import learn_schema
from bidro.deploy.agreement.agreement import Agreement, drafted, proposed, written
from bidro.deploy.agreement.job import Job
from bidro.deploy.site.config import Site
from bidro.deploy.site.rows import SiteRows
from bidro.deploy.site.session import reply_of
from bidro.deploy.site.state import DATABASE, KEY_FILE, write_key
from bidro.federated.engines.coordinator import InMemory, Policy
from bidro.fit.fitted import Progress
from bidro.privacy.terms import Terms
from bidro.workflow.fit import fit_tables

NAMES = ("east", "mid", "north", "south", "west")
# The sites of the networks that `make test` starts.
PAIR = ("east", "west")
# Radii are given where cross-validation is not the point: it is most of the time.
QUICK = {"radius": 0.1, "weights": "simplex", "personal": "none"}
# Rounds are dear on a network: a wide gap, and no held-out rows.
SHORT = {**QUICK, "hold_out": 0.0, "gap": 1e-2}
# In site.toml: replies from one row may leave.
SINGLE = 'release = "trusted"\nallows = ["single rows"]'
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


# The kind of release that sites agree on, where a test is of every one: see `tests.deploy.conftest`.
AGREED: list[str] = []
# Where the sites are that agreed on something, by its digest.
_FOLDERS: dict[str, Path] = {}


def write_sites(
    folder: Path, whole: pd.DataFrame, support=None, extra: str = "", person=None, training=None, **parts
) -> Agreement:
    """`schema.toml`, and NAME.csv and NAME.toml of every client in the table, with keys of seed 0; straight
    lines, for tests that are not about curves."""
    schema = learn_schema(whole, "site", "y", None, None, "refuse", person)
    # Units that all have agreed on, whatever they were drafted from.
    training = {"curves": "none", **(training or {})}
    parts = {"units_drafted": False, "release": least_release(schema, training, parts), **parts}
    agreed = agree(folder, drafted(schema, whole, support, training, **parts))
    for name, own in whole.groupby("site"):
        own.drop(columns="site").to_csv(folder / f"{name}.csv", index=False)
        lines = [f'client = "{name}"', f'data = "{name}.csv"', 'schema = "schema.toml"', extra]
        lines += ['release = "trusted"'] if agreed.release == "trusted" and "release" not in extra else []
        lines += [f'state = "state/{name}"', ""]
        (folder / f"{name}.toml").write_text("\n".join(lines))
        state = folder / "state" / str(name)
        state.mkdir(parents=True, exist_ok=True)
        if not (state / KEY_FILE).exists():
            write_key(state, key_of_seed(0))
    return agreed


def agree(folder: Path, agreed: Agreement) -> Agreement:
    """Let all sites in the folder agree on this."""
    (folder / "schema.toml").write_text(written(agreed))
    _FOLDERS[agreed.digest] = folder
    return agreed


def answering(folder: Path, names=NAMES) -> dict:
    """What each site answers, by name."""

    def one(name):
        site, kept = Site.read(folder / f"{name}.toml"), {}

        def reply(request):
            # What a site agrees on, and its table, may change between two requests.
            now = site.schema.read_bytes(), site.data.read_bytes()
            if kept.get("now") != now:
                kept.update(now=now, rows=SiteRows.load(site))
            return reply_of(site, kept["rows"], request)

        return reply

    return {name: one(name) for name in names}


def forget_statements(folder: Path) -> None:
    """Let the sites in the folder answer about other models again, as if nobody had asked: for tests that
    share sites and are not about how much these answer."""
    for database in folder.glob(f"state/*/{DATABASE}"):
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("DELETE FROM stated")


def carrier(folder: Path, names=NAMES) -> InMemory:
    return InMemory(answering(folder, names))


def alone(folder: Path, whole: pd.DataFrame, **training):
    """What `bidro fit --schema` makes of all rows in one place, by what the sites in the folder agree on."""
    path = folder / "whole.csv"
    whole.to_csv(path, index=False)
    agreed = retrained(Agreement.read(folder / "schema.toml"), training)
    options = replace(agreed.options, tables=(str(path),))
    return fit_tables(options, Progress(), (agreed.schema, agreed.fit_options))


def least_release(schema, training, parts) -> str:
    """The kind of release that lets no more leave than training needs; tables here are small for noise."""
    found = proposed(schema, 0, training, parts)[0]
    return AGREED[-1] if AGREED and found == "moments" else found


def permitted() -> dict[str, str]:
    """What an owner's word is where a test is of every kind of release."""
    return {"release": AGREED[-1]} if AGREED else {}


def retrained(agreed: Agreement, training=None, **parts) -> Agreement:
    """With other options of training, and other parts; what was trusted stays so."""
    content = agreed.to_dict()
    options = {**{k: v for k, v in content["training"].items() if v is not None}, **(training or {})}
    release = parts.pop("release", None) or least_release(agreed.schema, options, parts)
    if agreed.release == "trusted" and release == "moments":
        release = "trusted"
    parts = {"limits": agreed.limits, **parts}
    return Agreement.of(agreed.schema, agreed.units, agreed.support, options, release=release, **parts)


def job(
    agreed: Agreement,
    run: str = "test",
    clients=NAMES,
    *,
    options=None,
    policy=None,
    resume=False,
    max_weight=1.0,
    **parts,
) -> Job:
    """A job with these options of training, on which its sites agree from now on."""
    whole = retrained(agreed, options, **parts)
    if agreed.digest in _FOLDERS:
        agree(_FOLDERS[agreed.digest], whole)
    return Job(run, tuple(clients), whole, policy or Policy(), resume, max_weight)


PRIVACY = "[privacy]\nepsilon = 3.0\ndelta = 1e-6\n"
SIZES = (300, 350, 300, 350, 350)


def private_sites(folder, classes=False, without=(), terms=None, privacy=PRIVACY, whole=None, **how):
    """Sites with a budget each, but for some; what they agree on."""
    whole = table(classes, SIZES) if whole is None else whole
    agreed = write_sites(folder, whole, privacy=terms or Terms(), **how)
    for name in sorted(set(whole["site"])):
        if name not in without:
            path = folder / f"{name}.toml"
            path.write_text(f"{path.read_text()}\n{privacy}")
    return agreed
