"""What cross-validation by Newton's method sends to its clients, and what they reply."""

from __future__ import annotations

from typing import NamedTuple

from jax import Array


class NewtonBroadcast(NamedTuple):
    """The first `models` and the first `bends` are asked for; what comes after them is to be ignored."""

    models: Array
    x: Array  # (solves, d)
    fold: Array  # (solves,) whose rows are left out
    scale: Array  # (solves,) c times the spread
    bends: Array
    bend_x: Array  # (candidates, d) where curvature is asked for
    bend_fold: Array  # (candidates,) whose rows are left out; one past the last for none
    bend_scale: Array  # (candidates,)
    width: Array  # kinks of the loss are smoothed over this, in the client's own units


class NewtonReply(NamedTuple):
    attained: Array  # (solves,) of a cut below the risk over the fold's training rows
    smoothing: Array  # (solves,) what the risk with smoothed kinks exceeds it by
    gradient: Array  # (solves, k) of that cut
    curvature: Array  # (candidates, k (k + 1) / 2) upper triangles
