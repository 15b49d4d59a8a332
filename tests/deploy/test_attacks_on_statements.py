"""A server that asks for statements about models that it chooses, to read the rows that a site holds out."""

import itertools
import math

import numpy as np
import pytest

from bidro.certify.rounding import EXACT
from bidro.certify.statements import CLIP
from bidro.deploy.site.rows import SiteRows, holdout, training
from bidro.deploy.site.state import SiteLog
from bidro.federated.engines.wire import unpack
from bidro.fit import client_side
from bidro.fit.questions import HoldoutBounds, HoldoutQuery
from bidro.losses import losses_of
from tests.deploy.test_attacks import FEATURES, SEEDS, people, site_with
from tests.deploy.test_site import LEVELS, asked_of

pytestmark = pytest.mark.usefixtures("agreed_release")

# Of a row that lies far out, not so far that it outweighs all others: features, then the target.
FAR = np.array([4.8, -4.2, 5.4, 3.6, -18.0])
# Two to this power, as a level, clips nothing.
HIGH = 30


def with_a_row_far_out(folder, seed, **options):
    """A site that holds out a row far from all others; (the site, that row in agreed units, how many rows it
    holds out)."""
    for k in itertools.count():
        table = people(seed, False)
        table.loc[0] = FAR + 0.01 * k
        (folder / str(k)).mkdir(parents=True, exist_ok=True)
        site = site_with(folder / str(k), table, {"hold_out": 0.45, **options})
        rows = SiteRows.load(site)
        kept = rows.in_units("east", holdout(site, rows)).host_rows
        far = kept[kept[:, -1] < -10]
        if len(far):
            return site, far[0], len(kept)


def told_at(site, model, run, power, inverse=(), pooled=()):
    """(the answer, None), of losses clipped at two to this power, or (None, why there is none)."""
    level = SiteRows.load(site).protocol.loss_unit * 2.0**power
    x, inverse, pooled = (np.asarray(part, float) for part in (model, inverse, pooled))
    fixed = HoldoutQuery(x, LEVELS, np.asarray(level), np.zeros(0), inverse, np.zeros(0), pooled)
    refused, reply = asked_of(site, "bounds", fixed, run=run)
    return (None, refused) if refused else (unpack(reply, HoldoutBounds), None)


def clipping(site, model):
    """Of a level that clips rows far out alone: twice the least power of two that the site accepts."""
    rows = SiteRows.load(site)
    mean = float(
        losses_of(rows.protocol.loss, np.asarray(model, float), training(site, rows).host_rows).mean()
    )
    return math.ceil(math.log2(CLIP * mean / rows.protocol.loss_unit)) + 1


def clipped_part(site, model, run, rows):
    """What two answers tell of the one row whose loss is above a level: the size of that row's residual; or
    why there is no answer."""
    power = clipping(site, model)
    low, high = (told_at(site, model, run, at) for at in (power, HIGH))
    if low[0] is None or high[0] is None:
        return low[1] or high[1]
    level = SiteRows.load(site).protocol.loss_unit * 2.0**power
    return float(np.sqrt(level + rows * (high[0].loss - low[0].loss)))


def rebuilt_row(residuals, models):
    """The row whose residuals' sizes (k,) under models (k, d + 1) are these, by the signs that fit best."""
    design = np.column_stack([models, -np.ones(len(models))])[:, [*range(len(FEATURES)), -1]]
    best, found = np.inf, None
    for signs in itertools.product((-1.0, 1.0), repeat=len(models)):
        wanted = np.array(signs) * residuals - models[:, -1]
        row, *_ = np.linalg.lstsq(design, wanted, rcond=None)
        off = np.abs(design @ row - wanted).max()
        if off < best:
            best, found = off, row
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_a_row_far_out_is_not_worked_out_of_what_is_clipped(seed, tmp_path, monkeypatch):
    """The mean of the losses less that of the clipped ones is the part of one row that is clipped: an
    equation for two statements. Seven of them gave the row; no more statements are answered than features,
    and none to the last digit."""
    site, far, rows = with_a_row_far_out(tmp_path, seed)
    # One more than the numbers of a row, and another for the signs.
    models = np.vstack([np.zeros(5), *np.eye(5)[:4], np.array([0.5, -0.5, 0.5, 0.5, 1.0]), [0, 0, 0, 0, 2.0]])
    with monkeypatch.context() as opened:
        opened.setattr(SiteLog, "reserve", lambda *_: None)
        opened.setattr(client_side, "ROUNDING", EXACT)
        told = [clipped_part(site, model, f"open-{k}", rows) for k, model in enumerate(models)]
        np.testing.assert_allclose(rebuilt_row(np.array(told), models), far, atol=0.1)
    # Under the limit, which those answers count for, no model is answered of that was not before.
    fresh = [clipped_part(site, model + 0.1, f"run-{k}", rows) for k, model in enumerate(models)]
    assert all("all that may be" in one for one in fresh)
    assert isinstance(clipped_part(site, models[0], "once-more", rows), float)
    with monkeypatch.context() as counted:
        counted.setattr(SiteLog, "reserve", lambda *_: None)
        told = [clipped_part(site, model, f"coarse-{k}", rows) for k, model in enumerate(models)]
        assert np.abs(rebuilt_row(np.array(told), models) - far).max() > 0.3


def test_a_site_answers_fewer_statements_than_a_row_has_numbers(tmp_path):
    """In any number of runs, and by any number of requests; the same asked again is no other."""
    site, _, _ = with_a_row_far_out(tmp_path, 0)
    models = np.random.default_rng(0).normal(size=(1000, 5))
    told = [told_at(site, model, f"run-{k}", HIGH)[0] for k, model in enumerate(models[:20])]
    answered = [k for k, one in enumerate(told) if one is not None]
    assert answered == list(range(4))
    assert told_at(site, models[2], "another", HIGH)[0].loss == told[2].loss


@pytest.mark.parametrize("edit", ["an option", "a column"])
def test_an_edit_of_the_schema_makes_no_room_for_more_statements(edit, tmp_path):
    """They are counted by the table's people, whatever agreement a run is by; four edits gave sixteen."""
    table = people(0, False)
    site = site_with(tmp_path / "site", table, {"hold_out": 0.45})
    answered = []
    for k in range(2):
        if edit == "an option":
            site = site_with(tmp_path / "site", table, {"hold_out": 0.45, "seed": k})
        elif k:
            # The column stays in the site's file.
            site_with(tmp_path / "site", table.drop(columns=FEATURES[-1]), {"hold_out": 0.45})
            table.to_csv(site.data, index=False)
        size = SiteRows.load(site).protocol.dimension
        models = np.random.default_rng(k).normal(size=(5, size))
        told = [told_at(site, model, f"run-{k}-{i}", HIGH) for i, model in enumerate(models)]
        answered.append(sum(one is not None for one, _ in told))
    assert answered == [4, 0]
    assert "all that may be, by whatever agreement" in told[-1][1]
