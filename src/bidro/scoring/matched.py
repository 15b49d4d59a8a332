"""Which columns a model takes, and what its outputs say of a target."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidro.arrays import Floats
from bidro.errors import BidroError, one_line
from bidro.scoring.ports import Port
from bidro.scoring.run import OnnxModel

_LABELS = ("text", "int64")


def by_name(inputs: Sequence[Port], columns: Collection[str], features: Sequence[str]) -> bool:
    """Whether a model takes columns one by one, each an input of its name, or else all `features` as one.

    Raises BidroError for a model that takes anything else.
    """
    single = all(port.width in (1, None) for port in inputs)
    strange = [port.name for port in inputs if port.name not in columns]
    if inputs and single and not strange:
        return True
    if len(inputs) == 1 and inputs[0].kind != "text" and not inputs[0].flat:
        width = inputs[0].width
        if width is None or width == len(features):
            return False
        raise BidroError(
            f"The model takes {width} numbers a row, and there are {len(features)} features: "
            f"{_listed(features) or 'none was named'}."
        )
    if strange and single:
        raise BidroError(
            f"The model has an input '{one_line(strange[0], 100)}', and there is no such column; there are "
            f"{_listed([*columns])}."
        )
    given = _listed([f"{port.name} ({port.width or 'any'})" for port in inputs]) or "none"
    raise BidroError(
        "The model must have one input for every column that it uses, of its name and one column wide, or "
        f"one input of numbers for all; its inputs are: {given}."
    )


def _listed(names: Sequence[str], most: int = 12) -> str:
    shown = [one_line(name, 100) for name in names[:most]]
    return ", ".join(shown) + (f" and {len(names) - most} more" if len(names) > most else "")


class Roles(NamedTuple):
    """Places of the outputs that a target needs."""

    number: int | None = None
    label: int | None = None
    shares: int | None = None  # probabilities of classes

    @classmethod
    def of(cls, outputs: Sequence[Port], numeric: bool) -> Roles:
        """Raises BidroError for a model whose outputs are not those of a number, or of classes."""
        labels = [k for k, port in enumerate(outputs) if port.kind in _LABELS]
        others = [k for k in range(len(outputs)) if k not in labels]
        given = _listed([f"{port.name} ({port.kind})" for port in outputs])
        if numeric:
            if (
                len(outputs) != 1
                or labels
                or outputs[0].kind == "by class"
                or outputs[0].width not in (1, None)
            ):
                raise BidroError(
                    f"A model of a number has one output, one number a row; this one has {given}."
                )
            return cls(number=0)
        if len(labels) > 1 or len(others) > 1 or any(outputs[k].width not in (1, None) for k in labels):
            raise BidroError(
                "A model of classes has an output of the predicted class, one of a probability for every "
                f"class, or both; this one has {given}."
            )
        return cls(label=labels[0] if labels else None, shares=others[0] if others else None)


class Said(NamedTuple):
    """What a model says of rows; NaN, or "", where it says nothing."""

    numbers: Floats | None = None  # (N,)
    labels: NDArray[np.str_] | None = None  # (N,)
    shares: Floats | None = None  # (N, classes)
    classes: tuple[str, ...] = ()  # of these columns

    @classmethod
    def of(
        cls,
        model: OnnxModel,
        roles: Roles,
        found: Sequence[Floats | NDArray[np.str_]],
        classes: Sequence[str],
    ) -> Said:
        """`classes` are those of the target, for columns of probabilities that the file does not name: in the
        order of their texts. One column for two classes is the probability of the second.

        Raises BidroError for another number of columns than classes.
        """
        labels = None if roles.label is None else np.asarray(found[roles.label], str)
        if roles.number is not None:
            numbers = np.asarray(found[roles.number], float)
            if numbers.shape[1] != 1:
                raise BidroError(f"The model gives {numbers.shape[1]} numbers a row; a prediction is one.")
            return cls(numbers[:, 0])
        if roles.shares is None:
            return cls(labels=labels)
        shares, names = np.asarray(found[roles.shares], float), model.classes or tuple(classes)
        if shares.shape[1] == 1 and len(names) == 2:
            shares = np.column_stack([1 - shares[:, 0], shares[:, 0]])
        if shares.shape[1] != len(names):
            raise BidroError(
                f"The model gives {shares.shape[1]} numbers a row for {len(names)} classes, {_listed(names)};"
                " name its classes in the file's metadata, under 'classes' as a JSON list in the order of "
                "its columns, or export it with a ZipMap."
            )
        return cls(labels=labels, shares=shares, classes=names)

    @property
    def contradicts(self) -> NDArray[np.bool_]:
        """(N,) where the label is not the class of the highest probability: classes in another order than the
        columns, most likely. Ties, and rows of which nothing is said, do not count."""
        if self.labels is None or self.shares is None:
            return np.zeros(0, bool)
        with np.errstate(invalid="ignore"):
            highest = self.shares >= np.max(self.shares, axis=1, keepdims=True) * (1 - 1e-6)
        is_label = np.array(self.classes)[None, :] == self.labels[:, None]
        return np.asarray(highest.any(axis=1) & (self.labels != "") & ~(highest & is_label).any(axis=1))
