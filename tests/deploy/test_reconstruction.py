"""What a curious server can rebuild from messages: from the paper's most sampled records, from ours none.

Algorithm 1 sends x - eta g and v for one row zeta, with g the gradient and v the penalised loss at
z = zeta + k r a, where a = (x, -1), r = <a, zeta> is the residual and k follows from the settings alone:
s = k r is what the ascent s <- s + step (2 (r + s |a|^2) - 2 rho s) comes to. So the residual at z is
u = r (1 + k |a|^2), v = u^2 - rho k^2 r^2 |a|^2, and g = 2 u theta_z: u up to its sign, then theta_z, then
zeta up to its sign.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bidro.ambiguity import NonconcaveInnerWarning, WassersteinBall
from bidro.core.sets import Box
from bidro.experiments.simulation import PENALTIES, paper_problem, simulate
from bidro.federated.algorithm import client_key
from bidro.federated.algorithms import BiDROFL
from bidro.federated.engines.in_process import IN_PROCESS
from bidro.losses import Squared
from bidro.problem.problem import Problem
from bidro.risk.inner import Exact, FixedStepAscent
from bidro.risk.transport import Transport
from bidro.solvers.bundle.algorithm import ExactMWDRO

ETA, PERTURBATION = 0.01, FixedStepAscent().perturbation
NEAR = 0.1  # records have a norm of about 2.3


def moved_per_residual(settings: FixedStepAscent, rho: float, length: float) -> float:
    """k, for a with |a|^2 = length."""
    s = 0.0
    for _ in range(settings.steps):
        s += settings.step_size * (2 * (1 + s * length) - 2 * rho * s)
    return s


def rebuilt(x, gradient, value, k, rho):
    """The record (theta, y), up to its sign, that a one-sample reply gives away; nan where it gives none."""
    length = x @ x + 1
    squared = (value + rho * PERTURBATION**2) / ((1 + k * length) ** 2 - rho * k**2 * length)
    if squared <= 0:
        return np.full(len(x) + 1, np.nan)
    r = np.sqrt(squared)
    u = r * (1 + k * length)
    theta_z = gradient / (2 * u)
    y_z = x @ theta_z - u
    return np.append(theta_z - k * r * x, y_z + k * r)


def distance_up_to_sign(a, b):
    return np.minimum(np.linalg.norm(a - b, axis=-1), np.linalg.norm(a + b, axis=-1))


def test_the_papers_messages_give_most_sampled_records_away():
    with pytest.warns(NonconcaveInnerWarning):
        problem = paper_problem(simulate(0), PENALTIES)
    oracle = FixedStepAscent()
    algorithm = BiDROFL(eta_x=ETA, oracle=oracle)
    ask = IN_PROCESS.clients_of(problem, seed=0)
    state, errors, norms = algorithm.init(problem), [], []
    for t in range(1, 101):
        broadcast = algorithm.broadcast(state)
        replies, replied = ask(algorithm, broadcast, t)
        x = np.asarray(broadcast.x)
        for i, name in enumerate(problem.federation.names):
            # What was sampled, which only the client knows.
            rows = np.asarray(problem.federation.client_samples(name))
            key = client_key(jax.random.key(0), t, jnp.asarray(problem.federation.client_ids[i]))
            position = float(jax.random.uniform(key, (1 + rows.shape[1],))[0])
            zeta = rows[int(position * len(rows))]
            k = moved_per_residual(oracle, PENALTIES[i], float(x @ x + 1))
            found = rebuilt(
                x, (x - np.asarray(replies.x[i])) / ETA, float(replies.g_alpha[i]), k, PENALTIES[i]
            )
            errors.append(distance_up_to_sign(found, zeta))
            norms.append(np.linalg.norm(zeta))
        state = algorithm.server(state, replies, replied)
    share = np.mean(np.nan_to_num(errors, nan=np.inf) < NEAR)
    print(f"rebuilt {share:.1%} of {len(errors)} sampled records; mean norm {np.mean(norms):.2f}")
    assert share > 0.7


def test_the_default_messages_give_no_record_away():
    """The same attack, on gradient and value over all rows, comes near no row of the client but by chance."""
    federation = paper_problem(simulate(0), None).federation
    rows_of = {name: np.asarray(federation.client_samples(name)) for name in federation.names}
    problem = Problem(federation, Squared(), Box.cube(100.0, 3), Transport.euclidean(4), WassersteinBall(0.1))
    algorithm = ExactMWDRO(Exact())
    ask = IN_PROCESS.clients_of(problem)
    state, near, tries = algorithm.init(problem), 0, 0
    for t in range(1, 11):
        broadcast = algorithm.broadcast(state)
        replies, replied = ask(algorithm, broadcast, t)
        x = np.asarray(broadcast.x)
        for i, rows in enumerate(rows_of.values()):
            gradient, value = np.asarray(replies.gradient[i])[:3], float(replies.attained[i])
            found = rebuilt(x, gradient, value, 0.0, 1.0)
            near += bool(np.any(distance_up_to_sign(found, rows) < NEAR))
            tries += 1
        state = algorithm.server(state, replies, replied)
    print(f"near a row in {near} of {tries} tries")
    assert near <= 0.1 * tries
