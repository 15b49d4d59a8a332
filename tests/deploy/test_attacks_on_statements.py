"""A server that asks for statements about models that it chooses, to read the rows that a site keeps out."""

import itertools

import numpy as np
import pytest

from bidro.deploy.site_log import SiteLog
from bidro.deploy.site_rows import SiteRows, holdout
from bidro.engines.wire import unpack
from bidro.fitting.questions import Fixed, HoldoutBounds
from tests.deploy.test_attacks import FEATURES, SEEDS, people, site_with
from tests.deploy.test_site import LEVELS, asked_of

# Of a row that lies far out: features, then the target.
FAR = np.array([8.0, -7.0, 9.0, 6.0, -30.0])


def with_a_row_far_out(folder, seed):
    """A site that keeps out a row far from all others; (the site, that row in agreed units)."""
    for k in itertools.count():
        table = people(seed, False)
        table.loc[0] = FAR + 0.01 * k
        site = site_with(folder / str(k), table, {"hold_out": 0.3})
        rows = SiteRows.load(site)
        kept = rows.in_units("east", holdout(site, rows)).host_rows
        far = kept[np.abs(kept[:, :2]).max(axis=1) > 5]
        if len(far):
            return site, far[0], len(kept)


def clipped_part(site, model, run, rows, first=-4):
    """What one answer tells of the one row whose loss is above the least level that the site accepts: (the
    size of that row's residual, the level's power of two); or why there is no answer."""
    none, refused = np.zeros(0), ""
    unit = SiteRows.load(site).protocol.loss_unit
    for power in range(first, 40):
        level = unit * 2.0**power
        fixed = Fixed(np.asarray(model, float), LEVELS, np.asarray(level), none, none, none)
        refused, reply = asked_of(site, "bounds", fixed, run=run)
        if refused is None:
            told = unpack(reply, HoldoutBounds)
            return float(np.sqrt(level + rows * (told.loss - told.means[0]))), power
        if "eight times" not in refused:
            break
    return refused


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
    equation a statement. Seven of them gave the row; no more are answered than features."""
    site, far, rows = with_a_row_far_out(tmp_path, seed)
    # One more than the numbers of a row, and another for the signs.
    models = np.vstack([np.zeros(5), *np.eye(5)[:4], np.array([0.5, -0.5, 0.5, 0.5, 1.0]), [0, 0, 0, 0, 2.0]])
    with monkeypatch.context() as opened:
        opened.setattr(SiteLog, "_reserve", lambda *_: None)
        told = [clipped_part(site, model, f"open-{k}", rows) for k, model in enumerate(models)]
        sizes = np.array([size for size, _ in told])
        np.testing.assert_allclose(rebuilt_row(sizes, models), far, atol=0.1)
    # Under the limit, which those answers count for, no model is answered of that was not before.
    fresh = [clipped_part(site, model + 0.1, f"run-{k}", rows) for k, model in enumerate(models)]
    assert all("all that may be" in one for one in fresh)
    assert clipped_part(site, models[0], "once-more", rows, told[0][1]) == told[0]


def test_a_site_answers_fewer_statements_than_a_row_has_numbers(tmp_path):
    """In any number of runs, and by any number of requests; the same asked again is no other."""
    site, _, rows = with_a_row_far_out(tmp_path, 0)
    models = np.random.default_rng(0).normal(size=(1000, 5))
    told = [clipped_part(site, model, f"run-{k}", rows) for k, model in enumerate(models[:20])]
    answered = [k for k, one in enumerate(told) if not isinstance(one, str)]
    assert answered == list(range(4))
    assert clipped_part(site, models[2], "another", rows, told[2][1]) == told[2]
