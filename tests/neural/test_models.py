"""Networks by the names of their factories, and whether two places have the same one."""

import pytest
import torch
from torch import nn

from bidro import BidroError, TorchLoss
from bidro.neural.models import from_factory, loss_of, network_digest
from tests.networks import factories

PLACE = "tests.networks.factories"


def test_a_factory_is_called_with_its_arguments():
    assert from_factory(f"{PLACE}:with_arguments", {"hidden": 7, "activation": "relu"})[0].out_features == 7
    with pytest.raises(BidroError, match=r"cannot be called: .*unexpected keyword argument 'depth'"):
        from_factory(f"{PLACE}:with_arguments", {"hidden": 7, "depth": 2})
    with pytest.raises(BidroError, match="cannot be called: no such activation"):
        from_factory(f"{PLACE}:broken")
    with pytest.raises(BidroError, match=r"is named 'package\.module:function'"):
        from_factory("os.system('true')")


def frozen(value):
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    with torch.no_grad():
        module[0].weight.fill_(value)
    module[0].requires_grad_(False)
    module[0].bias.data.zero_()
    return module


def test_the_same_network_has_the_same_digest_whatever_it_begins_with():
    torch.manual_seed(1)
    first = network_digest(TorchLoss(factories.other()))
    assert network_digest(TorchLoss(factories.other())) == first  # other weights: the factory has no seed
    wider = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))
    relu = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1))
    assert len({first, *(network_digest(TorchLoss(one)) for one in (wider, relu))}) == 3


def test_what_is_not_trained_must_be_the_same_number_by_number():
    ones, again, twos = (network_digest(TorchLoss(frozen(value))) for value in (1.0, 1.0, 2.0))
    assert ones == again
    assert ones != twos


def test_functions_of_jax_differ_by_the_shapes_of_their_parameters():
    network = factories.in_jax()
    found = network_digest(loss_of(network, "squared", None, None, "float64"))
    network.parameters["out"] = network.parameters["out"] + 1
    assert network_digest(loss_of(network, "squared", None, None, "float64")) == found
    network.parameters["out"] = network.parameters["out"][:-1]
    assert network_digest(loss_of(network, "squared", None, None, "float64")) != found
