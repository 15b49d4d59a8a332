"""The clients' samples, their names and sizes, and the support Xi, validated once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bidro.core.arrays import (
    BLOCK_ROWS,
    Floats,
    aligned,
    as_table,
    read_only,
    repeated,
    split_by_sizes,
    stacked,
)
from bidro.core.errors import BidroError
from bidro.core.sets import Ball, Box, WholeSpace, capped_sizes
from bidro.core.splits import Draws, Key, arranged, client_id, dealt, distinct_ids, drawn

if TYPE_CHECKING:
    import pandas as pd

Support = Box | Ball | WholeSpace
# Numbers beyond this, and columns all below one over it, have no squares of squares to compute with.
LARGEST_SIZE = 1e60
# Clients and columns that are named when a federation is printed.
_SHOWN = 8


@dataclass(frozen=True, eq=False)
class Federation:
    """n clients' samples in one array, client after client, never padded.

    Most easily made by `from_table`, `from_arrays` or `from_samples`.

    Args:
        samples: rows (N, m), features first and the label or target last; kept as a NumPy array that cannot
            be written to.
        support: Xi, where samples can lie, declared by the user.
        sizes: (N_1, ..., N_n).
        names: the clients'.
        columns: names of the m columns.
        support_from_data: marks a support read off the samples, which voids statements that need Xi fixed
            beforehand.
        rows_elsewhere: what a server knows of clients that keep their rows; then there are no samples here.
        people: (N,) of which person (or thing) every row is, from `splits.label_ids`, where rows of one
            are to stay together; None where each row is a draw by itself, empty where they are elsewhere.
        ids: (N,) what rows are dealt to folds by, from `splits.arranged`; None for what is in `samples`.
        max_share: no client counts for more than this share of all rows.
        people_elsewhere: how many people each client has, where their rows are elsewhere.

    Raises:
        BidroError: for an empty client, a value that is not finite, or a row outside the support.

    Examples:
        >>> from bidro import Federation, example_visits
        >>> Federation.from_table(example_visits(), "hospital", "stay", "unbounded", ["age", "bmi"]).n
        6
    """

    samples: Floats
    support: Support
    sizes: tuple[int, ...]
    names: tuple[str, ...]
    columns: tuple[str, ...]
    support_from_data: bool = False
    rows_elsewhere: bool = False
    people: NDArray[np.uint64] | None = None
    ids: NDArray[np.uint64] | None = None
    max_share: float = 1.0
    people_elsewhere: tuple[int, ...] | None = None  # how many each client has, where rows are elsewhere

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples", read_only(self.samples))
        self._validate()

    def __repr__(self) -> str:
        """Names, sizes and columns, never rows."""
        clients = [f"{name}: {size}" for name, size in zip(self.names, self.sizes, strict=True)]
        support = type(self.support).__name__ + (" read off the data" if self.support_from_data else "")
        where = "; rows elsewhere" if self.rows_elsewhere else ""
        return f"Federation({_few(clients)}; columns {_few(self.columns)}; support {support}{where})"

    @classmethod
    def from_arrays(
        cls,
        clients: Mapping[str, ArrayLike] | Sequence[ArrayLike],
        support: Support | Literal["unbounded", "from data"],
        columns: Sequence[str] | None = None,
        people: NDArray[np.uint64] | None = None,
        ids: NDArray[np.uint64] | None = None,
    ) -> Federation:
        """From one array of rows (N_i, m) a client, by name or in order."""
        if not isinstance(clients, Mapping):
            clients = {f"client-{i + 1}": rows for i, rows in enumerate(clients)}
        if not clients:
            raise BidroError("A federation needs at least one client; none was given.")
        names = [str(name) for name in clients]
        tables = [as_table(rows, f"Client '{name}'") for name, rows in clients.items()]
        width = tables[0].shape[1]
        for name, rows in zip(names, tables, strict=True):
            if rows.shape[1] != width:
                raise BidroError(
                    f"Client '{name}' has {rows.shape[1]} columns but client '{names[0]}' has {width}; "
                    "give every client the same columns."
                )
        sizes = [len(rows) for rows in tables]
        return cls.from_samples(read_only(stacked(tables)), sizes, support, names, columns, people, ids)

    @classmethod
    def from_samples(
        cls,
        samples: ArrayLike,
        sizes: Sequence[int],
        support: Support | Literal["unbounded", "from data"],
        names: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        people: NDArray[np.uint64] | None = None,
        ids: NDArray[np.uint64] | None = None,
    ) -> Federation:
        """From rows (N, m) sorted by client. Rows of float64 that cannot be written to, as an array of JAX's,
        are used as they are; others are copied."""
        rows = as_table(samples, "Samples")
        if rows.flags.writeable:
            rows = stacked([rows])
        if not all(isinstance(size, int | np.integer) for size in sizes):
            raise BidroError(f"Sizes must be whole numbers of rows; got {list(sizes)}.")
        m, n = rows.shape[1], len(sizes)
        labels = [f"client-{i + 1}" for i in range(n)] if names is None else [str(s) for s in names]
        heads = [f"column-{j + 1}" for j in range(m)] if columns is None else list(map(str, columns))
        from_data = isinstance(support, str) and support == "from data"
        if from_data:
            support = Box(rows.min(axis=0), rows.max(axis=0))
        elif isinstance(support, str) and support == "unbounded":
            support = WholeSpace(m)
        if not isinstance(support, Support):
            raise BidroError(f"support must be a Box, a Ball, 'unbounded' or 'from data'; got {support!r}.")
        counts = tuple(int(s) for s in sizes)
        return cls(rows, support, counts, tuple(labels), tuple(heads), from_data, people=people, ids=ids)

    def pooled(self) -> Federation:
        """All rows as those of one client, "all". WRM (Sinha et al.) is BiDRO-FL, or the exact solver, on
        this with a penalty."""
        people = self.people
        if people is not None:
            # The same label at two clients is two people.
            people = distinct_ids(self.names, self._owner, people)
        return replace(self, sizes=(sum(self.sizes),), names=("all",), people=people)

    @classmethod
    def from_table(
        cls,
        table: pd.DataFrame,
        client: str,
        target: str,
        support: Support | Literal["unbounded", "from data"],
        features: Sequence[str] | None = None,
    ) -> Federation:
        """From a data frame with a client column; every other column is a feature by default."""
        if not hasattr(table, "columns") or table.columns.has_duplicates:
            raise BidroError("The table must be a pandas data frame whose column names all differ.")
        chosen = (
            [c for c in table.columns if c not in (client, target)] if features is None else list(features)
        )
        for column in [client, target, *chosen]:
            if column not in table.columns:
                raise BidroError(
                    f"The table has no column '{column}'; it has {', '.join(map(str, table.columns))}."
                )
        if table[client].isna().any():
            row = int(np.flatnonzero(table[client].isna())[0])
            raise BidroError(
                f"Row {row} of the table has no value in the client column '{client}'; fill it in "
                "or drop the row."
            )
        for column in [*chosen, target]:
            if table[column].dtype.kind not in "bifu":
                raise BidroError(
                    f"Column '{column}' is not numeric ({table[column].dtype}); encode it as numbers first."
                )
        if (twice := repeated([client, target, *chosen])) is not None:
            raise BidroError(
                f"Column '{twice}' is named more than once among client, target and features; "
                "each column has one role."
            )
        groups = list(table.groupby(table[client].astype(str), sort=True))
        rows = {name: g[[*chosen, target]].to_numpy(float) for name, g in groups}
        return cls.from_arrays(rows, support, [*chosen, target])

    @classmethod
    def elsewhere(
        cls,
        sizes: Mapping[str, int],
        columns: Sequence[str],
        support: Support | None = None,
        people: Sequence[int] | None = None,
        max_share: float = 1.0,
    ) -> Federation:
        """Clients of known sizes, and numbers of `people` where rows are of these, on machines of their own;
        the support is unbounded unless it is given."""
        m = len(columns)
        return cls(
            np.zeros((0, m)),
            WholeSpace(m) if support is None else support,
            tuple(int(size) for size in sizes.values()),
            tuple(sizes),
            tuple(columns),
            rows_elsewhere=True,
            people=None if people is None else np.zeros(0, np.uint64),
            max_share=max_share,
            people_elsewhere=None if people is None else tuple(int(count) for count in people),
        )

    @property
    def n(self) -> int:
        """Number of clients."""
        return len(self.sizes)

    @property
    def m(self) -> int:
        """Coordinates of a sample, label included."""
        return self.samples.shape[-1]

    @property
    def counted(self) -> NDArray[np.float64]:
        """(n,) what clients count by: their rows N_i, or fewer, as `max_share` has it."""
        return np.asarray(capped_sizes(self.sizes, self.max_share))

    @property
    def proportions(self) -> NDArray[np.float64]:
        """N_i / N, shape (n,), none above `max_share`."""
        return np.asarray(self.counted / self.counted.sum())

    @property
    def client_ids(self) -> NDArray[np.uint32]:
        """Two numbers a client (n, 2) from its name alone: randomness is keyed by them."""
        return np.stack([client_id(name) for name in self.names])

    @property
    def draw_counts(self) -> tuple[int, ...]:
        """How many people each client has; rows, where no people are named."""
        if self.people is None:
            return self.sizes
        if self.people_elsewhere is not None:
            return self.people_elsewhere
        return tuple(self.draws.counts(self.n).tolist())

    @property
    def _owner(self) -> NDArray[np.int64]:
        """(N,) whose row each is, as a place among the clients."""
        return np.repeat(np.arange(self.n), self.sizes)

    @property
    def draws(self) -> Draws:
        """What is dealt out whole: people, or single rows, by what is in them."""
        rows, owner = self.host_rows, self._owner
        if self.people is not None:
            return Draws.of(owner, self.people)
        if self.ids is not None:
            return Draws.single_rows(owner, self.ids)
        return Draws.single_rows(owner, arranged(owner, rows[:, :-1], rows[:, -1]).ids)

    def folds(self, count: int, key: Key = 0) -> NDArray[np.int64]:
        """The fold (N,) of every row, from 0, at random: by the key (a seed, or a site's own), its client's
        name and what is in it, or the label of its person, as `splits.dealt` does, so that a machine with one
        client deals as a process with all of them does. Raises BidroError for a client with fewer rows, or
        people, than folds.
        """
        return dealt(self.names, self.draws, "row" if self.people is None else "person", count, key)

    @property
    def host_rows(self) -> NDArray[np.float64]:
        """All rows (N, m) as they are in memory, client after client. Raises BidroError where they are
        elsewhere."""
        self._require_rows()
        return self.samples

    def by_client(self) -> dict[str, NDArray[np.float64]]:
        """Every client's rows (N_i, m), by name."""
        parts = split_by_sizes(self.host_rows, self.sizes)
        return dict(zip(self.names, parts, strict=True))

    def client_samples(self, name: str) -> Floats:
        """The rows of one client, shape (N_i, m)."""
        self._require_rows()
        if name not in self.names:
            raise BidroError(f"There is no client '{name}'; there are {', '.join(self.names)}.")
        i = self.names.index(name)
        first = sum(self.sizes[:i])
        return self.samples[first : first + self.sizes[i]]

    def _require_rows(self) -> None:
        if self.rows_elsewhere:
            raise BidroError("The rows of this federation are at its clients; this needs them in one place.")

    def locate(self, row: int) -> tuple[str, int]:
        """(client name, row within that client), both as a user counts: rows from 0."""
        ends = np.cumsum(self.sizes)
        i = int(np.searchsorted(ends, row, side="right"))
        return self.names[i], row - int(ends[i] - self.sizes[i])

    def _validate(self) -> None:
        n, m = len(self.sizes), self.m
        if n == 0:
            raise BidroError("A federation needs at least one client; none was given.")
        if len(self.names) != n or len(self.columns) != m:
            raise BidroError(
                f"{n} clients with {m} columns need as many names; got {len(self.names)} client "
                f"names and {len(self.columns)} column names."
            )
        if (twice := repeated(self.columns)) is not None:
            raise BidroError(f"Column names must differ; '{twice}' occurs more than once.")
        if (twice := repeated(self.names)) is not None:
            raise BidroError(f"Client names must differ; '{twice}' occurs more than once.")
        for name, size in zip(self.names, self.sizes, strict=True):
            if size < 1:
                raise BidroError(f"Client '{name}' has no rows; leave it out or give it data.")
        if sum(self.sizes) != self.samples.shape[0] and not self.rows_elsewhere:
            raise BidroError(
                f"The clients' sizes sum to {sum(self.sizes)} but there are {self.samples.shape[0]} rows."
            )
        if self.people is not None and self.people.shape != (self.samples.shape[0],):
            raise BidroError(
                f"There are {self.samples.shape[0]} rows but {self.people.size} people that they are of; "
                "give one a row."
            )
        if self.support.dimension != m:
            raise BidroError(
                f"The support has {self.support.dimension} coordinates but samples have {m} "
                f"(the label or target counts as one): {', '.join(self.columns)}."
            )
        rows = self.samples
        size = np.maximum(rows.max(axis=0, initial=0.0), -rows.min(axis=0, initial=0.0))
        # Rows are looked at one by one only where there is something to be found (NaN is never below).
        if not np.all(size <= LARGEST_SIZE):
            self._check_rows(
                lambda rows: ~np.isfinite(rows), lambda j: "is not a finite number; fix or drop the row"
            )
            large = f"is too large to be squared and summed; rescale the column to below {LARGEST_SIZE:g}"
            self._check_rows(lambda rows: np.abs(rows) > LARGEST_SIZE, lambda j: large)
        lost = (size > 0) & (size < 1 / LARGEST_SIZE)
        if lost.any():
            j = int(np.argmax(lost))
            raise BidroError(
                f"Column '{self.columns[j]}' has no value above {size[j]:g}, whose squares are lost in "
                "rounding; rescale it."
            )
        if isinstance(self.support, Box):
            lower, upper = np.asarray(self.support.lower), np.asarray(self.support.upper)
            self._check_rows(
                lambda rows: (rows < lower) | (rows > upper),
                lambda j: (
                    f"lies outside the declared support [{lower[j]:g}, {upper[j]:g}]; widen the support or "
                    "fix the row"
                ),
            )
        elif isinstance(self.support, Ball):
            center, radius = np.asarray(self.support.center), float(self.support.radius)
            limit = radius * (1 + 1e-12)
            samples = self.samples
            for begin in range(0, len(samples), BLOCK_ROWS):
                distance = np.linalg.norm(samples[begin : begin + BLOCK_ROWS] - center, axis=1)
                if (distance > limit).any():
                    k = int(np.argmax(distance > limit))
                    client, row = self.locate(begin + k)
                    raise BidroError(
                        f"Client '{client}', row {row} lies outside the declared support: its distance "
                        f"to the centre is {distance[k]:g}, the ball's radius {radius:g}; widen the "
                        "support or fix the row."
                    )

    def _check_rows(
        self,
        bad: Callable[[NDArray[np.float64]], NDArray[np.bool_]],
        complaint: Callable[[int], str],
    ) -> None:
        samples = self.samples
        for begin in range(0, len(samples), BLOCK_ROWS):
            block = samples[begin : begin + BLOCK_ROWS]
            fault = bad(block)
            if fault.any():
                k, j = map(int, np.argwhere(fault)[0])
                client, row = self.locate(begin + k)
                raise BidroError(
                    f"Client '{client}', row {row}, column '{self.columns[j]}': "
                    f"{block[k, j]:g} {complaint(j)}."
                )


def _few(words: Sequence[str]) -> str:
    """The words, or the first of them and how many there are."""
    shown = ", ".join(words[:_SHOWN])
    return shown if len(words) <= _SHOWN else f"{shown}, ... ({len(words)} in all)"


def thinned(federation: Federation, rows: int, fewest: int) -> Federation:
    """With about so many rows in all, drawn by what is in them, or people with all their rows: the same share
    of every client's, but about `fewest` of them at least, or all that it has."""
    draws, n = federation.draws, federation.n
    share = np.maximum(
        min(1.0, rows / sum(federation.sizes)), np.minimum(1.0, fewest / draws.counts(n).astype(float))
    )
    some = np.flatnonzero(drawn(draws.ids, share[draws.owner])[draws.of_row])
    owner = np.repeat(np.arange(n), federation.sizes)[some]
    kept = aligned((len(some), federation.m))
    np.take(federation.host_rows, some, axis=0, out=kept)
    return replace(
        federation,
        samples=kept,
        sizes=tuple(np.bincount(owner, minlength=n).tolist()),
        people=None if federation.people is None else federation.people[some],
        ids=None if federation.ids is None else federation.ids[some],
    )
