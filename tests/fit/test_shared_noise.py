"""A private fit with shared noise: sums are of all rows, noise of all shares, and costs as agreed."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from bidro.certify.certificate import Certificate, Shared
from bidro.core.errors import BidroError
from bidro.fit.fit import fit
from bidro.fit.private import noisy_sums, private_plan, reported_budgets
from bidro.fit.private_side import PrivateClient, PrivateRows
from bidro.fit.questions import GradientsQuery
from bidro.privacy.accounting import epsilon_of, honest_sites, shared_rho
from bidro.privacy.discrete_gaussian import seeded_bits
from bidro.privacy.masking import Release, Roster, SiteKey, masked, sum_of_masked
from bidro.privacy.mechanisms import symmetric
from bidro.privacy.terms import Budget, Plan, SharedNoise, Terms
from tests.fit.test_private import CLASSES, OPTIONS, UNITS, network, z_of
from tests.privacy.canary import audit, largest_area, log_likelihood_ratio

SHARED = SharedNoise(1.0)
SIZES = (400,) * 8


def of(options, shared=SHARED, **terms):
    return replace(options, privacy=Terms(shared=shared, **terms))


def shared_fit(options=OPTIONS, shared=SHARED, sizes=SIZES, **how):
    classes = options.loss.word == "logistic"
    net = network(Budget(shared.epsilon), sizes=sizes, classes=classes, **how)
    return fit(net, of(options, shared))


@pytest.mark.parametrize("sites", [3, 8, 63])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("honest", [0.0, 0.5, 1.0])
def test_a_run_costs_what_was_agreed_on_if_as_many_are_honest(sites, loss, honest):
    """All releases of a run together; and of masked ones by as many shares of the noise that is drawn as are
    relied on."""
    shared = SharedNoise(1.0, honest=honest)
    plan = Plan.of(Terms(shared=shared), loss, 5, sites=sites)
    budget, h = Budget(1.0), honest_sites(honest, sites)
    whole = [plan.cost(query, budget).rho for query in ("counts", "losses", "moments")]
    whole += [plan.cost("gradients", budget).rho] * plan.rounds
    assert sum(whole) == budget.rho
    for query, scale, size in (
        ("moments", plan.moments_scale(budget), 2**36),
        ("gradients", plan.gradients_scale(budget, 1.0, 1.0), 25 * 2**14),
    ):
        variance = scale.variance[0]
        assert scale.sites == sites
        assert scale.over_sites.variance[0] == sites * variance
        # What one row changes, in the norm that the mechanism says, by noise of h shares.
        alone = Fraction(size**2) / (2 * variance)
        charged = plan.cost(query, budget).rho
        assert shared_rho(alone, h, min(scale.variance), len(scale.variance)) <= charged
        assert float(alone / h) == pytest.approx(float(charged), rel=1e-8)


def test_a_site_that_relies_on_fewer_is_charged_more_for_the_same_noise():
    plan = Plan.of(Terms(shared=SHARED), "squared", 5, sites=8)
    for honest, times in ((None, 1), (0.5, 1), (0.0, 4), (0.25, 2), (1.0, Fraction(1, 2))):
        budget = Budget(3.0, honest=honest)
        for query in ("moments", "gradients"):
            assert plan.cost(query, budget).rho == times * plan.cost(query, Budget(1.0)).rho
        for query in ("counts", "losses"):
            assert plan.cost(query, budget).rho == plan.cost(query, Budget(1.0)).rho
        # And the noise is everybody's, whatever a site's own budget.
        assert plan.moments_scale(budget).variance == plan.moments_scale(Budget(0.1)).variance


@pytest.mark.parametrize(("sites", "half"), [(3, 1.45), (8, 2.1), (12, 2.6), (63, 6.7)])
def test_the_unconditional_figure_is_that_of_ones_own_share(sites, half):
    """As if all of the budget were for sums it is the issue of how many are relied on; parts that sites add
    all noise to cost the same in both figures."""
    shared = SharedNoise(1.0, rows=0.001)
    plan = Plan.of(Terms(shared=shared), "squared", 5, held_out=False, sites=sites)
    assert plan.alone.epsilon == pytest.approx(half, rel=0.03)
    with_losses = Plan.of(Terms(shared=shared), "squared", 5, sites=sites)
    assert 1 < with_losses.alone.epsilon < plan.alone.epsilon
    assert Plan.of(Terms(shared=replace(shared, honest=0.0)), "squared", 5, sites=sites).alone.epsilon <= 1.0


def test_pooled_moments_are_those_of_all_rows_with_the_noise_of_all_shares():
    net, off = network(Budget(1.0), sizes=SIZES), []
    z = z_of(net)
    plan = private_plan(of(OPTIONS), ("u", "v"), people=False, sites=8)
    weight = np.minimum(1.0, plan.clip / np.linalg.norm(z, axis=1))
    expected = np.einsum("ni,nj->ij", z * weight[:, None], z * weight[:, None])
    for seed in range(60):
        told = network(Budget(1.0), sizes=SIZES, bits=seed).privately(UNITS, plan).moments()
        sums = noisy_sums(plan, told, reported_budgets(told.budget))
        assert sums.values.shape == (1, 4, 4)
        off.append((sums.values[0] - expected)[np.triu_indices(4)] / sums.noise[0])
    off = np.array(off) * np.where(np.equal(*np.triu_indices(4)), 1.0, math.sqrt(2))
    assert abs(off.mean()) < 4 / math.sqrt(off.size)
    assert off.var() == pytest.approx(1.0, abs=4 * math.sqrt(2 / off.size))
    # Of the noise that every site would add by itself, the root of h-th part.
    own = private_plan(OPTIONS, ("u", "v"), people=False).moments_scale(Budget(1.0)).sigma[0]
    assert sums.noise[0] == pytest.approx(math.sqrt(8) * own / math.sqrt(4), rel=0.02)


def test_masked_messages_give_the_same_sums_to_the_bit():
    """What goes to a server between machines: every site's values under masks."""
    plan = private_plan(of(OPTIONS), ("u", "v"), people=False, sites=8)
    clients = network(Budget(1.0), sizes=SIZES, bits=3).privately(UNITS, plan)
    query = GradientsQuery(np.zeros(3), np.eye(3), np.array(2.0), np.array(4.0))
    keys = {f"site-{i}": SiteKey(bytes([i]) * 32) for i in range(8)}
    roster = Roster({name: key.public for name, key in keys.items()})
    for question, told in (("moments", clients.moments()), ("gradients", clients.gradients(1, query))):
        release = Release(roster, "agreed", "run", 1, question)
        each = zip(told.values, keys, strict=True)
        sent = np.stack([masked(own, name, keys[name], release) for own, name in each])
        np.testing.assert_array_equal(sum_of_masked(sent), sum_of_masked(told.values))
        assert not np.any(sent == told.values)


