"""Curvature from gradients alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


def quasi_newton(B: Numbers | None, s: Numbers, y: Numbers) -> Numbers | None:
    """The damped BFGS estimate after a move s (k,) that changed the gradient by y (k,).

    Powell's damping keeps it positive definite. The first estimate is the multiple of the identity that fits
    the move.
    """
    length, bend = float(s @ s), float(s @ y)
    if length == 0 or not np.isfinite(bend) or (B is None and bend <= 0):
        return B
    if B is None:
        B = np.eye(len(s)) * bend / length
    Bs = B @ s
    sBs = float(s @ Bs)
    if not sBs > 0:  # what is left of B along s is rounding
        return B
    share = 1.0 if bend >= 0.2 * sBs else 0.8 * sBs / (sBs - bend)
    y = share * y + (1 - share) * Bs
    updated: Numbers = B - np.outer(Bs, Bs) / sBs + np.outer(y, y) / float(s @ y)
    return updated
