"""Which rows a site holds out: an exact share of the table that sums first left of, and nobody changes sides
afterwards, however the table grows."""

import sqlite3
from contextlib import closing

import numpy as np
import pytest

from bidro.core.splits import choose_holdout, key_of_seed
from bidro.data.tables import read_one
from bidro.deploy.site import rows as site_rows
from bidro.deploy.site.check import check_site
from bidro.deploy.site.config import Site
from bidro.deploy.site.rows import SiteRows, holdout, releases, state_of
from bidro.deploy.site.state import DATABASE
from bidro.model.model_file import target_numbers
from tests.deploy.sites import agree, retrained, table, write_sites


def east(folder, rows=None, people=None):
    """The site, with so many rows of its table from now on, of so many people where that is said."""
    whole = table(sizes=(300, 150, 120, 150, 150))
    own = whole[whole["site"] == "east"].drop(columns="site")
    if people is not None:
        own = own.assign(patient=[f"p{k % people}" for k in range(300)])
    if rows is not None:
        own[:rows].to_csv(folder / "east.csv", index=False)
    return Site.read(folder / "east.toml"), own


def sides(site):
    """By what each row is dealt by, whether it is held out."""
    rows = SiteRows.load(site)
    return dict(zip(rows.ids.tolist(), holdout(site, rows).tolist(), strict=True)), rows


def moved(before, after):
    return sum(after[one] != side for one, side in before.items())


def test_the_first_table_is_dealt_as_one_process_deals_it(tmp_path):
    write_sites(tmp_path, table())
    site, _ = east(tmp_path, 103)
    found, rows = sides(site)
    assert sum(found.values()) == 21  # a fifth of 103
    file, schema = read_one(site.data), rows.agreed.schema
    features, target = schema.matrix(file), target_numbers(schema, file)
    expected = choose_holdout(np.full(103, "east"), features, target, 0.2, key_of_seed(0))
    kept = rows.features[list(found.values()), 0]
    np.testing.assert_allclose(np.sort(kept), np.sort(features[expected, 0]), rtol=1e-11)


def test_a_table_that_grows_moves_nobody_and_what_is_added_is_about_the_share(tmp_path):
    write_sites(tmp_path, table())
    site, _ = east(tmp_path, 103)
    before, rows = sides(site)
    releases(site, rows)
    site, _ = east(tmp_path, 300)
    after, rows = sides(site)
    assert moved(before, after) == 0
    assert pytest.approx(sum(after.values()), abs=4 * np.sqrt(197 * 0.2 * 0.8)) == 300 * 0.2
    releases(site, rows)  # two hundred rows more are enough behind every sum
    # Where nothing has left, the larger table is dealt exactly, and some rows are on the other side.
    other = tmp_path / "other"
    other.mkdir()
    write_sites(other, table())
    fresh, _ = sides(east(other, 300)[0])
    assert sum(fresh.values()) == 60
    assert 0 < moved(before, fresh) < 20


def test_who_only_looks_fixes_nothing(tmp_path):
    write_sites(tmp_path, table())
    check_site(east(tmp_path, 103)[0])
    site, _ = east(tmp_path, 300)
    assert sum(sides(site)[0].values()) == 60


def test_a_person_stays_on_a_side_under_another_agreement(tmp_path):
    whole = table(sizes=(300, 150, 120, 150, 150)).assign(patient="q")
    agreed = write_sites(tmp_path, whole, person="patient")
    site, _ = east(tmp_path, 150, people=100)
    before, rows = sides(site)
    assert len(before) == 100
    assert sum(before.values()) == 20
    releases(site, rows)
    content = agreed.to_dict()
    content["schema"]["columns"] = content["schema"]["columns"][:1]
    del content["units"]["v"]
    agree(tmp_path, type(agreed).from_dict(content))
    own = east(tmp_path, 150, people=100)[1].assign(patient=[f"p{k % 150}" for k in range(300)])
    own.to_csv(tmp_path / "east.csv", index=False)
    after, _ = sides(Site.read(tmp_path / "east.toml"))
    assert len(after) == 150
    assert moved(before, after) == 0


def test_sides_of_a_state_from_before_cuts_were_kept_stay(tmp_path):
    write_sites(tmp_path, table())
    site, _ = east(tmp_path, 300)
    rows = SiteRows.load(site)
    here = np.array(["east"]), np.zeros(300, np.int64)
    by_each = site_rows.holdout_of(*here, rows.ids, 0.2, state_of(site).key, alone=True)
    assert by_each.sum() != 60
    releases(site, rows)
    with closing(sqlite3.connect(tmp_path / "state" / "east" / DATABASE)) as connection, connection:
        connection.execute("DELETE FROM cuts")
    found, _ = sides(site)
    assert list(found.values()) == by_each.tolist()


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_another_share_moves_nobody(share, tmp_path):
    """Nor does an agreement without a hold-out train on who was held out, or ask about them."""
    agreed = write_sites(tmp_path, table())
    site, _ = east(tmp_path, 300)
    fifth, rows = sides(site)
    releases(site, rows)
    agree(tmp_path, retrained(agreed, {"hold_out": share}))
    found, _ = sides(Site.read(tmp_path / "east.toml"))
    assert found == fifth
