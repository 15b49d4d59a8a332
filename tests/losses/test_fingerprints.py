"""Whether a loss is the same: all that it computes with counts, and what cannot be told is not resumed."""

import functools
import subprocess
import sys
import threading
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from bidro import (
    AFL,
    Box,
    CustomLoss,
    FedAvg,
    Federation,
    Problem,
    Squared,
    TorchLoss,
    Transport,
    run,
    solve,
    train_network,
)
from bidro.core.errors import BidroError
from bidro.losses import Loss
from bidro.losses.fingerprints import UnknownFingerprintError, digest_of
from bidro.neural.models import JaxNetwork, loss_of
from tests.losses import helper_numbers
from tests.losses.helper_numbers import scaled

FACTOR = 1.0
TABLE = {"weights": np.array([1.0, 2.0]), "names": ("a", "b")}


def by_global(w, xi):
    return FACTOR * (w @ xi[:-1] - xi[-1]) ** 2


def by_table(w, xi):
    return jnp.sum(TABLE["weights"]) * (w @ xi[:-1] - xi[-1]) ** 2


def by_helper(w, xi):
    return scaled((w @ xi[:-1] - xi[-1]) ** 2)


def by_module(w, xi):
    return helper_numbers.scaled((w @ xi[:-1] - xi[-1]) ** 2)


def nested(w, xi):
    def inner(u):
        return FACTOR * u**2

    return inner(w @ xi[:-1] - xi[-1])


def in_closure(factor):
    return lambda w, xi: factor * (w @ xi[:-1] - xi[-1]) ** 2


def as_default(factor):
    def loss(w, xi, times=factor, *, more=factor):
        return times * more * (w @ xi[:-1] - xi[-1]) ** 2

    return loss


class Weighed:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, w, xi):
        return self.factor * (w @ xi[:-1] - xi[-1]) ** 2


def times(factor, w, xi):
    return factor * (w @ xi[:-1] - xi[-1]) ** 2


def loss_in(code: str):
    found = {"jnp": jnp}
    exec(code, found)
    return found["loss"]


PAIRS = {
    "constants": [loss_in(f"def loss(w, xi): return {c} * (w @ xi[:-1] - xi[-1]) ** 2") for c in (1.0, 0.1)],
    "constants of an inner function": [
        loss_in(f"def loss(w, xi): return (lambda u: {c} * u ** 2)(w @ xi[:-1] - xi[-1])") for c in (1.0, 0.1)
    ],
    "names of a library": [
        loss_in(f"def loss(w, xi): return jnp.{c}(w @ xi[:-1] - xi[-1]) ** 2") for c in ("sin", "cos")
    ],
    "closures": [in_closure(1.0), in_closure(0.1)],
    "arrays in closures": [in_closure(np.ones(1)), in_closure(np.ones(1) * 0.1)],
    "JAX's arrays in closures": [in_closure(jnp.ones(())), in_closure(jnp.ones(()) * 0.1)],
    "functions in closures": [in_closure(in_closure(1.0)), in_closure(in_closure(0.1))],
    "defaults": [as_default(1.0), as_default(0.1)],
    "objects": [Weighed(1.0), Weighed(0.1)],
    "methods": [Weighed(1.0).__call__, Weighed(0.1).__call__],
    "partial": [functools.partial(times, 1.0), functools.partial(times, 0.1)],
    "compiled": [jax.jit(in_closure(1.0)), jax.jit(in_closure(0.1))],
}


@pytest.mark.parametrize("kind", PAIRS)
def test_what_a_function_holds_counts(kind):
    one, other = PAIRS[kind]
    assert digest_of(one) == digest_of(one)
    assert digest_of(one) != digest_of(other)


