"""Projected gradient ascent on phi(x, zeta, .), for any differentiable loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from bidro.core.errors import BidroError
from bidro.core.jax_on_use import Array, jax, jnp
from bidro.risk.inner.problem import Inner, InnerMax, best_over_labels

# Steps tried, point, value, step size, whether to go on.
_Ascending = tuple[Array, Array, Array, Array, Array]


@dataclass(frozen=True)
class FixedStepAscent:
    """As the paper runs it: `steps` projected steps of size `step_size` from the sample, then a
    random perturbation of norm `perturbation`, then projection.

    Args:
        steps: how many.
        step_size: of each.
        perturbation: the norm of the random last step.

    Raises:
        BidroError: for no step, or a size that is negative or not finite.

    Examples:
        >>> from bidro import BiDROFL, FixedStepAscent
        >>> BiDROFL(oracle=FixedStepAscent(steps=10)).oracle.needs_noise
        True
    """

    steps: int = 30
    step_size: float = 0.003
    perturbation: float = 0.01

    def __post_init__(self) -> None:
        if self.steps < 0 or not 0 <= self.step_size < math.inf or not 0 <= self.perturbation < math.inf:
            raise BidroError(
                f"Ascent needs steps, step_size and perturbation that are finite and not negative; got "
                f"{self.steps}, {self.step_size}, {self.perturbation}."
            )

    @property
    def needs_noise(self) -> bool:
        return self.perturbation > 0

    def check(self, inner: Inner) -> None:
        """Every differentiable loss can be treated."""

    def maximise(
        self, inner: Inner, x: Array, zeta: Array, rho: Array, noise: Array | None = None
    ) -> InnerMax:
        movable = inner.transport.inverse_scale > 0
        weights = jnp.where(movable, 1.0, jnp.inf)

        def solve(label: Array) -> InnerMax:
            start, gradient = _setting(inner, x, zeta, label, rho)

            def ascend(_: int, z: Array) -> Array:
                return inner.support.project(z + self.step_size * gradient(z), weights)

            z = jax.lax.fori_loop(0, self.steps, ascend, start)
            if noise is not None and self.perturbation > 0:
                direction = jnp.where(movable, noise, 0.0)
                length = jnp.linalg.norm(direction)
                unit = direction / jnp.where(length > 0, length, 1.0)
                z = inner.support.project(z + self.perturbation * unit, weights)
            return measured(inner, x, zeta, z, rho)

        return best_over_labels(inner, zeta, solve)


@dataclass(frozen=True)
class BacktrackingAscent:
    """Projected ascent that halves a step until phi rises and stops when it hardly does.

    `steps` limits the steps that are tried, halved ones too, so that the work has an end whatever the model:
    where it ends early the point found is one of Xi as any, and its error bound says how far it may be from
    the supremum. The iteration ends before once the scaled length of a step falls below `tolerance`.

    Args:
        steps: at most so many.
        tolerance: of a step's scaled length.

    Raises:
        BidroError: for no step or a negative tolerance.

    Examples:
        >>> import jax.numpy as jnp
        >>> from bidro import BacktrackingAscent, Squared, Transport, WholeSpace
        >>> from bidro.risk.inner import Inner
        >>> inner, zeta = Inner(Transport.euclidean(2), WholeSpace(2), Squared()), jnp.array([1.0, 0.0])
        >>> found = BacktrackingAscent().maximise(inner, jnp.array([0.5]), zeta, jnp.asarray(2.0))
        >>> round(float(found.value), 4), bool(found.error_bound < 1e-6)
        (0.6667, True)
    """

    steps: int = 500
    tolerance: float = 1e-10

    def __post_init__(self) -> None:
        if self.steps < 0 or not self.tolerance >= 0:
            raise BidroError(
                f"Ascent needs steps and tolerance that are not negative; got {self.steps}, {self.tolerance}."
            )

    @property
    def needs_noise(self) -> bool:
        return False

    def check(self, inner: Inner) -> None:
        """Every differentiable loss can be treated."""

    def maximise(
        self, inner: Inner, x: Array, zeta: Array, rho: Array, noise: Array | None = None
    ) -> InnerMax:
        return best_over_labels(inner, zeta, lambda label: self.from_label(inner, x, zeta, label, rho))

    def from_label(self, inner: Inner, x: Array, zeta: Array, label: Array, rho: Array) -> InnerMax:
        """Ascent over the features with the label held at `label`."""
        start, gradient = _setting(inner, x, zeta, label, rho)
        metric, weights = _metric(inner)
        # For p = 1 the cost has a kink at the sample, which its gradient there leaves out: the true slope
        # of a step that pays can be a small part of the one predicted.
        sufficient = 0.25 if inner.transport.p > 1 else 1e-4

        def phi(z: Array) -> Array:
            return inner.phi(x, zeta, z, rho)

        def improve(state: _Ascending) -> _Ascending:
            k, z, value, step, _ = state
            # The gradient in the scaled metric is S^-2 times the Euclidean one.
            push = gradient(z) * inner.transport.inverse_scale**2

            def reach(s: Array) -> tuple[Array, Array, Array]:
                trial = inner.support.project(z + s * push, weights)
                return trial, phi(trial), jnp.sqrt(jnp.sum(metric * (trial - z) ** 2))

            def too_far(search: tuple[Array, Array]) -> Array:
                tried, s = search
                _, gained, length = reach(s)
                enough = value + sufficient * length**2 / s
                shorter = ~(gained >= enough) & (s > 1e-18) & (length > self.tolerance)
                return shorter & (tried < self.steps)

            k, step = jax.lax.while_loop(too_far, lambda s: (s[0] + 1, s[1] / 2), (k + 1, 2 * step))
            trial, reached, length = reach(step)
            better = reached > value
            z = jnp.where(better, trial, z)
            return (
                k,
                z,
                jnp.where(better, reached, value),
                step,
                better & (length > self.tolerance),
            )

        initial = (
            jnp.zeros((), int),
            start,
            phi(start),
            0.5 / jnp.maximum(rho, 1e-12),
            jnp.asarray(True),
        )
        _, z, _, _, _ = jax.lax.while_loop(lambda s: s[4] & (s[0] < self.steps), improve, initial)
        return measured(inner, x, zeta, z, rho)


def _setting(
    inner: Inner, x: Array, zeta: Array, label: Array, rho: Array
) -> tuple[Array, Callable[[Array], Array]]:
    """(starting point, gradient of phi in the coordinates that move)."""
    discrete = inner.transport.discrete_label
    start = zeta.at[-1].set(label) if discrete else zeta
    movable = inner.transport.inverse_scale > 0

    def movable_phi(z: Array) -> Array:
        return inner.loss.value(x, z) - rho * inner.transport.movement_cost(zeta, z)

    slope = jax.grad(movable_phi)
    return start, lambda z: jnp.where(movable, slope(z), 0.0)


def _metric(inner: Inner) -> tuple[Array, Array]:
    """(S^2 over the coordinates that move, else 0; the same with inf, for projections)."""
    movable = inner.transport.inverse_scale > 0
    squared = jnp.where(movable, inner.transport.scale, 0.0) ** 2
    return squared, jnp.where(movable, squared, jnp.inf)


def measured(inner: Inner, x: Array, zeta: Array, z: Array, rho: Array) -> InnerMax:
    """phi at z and a bound of its distance to the supremum.

    Where phi is mu-strongly concave, sup phi <= phi(z) + max over Xi of <g, v - z> - mu/2 ||S (v - z)||^2,
    and that maximum is a projection in the scaled metric. Elsewhere the bound is unknown (inf).
    """
    value = inner.phi(x, zeta, z, rho)
    modulus = inner.concavity(x, rho)
    known = modulus > 0
    mu = jnp.where(known, modulus, 1.0)
    _, gradient = _setting(inner, x, zeta, z[-1], rho)
    metric, weights = _metric(inner)
    g = gradient(z)
    ahead = inner.support.project(z + g * inner.transport.inverse_scale**2 / mu, weights) - z
    gain = jnp.sum(g * ahead) - mu / 2 * jnp.sum(metric * ahead**2)
    return InnerMax(z, value, jnp.where(known, jnp.maximum(gain, 0.0), jnp.inf))
