"""The clients that reply to the queries of a fit: a `Network`, and the one with all rows in this process.

Replies are computed in `client_side`; a network only decides where: here for all clients together, or across
machines (`deploy.server.fit`) one by one, as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bidro.certify.intervals import HeldOutFits
from bidro.certify.out_of_sample import cloud_distances
from bidro.certify.statements import CertifiedModel
from bidro.core.arrays import Floats, aligned, read_only, release, split_by_sizes
from bidro.core.errors import BidroError
from bidro.core.pytrees import stack_trees
from bidro.core.scratch import Scratch
from bidro.core.sets import Box
from bidro.core.splits import Words, arranged, holdout_of, label_ids, left_out_clients
from bidro.data.federation import Federation
from bidro.data.splines import Basis, Levels, by_level, common_knots, public_knots
from bidro.data.standardise import Standard
from bidro.federated.engines.in_process import IN_PROCESS
from bidro.federated.engines.rounds import Ask, FoldSpec, Rounds
from bidro.fit import client_side, private_side
from bidro.fit.baselines import Baselines, baselines_of_rows
from bidro.fit.private_side import PrivateClient, PrivateRows
from bidro.fit.questions import (
    Assess,
    Assessment,
    GradientsQuery,
    HoldoutBounds,
    HoldoutQuery,
    NoisyCount,
    NoisyGradients,
    NoisyHoldoutQuery,
    NoisyLosses,
    NoisyMoments,
    Prepared,
)
from bidro.losses import Loss
from bidro.privacy.discrete_gaussian import Bits, secret_bits
from bidro.privacy.terms import Budget, Plan
from bidro.problem.problem import Problem
from bidro.selection.calibrate import FOLDS


class Clients(Rounds, Protocol):
    """The clients of a fit once units are agreed on."""

    @property
    def federation(self) -> Federation:
        """Their names, sizes and columns; their rows in standard units where these are here."""

    def finest(
        self,
        most: Sequence[int],
        folds: int,
        by: tuple[Levels | None, ...] = (),
        agreed: tuple[Floats, Floats] | None = None,
    ) -> tuple[Basis, tuple[Floats, Floats] | None]:
        """(the finest knots of curves that are considered, with at most so many segments a feature (k,); the
        least and the largest value of every feature (k,) between which curves are drawn), in standard units.
        Later queries are over so many folds. `by` (k,) are the levels for each of which a feature has a
        curve; `agreed` are the bounds (k,) of features where units are agreed on, as then knots are."""

    def assess(self, problem: Problem, declared: Box | None, message: Assess) -> Assessment:
        """How a model does on the training rows, by client; `problem` is as trained, `declared` the support
        that explicit radii are on. Clients make the personal models that they are to have."""

    def personal_models(self, loss: Loss, message: Assess) -> Mapping[str, Floats]:
        """Those (d,) that are known here, by name: all in one process, none where they stay at sites."""

    def bounds(self, of: CertifiedModel, message: HoldoutQuery) -> HoldoutBounds:
        """What the held-out rows say, by client."""

    def baselines(
        self, of: CertifiedModel, message: HoldoutQuery, others: Mapping[str, Floats]
    ) -> Baselines | None:
        """What to hold the model against, over rows that are here; None where they are elsewhere, and clients
        get no query for it. `others` are models (d,) that the user could have instead."""

    def row_fits(self, of: CertifiedModel, message: HoldoutQuery) -> HeldOutFits | None:
        """How well held-out rows that are here fit the model; None where they are elsewhere."""

    def reference(self, stated: Problem, standard: Standard) -> Floats:
        """(points, m) the reference cloud of `assess`, to which clients report distances; empty for none."""

    def distances(self, stated: Problem, found: Assessment) -> Floats:
        """(n, n): at most this far apart are the clients' training rows, in W_p."""


class PrivateClients(Protocol):
    """The clients of a private fit; replies have a leading axis of clients. Where noise is shared, moments
    and gradients of each may be masked: only their sums modulo 2^64 mean something."""

    def moments(self) -> NoisyMoments:
        """Second moments of the training rows."""

    def counts(self) -> NoisyCount:
        """Numbers of training rows, where noise is shared."""

    def gradients(self, t: int, message: GradientsQuery) -> NoisyGradients:
        """Gradients and losses over the training rows, in round t from 1."""

    def losses(self, message: NoisyHoldoutQuery) -> NoisyLosses:
        """Losses of the held-out rows."""


