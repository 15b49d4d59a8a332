"""What to hold a model against: one guess for everybody, and shares of wrong predictions.

Where the rows are here, the guess is evaluated on the rows that the model is evaluated on. Sites get no query
for it: every mean loss over their held-out rows counts among the few that they release of a table, and the
means and deviations of their columns, which they report first, give the same over training rows for squared
loss and two classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidro.certify.statements import STATEMENTS
from bidro.core.arrays import Floats, means_of, split_by_sizes
from bidro.data.standardise import Standard
from bidro.fit.questions import HoldoutBounds, Prepared
from bidro.losses import LinearScores, Loss, Squared, Tweedie, errors_of, losses_of, mistakes_of


class Guess(NamedTuple):
    """One number, or one class, for everybody: the middle, or the commonest, of all training rows."""

    value: float  # in the units of training; of a class its label
    costs: Floats  # (n,) as those of `Baselines`
    held_out: bool  # whether that is on held-out rows, else on training rows


class Ranking(NamedTuple):
    """How well scores tell the rarer of two classes from the other, whatever the threshold."""

    label: float  # the rarer class's
    rows: int  # of that class
    share: float  # of the rows
    area: float  # under the curve: how often a row of it is scored above a row of the other
    lift: float  # its share among the tenth of the rows that score highest, over its share of all


@dataclass(frozen=True, eq=False)
class Baselines:
    """`costs` are mean losses (n,), for classes shares of mistakes, for counts and costs mean absolute
    errors, on the rows that models are evaluated on, by model: "shared", "personal" (those that clients use),
    "pooled" and "robust" (the best worst fifth of the clients, whatever it costs), as far as known. None is
    clipped, unlike in what clients report of held-out rows: that is at a level of the model's own losses, and
    far more of the guess's are above it."""

    guess: Guess | None
    costs: Mapping[str, Floats]
    of_people: bool = False  # whether they are means of people, each of its rows, and not of rows
    rankings: Mapping[str, Ranking] | None = None  # by model, of two classes whose rows are here


def baselines_of_rows(
    loss: Loss,
    targets: Floats,
    rows: Floats,
    sizes: Sequence[int],
    models: Mapping[str, Floats],
    held_out: bool,
) -> Baselines:
    """Of rows (N, k + 1) in the units of training, `sizes` of each client, under models (n, d) by client.

    targets: (T,) those of all training rows, which the guess is made from.
    held_out: whether the rows are held out, or training rows.
    """
    counts, labels = np.asarray(sizes), loss.labels
    if labels is None:
        value = loss.middle(targets)
        if value is None:
            return Baselines(None, {})  # nobody knows what it takes for the middle
        errors = isinstance(loss, Tweedie)
        each = (
            np.abs(rows[:, -1] - loss.predicted(value)) if errors else _of_constant(loss, value, rows[:, -1])
        )
        guess = Guess(value, means_of(each, counts), held_out)
        return Baselines(guess, _by_client(errors_of if errors else losses_of, loss, rows, counts, models))
    value = labels[int(np.argmax([(targets == label).sum() for label in labels]))]
    guess = Guess(value, means_of((rows[:, -1] != value).astype(float), counts), held_out)
    rankings = None
    if len(labels) == 2 and len(np.unique(rows[:, -1])) == 2:
        rankings = {name: _ranking(loss, rows, counts, each) for name, each in models.items()}
    return Baselines(guess, _by_client(mistakes_of, loss, rows, counts, models), rankings=rankings)


def _ranking(loss: Loss, rows: Floats, counts: NDArray[np.int64], models: Floats) -> Ranking:
    """Of rows (N, k + 1), by the models (n, d) of their clients."""
    assert loss.labels is not None
    low, high = loss.labels
    rarer = low if np.count_nonzero(rows[:, -1] == low) < len(rows) / 2 else high

    def at(label: float, x: Floats, own: Floats) -> Floats:
        return losses_of(loss, x, np.column_stack([own[:, :-1], np.full(len(own), label)]))

    parts = split_by_sizes(rows, counts)
    # What it costs to say one class where it is the other rises with the score.
    other = high if rarer == low else low
    scores = np.concatenate(
        [at(other, x, own) - at(rarer, x, own) for x, own in zip(models, parts, strict=True)]
    )
    return ranking_of(scores, rows[:, -1] == rarer, rarer)


