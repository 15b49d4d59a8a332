"""What one person pays over everything that a site releases, exactly: the same requests are sent to a site
with that person's rows and to one without, through the site's own code and its real ledger, and every sum
before its noise is drawn is noted with the variance of that noise.

Gaussian releases in which the two differ by D_j, in standard deviations of the noise, cost together
rho = sum_j D_j^2 / 2, as one release in which they differ by sqrt(2 rho) does.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import log_ndtr

import bidro
from bidro.deploy.agreement.agreement import Agreement
from bidro.deploy.site.config import Site
from bidro.deploy.site.rows import SiteRows, state_of
from bidro.deploy.site.session import reply_of
from bidro.federated.engines.coordinator import Nothing
from bidro.federated.engines.wire import header_of, pack
from bidro.fit.questions import GradientsQuery, NoisyHoldoutQuery
from bidro.privacy import mechanisms
from tests.deploy.sites import agree, private_sites

QUESTIONS = ("moments", "gradients", "losses")
CLIENT = "east"


class Step(NamedTuple):
    """What a site has and is asked at one time."""

    agreed: Agreement
    here: pd.DataFrame  # its table
    asked: tuple[str, ...] = QUESTIONS
    privacy: str | None = None  # the end of its site.toml from [privacy] on; None for the one before
    disturbed: Callable[[Path], object] | None = None  # what becomes of the site's state folder before that


class Paid(NamedTuple):
    rho: Fraction
    answered: int
    refused: tuple[str, ...]

    def delta(self, epsilon: float) -> float:
        """The smallest delta at this epsilon, exactly that of two Gaussians (Balle and Wang, 2018)."""
        mu = math.sqrt(2 * self.rho)
        if mu == 0:
            return 0.0
        first, second = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
        return float(np.exp(first) - np.exp(second))


def begun(folder: Path, here: pd.DataFrame, privacy: str, **how) -> Agreement:
    """One site, and what it agrees on."""
    folder.mkdir(parents=True)
    return private_sites(folder, whole=here.assign(site=CLIENT), privacy=privacy, **how)


def requests(agreed: Agreement, query: tuple[str, ...], run: str) -> list[bytes]:
    """Where rows far out change what is told by all that a row can: at a model of 0, clipped low."""
    plan = agreed.plan
    d = plan.columns - 1
    found = []
    for question in query:
        for number in range(1, plan.rounds + 1 if question == "gradients" else 2):
            header = {
                "version": bidro.__version__,
                "run": run,
                "question": question,
                "round": number,
                "client": CLIENT,
                "agreed": agreed.digest,
            }
            low, x = np.array(2.0**-6), np.zeros(d)
            message = {
                "moments": Nothing(),
                "gradients": GradientsQuery(x, np.eye(d), low, low),
                "losses": NoisyHoldoutQuery(x, low),
            }[question]
            found.append(pack(message, header))
    return found


def paid(
    folder: Path, begin: Callable[[Path], object], steps: list[Step], without: Callable, monkeypatch
) -> Paid:
    """What the person costs whose rows `without` leaves out of a table; `begin` makes a site in a folder."""
    heard = []
    for name, kept in (("with", lambda table: table), ("without", without)):
        path = folder / name
        begin(path)
        heard.append(heard_of(path, steps, kept, monkeypatch))
    (sums, outcomes), (others, same) = heard
    assert outcomes == same, "what is refused depends on a person"
    rho = Fraction(0)
    for (one, variance), (other, _) in zip(sums, others, strict=True):
        for a, b, noise in zip(one, other, variance, strict=True):
            assert noise > 0 or a == b, "an exact sum with this person in it has left"
            rho += Fraction(a - b) ** 2 / (2 * noise) if noise else 0
    refused = tuple(reason for reason in outcomes if reason)
    return Paid(rho, len(outcomes) - len(refused), refused)


def heard_of(folder, steps, kept, monkeypatch):
    """([(the sums before noise, the noise's variances) of every draw], [why it was refused or ""])."""
    drawn, outcomes, honest = [], [], mechanisms.with_noise

    def noted(sums, scale, bits):
        drawn.append((tuple(sums), scale.variance))
        return honest(sums, scale, bits)

    path = folder / f"{CLIENT}.toml"
    with monkeypatch.context() as patch:
        patch.setattr(mechanisms, "with_noise", noted)
        for number, step in enumerate(steps):
            agree(folder, step.agreed)
            kept(step.here).to_csv(folder / f"{CLIENT}.csv", index=False)
            if step.privacy is not None:
                path.write_text(path.read_text().split("[privacy]")[0] + step.privacy)
            site = Site.read(path)
            if step.disturbed is not None:
                step.disturbed(site.state)
                state_of.cache_clear()
            rows = SiteRows.load(site)
            for request in requests(step.agreed, step.asked, f"run-{number}"):
                outcomes.append(header_of(reply_of(site, rows, request)).get("refused", ""))
    return drawn, outcomes
