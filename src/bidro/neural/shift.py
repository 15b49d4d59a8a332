"""How much a network's loss rises where every row may move at a cost: an estimate, not a bound.

Each row is moved by gradient ascent on l(x, xi) - rho c(zeta, xi), as in training (Sinha, Namkoong, Volpi and
Duchi, 2018, Certifying some distributional robustness with principled adversarial training). The loss of a
network is not concave in its input, so that the ascent may stop below the supremum: what it reaches is a
lower end of the worst case of these rows, and no upper one is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bidro.core.arrays import Floats
from bidro.core.jax_on_use import Array, jax, jnp
from bidro.losses import losses_of
from bidro.problem.problem import Problem
from bidro.risk.inner import BacktrackingAscent, InnerMax, Oracle


@dataclass(frozen=True)
class ShiftEstimate:
    """By client, means over its rows. None of it bounds anything.

    Examples:
        >>> from bidro.neural.shift import ShiftEstimate
        >>> found = ShiftEstimate({"north": 1.0}, {"north": 1.5}, {"north": 1.2}, {"north": 0.3})
        >>> print(str(found).splitlines()[0])
        north: loss 1, with rows moved by 0.3 on average 1.5
    """

    losses: dict[str, float]  # as the rows are
    moved_losses: dict[str, float]  # where the ascent has moved them to
    penalised: dict[str, float]  # the same less rho times the cost of the moves
    distances: dict[str, float]  # how far rows were moved, in the transport's own unit

    def __str__(self) -> str:
        lines = [
            f"{name}: loss {self.losses[name]:.4g}, with rows moved by {self.distances[name]:.3g} on average "
            f"{self.moved_losses[name]:.4g}"
            for name in self.losses
        ]
        return "\n".join([*lines, "An estimate by gradient ascent, not a bound: worse moves may exist."])


def shift_estimate(
    problem: Problem, x: Floats, rows: Mapping[str, Floats], oracle: Oracle | None = None
) -> ShiftEstimate:
    """Of a model x (d,) on rows (N_i, m) by client, with the penalties of the problem, which must have some.

    The oracle is BacktrackingAscent(steps=50) by default.
    """
    ascent = BacktrackingAscent(steps=50) if oracle is None else oracle
    inner, rho_of = problem.inner, dict(zip(problem.federation.names, problem.rho, strict=True))

    @jax.jit
    def worst(x: Array, own: Array, rho: Array) -> InnerMax:
        return jax.vmap(lambda zeta: ascent.maximise(inner, x, zeta, rho))(own)

    found: tuple[dict[str, float], ...] = ({}, {}, {}, {})
    for name, own in rows.items():
        reached = worst(jnp.asarray(x), jnp.asarray(own), jnp.asarray(rho_of[name]))
        values, points = np.asarray(reached.value), np.asarray(reached.point)
        losses, moved = (losses_of(problem.loss, x, table) for table in (own, points))
        lengths = problem.transport.row_costs(own, points) ** (1 / problem.transport.p)
        for part, one in zip(found, (losses, moved, values, lengths), strict=True):
            part[name] = float(one.mean())
    return ShiftEstimate(*found)
