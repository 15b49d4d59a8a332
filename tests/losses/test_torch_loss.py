"""PyTorch modules as losses: values and gradients against JAX, every algorithm against our own loss."""

import pickle
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from bidro.ambiguity import Penalty
from bidro.core.errors import BidroError
from bidro.core.sets import Box
from bidro.data.federation import Federation
from bidro.federated.engines.in_process import run
from bidro.losses import CustomLoss, TorchLoss, losses_of, mistakes_of
from bidro.problem.problem import Problem
from bidro.risk.inner import Exact, FixedStepAscent
from bidro.risk.transport import Transport
from tests.federated.cases import CASES
from tests.small import mostly_slow

RNG = np.random.default_rng(0)


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))


def mlp_in_jax(x, xi):
    w, b, v, c = x[:15].reshape(5, 3), x[15:20], x[20:25], x[25]
    return (v @ jnp.tanh(w @ xi[:3] + b) + c - xi[3]) ** 2


def cnn():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.Softplus(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8, 3)
    )


def cnn_in_jax(x, xi):
    """An image of 4 by 4, two filters, means of 2 by 2, three classes."""
    kernel, bias = x[:18].reshape(2, 1, 3, 3), x[18:20]
    weight, offset = x[20:44].reshape(3, 8), x[44:47]
    image = xi[:16].reshape(1, 1, 4, 4)
    hidden = jax.lax.conv_general_dilated(image, kernel, (1, 1), "SAME") + bias[None, :, None, None]
    pooled = jax.nn.softplus(hidden).reshape(2, 2, 2, 2, 2).mean(axis=(2, 4))
    scores = weight @ pooled.ravel() + offset
    return jax.nn.logsumexp(scores) - scores[xi[16].astype(int)]