CHANGES = {
    "a global": (by_global, lambda patch: patch.setitem(globals(), "FACTOR", 0.1)),
    "a global of an inner function": (nested, lambda patch: patch.setitem(globals(), "FACTOR", 0.1)),
    "an array in a global": (by_table, lambda patch: patch.setitem(TABLE, "weights", np.array([1.0, 2.5]))),
    "a function's own global": (by_helper, lambda patch: patch.setattr(helper_numbers, "SCALE", 3.0)),
    "a module's function": (by_module, lambda patch: patch.setattr(helper_numbers, "scaled", lambda v: v)),
    "a module's number": (by_module, lambda patch: patch.setattr(helper_numbers, "SCALE", 3.0)),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_what_a_function_names_counts(kind, monkeypatch):
    function, change = CHANGES[kind]
    before = digest_of(function)
    change(monkeypatch)
    assert digest_of(function) != before
    monkeypatch.undo()
    assert digest_of(function) == before


def test_what_is_named_often_is_looked_at_once():
    """Sixty functions, each of which holds the one before twice: 2^60 ways lead to the first."""
    function = by_global
    for _ in range(60):
        function = (lambda one, other: lambda w, xi: one(w, xi) + other(w, xi))(function, function)
    assert digest_of(function) == digest_of(function)


def test_the_digest_is_the_same_in_another_process():
    code = (
        "from bidro.losses.fingerprints import digest_of; import tests.losses.test_fingerprints as t;"
        "print(digest_of((t.by_table, t.by_module, t.Weighed(1.0), {'b', 'a', 'c'}, t.in_closure(2.0))))"
    )
    here = digest_of((by_table, by_module, Weighed(1.0), {"c", "b", "a"}, in_closure(2.0)))
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == here


def problem(loss) -> Problem:
    rng = np.random.default_rng(0)
    rows = {name: rng.normal(size=(20, 3)) for name in "ab"}
    d = loss.dimension(3)
    return Problem(
        Federation.from_arrays(rows, "unbounded"), loss, Box.cube(3, d), Transport.features_only(3)
    )


def custom(function) -> CustomLoss:
    return CustomLoss(function, jnp.zeros(2), convex=True, never_negative=True)


def test_a_solve_goes_on_with_the_same_loss_alone():
    one, same, other = (problem(custom(in_closure(factor))) for factor in (1.0, 1.0, 0.1))
    begun = solve(one)
    assert solve(same, resume=begun).upper == begun.upper
    with pytest.raises(BidroError, match="resumes only with the problem"):
        solve(other, resume=begun)


UNTOLD = {
    "an object of type '_thread.lock'": in_closure(threading.Lock()),
    "the module 'tests.losses.helper_numbers' as a whole": in_closure(helper_numbers),
    "the module 'tests' as it runs": loss_in("def loss(w, xi):\n import tests\n return (w @ xi[:-1]) ** 2"),
}


@pytest.mark.parametrize("why", UNTOLD)
def test_what_cannot_be_told_is_not_resumed(why, tmp_path):
    with pytest.raises(UnknownFingerprintError, match=why):
        digest_of(UNTOLD[why])
    # The lock is in the closure and not used, so that the loss can be computed.
    unused = UNTOLD[why]
    given = problem(custom(lambda w, xi: (w @ xi[:-1] - xi[-1]) ** 2 + (0.0 if unused else 1.0)))
    begun = run(FedAvg(0.1), given, 2)
    sentence = f"cannot be resumed, as it is unknown whether the loss is the same: it .*{why}"
    with pytest.raises(BidroError, match=sentence):
        run(FedAvg(0.1), given, 4, resume=begun)
    with pytest.raises(BidroError, match=sentence):
        solve(given, resume=solve(problem(custom(by_global))))
    with pytest.raises(BidroError, match=sentence):
        train_network(AFL(0.1, 0.1), given, 4, checkpoint=tmp_path / "checkpoint")
    assert not list(tmp_path.iterdir())


class Scaled(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.inner, self.factor = nn.Linear(2, 1), factor

    def forward(self, rows):
        return self.factor * self.inner(rows)


def module(factor):
    torch.manual_seed(0)
    return Scaled(factor)


def test_a_modules_own_numbers_and_loss_count():
    one, same, other = (TorchLoss(module(factor)) for factor in (1.0, 1.0, 0.1))
    assert problem(one).fingerprint == problem(same).fingerprint != problem(other).fingerprint

    def loss(factor):
        return lambda output, target: factor * (output[:, 0] - target) ** 2

    by_loss = [problem(TorchLoss(module(1.0), loss(factor))).fingerprint for factor in (1.0, 1.0, 0.1)]
    assert by_loss[0] == by_loss[1] != by_loss[2]


def test_a_networks_function_counts():
    def network(factor):
        return JaxNetwork(lambda w, row: factor * (w @ row), jnp.zeros(2))

    found = [
        problem(loss_of(network(factor), "squared", None, None, "float64")).fingerprint
        for factor in (1.0, 1.0, 0.1)
    ]
    assert found[0] == found[1] != found[2]


def class_with(factor):
    @dataclass(frozen=True)
    class Own(Loss):
        intercept: bool = False

        @property
        def convex_in_x(self):
            return True

        def dimension(self, m):
            return m - 1

        def value(self, x, xi):
            return factor * (x @ xi[:-1] - xi[-1]) ** 2

    return Own


def test_the_code_of_a_users_own_class_counts():
    digests = [class_with(factor)().code_digest for factor in (1.0, 1.0, 0.1)]
    assert digests[0] == digests[1] != digests[2]
    assert Squared().code_digest == Squared(intercept=True).code_digest