class Network(Protocol):
    """Clients that reply to all queries of a fit, beginning with what is in their tables.

    Examples:
        >>> import numpy as np
        >>> from bidro.fit.network import LocalNetwork
        >>> X, y, site = np.ones((4, 1)), np.arange(4.0), np.array(["north", "south"] * 2)
        >>> LocalNetwork.of(X, y, site, ["age", "stay"]).names
        ('north', 'south')
    """

    @property
    def names(self) -> tuple[str, ...]:
        """The clients', in the order of every answer."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The features', and last the target's."""

    @property
    def max_share(self) -> float:
        """No client counts for more than this share of all rows; 1 where there is no such rule."""

    @property
    def hold_out(self) -> float:
        """The share of rows, or people, that is held out."""

    @property
    def has_people(self) -> bool:
        """Whether rows are of people that are named."""

    @property
    def keeps_account(self) -> bool:
        """Whether clients with privacy budgets remember what they have released in other runs."""

    def prepare(self) -> Prepared:
        """What units are chosen by, and how many rows there are."""

    def in_units(self, standard: Standard, prepared: Prepared) -> Clients:
        """The clients with their rows in these units."""

    def privately(self, standard: Standard, plan: Plan) -> PrivateClients:
        """The clients with their rows in these units, for a private fit."""


@dataclass(frozen=True, eq=False)
class LocalNetwork:
    """Clients whose rows are all here, in the order of `arranged`. For one fit: rows are put into
    standard units where they are, so that there is never a second copy of them."""

    names: tuple[str, ...]
    columns: tuple[str, ...]
    rows: Floats  # (N, k + 1) of training, client after client
    sizes: tuple[int, ...]
    fresh: Floats  # (M, k + 1) held out
    holdout_sizes: tuple[int, ...]
    places: NDArray[np.int64]  # (N,) where the training rows stood in what was given
    people: NDArray[np.uint64] | None = None  # (N,) of which person each is; None where all are by themselves
    fresh_people: NDArray[np.uint64] | None = None  # (M,)
    ids: NDArray[np.uint64] | None = None  # (N,) what training rows are dealt to folds by
    hold_out: float = 0.0
    budget: Budget | None = None  # of every client, for a private fit
    bits: Bits = secret_bits  # what its noise is drawn from
    # (N_k, k + 1) of clients that training does without, by name
    apart: Mapping[str, Floats] = field(default_factory=dict)

    max_share = 1.0
    keeps_account = False

    @classmethod
    def of(
        cls,
        features: Floats | list[Floats] | Callable[[], Iterable[Floats]],
        target: Floats,
        clients: NDArray[np.str_] | Words,
        columns: Sequence[str],
        hold_out: float = 0.0,
        seed: int = 0,
        people: NDArray[np.str_] | Words | None = None,
        budget: Budget | None = None,
        scratch: Scratch | None = None,
        new_clients: float = 0.0,
        least_held_out: int = 0,
    ) -> LocalNetwork:
        """From rows (N, k), targets (N,) and the client of each (N,); columns have names, the target's last.
        Rows may be given as a list of their columns (N,), which is emptied on the way, so that what has been
        moved need not be kept, or as what makes these one after the other, twice. With `scratch` rows are
        laid out there, and not in memory.

        A share `hold_out` of every client's rows is held out of training; with `people` (N,), the person or
        thing that each row is of, a share of these; at least `least_held_out` of every client's, up to half.
        Nothing depends on the order in which rows are given.
        With a privacy budget every row, or person, is held out or not whatever the others are. A share
        `new_clients` of the clients is left out as a whole, chosen by their names.
        """
        names, codes = clients if isinstance(clients, Words) else Words.of(clients)
        left_out = np.isin(names, left_out_clients([str(n) for n in names], new_clients, seed))
        ids = None if people is None else label_ids(people if isinstance(people, Words) else Words.of(people))
        order, dealt_by = arranged(codes, features() if callable(features) else features, target, ids)
        dealt = (seed, ids is None, budget is not None, None, least_held_out)
        holdout = holdout_of(names, codes, dealt_by, hold_out, *dealt)
        new = order[left_out[codes[order]]]
        if len(new):
            order = order[~left_out[codes[order]]]
        training, fresh = order[~holdout[order]], order[holdout[order]]
        del order, holdout
        made = features() if callable(features) else features
        rows, held_out, others = column_layout(made, len(columns), target, (training, fresh, new), scratch)

        def sizes(which: NDArray[np.int64], whose: NDArray[np.bool_]) -> list[int]:
            return [int(n) for n in np.bincount(codes[which], minlength=len(names))[whose]]

        parts = split_by_sizes(others, sizes(new, left_out)) if len(new) else []
        return cls(
            tuple(str(name) for name in names[~left_out]),
            tuple(columns),
            rows,
            tuple(sizes(training, ~left_out)),
            held_out,
            tuple(sizes(fresh, ~left_out)),
            training,
            None if ids is None else ids[training],
            None if ids is None else ids[fresh],
            dealt_by[training],
            hold_out,
            budget,
            apart={str(n): part for n, part in zip(names[left_out], parts, strict=True)},
        )

    @property
    def has_people(self) -> bool:
        return self.people is not None

    def prepare(self) -> Prepared:
        draws = client_side.draw_counts(self.sizes, self.people)
        # A client with fewer rows than folds is an error when these are dealt.
        offered = np.arange(1, FOLDS + 1) <= np.maximum(draws, 2)[:, None]
        people, sizes = (self.people, self.fresh_people), (self.sizes, self.holdout_sizes)
        return client_side.prepared(self.rows, *sizes, offered, 0.0, *people)

    def in_units(self, standard: Standard, prepared: Prepared) -> LocalClients:
        self._convert(standard)
        federation = Federation.from_samples(
            read_only(self.rows), self.sizes, "unbounded", self.names, self.columns, self.people, self.ids
        )
        return LocalClients(federation, self.fresh, self.holdout_sizes, {}, self.fresh_people, self.apart)

    def privately(self, standard: Standard, plan: Plan) -> LocalPrivateClients:
        self._convert(standard)
        parts = []
        for rows, sizes, people in (
            (self.rows, self.sizes, self.people),
            (self.fresh, self.holdout_sizes, self.fresh_people),
        ):
            z = split_by_sizes(private_side.in_agreed_units(rows, standard.target_spread, plan.basis), sizes)
            parts.append((z, [None] * len(sizes) if people is None else split_by_sizes(people, sizes)))
        (training, of_training), (fresh, of_fresh) = parts
        most = None if plan.shared is None else plan.shared.rows_per_person
        return LocalPrivateClients(
            tuple(
                PrivateClient.of(PrivateRows.of(*own, self.budget, most), plan, self.budget, self.bits)
                for own in zip(training, fresh, of_training, of_fresh, strict=True)
            )
        )

    def _convert(self, standard: Standard) -> None:
        """Put all rows into these units, where they are."""
        if not self.rows.flags.writeable:
            raise BidroError("A network of rows in this process is for one fit; make another for the next.")
        for rows in (self.rows, self.fresh, *self.apart.values()):
            standard.convert(rows)
            rows.setflags(write=False)


