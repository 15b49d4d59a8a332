"""Who answers all that a fit asks: a `Network`, and the one whose clients' rows are all in this process.

What clients answer is computed in `client_side`, whoever asks; a network only decides where: here for all
clients together, across machines (`deploy.site_network`) one by one, as bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import jax
import numpy as np
from numpy.typing import NDArray

from bidro.arrays import Floats
from bidro.curves import Basis, Levels, by_level, common_knots
from bidro.engines.local import IN_PROCESS
from bidro.engines.rounds import Ask, Deal, Rounds
from bidro.errors import BidroError
from bidro.federation import Federation
from bidro.fitting import client_side, private_side
from bidro.fitting.beside import Beside, beside_rows
from bidro.fitting.gathered import gathered
from bidro.fitting.private_side import Answering, PrivateRows
from bidro.fitting.questions import (
    Assess,
    Assessment,
    AtModel,
    Fixed,
    HoldoutBounds,
    Judge,
    NoisyGradients,
    NoisyLosses,
    NoisyMoments,
    Prepared,
)
from bidro.guarantees.calibration import FOLDS
from bidro.guarantees.heterogeneity import cloud_distances
from bidro.guarantees.statements import Assessed
from bidro.losses import Loss
from bidro.privacy.discrete_gaussian import SECRET_BITS, Bits
from bidro.privacy.terms import Budget, Plan
from bidro.problem import Problem
from bidro.sets import Box
from bidro.splits import arranged, holdout_of, unit_ids
from bidro.standard import Standard

T = TypeVar("T")


class Clients(Rounds, Protocol):
    """The clients of a fit once units are agreed on."""

    @property
    def federation(self) -> Federation:
        """Their names, sizes and columns; their rows in standard units where these are here."""

    def finest(
        self, most: Sequence[int], folds: int, curvature: bool, by: tuple[Levels | None, ...] = ()
    ) -> tuple[Basis, tuple[Floats, Floats] | None]:
        """(the finest knots of curves that are asked about, with at most so many segments a feature (k,); the
        least and the largest value of every feature (k,) between which curves are drawn), in standard units.
        What follows is asked over so many folds, with curvature or without. `by` (k,) are the levels for each
        of which a feature has a curve."""

    def assess(self, problem: Problem, declared: Box | None, message: Assess) -> Assessment:
        """How a model does on the training rows, by client; `problem` is as trained, `declared` the support
        that explicit radii are on. Clients make the models of their own that they are to have."""

    def own_models(self, loss: Loss, message: Assess) -> Mapping[str, Floats]:
        """Those (d,) that are known here, by name: all in one process, none where they stay at sites."""

    def bounds(self, of: Assessed, message: Fixed) -> HoldoutBounds:
        """What the rows kept out say, by client."""

    def beside(self, of: Assessed, message: Fixed) -> Beside | None:
        """What to hold the model against, over rows that are here; None where they are elsewhere, and clients
        are not asked for it."""

    def reference(self, stated: Problem, standard: Standard) -> Floats:
        """(points, m) a cloud to which distances are asked for with `assess`; empty for none."""

    def distances(self, stated: Problem, found: Assessment) -> Floats:
        """(n, n): at most this far apart are the clients' training rows, in W_p."""


class PrivateClients(Protocol):
    """The clients of a private fit; replies have a leading axis of clients."""

    def moments(self) -> NoisyMoments:
        """Second moments of the training rows."""

    def gradients(self, t: int, message: AtModel) -> NoisyGradients:
        """Gradients and losses over the training rows, in round t from 1."""

    def losses(self, message: Judge) -> NoisyLosses:
        """Losses of the rows kept out."""


