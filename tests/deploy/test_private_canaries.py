"""The best attack on whole private runs learns no more of a row than the site's budget allows."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from bidro.core.splits import holdout_of
from bidro.deploy.server.fit import SiteNetwork
from bidro.deploy.site import answers as private_answers
from bidro.deploy.site.config import Site
from bidro.deploy.site.rows import SiteRows, state_of
from bidro.deploy.site.session import reply_of
from bidro.deploy.site.state import write_key
from bidro.federated.engines.coordinator import Coordinator, InMemory
from bidro.federated.engines.record import Record
from bidro.fit.fit import fit
from bidro.fit.private_side import PrivateClient, in_agreed_units
from bidro.privacy.discrete_gaussian import seeded_bits
from bidro.privacy.terms import Budget, Plan, Terms
from tests.deploy.canaries import transcript_score
from tests.deploy.sites import private_sites, table
from tests.privacy.canary import audit, largest_area

_HONEST = Plan.charge

# The site whose one row is looked for, its budget, and how often it is looked for.
_ROWS, _BUDGET, _RUNS = 12, Budget(5.0), 80


@pytest.mark.slow
@pytest.mark.parametrize("held_out", [False, True])
def test_who_knows_all_other_rows_and_every_message_learns_no_more_than_the_budget(
    held_out, tmp_path, monkeypatch
):
    """Of a row on one side no more than that side's share of it; and the test would notice noise that is
    drawn for five times the budget."""
    share = Fraction(Terms().losses) if held_out else 1 - Fraction(Terms().losses)
    honest = _audited(tmp_path / "honest", monkeypatch, 1, held_out)
    assert honest.epsilon <= _BUDGET.epsilon
    assert abs(honest.area - largest_area(share * _BUDGET.rho)) <= 4 * honest.error
    exceeded = _audited(tmp_path / "exceeded", monkeypatch, 5 / share, held_out)
    assert exceeded.epsilon > _BUDGET.epsilon


def _audited(folder, monkeypatch, times, held_out):
    """The best attack on whole runs of a site whose noise is secretly drawn for so many times its budget."""

    def paid(plan, question, budget):
        rho, rows, sites = _HONEST(plan, question, budget)
        return None if rho is None else rho * times, rows, sites

    monkeypatch.setattr(Plan, "charge", paid)
    whole = table(sizes=(_ROWS,) * 5)
    here = whole[whole["site"] == "east"].drop(columns="site").reset_index(drop=True)
    # A row so far out that it changes sums by all that a row can, on the side that is looked at.
    for v in range(60, 100):
        here.loc[0, ["u", "v", "y"]] = [9.0, float(v), -40.0]
        agreed = _single(folder / str(v), here)
        others, canary = _parts(agreed, folder / str(v), here, held_out)
        if canary is not None:
            break
    path = folder / str(v) / "east.toml"
    found = {}
    for present in (True, False):
        (here if present else here.iloc[1:]).to_csv(folder / str(v) / "east.csv", index=False)
        found[present] = SiteRows.load(Site.read(path))

    def score(present, seed):
        read, bits, transcript = Site.read(path), seeded_bits(seed), []
        # A site that begins anew, to see what noise does.
        site = replace(read, state=folder / f"state-{seed}")
        site.state.mkdir()
        write_key(site.state, state_of(read).key)
        monkeypatch.setattr(private_answers.PrivateClient, "of", lambda *parts: PrivateClient(*parts, bits))

        def reply(request):
            transcript.append((request, reply_of(site, found[present], request)))
            return transcript[-1][1]

        with Record(folder / f"record-{seed}") as record:
            coordinator = Coordinator(f"run-{seed}", InMemory({"east": reply}), record)
            options = replace(agreed.fit_options, levels=())
            fit(SiteNetwork(agreed, coordinator, ("east",)), options)
        return transcript_score(transcript, agreed.plan, _BUDGET, others, canary, held_out)

    return audit(score, _RUNS, _BUDGET.delta)


def _single(folder, here):
    """One site with these rows and the budget; what it agrees on."""
    folder.mkdir(parents=True)
    privacy = f"[privacy]\nepsilon = {_BUDGET.epsilon}\n"
    return private_sites(folder, whole=here.assign(site="east"), privacy=privacy)


def _sides(folder):
    """(the site's rows, which of them are held out)."""
    site = Site.read(folder / "east.toml")
    rows = SiteRows.load(site)
    who = np.array(["east"]), np.zeros(len(rows.target), int)
    return rows, holdout_of(*who, rows.ids, 0.2, state_of(site).key, True, alone=True)


def _parts(agreed, folder, here, held_out):
    """(the rows z of all others on this side, that of the row that is looked for; None where it is on the
    other)."""
    rows, kept = _sides(folder)
    z = in_agreed_units(agreed.standard.rows(rows.features, rows.target), agreed.standard.target_spread)
    first, side = rows.target == here.loc[0, "y"], kept == held_out
    return z[side & ~first], z[first][0] if side[first].all() else None