def test_a_fit_with_shared_noise_is_nearer_to_least_squares():
    """Over ten draws of noise, in the mean square of the difference: noise of a fourth of the variance."""
    whole, units = {"sizes": SIZES, "hold_out": 0.0}, replace(UNITS, target_spread=4.0)
    options, off = replace(OPTIONS, units=units), []
    z = z_of(network(None, **whole), units)
    exact = np.linalg.lstsq(z[:, :-1], z[:, -1], rcond=None)[0] * units.target_spread
    for shared in (None, SharedNoise(0.3)):
        each = [network(Budget(0.3), bits=seed, **whole) for seed in range(10)]
        off.append(np.mean([(fit(net, of(options, shared)).trained.x - exact) ** 2 for net in each]))
    assert 0.1 * off[0] < off[1] < 0.5 * off[0]


def test_a_fit_of_classes_with_shared_noise_varies_less_by_it():
    found = []
    for shared in (None, SharedNoise(0.3, honest=1.0)):
        each = [network(Budget(0.3), bits=s, sizes=SIZES, classes=True, hold_out=0.0) for s in range(10)]
        found.append(np.array([fit(net, of(CLASSES, shared)).trained.x for net in each]).var(axis=0).sum())
    assert found[1] < 0.7 * found[0]


def test_the_certificate_says_both_figures_and_reads_itself():
    found = shared_fit(bits=1)
    stated = found.certificates[0.95]
    shared = stated.privacy.shared
    plan = private_plan(of(OPTIONS), ("u", "v"), people=False, sites=8)
    assert shared == Shared(4, 8, 1.0, plan.alone.epsilon, 1e-6)
    assert "by noise that is shared" in stated.privacy.promise
    assert (
        "this run costs epsilon = 1 as long as 4 of the 8 clients, a person's own among them, keep their "
        f"shares of it to themselves, and epsilon = {shared.alone:.3g}, with delta = 1e-06, whatever all "
        "others do"
    ) in stated.privacy.promise
    again = Certificate.from_json(stated.to_json())
    assert again.privacy == stated.privacy
    assert again.to_json() == stated.to_json()
    # Weights are by numbers of rows, which have noise of their own.
    scale = plan.rows_scale(None).sigma[0]
    assert np.array(stated.weights) == pytest.approx(np.full(8, 1 / 8), abs=5 * scale / 2500)
    assert stated.clipped is not None


