"""The best attack on whole private runs learns no more of a row than the site's budget allows."""

from dataclasses import replace

import numpy as np
import pytest

from bidro.deploy import private_answers
from bidro.deploy.private_answers import LEDGER
from bidro.deploy.site import reply_of
from bidro.deploy.site_config import Site
from bidro.deploy.site_network import SiteNetwork
from bidro.deploy.site_rows import SiteRows, state_of
from bidro.engines.carrier import InMemory
from bidro.engines.coordinator import Coordinator
from bidro.engines.record import Record
from bidro.fitting import fit
from bidro.fitting.private_side import Answering, in_agreed_units
from bidro.privacy.discrete_gaussian import seeded_bits
from bidro.privacy.terms import Budget, Plan
from bidro.splits import holdout_of
from tests.deploy.canaries import area, most, score
from tests.deploy.sites import private_sites, table
from tests.small import mostly_slow

# The site whose one row is looked for, its budget, and how often it is looked for.
_ROWS, _BUDGET, _RUNS = 12, Budget(5.0), 80


@pytest.mark.parametrize("kept_out", mostly_slow([False, True], lambda kept_out: not kept_out))
def test_who_knows_all_other_rows_and_every_message_learns_no_more_than_the_budget(
    kept_out, tmp_path, monkeypatch
):
    """And the test would notice noise for five times the budget."""
    allowed = most(_BUDGET.rho)
    found, error = _area(tmp_path / "honest", monkeypatch, 1, kept_out)
    assert 0.5 < found <= allowed + 3 * error
    exceeded, error = _area(tmp_path / "exceeded", monkeypatch, 5, kept_out)
    assert exceeded > allowed + 3 * error


def _area(folder, monkeypatch, times, kept_out):
    """Under the curve of the best attack on whole runs of a site whose noise is secretly drawn for so many
    times its budget."""
    honest = Plan._paid

    def paid(self, question, budget):
        rho, rows = honest(self, question, budget)
        return None if rho is None else rho * times, rows

    bits = seeded_bits(times)
    drawn = lambda rows, plan, budget: Answering(rows, plan, budget, bits)  # noqa: E731
    monkeypatch.setattr(Plan, "_paid", paid)
    monkeypatch.setattr(private_answers, "Answering", drawn)
    monkeypatch.setattr(Answering, "_paid", lambda self, question: paid(self.plan, question, self.budget))
    whole = table(sizes=(_ROWS,) * 5)
    here = whole[whole["site"] == "east"].drop(columns="site").reset_index(drop=True)
    # A row so far out that it changes sums by all that a row can, on the side that is looked at.
    for v in range(60, 100):
        here.loc[0, ["u", "v", "y"]] = [9.0, float(v), -40.0]
        if _site_kept_out(folder, here, f"east-{v}")[0] == kept_out:
            break
    agreed, scores = _single(folder / "run", here), {}
    others, canary = _parts(agreed, folder / "run", here, kept_out)
    for present in (True, False):
        (here if present else here.iloc[1:]).to_csv(folder / "run" / "east.csv", index=False)
        site = Site.read(folder / "run" / "east.toml")
        rows, scores[present] = SiteRows.load(site), []
        for run in range(_RUNS):
            for file in site.state.glob(f"{LEDGER}*"):
                file.unlink()  # a site that begins anew, to see what noise does
            transcript = []

            def reply(request, site=site, rows=rows, transcript=transcript):
                transcript.append((request, reply_of(site, rows, request)))
                return transcript[-1][1]

            with Record(folder / f"record-{present}-{run}") as record:
                coordinator = Coordinator(f"run-{present}-{run}", InMemory({"east": reply}), record)
                options = replace(agreed.fit_options, levels=())
                fit(SiteNetwork(agreed, coordinator, ("east",)), options)
            scores[present].append(score(transcript, agreed.plan, _BUDGET, others, canary, kept_out))
    return area(scores[False], scores[True])


def _single(folder, here):
    """One site with these rows and the budget; what it agrees on."""
    folder.mkdir(parents=True)
    privacy = f"[privacy]\nepsilon = {_BUDGET.epsilon}\n"
    return private_sites(folder, whole=here.assign(site="east"), privacy=privacy)


def _sides(agreed, folder):
    """(the site's rows, which of them are kept out)."""
    site = Site.read(folder / "east.toml")
    rows = SiteRows.load(site)
    who = np.array(["east"]), np.zeros(len(rows.target), int)
    return rows, holdout_of(*who, rows.ids, 0.2, state_of(site).key, True, alone=True)


def _site_kept_out(folder, here, name):
    """Whether the first row of a table is kept out."""
    rows, kept = _sides(_single(folder / name, here), folder / name)
    return kept[rows.target == here.loc[0, "y"]]


def _parts(agreed, folder, here, kept_out):
    """(the rows z of all others on its side, that of the row that is looked for)."""
    rows, kept = _sides(agreed, folder)
    z = in_agreed_units(agreed.standard.rows(rows.features, rows.target), agreed.standard.target_spread)
    first = rows.target == here.loc[0, "y"]
    return z[(kept == kept_out) & ~first], z[first][0]
