"""The price of robustness: the best worst case for what it may cost on average.

Of the candidates of a cross-validation, those count whose mean loss on rows left out is at most a share
`price` above that of pooled training, with a standard error to spare, and whose worst fifth (the mean over
the worst fifth of the clients: of few clients the worst decile is too noisy to choose by) is lower by two
standard errors: the best of several is lower by chance. Of these the one with the lowest worst fifth is
taken; where there is none it is pooled training.

Errors are those of a jackknife over the folds, which needs no more of the clients than their losses by fold;
that of the mean is at least the one over clients, as a table's clients are few of those that a model meets.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bidro.arrays import Floats
from bidro.errors import BidroError
from bidro.guarantees.asked import is_number

# By default the mean loss may rise by this share.
PRICE = 0.02
# (cap, blend): a share `blend` of the weight may leave the clients' proportions, and no client then counts
# for more than `cap` times its share of that. The first is pooled training, the last AFL.
WEIGHINGS = ((1.0, 1.0), *((5.0, mu) for mu in (0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0)), (math.inf, 1.0))
# A worst fifth must be lower by so many standard errors, and a mean within the price with so many to spare.
_ERRORS_OF_GAIN, _ERRORS_OF_COST = 2.0, 1.0


class LeftOut(NamedTuple):
    """Losses of candidates on the rows that each fold leaves out of training."""

    losses: Floats  # (folds, n, candidates) means over a client's rows in the fold
    rows: Floats  # (folds, n) how many these are

    @property
    def pooled(self) -> Floats:
        """(n, candidates) means over all rows of a client."""
        return self._without(np.zeros(len(self.rows), bool))

    @property
    def means(self) -> Floats:
        """(candidates,) over all rows."""
        return np.asarray(np.einsum("fn,fnc->c", self.rows, self.losses) / self.rows.sum())

    def gain(self, pooled: int) -> tuple[Floats, Floats]:
        """(by how much each candidate's worst fifth is below that of pooled training, standard errors)."""

        def below(out: NDArray[np.bool_]) -> Floats:
            worst = worst_fifth(self._without(out))
            return np.asarray(worst[pooled] - worst)

        one_less = np.eye(len(self.rows), dtype=bool)
        return below(np.zeros(len(self.rows), bool)), _jackknife(np.stack([below(out) for out in one_less]))

    def cost(self, pooled: int) -> tuple[Floats, Floats]:
        """(by how much each candidate's mean is above that of pooled training, the standard errors)."""
        rise = np.einsum("fn,fnc->fnc", self.rows, self.losses - self.losses[:, :, [pooled]])
        total, folds, clients = self.rows.sum(), rise.sum(axis=1), rise.sum(axis=0)
        one_less = (folds.sum(axis=0) - folds) / (total - self.rows.sum(axis=1))[:, None]
        n = len(clients)
        away = np.sum((clients - clients.mean(axis=0)) ** 2, axis=0)
        over_clients = np.sqrt(n / max(n - 1, 1) * away) / total
        return clients.sum(axis=0) / total, np.maximum(_jackknife(one_less), over_clients)

    def _without(self, out: NDArray[np.bool_]) -> Floats:
        rows = np.where(out[:, None], 0.0, self.rows)
        return np.asarray(np.einsum("fn,fnc->nc", rows, self.losses) / rows.sum(axis=0)[:, None])


def choice(left_out: LeftOut, pooled: int, price: float, references: ArrayLike | None = None) -> int:
    """Which candidate is taken; `pooled` is that of pooled training. With a price of inf it is the one with
    the lowest worst fifth, whatever it costs and however little it gains. With `references` (n,), the worst
    fifth is of what clients lose beyond these."""
    mean = left_out.means[pooled]
    if references is not None:
        left_out = left_out._replace(losses=left_out.losses - np.asarray(references)[:, None])
    scores = worst_fifth(left_out.pooled)
    if math.isinf(price):
        return int(np.argmin(scores))
    (gain, error), (cost, error_of_cost) = left_out.gain(pooled), left_out.cost(pooled)
    taken = (gain > _ERRORS_OF_GAIN * error) & (cost + _ERRORS_OF_COST * error_of_cost <= price * abs(mean))
    return int(np.argmin(np.where(taken, scores, math.inf))) if taken.any() else pooled


def _jackknife(one_less: Floats) -> Floats:
    """(candidates,) the standard error of a quantity, from what it is without each fold (folds, ...)."""
    folds = len(one_less)
    return np.asarray(np.sqrt((folds - 1) / folds * np.sum((one_less - one_less.mean(axis=0)) ** 2, axis=0)))


def check_price(price: Any) -> None:
    """Raise BidroError for a price that is none."""
    if not is_number(price) or not price >= 0:
        raise BidroError(
            f"The price is by which share the mean loss may rise, such as 0.02, or inf; got {price!r}."
        )


def worst_decile(losses: Floats) -> Floats:
    """The mean of the ceil(n / 10) largest of n clients' losses, along the first axis."""
    return _worst_share(losses, 10)


def worst_fifth(losses: Floats) -> Floats:
    """The mean of the ceil(n / 5) largest: what candidates are chosen by."""
    return _worst_share(losses, 5)


def _worst_share(losses: Floats, parts: int) -> Floats:
    """The mean of the ceil(n / parts) largest."""
    worst = -(-len(losses) // parts)
    return np.asarray(np.sort(losses, axis=0)[-worst:].mean(axis=0))
