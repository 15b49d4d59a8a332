"""The true cost of a model, between two ends, with a stated probability (the out-of-sample theorem).

On the event E that every client's ball holds its own distribution, of probability prod (1 - beta_i), and for
any true mixture in A, every model x satisfies

    J_hat(x) - 2 L sum_i alpha_i eps_i - L delta diam_1(A) / 2  <=  J(x)  <=  J_hat(x),

with J_hat(x) the worst mixture of the robust risks, alpha the weights that attain it, L the Lipschitz
constant of the loss in the sample over the support, and delta a bound of W_p between any two clients' true
distributions. The proof fixes x and never uses that it is optimal, so a model from anywhere can be certified.
The paper's lower end, J_hat - L (2 r + delta) with r the largest radius, is never higher.

With curves a robust risk is known by an upper bound alone. The lower end rests on a risk being at most the
mean loss plus L eps_i, which such a bound need not be: the lesser of the two takes its place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from bidro.arrays import Floats
from bidro.client import Client, WassersteinBall
from bidro.guarantees.coverage import coverage, failure_probabilities
from bidro.guarantees.heterogeneity import cloud_distances, widened
from bidro.guarantees.on_support import support_lipschitz
from bidro.guarantees.radius import ExplicitRadius, explicit_rule
from bidro.guarantees.robust import robust_risk
from bidro.losses import has_curves
from bidro.problem import Problem
from bidro.sets import CappedSimplex, L1SimplexBall, Simplex


@dataclass(frozen=True, eq=False)
class Interval:
    """`lower` <= true cost <= `upper` with probability at least `probability`, if the mixture is in A.

    Examples:
        >>> import numpy as np
        >>> from bidro import out_of_sample_interval
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> found = out_of_sample_interval(paper_problem(simulate(0), None), np.zeros(3), 0.9)
        >>> found.lower <= found.upper, round(found.probability, 6)
        (True, 0.9)
    """

    upper: float  # J_hat(x)
    lower: float  # of the true cost, at least 0 for losses that are
    probability: float  # of both ends together
    upper_probability: float  # of the upper end alone (Proposition 1)
    sampling: float  # 2 L sum_i alpha_i eps_i
    heterogeneity: float  # L delta diam_1(A) / 2
    paper_lower: float  # J_hat - L (2 r + delta)
    radii: Floats  # (n,)
    risks: Floats  # (n,) robust risks, upper ends
    alpha: Floats  # (n,) the worst mixture
    lipschitz: float  # L, the loss's slope on the support
    delta: float  # the distance between clients that was used
    names: tuple[str, ...]  # the clients'
    promise: str  # in words

    def __post_init__(self) -> None:
        for array in (self.radii, self.risks, self.alpha):
            array.setflags(write=False)

    @property
    def advice(self) -> str:
        """What would narrow the interval most."""
        if self.sampling >= self.heterogeneity:
            most = self.names[int(np.argmax(self.alpha * self.radii))]
            return f"Sampling error dominates: collect more rows at '{most}'."
        return "Heterogeneity dominates: bring the clients' data closer together, or tighten the weight set."


def out_of_sample_interval(
    problem: Problem,
    x: ArrayLike,
    confidence: float = 0.95,
    delta: float | None = None,
    split: Literal["equal", "smallest largest"] = "equal",
    distances: Floats | None = None,
    risks: Floats | None = None,
    means: Floats | None = None,
) -> Interval:
    """The out-of-sample interval for a model, at explicit radii that hold together with this confidence.

    The problem's own ambiguity does not matter: a model trained with a calibrated radius, by FedAvg or
    elsewhere is certified in the same way. Needs the extra `distances`.

    Args:
        problem: with rows and a declared support.
        x: the model (d,).
        confidence: of the interval.
        delta: known beforehand; else it is estimated from the samples and widened by the radii, which
            costs no confidence.
        split: see `failure_probabilities`.
        distances: between the clouds, where `cloud_distances` has been called before.
        risks: (n,) the robust risks at `explicit_radii`, where the clients have computed them.
        means: (n,) the clients' mean losses, where they have been computed.

    Returns:
        Both ends, and what each part of the width comes from.

    Raises:
        BidroError: where no radius can promise coverage, and for a loss whose slope on the support is not
            known.

    Examples:
        >>> import numpy as np
        >>> from bidro import out_of_sample_interval
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> out_of_sample_interval(paper_problem(simulate(0), None), np.zeros(3)).names[:2]
        ('client-1', 'client-2')
    """
    rule = _rule(problem)
    sizes = problem.federation.sizes
    covered = coverage(
        rule, sizes, failure_probabilities(confidence, sizes, rule, split), problem.mixture_set, delta
    )
    slope = support_lipschitz(problem, x)
    values = risks
    if values is None:
        balls = replace(problem, ambiguity=WassersteinBall(covered.radii))
        values = np.array(robust_risk(balls, x, curvature=False).value)
    if has_curves(problem.loss):
        means = client_means(problem, x) if means is None else means
        values = np.minimum(values, means + slope * covered.radii)
    worst, alpha = problem.mixture_set.linear_maximum(jnp.asarray(values))
    apart = delta
    if apart is None:
        between = cloud_distances(problem) if distances is None else distances
        apart = widened(between, covered.radii, rule.diameter)
    upper, weights = float(worst), np.array(alpha)
    sampling = 2 * slope * float(weights @ covered.radii)
    structure = slope * apart * l1_diameter(problem.mixture_set) / 2
    floor = 0.0 if problem.loss.nonnegative else -math.inf
    return Interval(
        upper=upper,
        lower=max(upper - sampling - structure, floor),
        probability=covered.together,
        upper_probability=covered.probability,
        sampling=sampling,
        heterogeneity=structure,
        paper_lower=max(upper - slope * (2 * float(covered.radii.max()) + apart), floor),
        radii=covered.radii,
        risks=values,
        alpha=weights,
        lipschitz=slope,
        delta=apart,
        names=problem.federation.names,
        promise=_promise(problem, upper, covered.probability, rule, covered.radii),
    )


def client_means(problem: Problem, x: ArrayLike) -> Floats:
    """(n,) the clients' mean losses."""
    return np.asarray(_client_means(problem.clients, jnp.asarray(np.asarray(x, float))))