@dataclass(frozen=True, eq=False)
class LocalClients:
    """All clients in this process, their rows in standard units."""

    federation: Federation
    fresh: Floats  # (M, k + 1) held-out rows, client after client
    holdout_sizes: tuple[int, ...]
    made: dict[bytes, Floats]  # models (n, d) that clients use, so that they are made once
    fresh_people: NDArray[np.uint64] | None = None  # (M,)
    apart: Mapping[str, Floats] = field(default_factory=dict)  # of clients that training does without

    def clients_of(self, problem: Problem, fold_spec: FoldSpec | None = None, seed: int = 0) -> Ask:
        return IN_PROCESS.clients_of(problem, fold_spec, seed)

    def finest(
        self,
        most: Sequence[int],
        folds: int,
        by: tuple[Levels | None, ...] = (),
        agreed: tuple[Floats, Floats] | None = None,
    ) -> tuple[Basis, tuple[Floats, Floats] | None]:
        del folds  # rows that are here bear any knots
        values, counts = client_side.quantiles(self.federation.host_rows, self.federation.sizes)
        seen = values[:, :, 0].min(axis=0), values[:, :, -1].max(axis=0)
        found = common_knots(values, counts, most)
        if agreed is not None:
            # A column of two values is a straight line.
            bends = zip(most, found.knots, strict=True)
            found = public_knots([own if knots else 1 for own, knots in bends], *agreed)
        return by_level(found, by, self.federation.host_rows[:, :-1], most) if by else found, seen

    def assess(self, problem: Problem, declared: Box | None, message: Assess) -> Assessment:
        used = self._used(problem.loss, message)
        return client_side.assessment(problem, declared, message, used)

    def personal_models(self, loss: Loss, message: Assess) -> Mapping[str, Floats]:
        used, personal = self._used(loss, message), np.any(np.asarray(message.freedom) > 0, axis=1)
        return {name: used[i] for i, name in enumerate(self.federation.names) if personal[i]}

    def bounds(self, of: CertifiedModel, message: HoldoutQuery) -> HoldoutBounds:
        names, sizes, used = self.federation.names, self.holdout_sizes, self._used(of.loss, message)
        return client_side.bounds(names, self.fresh, sizes, of, message, used, self.fresh_people)

    def baselines(self, of: CertifiedModel, message: HoldoutQuery, others: Mapping[str, Floats]) -> Baselines:
        kept, trained_on = bool(sum(self.holdout_sizes)), self.federation.host_rows
        models = {"shared": np.asarray(message.x)[None], "personal": self._used(of.loss, message)}
        if np.asarray(message.pooled).size:
            models["pooled"] = np.asarray(message.pooled)[None]
        models |= {name: x[None] for name, x in others.items()}
        return baselines_of_rows(
            of.loss,
            trained_on[:, -1],
            self.fresh if kept else trained_on,
            self.holdout_sizes if kept else self.federation.sizes,
            {name: np.broadcast_to(x, (self.federation.n, x.shape[1])) for name, x in models.items()},
            kept,
        )

    def row_fits(self, of: CertifiedModel, message: HoldoutQuery) -> HeldOutFits | None:
        return client_side.row_fits(
            self.federation,
            self.fresh,
            self.holdout_sizes,
            of,
            self._used(of.loss, message),
            self.fresh_people,
            self.apart,
        )

    def _used(self, loss: Loss, message: Assess | HoldoutQuery) -> Floats:
        """(n, d) the models that clients use, by what a message says of them."""
        of_it = (message.x, message.freedom, message.common)
        key = b"".join(np.asarray(part).tobytes() for part in of_it)
        if key not in self.made:
            rows, sizes = self.federation.host_rows, self.federation.sizes
            self.made[key] = client_side.personal_models(loss, rows, sizes, message)
        return self.made[key]

    def reference(self, stated: Problem, standard: Standard) -> Floats:
        return np.zeros((0, stated.federation.m))

    def distances(self, stated: Problem, found: Assessment) -> Floats:
        return cloud_distances(stated)


