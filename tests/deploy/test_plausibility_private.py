"""What a site tells with noise must be what sums of some rows can be."""

import numpy as np
import pytest

from bidro.core.errors import BidroError
from bidro.deploy.server.plausibility import ReportedWithNoise
from bidro.fit.questions import GradientsQuery, NoisyGradients, NoisyLosses, NoisyMoments
from bidro.privacy.terms import Budget, Plan, Terms


class TestWhatIsTold:
    """Replies that no rows and no noise give are refused."""

    plan = Plan.of(Terms(), "logistic", 2)
    budget = np.array([1.0, 1e-6, 1.0])

    def told(self):
        return ReportedWithNoise(self.plan)

    def test_budgets(self):
        zero = NoisyMoments.like(4)
        for wrong in ([1.0, 0.0, 1.0], [-1.0, 1e-6, 1.0], [1.0, 1e-6, 0.5], [np.nan, 1e-6, 1.0]):
            with pytest.raises(BidroError, match="a privacy budget that is none"):
                self.told().moments(zero._replace(budget=np.array(wrong)), 0)
        told = self.told()
        told.moments(zero._replace(budget=self.budget), 0)
        with pytest.raises(BidroError, match="another privacy budget"):
            told.moments(zero._replace(budget=np.array([2.0, 1e-6, 1.0])), 0)
        with pytest.raises(BidroError, match="over how many rows"):
            self.told().moments(zero._replace(budget=self.budget), 5)
        with pytest.raises(BidroError, match="over how many rows"):
            self.told().moments(zero, 0)
        for wrong in (2.0, -1.0, np.nan):
            with pytest.raises(BidroError, match="whether exact sums have left it before"):
                self.told().moments(zero._replace(budget=self.budget, exact=np.array(wrong)), 0)

    def test_moments(self):
        noise = np.sqrt(float(self.plan.moments_scale(Budget(1.0)).variance[0]))
        values = np.zeros(10, np.int64)
        values[0] = -int(20 * noise)
        self.told().moments(NoisyMoments(values, self.budget), 0)
        values[0] = -int(60 * noise)
        with pytest.raises(BidroError, match="eigenvalue"):
            self.told().moments(NoisyMoments(values, self.budget), 0)

    def test_gradients(self):
        query = GradientsQuery(np.zeros(3), np.eye(3), np.array(1e-3), np.array(2.0**-10))
        noise = np.sqrt(float(self.plan.gradients_scale(Budget(1.0), 1.0, 1.0).variance[0]))
        for place in (3, 4):
            values = np.zeros(5, np.int64)
            values[place] = -int(15 * noise)
            self.told().gradients(query, NoisyGradients(values, self.budget), 0)
            values[place] = -int(25 * noise)
            with pytest.raises(BidroError, match="below 0"):
                self.told().gradients(query, NoisyGradients(values, self.budget), 0)

    def test_losses(self):
        noise = np.sqrt(float(self.plan.losses_scale(Budget(1.0)).variance[0]))
        good = NoisyLosses.like(4, True)._replace(budget=self.budget)
        self.told().losses(good, 0)
        low = good.values.copy()
        low[2] = -int(25 * noise)
        with pytest.raises(BidroError, match="sum of shares"):
            self.told().losses(good._replace(values=low), 0)
        many = good.values.copy()
        many[0] = int(200 * noise)
        with pytest.raises(BidroError, match="by their losses, and of about"):
            self.told().losses(good._replace(values=many), 0)