@jax.jit
def _client_means(clients: Client, x: Array) -> Array:
    def one(client: Client) -> Array:
        return client.rows.mean(client.inner.loss.values, x)

    return jax.vmap(one, in_axes=(clients.client_axes(),))(clients)


def explicit_radii(problem: Problem, confidence: float) -> Floats:
    """(n,) radii whose balls hold together with this confidence, the same risk for every client."""
    rule, sizes = _rule(problem), problem.federation.sizes
    return coverage(rule, sizes, failure_probabilities(confidence, sizes, rule)).radii


def _rule(problem: Problem) -> ExplicitRadius:
    return explicit_rule(problem.federation, problem.transport, problem.loss.labels)


def l1_diameter(mixtures: Simplex | CappedSimplex | L1SimplexBall) -> float:
    """The largest ||alpha - alpha'||_1 over the set, or an upper bound of it."""
    n = mixtures.dimension
    if n == 1:
        return 0.0
    if isinstance(mixtures, Simplex):
        return 2.0
    if isinstance(mixtures, L1SimplexBall):
        return min(2.0, 2 * float(mixtures.radius))
    return min(2.0, float(jnp.sum(mixtures.upper - mixtures.lower)))


def _promise(problem: Problem, upper: float, probability: float, rule: ExplicitRadius, radii: Floats) -> str:
    full = isinstance(problem.mixture_set, Simplex)
    where = "any mixture of the clients" if full else "the true mixture, if it is in A,"
    vague = ""
    if radii.max() > 0.5 * rule.diameter:
        vague = (
            f" The radii (up to {radii.max():.3g}) are a large part of the support's diameter "
            f"({rule.diameter:.3g}): the bound is conservative, and a held-out certificate says more."
        )
    return (
        f"With probability at least {probability:.4g} over the clients' samples, the true mean loss under "
        f"{where} is at most {upper:.6g}.{vague}"
    )
