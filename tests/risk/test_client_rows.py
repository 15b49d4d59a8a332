"""Means over ragged clients, mapped, batched and alone, against plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidro.risk import client_rows as rows_module
from bidro.risk.client_rows import ClientRows

M = 3


def numpy_answer(samples, sizes, x):
    """Mean of (row . x)^2 and its gradient, client by client."""
    values, gradients = [], []
    for part in np.split(np.asarray(samples), np.cumsum(sizes)[:-1]):
        u = part @ x
        values.append(np.mean(u**2))
        gradients.append(2 * part.T @ u / len(part))
    return np.array(values), np.array(gradients)


def squares(x, block):
    return (block @ x) ** 2


def over_clients(rows, x):
    return jax.vmap(lambda r: r.mean_and_gradient(squares, x), in_axes=(rows.client_axes(),))(rows)


@settings(max_examples=5, deadline=None)
@given(sizes=st.lists(st.integers(1, 70), min_size=1, max_size=12), seed=st.integers(0, 99))
def test_any_sizes(sizes, seed):
    rng = np.random.default_rng(seed)
    samples, x = rng.normal(size=(sum(sizes), M)), rng.normal(size=M)
    rows = ClientRows.of(jnp.asarray(samples), sizes)
    found = over_clients(rows, jnp.asarray(x))
    for ours, expected in zip(found, numpy_answer(samples, sizes, x), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("copy_limit", [0, 1 << 23], ids=["cut out in every pass", "laid out once"])
@pytest.mark.parametrize("sizes", [[1, 5000, 3, 1200], [50] * 40, [2049], [1] * 30])
def test_many_blocks_and_both_layouts(monkeypatch, copy_limit, sizes):
    monkeypatch.setattr(rows_module, "_COPY_NUMBERS", copy_limit)
    monkeypatch.setattr(rows_module, "_BLOCK_NUMBERS", 50)
    rng = np.random.default_rng(0)
    samples, x = rng.normal(size=(sum(sizes), M)), rng.normal(size=M)
    rows = ClientRows.of(jnp.asarray(samples), sizes)
    assert (rows.tiled is None) == (copy_limit == 0)
    found = over_clients(rows, jnp.asarray(x))
    for ours, expected in zip(found, numpy_answer(samples, sizes, x), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-10)


def test_own_arguments_for_every_client_inside_a_loop():
    """Local steps give each client its own model: arguments with a client axis, inside a scan."""
    rng = np.random.default_rng(1)
    sizes = [4, 90, 17]
    samples = rng.normal(size=(sum(sizes), M))
    rows = ClientRows.of(jnp.asarray(samples), sizes)
    starts = jnp.asarray(rng.normal(size=(3, M)))

    def local(r, x):
        return jax.lax.fori_loop(0, 3, lambda _, v: v - 0.01 * r.mean_and_gradient(squares, v)[1], x)

    found = jax.vmap(local, in_axes=(rows.client_axes(), 0))(rows, starts)
    for k, part in enumerate(np.split(samples, np.cumsum(sizes)[:-1])):
        x = np.asarray(starts[k])
        for _ in range(3):
            x = x - 0.01 * 2 * part.T @ (part @ x) / len(part)
        np.testing.assert_allclose(found[k], x, rtol=1e-10)


def test_repeated_runs_and_a_client_alone_agree():
    rng = np.random.default_rng(2)
    sizes = [7, 2, 31]
    data = rng.normal(size=(4, sum(sizes), M))
    x = jnp.asarray(rng.normal(size=M))
    stacked = ClientRows.stacked(jnp.asarray(data), sizes)
    values, _ = jax.vmap(lambda r: over_clients(r, x), in_axes=(stacked.run_axes(),))(stacked)
    for run in range(4):
        np.testing.assert_allclose(values[run], numpy_answer(data[run], sizes, x)[0], rtol=1e-12)
    alone = ClientRows.single(jnp.asarray(data[0][:7]))
    assert float(alone.mean_and_gradient(squares, x)[0]) == pytest.approx(float(values[0, 0]))
    assert float(alone.mean(lambda a, block: (block @ a) ** 2, x)) == pytest.approx(float(values[0, 0]))


def test_a_map_over_models_of_one_client_is_no_map_over_clients():
    rng = np.random.default_rng(3)
    samples, models = rng.normal(size=(10, M)), rng.normal(size=(4, M))
    alone = ClientRows.single(jnp.asarray(samples))
    found = jax.vmap(lambda x: alone.mean_and_gradient(squares, x)[0])(jnp.asarray(models))
    np.testing.assert_allclose(found, [np.mean((samples @ x) ** 2) for x in models], rtol=1e-12)
    rows = ClientRows.of(jnp.asarray(samples), [3, 7])

    def of_client(r):
        return jax.vmap(lambda x: r.mean_and_gradient(squares, x)[0])(jnp.asarray(models))

    both = jax.vmap(of_client, in_axes=(rows.client_axes(),))(rows)
    expected = [[np.mean((part @ x) ** 2) for x in models] for part in (samples[:3], samples[3:])]
    np.testing.assert_allclose(both, expected, rtol=1e-12)


def test_empty_places_hold_no_other_client_s_rows():
    """log(row x) is nan on the other client's rows: they must not enter, not even with weight 0."""
    samples = jnp.asarray(np.concatenate([np.full((3, 1), 2.0), np.full((5, 1), -3.0)]))
    rows = ClientRows.of(samples, [3, 5])
    models = jnp.array([[1.0], [-1.0]])
    mean = jax.vmap(
        lambda r, x: r.mean(lambda a, block: jnp.log(block @ a), x), in_axes=(rows.client_axes(), 0)
    )(rows, models)
    np.testing.assert_allclose(mean, np.log([2.0, 3.0]))


