"""One client's rows, and means over them, without padding clients to a common size.

In process, the rows of all clients lie in one array (N, m), client after client. Algorithms are
written for one client and mapped over all of them by `vmap`; a mean over a client's rows then becomes
one pass over short tiles of rows, summed client by client, so the cost is linear in N whatever the
sizes are. On a machine that owns its data, the same code runs with that client's rows alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidro.core.arrays import Floats
from bidro.core.jax_on_use import Array, jax, jnp
from bidro.core.pytrees import pytree, static
from bidro.core.sets.base import AnyArray

# Up to this many numbers, tiles are laid out once and handled together.
_COPY_NUMBERS = 1 << 23
# Beyond, tiles are cut out in every pass, block by block: small enough to stay in the cache.
_BLOCK_NUMBERS = 1 << 18
_LARGEST_TILE = 1024
# Tiles may hold this share of empty places; the rows themselves are never padded.
_WASTE = 0.25

# A function of (arguments, block of rows (B, m), weights (B,)) that returns weighted sums over rows.
BlockSum = Callable[[Any, Array, Array], Any]
# The same with the rows' folds (B,), or None, besides.
MarkedSum = Callable[[Any, Array, Array, Array | None], Any]


class _Reduction(NamedTuple):
    """How the parts of a client, and blocks of parts, come together."""

    segment: Callable[..., Array]
    join: Callable[[Array, Array], Array]
    start: float


def _sums() -> _Reduction:
    return _Reduction(jax.ops.segment_sum, jnp.add, 0.0)


def _maxima() -> _Reduction:
    return _Reduction(jax.ops.segment_max, jnp.maximum, -float("inf"))


@pytree
class Tiles:
    """A cut of the rows into tiles of at most `height` consecutive rows of one client each."""

    start: AnyArray  # (tiles,) first row
    count: AnyArray  # (tiles,) rows used, 0 for a filler
    owner: AnyArray  # (tiles,) position of the client
    height: int = static()
    blocks: int = static()


@pytree
class Folds:
    """Which fold each row belongs to, and the folds whose rows sums run over."""

    of_row: Array  # (N,)
    tiled: Array | None  # the same as tiles (tiles, height), where the rows are
    counts: AnyArray  # (folds,) rows of the client in each
    kept: AnyArray  # (folds,) whether sums run over it
    together: bool = static()  # whether every client's rows stand fold after fold


@pytree
class ClientRows:
    """The rows of one client (or, before `vmap`, of all clients with a leading axis in `first`, `size`).

    samples: (N, m) rows of every client in this process; tiled: the same rows laid out as tiles
    (tiles, height, m), or None where that copy would be large. size: the rows that sums run over.
    """

    samples: Array
    first: AnyArray
    size: AnyArray
    tiles: Tiles
    tiled: Array | None
    folds: Folds | None = None

    def __repr__(self) -> str:
        """The shape of the table and how many clients it is of, never rows."""
        return f"ClientRows(table {np.shape(self.samples)}, clients {np.shape(self.size) or 'one'})"

    @classmethod
    def of(cls, samples: Array | Floats, sizes: Sequence[int] | NDArray[np.int64]) -> ClientRows:
        """All clients at once: `samples` holds the first client's `sizes[0]` rows, and so on."""
        held: Array = jax.device_put(samples)
        counts = np.asarray(sizes, dtype=np.int64)
        tiles = _cut(counts, samples.shape[-1])
        tiled = _laid_out(held, tiles) if tiles.blocks == 1 else None
        return cls(held, np.cumsum(counts) - counts, counts, tiles, tiled)

    @classmethod
    def single(cls, samples: Array | Floats) -> ClientRows:
        """One client that owns all of `samples`."""
        rows = cls.of(samples, [samples.shape[0]])
        return cls(rows.samples, rows.first[0], rows.size[0], rows.tiles, rows.tiled)

    @classmethod
    def stacked(cls, samples: Array, sizes: Sequence[int] | NDArray[np.int64]) -> ClientRows:
        """Repeated runs on other rows: samples (runs, N, m), the same sizes in every run."""
        rows = cls.of(samples[0], sizes)
        if rows.tiled is None:
            return replace(rows, samples=samples)
        tiles = rows.tiles
        tiled = jax.vmap(_gather, in_axes=(0, None, None, None))(
            samples, tiles.start, tiles.count, tiles.height
        )
        return replace(rows, samples=samples, tiled=tiled)

    def client_axes(self) -> ClientRows:
        """The `in_axes` that map a function of one client's rows over all clients."""
        return self._axes(None, 0)

    def run_axes(self) -> ClientRows:
        """The `in_axes` that map a function of all clients' rows over repeated runs."""
        return self._axes(0, None)

    def _axes(self, data: int | None, client: int | None) -> ClientRows:
        tiled = None if self.tiled is None else data
        folds = None
        if self.folds is not None:
            folds = Folds(None, None, client, None, self.folds.together)  # type: ignore[arg-type]
        return ClientRows(data, client, client, None, tiled, folds)  # type: ignore[arg-type]

    def in_folds(self, of_row: NDArray[np.int64], folds: int) -> ClientRows:
        """The rows of all clients with the fold of each (N,), from 0; none is left out yet."""
        owner = np.repeat(np.arange(self.size.size), np.atleast_1d(self.size))
        counts = np.zeros((self.size.size, folds), np.int64)
        np.add.at(counts, (owner, of_row), 1)
        fold_ids = jax.device_put(np.asarray(of_row, np.int32))
        tiled = None if self.tiled is None else _laid_out(fold_ids, self.tiles)
        shaped = counts.reshape((*self.size.shape, folds))
        together = bool(np.all((np.diff(of_row) >= 0) | (np.diff(owner) > 0)))
        return replace(self, folds=Folds(fold_ids, tiled, shaped, np.ones(folds, bool), together))

    def without(self, fold: Array) -> ClientRows:
        """The same rows, with those of one fold left out of every sum and of the size."""
        assert self.folds is not None
        return self._keeping(jnp.arange(self.folds.kept.shape[0]) != fold)

    def only(self, fold: Array) -> ClientRows:
        """The rows of one fold."""
        assert self.folds is not None
        return self._keeping(jnp.arange(self.folds.kept.shape[0]) == fold)

    def _keeping(self, kept: Array) -> ClientRows:
        assert self.folds is not None
        size = jnp.sum(jnp.where(kept, self.folds.counts, 0), axis=-1)
        return replace(self, size=size, folds=replace(self.folds, kept=kept))

    def mapped(self, function: Callable[[Any, Array], Array], arguments: Any) -> ClientRows:
        """The same clients with function(arguments, rows (B, m)) -> (B, k) in place of the rows' numbers."""

        @jax.custom_batching.custom_vmap
        def go(rows: ClientRows, args: Any) -> tuple[Array, Array | None]:
            tiled = None if rows.tiled is None else jax.vmap(partial(function, args))(rows.tiled)
            return function(args, rows.samples), tiled

        @go.def_vmap
        def _(size: int, batched: Any, rows: ClientRows, args: Any) -> tuple[Any, Any]:
            of_rows, of_args = batched
            if not of_rows.first:
                axes = jax.tree.map(lambda b: 0 if b else None, of_args)
                many = jax.vmap(lambda own: go(rows, own), in_axes=(axes,))(args)
                return many, jax.tree.map(lambda _: True, many)
            if not any(jax.tree.leaves(of_args)):
                found = go(replace(rows, first=rows.first[0], size=rows.size[0]), args)
                return found, jax.tree.map(lambda _: False, found)

            # All clients' rows lie in one array: each goes with what its own client's arguments are.
            def with_own(owner: Array, block: Array) -> Array:
                own = jax.tree.map(lambda v, b: v[owner] if b else v, args, of_args)
                return function(own, block)

            owner = jnp.searchsorted(rows.first, jnp.arange(len(rows.samples)), side="right") - 1
            samples = jax.vmap(lambda i, row: with_own(i, row[None])[0])(owner, rows.samples)
            tiled = (
                None if rows.tiled is None else jax.vmap(with_own)(jnp.asarray(rows.tiles.owner), rows.tiled)
            )
            return (samples, tiled), (False, None if tiled is None else False)

        samples, tiled = go(self, arguments)
        return replace(self, samples=samples, tiled=tiled)

    def row(self, k: Array) -> Array:
        """The k-th of the client's rows that sums run over, shape (m,). With folds, rows must stand fold
        after fold."""
        if self.folds is not None:
            assert self.folds.together
            used = jnp.cumsum(jnp.where(self.folds.kept, self.folds.counts, 0))
            k = k + jnp.sum(jnp.where((used <= k) & ~self.folds.kept, self.folds.counts, 0))
        return self.samples[self.first + k]

    def mean(self, function: Callable[[Any, Array], Any], arguments: Any) -> Any:
        """mean over the client's rows of function(arguments, rows (B, m)) -> pytree of (B, ...)."""

        def total(args: Any, rows: Array, weights: Array) -> Any:
            return jax.tree.map(lambda v: jnp.tensordot(weights, v, axes=1), function(args, rows))

        return jax.tree.map(lambda s: s / self.size, self.sum(total, arguments))

    def mean_and_gradient(self, function: Callable[[Array, Array], Array], x: Array) -> tuple[Array, Array]:
        """mean over the client's rows of function(x, rows (B, m)) -> (B,), and its gradient in x."""

        def total(args: Array, rows: Array, weights: Array) -> Any:
            return jax.value_and_grad(lambda v: jnp.sum(weights * function(v, rows)))(args)

        value, gradient = self.sum(total, x)
        return value / self.size, gradient / self.size

    def largest(self, function: Callable[[Any, Array], Array], arguments: Any) -> Array:
        """max over the client's rows of function(arguments, rows (B, m)) -> (B,)."""

        def top(args: Any, rows: Array, weights: Array) -> Array:
            return jnp.max(jnp.where(weights > 0, function(args, rows), -jnp.inf))

        return self._over(top, arguments, _maxima())

    def sum(self, block_sum: BlockSum, arguments: Any) -> Any:
        """The sum over the client's rows of a quantity that `block_sum` adds up over a block.

        Everything that `block_sum` needs and that may be traced must come in `arguments`.
        """

        return self._over(block_sum, arguments, _sums())

    def _over(self, block_sum: BlockSum, arguments: Any, reduction: _Reduction) -> Any:
        if self.folds is not None:
            return self._marked(_over_folds(block_sum), (arguments, self.folds.kept), reduction)
        return self._marked(
            lambda args, rows, weights, fold_ids: block_sum(args, rows, weights), arguments, reduction
        )

    def _marked(self, block_sum: MarkedSum, arguments: Any, reduction: _Reduction) -> Any:
        @jax.custom_batching.custom_vmap
        def go(rows: ClientRows, args: Any) -> Any:
            totals = rows._all_clients(block_sum, args, None, 1, reduction)
            return jax.tree.map(lambda v: v[0], totals)

        @go.def_vmap
        def _(size: int, batched: Any, rows: ClientRows, args: Any) -> tuple[Any, Any]:
            of_rows, of_args = batched
            if of_rows.samples:
                # Rows that were mapped in several ways: each way by itself.
                def alone(some: list[Any]) -> Any:
                    own: tuple[ClientRows, Any] = jax.tree.unflatten(structure, _joined(marks, some, rest))
                    return own[0]._marked(block_sum, own[1], reduction)

                leaves, structure = jax.tree.flatten((rows, args))
                marks = jax.tree.leaves((of_rows, of_args))
                rest = [v for v, b in zip(leaves, marks, strict=True) if not b]
                totals = jax.lax.map(alone, [v for v, b in zip(leaves, marks, strict=True) if b])
            elif of_rows.first:
                totals = rows._all_clients(block_sum, args, of_args, size, reduction)
            else:
                # Not a map over clients but over arguments: the same rows, many sums of each.
                axes = jax.tree.map(lambda b: 0 if b else None, of_args)
                many = jax.vmap(block_sum, in_axes=(axes, None, None, None))
                totals = rows._marked(many, args, reduction)
            return totals, jax.tree.map(lambda _: True, totals)

        return go(self, arguments)

    def _all_clients(
        self, block_sum: MarkedSum, args: Any, batched: Any, clients: int, reduction: _Reduction
    ) -> Any:
        """Sums (or maxima) for all clients, leading axis `clients`; `batched` marks per-client arguments."""
        tiles = self.tiles
        per_block = tiles.start.size // tiles.blocks
        in_axes = None if batched is None else jax.tree.map(lambda b: 0 if b else None, batched)

        def one_block(k: Array | int) -> Any:
            def part(v: Array) -> Array:
                return jax.lax.dynamic_slice_in_dim(v, k * per_block, per_block)

            owner, count = part(tiles.owner), part(tiles.count)
            if self.tiled is None:
                rows = _gather(self.samples, part(tiles.start), count, tiles.height)
            else:
                rows = part(self.tiled)
            weights = (jnp.arange(tiles.height) < count[:, None]).astype(float)
            fold_ids = None
            if self.folds is not None:
                fold_ids = (
                    _gather(self.folds.of_row, part(tiles.start), count, tiles.height)
                    if self.folds.tiled is None
                    else part(self.folds.tiled)
                )
            own = args
            if batched is not None:
                own = jax.tree.map(lambda v, b: v[owner] if b else v, args, batched)
            sums = jax.vmap(block_sum, in_axes=(in_axes, 0, 0, 0))(own, rows, weights, fold_ids)
            return jax.tree.map(
                lambda v: reduction.segment(v, owner, num_segments=clients, indices_are_sorted=True),
                sums,
            )

        if tiles.blocks == 1:
            return one_block(0)
        zero = jax.tree.map(
            lambda s: jnp.full(s.shape, reduction.start, s.dtype), jax.eval_shape(one_block, 0)
        )
        return jax.lax.fori_loop(
            0, tiles.blocks, lambda k, acc: jax.tree.map(reduction.join, acc, one_block(k)), zero
        )


