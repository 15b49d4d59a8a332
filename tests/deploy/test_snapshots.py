"""A table that is kept up to date: what left of all its versions together, by plain sets, and that none of
them shuts the site out."""

from itertools import count

import numpy as np
import pandas as pd
import pytest

import bidro
from bidro.core.splits import key_of_seed
from bidro.data.tables import learn_schema
from bidro.deploy.agreement.agreement import Agreement, Unit, written
from bidro.deploy.site.check import check_site
from bidro.deploy.site.config import Site
from bidro.deploy.site.rows import SiteRows, fold_ids_by_count, holdout
from bidro.deploy.site.session import reply_of
from bidro.deploy.site.snapshot import snapshot
from bidro.deploy.site.state import write_key
from bidro.federated.engines.coordinator import Nothing
from bidro.federated.engines.wire import described, header_of, pack, unpack
from bidro.fit.questions import Prepared
from bidro.selection.fold_queries import FoldMoments, MomentsBroadcast, MomentsReply
from tests.small import mostly_slow

UNITS = {name: Unit(0.0, 1.0) for name in ("u", "v", "w", "y")}
LEAST = 10
_RUNS = count()


def people(seed, rows, first=0):
    """One row each, of people first, first + 1, ..."""
    rng = np.random.default_rng((seed, first))
    u, v, w = rng.normal(size=(3, rows)).round(9)
    ward, y = rng.choice(["a", "b"], rows), u - v + rng.normal(size=rows)
    return pd.DataFrame({"u": u, "v": v, "w": w, "ward": ward, "y": y, "who": np.arange(first, first + rows)})


class Consortium:
    """One site, what a server asks of it, and all sets of people that it was told sums over."""

    def __init__(self, folder, named, seed=0):
        self.folder, self.named, self.released = folder, named, []
        self.labels = {}  # of people who have others than their own
        (folder / "state").mkdir(parents=True)
        write_key(folder / "state", key_of_seed(seed))
        (folder / "site.toml").write_text('client = "east"\ndata = "east.csv"\nschema = "schema.toml"\n')
        self.agree(("u", "v", "ward"), "y")

    def agree(self, features, target, hold_out=0.2):
        self.columns = [*features, target, *(["who"] if self.named else [])]
        example = people(9, 50)[self.columns].assign(site="east")
        if self.named:
            example["who"] = example["who"].astype(str)
        schema = learn_schema(example, "site", target, None, None, "refuse", "who" if self.named else None)
        units = {name: UNITS[name] for name in (*features, target) if name in UNITS}
        training = {"curves": "none", "hold_out": hold_out}
        agreed = Agreement.of(schema, units, None, training, release="moments")
        (self.folder / "schema.toml").write_text(written(agreed))

    def refresh(self, table):
        """The table is this from now on. Returns over how many folds a run is answered, or why it is not."""
        self.table = table
        labels = [self.labels.get(who, str(who)) for who in table["who"]]
        table.assign(who=labels).to_csv(self.folder / "east.csv", index=False)
        self.site = Site.read(self.folder / "site.toml")
        rows, run = SiteRows.load(self.site), f"run-{next(_RUNS)}"

        def asked(question, message, **changes):
            header = {
                "version": bidro.__version__, "client": "east", "agreed": rows.agreed.digest,
                "question": question, "run": run, "round": 1, **changes,
            }  # fmt: skip
            reply = reply_of(self.site, rows, pack(message, header))
            return header_of(reply).get("refused"), reply

        refused, reply = asked("prepare", Nothing())
        if refused is not None:
            return refused
        told = unpack(reply, Prepared)
        folds = int(np.flatnonzero(told.folds)[-1]) + 1
        here = snapshot(self.site, rows)
        kept, ids = holdout(self.site, here), self._of_rows(here)
        self.released += [set(ids[kept]), set(ids[~kept])]
        assert (told.rows, told.holdout) == (np.sum(~kept), np.sum(kept))
        if folds > 1:
            parts = {"folds": folds, "seed": 0, "table": float(told.table)}
            parts |= {
                "algorithm": described(FoldMoments()),
                "ambiguity": {"kind": "WassersteinBall", "radius": 0.0},
            }
            refused, reply = asked("round", MomentsBroadcast(), **parts)
            assert refused is None, refused
            found, fold_ids = unpack(reply, MomentsReply), fold_ids_by_count(self.site, here)[folds]
            whole = here.protocol.rows(here.features[~kept], here.target[~kept])
            for fold in range(folds):
                # The sets are those that the numbers are of.
                np.testing.assert_allclose(found.mean[fold], whole[fold_ids != fold].mean(axis=0), atol=1e-9)
                self.released += [set(ids[~kept][fold_ids == fold])]
        return folds

    def _of_rows(self, here):
        """(N,) whose each row of the site's is, by the column u that all agreements have."""
        by_value = dict(zip(self.table["u"].round(9), self.table["who"], strict=True))
        return np.array([by_value[round(value, 9)] for value in here.features[:, 0].tolist()])

    def smallest_atom(self):
        """People that no released set tells apart: the fewest."""
        where = {}
        for number, some in enumerate(self.released):
            for who in some:
                where.setdefault(who, []).append(number)
        sizes = {}
        for numbers in where.values():
            sizes[tuple(numbers)] = sizes.get(tuple(numbers), 0) + 1
        return min(sizes.values())


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("more", [1, 50, 150, 600])
def test_growth_shuts_no_site_out(more, named, tmp_path):
    """By a few rows the snapshot is answered of; by many the next one, over as many folds."""
    here, table = Consortium(tmp_path, named), people(0, 400)
    assert here.refresh(table) == 5
    whole = pd.concat([table, people(0, more, 400)])
    assert here.refresh(whole) == 5
    rows = SiteRows.load(here.site)
    used = len(snapshot(here.site, rows).target)
    assert used == (len(whole) if more == 600 else len(table))
    assert here.smallest_atom() >= LEAST
    found = check_site(here.site)
    assert found.refused is None
    assert (found.new, found.waiting) == ((0, 0) if more == 600 else (more, more))
    # The rows that wait join those of the next months.
    assert here.refresh(pd.concat([whole, people(0, 700, 1100)])) == 5
    assert len(snapshot(here.site, SiteRows.load(here.site)).target) == len(whole) + 700
    assert here.smallest_atom() >= LEAST


