"""How far a row may lie from its prediction: conformal quantiles of scores on rows that training never saw.

A score says how badly a row's target fits its prediction: |y - f(x)|, that over an estimated spread of x, or
of a class how little it was expected. Let q be a quantile of such scores; the targets whose score is at most
q are an interval, or a set of classes. Whose quantile it is depends on what is known of the new row's client:

(a) its client is known: that client's own quantile, so that coverage holds at every client, and under any
    mixture of them.
(b) it is of these clients, and nobody knows which: y stays unless every client rejects it,

        {y : max_i p_i(y) > alpha},   p_i(y) = (1 + #{j : s_ij >= s(y)}) / (n_i + 1),

    which with one score for all clients is the largest of their quantiles.
(c) its client is new, drawn as these were: a client is one draw, with its mass shared by its rows.

One rule has all three: K draws have mass 1 / (K + 1) each, shared evenly by their rows, and the new draw has
the rest, at infinity; q is the least score that leaves mass of at most alpha above it. A row is a draw; or a
person is, and then one random row of a new person is what is promised; or a client. What is promised is
coverage *on average* over calibration rows: of a few rows it may be much less (`bound` is for that: the same
quantile with a confidence, from order statistics; of people by betting on their shares beyond it, which for
monotone shares needs no more than a bound at each q by itself).

Clients with too few rows for a quantile share one, grouped by their numbers of rows alone. Their rows are
strata: n_i of each, with proportions n_i / n. The number N(t) of them at or below t is a sum of independent
zeros and ones with different means, and where p(t) is their mean and k - 1 >= n p, P(N >= k) is no more than
that of the binomial (Hoeffding 1956). So the k-th smallest is too low with probability of at most the
binomial's, and on average it leaves out at most

    int_0^c P(Bin(n, p) >= k) dp + 1 - c,   c = (k - 1) / n.

Where rows move by at most r in W_p after these were drawn, they move farther than u with probability at most
(r / u)^p (Markov), and otherwise a score of slope L grows by at most L u: q(alpha - (r / u)^p) + L u covers
them, with u fixed beforehand.

References: Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005. Dunn, Wasserman and
Ramdas, arXiv 1809.07441. Lee, Barber and Willett, arXiv 2306.06342 (hierarchical). Yang and Jin, arXiv
2601.02998 (max-p). Bates et al., J. ACM 68, 2021 (monotone risks). Hoeffding, Ann. Math. Statist. 27, 1956.
Aolaritei et al., arXiv 2502.14105 (shift).
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls
from scipy.special import bdtr, betainc, logsumexp

from bidro.certify.mean_bounds import betting, fewest
from bidro.certify.rounding import decimals_up
from bidro.core.arrays import Floats
from bidro.core.errors import BidroError, check_confidence, is_number, listed
from bidro.core.files import parsed_json
from bidro.core.pytrees import Frozen
from bidro.losses import LinearScores, Loss, Tweedie

# 1 - 0.9 is a little less than 0.1; ranks must not notice.
_ROUNDING = 1e-9
# As a share of numbers, far above the rounding of what is computed of them: rows whose scores are equal in
# exact arithmetic, as of counts and of categories many are, are inside together or outside together.
_SAME = 2.0**-40
_MOST_NAMED = 5
# Digits of a score that is shown, rounded up.
_SHOWN = 4
# Rows that are put into a basis together, so that no wide copy of all is made.
_TOGETHER = 16_384
# Features that a spread is made of at the most, rows that it takes at the least, and the least part of the
# mean error that it is anywhere.
_MOST_FEATURES, _FEWEST_FOR_SPREAD, _LEAST_SPREAD = 20, 60, 0.1
# The share whose intervals are to be narrow, and by how much they must be for a spread to be worth it.
_WIDTH_AT, _WORTH = 0.9, 0.99
# The shares of rows that a model's intervals are kept for.
SHARES = (0.5, 0.8, 0.9, 0.95, 0.99)
FORMAT, VERSION, FILE = "bidro intervals", 1, "intervals.json"


@dataclass(frozen=True, eq=False)
class Calibration:
    """The scores of the calibration rows of one client, or of a group of clients."""

    scores: Floats  # (N,)
    draws: NDArray[np.int64]  # (N,) which draw a row is of, from 0: itself, a person, or a client
    strata: bool = False  # whether they are of several clients, each with a fixed number of draws

    @classmethod
    def of(cls, scores: ArrayLike, draws: ArrayLike | None = None) -> Calibration:
        """Every row a draw by itself, unless `draws` (N,) are labels. Raises BidroError for scores that are
        not numbers."""
        values = np.asarray(scores, float)
        if values.ndim != 1 or np.isnan(values).any():
            raise BidroError("Scores of calibration rows must be one number a row, and none missing.")
        if draws is None:
            return cls(values, np.arange(len(values)))
        labels = np.asarray(draws)
        if labels.shape != values.shape:
            raise BidroError(f"There are {len(values):,} scores and {len(labels):,} labels; give one a row.")
        return cls(values, np.unique(labels, return_inverse=True)[1])

    @property
    def count(self) -> int:
        """Of draws."""
        return int(self.draws.max()) + 1 if len(self.draws) else 0

    @property
    def single(self) -> bool:
        """Whether every draw has one row."""
        return self.count == len(self.scores)

    def one_row_each(self) -> Calibration:
        """One row of every draw, each as likely as another, whatever the order of rows: drawn anew for other
        scores, since one choice for all would favour the small ones, or the large, time and again."""
        sizes = np.bincount(self.draws)
        order = np.lexsort((self.scores, self.draws))
        seed = blake2b(self.scores[order].tobytes(), digest_size=16).digest()
        chosen = np.random.default_rng(int.from_bytes(seed, "little")).integers(0, sizes)
        rows = order[np.cumsum(sizes) - sizes + chosen]
        return Calibration(self.scores[rows], np.arange(self.count), self.strata)

    def quantile(self, alpha: float) -> float:
        """The score that a new draw's exceeds with probability at most `alpha`, on average over these; inf
        where they are too few. Of draws with several rows: the score of one of its rows, at random."""
        if self.strata:
            plain = self if self.single else self.one_row_each()
            return _ranked(plain.scores, stratified_rank(plain.count, alpha))
        if self.single:
            return _ranked(self.scores, rank_of(self.count, alpha))
        missed, scores = _missed(self)
        enough = missed * self.count + 1 <= alpha * (self.count + 1) + _ROUNDING
        return float(scores[np.argmax(enough)]) if enough.any() else math.inf

    def bound(self, alpha: float, confidence: float) -> float:
        """The same with this confidence for these calibration rows, not on average over such; inf where they
        are too few."""
        if self.single:
            return _ranked(self.scores, confident_rank(self.count, alpha, confidence))
        scores = np.unique(self.scores)
        shares = _shares_beyond(self, scores[-1:])
        if betting(shares[0], 1 - confidence) > alpha:
            return math.inf

        def too_low(place: int) -> bool:
            return betting(_shares_beyond(self, scores[place - 1 : place])[0], 1 - confidence) > alpha

        return float(scores[fewest(lambda k: k < len(scores) and too_low(k)) - 1])


def _missed(of: Calibration) -> tuple[Floats, Floats]:
    """(the mean over draws of the share of a draw's rows above each score, the scores in ascending order)."""
    weight = 1.0 / np.bincount(of.draws)[of.draws] / of.count
    order = np.argsort(of.scores, kind="stable")
    scores, first = np.unique(of.scores[order], return_index=True)
    at = np.add.reduceat(weight[order], first)
    # From the right, so that what is above the largest is 0 exactly.
    return np.append(np.cumsum(at[::-1])[::-1][1:], 0.0), scores


def _shares_beyond(of: Calibration, limits: Floats) -> Floats:
    """(limits, draws) the share of every draw's rows above each limit."""
    sizes = np.bincount(of.draws)
    return np.stack([np.bincount(of.draws, of.scores > limit) / sizes for limit in limits])


def _ranked(scores: Floats, rank: int) -> float:
    """The score of a rank from 1; inf beyond the last."""
    return math.inf if rank > len(scores) else float(np.partition(scores, rank - 1)[rank - 1])


def rank_of(n: int, alpha: float) -> int:
    """The rank, among n independent draws, of the one that another exceeds with probability at most `alpha`;
    n + 1 where none is."""
    return min(n + 1, math.ceil((n + 1) * (1 - alpha) - _ROUNDING))


def confident_rank(n: int, alpha: float, confidence: float) -> int:
    """The least rank k <= n with P(Bin(n, 1 - alpha) >= k) <= 1 - confidence and k - 1 >= n (1 - alpha): the
    k-th smallest of n independent draws, also of several clients, is then exceeded with probability at most
    `alpha`, with this confidence; n + 1 where none is."""

    def too_low(k: int) -> bool:
        return k <= n and (
            k - 1 < n * (1 - alpha) - _ROUNDING or float(bdtr(k - 1, n, 1 - alpha)) < confidence - _ROUNDING
        )

    return min(fewest(too_low), n + 1)


def stratified_rank(n: int, alpha: float) -> int:
    """`rank_of` where the draws are of several clients, so many of each: see the module's docstring."""

    def left_out(k: int) -> float:
        c = (k - 1) / n
        binomial = c * betainc(k, n - k + 1, c) - k / (n + 1) * betainc(k + 1, n - k + 1, c)
        return float(binomial) + 1 - c

    return min(fewest(lambda k: k <= n and left_out(k) > alpha + _ROUNDING), n + 1)


def draws_needed(
    alpha: float, confidence: float | None = None, strata: bool = False, people: bool = False
) -> int:
    """The fewest draws with a finite quantile, or with `confidence` a finite bound of it; `people`: with
    several rows each."""
    if confidence is not None:
        if people:
            return fewest(lambda n: betting(np.zeros(1), 1 - confidence, np.array([float(n)])) > alpha)
        return fewest(lambda n: confident_rank(n, alpha, confidence) > n)
    return fewest(lambda n: (stratified_rank if strata else rank_of)(n, alpha) > n)


@dataclass(frozen=True)
class Groups:
    """Which clients stand for themselves, and which share a quantile: by their numbers of draws alone."""

    alone: tuple[str, ...]
    together: tuple[str, ...] = ()  # whose rows make the shared quantile; some of them may be `alone`, too
    without: tuple[str, ...] = ()  # have none

    @classmethod
    def of(cls, draws: Mapping[str, int], needed: int, needed_together: int) -> Groups:
        """Clients with fewer than `needed` share; where these have fewer than `needed_together` in all, the
        next larger ones lend theirs, as long as anybody has some."""
        by_size = sorted(draws, key=lambda name: (draws[name], name))
        alone = tuple(name for name in draws if draws[name] >= needed)
        few = [name for name in by_size if draws[name] < needed]
        if not few:
            return cls(alone)
        ends = np.cumsum([draws[name] for name in by_size])
        enough = np.flatnonzero(ends >= needed_together)
        members = max(len(few), int(enough[0]) + 1 if len(enough) else 0)
        if not len(enough) or members < 2:
            return cls(alone, (), tuple(few))
        return cls(alone, tuple(by_size[:members]))

    @property
    def sharing(self) -> tuple[str, ...]:
        """The clients that use the shared quantile."""
        return tuple(name for name in self.together if name not in self.alone)


def pooled(of: Mapping[str, Calibration], names: tuple[str, ...]) -> Calibration:
    """The rows of several clients as strata; draws of different clients are different."""
    starts = np.cumsum([0, *(of[name].count for name in names)])
    return Calibration(
        np.concatenate([of[name].scores for name in names]),
        np.concatenate([of[name].draws + start for name, start in zip(names, starts[:-1], strict=True)]),
        len(names) > 1,
    )


@dataclass(frozen=True)
class RowQuantiles:
    """The largest scores at which new rows fit, at one share of them; see the module's docstring.

    Examples:
        >>> import numpy as np
        >>> from bidro.certify.intervals import row_quantiles
        >>> errors = {"north": np.arange(1.0, 20.0), "south": np.arange(2.0, 21.0)}
        >>> found = row_quantiles(errors, 0.9)
        >>> found.clients["north"], found.any_mixture
        (18.0, 19.0)
    """

    share: float  # of new rows
    clients: Mapping[str, float]  # (a) where the client is known; inf where there are too few rows
    any_mixture: float  # (b) where it is one of these, in any mixture
    new_client: float | None  # (c) where it is new; None without clients that training did not have
    draws: Mapping[str, int]  # calibration rows, or people, by client
    new_clients: int = 0  # that (c) rests on
    sharing: tuple[str, ...] = ()  # clients with too few rows for a quantile of their own
    people: bool = False  # whether a draw is a person, and the promise one of a random row of a new one
    confidence: float | None = None  # of each of them by itself; None where it is on average
    group: tuple[
        str, ...
    ] = ()  # whose rows the shared quantile is of: these, and who lends where they are few

    def __post_init__(self) -> None:
        for name in ("clients", "draws"):
            object.__setattr__(self, name, Frozen(getattr(self, name)))
        for name in ("sharing", "group"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def of_clients(self, clients: NDArray[np.str_] | None, rows: int) -> Floats:
        """(rows,) of rows whose clients are these; of any mixture where None knows them. A client that was
        not among them is new."""
        if clients is None:
            return np.full(rows, self.any_mixture)
        new = math.inf if self.new_client is None else self.new_client
        names, which = np.unique(clients, return_inverse=True)
        return np.array([self.clients.get(str(name), new) for name in names])[which]

    def __str__(self) -> str:
        """By client how many rows, or people, there are, and the largest score that fits; the promise."""

        def shown(q: float) -> str:
            return "too few" if math.isinf(q) else f"{decimals_up(q, _SHOWN):.{_SHOWN}g}"

        lines = [f"Scores of {self.share:.0%} of new rows are at most"]
        for name, q in self.clients.items():
            how = f"{self.draws[name]:>9,} {'people' if self.people else 'rows'}"
            shared = "  (shared)" if name in self.sharing else ""
            lines.append(f"  {name[:24]:<24} {how} {shown(q):>12}{shared}")
        lines.append(f"  {'any mixture of them':<24} {'':>14} {shown(self.any_mixture):>12}")
        return "\n".join([*lines, self.promise])

    @property
    def promise(self) -> str:
        """What is promised, in which case, under which assumption."""
        row = "one random row of a new person" if self.people else "a new row"
        if self.confidence is None:
            how = (
                f"for {row} the target lies inside with probability at least {self.share:g}, on average over "
                "calibration rows; those at hand may do better or worse"
            )
        else:
            how = (
                f"with confidence {self.confidence:g}, each by itself, the target of {row} lies inside with "
                f"probability at least {self.share:g}"
            )
        drawn = "people, and their rows," if self.people else "rows"
        said = [
            f"Where the client is known, {how}: at that client, and so under any mixture of the clients. "
            f"It assumes that new {drawn} are drawn as that client's held-out ones were, independently."
        ]
        if self.sharing:
            lenders = [name for name in self.group if name not in self.sharing]
            lent = (
                f" and {listed([repr(name) for name in lenders], _MOST_NAMED)}, who lends rows,"
                if lenders
                else ""
            )
            one = len(self.sharing) == 1
            shared = (
                "has too few for an interval of its own and shares one with others"
                if one
                else "have too few for intervals of their own and share one"
            )
            said.append(
                f"{listed([repr(name) for name in self.sharing], _MOST_NAMED)} {shared}, chosen by numbers "
                f"of rows alone: it holds for mixtures that have {'it' if one else 'these'}{lent} in the "
                "proportions of their held-out rows, not at each of them."
            )
        without = [name for name, q in self.clients.items() if math.isinf(q)]
        if without:
            said.append(
                f"At {listed([repr(name) for name in without], _MOST_NAMED)} there are too few, and "
                "nothing is promised."
            )
        if math.isfinite(self.any_mixture):
            but = ", but for the group above" if self.sharing else ""
            said.append(
                "Where the client is not known but one of these, or rows are of any mixture of them, the "
                f"same holds with the intervals of the shared model{but}."
            )
        if self.new_client is not None:
            said.append(
                f"Where the client is new and drawn as the {self.new_clients} that were left out of "
                "training, it holds for one random row of it on average over such clients, not at each."
                if math.isfinite(self.new_client)
                else f"For a new client {self.new_clients} left out of training are too few; "
                f"{draws_needed(1 - self.share)} would do."
            )
        return " ".join(said)


def row_quantiles(
    scores: Mapping[str, ArrayLike],
    share: float = 0.9,
    *,
    confidence: float | None = None,
    shared: Mapping[str, ArrayLike] | None = None,
    new: Mapping[str, ArrayLike] | None = None,
    people: Mapping[str, ArrayLike] | None = None,
) -> RowQuantiles:
    """The quantiles of scores (N_i,) of held-out rows by client, under the models that clients use.

    Args:
        scores: by client, of rows that had no part in training.
        share: of new rows that are to be inside.
        confidence: of every quantile by itself; on average over calibration rows where None.
        shared: the same rows' scores under the shared model, for rows of unknown clients; `scores` by
            default.
        new: scores (N_k,) under the shared model of clients that training did not have.
        people: labels (N_i,) of the persons that rows are of, where these are draws.

    Raises:
        BidroError: for a share outside (0, 1), and scores that are not numbers.
    """
    check_confidence(share)
    if confidence is not None:
        check_confidence(confidence)
    alpha = 1 - share

    def calibrations(of: Mapping[str, ArrayLike]) -> dict[str, Calibration]:
        return {n: Calibration.of(s, None if people is None else people[n]) for n, s in of.items()}

    def quantile(of: Calibration) -> float:
        return of.quantile(alpha) if confidence is None else of.bound(alpha, confidence)

    used = calibrations(scores)
    common = used if shared is None else calibrations(shared)
    draws = {name: one.count for name, one in used.items()}
    several = any(not one.single for one in used.values())
    groups = Groups.of(draws, *(draws_needed(alpha, confidence, strata, several) for strata in (False, True)))

    def of_groups(which: dict[str, Calibration]) -> dict[str, float]:
        found = dict.fromkeys(which, math.inf) | {name: quantile(which[name]) for name in groups.alone}
        if groups.together:
            found |= dict.fromkeys(groups.sharing, quantile(pooled(which, groups.together)))
        return found

    new_client = None
    if new is not None:
        labels = np.repeat(np.arange(len(new)), [np.size(own) for own in new.values()])
        together = Calibration.of(np.concatenate([np.asarray(own, float) for own in new.values()]), labels)
        new_client = quantile(together)
    own, alike = of_groups(used), of_groups(common)
    return RowQuantiles(
        share,
        own,
        max(alike.values()),
        new_client,
        draws,
        0 if new is None else len(new),
        groups.sharing,
        people is not None,
        confidence,
        groups.together,
    )


def room_for_shift(shift: float, order: float, slope: float, share: float) -> tuple[float, float]:
    """(the share whose quantile is taken, what is added to it) so that a share of rows is inside after rows
    have moved by at most `shift` in W_p, p the `order`, where a score changes by at most `slope` a unit.

    Half of the misses are for rows that move farther than u = r (2 / alpha)^(1/p), by Markov's inequality:
    fixed by what is promised alone, so that no row has a say in it."""
    alpha = 1 - share
    return 1 - alpha / 2, slope * shift * (2 / alpha) ** (1 / order)


@dataclass(frozen=True, eq=False)
class Spread:
    """How far rows lie from their prediction, as a sum over features v of positive parts,

        sigma(v) = base + sum_j sum_k up_jk (v_j - t_jk)_+ + down_jk (t_jk - v_j)_+,

    v inside the range seen in training. Coverage holds whatever it is; it says where intervals are wide."""

    base: float  # > 0
    columns: NDArray[np.int64]  # (c,) the features that it is made of
    knots: Floats  # (c, 3) t: the least value, the median, and the largest
    up: Floats  # (c, 3), >= 0
    down: Floats  # (c, 3), >= 0

    def of(self, features: Floats) -> Floats:
        """(N,) for features (N, k) in the units of training."""
        found = np.empty(len(features))
        for begin in range(0, len(features), _TOGETHER):
            part = features[begin : begin + _TOGETHER, self.columns]
            found[begin : begin + len(part)] = self.base + _hinges(part, self.knots) @ self._weights
        return found

    @property
    def _weights(self) -> Floats:
        return np.concatenate([self.up.ravel(), self.down.ravel()])

    @classmethod
    def fitted(cls, features: Floats, errors: Floats) -> Spread | None:
        """To absolute errors (N,) of training rows, by non-negative least squares; None where even spreads
        make narrower intervals by cross-validation in two folds, or the errors are all 0.

        Of many features those that follow the errors most."""
        half, whole = np.arange(len(errors)) % 2 == 0, cls._fitted(features, errors)
        if whole is None or len(errors) < _FEWEST_FOR_SPREAD:
            return None
        uneven = even = 0.0
        for some in (half, ~half):
            one = cls._fitted(features[some], errors[some])
            if one is None:
                return None
            sigma = one.of(features[~some])
            uneven += float(np.quantile(errors[~some] / sigma, _WIDTH_AT) * sigma.mean())
            even += float(np.quantile(errors[~some], _WIDTH_AT))
        return whole if uneven < _WORTH * even else None

    @classmethod
    def _fitted(cls, features: Floats, errors: Floats) -> Spread | None:
        mean = float(errors.mean())
        if not mean > 0:
            return None
        apart = features - features.mean(axis=0)
        scale = np.sqrt((apart**2).sum(axis=0))
        follows = np.abs(errors - mean) @ np.abs(apart) + np.abs((errors - mean) @ apart)
        follows = np.where(scale > 0, follows / np.where(scale > 0, scale, 1.0), -1.0)
        columns = np.sort(np.argsort(-follows, kind="stable")[: min(_MOST_FEATURES, int((scale > 0).sum()))])
        part = features[:, columns]
        if not len(columns):
            return None
        knots = np.stack([part.min(axis=0), np.median(part, axis=0), part.max(axis=0)], axis=1)
        design = np.column_stack([np.ones(len(part)), _hinges(part, knots)])
        # Of the triangle of a QR factorisation the residual has the same norm, less a constant.
        triangle = np.asarray(np.linalg.qr(np.column_stack([design, errors / mean]), mode="r"))
        size = np.maximum(np.sqrt((triangle[:, :-1] ** 2).sum(axis=0)), 1e-300)
        found = nnls(triangle[:, :-1] / size, triangle[:, -1])[0] / size * mean
        up, down = found[1:].reshape(2, len(columns), 3)
        return cls(max(float(found[0]), _LEAST_SPREAD * mean), columns, knots, up, down)

    def to_dict(self) -> dict[str, Any]:
        return {"base": self.base} | {
            name: getattr(self, name).tolist() for name in ("columns", "knots", "up", "down")
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Spread:
        """Raises ValueError, TypeError or KeyError for what is none."""
        columns = np.asarray(content["columns"], np.int64)
        knots, up, down = (np.asarray(content[part], float) for part in ("knots", "up", "down"))
        base = float(content["base"])
        shapes = {part.shape for part in (knots, up, down)}
        if shapes != {(len(columns), 3)} or not base > 0 or up.min() < 0 or down.min() < 0:
            raise ValueError("a spread is not positive, or its parts do not fit")
        return cls(base, columns, knots, up, down)


def _hinges(part: Floats, knots: Floats) -> Floats:
    """(N, 6 c) positive parts of features (N, c) less their knots and the other way round, kept in range."""
    inside = np.clip(part, knots[:, 0], knots[:, -1])
    above = inside[:, :, None] - knots
    flat = above.reshape(len(part), -1)
    return np.concatenate([np.maximum(flat, 0.0), np.maximum(-flat, 0.0)], axis=1)


class Fits(NamedTuple):
    """How well each client's rows fit a model, as scores, before any spread."""

    scores: Mapping[str, Floats]  # (N_i,) by client: |y - f(x)|, or of a class -log of its softmax share
    features: Mapping[str, Floats]  # (N_i, k) in the units of training

    def over(self, spread: Spread | None) -> dict[str, Floats]:
        if spread is None:
            return dict(self.scores)
        return {name: own / spread.of(self.features[name]) for name, own in self.scores.items()}

    @classmethod
    def of(cls, loss: Loss, rows: Mapping[str, Floats], models: Mapping[str, Floats]) -> Fits:
        """Of rows (N_i, k + 1) in the units of training under a model (d,) for each client."""
        return cls(
            {name: row_scores(loss, models[name], own) for name, own in rows.items()},
            {name: own[:, :-1] for name, own in rows.items()},
        )


class HeldOutFits(NamedTuple):
    """All that statements about rows are made of, of rows that training never saw."""

    used: Fits  # under the models that clients use
    shared: Fits  # under the shared model
    guess: Fits | None = None  # of one number for everybody; of classes mistakes, as below
    spread: Spread | None = None  # from training rows
    new: Fits | None = None  # of clients that training did not have, under the shared model
    people: Mapping[str, NDArray[Any]] | None = None  # labels (N_i,) by client, where draws are people
    mistakes: Mapping[str, Floats] | None = None  # (N_i,) of classes, 1 where the model in use is wrong


def interval_obstacle(loss: Loss) -> str | None:
    """Why there are no intervals for rows under a loss; None where there are."""
    if loss.labels is not None or isinstance(loss, LinearScores):
        return None
    return (
        "Intervals for rows are for numbers and classes that a linear model predicts: of a loss of your own, "
        "and of survival times, some of which are censored and so never seen, there are none."
    )


def tells_of_rows(loss: Loss) -> bool:
    """Whether how far a row lies from its prediction is a number, in the target's unit."""
    return loss.labels is None and interval_obstacle(loss) is None


def class_scores(outputs: Floats) -> Floats:
    """(N, classes) how little each class is expected, from a model's outputs (N, 1) or (N, classes)."""
    if outputs.shape[1] == 1:
        return np.logaddexp(0.0, np.concatenate([outputs, -outputs], axis=1))
    return np.asarray(logsumexp(outputs, axis=1, keepdims=True) - outputs)


def interval_ends(loss: Loss, outputs: Floats, most: Floats) -> tuple[Floats, Floats]:
    """(lower, upper), both (N,), of the targets that lie at most so much (N,) from what a model's outputs
    (N, 1) predict; counts and costs are never below 0."""
    centre = np.asarray(loss.predicted(outputs[:, 0]))
    half = most + _SAME * (np.abs(centre) + most)
    lower = centre - half
    return np.maximum(lower, 0.0) if isinstance(loss, Tweedie) else lower, centre + half


def class_sets(outputs: Floats, most: Floats) -> NDArray[np.bool_]:
    """(N, classes) the classes whose score is at most so much (N,), and the likeliest: an empty set would be
    of no use."""
    scores = class_scores(outputs)
    same = _SAME * (1 + np.abs(outputs).max(axis=1))
    inside = scores <= (most + same)[:, None]
    return np.asarray(inside | (scores == scores.min(axis=1, keepdims=True)))


def row_scores(loss: Loss, x: Floats, rows: Floats) -> Floats:
    """(N,) the score of rows (N, k + 1), target last, under a model (d,). Raises BidroError for a loss that
    has none."""
    if (why := interval_obstacle(loss)) is not None:
        raise BidroError(why)
    columns: Any = loss
    w, b = columns.split(x)
    found = np.empty(len(rows))
    for begin in range(0, len(rows), _TOGETHER):
        part = rows[begin : begin + _TOGETHER]
        outputs = np.asarray(columns.design(part))[:, :-1] @ np.atleast_2d(w).T + np.atleast_1d(b)
        if loss.labels is None:
            found[begin : begin + len(part)] = np.abs(part[:, -1] - loss.predicted(outputs[:, 0]))
        else:
            places = np.searchsorted(np.asarray(loss.labels), part[:, -1])
            found[begin : begin + len(part)] = class_scores(outputs)[np.arange(len(part)), places]
    return found


@dataclass(frozen=True, eq=False)
class Intervals:
    """What a model's intervals are made of, at every share of `SHARES`; no row is in it but as a quantile."""

    quantiles: tuple[RowQuantiles, ...]  # of scores over the spread, on average
    spread: Spread | None  # None for intervals of even width
    shifted: tuple[RowQuantiles, ...] = ()  # of scores alone, at the shares that `room_for_shift` takes
    slope: float | None = None  # of the score, in the metric of training; None where it is not known
    order: float = 1.0  # p of W_p
    # Whose quantile is around a personal model that stays at its site: without it, that of any mixture holds.
    personal: tuple[str, ...] = ()

    @classmethod
    def of(cls, fits: HeldOutFits, slope: float | None = None, order: float = 1.0) -> Intervals:
        """`slope`: what a score changes at most as a row moves by 1 in the metric of W_p, p the `order`."""

        def quantiles(shares: tuple[float, ...], by: Spread | None) -> tuple[RowQuantiles, ...]:
            new = None if fits.new is None else fits.new.over(by)
            own, common = fits.used.over(by), fits.shared.over(by)
            return tuple(row_quantiles(own, s, shared=common, new=new, people=fits.people) for s in shares)

        spread = fits.spread

        after = tuple(room_for_shift(0.0, order, 0.0, share)[0] for share in SHARES)
        return cls(
            quantiles(SHARES, spread),
            spread,
            () if slope is None else quantiles(after, None),
            slope,
            order,
        )

    def at(self, share: float, shift: float | None = None) -> tuple[RowQuantiles, float]:
        """(the quantiles of a share, what is added to them for a shift). Raises BidroError for a share that
        is not kept, and a shift whose effect is not known."""
        shares = [one.share for one in self.quantiles]
        if not is_number(share) or share not in shares:
            raise BidroError(
                f"Intervals are kept for {listed([f'{one:g}' for one in shares])} of the rows; got {share!r}."
            )
        place = shares.index(share)
        if not shift:
            return self.quantiles[place], 0.0
        if self.slope is None:
            raise BidroError(
                "Room for a shift needs to know how fast a score changes as rows move, and of classes, of "
                "counts and costs, and across sites it is not known; leave the shift out."
            )
        return self.shifted[place], room_for_shift(shift, self.order, self.slope, share)[1]

    def half_widths(
        self,
        features: Floats,
        clients: NDArray[np.str_] | None,
        share: float,
        shift: float | None = None,
        without: Collection[str] = (),
    ) -> Floats:
        """(N,) the largest score that fits, for features (N, k) in the units of training; around the shared
        model for clients whose personal one is not at hand."""
        found, more = self.at(share, shift)
        if without:
            found = replace(found, clients={**found.clients, **dict.fromkeys(without, found.any_mixture)})
        q = found.of_clients(clients, len(features))
        return q + more if self.spread is None or shift else q * self.spread.of(features)

    def promise(self, share: float, shift: float | None = None) -> str:
        """What holds for the intervals of a share of rows."""
        found, _ = self.at(share, shift)
        if not shift:
            return found.promise
        return (
            f"{replace(found, share=share).promise} It holds where rows have moved, after these were held "
            f"out, by at most {shift:g} standard deviations in the mean (W_{self.order:g}): half of the "
            "misses are for rows that moved farther than was fixed beforehand."
        )

    def to_json(self) -> str:
        content = {
            "format": FORMAT,
            "version": VERSION,
            "quantiles": [plain_quantiles(one) for one in self.quantiles],
            "spread": None if self.spread is None else self.spread.to_dict(),
            "shifted": [plain_quantiles(one) for one in self.shifted],
            "slope": self.slope,
            "order": self.order,
            "personal": list(self.personal),
        }
        return json.dumps(content, indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> Intervals:
        """Raises BidroError for text that is none of this version."""
        try:
            content = parsed_json(text)
            if content["format"] != FORMAT or content["version"] != VERSION:
                raise ValueError("it is of another format or version")
            quantiles, shifted = (
                tuple(restored_quantiles(one) for one in content[part]) for part in ("quantiles", "shifted")
            )
            if not quantiles or len(shifted) not in (0, len(quantiles)):
                raise ValueError("shares are missing")
            spread = None if content["spread"] is None else Spread.from_dict(content["spread"])
            slope = None if content["slope"] is None else float(content["slope"])
            personal = tuple(str(name) for name in content.get("personal", ()))
            return cls(quantiles, spread, shifted, slope, float(content["order"]), personal)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BidroError(f"'{where}' holds no intervals that this program reads: {error}.") from error


def plain_quantiles(of: RowQuantiles) -> dict[str, Any]:
    """As JSON has it, infinity as None."""

    def number(q: float) -> float | None:
        return q if math.isfinite(q) else None

    return {
        "share": of.share,
        "clients": {name: number(q) for name, q in of.clients.items()},
        "any_mixture": number(of.any_mixture),
        "new_client": None if of.new_client is None else number(of.new_client),
        "draws": dict(of.draws),
        "new_clients": of.new_clients,
        "sharing": list(of.sharing),
        "people": of.people,
        "confidence": of.confidence,
        "group": list(of.group),
    }


def restored_quantiles(content: Mapping[str, Any]) -> RowQuantiles:
    """Raises ValueError, TypeError or KeyError for what are none."""

    def number(q: Any) -> float:
        return math.inf if q is None else float(q)

    part = dict(content)
    part["clients"] = {str(name): number(q) for name, q in part["clients"].items()}
    part["draws"] = {str(name): int(n) for name, n in part["draws"].items()}
    part["any_mixture"] = number(part["any_mixture"])
    new = int(part["new_clients"])
    part["new_client"] = number(part["new_client"]) if new else None
    if set(part["clients"]) != set(part["draws"]) or type(part["people"]) is not bool:
        raise ValueError("quantiles are of other clients than their rows")
    return RowQuantiles(**part)