def _joined(marks: list[bool], some: list[Any], rest: list[Any]) -> list[Any]:
    """What `marks` takes from `some` where it is true, and from `rest` where it is not, in order."""
    one, other = iter(some), iter(rest)
    return [next(one) if mark else next(other) for mark in marks]


def _over_folds(block_sum: BlockSum) -> MarkedSum:
    """A sum whose arguments come with the folds to run over."""

    def total(args: tuple[Any, Array], rows: Array, weights: Array, fold_ids: Array | None) -> Any:
        own, kept = args
        return block_sum(own, rows, weights * kept[fold_ids])

    return total


def _laid_out(samples: Array, tiles: Tiles) -> Array:
    """All rows as tiles; on the host, unless the rows are traced."""
    if isinstance(samples, jax.core.Tracer):
        return _gather(samples, tiles.start, tiles.count, tiles.height)
    within = np.minimum(np.arange(tiles.height), np.maximum(tiles.count - 1, 0)[:, None])
    return jax.device_put(np.asarray(samples)[tiles.start[:, None] + within])


def _gather(samples: Array, start: Array, count: Array, height: int) -> Array:
    """The rows of tiles, (tiles, height, m); past a tile's end its own last row is repeated."""
    within = jnp.minimum(jnp.arange(height), jnp.maximum(count - 1, 0)[:, None])
    return samples[start[:, None] + within]


