"""Small problems that several tests share."""

import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bidro import RobustClassifier, RobustRegressor
from bidro.ambiguity import NonconcaveInnerWarning, Penalty
from bidro.core.sets import Box
from bidro.data.federation import Federation
from bidro.federated.engines.in_process import IN_PROCESS, all_replies
from bidro.federated.engines.remote import Participant, _reply
from bidro.federated.engines.rounds import FoldSpec
from bidro.federated.engines.wire import pack, unpack
from bidro.losses import Squared
from bidro.problem.problem import Problem
from bidro.risk.inner import Exact
from bidro.risk.transport import Transport
from bidro.selection.cross_validate import cross_validate
from bidro.selection.rule import LeftOut

TRUE = np.array([1.0, 0.5, -0.5])


def in_folds(problem, fold_spec):
    """The clients of the problem with their rows dealt out to folds."""
    marks = problem.federation.folds(fold_spec.folds, fold_spec.seed)
    return replace(problem.clients, rows=problem.clients.rows.in_folds(marks, fold_spec.folds))


def fold_losses(problem, candidates, trained):
    """(n, candidates) what cross-validation finds from the moments of every fold's training rows, with
    candidates in units of radii."""
    fold_spec = FoldSpec(trained.rows.shape[1], 0)
    found = cross_validate(problem, candidates, fold_spec, 1.0, Exact(), IN_PROCESS, sent=trained)
    return LeftOut(found.losses, found.rows).pooled


class Compiled:
    """Clients that answer by compiled programs alone, though their rows are in this process."""

    def clients_of(self, problem, fold_spec=None, seed=0):
        clients = problem.clients if fold_spec is None else in_folds(problem, fold_spec)

        def ask(algorithm, broadcast, t, who=None):
            replies = all_replies(algorithm, clients, jax.random.key(seed), broadcast, jnp.asarray(t))
            return replies, np.ones(problem.n, bool) if who is None else who

        return ask


class ByBytes:
    """Clients each of which has its own rows alone, and is asked and answers in bytes: as on machines of
    their own. By compiled programs, or on the host where an algorithm can."""

    def __init__(self, compiled=False):
        self.compiled = compiled

    def clients_of(self, problem, fold_spec=None, seed=0):
        federation, everyone = problem.federation, np.ones(problem.n, bool)
        rows = {name: federation.client_samples(name) for name in federation.names}
        parts = [Federation.from_arrays({name: own}, "unbounded") for name, own in rows.items()]

        def reply(algorithm, i, message, t):
            what = (problem.loss, problem.transport, federation.support, problem.own_ambiguity(i), fold_spec)
            asked = Participant.of(algorithm, parts[i], *what)
            own = unpack(message, algorithm.broadcast_type)
            if self.compiled:
                found = _reply(algorithm, asked.client, jax.random.key(seed), jnp.asarray(t), own)
            else:
                found = asked.reply(own, seed, t)
            return unpack(pack(found), algorithm.reply_type)

        def ask(algorithm, broadcast, t, who=None):
            replies = [reply(algorithm, i, pack(broadcast), t) for i in range(problem.n)]
            return jax.tree.map(lambda *each: np.stack(each), *replies), everyone

        return ask


SIZES = (7, 12, 30)


def rows(seed=0, sizes=SIZES):
    rng = np.random.default_rng(seed)
    parts = []
    for k, size in enumerate(sizes):
        theta = rng.uniform(-1, 1, (size, 3)) + 0.3 * k
        parts.append(np.column_stack([theta, theta @ TRUE + 0.2 * rng.normal(size=size) - 0.1 * k]))
    return {f"site-{k}": part for k, part in enumerate(parts)}


def federation(seed=0, half_width=3.0):
    return Federation.from_arrays(rows(seed), Box.cube(half_width, 4))


def admissible(rho=(20.0, 12.0, 9.0), seed=0, **kwargs):
    """Penalties above ||(x, -1)||^2 <= 7.75 on the model set: concave inner problems."""
    return Problem(
        federation(seed), Squared(), Box.cube(1.5, 3), Transport.euclidean(4), Penalty(rho), **kwargs
    )


def plain(problem):
    """The same problem of mean losses: no ambiguity inside the clients."""
    return replace(problem, ambiguity=None)


def paper_like(rho=(15.0, 5.0, 2.5), seed=0):
    """Penalties below the curvature on a large model set, as in the paper; the warning is expected."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NonconcaveInnerWarning)
        return Problem(federation(seed), Squared(), Box.cube(100.0, 3), Transport.euclidean(4), Penalty(rho))


def regressor(*loss, **how):
    """Of straight lines, for tests that are not about curves."""
    return RobustRegressor(*loss, **{"curves": None, **how})


def classifier(*loss, **how):
    """Of straight lines, for tests that are not about curves."""
    return RobustClassifier(*loss, **{"curves": None, **how})


def mostly_slow(cases, quick):
    """The cases as parameters; of a large product, those for which `quick` does not hold are for
    `make test-slow`."""
    return [
        case
        if quick(case)
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]
