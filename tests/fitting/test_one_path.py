"""One path for a fit: in one process and over a network of bytes the same client code answers."""

import numpy as np
import pytest

from bidro.deploy.server import run_job
from bidro.errors import BidroError
from bidro.fitting import LocalNetwork, Options, Progress, client_side, fit
from bidro.losses.registry import LossChoice
from bidro.standard import Moments, Standard, client_moments
from bidro.training import Choices
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
    options = FitOptions(tables=(str(folder / "whole.csv"),), client="site", target="y", **QUICK)
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
    from bidro.algorithms import OneShotMWDRO

    folder, agreed = sites
    whole = OneShotMWDRO.replies_on_host

    def on_real_rows(self, broadcast, rows):
        # The server asks itself for the shapes of a reply, over one made-up row.
        return whole(self, broadcast, rows) if len(rows.samples) == 1 else broken()

    monkeypatch.setattr(OneShotMWDRO, "replies_on_host", on_real_rows)
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
    options = Options(LossChoice("squared", None), Choices(radius=0.1, weights="simplex"))
    ours = network(rng)
    fit(ours, options)
    with pytest.raises(BidroError, match="for one fit"):
        fit(ours, options)


def test_moments_of_clients_are_those_of_numpy_whatever_their_sizes():
    rng = np.random.default_rng(1)
    sizes = [1, 3, 70_000, 2, 500]
    rows = 1e6 + rng.normal(size=(sum(sizes), 2)) * [1.0, 1e-3]
    mean, deviation = client_moments(rows, sizes)
    for k, own in enumerate(np.split(rows, np.cumsum(sizes)[:-1])):
        np.testing.assert_allclose(mean[k], own.astype(np.longdouble).mean(axis=0), rtol=1e-15)
        np.testing.assert_allclose(deviation[k], own.std(axis=0), rtol=1e-6, atol=1e-9)
    pooled = Moments.pooled(sizes, mean, deviation)
    np.testing.assert_allclose(pooled.mean, rows.mean(axis=0), rtol=1e-14)
    np.testing.assert_allclose(pooled.deviation, rows.std(axis=0), rtol=1e-6)


def test_rows_are_put_into_units_where_they_are():
    rng = np.random.default_rng(2)
    rows = rng.normal(5.0, 3.0, size=(50, 3))
    rows[:, 1] = 0.1
    standard = Standard.of(Moments.of(rows[:, :-1], rows[:, -1]), False)
    expected = (rows - rows.mean(axis=0)) / [rows[:, 0].std(), 1.0, 1.0]
    expected[:, 1] = 0.0
    converted = rows.copy()
    standard.convert(converted)
    np.testing.assert_allclose(converted, expected, atol=1e-12)
