"""The state that first-order minimax algorithms share: a model, mixture weights, a running average."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array

from bidro.algorithms.contract import Evidence, Usual
from bidro.problem import Mixtures, Problem
from bidro.sets import VectorSet


class State(NamedTuple):
    x: Array  # x_t, (d,)
    alpha: Array  # alpha_t, (n,)
    x_sum: Array  # x_1 + ... + x_{t-1}
    t: Array  # the round to come, from 1
    models: VectorSet  # X, or the part of it where the problem is finite
    mixtures: Mixtures  # A

    def step(self, x: Array, alpha: Array) -> State:
        """x_{t+1} and alpha_{t+1}; x_t enters the running average."""
        return self._replace(x=x, alpha=alpha, x_sum=self.x_sum + self.x, t=self.t + 1)


class Broadcast(NamedTuple):
    x: Array  # x_t
    alpha: Array  # alpha_t


class ModelAndWeights(Usual):
    """The parts of the contract that are the same for every algorithm with this state."""

    broadcast_type: ClassVar[type] = Broadcast
    second_order: ClassVar[bool] = False

    @property
    def evidence(self) -> Evidence:
        return "all rows"

    def init(self, problem: Problem, seed: int = 0) -> State:
        x, alpha = problem.initial_model, problem.initial_weights
        t = jnp.ones((), int)
        return State(x, alpha, jnp.zeros_like(x), t, problem.domain, problem.mixture_set)

    def broadcast(self, state: State) -> Broadcast:
        return Broadcast(state.x, state.alpha)
