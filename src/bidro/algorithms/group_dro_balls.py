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

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from bidro.algorithms.contract import masked, require_step
from bidro.algorithms.model_and_weights import Broadcast, ModelAndWeights, State
from bidro.client import Client
from bidro.errors import BidroError
from bidro.problem import Problem
from bidro.sets import Simplex
from bidro.trees import pytree, static
from bidro.worst_case import Exact, Oracle
from bidro.worst_case.ball import steepness


class Reply(NamedTuple):
    value: Array  # upper end of R_i(x_t); inf where the supremum is, or where the oracle proves none
    gradient: Array  # of R_i in x, (d,)


@pytree
class GroupDROBalls(ModelAndWeights):
    """Step sizes, and how inner suprema are found where they have no closed form.

    A client that does not reply counts as one with gradient and value 0: the model does not move on its
    account, and its weight only as others gain. An infinite R_i stops the run.

    Args:
        eta_x: step size of the model.
        eta_alpha: step size of the weights, in their exponent.
        oracle: solves the inner problems that have no closed form.

    Raises:
        BidroError: for a negative step size, and from `run` for mixtures other than all or one.

    Examples:
        >>> from bidro import GroupDROBalls, run
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> run(GroupDROBalls(), paper_problem(simulate(0), None), 100).x_average.round(1).tolist()
        [0.9, 0.5, -0.5]
    """

    reply_type: ClassVar[type] = Reply
    eta_x: float = 0.05
    eta_alpha: float = 0.05
    oracle: Oracle = static(default=Exact())

    def __post_init__(self) -> None:
        require_step("eta_x", self.eta_x)
        require_step("eta_alpha", self.eta_alpha)

    def init(self, problem: Problem, seed: int = 0) -> State:
        mixtures = problem.mixture_set
        if not isinstance(mixtures, Simplex) and float(mixtures.diameter()) > 0:
            raise BidroError(
                f"Group DRO multiplies its weights, which keeps them in the full simplex or at a single "
                f"point, not in a {type(mixtures).__name__}; use AFL, BiDRO-FL or solve."
            )
        if problem.ambiguity is not None:
            self.oracle.check(problem.inner)
        return super().init(problem, seed)

    def client(self, broadcast: Broadcast, client: Client, draw: None) -> Reply:
        x = broadcast.x
        found = client.risk(self.oracle, x, jnp.zeros(()), curvature=False)
        if not client.lifted:
            return Reply(found.value, found.gradient)
        nu, slope = jax.value_and_grad(lambda v: steepness(client.inner, v))(x)
        # At nu = 0 a norm has no gradient, but 0 is a subgradient.
        slope = jnp.where(nu > 0, slope, 0.0)
        return Reply(found.value, found.gradient[:-1] + found.gradient[-1] * slope)

    def server(self, state: State, replies: Reply, replied: Array) -> State:
        gradients = masked(replied, replies.gradient, jnp.zeros(()))
        values = masked(replied, replies.value, jnp.zeros(()))
        x = state.models.project(state.x - self.eta_x * (state.alpha @ gradients))
        if not isinstance(state.mixtures, Simplex):
            return state.step(x, state.alpha)
        # Softmax takes the largest exponent off all of them.
        return state.step(x, jax.nn.softmax(jnp.log(state.alpha) + self.eta_alpha * values))
