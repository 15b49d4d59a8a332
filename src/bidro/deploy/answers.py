"""What a site answers from its rows, one function a question; requests have been checked before."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

import jax
import numpy as np

from bidro.algorithms.own_correction import Shrinkage
from bidro.arrays import Floats
from bidro.client import Penalty, WassersteinBall
from bidro.deploy.requests import Request
from bidro.deploy.rules import RefusedError, draws, rarest_value, require_known_shrinkages, rows_behind
from bidro.deploy.site_config import Site
from bidro.deploy.site_rows import (
    SiteRows,
    fold_marks,
    holdout,
    releases,
    state_of,
    table_id,
    training,
)
from bidro.engines.asked import Asked
from bidro.federation import Federation
from bidro.fitting import client_side
from bidro.fitting.questions import Adopt, Adopted, Assess, Fixed
from bidro.guarantees.calibration import FOLDS
from bidro.guarantees.on_support import largest_loss
from bidro.guarantees.statements import CLIP, Assessed
from bidro.losses import losses_of
from bidro.own_file import FILE as OWN_FILE
from bidro.own_file import OwnModels, write_private
from bidro.sets import Simplex, WholeSpace

T = TypeVar("T")

_log = logging.getLogger(__name__)


def answered(site: Site, rows: SiteRows, request: Request) -> tuple[Any, int]:
    """(the reply, the fewest rows that a number in it rests on)."""
    kept = holdout(site, rows)
    releases(site, rows)
    if request.question == "prepare":
        # The mean of a column of 0 and 1 counts the rows of a level.
        rarest = rarest_value(rows.whole(~kept), rows.has_classes, rows.units_of(~kept))
        return _prepared(site, rows), rarest
    if request.question == "round":
        asked, over = _asked(site, rows, request.described, request.folds, request.ambiguity)
        return asked.reply(request.message, request.seed, request.round), over
    if request.question == "adopt":
        return _adopted(site, rows, request), draws(~kept, rows.units)
    if request.question == "assess":
        return _assessment(site, rows, request), draws(~kept, rows.units)
    if not kept.any():
        raise RefusedError("no rows are kept out, by what was agreed on.")
    return _bounds(site, rows, request), draws(kept, rows.units)


def _prepared(site: Site, rows: SiteRows) -> Any:
    """How many rows there are, what may be asked of them, and the mean and deviation of every column, against
    which the server holds all that this site tells later."""
    kept = holdout(site, rows)
    answerable = releases(site, rows).answerable(fold_marks(site, rows))
    counts = np.arange(1, FOLDS + 1)
    folds, curved = (np.isin(counts, numbers)[None].astype(float) for numbers in answerable)
    whole = rows.whole(~kept)
    sizes = [len(whole)], [int(kept.sum())]
    units = rows.units_of(~kept), rows.units_of(kept)
    return _own(client_side.prepared(whole, *sizes, folds, curved, table_id(site, rows), *units))


@lru_cache(maxsize=2)
def _asked(
    site: Site,
    rows: SiteRows,
    described: str,
    folds: int,
    ambiguity: Penalty | WassersteinBall | None,
) -> tuple[Asked, int]:
    """A round on the training rows, and over how many its reply is; kept, as the next round of the same run
    asks for the same. Raises RefusedError where the reply would tell too much."""
    protocol, here = rows.protocol, training(site, rows)
    algorithm = protocol.algorithms[folds][described]
    support = WholeSpace(here.m)
    deal = (folds, state_of(site).key) if folds else None
    found = Asked.of(algorithm, here, protocol.loss, protocol.transport, support, ambiguity, deal)
    behind = rows_behind(algorithm, found.loss, found.rows, site.min_rows, site.one_sample_replies)
    if algorithm.evidence != "one row":
        behind = releases(site, rows).folds(found.rows.marks, algorithm.second_order)
    return found, behind


def _used(rows: SiteRows, here: Federation, message: Adopt | Assess | Fixed) -> Floats:
    """(1, d) the model that this site uses: its own around the server's, made anew from its training rows, or
    the server's."""
    freedom = np.asarray(message.freedom, float)
    if freedom.size:
        require_known_shrinkages([Shrinkage.of_freedom(freedom)])
    return client_side.own_models(rows.protocol.loss, here.host_rows, here.sizes, message.x, freedom)


def _adopted(site: Site, rows: SiteRows, request: Request) -> Adopted:
    """Write the site's own model, and tell that there is one."""
    message, where = request.message, site.own / request.run / OWN_FILE
    if not np.any(np.asarray(message.freedom) > 0):
        where.unlink(missing_ok=True)
        return Adopted(np.zeros(()))
    x, used = np.asarray(message.x, float), _used(rows, training(site, rows), message)
    try:
        where.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(where, OwnModels({site.client: used[0]}, x).to_bytes())
    except OSError as error:
        _log.error("this site's own model cannot be written to %s: %s", where, error)
        raise RefusedError(
            "its own model cannot be written; set own in its site.toml to a folder that it may write to, or "
            "agree on own = none."
        ) from error
    _log.info("run %s: this site's own model was written to %s; it has not left.", request.run, where)
    return Adopted(np.ones(()))


def _own(found: T) -> T:
    """The reply of the one client that is here."""
    return jax.tree.map(lambda part: np.asarray(part[0]), found)


def _assessment(site: Site, rows: SiteRows, request: Request) -> Any:
    protocol, here, message = rows.protocol, training(site, rows), request.message
    problem = replace(protocol.problem(here), ambiguity=request.ambiguity)
    if message.radii.size:
        message = message._replace(reference=protocol.reference)
    return _own(client_side.assessment(problem, protocol.box, message, _used(rows, here, message)))


def _bounds(site: Site, rows: SiteRows, request: Request) -> Any:
    """Of the rows kept out, by what was fixed before anybody looked at them."""
    protocol, fixed, kept = rows.protocol, request.message, holdout(site, rows)
    fresh = rows.in_units(site.client, kept)
    x, largest = np.asarray(fixed.x), None
    if protocol.box is not None:
        declared = Federation.elsewhere({site.client: 1}, protocol.columns, protocol.box)
        largest = largest_loss(protocol.problem(declared), x)
    if (largest is None) != (fixed.largest.size == 0):
        raise RefusedError("the largest loss follows from the support that was agreed on.")
    here = training(site, rows)
    if float(fixed.seen) < CLIP * float(losses_of(protocol.loss, x, here.host_rows).mean()) * (1 - 1e-9):
        raise RefusedError(
            "losses are clipped at no less than eight times a site's mean loss in training: where lower ones "
            "are clipped tells of single rows."
        )
    of = Assessed(protocol.loss, x, Simplex(1), float(fixed.seen), largest, None, False)
    used = _used(rows, here, fixed)
    parts = [site.client], fresh.host_rows, fresh.sizes
    return _own(client_side.bounds(*parts, of, fixed, used, fresh.units))
