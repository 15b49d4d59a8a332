"""The contract between risks and solvers: n convex risks R_1, ..., R_n of a model x.

A risk is a function of z = x, or of the lifted model z = (x, nu(x)) where a Wasserstein ball multiplies the
steepness nu(x) of the loss: it is smooth in z where the norm in nu is not, at x = 0. Oracles give values,
gradients and Hessians in z; `Lift.chained` turns them into derivatives in x, in one place for all solvers.

Backends: second moments (`moments`), rows on the host (`rows_numpy`, `rows_curves`), and replies of clients,
from rows in compiled programs or from other machines (`replies`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bidro.losses.base import Cone

Numbers = NDArray[np.float64]
Whole = NDArray[np.int64]

# Hessians are raised by this share of their trace, so that they can be divided by.
LEAST_CURVATURE = 1e-12
_TINY = float(np.finfo(float).tiny)


class Expansion(Protocol):
    """The risks around B models, from one pass over what they are computed from."""

    @property
    def values(self) -> Numbers:
        """(B, n) R_i, kinks smoothed where that was requested: `gradients` are those of these values."""

    @property
    def gradients(self) -> Numbers:
        """(B, n, k) in z."""

    @property
    def lower(self) -> Numbers:
        """(B, n) of proven cuts: R_i(y) >= lower_i + <gradient_i, y - z> for every y, rounding included."""

    @property
    def upper(self) -> Numbers:
        """(B, n) R_i is at most this, rounding included; inf where nothing is proven."""

    def curved_at(self, b: int) -> int:
        """Models of the batch with the same number have the same Hessians."""

    def hessian(self, b: int, alpha: Numbers) -> Numbers:
        """(k, k) sum_i alpha_i H_i at model b, for any weights (n,) and as often as wanted: no other pass
        over rows of clients elsewhere, and no other round."""

    def hessians(self, b: int) -> Numbers:
        """(n, k, k) the H_i at model b."""


class RiskOracle(Protocol):
    """n convex risks, in batches of B models. A view of an oracle shares its data with the others."""

    @property
    def lift(self) -> Lift:
        """nu(x), and so the length k of z."""

    @property
    def n(self) -> int:
        """How many clients."""

    def values(self, X: Numbers) -> Numbers:
        """(B, n) the risks at models X (B, d)."""

    def expand(self, X: Numbers, curved: ArrayLike = True) -> Expansion:
        """The risks around models X (B, d); Hessians where `curved`, a flag or one a model."""

    def with_radii(self, eps: ArrayLike, scale: ArrayLike = 0.0) -> RiskOracle:
        """With radii eps_i + scale_b / sqrt(N_i), N_i the rows that the view has of client i; eps (n,), one
        scale or one a model."""

    def without_fold(self, fold: ArrayLike) -> RiskOracle:
        """Without the rows of a fold, one or one a model of a batch; a negative number leaves none out."""

    def only(self, which: Whole) -> RiskOracle:
        """Of a view with one scale or fold a model, those of some models."""


class Views(NamedTuple):
    """What the models of a batch see: one number for all, or one a model."""

    scale: Numbers = np.zeros(1)  # (1,) or (B,) of radii, times the root of a client's rows
    fold: Whole = np.full(1, -1)  # (1,) or (B,) whose rows are left out; none below 0

    def of(self, count: int) -> Views:
        """One a model of so many."""
        return Views(
            np.array(np.broadcast_to(self.scale, count)), np.array(np.broadcast_to(self.fold, count))
        )

    def only(self, which: Whole) -> Views:
        scale, fold = self
        return Views(scale if len(scale) == 1 else scale[which], fold if len(fold) == 1 else fold[which])

    def scaled(self, scale: ArrayLike) -> Views:
        return self._replace(scale=np.atleast_1d(np.asarray(scale, float)))

    def without(self, fold: ArrayLike) -> Views:
        return self._replace(fold=np.atleast_1d(np.asarray(fold, np.int64)))


ALL_ROWS = Views()


class Steepness(NamedTuple):
    """The norms N_p of P cones and their derivatives at a model; nu is the largest."""

    norms: Numbers  # (P,)
    slopes: Numbers  # (P, d)
    second: Callable[[Numbers], Numbers]  # (d, d) the second derivative of sum_p gamma_p N_p, of gamma (P,)

    @property
    def nu(self) -> float:
        return float(self.norms.max())


class Lift(NamedTuple):
    """nu(x) = max over cones p of N_p(x), N_p(x) = ||B_p x + b_p||; without cones z = x. Where rows of B_p
    are in groups, the largest of each group counts."""

    cones: tuple[Cone, ...] = ()

    @property
    def smooth(self) -> bool:
        """Whether every N_p is differentiable wherever it is not 0."""
        return not self.cones or self.cones[0].groups is None

    @property
    def overshoot(self) -> float:
        """By how many times its smoothing nu can be above what it is: see `smoothed`."""
        if not self.cones:
            return 0.0
        sizes = np.unique(_groups(self.cones[0]), return_counts=True)[1]
        above = 1 + np.log(sizes)  # of every group
        return float(above.sum()) if self.cones[0].summed else 1 + float(np.linalg.norm(above))

    def at(self, X: Numbers) -> Numbers:
        """(...) nu of models (..., d)."""
        norms = [cone.norms(X @ cone.matrix.T + cone.offset) for cone in self.cones]
        return np.asarray(np.max(norms, axis=0))

    def lifted(self, X: Numbers) -> Numbers:
        """(..., k) z of models (..., d)."""
        return np.concatenate([X, self.at(X)[..., None]], axis=-1) if self.cones else X

    def top(self, x: Numbers) -> Numbers:
        """(P,) of P > 1 cones 1 for that whose norm is nu, 0 for the others; else (0,)."""
        if len(self.cones) < 2:
            return np.zeros(0)
        return np.eye(len(self.cones))[int(np.argmax(self.exact(x).norms))]

    def exact(self, x: Numbers) -> Steepness:
        """The norms at x (d,), one of their slopes each, and second derivatives where there are any; where a
        norm is 0 or rows are in groups, a matrix of about their size."""
        vectors = [cone.at(x) for cone in self.cones]
        norms = np.array([cone.norm(v) for cone, v in zip(self.cones, vectors, strict=True)])
        slopes = np.stack([c.matrix.T @ c.slope(v) for c, v in zip(self.cones, vectors, strict=True)])

        def second(gamma: Numbers) -> Numbers:
            found = np.zeros((len(x), len(x)))
            for p in np.flatnonzero(gamma):
                B, slope = self.cones[p].matrix, slopes[p]
                found += gamma[p] / (norms[p] or 1.0) * (B.T @ B - np.outer(slope, slope))
            return found

        return Steepness(norms, slopes, second)

    def smoothed(self, x: Numbers, delta: float) -> Steepness:
        """The norms at x (d,), smoothed over delta > 0: with v = B_p x + b_p and g its groups of rows,

            a_r = sqrt(v_r^2 + delta^2),   m_g = delta log sum over r in g of exp(a_r / delta),
            N_p = sqrt(sum_g m_g^2 + delta^2), or sum_g m_g where groups are summed,

        which is convex, above N_p, and above it by at most `overshoot` times delta.
        """
        kinks = _Smoothed.of(self.cones, x, delta)

        def second(gamma: Numbers) -> Numbers:
            found = np.zeros((len(x), len(x)))
            for p in np.flatnonzero(gamma):
                found += gamma[p] * kinks.of_norm(int(p), self.cones[p])
            return found

        return Steepness(kinks.norms, kinks.slopes, second)

    def smoothed_at(self, x: Numbers, delta: float) -> float:
        """nu alone, as `smoothed` has it."""
        return float(_Smoothed.of(self.cones, x, delta).norms.max())

    def chained(self, expansion: Expansion, b: int, x: Numbers, steep: Steepness | None = None) -> InModel:
        """Model b of an expansion, x, as functions of x alone; `steep` is nu as it was expanded at, by
        default what it is."""
        values, gradients = expansion.values[b], expansion.gradients[b]
        if not self.cones:
            return InModel(values, gradients, np.zeros(len(values)), expansion, b, None)
        steep = self.exact(x) if steep is None else steep
        in_nu = np.maximum(gradients[:, len(x)], 0.0)
        return InModel(values, gradients[:, : len(x)], in_nu, expansion, b, steep)


NO_LIFT = Lift()


class InModel(NamedTuple):
    """The risks around one model x as functions of x: the chain rule through nu = max_p N_p.

    A mixture of risks counts as alpha (n,) of the risks with nu as it is, and gamma (P,) of the norms, of
    which there are as many as the risks rise with nu: gamma = <alpha, in_nu> times shares that sum to 1.
    """

    values: Numbers  # (n,)
    in_x: Numbers  # (n, d) slopes in x with nu as it is
    in_nu: Numbers  # (n,) slopes in nu, at least 0
    expansion: Expansion
    b: int
    steep: Steepness | None

    @property
    def gradients(self) -> Numbers:
        """(n, d) of the risks, by a slope of nu."""
        if self.steep is None:
            return self.in_x
        return self.in_x + np.outer(self.in_nu, self.steep.slopes[self.steep.norms.argmax()])

    def hessian(self, alpha: Numbers, share: Numbers | None = None) -> Numbers:
        """(d, d) the second derivative of sum_i alpha_i R_i with nu the norms mixed by `share` (P,), raised
        to be positive definite."""
        H = self.expansion.hessian(self.b, alpha)
        if self.steep is not None:
            share = np.eye(len(self.steep.norms))[self.steep.norms.argmax()] if share is None else share
            d, slope = self.in_x.shape[1], share @ self.steep.slopes
            cross = np.outer(H[:d, d], slope)
            in_x = H[:d, :d] + cross + cross.T + H[d, d] * np.outer(slope, slope)
            H = in_x + self.steep.second(float(alpha @ self.in_nu) * share)
        H.flat[:: len(H) + 1] += LEAST_CURVATURE * max(float(np.trace(H)), _TINY)
        return H


def _groups(cone: Cone) -> Whole:
    return np.arange(len(cone.offset)) if cone.groups is None else cone.groups


class _Smoothed(NamedTuple):
    """The parts of smoothed norms, of P cones with rows in G groups: see `Lift.smoothed`."""

    cones: tuple[Cone, ...]
    groups: Whole  # (rows,)
    starts: Whole  # (G,) first rows
    delta: float
    v: Numbers  # (P, rows)
    a: Numbers  # (P, rows)
    within: Numbers  # (P, rows) the rows' shares of their groups
    m: Numbers  # (P, G)
    norms: Numbers  # (P,)

    @classmethod
    def of(cls, cones: tuple[Cone, ...], x: Numbers, delta: float) -> _Smoothed:
        groups = _groups(cones[0])  # the same of all cones
        starts = np.flatnonzero(np.concatenate([[True], groups[1:] != groups[:-1]]))
        v = np.stack([cone.at(x) for cone in cones])
        a = np.sqrt(v**2 + delta**2)
        tops = np.maximum.reduceat(a, starts, axis=1)
        powers = np.exp((a - tops[:, groups]) / delta)
        sums = np.add.reduceat(powers, starts, axis=1)
        m = tops + delta * np.log(sums)
        norms = m.sum(axis=1) if cones[0].summed else np.sqrt(np.sum(m**2, axis=1) + delta**2)
        return cls(cones, groups, starts, delta, v, a, powers / sums[:, groups], m, norms)

    def _of_groups(self, p: int) -> Numbers:
        """(G, d) the gradients of m_g."""
        rows = (self.within[p] * self.v[p] / self.a[p])[:, None] * self.cones[p].matrix
        return np.asarray(np.add.reduceat(rows, self.starts, axis=0))

    @property
    def slopes(self) -> Numbers:
        """(P, d) the gradients of N_p."""
        each = range(len(self.cones))
        return np.stack([self._weights(p) @ self._of_groups(p) for p in each])

    def _weights(self, p: int) -> Numbers:
        """(G,) the slopes of N_p in m_g."""
        return np.ones(len(self.m[p])) if self.cones[p].summed else self.m[p] / self.norms[p]

    def of_norm(self, p: int, cone: Cone) -> Numbers:
        """(d, d) the second derivative of N_p."""
        delta, norm, along = self.delta, self.norms[p], self.v[p] / self.a[p]
        weight, of_groups = self._weights(p), self._of_groups(p)
        slope = weight @ of_groups
        # Of the rows: what B_r B_r' counts with; of the groups: the same of the squares of m_g's gradients.
        bent = weight[self.groups] * self.within[p] * (delta**2 / self.a[p] ** 3 + along**2 / delta)
        second = (cone.matrix.T * bent) @ cone.matrix
        if cone.summed:
            return np.asarray(second - (of_groups.T / delta) @ of_groups)
        second += (of_groups.T * (1 / norm - weight / delta)) @ of_groups
        return np.asarray(second - np.outer(slope, slope) / norm)


@dataclass(frozen=True, eq=False)
class Given:
    """An expansion whose numbers are all there."""

    values: Numbers  # (B, n)
    gradients: Numbers  # (B, n, k)
    each: Numbers  # (different, n, k, k) Hessians
    which: Whole  # (B,) which of these is a model's
    lower: Numbers
    upper: Numbers

    def curved_at(self, b: int) -> int:
        return int(self.which[b])

    def hessian(self, b: int, alpha: Numbers) -> Numbers:
        mixed = np.tensordot(alpha, self.hessians(b), axes=1)
        return np.asarray((mixed + mixed.T) / 2)

    def hessians(self, b: int) -> Numbers:
        return np.asarray(self.each[self.which[b]])


class QuadraticRisks(NamedTuple):
    """What the last replies say of risks around a model: an oracle of

    r_i(z) = R_i + <G_i, z - z_hat> + 1/2 (z - z_hat)' H_i (z - z_hat).
    """

    z: Numbers  # (k,)
    risks: Numbers  # (n,)
    gradient: Numbers  # (n, k)
    curvature: Numbers  # (n, k, k)
    lift: Lift = NO_LIFT

    @property
    def n(self) -> int:
        return len(self.risks)

    def values(self, X: Numbers) -> Numbers:
        return self.expand(X).values

    def expand(self, X: Numbers, curved: ArrayLike = True) -> Given:
        return self.at(self.lift.lifted(X))

    def at(self, Z: Numbers) -> Given:
        """Around any Z (B, k): nu need not be that of x."""
        away = Z - self.z
        bent = np.einsum("nij,bj->bni", self.curvature, away)
        values = self.risks + np.einsum("bnk,bk->bn", self.gradient + 0.5 * bent, away)
        which = np.zeros(len(Z), np.int64)
        return Given(values, self.gradient + bent, self.curvature[None], which, values, values)

    def with_radii(self, eps: ArrayLike, scale: ArrayLike = 0.0) -> QuadraticRisks:
        """Itself: the radii are those of the replies."""
        return self

    def without_fold(self, fold: ArrayLike) -> QuadraticRisks:
        raise NotImplementedError("Replies at one model do not know of folds.")

    def only(self, which: Whole) -> QuadraticRisks:
        return self

    def of_clients(self, which: Any) -> QuadraticRisks:
        """The risks of some clients."""
        return self._replace(
            risks=self.risks[which], gradient=self.gradient[which], curvature=self.curvature[which]
        )
