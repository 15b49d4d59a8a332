"""What a site does not send: every limit at its edge, where one row less or more decides."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bidro.core.sets import WholeSpace
from bidro.core.splits import client_id
from bidro.deploy.site.disclosure.rules import (
    RELEASES,
    PolicyViolationError,
    rarest_value,
    require_common,
    require_permitted,
    rows_behind,
)
from bidro.federated.algorithm import HostData, client_key
from bidro.federated.algorithms.first_order import Broadcast
from bidro.federated.baselines import FedAvg
from bidro.losses import Squared
from bidro.problem.client import Client
from bidro.risk.transport import Transport


def rows(count, rare=None, at=0):
    """(count, 3) rows of three columns; with `rare`, column `at` has a value that so many rows share."""
    table = np.random.default_rng(0).normal(size=(count, 3))
    if rare is not None:
        table[:, at] = np.arange(count) < rare
    return table


def test_the_rarest_value_of_columns_with_two():
    assert rarest_value(rows(20), False) == 20
    assert rarest_value(rows(20, 3), False) == 3
    assert rarest_value(rows(20, 17, at=2), False) == 3
    # The first row's value is the rarer one here, and the more common one there.
    assert rarest_value(rows(20, 1), False) == rarest_value(rows(20, 1)[::-1], False) == 1
    both = rows(20, 7)
    both[:, 1] = np.arange(20) >= 16
    assert rarest_value(both, False) == 4
    # One value is no choice, and three are not a sum over the rows of one of them.
    one, three = rows(20, 20), rows(20)
    three[:, 1] = np.arange(20) % 3
    assert rarest_value(one, False) == rarest_value(three, False) == 20


def test_common_values_at_the_edge():
    require_common(rarest_value(rows(20, 10), False), 10, None)
    with pytest.raises(PolicyViolationError, match="fewer than its min_rows = 10"):
        require_common(rarest_value(rows(20, 9), False), 10, None)


def test_every_class_of_several_is_had_by_enough_rows():
    """At a model of zeros the gradient of softmax has the sum over each class's rows: here of one row."""
    table = rows(60)
    table[:, -1] = np.arange(60) % 2
    table[7, -1] = 2.0
    assert rarest_value(table, True) == 1
    assert rarest_value(table, False) == 60
    table[:, -1] = np.arange(60) % 3
    assert rarest_value(table, True) == 20


@pytest.mark.parametrize("agreed", RELEASES)
@pytest.mark.parametrize("permitted", RELEASES)
def test_no_more_leaves_than_the_owner_permits(agreed, permitted):
    order = ["private", "moments", "trusted"]
    if order.index(agreed) <= order.index(permitted):
        require_permitted(agreed, permitted)
        return
    with pytest.raises(PolicyViolationError, match=f'set release = "{agreed}" in this site'):
        require_permitted(agreed, permitted)


def query(table, rows_behind="all rows", second_order=False, loss=None, folds=None):
    held = HostData(Squared(), table, np.array([len(table)]))
    if folds is not None:
        held = held._replace(fold_ids=folds, folds=int(folds.max()) + 1)
    return SimpleNamespace(rows_behind=rows_behind, second_order=second_order), loss or Squared(), held


def test_replies_from_one_row_need_consent():
    assert rows_behind(*query(rows(20), "one row"), 10, True) == 1
    with pytest.raises(PolicyViolationError, match="single rows"):
        rows_behind(*query(rows(20), "one row"), 10, False)


def test_one_row_alone_is_one():
    """It has one value in every column, and none that is rarer."""
    assert rarest_value(rows(1), False) == rarest_value(rows(1), True) == 1


def test_batches_rest_on_no_more_rows_than_they_have():
    """A rarer value may be had by one row of a batch, and a person may fill it with its rows."""
    consent = 10, False
    assert rows_behind(*query(rows(40), 16), *consent) == 16
    assert rows_behind(*query(rows(12), 16), *consent) == 12
    with pytest.raises(PolicyViolationError, match=r"a batch of 9 rows.* fewer rows than its min_rows = 10"):
        rows_behind(*query(rows(40), 9), *consent)
    # 20 rows have a value: a batch that leaves 10 rows out has at least 10 of them.
    assert rows_behind(*query(rows(40, 30), 40), *consent) == 10
    assert rows_behind(*query(rows(40, 20), 30), *consent) == 10
    with pytest.raises(PolicyViolationError, match="a batch of 29 rows"):
        rows_behind(*query(rows(40, 20), 29), *consent)
    assert rows_behind(*query(rows(40, 20), 5), 10, True) == 1
    algorithm, loss, held = query(rows(40), 16)
    in_pairs = held._replace(people=np.repeat(np.arange(20, dtype=np.uint64), 2))
    with pytest.raises(PolicyViolationError, match="fewer people than its min_rows = 10"):
        rows_behind(algorithm, loss, in_pairs, *consent)
    assert rows_behind(algorithm, loss, in_pairs, 8, False) == 8


def test_batches_at_one_model_give_every_row_away():
    """The server knows the seed, and so which rows are behind each of enough sums at one model: only what is
    agreed as "trusted" has any."""
    table = rows(20)
    algorithm, client = FedAvg(eta_x=1.0, batch=10), "site"
    here = Client.single(client, table, Squared(), Transport.euclidean(3), WholeSpace(3))
    x, members, sums = np.zeros(2), [], []
    for t in range(1, 41):
        drawn = algorithm.draw(here, client_key(jax.random.key(0), t, jnp.asarray(client_id(client))))
        reply = algorithm.client(Broadcast(jnp.asarray(x), jnp.ones(1)), here, drawn)
        members.append(np.isin(np.arange(20), np.asarray(drawn)) / 10)
        sums.append(x - np.asarray(reply.x))
    # The gradient of a row at 0 is -2 y theta.
    found = np.linalg.lstsq(np.array(members), np.array(sums))[0]
    np.testing.assert_allclose(found, -2 * table[:, 2:] * table[:, :2], atol=1e-9)
    assert rows_behind(*query(table, algorithm.rows_behind), 10, False) == 10
