"""Kinks of a loss, followed from model to model: what the server sends for it.

The curvature by which a step goes right takes the slopes of kinks not where they are at the model but where
the steps before have brought them (`losses.scalar`). Clients need not remember these: the server sends the
models along.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidro.worst_case import Inner
from bidro.worst_case.ball import can_follow

Numbers = NDArray[np.float64]

# Through so many models; of what was before, nothing is left in the slopes by then.
_MODELS = 12


class Following(NamedTuple):
    """A broadcast of the exact solver where kinks are followed."""

    x: Any  # (d,) the model to be assessed
    width: Any  # kinks of the loss are smoothed over this, in the client's own units
    before: Any  # (models, d + 1) those asked about before x, oldest first, each with its width

    @classmethod
    def of(cls, x: Numbers, width: Numbers, before: Numbers, count: int) -> Following:
        """With `count` models, of which `before` are the last: what comes before them, or x, is the same as
        they, which changes nothing."""
        known = before if len(before) else np.append(x, width)[None]
        first = np.broadcast_to(known[0], (count - len(known), known.shape[1]))
        return cls(x, width, np.vstack([first, known]))


def with_asked(before: Numbers, x: Numbers, width: float, count: int) -> Numbers:
    """The last `count` models with their widths, now that all clients have answered for x too."""
    asked = np.append(x, width)[None]
    return np.vstack([before.reshape(-1, asked.shape[1]), asked])[-count:] if count else before


def followed_models(inner: Inner, sends_curvature: bool) -> int:
    """What `ExactMWDRO.follows` is to be over balls: more than 0 where losses have kinks to follow."""
    return _MODELS if sends_curvature and can_follow(inner) else 0
