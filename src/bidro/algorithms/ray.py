"""Far out along a ray: the next model where risks fall to 0 only at infinity."""

from __future__ import annotations

import math

import numpy as np

from bidro.algorithms.exact_state import State

# Risks that fall to 0 only at infinity have come near it below this multiple of the floor. Along a ray they
# are then brought to the second share of what still counts, by a model at most so many times farther out.
_VANISHING, _VANISHED, _FARTHEST = 1e4, 0.1, 20.0


def outward(state: State) -> State | None:
    """The next model t x on the ray through the centre's x, where risks fall to 0 as they do far out; None
    where that is not so, or has just been tried in vain.

    Without a radius, classes that x can tell apart have risks that fall like exp(-margin t), with the margin
    told by the slope along the ray. Newton's method would bring them down by a factor e a round.
    """
    centre, model = state.centre, state.model
    assert centre is not None
    goal = _VANISHED * state.wanted * state.floor
    near = goal < centre.merit < _VANISHING * state.floor
    # With a radius there is a minimum, which a ray would only lead away from.
    steepness = centre.gradient[:, model.models.dimension :]
    fixed = not steepness.any() if model.cones else bool(np.all(np.isinf(state.best.multipliers)))
    fixed = fixed and model.references.each is None
    if not (state.endless and fixed and near and state.lower <= 0 and state.stiffness <= 1):
        return None
    weights = np.asarray(model.mixtures.linear_maximum(centre.attained + centre.smoothing)[1])
    margin = -float(weights @ (centre.gradient @ centre.z)) / centre.merit
    longer = math.log(centre.merit / goal)
    if longer > (_FARTHEST - 1) * margin:
        return None
    x = (1 + longer / margin) * centre.z[: model.models.dimension]
    if not model.models.contains(x):
        return None
    return state._replace(x=x, predicted=centre.merit - goal, left=state.best.upper - state.lower)
