"""What fresh rows say of any model from its predictions alone, client by client.

The held-out statements need only losses. Losses without a largest value need one that was fixed without the
rows that are certified: a range that the user declares, or the largest loss on other rows, at which losses
are clipped. One that is read off the certified rows would void the statement, so that these are refused as
the other rows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bidro.arrays import Floats
from bidro.errors import BidroError
from bidro.guarantees.asked import check_confidence, is_number
from bidro.guarantees.certificate import Certificate
from bidro.guarantees.held_out import HeldOut, check_rows_per_unit, held_out
from bidro.guarantees.paired import paired
from bidro.guarantees.statements import mixtures_in_words
from bidro.guarantees.trained_rows import same_rows
from bidro.losses.predicted import PredictedLoss, Scored
from bidro.sets import Simplex
from bidro.trees import Frozen

NOT_TRAINED_HERE = "This model was not trained here."
_NEEDS_MODEL = "predictions alone do not show how the loss changes as rows move."


@dataclass(frozen=True)
class Range:
    """What is known of a loss before the rows that are certified are seen."""

    declared: float | None = None  # no loss is larger; None where that is not known
    clip: float | None = None  # losses count as at most this; None where nothing is clipped
    origin: str = ""  # of both, in words
    note: str | None = None  # where the other rows may be among those that are certified

    @classmethod
    def of(cls, loss: PredictedLoss, scored: Scored, largest: float | None, others: Scored | None) -> Range:
        """`largest` is declared by the user; `others` are other rows, whose largest loss is the clip level.

        Raises BidroError where the loss needs one of them and has none, has a range by itself and is given
        one, or where the other rows are those that are certified.
        """
        own = loss.largest(len(scored.classes or ()))
        if own is not None:
            if largest is not None or others is not None:
                raise BidroError(
                    f"The {loss.in_words} is at most {own:g} by itself; give neither a largest loss nor "
                    "other rows."
                )
            return cls(own, None, f"The {loss.in_words} is at most {own:g} by itself.")
        if largest is None and others is None:
            raise BidroError(
                f"The {loss.in_words} has no largest value of its own: declare one that you know beforehand "
                "(--largest, in Python largest=), or give other rows whose largest loss every loss counts as "
                "at most (--clip-from, clip_from=); one read off the rows to certify would void all."
            )
        if largest is not None and not (is_number(largest) and 0 < largest < math.inf):
            raise BidroError(f"The largest loss must be a finite number above 0; got {largest!r}.")
        said, clip, note = [], None, None
        if largest is not None:
            said.append(f"That no loss is above {largest:g} was declared by the user.")
        if others is not None:
            note = _refused_or_note(scored, others)
            # Any level that is fixed on other rows will do, also where the model is right on all of them.
            clip = float(loss.values(others).max()) or 1.0
            if not math.isfinite(clip):
                raise BidroError(
                    f"The largest {loss.in_words} on the other rows is infinite, for a true class of "
                    "probability 0; declare a largest loss instead."
                )
            said.append(
                f"Losses are clipped at {clip:.6g}, the largest on {len(others.target):,} other rows."
            )
        return cls(largest, clip, " ".join(said), note)


def certify_scored(
    scored: Scored,
    clients: NDArray[np.str_],
    loss: PredictedLoss,
    known: Range,
    confidence: float = 0.95,
    units: NDArray[np.str_] | None = None,
    against: Scored | None = None,
    rows_per_unit: int | None = None,
) -> Certificate:
    """All that rows (N,) say of the model that predicted them, under any mixture of their clients (N,).

    `units` (N,) are the persons or things that rows are of, where some have several. `against` has another
    model's predictions of the same rows, in the same order. `rows_per_unit` as in `held_out`.
    """
    check_confidence(confidence)
    labels = None if units is None else by_client(clients, units)
    check_rows_per_unit(rows_per_unit, labels)
    losses = by_client(clients, loss.values(scored))
    names = tuple(losses)
    held = clipped = mistakes = pair = None
    absent = {
        "interval": "it needs the model itself and the rows that it was trained on.",
        "shift": _NEEDS_MODEL,
        "held_out": "no range of the loss was declared, so rare large ones cannot be ruled out.",
        "clipped": "the range of the loss is known, and no other rows were given to clip it lower.",
    }
    if loss.word == "mistakes":
        absent["held_out"] = absent["clipped"] = "the loss is the mistakes themselves."
    elif known.declared is not None:
        held = held_out(losses, confidence, known.declared, units=labels, rows_per_unit=rows_per_unit)
    if known.clip is not None:
        clipped = held_out(
            losses, confidence, known.clip, clipped=True, units=labels, rows_per_unit=rows_per_unit
        )
    if (wrong := scored.mistakes) is not None:
        mistakes = _of_mistakes(by_client(clients, wrong), confidence, labels, rows_per_unit)
    if against is not None:
        most = known.clip if known.clip is not None else known.declared
        assert most is not None
        pair = paired(
            losses,
            by_client(clients, loss.values(against)),
            most,
            confidence,
            clipped=known.clip is not None,
            mistakes=loss.word == "mistakes",
            units=labels,
            rows_per_unit=rows_per_unit,
        )
    made = {"held_out": held, "clipped": clipped}
    return Certificate(
        confidence,
        names,
        (),
        (),
        mixtures_in_words(Simplex(len(names))),
        None,
        held,
        clipped,
        mistakes,
        None,
        Frozen({name: why for name, why in absent.items() if made.get(name) is None}),
        f"{NOT_TRAINED_HERE} {known.origin}",
        against=pair,
    )


def _refused_or_note(scored: Scored, others: Scored) -> str | None:
    """What to say of the rows that a clip level comes from; BidroError where they are those to certify."""
    if scored.content.shape[1] != others.content.shape[1]:
        raise BidroError("The other rows have predictions of another kind than the rows to certify.")
    found = same_rows(scored.content, others.content)
    # The same rows may come with another model's predictions.
    targets = same_rows(scored.target[:, None], others.target[:, None])
    if found.whole or found.sure or targets.sure:
        raise BidroError(
            "The other rows are, some or all, those to certify, and a clip level read off these would void "
            "the statement; give rows that are not certified."
        )
    if not found.odd:
        return None
    return (
        f"{found.equal:,} of the other rows have the target and prediction of a row to certify; if they are "
        "the same rows, and not alike by chance, the clip level voids the statement."
    )


def _of_mistakes(
    wrong: Mapping[str, Floats],
    confidence: float,
    units: Mapping[str, NDArray[Any]] | None,
    rows_per_unit: int | None,
) -> HeldOut:
    """A unit's share of mistakes is not 0 or 1, so that the exact bound is not for it."""
    if units is None:
        return held_out(wrong, confidence, kind="clopper-pearson")
    found = held_out(wrong, confidence, 1.0, units=units, rows_per_unit=rows_per_unit)
    return dataclasses.replace(found, mistakes=True)


def by_client(clients: NDArray[np.str_], values: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Each client's part of values (N,), in the order of the rows, by name."""
    names, codes = np.unique(clients, return_inverse=True)
    parts = np.split(values[np.argsort(codes, kind="stable")], np.cumsum(np.bincount(codes))[:-1])
    return dict(zip(names.tolist(), parts, strict=True))
