"""The inner supremum the slow way: a grid over the whole support, polished by a local solver."""

import itertools

import jax
import numpy as np
from scipy.optimize import minimize

from bidro.risk.inner import Inner


@jax.jit
def _values(inner, x, zeta, rho, points):
    return jax.vmap(lambda xi: inner.phi(x, zeta, xi, rho))(points)


@jax.jit
def _slope(inner, x, zeta, rho, point):
    return jax.value_and_grad(lambda xi: inner.phi(x, zeta, xi, rho))(point)


def supremum(inner: Inner, x, zeta, rho, lower, upper, seed=0, grid=13, starts=6) -> float:
    """max of phi(x, zeta, .) over the box [lower, upper], labels included where they can change."""
    movable = np.asarray(inner.transport.inverse_scale) > 0
    labels = inner.reachable_labels or (float(zeta[-1]),)
    best = -np.inf
    for label in labels:
        start = np.asarray(zeta, float).copy()
        if inner.transport.discrete_label:
            start[-1] = label

        def full(v, start=start):
            point = start.copy()
            point[movable] = v
            return point

        low, high = np.asarray(lower)[movable], np.asarray(upper)[movable]
        rng = np.random.default_rng(seed)
        if len(low) <= 4:
            axes = [np.linspace(a, b, grid) for a, b in zip(low, high, strict=True)]
            cloud = np.array(list(itertools.product(*axes)))
        else:
            corners = np.array(list(itertools.product(*zip(low, high, strict=True))))
            cloud = np.concatenate([corners, rng.uniform(low, high, (4000, len(low)))])
        cloud = np.concatenate([cloud, start[movable][None]])
        points = np.array([full(v) for v in cloud])
        phi = np.asarray(_values(inner, x, zeta, rho, points))
        best = max(best, phi.max())
        chosen = np.concatenate([np.argsort(-phi)[:starts], rng.integers(0, len(cloud), starts)])
        for k in chosen:

            def objective(v):
                value, gradient = _slope(inner, x, zeta, rho, full(v))
                return -float(value), -np.asarray(gradient)[movable]

            found = minimize(
                objective,
                cloud[k] + 1e-9 * rng.normal(size=len(low)),
                jac=True,
                method="L-BFGS-B",
                bounds=list(zip(low, high, strict=True)),
                options={"ftol": 1e-15, "gtol": 1e-12},
            )
            best = max(best, -found.fun)
    return best
