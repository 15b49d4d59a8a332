"""The cost of robustness: the best worst case for what it may cost on average.

Of the candidates of a cross-validation, those count whose mean loss on rows left out is at most a share
`max_cost` above that of pooled training, with a standard error to spare, and whose worst fifth (the mean over
the worst fifth of the clients: of few clients the worst decile is too noisy to choose by) is lower by two
standard errors: the best of several is lower by chance. And a choice must gain more than it pays: the share
by which the worst tenth falls, which is what users are shown, must be above the share by which the mean rises
by two standard errors of the difference, on the same folds. Of these the one with the lowest worst fifth is
taken; where there is none it is pooled training.

The error of a worst fifth is that of its clients' means over their folds, so that clients report nothing
more than losses by fold; that of a mean is over the clients, few as they are of those that a model meets.
Constants and rules were fixed on 12 tables and held on 14 others: see docs/choosing.md.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, stdtrit

from bidro.core.arrays import Floats
from bidro.core.errors import BidroError, is_number
from bidro.core.sets import CappedSimplex, MixtureSet, Simplex
from bidro.data.federation import Federation

# By default the mean loss may rise by this share.
MAX_COST = 0.02


class MixtureSpec(NamedTuple):
    """The mixtures that training guards against: a share `mixing` of the weight may leave the clients'
    proportions, and no client then counts for more than `max_weight_ratio` times its share of that."""

    max_weight_ratio: float  # kappa; inf for no limit
    mixing: float = 1.0  # mu; the rest of the weight is by the clients' rows

    @property
    def fixed(self) -> bool:
        """Whether every client counts by its rows, as in pooled training."""
        return self.max_weight_ratio == 1 or self.mixing == 0

    def mixtures(self, sizes: ArrayLike, most: float = 1.0) -> MixtureSet:
        """A, and of that the weights of at most `most`; sizes (n,) are what clients count by, none for more
        than that share."""
        counted = np.asarray(sizes)
        if most < 1:
            free = CappedSimplex.mixed(counted, *self)
            return CappedSimplex(free.lower, np.minimum(free.upper, most))
        if self.mixing != 1:
            return CappedSimplex.mixed(counted, *self)
        if math.isinf(self.max_weight_ratio):
            return Simplex(len(counted))
        return CappedSimplex.around_proportions(counted, self.max_weight_ratio)

    def mixtures_of(self, federation: Federation) -> MixtureSet:
        """A, for these clients."""
        return self.mixtures(federation.counted, federation.max_share)


# What weights are chosen from: the first is pooled training, the last AFL.
MIXTURE_SPECS = (
    MixtureSpec(1.0),
    *(MixtureSpec(ratio, mu) for ratio in (5.0, math.inf) for mu in (0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0)),
)
# A worst fifth must be lower by so many standard errors, a worst tenth by so many more than is paid; a mean
# must be within the largest cost with so many to spare.
_ERRORS_OF_GAIN, _ERRORS_OF_COST = 2.0, 1.0
# Scores that differ by less than this share are the same.
_SAME = 1e-9


class LeftOut(NamedTuple):
    """Losses of candidates on the rows that each fold leaves out of training."""

    losses: Floats  # (folds, n, candidates) means over a client's rows in the fold
    rows: Floats  # (folds, n) how many these are

    @property
    def pooled(self) -> Floats:
        """(n, candidates) means over all rows of a client."""
        share = self.rows / self.rows.sum(axis=0)
        return np.asarray(np.einsum("fn,fnc->nc", share, self.losses))

    @property
    def means(self) -> Floats:
        """(candidates,) over all rows."""
        return np.asarray(np.einsum("fn,fnc->c", self.rows, self.losses) / self.rows.sum())

    def gain(self, pooled: int) -> tuple[Floats, Floats]:
        """(by how much each candidate's worst fifth is below that of pooled training, standard errors).

        In the difference of two worst fifths a client counts with its loss under pooled training if it is in
        the one, less its loss under the candidate if it is in the other.
        """
        return self._over_folds(self._fallen(pooled, 5))

    def net(self, pooled: int) -> tuple[Floats, Floats]:
        """(the share of pooled training's worst tenth by which each candidate's is lower, less the share of
        its mean by which the candidate's is higher; standard errors). -inf where pooled training has no loss,
        of which nothing can be gained."""
        worst, mean = abs(worst_decile(self.pooled)[pooled]), abs(self.means[pooled])
        if worst == 0 or mean == 0:
            return np.full(self.losses.shape[2], -math.inf), np.zeros(self.losses.shape[2])
        rows = self.rows.sum(axis=0)
        risen = (rows / rows.sum())[:, None] * (self.losses - self.losses[:, :, [pooled]])
        return self._over_folds(self._fallen(pooled, 10) / worst - risen / mean)

    def _fallen(self, pooled: int, parts: int) -> Floats:
        """(folds, n, candidates) what a client adds, by fold, to how much lower the mean over the worst of so
        many parts of the clients is than under pooled training."""
        losses = self.pooled
        count = -(-len(losses) // parts)
        among = np.zeros_like(losses)  # whether a client is in a candidate's worst part
        np.put_along_axis(among, np.argsort(losses, axis=0)[-count:], 1.0, axis=0)
        return np.asarray(among[:, [pooled]] * self.losses[:, :, [pooled]] - among * self.losses) / count

    def _over_folds(self, parts: Floats) -> tuple[Floats, Floats]:
        """(candidates,) sums over clients of the means over their folds of (folds, n, candidates), and their
        standard errors."""
        share, folds = self.rows / self.rows.sum(axis=0), len(self.rows)
        mean = np.einsum("fn,fnc->nc", share, parts)
        spread = np.einsum("fn,fnc->c", share**2, (parts - mean) ** 2) * folds / (folds - 1)
        return mean.sum(axis=0), np.sqrt(spread)

    def cost(self, pooled: int) -> tuple[Floats, Floats]:
        """(by how much each candidate's mean is above that of pooled training, standard errors)."""
        rows = self.rows.sum(axis=0)
        rise = rows[:, None] * (self.pooled - self.pooled[:, [pooled]]) / rows.sum()
        n = len(rise)
        away = np.sum((rise - rise.mean(axis=0)) ** 2, axis=0)
        return rise.sum(axis=0), np.sqrt(n / max(n - 1, 1) * away)


def choice(left_out: LeftOut, pooled: int, max_cost: float) -> int:
    """Which candidate is taken; `pooled` is that of pooled training. With a max_cost of inf it is the one
    with the lowest worst fifth, whatever it costs and however little it gains."""
    mean, scores = left_out.means[pooled], worst_fifth(left_out.pooled)
    if math.isinf(max_cost):
        return _lowest(scores)
    taken = _costs(left_out, pooled) <= max_cost * abs(mean)
    return _lowest(np.where(taken, scores, math.inf)) if taken.any() else pooled


def frontier(left_out: LeftOut, pooled: int) -> tuple[tuple[float, int], ...]:
    """Every candidate that `choice` takes for some largest cost, as (the least such cost, its place), costs
    rising: the last is at most inf. Costs are rounded up to a hundredth of a per cent."""
    costs, mean = _costs(left_out, pooled), abs(left_out.means[pooled])
    needed = costs[np.isfinite(costs) & (costs > 0)] / mean if mean > 0 else np.zeros(0)
    steps = list[tuple[float, int]]()
    for cost in (0.0, *np.unique(np.ceil(needed * 1e4 + 1e-9) / 1e4).tolist(), math.inf):
        place = choice(left_out, pooled, cost)
        if place not in [known for _, known in steps]:
            steps.append((cost, place))
    return tuple(steps)


def _costs(left_out: LeftOut, pooled: int) -> Floats:
    """(candidates,) by how much each raises the mean, with a standard error to spare; inf where it does not
    gain enough."""
    (gain, error), (cost, error_of_cost) = left_out.gain(pooled), left_out.cost(pooled)
    net, error_of_net = left_out.net(pooled)
    folds, n = left_out.rows.shape
    of_gain, of_net = (required_errors(_ERRORS_OF_GAIN, (folds - 1) * -(-n // parts)) for parts in (5, 10))
    of_cost = required_errors(_ERRORS_OF_COST, n - 1)
    gains = (gain > of_gain * error) & (net > of_net * error_of_net)
    return np.asarray(np.where(gains, cost + of_cost * error_of_cost, math.inf))


def _lowest(scores: Floats) -> int:
    """The first of the lowest: sets of weights that come to the same differ by what solves are short of."""
    least = float(np.min(scores))
    return int(np.flatnonzero(scores <= least + _SAME * abs(least))[0])


def required_errors(errors: float, degrees: int) -> float:
    """The quantile of Student's t that is as unlikely, with so many degrees of freedom, as `errors` standard
    deviations are of a normal variable: for standard errors that are estimated."""
    return float(stdtrit(max(degrees, 1), ndtr(errors)))


def check_max_cost(max_cost: Any) -> None:
    """Raise BidroError for a max_cost that is none."""
    if not is_number(max_cost) or not max_cost >= 0:
        raise BidroError(
            f"max_cost says by which share the mean loss may rise, such as 0.02, or inf; got {max_cost!r}."
        )


def worst_decile(losses: Floats) -> Floats:
    """The mean of the largest tenth of the clients' losses: CVaR over clients.

    Args:
        losses: (n, ...) with a leading axis of clients.

    Returns:
        (...) the mean of the ceil(n / 10) largest, along the first axis.

    Raises:
        IndexError: where there are no clients.

    Examples:
        >>> import numpy as np
        >>> from bidro.selection.rule import worst_decile
        >>> float(worst_decile(np.arange(20.0)))
        18.5
    """
    return _worst_share(losses, 10)


def worst_fifth(losses: Floats) -> Floats:
    """The mean of the ceil(n / 5) largest: what candidates are chosen by."""
    return _worst_share(losses, 5)


def _worst_share(losses: Floats, parts: int) -> Floats:
    """The mean of the ceil(n / parts) largest."""
    worst = -(-len(losses) // parts)
    return np.asarray(np.sort(losses, axis=0)[-worst:].mean(axis=0))
