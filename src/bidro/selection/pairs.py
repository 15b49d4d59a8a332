"""Which pairs of features have effects that depend on each other, by cross-validation that ranks them anew in
each fold.

Around the model without pairs, whose clients have offsets of their own (otherwise what tells clients apart
would look like a pair), the loss is a quadratic of what pairs would add. Of products of a few stretches a
feature the score test says how much a pair would gain, and forward selection ranks pairs by it: one that only
stands for another falls back once that is in. Where several rows are of a person, a pair's statistic is
divided by how much larger the variance of its scores is over persons than over rows.

How many are taken is decided on rows left out: in every fold pairs are ranked on its training rows alone, as
of pairs that all rows have chosen, the rows left out have chosen too. The smallest number within one standard
error of the best is taken, and none unless the best gains by two; and how strongly cells are held at 0, by
the same losses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.data.federation import thinned
from bidro.data.splines import Basis, Category, Pair, through
from bidro.losses import LinearScores
from bidro.problem.problem import Problem
from bidro.selection.components import ROUNDING, solved
from bidro.selection.cross_validate import loss_has_kinks
from bidro.selection.rule import required_errors
from bidro.selection.segments import smoothing_of, with_curves

MOST_PAIRS = 10
# Numbers of pairs that are tried, and how strongly their cells are held.
_COUNTS = (0, 1, 2, 3, 4, 6, 8, 10)
_HELD = (1.0, 16.0, 256.0)
# Knots are at these quantiles of all rows; for ranking at the second ones.
_QUANTILES = (0.02, 1 / 6, 1 / 3, 1 / 2, 2 / 3, 5 / 6, 0.98)
_QUANTILES_OF_RANKING = (0.05, 0.5, 0.95)
# Pairs are chosen on about so many rows where there are more, and at least so many of a client.
_ENOUGH_ROWS, _ENOUGH_OF_CLIENT = 10_000, 100
# Of more pairs so many are tested beside the whole model: those with the largest statistics by themselves.
# The first of these are ranked by forward selection.
_SCREENED, _RANKED = 120, 30
# Products of so many pairs are made together.
_TOGETHER = 64
# Numbers of pairs are as good as the best within so many standard errors, and better than none beyond these.
_ERRORS, _ERRORS_OF_GAIN = 1.0, 2.0
_STEPS, _HALVINGS, _LEAST_CHANGE = 25, 12, 1e-8


@dataclass(frozen=True)
class WantedPairs:
    """The pairs of features that a user wants."""

    named: tuple[tuple[int, int], ...] | None  # None where the rows are to say which
    counts: tuple[int, ...]  # how many, of which cross-validation chooses
    without: tuple[int, ...] = ()  # features that are in none

    @classmethod
    def of(
        cls, pairs: Any, names: Sequence[str], without: Iterable[int] = (), straight: Iterable[int] = ()
    ) -> WantedPairs | None:
        """None where none are wanted. Features `without` pairs can be in none, and those that are asked to be
        `straight` are in none unless pairs are demanded. Raises BidroError for a feature that there is not,
        and for one that can be in no pair."""
        without = tuple(without)
        if pairs is None:
            return None
        if isinstance(pairs, str):
            return cls(None, _COUNTS, (*without, *straight))
        if isinstance(pairs, Integral):
            return cls(None, (int(pairs),), without) if int(pairs) else None
        found: list[tuple[int, int]] = []
        for one in pairs:
            sides = [own.columns if isinstance(own, Category) else (own,) for own in one]
            for both in product(*sides):
                for name in both:
                    if name not in names:
                        raise BidroError(
                            f"pairs names '{name}', which is no feature; there are {', '.join(names)}."
                        )
                    if list(names).index(name) in without:
                        raise BidroError(
                            f"'{name}' can be in no pair: it is increasing or decreasing, or has curves by "
                            "level; leave one of the two out."
                        )
                first, second = sorted(map(list(names).index, both))
                if first == second:
                    raise BidroError(f"A pair is of two different features; got '{both[0]}' twice.")
                if (first, second) not in found:
                    found.append((first, second))
        return cls(tuple(found), (len(found),)) if found else None

    @property
    def demanded(self) -> bool:
        """Whether pairs are wanted whatever the rows say."""
        return min(self.counts) > 0


def check_pairs(pairs: Any) -> None:
    """Raise BidroError for pairs that stand for nothing."""
    if pairs is None or (isinstance(pairs, str) and pairs == "auto"):
        return
    if isinstance(pairs, Integral) and not isinstance(pairs, bool) and 0 <= int(pairs) <= MOST_PAIRS:
        return
    if isinstance(pairs, list | tuple) and all(
        isinstance(one, list | tuple)
        and len(one) == 2
        and all(isinstance(own, str | Category) for own in one)
        for one in pairs
    ):
        return
    raise BidroError(
        f"pairs are 'auto', None, a number from 0 to {MOST_PAIRS}, or a list of pairs of names such as "
        f"[('age', 'sex')]; got {pairs!r}."
    )


@dataclass(frozen=True, eq=False)
class PairChoice:
    """The pairs that were taken, and the losses by which."""

    pairs: tuple[Pair, ...]  # those that gain most first
    counts: tuple[int, ...]  # that were tried
    means: Floats  # (counts,) mean losses on rows left out; empty where nothing was tried


def can_choose_pairs(problem: Problem) -> bool:
    """Whether cross-validation can choose pairs: one smooth score a row, and rows that are here."""
    loss, federation = problem.loss, problem.federation
    smooth = isinstance(loss, LinearScores) and loss.scores == 1 and not loss_has_kinks(loss)
    return smooth and not federation.rows_elsewhere and federation.m > 2


def with_pairs(problem: Problem, curved: Problem, pairs: tuple[Pair, ...], signs: Sequence[int]) -> Problem:
    """The problem of straight lines, with the curves of another and pairs."""
    basis = getattr(curved.loss, "basis", None) or Basis(((),) * (problem.federation.m - 1))
    return with_curves(problem, replace(basis, pairs=pairs), signs)


def choose_pairs(
    problem: Problem,
    wanted: WantedPairs,
    folds: int,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> PairChoice:
    """The pairs to be added to the problem's curves; `progress` is called with the share that is done.

    Raises BidroError where pairs are named of a feature of one value.
    """
    federation = problem.federation
    knots = [_knots(own, _QUANTILES) for own in federation.host_rows[:, :-1].T]
    for j in sorted({j for pair in wanted.named or () for j in pair}):
        if len(knots[j]) < 2:
            raise BidroError(
                f"'{federation.columns[j]}' has hardly more than one value, and can be in no pair; leave "
                "it out."
            )

    def made(features: tuple[int, int], held: float) -> Pair:
        return Pair(features, (knots[features[0]], knots[features[1]]), held)

    if not can_choose_pairs(problem) or folds < 2:
        assert wanted.named is not None
        return PairChoice(tuple(made(own, _HELD[1]) for own in wanted.named), wanted.counts, np.zeros(0))
    if sum(federation.sizes) > _ENOUGH_ROWS:
        problem = replace(
            problem, federation=thinned(federation, _ENOUGH_ROWS, max(_ENOUGH_OF_CLIENT, 20 * folds))
        )
    usable = [j for j, own in enumerate(knots) if len(own) > 1 and j not in wanted.without]
    rows = _Rows(problem, usable)
    most = max(wanted.counts)
    fold_ids = problem.federation.folds(folds, seed)
    each = []
    for fold in range(folds):
        if progress is not None:
            progress(fold / (folds + 1))
        trained = rows.fitted(fold_ids != fold)
        order = wanted.named or _ranked(rows, trained, most)
        each.append(_left_out(rows, trained, [made(own, 1.0) for own in order], wanted.counts))
    losses, counts = (np.stack(part) for part in zip(*each, strict=True))
    total = counts.sum()
    means = np.einsum("fn,fnch->ch", counts, losses) / total
    held = means.argmin(axis=1)
    losses, means = losses[:, :, np.arange(len(held)), held], means.min(axis=1)
    place = _smallest(losses, counts / total, means, wanted.counts)
    number = wanted.counts[place]
    order = wanted.named or (
        _ranked(rows, rows.fitted(np.ones(len(fold_ids), bool)), number) if number else []
    )
    return PairChoice(tuple(made(own, _HELD[held[place]]) for own in order), wanted.counts, means)


def _smallest(losses: Floats, share: Floats, means: Floats, counts: Sequence[int]) -> int:
    """The first number of pairs within one standard error of the best, or none, where that may be chosen,
    unless the best is below it by two; from losses (folds, n, counts) of cells with these shares (folds, n)
    of the rows."""
    best = int(np.argmin(means))
    cells = int(np.count_nonzero(share))
    above = means - means[best]
    apart = losses - losses[..., [best]] - above
    errors = np.sqrt(np.sum((share[..., None] * apart) ** 2, axis=(0, 1)) * cells / max(cells - 1, 1))
    near = above <= required_errors(_ERRORS, cells - 1) * errors
    near[best] = True
    if counts[0] == 0:
        near[0] = above[0] <= required_errors(_ERRORS_OF_GAIN, cells - 1) * errors[0]
    return int(np.argmax(near))


def _knots(values: Floats, quantiles: Sequence[float]) -> tuple[float, ...]:
    """At the values themselves where these are few."""
    different = np.unique(values)
    if len(different) > len(quantiles):
        different = np.unique(np.quantile(values, quantiles, method="inverted_cdf"))
    return tuple(map(float, different))


class _Fitted(NamedTuple):
    """The model without pairs, of some of the rows, to second order."""

    used: NDArray[np.bool_]  # (N,)
    slopes: Floats  # (N,) of the loss in the score; 0 where a row is not used
    bends: Floats  # (N,) second derivatives
    scores: Floats  # (N,) of all rows
    offsets: Floats  # (n,) of the clients
    pull: float  # what holds these at 0: the inverse of their variance, times the dispersion
    dispersion: float
    weight: Floats  # (n,) the clients' sums of second derivatives, and the pull


class _Rows:
    """Rows (N, m) of clients, what the model without pairs makes of them, and products of features."""

    def __init__(self, problem: Problem, usable: Sequence[int]) -> None:
        federation, loss = problem.federation, problem.loss
        assert isinstance(loss, LinearScores)
        self.loss, self.usable = loss, tuple(usable)
        rows = federation.host_rows
        self.features, self.target = rows[:, :-1], rows[:, -1]
        self.n, self.people = federation.n, federation.people
        self.owner = np.repeat(np.arange(self.n), federation.sizes)
        self.design = loss.score_columns(rows)
        self.start = np.asarray(problem.constant_model, float)
        # Second derivatives of sums of losses, as many rows as were used for them.
        rows_of_all = sum(federation.sizes)
        penalty = loss.penalty
        d = self.design.shape[1]
        self.penalty = np.zeros((d, d)) if penalty is None else 2 * rows_of_all * penalty
        self.held = 2 * rows_of_all * smoothing_of(problem)
        self.first = np.append(0, np.cumsum(federation.sizes))
        self._sums = sparse.csr_array((np.ones(len(rows)), np.arange(len(rows)), self.first))

    def by_client(self, values: Floats) -> Floats:
        """(n, ...) sums of values (N, ...)."""
        return np.asarray(self._sums @ values)

    def squares(self, fitted: _Fitted, some: Floats, other: Floats) -> Floats:
        """(c, c') second derivatives between columns (N, c) and (N, c'), the clients' offsets following."""
        weighed = fitted.bends[:, None] * some
        sums = self.by_client(weighed)
        if some is other:
            # A product of a matrix with itself is half the work.
            rooted, apart = np.sqrt(fitted.bends)[:, None] * some, sums / np.sqrt(fitted.weight)[:, None]
            return np.asarray(rooted.T @ rooted - apart.T @ apart)
        of_others = self.by_client(fitted.bends[:, None] * other)
        return np.asarray(weighed.T @ other - (sums / fitted.weight[:, None]).T @ of_others)

    def derivatives(self, scores: Floats) -> tuple[Floats, Floats, Floats]:
        """(losses, slopes, second derivatives), all (N,)."""
        value, slope = self.loss.of_scores(self.target, scores[None])
        return value, slope[0], self.loss.score_hessian(self.target, scores[None])[0, 0]

    def fitted(self, used: NDArray[np.bool_]) -> _Fitted:
        """By Newton's method, in turns with the variance of offsets at its most likely value (by
        expectation and maximisation)."""
        x, b, pull = self.start, np.zeros(self.n), 1.0
        free, dispersion, before = 0.0, 1.0, np.inf
        for _ in range(_STEPS):
            scores = self.design @ x + b[self.owner]
            value, slope, bend = self.derivatives(scores)
            slope, bend = slope * used, bend * used
            weight = self.by_client(bend)
            if not self.loss.log_likelihood and bend.sum() > 0:
                dispersion = max(float(slope @ slope / bend.sum()), np.finfo(float).tiny)
            free = float(np.mean(b**2 / dispersion + 1 / (weight + pull))) if self.n > 1 else 0.0
            pull = 1 / max(free, ROUNDING / max(float(bend.mean()), np.finfo(float).tiny))
            now = _Fitted(used, slope, bend, scores, b, pull, dispersion, weight + pull)
            objective = float(value @ used + 0.5 * x @ self.penalty @ x + 0.5 * pull * b @ b)
            if abs(before - objective) <= _LEAST_CHANGE * max(abs(objective), 1e-300):
                break
            before = objective
            of_offsets = (self.by_client(slope) + pull * b) / now.weight
            of_model = self.design.T @ slope + self.penalty @ x
            of_model -= self.by_client(bend[:, None] * self.design).T @ of_offsets
            step = -solved(self.squares(now, self.design, self.design) + self.penalty, of_model)
            of_clients = self.by_client(bend[:, None] * self.design) @ step / now.weight
            move = -of_offsets - (of_clients if self.n > 1 else 0.0)
            if self.n == 1:
                move = np.zeros(1)
            share = 1.0
            for _ in range(_HALVINGS):
                to, offsets = x + share * step, b + share * move
                value, _, _ = self.derivatives(self.design @ to + offsets[self.owner])
                reached = value @ used + 0.5 * to @ self.penalty @ to + 0.5 * pull * offsets @ offsets
                if reached <= objective:
                    break
                share /= 2
            x, b = x + share * step, b + share * move
        return now


