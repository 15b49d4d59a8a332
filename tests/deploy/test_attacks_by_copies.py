"""A row that stands in a table many times is one row: sums over its copies tell of it alone."""

import numpy as np
import pandas as pd
import pytest

from bidro.deploy.site.check import check_site
from bidro.deploy.site.config import Site
from tests.deploy.hostile import Server, attacked
from tests.deploy.sites import write_sites
from tests.deploy.test_attacks_by_lattices import DEFAULT

pytestmark = pytest.mark.usefixtures("agreed_release")

ALL_ROWS = {**DEFAULT, "hold_out": 0.0}


def people(count, features, decimals, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(50, 10, (count, features))
    numbers = np.column_stack([x, x.mean(axis=1) + rng.normal(0, 5, count)]).round(decimals)
    return pd.DataFrame(numbers, columns=[*(f"x{j}" for j in range(features)), "y"]).assign(site="east")


def site_of(folder, table, times, training):
    """A site with so many copies of the rows of a table; what is agreed on was drafted from others."""
    write_sites(folder, people(60, table.shape[1] - 2, 1, seed=1), training=training)
    pd.concat([table.drop(columns="site")] * times).to_csv(folder / "east.csv", index=False)
    return Site.read(folder / "east.toml")


# Two people; a table that stands in its file twice; joins that gave every row three or twelve times: all have
# more rows, and fewer different ones, than twice the parameters.
TABLES = {
    "two people": (people(2, 4, 3), 100),
    "doubled": (people(30, 24, 1), 2),
    "joined": (people(40, 24, 1), 3),
    "joined by many": (people(24, 24, 1), 12),
}


@pytest.mark.parametrize("training", [DEFAULT, ALL_ROWS], ids=["default", "all rows"])
@pytest.mark.parametrize("name", TABLES)
def test_copies_of_few_rows_do_not_give_them_away(name, training, tmp_path):
    site_of(tmp_path, *TABLES[name], training)
    server = Server(tmp_path)
    sets = [*server.over_all(), *server.by_several_numbers_of_folds(server.by_gradients)]
    found = attacked(server, sets)
    assert found.nobody, found


@pytest.mark.parametrize("name", TABLES)
def test_the_owner_is_told_that_a_run_would_be_refused(name, tmp_path):
    site = site_of(tmp_path, *TABLES[name], DEFAULT)
    assert site.min_rows == 10
    assert check_site(site).refused is not None


def test_the_same_rows_once_each_and_enough_of_them_are_answered(tmp_path):
    """What is refused above is refused for its copies."""
    assert check_site(site_of(tmp_path, people(400, 4, 3), 1, DEFAULT)).refused is None
    assert len(Server(tmp_path).over_all()) == 1
