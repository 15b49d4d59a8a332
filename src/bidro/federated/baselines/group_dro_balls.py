"""Group DRO with ambiguity inside every group (Konti et al., 2025), on all rows.

Solves the problem of MW-DRO (eq. problem_separability),

    min over x in X of max over alpha in the simplex of sum_i alpha_i R_i(x),

by steps alone: R_i is the supremum of the mean loss over client i's Wasserstein ball (or the penalised
supremum, or the plain mean, whichever ambiguity the problem has). Each round every client replies with R_i(x)
and a subgradient of it, and the server takes a projected descent step in x and multiplies alpha_i by
exp(eta_alpha R_i(x)), rescaled to sum to 1, at the same time. For a convex loss the averaged model comes as
near the optimum as the step sizes are small.

Where the set A of mixtures is a single point, alpha stays there. With the hinge loss and labels that can
change, this is the subgradient form of FDR-SVM (Ibrahim et al., 2025), whose mixture weights are fixed.

Reference: Xenia Konti, Yi Shen, Zifan Wang, Karl Henrik Johansson, Michael J. Pencina, Nicoleta J.
Economou-Zavlanos and Michael M. Zavlanos. Group Distributionally Robust Machine Learning under Group Level
Distributional Uncertainty. 2025.
"""

from __future__ import annotations

from typing import ClassVar

from bidro.core.errors import BidroError
from bidro.core.jax_on_use import Array, jax, jnp
from bidro.core.pytrees import pytree, static
from bidro.federated.algorithm import masked
from bidro.federated.algorithms.first_order import Broadcast, ModelAndWeights, State, ValueAndGradient
from bidro.problem.client import Client
from bidro.problem.problem import Problem
from bidro.risk.inner import Exact, Oracle
from bidro.risk.inner.ball import steepness


@pytree
class GroupDROBalls(ModelAndWeights):
    """Step sizes, and how inner suprema are found where they have no closed form.

    A client that does not reply counts as one with gradient and value 0: the model does not move on its
    account, and its weight only as others gain. The value sent is the upper end of R_i, inf where the
    supremum is or where the oracle proves none; an infinite R_i stops the run.

    Args:
        eta_x: step size of the model.
        eta_alpha: step size of the weights, in their exponent.
        oracle: solves the inner problems that have no closed form.

    Raises:
        BidroError: for a negative step size, and from `run` for mixtures other than all or one.

    Examples:
        >>> from bidro import run
        >>> from bidro.federated.baselines import GroupDROBalls
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> run(GroupDROBalls(), paper_problem(simulate(0), None), 100).x_average.round(1).tolist()
        [0.9, 0.5, -0.5]
    """

    reply_type: ClassVar[type] = ValueAndGradient
    eta_x: float = 0.05
    eta_alpha: float = 0.05
    oracle: Oracle = static(default=Exact())

    def init(self, problem: Problem, seed: int = 0) -> State:
        mixtures = problem.mixture_set
        if not (mixtures.is_whole or mixtures.is_single_point):
            raise BidroError(
                f"Group DRO multiplies its weights, which keeps them in the full simplex or at a single "
                f"point, not in a {type(mixtures).__name__}; use AFL, BiDRO-FL or solve."
            )
        if problem.ambiguity_set.moves_samples:
            self.oracle.check(problem.inner)
        return super().init(problem, seed)

    def client(self, broadcast: Broadcast, client: Client, draw: None) -> ValueAndGradient:
        x = broadcast.x
        found = client.risk(self.oracle, x, jnp.zeros(()), curvature=False)
        if not client.lifted:
            return ValueAndGradient(found.value, found.gradient)
        nu, slope = jax.value_and_grad(lambda v: steepness(client.inner, v))(x)
        # At nu = 0 a norm has no gradient, but 0 is a subgradient.
        slope = jnp.where(nu > 0, slope, 0.0)
        return ValueAndGradient(found.value, found.gradient[:-1] + found.gradient[-1] * slope)

    def server(self, state: State, replies: ValueAndGradient, replied: Array) -> State:
        gradients = masked(replied, replies.gradient, jnp.zeros(()))
        values = masked(replied, replies.value, jnp.zeros(()))
        x = state.models.project(state.x - self.eta_x * (state.alpha @ gradients))
        if not state.mixtures.is_whole:
            return state.step(x, state.alpha)
        # Softmax takes the largest exponent off all of them.
        return state.step(x, jax.nn.softmax(jnp.log(state.alpha) + self.eta_alpha * values))