def test_what_shared_noise_does_not_go_with_is_refused():
    robust = replace(OPTIONS, choices=replace(OPTIONS.choices, weights="simplex"))
    with pytest.raises(BidroError, match=r"robust weights need their own: weights = 'fixed'"):
        shared_fit(robust)
    with pytest.raises(BidroError, match="shared by at least 3 sites, and here are 2"):
        shared_fit(sizes=(300, 300))
    with pytest.raises(BidroError, match="every site needs a privacy budget"):
        fit(network(None, sizes=SIZES), of(OPTIONS))
    with pytest.raises(BidroError, match="needs an epsilon"):
        Terms(shared={"honest": 0.5})
    with pytest.raises(BidroError, match="has no 'epsilom'"):
        Terms(shared={"epsilom": 0.5})
    with pytest.raises(BidroError, match="honest must be a share"):
        SharedNoise(1.0, honest=-0.1)
    with pytest.raises(BidroError, match=r"rows in \[privacy.shared\] must be a share"):
        SharedNoise(1.0, rows=0.9)
    with pytest.raises(BidroError, match="over 3 sites are exact for at most 44,739,082 rows"):
        Plan.of(Terms(shared=SHARED), "squared", 5, sites=3).require_room(2**27)
    assert Terms(shared={"epsilon": 2, "honest": 1}) == Terms(shared=SharedNoise(2, honest=1))


def test_counts_have_all_the_noise_that_they_cost():
    plan = private_plan(of(OPTIONS), ("u", "v"), people=False, sites=8)
    clients = network(Budget(1.0), sizes=SIZES, bits=5).privately(UNITS, plan)
    exact = np.array([len(one.rows.training) for one in clients.clients])
    off = np.array([np.asarray(clients.counts().values)[:, 0] - exact for _ in range(40)])
    scale = plan.rows_scale(None)
    rho = plan.cost("counts", Budget(1.0)).rho
    assert scale.variance[0] == 1 / (2 * rho)
    assert epsilon_of(rho, 1e-6) < 0.15
    assert off.std() == pytest.approx(scale.sigma[0], rel=0.2)


def test_gradients_and_moments_are_wrapped_and_not_cut():
    """A site's sums are taken modulo 2^64, so that those over sites are right even where a part is beyond."""
    from bidro.privacy import mechanisms

    scale = mechanisms.Scale(np.ones(1), (Fraction(0),), 3)
    parts = [2**63 + 5, -(2**63) - 7, 11]
    told = np.stack([mechanisms.with_noise([v], scale, lambda n: bytes(n)).values for v in parts])
    assert sum_of_masked(told).tolist() == [9]
    assert symmetric(np.arange(3.0), 2).shape == (2, 2)


LARGER = SharedNoise(3.0)


def attacked(colluding, runs=120):
    """The best attack there is on all masked sums of a run of eight sites, by whoever knows all rows but one
    and the noise of so many other sites: what is left of every sum is noise of the rest."""
    options, query = of(OPTIONS, LARGER), GradientsQuery(np.zeros(3), np.eye(3), np.array(2.0), np.array(4.0))
    plan = private_plan(options, ("u", "v"), people=False, sites=8)
    others, far = np.ones((3, 4)), np.vstack([np.ones((3, 4)), [[30.0, -20.0, 1.0, 50.0]]])
    exact = replace(plan, shared=None)
    clean = [PrivateClient(PrivateRows(z, z[:0]), exact, None) for z in (far, others)]
    asked = [lambda one: one.moments().values, *[lambda one: one.gradients(query).values] * plan.rounds]
    scales = [plan.moments_scale(None), *[plan.gradients_scale(None, 2.0, 4.0)] * plan.rounds]
    without = [[ask(one) for one in clean] for ask in asked]

    def score(present, seed):
        sites = [
            PrivateClient(
                PrivateRows(far if present and i == 0 else others, others[:0]),
                plan,
                LARGER.budget,
                seeded_bits(1000 * seed + i),
            )
            for i in range(8 - colluding)
        ]
        found = 0.0
        for ask, scale, (one, other) in zip(asked, scales, without, strict=True):
            told = sum_of_masked(np.stack([ask(site) for site in sites]))
            rest = (len(sites) - 1) * other
            variance = [len(sites) * v for v in scale.variance]
            found += log_likelihood_ratio(told - rest, one, other, variance)
        return found

    budget = LARGER.budget
    rho = plan.cost("moments", budget).rho + plan.rounds * plan.cost("gradients", budget).rho
    return audit(score, runs, 1e-6), rho


@pytest.mark.parametrize(
    ("colluding", "times"), [pytest.param(0, Fraction(1, 2), marks=pytest.mark.slow), (4, 1)]
)
def test_the_best_attack_with_half_of_the_sites_colluding_learns_what_was_charged(colluding, times):
    """And without them half of it; no more than the claim, which it reaches."""
    found, rho = attacked(colluding)
    assert found.epsilon <= LARGER.epsilon
    assert found.by_counts <= LARGER.epsilon
    assert abs(found.area - largest_area(times * rho)) <= 3.5 * found.error


def test_with_all_other_sites_colluding_it_learns_what_ones_own_share_costs():
    """The second figure, which it reaches, and which is above the first."""
    found, rho = attacked(7)
    assert abs(found.area - largest_area(4 * rho)) <= 3.5 * found.error
    assert found.area - 3.5 * found.error > largest_area(rho)
    plan = private_plan(of(OPTIONS, LARGER), ("u", "v"), people=False, sites=8)
    assert found.epsilon <= plan.alone.epsilon