def _products(rows: _Rows, pairs: Sequence[tuple[int, int]]) -> tuple[Floats, list[slice]]:
    """(columns (N, c), those of every pair): products of a few stretches of two features."""
    knots = {j: _knots(rows.features[:, j], _QUANTILES_OF_RANKING) for j in {j for own in pairs for j in own}}
    parts, places, end = [np.zeros((len(rows.target), 0))], [], 0
    for first, second in pairs:
        columns = np.zeros((len(rows.target), 0))
        if len(knots[first]) > 1 and len(knots[second]) > 1:
            pair = Pair((first, second), (knots[first], knots[second]))
            columns = pair.expand(rows.features[:, first], rows.features[:, second])
        parts.append(columns)
        places.append(slice(end, end + columns.shape[1]))
        end += columns.shape[1]
    return np.concatenate(parts, axis=1), places


def _normal(statistic: float, degrees: float) -> float:
    """A chi-squared variate as a normal one (Wilson and Hilferty 1931): by what is so rare compare variates
    of different degrees of freedom."""
    spread = 2 / (9 * degrees)
    return float(((statistic / degrees) ** (1 / 3) - (1 - spread)) / np.sqrt(spread))


def _tested(score: Floats, squares: Floats, size: Floats, dispersion: float) -> float:
    """How rare a score is, as a normal variate, whose variance is `squares` times the dispersion; `size` is
    their diagonal before anything was taken off. -inf where nothing is left of it."""
    unit = np.sqrt(np.where(size > 0, size, 1.0))
    values, vectors = np.linalg.eigh(squares / unit / unit[:, None])
    left = values > 1e-6
    if not left.any():
        return -np.inf
    along = vectors[:, left].T @ (score / unit)
    return _normal(float(np.sum(along**2 / values[left])) / dispersion, int(left.sum()))


