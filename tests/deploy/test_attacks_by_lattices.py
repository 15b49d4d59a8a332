"""Rows are whole numbers of steps, and exact sums of their products give few of them back: servers that get
such sums over small sets, by whatever is answered, and find no row of a site as it is."""

from functools import cache

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_wine

from tests.deploy.hostile import (
    NotToldError,
    Rebuilt,
    Server,
    Steps,
    attacked,
    heard_in_a_run,
    rebuilt,
    sums_heard,
    trained_on,
)
from tests.deploy.lattice import (
    left_out,
    rows_from_moments,
    sums_from_gradients,
    sums_from_losses,
    sums_from_moments,
)
from tests.deploy.sites import write_sites

pytestmark = pytest.mark.usefixtures("agreed_release")

DEFAULT = {"curves": "auto"}


@cache
def wine():
    """Two sites, a class each, of 59 and 71 rows with 12 features."""
    table = load_wine(as_frame=True).frame.rename(columns={"alcohol": "y"})
    table = table[table["target"] < 2]
    return table.assign(site=table["target"].map({0: "east", 1: "west"})).drop(columns="target")


@cache
def questionnaire(rows=150, questions=30):
    """Answers from 1 to 5 at two sites, which hang together."""
    parts = []
    for seed, name in enumerate(("east", "west")):
        rng = np.random.default_rng(seed)
        common = rng.normal(size=(rows, 3)) @ rng.normal(size=(3, questions + 1))
        answers = np.clip(np.rint(3 + 0.4 * common + rng.normal(size=(rows, questions + 1))), 1, 5)
        parts.append(_frame(answers.astype(int), name))
    return pd.concat(parts, ignore_index=True)


@cache
def measured(rows=80, features=20, names=("east", "mid", "west"), seed=0):
    """Numbers with one decimal at three sites."""
    rng = np.random.default_rng(seed)
    parts = []
    for name in names:
        x = rng.normal(50, 10, (rows, features))
        y = 0.3 * x @ rng.normal(0.5, 0.3, features) + rng.normal(0, 5, rows)
        parts.append(_frame(np.column_stack([x, y]).round(1), name))
    return pd.concat(parts, ignore_index=True)


def _frame(numbers, name):
    columns = [*(f"x{j}" for j in range(numbers.shape[1] - 1)), "y"]
    return pd.DataFrame(numbers, columns=columns).assign(site=name)


TABLES = {"wine": wine, "questionnaire": questionnaire, "measured": measured}
SITES = [("wine", "east"), ("wine", "west"), ("questionnaire", "east"), ("measured", "east")]


def in_units(table, agreed):
    """(rows, m) in agreed units, with a column of ones."""
    numbers = agreed.standard.rows(
        table[list(agreed.schema.features)].to_numpy(float), table["y"].to_numpy(float)
    )
    return np.column_stack([numbers, np.ones(len(table))])


