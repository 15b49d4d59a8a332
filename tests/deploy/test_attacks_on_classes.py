"""A server that works harder for rows: what a better reading of the same agreed replies tells."""

import itertools

import numpy as np
import pytest
from scipy.interpolate import AAA
from scipy.special import expit

from bidro.deploy.site.rows import SiteRows, holdout
from bidro.deploy.site.state import SiteLog
from bidro.federated.engines.wire import unpack
from bidro.fit.questions import HoldoutBounds, HoldoutQuery
from tests.deploy.test_attacks import FEATURES, SEEDS, gradients, in_units, people, rebuilt, site_with
from tests.deploy.test_site import LEVELS, asked_of
from tests.small import mostly_slow


def read_from_poles(intercepts, found, rows):
    """Estimates (estimates, features) of single rows, from gradients (models, d) along intercepts b.

    A gradient is constant + mean_i theta_i sigma(s_i + b), a rational function of u = exp(b) with a simple
    pole at -exp(-s_i) a row, whose residue is the row. A pole counts where its weight is one row's.
    """
    poles = AAA(np.exp(intercepts), found[:, -1], rtol=1e-12, max_terms=15).poles()
    real = poles[(np.abs(poles.imag) < 1e-2 * np.abs(poles.real)) & (poles.real < 0)].real
    if not len(real):
        return np.zeros((0, found.shape[1] - 1))
    parts = np.column_stack([expit(intercepts[:, None] - np.log(-real)), np.ones(len(intercepts))])
    weights = np.linalg.lstsq(parts, found, rcond=1e-14)[0][:-1]
    alone = np.abs(weights[:, -1] * rows - 1) < 0.1
    return weights[alone, :-1] / weights[alone, -1:]


def estimates_from_tails(site, directions, seed, rows, largest):
    """By models in random directions whose edge is beyond most rows, thirty requests a direction."""
    rng = np.random.default_rng(seed)
    intercepts = np.linspace(-largest, -0.4 * largest, 30)
    estimates = []
    for _ in range(directions):
        slope = rng.normal(size=len(FEATURES))
        slope *= 0.4 * largest / np.linalg.norm(slope)
        models = np.column_stack([np.tile(slope, (len(intercepts), 1)), intercepts])
        found = gradients(site, models)
        if isinstance(found, str):
            return found
        estimates.append(read_from_poles(intercepts, found, rows))
    return np.concatenate(estimates)


@pytest.mark.filterwarnings("ignore:AAA failed to converge")
@pytest.mark.parametrize("seed", mostly_slow(SEEDS, lambda seed: seed == 0))
def test_the_poles_of_logistic_gradients_are_no_rows(seed, tmp_path):
    """Gradients to sixteen digits along a line of intercepts determine the rows beyond a model's edge, so
    that a site answers with them only where it trusts the server."""
    table = people(seed, True)
    trusting = site_with(tmp_path / "trusting", table, {}, release="trusted")
    own, other = (in_units(trusting, one) for one in (table, people(100 + seed, True)))
    found = estimates_from_tails(trusting, 4, seed, len(table), 20.0)
    assert rebuilt(found, own) >= 3 + rebuilt(found, other)
    site = site_with(tmp_path / "site", table, {})
    assert 'set release = "trusted"' in estimates_from_tails(site, 4, seed, len(table), 20.0)


def mistakes_at(site, model, run):
    """(the share of mistakes of a model among the held-out rows, or None, why there is none)."""
    none = np.zeros(0)
    fixed = HoldoutQuery(np.asarray(model, float), LEVELS, np.asarray(2.0**20), none, none, none, none)
    refused, reply = asked_of(site, "bounds", fixed, run=run)
    return (None, refused) if refused else (float(unpack(reply, HoldoutBounds).means[2]), None)


@pytest.mark.parametrize("limited", [False, True])
def test_counts_of_mistakes_are_no_ruler(limited, tmp_path, monkeypatch):
    """A share of mistakes is a count of rows beyond a plane that the server chooses: by bisection it told
    where a row is that was held out, to as many digits as were asked for, run by run. A site that does not
    trust the server says nothing of classes, and one that does no more than a few times."""
    table = people(0, True)
    usual = site_with(tmp_path / "usual", table, {"hold_out": 0.25})
    assert 'set release = "trusted"' in mistakes_at(usual, np.zeros(5), "first")[1]
    site = site_with(tmp_path / "site", table, {"hold_out": 0.25}, release="trusted")
    if not limited:
        monkeypatch.setattr(SiteLog, "reserve", lambda *_: None)
    rows = SiteRows.load(site)
    kept = rows.in_units("east", holdout(site, rows)).host_rows
    low, high, runs = -4.0, 4.0, itertools.count()

    def counted(edge):
        share, refused = mistakes_at(site, [1.0, 0.0, 0.0, 0.0, -edge], f"run-{next(runs)}")
        return refused if share is None else round(share * len(kept))

    first = counted(low)
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if counted(middle) == first else (low, middle)
    # The count changes where the edge passes a row.
    assert (np.abs(kept[:, 0] - low).min() > 0.1) == limited
