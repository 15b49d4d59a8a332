"""What is sent to a site that is to score a model from elsewhere, or a network that was trained with its
help, and all that it sends back."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Score(NamedTuple):
    """The message of "score"."""

    model: NDArray[np.uint8]  # (bytes,) an ONNX file


class Weights(NamedTuple):
    """The message of "evaluate"."""

    x: NDArray[np.float64]  # (d,) of the agreed network


class Scores(NamedTuple):
    """ "score" and "evaluate": bounds of the model's mean loss on rows kept out, and nothing else of them.
    Both are rounded up to a grid that only the site knows: see `scored_rows`."""

    loss: NDArray[np.float64]  # (1,) empty where the loss is the mistakes themselves
    mistakes: NDArray[np.float64]  # (1,) empty for a number

    @classmethod
    def like(cls, mistakes_alone: bool, classes: bool) -> Scores:
        return cls(np.zeros(0 if mistakes_alone else 1), np.zeros(1 if classes else 0))