def _cut(sizes: NDArray[np.int64], m: int) -> Tiles:
    """The tallest tiles, up to a limit, of which few places stay empty."""
    n_rows = int(sizes.sum())
    heights = [int(sizes[0])] if np.all(sizes == sizes[0]) else []
    heights += [1 << k for k in range(_LARGEST_TILE.bit_length() - 1, -1, -1)]
    height = next(
        h for h in heights if h <= _LARGEST_TILE and int((-(-sizes // h)).sum()) * h <= (1 + _WASTE) * n_rows
    )
    per_client = -(-sizes // height)
    owner = np.repeat(np.arange(len(sizes)), per_client)
    within = np.arange(per_client.sum()) - np.repeat(np.cumsum(per_client) - per_client, per_client)
    start = (np.cumsum(sizes) - sizes)[owner] + within * height
    count = np.minimum(height, sizes[owner] - within * height)

    small = len(owner) * height * m <= _COPY_NUMBERS
    per_block = len(owner) if small else max(1, _BLOCK_NUMBERS // (height * m))
    blocks = max(1, -(-len(owner) // per_block))
    per_block = -(-len(owner) // blocks)
    filler = blocks * per_block - len(owner)
    # Fillers belong to the last client, with no rows, which keeps the owners sorted.
    return Tiles(
        np.pad(start, (0, filler), mode="edge"),
        np.pad(count, (0, filler)),
        np.pad(owner, (0, filler), mode="edge"),
        height,
        blocks,
    )
