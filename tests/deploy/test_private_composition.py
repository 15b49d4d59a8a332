"""Whatever a server asks of a site with a budget, and whatever becomes of its table, nobody pays more than
the budget: by exact accounting of all that the site's own code releases."""

from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load

from bidro.core.splits import holdout_of
from bidro.data.tables import learn_schema
from bidro.deploy.agreement.agreement import drafted
from bidro.deploy.site import answers as private_answers
from bidro.deploy.site.config import Site
from bidro.deploy.site.rows import SiteRows, state_of
from bidro.deploy.site.session import reply_of
from bidro.deploy.site.state import write_key
from bidro.fit.private_side import PrivateClient
from bidro.privacy.accounting import epsilon_of
from bidro.privacy.discrete_gaussian import seeded_bits
from bidro.privacy.terms import Budget, Terms
from tests.deploy.composition import CLIENT, Step, begun, heard_of, paid, requests
from tests.deploy.sites import PRIVACY, agree, retrained, table
from tests.privacy.canary import audit, largest_area, log_likelihood_ratio

BUDGET = Budget(3.0, 1e-6)
# Every row is longer, and changes second moments by all that a row can.
TERMS = Terms(clip=0.5)
TRAINING = ("moments", "gradients")
KEPT_OUT = ("losses",)


def rows_here():
    """The rows of one site, some so far out that they change sums by all that a row can."""
    here = table(sizes=(40,) * 5)
    here = here[here["site"] == CLIENT].drop(columns="site").reset_index(drop=True)
    far = 90.0 + np.arange(30), np.full(30, 800.0), np.full(30, 900.0)
    here.loc[:29, ["u", "v", "y"]] = np.column_stack(far)
    return here


def held_out(folder, agreed, here):
    """(N,) which rows of a table a site in the folder holds out by an agreement."""
    agree(folder, agreed)
    here.to_csv(folder / f"{CLIENT}.csv", index=False)
    site = Site.read(folder / f"{CLIENT}.toml")
    rows = SiteRows.load(site)
    share, everyone = agreed.options.hold_out, np.zeros(len(rows.target), int)
    kept = holdout_of(np.array([CLIENT]), everyone, rows.ids, share, state_of(site).key, True, alone=True)
    out = set(rows.features[kept][:, 0].tolist())
    return here["u"].isin(out).to_numpy()


def beginning(here):
    """Makes a site in a folder."""
    return lambda folder: begun(folder, here, PRIVACY, terms=TERMS)


def without(place):
    return lambda here: here.drop(index=place)


def on_other_side(before, after):
    """Somebody far out who is in training before and held out after."""
    return int(np.flatnonzero(~before[:30] & after[:30])[0])


def require_within(found, budget=BUDGET):
    assert epsilon_of(found.rho, budget.delta) <= budget.epsilon
    assert found.delta(budget.epsilon) <= budget.delta
    assert found.answered
    assert all("is new to this site" in reason for reason in found.refused)


@pytest.mark.parametrize("first", ["training", "held out"])
def test_another_share_of_rows_kept_out_costs_nobody_more_than_the_budget(first, tmp_path, monkeypatch):
    here = rows_here()
    one = begun(tmp_path / "looked", here, PRIVACY, terms=TERMS, training={"hold_out": 0.5})
    other = retrained(one, {"hold_out": 0.05}, privacy=TERMS)
    sides = [held_out(tmp_path / "looked", agreed, here) for agreed in (other, one)]
    person = on_other_side(*sides)
    steps = [Step(other, here, TRAINING), Step(one, here, KEPT_OUT)]
    found = paid(
        tmp_path,
        beginning(here),
        steps if first == "training" else steps[::-1],
        without(person),
        monkeypatch,
    )
    require_within(found)
    # The person was in all of it: the account is exact, and no more than what it says is spent.
    assert found.rho >= BUDGET.rho * 999 / 1000


def test_a_column_less_costs_nobody_more_than_the_budget(tmp_path, monkeypatch):
    here = rows_here()
    one = begun(tmp_path / "looked", here, PRIVACY, terms=TERMS)
    less = here.drop(columns="ward").assign(site=CLIENT)
    schema = learn_schema(less, "site", "y", None, None, "refuse", None)
    other = drafted(schema, less, None, {"curves": "none", "hold_out": 0.5}, privacy=TERMS)
    person = on_other_side(*(held_out(tmp_path / "looked", agreed, here) for agreed in (one, other)))
    steps = [Step(one, here, TRAINING), Step(other, here, KEPT_OUT)]
    found = paid(tmp_path, beginning(here), steps, without(person), monkeypatch)
    require_within(found)
    assert found.rho >= BUDGET.rho * 999 / 1000


def test_a_cell_corrected_between_gradients_and_losses_costs_nobody_more_than_the_budget(
    tmp_path, monkeypatch
):
    here = rows_here()
    agreed = begun(tmp_path / "looked", here, PRIVACY, terms=TERMS, training={"hold_out": 0.5})
    corrected = here.assign(v=here["v"] + 1.0)
    person = on_other_side(*(held_out(tmp_path / "looked", agreed, one) for one in (here, corrected)))
    steps = [Step(agreed, here, TRAINING), Step(agreed, corrected, KEPT_OUT)]
    found = paid(tmp_path, beginning(here), steps, without(person), monkeypatch)
    require_within(found)
    assert found.rho >= BUDGET.rho * 999 / 1000