@pytest.mark.parametrize("named", [False, True])
def test_one_who_leaves_takes_others_along_and_shuts_no_site_out(named, tmp_path):
    here, table = Consortium(tmp_path, named), people(1, 600)
    assert here.refresh(table) == 5
    assert here.refresh(table[table["who"] != 17]) == 5
    used = SiteRows.load(here.site)
    assert 600 - len(snapshot(here.site, used).target) >= LEAST
    assert here.smallest_atom() >= LEAST
    # And the same again is the same snapshot.
    before = len(snapshot(here.site, used).target)
    assert here.refresh(table[table["who"] != 17]) == 5
    assert len(snapshot(here.site, SiteRows.load(here.site)).target) == before


@pytest.mark.parametrize("share", [0.0, 0.1, 0.4])
def test_sides_are_those_of_when_a_person_was_first_seen(share, tmp_path):
    here, table = Consortium(tmp_path, True), people(2, 500)
    here.refresh(table)
    rows = SiteRows.load(here.site)
    before = dict(zip(here._of_rows(rows), holdout(here.site, rows), strict=True))
    here.agree(("u", "v", "ward"), "y", hold_out=share)
    (tmp_path / "site.toml").touch()
    here.site = Site.read(tmp_path / "site.toml")
    rows = SiteRows.load(here.site)
    assert dict(zip(here._of_rows(rows), holdout(here.site, rows), strict=True)) == before


@pytest.mark.parametrize("seed", mostly_slow(range(6), lambda seed: seed < 1))
@pytest.mark.parametrize("also", [["corrected", "study"], ["corrected", "labels"], []])
def test_ten_refreshes_two_studies_an_erasure_and_a_correction(seed, also, tmp_path):
    """At random sizes, in a random order: never an atom below the limit, and never shut out, where a person
    is named, also where some people get other labels; where none is, new rows wait for good once one has
    gone."""
    named = bool(also)
    rng = np.random.default_rng(seed)
    here, table = Consortium(tmp_path, named, seed), people(seed, 600)
    steps = ["more"] * 8 + ["gone", "other", *also]
    assert here.refresh(table) == 5
    answered = []
    for step in rng.permutation(steps):
        if step == "gone":
            table = table[table["who"] != rng.choice(table["who"])]
        elif step == "corrected":
            one = table["who"] == rng.choice(table["who"])
            table = table.assign(v=table["v"].where(~one, 3.0))
        elif step == "labels":
            here.labels |= {who: f"other {who}" for who in rng.choice(table["who"], 7, replace=False)}
        elif step == "study":
            here.agree(("u", "w"), "y")
        elif step == "more":
            table = pd.concat(
                [table, people(seed, int(rng.choice([3, 40, 150, 800])), 10_000 + len(answered) * 1000)]
            )
        else:
            table = table.sample(frac=1, random_state=1)
        answered.append(here.refresh(table))
        assert here.smallest_atom() >= LEAST
    assert all(isinstance(one, int) for one in answered), answered
    assert min(answered) >= 2
