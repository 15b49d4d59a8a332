"""The price of robustness: the best worst case for what it may cost on average.

Of the candidates of a cross-validation, those count whose mean loss on rows left out is at most a share
`price` above that of pooled training; of these the one with the lowest worst fifth is taken, the mean over
the worst fifth of the clients (for few clients the worst decile is too noisy to choose by). It must beat
pooled training by more than the standard error of the difference, else pooled training it is.
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
WEIGHINGS = (
    (1.0, 1.0),
    *((math.inf, mu) for mu in (0.02, 0.05, 0.1, 0.2, 0.4, 0.7)),
    (2.0, 1.0),
    (math.inf, 1.0),
)


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

    def gain(self, pooled: int, place: int) -> tuple[float, float]:
        """(by how much a candidate's worst fifth is below that of pooled training, its standard error): a
        jackknife over the folds."""
        folds = len(self.rows)
        one_less = np.eye(folds, dtype=bool)
        worst = np.array([worst_fifth(self._without(out)[:, [pooled, place]]) for out in one_less])
        apart = worst[:, 0] - worst[:, 1]
        error = math.sqrt((folds - 1) / folds * float(np.sum((apart - apart.mean()) ** 2)))
        whole = worst_fifth(self.pooled[:, [pooled, place]])
        return float(whole[0] - whole[1]), error

    def _without(self, out: NDArray[np.bool_]) -> Floats:
        rows = np.where(out[:, None], 0.0, self.rows)
        return np.asarray(np.einsum("fn,fnc->nc", rows, self.losses) / rows.sum(axis=0)[:, None])


def choice(left_out: LeftOut, pooled: int, price: float, references: ArrayLike | None = None) -> int:
    """Which candidate is taken; `pooled` is that of pooled training. With a price of inf it is the one with
    the lowest worst fifth, whatever it costs and however little it gains. With `references` (n,), the worst
    fifth is of what clients lose beyond these."""
    means = left_out.means
    if references is not None:
        left_out = left_out._replace(losses=left_out.losses - np.asarray(references)[:, None])
    scores = worst_fifth(left_out.pooled)
    if math.isinf(price):
        return int(np.argmin(scores))
    affordable = means <= means[pooled] + price * abs(means[pooled])
    for place in np.argsort(np.where(affordable, scores, math.inf), kind="stable"):
        if place == pooled or not affordable[place]:
            break
        gain, error = left_out.gain(pooled, int(place))
        if gain > error:
            return int(place)
    return pooled


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
