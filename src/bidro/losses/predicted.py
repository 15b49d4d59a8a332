"""Losses of predictions, whatever made them: of numbers, of predicted classes, of probabilities.

A model that was not trained here is known by what it says of rows. `Scored` is such rows with the truth, and
`PredictedLoss` a loss of them by its word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.losses import registry
from bidro.losses.linear import ResidualLoss

OF_NUMBERS = ("squared", "absolute", "pinball")
OF_CLASSES = ("mistakes", "log loss", "brier")
_OF_PROBABILITIES = ("log loss", "brier")
_IN_WORDS = {"mistakes": "share of mistakes", "log loss": "log loss", "brier": "Brier score"}

# Probabilities in tables are rounded; sums further from 1 than this are those of something else.
SUM_TOLERANCE = 1e-3


def _plain_row(place: int) -> str:
    return f"Row {place}"


@dataclass(frozen=True, eq=False)
class Scored:
    """Rows with their true target and what a model said of them.

    Made by `numbers`, `labels` or `probabilities`, which raise BidroError for what cannot be used; `row`
    names a row by its place, which counts from 0.
    """

    target: Floats  # (N,) numbers, or places in `classes`
    predicted: Floats  # (N,) numbers, or places in `classes`; or (N, classes) probabilities
    classes: tuple[str, ...] | None = None  # None for numbers

    @classmethod
    def numbers(cls, target: Floats, predicted: Floats, row: Callable[[int], str] = _plain_row) -> Scored:
        """A number (N,) predicted for a number (N,)."""
        _require_length(target, predicted)
        for what, values in (("target", target), ("prediction", predicted)):
            _require(np.isfinite(values), f"has no {what} that is a finite number", row)
        return cls(target, predicted)

    @classmethod
    def labels(
        cls, target: NDArray[np.str_], predicted: NDArray[np.str_], row: Callable[[int], str] = _plain_row
    ) -> Scored:
        """A class (N,) predicted for a class (N,), as text; "" is a missing one."""
        _require_length(target, predicted)
        for what, words in (("class in the target", target), ("predicted class", predicted)):
            _require(words != "", f"has no {what}", row)
        classes = np.unique(np.concatenate([target, predicted]))
        if not np.isin(predicted, target).any():
            raise BidroError(
                f"No predicted class, such as '{predicted[0]}', is a class of the target, such as "
                f"'{target[0]}'; write classes in both columns alike."
            )
        true, said = (np.searchsorted(classes, words).astype(float) for words in (target, predicted))
        return cls(true, said, tuple(classes.tolist()))

    @classmethod
    def probabilities(
        cls,
        target: NDArray[np.str_],
        probabilities: Floats,
        classes: Sequence[str],
        row: Callable[[int], str] = _plain_row,
    ) -> Scored:
        """Probabilities (N, classes) predicted for a class (N,) as text, which is one of `classes`.

        Sums within a thousandth of 1 are those of rounded numbers, and are divided out.
        """
        if len(set(classes)) < len(classes) or len(classes) < 2:
            raise BidroError(f"Probabilities are of different classes, at least two; got {list(classes)}.")
        if probabilities.ndim != 2 or probabilities.shape[1] != len(classes):
            raise BidroError(
                f"Probabilities need a column for every class, {len(classes)} of them; got shape "
                f"{probabilities.shape}."
            )
        _require_length(target, probabilities)
        _require(target != "", "has no class in the target", row)
        known = np.isin(target, classes)
        if not known.all():
            raise BidroError(
                f"There is no column of probabilities for the class '{target[int(np.argmin(known))]}'; give "
                "one for every class of the target."
            )
        inside = np.isfinite(probabilities) & (probabilities >= 0) & (probabilities <= 1 + SUM_TOLERANCE)
        _require(np.all(inside, axis=1), "has a probability that is no number from 0 to 1", row)
        sums = probabilities.sum(axis=1)
        if np.any(off := np.abs(sums - 1) > SUM_TOLERANCE):
            place = int(np.argmax(off))
            raise BidroError(
                f"{row(place)}: the probabilities of the classes sum to {sums[place]:.6g}, not 1; give one "
                "column for every class."
            )
        place_of = {name: float(k) for k, name in enumerate(classes)}
        codes = np.array([place_of[str(word)] for word in target])
        return cls(codes, probabilities / sums[:, None], tuple(classes))

    @property
    def content(self) -> Floats:
        """(N, 1 + predictions) all that is known of every row."""
        return np.column_stack([self.target, self.predicted])

    @property
    def mistakes(self) -> Floats | None:
        """(N,) 1 where the predicted class, of probabilities the first of the highest, is not the true one;
        None for numbers."""
        if self.classes is None:
            return None
        said = self.predicted if self.predicted.ndim == 1 else self.predicted.argmax(axis=1)
        return np.asarray(said != self.target, float)


@dataclass(frozen=True)
class PredictedLoss:
    """A loss by its word. Raises BidroError for a word that there is not, or a quantile outside (0, 1)."""

    word: str
    quantile: float = 0.5  # of the pinball loss

    def __post_init__(self) -> None:
        known = (*OF_NUMBERS, *OF_CLASSES)
        if self.word not in known:
            raise BidroError(f"loss must be one of {', '.join(known)}; got {self.word!r}.")
        _ = self._residual

    @property
    def of_numbers(self) -> bool:
        return self.word in OF_NUMBERS

    @property
    def of_probabilities(self) -> bool:
        """Whether it needs a probability of every class."""
        return self.word in _OF_PROBABILITIES

    @property
    def in_words(self) -> str:
        residual = self._residual
        return _IN_WORDS[self.word] if residual is None else registry.entry_of(residual).in_words

    def unit(self, measure: str) -> str:
        """Of the loss, for a target that is measured in this, or has this name; "" where it has none."""
        residual = self._residual
        if residual is None:
            return "nats" if self.word == "log loss" else ""
        return registry.entry_of(residual).unit_in(measure)

    def largest(self, classes: int) -> float | None:
        """The largest value that it can take for so many classes; None where there is none."""
        if self.word == "mistakes":
            return 1.0
        if self.word == "brier":
            return 1.0 if classes == 2 else 2.0
        return None

    def values(self, of: Scored) -> Floats:
        """(N,) the loss of every row.

        log loss: -log of the probability of the true class, which may be infinite; brier: the sum over
        classes of (probability - whether it is the true one)^2, for two classes half of it.
        """
        residual = self._residual
        if residual is not None:
            if of.classes is not None:
                raise BidroError(f"The {self.in_words} is for numbers, and the target is classes.")
            return np.asarray(residual.scalar.value(of.predicted - of.target))
        if of.classes is None:
            raise BidroError(f"The {self.in_words} is for classes, and the target is numbers.")
        if self.word == "mistakes":
            mistakes = of.mistakes
            assert mistakes is not None
            return mistakes
        if of.predicted.ndim == 1:
            raise BidroError(
                f"The {self.in_words} needs a probability of every class, not a predicted class."
            )
        true = of.target.astype(int)
        if self.word == "log loss":
            with np.errstate(divide="ignore"):
                # No -0.0 where the probability is 1.
                return 0.0 - np.log(of.predicted[np.arange(len(true)), true])
        squares = np.square(of.predicted - np.eye(len(of.classes))[true]).sum(axis=1)
        # Rounding may end a little above the largest value.
        return np.minimum(squares / 2, 1.0) if len(of.classes) == 2 else np.minimum(squares, 2.0)

    @property
    def _residual(self) -> ResidualLoss | None:
        """The loss of training that has these values, as a function of prediction less target."""
        if self.word not in OF_NUMBERS:
            return None
        own = {"quantile": self.quantile} if self.word == "pinball" else {}
        found = registry.kinds()[self.word](**own)
        assert isinstance(found, ResidualLoss)
        return found


def _require_length(target: NDArray[np.generic], predicted: NDArray[np.generic]) -> None:
    if len(target) != len(predicted):
        raise BidroError(
            f"There are {len(target)} targets but predictions of {len(predicted)} rows; give one a row."
        )
    if len(target) < 2:
        raise BidroError(f"There are too few rows to say anything of a model: {len(target)}; give more.")


def _require(fine: NDArray[np.bool_], wrong: str, row: Callable[[int], str]) -> None:
    if not fine.all():
        raise BidroError(f"{row(int(np.argmin(fine)))} {wrong}; fix or drop the row.")