def _ranked(rows: _Rows, fitted: _Fitted, most: int) -> list[tuple[int, int]]:
    """At most so many pairs, from the one that gains most, each beside those before it."""
    own = rows.squares(fitted, rows.design, rows.design) + rows.penalty
    every = _screened(rows, fitted, list(combinations(rows.usable, 2)))
    tested: list[float] = []
    for begin in range(0, len(every), _TOGETHER):
        columns, places = _products(rows, every[begin : begin + _TOGETHER])
        score, squares, size = _beside(rows, fitted, own, columns)
        tested += [_tested(score[p], squares[p, p], size[p], fitted.dispersion) for p in places]
    best = [k for k in np.argsort(-np.array(tested), kind="stable")[:_RANKED] if tested[k] > -np.inf]
    pairs = [every[k] for k in best]
    columns, places = _products(rows, pairs)
    score, squares, size = _beside(rows, fitted, own, columns)
    effect = _design_effects(rows, fitted, own, columns, places, squares)
    found: list[tuple[int, int]] = []
    while len(found) < min(most, len(pairs)):
        left = [k for k, pair in enumerate(pairs) if pair not in found]
        of = [
            _tested(
                score[places[k]],
                squares[places[k], places[k]],
                size[places[k]],
                fitted.dispersion * effect[k],
            )
            for k in left
        ]
        if max(of) == -np.inf:
            break
        taken = left[int(np.argmax(of))]
        found.append(pairs[taken])
        some = places[taken]
        follows = solved(squares[some, some], squares[some])
        score, squares = score - follows.T @ score[some], squares - squares[some].T @ follows
    return found