class Network(Protocol):
    """Everything that a fit asks of clients, beginning with what is in their tables.

    Examples:
        >>> import numpy as np
        >>> from bidro.fitting.network import LocalNetwork
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
        """The share of rows, or units, that is kept out."""

    @property
    def has_units(self) -> bool:
        """Whether rows are of units that are named."""

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
    fresh: Floats  # (M, k + 1) kept out
    holdout_sizes: tuple[int, ...]
    places: NDArray[np.int64]  # (N,) where the training rows stood in what was given
    units: NDArray[np.uint64] | None = None  # (N,) of which unit each is; None where all are by themselves
    fresh_units: NDArray[np.uint64] | None = None  # (M,)
    ids: NDArray[np.uint64] | None = None  # (N,) what training rows are dealt to folds by
    hold_out: float = 0.0
    budget: Budget | None = None  # of every client, for a private fit
    bits: Bits = SECRET_BITS  # what its noise is drawn from

    max_share = 1.0
    keeps_account = False

    @classmethod
    def of(
        cls,
        features: Floats | list[Floats],
        target: Floats,
        clients: NDArray[np.str_],
        columns: Sequence[str],
        hold_out: float = 0.0,
        seed: int = 0,
        units: NDArray[np.str_] | None = None,
        budget: Budget | None = None,
    ) -> LocalNetwork:
        """From rows (N, k), targets (N,) and the client of each (N,); columns have names, the target's last.
        Rows may be given as a list of their columns (N,), which is emptied on the way, so that what has been
        moved need not be kept.

        A share `hold_out` of every client's rows is kept out of training; with `units` (N,), the person or
        thing that each row is of, a share of these. Nothing depends on the order in which rows are given.
        With a privacy budget every row, or unit, is kept out or not whatever the others are.
        """
        names, codes = np.unique(clients, return_inverse=True)
        ids = None if units is None else unit_ids(units)
        order, dealt_by = arranged(codes, features, target, ids)
        holdout = holdout_of(names, codes, dealt_by, hold_out, seed, ids is None, budget is not None)
        training, fresh = order[~holdout[order]], order[holdout[order]]
        rows, kept_out = gathered(features, target, (training, fresh))
        return cls(
            tuple(str(name) for name in names),
            tuple(columns),
            rows,
            tuple(np.bincount(codes[training], minlength=len(names)).tolist()),
            kept_out,
            tuple(np.bincount(codes[fresh], minlength=len(names)).tolist()),
            training,
            None if ids is None else ids[training],
            None if ids is None else ids[fresh],
            dealt_by[training],
            hold_out,
            budget,
        )

    @property
    def has_units(self) -> bool:
        return self.units is not None

    def prepare(self) -> Prepared:
        draws = client_side.unit_counts(self.sizes, self.units)
        # A client with fewer rows than folds is told so when these are dealt.
        offered = np.arange(1, FOLDS + 1) <= np.maximum(draws, 2)[:, None]
        units, sizes = (self.units, self.fresh_units), (self.sizes, self.holdout_sizes)
        return client_side.prepared(self.rows, *sizes, offered, 0.0, *units)

    def in_units(self, standard: Standard, prepared: Prepared) -> LocalClients:
        self._convert(standard)
        federation = Federation.from_samples(
            jax.device_put(self.rows), self.sizes, "unbounded", self.names, self.columns, self.units, self.ids
        )
        return LocalClients(federation, self.fresh, self.holdout_sizes, {}, self.fresh_units)

    def privately(self, standard: Standard, plan: Plan) -> LocalPrivate:
        self._convert(standard)
        parts = []
        for rows, sizes, units in (
            (self.rows, self.sizes, self.units),
            (self.fresh, self.holdout_sizes, self.fresh_units),
        ):
            ends = np.cumsum(sizes)[:-1]
            z = np.split(private_side.in_agreed_units(rows, standard.target_spread), ends)
            parts.append((z, [None] * len(sizes) if units is None else np.split(units, ends)))
        (training, of_training), (fresh, of_fresh) = parts
        return LocalPrivate(
            tuple(
                Answering(PrivateRows.of(*own, self.budget), plan, self.budget, self.bits)
                for own in zip(training, fresh, of_training, of_fresh, strict=True)
            )
        )

    def _convert(self, standard: Standard) -> None:
        """Put all rows into these units, where they are."""
        if not self.rows.flags.writeable:
            raise BidroError("A network of rows in this process is for one fit; make another for the next.")
        for rows in (self.rows, self.fresh):
            standard.convert(rows)
            rows.setflags(write=False)


@dataclass(frozen=True, eq=False)
class LocalClients:
    """All clients in this process, their rows in standard units."""

    federation: Federation
    fresh: Floats  # (M, k + 1) rows kept out, client after client
    holdout_sizes: tuple[int, ...]
    made: dict[bytes, Floats]  # models (n, d) that clients use, so that they are made once
    fresh_units: NDArray[np.uint64] | None = None  # (M,)

    def clients_of(self, problem: Problem, deal: Deal | None = None, seed: int = 0) -> Ask:
        return IN_PROCESS.clients_of(problem, deal, seed)

    def finest(
        self, most: Sequence[int], folds: int, curvature: bool, by: tuple[Levels | None, ...] = ()
    ) -> tuple[Basis, tuple[Floats, Floats] | None]:
        del folds, curvature  # rows that are here bear any knots
        values, counts = client_side.spread(self.federation.host_rows, self.federation.sizes)
        seen = values[:, :, 0].min(axis=0), values[:, :, -1].max(axis=0)
        found = common_knots(values, counts, most)
        return by_level(found, by, self.federation.host_rows[:, :-1], most) if by else found, seen

    def assess(self, problem: Problem, declared: Box | None, message: Assess) -> Assessment:
        used = self._used(problem.loss, message)
        return client_side.assessment(problem, declared, message, used)

    def own_models(self, loss: Loss, message: Assess) -> Mapping[str, Floats]:
        used, own = self._used(loss, message), np.any(np.asarray(message.freedom) > 0, axis=1)
        return {name: used[i] for i, name in enumerate(self.federation.names) if own[i]}

    def bounds(self, of: Assessed, message: Fixed) -> HoldoutBounds:
        names, sizes, used = self.federation.names, self.holdout_sizes, self._used(of.loss, message)
        return client_side.bounds(names, self.fresh, sizes, of, message, used, self.fresh_units)

    def beside(self, of: Assessed, message: Fixed) -> Beside:
        kept, trained_on = bool(sum(self.holdout_sizes)), self.federation.host_rows
        models = {"shared": np.asarray(message.x)[None], "own": self._used(of.loss, message)}
        if np.asarray(message.pooled).size:
            models["pooled"] = np.asarray(message.pooled)[None]
        return beside_rows(
            of.loss,
            trained_on[:, -1],
            self.fresh if kept else trained_on,
            self.holdout_sizes if kept else self.federation.sizes,
            {name: np.broadcast_to(x, (self.federation.n, x.shape[1])) for name, x in models.items()},
            kept,
        )

    def _used(self, loss: Loss, message: Assess | Fixed) -> Floats:
        """(n, d) the models that clients use, by what a message says of them."""
        x, freedom = np.asarray(message.x), np.asarray(message.freedom)
        key = x.tobytes() + freedom.tobytes()
        if key not in self.made:
            rows, sizes = self.federation.host_rows, self.federation.sizes
            self.made[key] = client_side.own_models(loss, rows, sizes, x, freedom)
        return self.made[key]

    def reference(self, stated: Problem, standard: Standard) -> Floats:
        return np.zeros((0, stated.federation.m))

    def distances(self, stated: Problem, found: Assessment) -> Floats:
        return cloud_distances(stated)


@dataclass(frozen=True, eq=False)
class LocalPrivate:
    """All clients in this process, each with its own noise."""

    clients: tuple[Answering, ...]

    def moments(self) -> NoisyMoments:
        return _stacked([one.moments() for one in self.clients])

    def gradients(self, t: int, message: AtModel) -> NoisyGradients:
        return _stacked([one.gradients(message) for one in self.clients])

    def losses(self, message: Judge) -> NoisyLosses:
        return _stacked([one.losses(message) for one in self.clients])


def _stacked(replies: Sequence[T]) -> T:
    """One reply with a leading axis of clients."""
    return jax.tree.map(lambda *parts: np.stack(parts), *replies)