NETWORKS = {
    "MLP": (TorchLoss(mlp()), mlp_in_jax, RNG.normal(size=(3, 7, 4))),
    "CNN": (
        TorchLoss(cnn(), "cross entropy", input_shape=(1, 4, 4), classes=3),
        cnn_in_jax,
        np.concatenate([RNG.normal(size=(3, 7, 16)), RNG.integers(0, 3, (3, 7, 1))], axis=-1),
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("mapped", [(0, 0), (None, 0), (0, None)], ids=["both", "one model", "one table"])
def test_values_and_both_gradients_against_jax(name, mapped):
    """Three clients with models of their own, one model for all, and one table for three models; of tables
    with weights, and row by row."""
    loss, reference, tables = NETWORKS[name]
    rows = jnp.asarray(tables)
    first = jnp.asarray(loss.initial(rows.shape[-1]))
    x = jnp.stack([first, first + 0.1, 0.5 * first]) if mapped[0] == 0 else first
    rows = rows if mapped[1] == 0 else rows[0]
    weights = jnp.arange(7.0) - 2

    def total(values):
        return lambda v, own: jnp.sum(weights * values(v, own))

    def by_rows(value):
        return total(jax.vmap(value, in_axes=(None, 0)))

    for ours in (total(loss.values), by_rows(loss.value)):
        for derived in (lambda f: f, jax.grad, lambda f: jax.grad(f, argnums=1)):
            found, expected = (
                jax.jit(jax.vmap(derived(f), in_axes=mapped))(x, rows) for f in (ours, by_rows(reference))
            )
            # The label of a class is no number to differentiate in.
            last = -1 if loss.classes and found.shape[-1] == rows.shape[-1] else None
            np.testing.assert_allclose(found[..., :last], expected[..., :last], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", NETWORKS)
def test_second_derivatives_and_host_values_against_jax(name):
    loss, reference, tables = NETWORKS[name]
    rows, x = jnp.asarray(tables[0]), jnp.asarray(loss.initial(tables.shape[-1]))
    weights = jnp.arange(7.0)
    values = jax.jit(jax.vmap(reference, in_axes=(None, 0)))
    hessian = jax.jit(jax.hessian(lambda v: jnp.sum(weights * values(v, rows))))(x)
    np.testing.assert_allclose(loss.hessian_sum(x, rows, weights), hessian, rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(losses_of(loss, x, rows), values(x, rows), rtol=1e-12)
    if loss.classes:
        wrong = loss.outputs(np.asarray(x), tables[0, :, :-1]).argmax(axis=1) != tables[0, :, -1]
        np.testing.assert_array_equal(mistakes_of(loss, x, rows), wrong)
        np.testing.assert_array_equal(jax.jit(loss.mistakes)(x, rows), wrong)


def linear(**declared):
    module = nn.Linear(3, 1, bias=False)
    nn.init.zeros_(module.weight)
    return TorchLoss(module, convex=True, growth_order=2.0, **declared)


# FDR-SVM is of hinge loss alone, one round is enough for squared loss alone, and the others need the exact
# inner supremum, which only losses of linear predictors have.
OF_LINEAR_LOSSES = (
    "FDR-SVM", "exact MW-DRO, one-shot", "BiDRO-FL, exact", "exact MW-DRO", "Group DRO with balls",
    "mixture ball", "unbalanced up", "unbalanced down",
)  # fmt: skip
TAKEN = [name for name in CASES if name not in OF_LINEAR_LOSSES]


@pytest.mark.parametrize("name", mostly_slow(TAKEN, lambda name: name in ("FedAvg", "AFL", "BiDRO-FL")))
def test_a_linear_module_trains_as_our_own_loss_by_every_algorithm(name):
    """With ascent for both where the case has the exact supremum."""
    algorithm, problem = CASES[name].algorithm, CASES[name].problem()
    if isinstance(getattr(algorithm, "oracle", None), Exact):
        algorithm = replace(algorithm, oracle=FixedStepAscent())
    own = run(algorithm, problem, 15, seed=2)
    found = run(algorithm, replace(problem, loss=linear()), 15, seed=2)
    np.testing.assert_allclose(found.x, own.x, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.alpha, own.alpha, atol=1e-12)


@pytest.mark.parametrize("name", OF_LINEAR_LOSSES)
def test_what_is_for_linear_losses_alone_says_so(name):
    """As it does of a CustomLoss."""
    with pytest.raises(BidroError, match=r"exact inner supremum|squared loss|continuous target"):
        run(CASES[name].algorithm, replace(CASES[name].problem(), loss=linear()), 2)


def test_both_penalised_algorithms_move_rows_by_the_module_s_gradient():
    """A network by BiDRO-FL, in PyTorch and as a function of JAX: the same ascent, the same model."""
    fed = Federation.from_arrays(
        {"a": RNG.normal(size=(9, 4)), "b": RNG.normal(size=(5, 4))}, Box.cube(4.0, 4)
    )
    first = np.asarray(TorchLoss(mlp()).initial(4))
    algorithm = CASES["BiDRO-FL, batches"].algorithm
    losses = TorchLoss(mlp()), CustomLoss(mlp_in_jax, first)
    one, two = (
        run(algorithm, Problem(fed, loss, Box.cube(5.0, 26), Transport.euclidean(4), Penalty(10.0)), 8)
        for loss in losses
    )
    np.testing.assert_allclose(one.x, two.x, rtol=1e-10)
    np.testing.assert_allclose(one.alpha, two.alpha, atol=1e-12)
    assert np.abs(one.x - first).max() > 1e-3


def test_float32_where_asked_for():
    exact, short = TorchLoss(mlp()), TorchLoss(mlp(), dtype="float32")
    rows, x = RNG.normal(size=(6, 4)), exact.initial(4)
    assert np.array_equal(x, TorchLoss(mlp()).initial(4))
    error = np.abs(losses_of(short, x, rows) - losses_of(exact, x, rows)).max()
    assert 0 < error < 1e-5
    slope, reference = (jax.grad(v.value)(jnp.asarray(x), jnp.asarray(rows[0])) for v in (short, exact))
    assert slope.dtype == np.float64
    np.testing.assert_allclose(slope, reference, rtol=1e-4, atol=1e-6)


def test_a_loss_of_one_s_own_and_parameters_that_stay():
    module = mlp()
    module[0].bias.requires_grad_(False)
    loss = TorchLoss(module, lambda output, y: (output[:, 0] - y).abs() ** 3)
    assert loss.dimension(4) == 21
    x, rows = loss.initial(4), RNG.normal(size=(5, 4))
    with torch.no_grad():
        output = module.double()(torch.from_numpy(rows[:, :3])).numpy()[:, 0]
    np.testing.assert_allclose(losses_of(loss, x, rows), np.abs(output - rows[:, 3]) ** 3, rtol=1e-12)
    np.testing.assert_allclose(loss.outputs(x, rows[:, :3])[:, 0], output, rtol=1e-12)
    moved = loss.trained(x + 1.0)
    assert torch.equal(moved[0].bias, module[0].bias)
    np.testing.assert_allclose(moved[0].weight.detach(), module[0].weight.detach() + 1.0, rtol=1e-12)


def test_the_fingerprint_is_that_of_the_numbers():
    one, same = TorchLoss(mlp()), TorchLoss(mlp())
    other = mlp().double()
    with torch.no_grad():
        other[0].bias[0] += 1e-12
    assert repr(one) == repr(same) == repr(pickle.loads(pickle.dumps(one)))
    assert repr(TorchLoss(other)) != repr(one)
    assert repr(replace(one, dtype="float32")) != repr(one)


BAD = {
    "a torch.nn.Module": lambda: TorchLoss(lambda v: v),
    "'squared', 'absolute', 'cross entropy' or a function": lambda: TorchLoss(mlp(), "hinge"),
    "in 'float64' or 'float32'": lambda: TorchLoss(mlp(), dtype="float16"),
    "needs `classes`": lambda: TorchLoss(mlp(), "cross entropy"),
    "no parameters to train": lambda: TorchLoss(nn.Flatten()),
    "mixes rows and remembers": lambda: TorchLoss(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))),
    "output is random": lambda: TorchLoss(nn.Sequential(nn.Linear(3, 1), nn.Dropout())).dimension(4),
    "1 outputs for 3 classes": lambda: TorchLoss(mlp(), "cross entropy", classes=3).dimension(4),
    "do not take rows of 7 features": lambda: TorchLoss(mlp()).dimension(8),
    "the loss of 16 rows has shape": lambda: TorchLoss(mlp(), lambda output, y: output.mean()).dimension(4),
}


@pytest.mark.parametrize("sentence", BAD)
def test_modules_that_cannot_be_used_say_why(sentence):
    with pytest.raises(BidroError, match=sentence):
        BAD[sentence]()
    quiet = nn.Sequential(nn.Linear(3, 1), nn.Dropout(), nn.BatchNorm1d(1)).eval()
    assert TorchLoss(quiet).dimension(4) == 6