def ranking_of(scores: Floats, rare: NDArray[np.bool_], label: float) -> Ranking:
    """Of scores (N,) and of which rows (N,) are of the rarer class; ties count half."""
    area = area_under_curve(scores, rare)
    assert area is not None
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    n = np.count_nonzero(rare)
    # Rows that tie at the edge of the tenth count by the share of them that it takes.
    wanted, above = -(-len(scores) // 10), len(scores) - np.cumsum(counts)
    taken = np.clip((wanted - above) / counts, 0.0, 1.0)[place]
    return Ranking(label, int(n), n / len(scores), area, float(taken @ rare / wanted / (n / len(scores))))


def area_under_curve(scores: Floats, positive: NDArray[np.bool_]) -> float | None:
    """The area under the ROC curve of scores (N,), ties counted by half; None where all rows are of one
    class."""
    several, others = int(positive.sum()), int((~positive).sum())
    if several == 0 or others == 0:
        return None
    below = np.sort(scores[~positive])
    lower, at_most = (np.searchsorted(below, scores[positive], side) for side in ("left", "right"))
    return float((lower.sum() + at_most.sum()) / (2 * several * others))


def _by_client(
    cost: Callable[[Loss, Floats, Floats], Floats],
    loss: Loss,
    rows: Floats,
    counts: NDArray[np.int64],
    models: Mapping[str, Floats],
) -> dict[str, Floats]:
    """The clients' means (n,) of what their rows cost, by model."""
    parts = split_by_sizes(rows, counts)
    return {
        name: np.array([cost(loss, x, own).mean() for x, own in zip(each, parts, strict=True)])
        for name, each in models.items()
    }


def baselines_of_replies(
    loss: Loss,
    prepared: Prepared,
    standard: Standard,
    bounds: HoldoutBounds | None,
    personal: bool,
    people: bool = False,
) -> Baselines:
    """The same from replies, as far as these go: from the moments of columns in training, and from the bounds
    over held-out rows, where a person counts with its mean over rows."""
    costs: dict[str, Floats] = {}
    if bounds is not None and loss.labels is not None:
        means = dict(zip(STATEMENTS, np.asarray(bounds.means).T, strict=True))
        costs = {
            "shared": means["mistakes"],
            "personal": means["personal_mistakes" if personal else "mistakes"],
        }
    return Baselines(_guess_of_moments(loss, prepared, standard), costs, bool(costs) and people)


def _guess_of_moments(loss: Loss, prepared: Prepared, standard: Standard) -> Guess | None:
    if not np.size(prepared.mean):
        return None
    rows = np.asarray(prepared.rows, float)
    mean, deviation = (np.asarray(part)[:, -1] for part in (prepared.mean, prepared.deviation))
    centre = float(rows @ mean / rows.sum())
    if isinstance(loss, Squared):
        return Guess(centre - standard.middle, deviation**2 + (mean - centre) ** 2, False)
    if loss.labels is None or len(loss.labels) != 2:
        return None
    low, high = loss.labels
    shares = np.clip((mean - low) / (high - low), 0.0, 1.0)
    if centre > (low + high) / 2:
        return Guess(high, 1 - shares, False)
    return Guess(low, shares, False)


def _of_constant(loss: Loss, value: float, targets: Floats) -> Floats:
    """(N,) the losses of a score `value` whatever the features, which then need not be there."""
    assert isinstance(loss, LinearScores)
    return loss.of_scores(targets, np.full((1, len(targets)), value))[0]