def test_no_padding_to_the_largest_client():
    """One giant among many tiny clients: places in tiles stay within the stated waste."""
    sizes = [100_000] + [3] * 2000
    rows = ClientRows.of(jnp.zeros((sum(sizes), 1)), sizes)
    assert rows.tiles.start.size * rows.tiles.height <= 1.3 * sum(sizes)


@settings(max_examples=5, deadline=None)
@given(sizes=st.lists(st.integers(2, 30), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_a_fold_left_out(sizes, seed):
    """Mapped over clients and folds together, against the rows that are left."""
    rng = np.random.default_rng(seed)
    samples, x = rng.normal(size=(sum(sizes), M)), rng.normal(size=M)
    fold_ids = np.concatenate([rng.permutation(np.arange(size) % 2) for size in sizes])
    rows = ClientRows.of(jnp.asarray(samples), sizes).in_folds(fold_ids, 2)

    def one(own, fold):
        return own.without(fold).mean(squares, jnp.asarray(x))

    over = jax.vmap(jax.vmap(one, in_axes=(None, 0)), in_axes=(rows.client_axes(), None))
    found = over(rows, jnp.arange(2))
    owner = np.repeat(np.arange(len(sizes)), sizes)
    for i in range(len(sizes)):
        for fold in range(2):
            kept = (owner == i) & (fold_ids != fold)
            np.testing.assert_allclose(found[i, fold], np.mean((samples[kept] @ x) ** 2), rtol=1e-10)


@pytest.mark.parametrize("copied", [True, False])
def test_the_largest_over_each_client_s_rows(copied, monkeypatch):
    """With the rows laid out as tiles, and cut out block by block; fillers and other clients do not count."""
    if not copied:
        monkeypatch.setattr(rows_module, "_COPY_NUMBERS", 0)
        monkeypatch.setattr(rows_module, "_BLOCK_NUMBERS", 64)
    rng = np.random.default_rng(3)
    sizes = (3, 50, 1, 17)
    samples = -1 - rng.exponential(size=(sum(sizes), 2))
    rows = ClientRows.of(jnp.asarray(samples), sizes)

    def one(own, scale):
        return own.largest(lambda args, block: args * block[:, 0] - block[:, 1], scale)

    found = jax.vmap(one, in_axes=(rows.client_axes(), 0))(rows, jnp.arange(1.0, 5.0))
    parts = np.split(samples, np.cumsum(sizes)[:-1])
    expected = [np.max(k * part[:, 0] - part[:, 1]) for k, part in enumerate(parts, 1)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_row_drawn_from_folds_is_never_of_the_one_left_out():
    """Clients' rows stand fold after fold; positions run over those that are kept, each met once."""
    sizes, folds = (5, 8), 3
    fold_ids = np.concatenate([np.sort(np.arange(size) % folds) for size in sizes])
    samples = np.arange(13.0)[:, None]
    rows = ClientRows.of(jnp.asarray(samples), sizes).in_folds(fold_ids, folds)
    for fold in range(folds + 1):
        left = rows.without(jnp.asarray(fold))
        over_clients = jax.vmap(lambda own: jax.vmap(own.row)(jnp.arange(8)), in_axes=(left.client_axes(),))
        met = np.asarray(over_clients(left))[..., 0]
        for i, own in enumerate(np.split(np.arange(13), [5])):
            kept = [r for r in own if fold_ids[r] != fold]
            assert met[i, : int(left.size[i])].tolist() == kept
