"""One path for a fit: in one process and over a network of bytes the same client code answers."""

import numpy as np
import pytest

from bidro.core.errors import BidroError
from bidro.data.standardise import ColumnMoments, Standard, client_moments
from bidro.deploy.server.serve import run_job
from bidro.fit import client_side
from bidro.fit.fit import fit
from bidro.fit.fitted import Options, Progress
from bidro.fit.network import LocalNetwork
from bidro.fit.settings import FitSettings
from bidro.fit.training import AlgorithmOne
from bidro.losses.registry import LossChoice
from bidro.workflow.fit import fit_tables
from bidro.workflow.options import FitOptions
from tests.deploy.sites import QUICK, carrier, job, table, write_sites


class BrokenError(Exception):
    pass


def broken(*args, **kwargs):
    raise BrokenError


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sites")
    whole = table()
    whole.to_csv(folder / "whole.csv", index=False)
    return folder, write_sites(folder, whole)


def in_one_process(folder):
    options = FitOptions.from_file(
        QUICK, "QUICK", tables=(str(folder / "whole.csv"),), client="site", target="y"
    )
    return fit_tables(options, Progress())


def as_bytes(folder, agreed, name):
    return run_job(job(agreed, name, options=QUICK), carrier(folder), folder / "runs")


@pytest.mark.parametrize("question", ["prepared", "assessment", "bounds"])
def test_what_breaks_at_the_clients_breaks_here_and_there(question, sites, monkeypatch):
    folder, agreed = sites
    monkeypatch.setattr(client_side, question, broken)
    with pytest.raises(BrokenError):
        in_one_process(folder)
    with pytest.raises(BidroError, match="could not be followed"):
        as_bytes(folder, agreed, f"broken-{question}")


def test_what_breaks_in_a_client_s_round_breaks_here_and_there(sites, monkeypatch):
    from bidro.solvers.bundle.one_shot import OneShotMWDRO

    folder, agreed = sites
    whole = OneShotMWDRO.client_batch_numpy

    def on_real_rows(self, broadcast, rows):
        # The server asks itself for the shapes of a reply, over one made-up row.
        return whole(self, broadcast, rows) if len(rows.samples) == 1 else broken()

    monkeypatch.setattr(OneShotMWDRO, "client_batch_numpy", on_real_rows)
    with pytest.raises(BrokenError):
        in_one_process(folder)
    with pytest.raises(BidroError, match="could not be followed"):
        as_bytes(folder, agreed, "broken-round")


def network(rng, sizes=(30, 40)):
    n = sum(sizes)
    X, owner = rng.normal(size=(n, 2)), np.repeat([f"c{i}" for i in range(len(sizes))], sizes)
    return LocalNetwork.of(X, X @ [1.0, -2.0] + 0.1 * rng.normal(size=n), owner, ["a", "b", "y"], 0.2)


def test_a_network_in_one_process_is_for_one_fit():
    rng = np.random.default_rng(0)
    options = Options(LossChoice("squared", None), FitSettings(radius=0.1, weights="simplex"))
    ours = network(rng)
    fit(ours, options)
    with pytest.raises(BidroError, match="for one fit"):
        fit(ours, options)


@pytest.mark.parametrize("algorithm", [None, AlgorithmOne(3)])
def test_what_is_stated_is_of_the_losses_alone(algorithm):
    """Slopes of classes are held back in training, and in no statement."""
    rng = np.random.default_rng(3)
    X, owner = rng.normal(size=(60, 2)), np.repeat(["c0", "c1"], 30)
    loss, settings = (
        LossChoice("logistic", 2),
        FitSettings(weights="fixed", personal=None, curves=None, gap=1e-3),
    )
    assert loss.in_units(1.0).pseudo_rows > 0
    target = np.sign(X[:, 0] + rng.normal(size=60))
    ours = LocalNetwork.of(X, target, owner, ["a", "b", "y"], 0.2)
    found = fit(ours, Options(loss, settings, algorithm=algorithm))
    assert (found.trained.problem.loss.pseudo_rows, found.stated.loss.pseudo_rows) == (0, 0)
    assert found.trained.method == ("Algorithm 1" if algorithm else found.trained.solution.method)


def test_moments_of_clients_are_those_of_numpy_whatever_their_sizes():
    rng = np.random.default_rng(1)
    sizes = [1, 3, 70_000, 2, 500]
    rows = 1e6 + rng.normal(size=(sum(sizes), 2)) * [1.0, 1e-3]
    mean, deviation = client_moments(rows, sizes)
    for k, own in enumerate(np.split(rows, np.cumsum(sizes)[:-1])):
        np.testing.assert_allclose(mean[k], own.astype(np.longdouble).mean(axis=0), rtol=1e-15)
        np.testing.assert_allclose(deviation[k], own.std(axis=0), rtol=1e-6, atol=1e-9)
    pooled = ColumnMoments.pooled(sizes, mean, deviation)
    np.testing.assert_allclose(pooled.mean, rows.mean(axis=0), rtol=1e-14)
    np.testing.assert_allclose(pooled.deviation, rows.std(axis=0), rtol=1e-6)


def test_rows_are_put_into_units_where_they_are():
    rng = np.random.default_rng(2)
    rows = rng.normal(5.0, 3.0, size=(50, 3))
    rows[:, 1] = 0.1
    standard = Standard.of(ColumnMoments.of(rows[:, :-1], rows[:, -1]), False)
    expected = (rows - rows.mean(axis=0)) / [rows[:, 0].std(), 1.0, 1.0]
    expected[:, 1] = 0.0
    converted = rows.copy()
    standard.convert(converted)
    np.testing.assert_allclose(converted, expected, atol=1e-12)
