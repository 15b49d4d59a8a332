"""Theorem 2: the bound on the gap of BiDRO-FL after T rounds, with every constant from the problem.

E[ max_alpha F(x-bar_T, alpha) - min_x max_alpha F(x, alpha) ]
    <= (2 D_x B_2 + 2 sum_i C_i) / sqrt(T)
     + (D_x^2 + D_alpha^2 + B_2^2 + sum_i C_i^2) / (2 sqrt(T))
     + (D_x L_xxi + n L_xi^c) epsilon              for eta_x = eta_alpha = 1 / sqrt(T).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bidro.core.errors import BidroError
from bidro.core.sets import WholeSpace
from bidro.losses import LinearLoss
from bidro.problem.problem import Problem


@dataclass(frozen=True)
class ConvergenceBound:
    """The constants of Assumption 2 and of the theorem; upper bounds where no exact value is had.

    Examples:
        >>> from bidro.certify import convergence_bound
        >>> from bidro.experiments.simulation import PENALTIES, paper_problem, simulate
        >>> bound = convergence_bound(paper_problem(simulate(0), PENALTIES))
        >>> bound.gap(10_000) < bound.gap(100)
        True
    """

    n: int  # clients
    D_x: float  # diameter of X
    D_alpha: float  # diameter of A
    D_c: float  # largest transport cost between two points of Xi that differ in movable coordinates
    B_1: float  # |l| on X x Xi
    B_2: float  # ||grad_x l|| on X x Xi
    L_xxi: float  # Lipschitz constant of xi -> grad_x l
    L_cxi: float  # Lipschitz constant of xi -> l - rho_i c, the largest over clients
    C: tuple[float, ...]  # B_1 + rho_i D_c

    def gap(self, rounds: int, epsilon: float = 0.0) -> float:
        """The right-hand side of the theorem.

        Args:
            rounds: after so many.
            epsilon: how far inner maximisers are from exact ones, at the most.

        Returns:
            What the gap is at most.

        Raises:
            BidroError: for less than one round, or a negative epsilon.
        """
        if rounds < 1 or epsilon < 0:
            raise BidroError(f"The bound needs rounds >= 1 and epsilon >= 0; got {rounds}, {epsilon}.")
        c = np.asarray(self.C)
        first = 2 * self.D_x * self.B_2 + 2 * c.sum()
        second = (self.D_x**2 + self.D_alpha**2 + self.B_2**2 + (c**2).sum()) / 2
        inexact = (self.D_x * self.L_xxi + self.n * self.L_cxi) * epsilon if epsilon else 0.0
        return float((first + second) / math.sqrt(rounds) + inexact)


def convergence_bound(problem: Problem) -> ConvergenceBound:
    """The constants of the convergence theorem for a linear predictor on compact X and Xi.

    Args:
        problem: with penalties.

    Returns:
        The constants, and with `gap` the bound after so many rounds.

    Raises:
        BidroError: where the theorem's assumptions fail: an unbounded set, a loss that is not known to be
            convex in x, or one that is not differentiable.

    Examples:
        >>> from bidro.certify import convergence_bound
        >>> from bidro.experiments.simulation import PENALTIES, paper_problem, simulate
        >>> convergence_bound(paper_problem(simulate(0), PENALTIES)).n
        5
    """
    loss = problem.loss
    if not problem.ambiguity_set.penalised:
        raise BidroError("The theorem is about the penalised problem: give it Penalty(rho).")
    if not isinstance(loss, LinearLoss):
        raise BidroError(
            f"The theorem's constants are worked out for losses with a scalar form, not for "
            f"{type(loss).__name__}."
        )
    if loss.scalar.curvature == math.inf:
        raise BidroError(
            f"{type(loss).__name__} loss is not differentiable, which the theorem assumes; use a "
            "smooth loss (squared, Huber, logistic, smoothed hinge)."
        )
    if isinstance(problem.federation.support, WholeSpace):
        raise BidroError("The theorem needs a compact support; declare a box or a ball.")
    x_low, x_high = (np.asarray(v) for v in problem.models.bounding_box())
    if not np.all(np.isfinite(x_low)) or not np.all(np.isfinite(x_high)):
        raise BidroError("The theorem needs a compact model set; declare a box or a ball.")
    xi_low, xi_high = (np.asarray(v) for v in problem.federation.support.bounding_box())

    # The score <w, theta> + b over boxes is bilinear: its range is a sum of interval products.
    if loss.intercept:
        w_low, w_high, b_low, b_high = x_low[:-1], x_high[:-1], x_low[-1], x_high[-1]
    else:
        w_low, w_high, b_low, b_high = x_low, x_high, 0.0, 0.0
    corners = np.stack(
        [w_low * xi_low[:-1], w_low * xi_high[:-1], w_high * xi_low[:-1], w_high * xi_high[:-1]]
    )
    score_low = corners.min(axis=0).sum() + b_low
    score_high = corners.max(axis=0).sum() + b_high
    if loss.labels is None:
        u_low, u_high = score_low - xi_high[-1], score_high - xi_low[-1]
        a_norm = _largest_norm(w_low, w_high, extra=1.0)
    else:
        reach = max(abs(score_low), abs(score_high))
        u_low, u_high = -reach, reach
        # A move of the label is no part of a Lipschitz constant: labels jump.
        a_norm = _largest_norm(w_low, w_high, extra=0.0)
    slope = _largest_slope(loss, u_low, u_high)
    feature_norm = _largest_norm(xi_low[:-1], xi_high[:-1], extra=float(loss.intercept))

    B_1 = float(np.max(np.abs(loss.scalar.value(np.array([u_low, u_high])))))
    B_2 = slope * feature_norm
    L_xxi = loss.scalar.curvature * feature_norm * a_norm + slope

    movable = np.asarray(problem.transport.inverse_scale) > 0
    scale = np.asarray(problem.transport.scale)[movable]
    diameter = float(np.linalg.norm(scale * (xi_high - xi_low)[movable]))
    p = problem.transport.p
    jump = problem.transport.label_cost if problem.inner.reachable_labels is not None else 0.0
    D_c = diameter**p + jump**p
    rho = np.asarray(problem.rho)
    cost_slope = p * diameter ** (p - 1) * (float(scale.max()) if scale.size else 0.0)
    return ConvergenceBound(
        n=problem.n,
        D_x=float(problem.models.diameter()),
        D_alpha=float(problem.mixture_set.diameter()),
        D_c=D_c,
        B_1=B_1,
        B_2=float(B_2),
        L_xxi=float(L_xxi),
        L_cxi=float(slope * a_norm + rho.max() * cost_slope),
        C=tuple(float(B_1 + r * D_c) for r in rho),
    )


def _largest_norm(low: NDArray[np.float64], high: NDArray[np.float64], extra: float) -> float:
    """The largest Euclidean norm over a box, with one more coordinate of size `extra`."""
    largest = np.maximum(np.abs(low), np.abs(high))
    return float(np.sqrt(np.sum(largest**2) + extra**2))


def _largest_slope(loss: LinearLoss, u_low: float, u_high: float) -> float:
    """sup |L'| on [u_low, u_high]: the slope of a convex function is largest at an end."""
    slopes = loss.scalar.tangent(np.array([u_low, u_high]), np.zeros(())).slope
    return float(np.max(np.abs(slopes)))