@pytest.mark.parametrize("rows_per_person", [(5, 1), (1, 5)])
def test_other_rows_a_person_refund_nothing(rows_per_person, tmp_path, monkeypatch):
    """Somebody with five rows, over sites whose owner changes for how many the budget is."""
    here = rows_here()
    here["person"] = [f"p{i // 5}" for i in range(len(here))]
    parts = [f"{PRIVACY}rows_per_person = {k}\n" for k in rows_per_person]
    how = {"terms": TERMS, "person": "person", "training": {"hold_out": 0.0}}
    agreed = begun(tmp_path / "looked", here, parts[0], **how)
    steps = [Step(agreed, here, TRAINING, part) for part in parts]

    def gone(rows):
        return rows[rows["person"] != "p1"]

    def begin(path):
        begun(path, here, parts[0], **how)

    require_within(paid(tmp_path, begin, steps, gone, monkeypatch))


def lost(name):
    """A file of a state folder, with its log, is gone."""

    def gone(folder):
        for file in folder.glob(f"{name}*"):
            file.unlink()

    return gone


@pytest.mark.parametrize("name", ["ledger.sqlite", "state.sqlite"])
def test_a_file_of_the_state_folder_that_is_lost_fills_no_budget(name, tmp_path, monkeypatch):
    here = rows_here()
    agreed = begun(tmp_path / "looked", here, PRIVACY, terms=TERMS, training={"hold_out": 0.0})
    steps = [Step(agreed, here, TRAINING), Step(agreed, here, TRAINING, disturbed=lost(name))]
    found = paid(tmp_path, beginning(here), steps, without(0), monkeypatch)
    assert epsilon_of(found.rho, BUDGET.delta) <= BUDGET.epsilon
    assert found.answered == 9
    assert len(found.refused) == 9
    assert all(f"restores the newest {name} into" in reason for reason in found.refused)


def test_a_budget_that_is_taken_out_lets_no_exact_sums_leave(tmp_path, monkeypatch):
    """Also where its owner trusts the server, to whom sums without a budget would be sent."""
    here = rows_here()
    here.loc[:, ["u", "v", "y"]] = np.random.default_rng(0).normal(size=(len(here), 3))
    how = {"terms": TERMS, "training": {"hold_out": 0.0}, "extra": 'release = "trusted"\nmin_rows = 2'}
    agreed = begun(tmp_path / "looked", here, PRIVACY, **how)
    steps = [Step(agreed, here, ("moments",)), Step(agreed, here, ("moments",), privacy="")]

    def begin(path):
        begun(path, here, PRIVACY, **how)

    found = paid(tmp_path, begin, steps, without(0), monkeypatch)
    assert epsilon_of(found.rho, BUDGET.delta) <= BUDGET.epsilon
    (reason,) = found.refused
    assert "its owner puts [privacy] back, or gives the promise up" in reason


@pytest.mark.slow
def test_the_best_attack_on_somebody_on_both_sides_finds_no_more_than_the_budget(tmp_path, monkeypatch):
    """A cell is corrected between gradients and losses, and the attacker knows all other rows and what the
    person's would be: an audit of what the site really sends, run after run with noise of its own."""
    budget = Budget(5.0, 1e-6)
    privacy = f"[privacy]\nepsilon = {budget.epsilon}\ndelta = {budget.delta}\n"
    here, how = rows_here(), {"terms": TERMS, "training": {"hold_out": 0.5}}
    agreed = begun(tmp_path / "looked", here, privacy, **how)
    corrected = here.assign(v=here["v"] + 1.0)
    person = on_other_side(*(held_out(tmp_path / "looked", agreed, one) for one in (here, corrected)))
    steps = [Step(agreed, here, TRAINING), Step(agreed, corrected, KEPT_OUT)]
    sums, tables = {}, {}
    for present in (True, False):
        path = tmp_path / str(present)
        begun(path, here, privacy, **how)
        leave = (lambda rows: rows) if present else without(person)
        sums[present], _ = heard_of(path, steps, leave, monkeypatch)
        site = Site.read(path / f"{CLIENT}.toml")
        tables[present] = []
        for step in steps:
            leave(step.here).to_csv(path / f"{CLIENT}.csv", index=False)
            tables[present].append(SiteRows.load(site))
    key = state_of(site).key

    def score(present, seed):
        # A site that begins anew, to see what noise does.
        fresh = replace(site, state=tmp_path / f"state-{seed}")
        fresh.state.mkdir()
        write_key(fresh.state, key)
        bits = seeded_bits(seed)
        monkeypatch.setattr(private_answers, "PrivateClient", lambda *parts: PrivateClient(*parts, bits))
        told = [
            load(reply_of(fresh, rows, request))["values"]
            for step, rows in zip(steps, tables[present], strict=True)
            for request in requests(step.agreed, step.asked, "audit")
        ]
        each = zip(told, sums[True], sums[False], strict=True)
        return sum(log_likelihood_ratio(values, a, b, noise) for values, (a, noise), (b, _) in each)

    found = audit(score, 400, budget.delta)
    assert found.epsilon <= budget.epsilon
    assert found.by_counts <= budget.epsilon
    # The attack is the best there is: it reaches what is allowed.
    assert abs(found.area - largest_area(budget.rho)) <= 3.5 * found.error