def told(how, rows):
    """Sums over a set of rows (n, m) in agreed units from what a server is told of it, by plain NumPy."""
    n, d = len(rows), rows.shape[1] - 1
    inputs, target = np.delete(rows, d - 1, axis=1), rows[:, d - 1]
    models = np.random.default_rng(0).normal(size=((d + 1) * (d + 2) // 2, d))
    away = models @ inputs.T - target
    if how == "losses":
        return sums_from_losses(models, (away**2).mean(axis=1), n)
    if how == "gradients":
        return sums_from_gradients(
            models[: d + 1], 2 * away[: d + 1] @ inputs / n, (away[: d + 1] ** 2).mean(axis=1), n
        )
    if how == "moments":
        return sums_from_moments(rows[:, :-1].mean(axis=0), np.cov(rows[:, :-1].T, bias=True), n)
    return rows.T @ rows


@pytest.mark.parametrize(("name", "rows"), [("wine", 11), ("questionnaire", 18), ("measured", 15)])
@pytest.mark.parametrize("how", ["sums", "moments", "gradients", "losses"])
def test_exact_second_moments_of_few_rows_are_the_rows(name, rows, how, tmp_path):
    """Else nothing below would show anything."""
    table = TABLES[name]()
    some = table[table["site"] == "east"].sample(rows, random_state=0)
    agreed = write_sites(tmp_path, table)
    steps = Steps.of(agreed, table)
    found, guesses = steps.rows([told(how, in_units(some, agreed))])
    truth = some[[*agreed.schema.features, "y"]].to_numpy(float)
    assert rebuilt(found, guesses, truth) == Rebuilt(rows, rows, rows, 0)


def test_a_set_is_told_as_what_folds_leave_out_and_as_a_difference(tmp_path):
    table = measured()
    agreed, east = write_sites(tmp_path, table), table[table["site"] == "east"]
    numbers = in_units(east, agreed)
    folds = np.arange(len(east)) % 6
    trained = [told("gradients", numbers[folds != fold]) for fold in range(6)]
    for fold, sums in enumerate(left_out(trained)):
        np.testing.assert_allclose(sums, told("sums", numbers[folds == fold]), atol=1e-8)
    before, after = told("moments", numbers[13:]), told("moments", numbers)
    found, _ = Steps.of(agreed, table).rows([after - before])
    truth = east[[*agreed.schema.features, "y"]].to_numpy(float)[:13]
    assert {tuple(row) for row in found.round(1)} == {tuple(row) for row in truth}


def test_copies_are_found_as_the_rows_that_they_are(tmp_path):
    table = measured()
    agreed, some = write_sites(tmp_path, table), table.iloc[[0, 0, 0, 1, 2, 2, 3, 4, 4, 4, 4]]
    found, _ = Steps.of(agreed, table).rows([told("sums", in_units(some, agreed))])
    truth = some[[*agreed.schema.features, "y"]].to_numpy(float)
    assert {tuple(row) for row in found.round(1)} == {tuple(row) for row in truth}


def test_more_rows_than_columns_are_not_found(tmp_path):
    table = measured()
    agreed = write_sites(tmp_path, table)
    some = table[table["site"] == "east"].head(60)
    found, guesses = Steps.of(agreed, table).rows([told("sums", in_units(some, agreed))])
    assert rebuilt(found, guesses, some[[*agreed.schema.features, "y"]].to_numpy(float)).nobody


@pytest.mark.parametrize("how", ["by_gradients", "by_losses", "by_moments"])
@pytest.mark.parametrize(("name", "site"), SITES)
def test_chosen_messages_over_folds_give_no_row_away(name, site, how, tmp_path):
    """Folds of every number that is answered, by the gradients of one model more than there are parameters,
    by mean losses alone, or by second moments."""
    write_sites(tmp_path, TABLES[name](), training=DEFAULT)
    server = Server(tmp_path, site)
    found = attacked(server, server.by_several_numbers_of_folds(getattr(server, how)))
    assert found.nobody, found


@pytest.mark.parametrize(("name", "most"), [("measured", 8), ("wine", 8), ("questionnaire", 10)])
def test_a_default_run_gives_no_row_to_a_server_that_keeps_what_it_hears(name, most, tmp_path):
    """The first messages of cross-validation are enough."""
    table = TABLES[name]()
    names = tuple(sorted(set(table["site"])))
    agreed = write_sites(tmp_path, table, training=DEFAULT)
    heard, _ = heard_in_a_run(tmp_path, agreed, names, most=most)
    found = {}
    for one in names:
        server = Server(tmp_path, one)
        steps = Steps.of(agreed, table[table["site"] == one])
        found[one] = rebuilt(*steps.rows(sums_heard(heard[one], steps)), trained_on(server.site))
    assert all(heard.values())
    assert all(one.nobody for one in found.values()), found


def test_a_batch_of_new_rows_is_not_rebuilt_from_two_runs(tmp_path):
    """Ninety rows come to a thousand: what changes between two runs is sums over the new ones."""
    old, new = (measured(rows, names=("east",), seed=rows) for rows in (1000, 90))
    agreed = write_sites(tmp_path, old, training=DEFAULT)
    first = Server(tmp_path, run="first")
    # So many rows are answered for; else there is nothing to compare with.
    folds = first.offered()[0]
    before, _ = first.by_any(folds)
    whole = pd.concat([old, new], ignore_index=True)
    whole.drop(columns="site").to_csv(tmp_path / "east.csv", index=False)
    second = Server(tmp_path, run="second")
    try:
        after, _ = second.by_any(folds)
    except NotToldError:
        return
    truth = new[[*agreed.schema.features, "y"]].to_numpy(float)
    found = rebuilt(*Steps.of(agreed, old).rows(after - before), truth)
    assert found.nobody, found


def halves(seed, rows=58, features=24, bent=4):
    """Numbers with one decimal; some features are above their centre as often as below, in all pairs."""
    rng = np.random.default_rng(seed)
    x = rng.normal(50, 10, (rows, features))
    signs = np.array([[(i >> j) & 1 for j in range(bent)] for i in range(rows)]) * 2 - 1
    x[:, :bent] = 50 + signs * (1 + np.abs(x[:, :bent] - 50))
    return _frame(np.column_stack([x, x.mean(axis=1) + rng.normal(0, 5, rows)]).round(1), "east")


def test_gradients_over_the_columns_of_curves_give_no_row_away(tmp_path):
    """A curve has more columns than its feature, so that larger sets would be given back."""
    table, bent = halves(5), range(4)
    agreed = write_sites(tmp_path, table, training={**DEFAULT, "hold_out": 0.0})
    server = Server(tmp_path)
    try:
        sums, feature = server.by_curves(bent, 2)
    except NotToldError:
        return
    units = agreed.standard
    scale = np.append(10 * units.spread[feature], 10.0)
    truth, found = trained_on(server.site), []
    for one in sums:
        rows, _ = rows_from_moments(one, scale, np.append(np.zeros(len(feature)), 10 * units.middle))
        features = np.stack(
            [rows[:, :-1][:, feature == j].sum(axis=1) for j in range(len(units.mean))], axis=1
        )
        found.append(np.column_stack([features / 10 + units.mean, rows[:, -1] / 10]))
    result = rebuilt(np.concatenate(found), np.zeros((0, truth.shape[1])), truth)
    assert result.nobody, result