def _screened(rows: _Rows, fitted: _Fitted, pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those with the largest statistics as if products of two stretches mattered one by one, beside the
    clients' offsets alone: all their sums are products of matrices that have a column a stretch."""
    if len(pairs) <= _SCREENED:
        return pairs
    stretches = [np.zeros((len(rows.target), 0))] * rows.features.shape[1]
    for j in rows.usable:
        knots = _knots(rows.features[:, j], _QUANTILES_OF_RANKING)
        if len(knots) > 1:
            stretches[j] = through(rows.features[:, j], knots)
    feature = np.repeat(np.arange(len(stretches)), [own.shape[1] for own in stretches])
    T = np.concatenate(stretches, axis=1)
    bent, squared = fitted.bends[:, None] * T, T**2
    score, size = (fitted.slopes[:, None] * T).T @ T, (fitted.bends[:, None] * squared).T @ squared
    left = size.copy()
    for weight, begin, end in zip(fitted.weight, rows.first[:-1], rows.first[1:], strict=True):
        left -= (bent[begin:end].T @ T[begin:end]) ** 2 / weight
    known = left > ROUNDING * size
    each = np.where(known, score**2 / np.where(known, left, 1.0), 0.0)
    # (features, features) sums over the products of two features, and how many these are.
    of = np.eye(len(stretches))[feature]
    statistic, degrees = of.T @ each @ of / fitted.dispersion, of.T @ known @ of
    rare = [_normal(statistic[own], degrees[own]) if degrees[own] else -np.inf for own in pairs]
    return [pairs[k] for k in sorted(np.argsort(-np.array(rare), kind="stable")[:_SCREENED])]


def _beside(rows: _Rows, fitted: _Fitted, own: Floats, columns: Floats) -> tuple[Floats, Floats, Floats]:
    """(minus the slopes (c,) of the loss along columns (N, c), second derivatives (c, c) where the model
    without pairs, whose own are `own`, follows; their diagonal where it does not)."""
    between = rows.squares(fitted, rows.design, columns)
    squares = rows.squares(fitted, columns, columns)
    return -columns.T @ fitted.slopes, squares - between.T @ solved(own, between), np.diag(squares).copy()


def _design_effects(
    rows: _Rows, fitted: _Fitted, own: Floats, columns: Floats, places: Sequence[slice], squares: Floats
) -> Floats:
    """(pairs,) by how much the variance of each pair's scores over persons is above that over rows, at least
    1; 1 where a row is a person."""
    if rows.people is None:
        return np.ones(len(places))
    _, person = np.unique(np.stack([rows.owner.astype(np.uint64), rows.people]), axis=1, return_inverse=True)
    apart = columns - rows.design @ solved(own, rows.squares(fitted, rows.design, columns))
    scores = apart * fitted.slopes[:, None]
    sums = np.zeros((person.max() + 1, columns.shape[1]))
    np.add.at(sums, person.ravel(), scores)
    found = np.ones(len(places))
    for k, some in enumerate(places):
        expected = fitted.dispersion * np.trace(squares[some, some])
        if expected > 0:
            found[k] = max(1.0, float(np.sum(sums[:, some] ** 2)) / expected)
    return found


def _left_out(
    rows: _Rows, fitted: _Fitted, pairs: Sequence[Pair], counts: Sequence[int]
) -> tuple[Floats, Floats]:
    """(mean losses (n, counts, held) on the rows that were not used, of the first so many pairs and for every
    strength of `_HELD`; how many rows (n,) these are): from the model without pairs by a step of Newton's
    method, which for squared loss is the optimum."""
    columns = np.concatenate(
        [np.zeros((len(rows.target), 0))]
        + [pair.expand(*rows.features[:, list(pair.features)].T) for pair in pairs],
        axis=1,
    )
    ends = np.cumsum([0, *(pair.columns for pair in pairs)])
    cells = [(b - a) * (d - c) for a, b, c, d in (pair.ends for pair in pairs)]
    strength = np.concatenate([np.zeros(0), *cells]) ** 2 * rows.held
    every = np.concatenate([rows.design, columns], axis=1)
    d = rows.design.shape[1]
    squares = rows.squares(fitted, every, every)
    squares[:d, :d] += rows.penalty
    slopes = np.append(np.zeros(d), columns.T @ fitted.slopes)
    of_clients = rows.by_client(fitted.bends[:, None] * every) / fitted.weight[:, None]
    out = ~fitted.used
    held = rows.by_client(out.astype(float))
    steps = np.zeros((len(counts), len(_HELD), every.shape[1]))
    for c, count in enumerate(counts):
        size = d + int(ends[min(count, len(pairs))])
        for h, times in enumerate(_HELD):
            matrix = squares[:size, :size].copy()
            inside = np.arange(d, size)
            matrix[inside, inside] += times * strength[: size - d]
            steps[c, h, :size] = -solved(matrix, slopes[:size])
    along = steps.reshape(-1, every.shape[1]).T
    moves = every @ along - (of_clients @ along)[rows.owner] * (rows.n > 1)
    each = [_stepped(rows, fitted, one, out) for one in np.ascontiguousarray(moves.T)]
    losses = np.stack(each, axis=1).reshape(rows.n, len(counts), len(_HELD))
    return losses / np.maximum(held, 1.0)[:, None, None], held


def _stepped(rows: _Rows, fitted: _Fitted, moves: Floats, out: NDArray[np.bool_]) -> Floats:
    """(n,) sums of losses over rows `out` after scores have moved (N,), by half as much and so on where the
    loss over the rows that were used would rise."""
    share, before = 1.0, float(rows.derivatives(fitted.scores)[0] @ fitted.used)
    for _ in range(_HALVINGS):
        values = rows.derivatives(fitted.scores + share * moves)[0]
        if values @ fitted.used <= before * (1 + 1e-12):
            break
        share /= 2
    return rows.by_client(values * out)