@dataclass(frozen=True, eq=False)
class LocalPrivateClients:
    """All clients in this process, each with its own noise."""

    clients: tuple[PrivateClient, ...]

    def moments(self) -> NoisyMoments:
        return stack_trees([one.moments() for one in self.clients])

    def counts(self) -> NoisyCount:
        return stack_trees([one.counts() for one in self.clients])

    def gradients(self, t: int, message: GradientsQuery) -> NoisyGradients:
        return stack_trees([one.gradients(message) for one in self.clients])

    def losses(self, message: NoisyHoldoutQuery) -> NoisyLosses:
        return stack_trees([one.losses(message) for one in self.clients])


# Rows that are moved together, so that no second copy of all of them is made.
_TOGETHER = 65_536
# And so few that they stay in the processor's cache while columns become rows.
_TURNED = 2_048
# The memory of smaller arrays is not always given back at once.
_GIVEN_BACK = 1 << 25


def column_layout(
    features: Floats | Iterable[Floats],
    width: int,
    target: Floats,
    orders: Sequence[NDArray[np.int64]],
    scratch: Scratch | None = None,
) -> list[Floats]:
    """For each order, the rows (len(order), width) of these places, the target last, as one block of memory
    that JAX takes over without a copy, or of `scratch`.

    `features` is (N, k), a list of its columns (N,), or what makes them one after the other. A list is
    emptied on the way: then columns that nobody else keeps go as they are moved, and there is never a second
    copy of all numbers.
    """
    if isinstance(features, np.ndarray) and scratch is None:
        return [_of_rows(features, target, order) for order in orders]
    room = np.empty if scratch is None else scratch.empty
    count = max(_TOGETHER, _GIVEN_BACK // (8 * width) + 1)
    parts = [[order[b : b + count] for b in range(0, len(order), count)] for order in orders]
    # First blocks of columns, while the columns go; then rows, while the blocks go.
    blocks = [[room((width, len(part))) for part in own] for own in parts]
    columns = chain(_given_up(features), [target])
    for j in range(width):
        column = next(columns)
        for own, into in zip(parts, blocks, strict=True):
            for part, block in zip(own, into, strict=True):
                np.take(column, part, out=block[j])
        del column
        release()
    return [_turned(own, width, aligned if scratch is None else scratch.empty) for own in blocks]


def _given_up(features: Floats | Iterable[Floats]) -> Iterator[Floats]:
    """Columns one after the other; those of a list are no longer in it."""
    if isinstance(features, list):
        while features:
            yield features.pop(0)
    else:
        yield from features.T if isinstance(features, np.ndarray) else features


def _of_rows(features: Floats, target: Floats, order: NDArray[np.int64]) -> Floats:
    rows = aligned((len(order), features.shape[1] + 1))
    for begin in range(0, len(order), _TOGETHER):
        part = order[begin : begin + _TOGETHER]
        rows[begin : begin + len(part), :-1] = features[part]
        rows[begin : begin + len(part), -1] = target[part]
    return rows


def _turned(blocks: list[Floats], width: int, room: Callable[[tuple[int, int]], Floats]) -> Floats:
    """Blocks (width, rows) as rows, one below the other; the list is emptied."""
    rows = room((sum(block.shape[1] for block in blocks), width))
    end = 0
    while blocks:
        block = blocks.pop(0)
        for begin in range(0, block.shape[1], _TURNED):
            part = block[:, begin : begin + _TURNED].T
            rows[end + begin : end + begin + len(part)] = part
        end += block.shape[1]
    return rows
