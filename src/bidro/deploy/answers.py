"""What a site answers from its rows, one function a question; requests have been checked before."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

import jax
import numpy as np
from numpy.typing import NDArray

from bidro.algorithms.own_correction import Shrinkage
from bidro.arrays import Floats
from bidro.client import Penalty, WassersteinBall
from bidro.curves import Basis
from bidro.deploy.looks import Looks
from bidro.deploy.places import BORNE, PARTS, own_places, padded
from bidro.deploy.protocol import Protocol
from bidro.deploy.requests import Request
from bidro.deploy.rules import RefusedError, draws, require_known_shrinkages, rows_behind
from bidro.deploy.scored_rows import network_bounds, score_bounds
from bidro.deploy.site_config import Site
from bidro.deploy.site_rows import (
    SiteRows,
    fold_marks,
    holdout,
    known_rows,
    releases,
    state_of,
    table_id,
    training,
)
from bidro.engines.asked import Asked
from bidro.federation import Federation
from bidro.fitting import client_side
from bidro.fitting.questions import Assess, Bends, Fixed, Places
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
    if request.question in ("score", "evaluate"):
        _require_kept(kept)
        bounds = score_bounds if request.question == "score" else network_bounds
        return bounds(site, rows, request.message), draws(kept, rows.units)
    if request.question == "prepare":
        # The mean of a column of 0 and 1 counts the rows of a level.
        return _prepared(site, rows), known_rows(site, rows)[1].rarest(~kept)
    if request.question == "spread":
        return _places(site, rows, request)
    if request.question == "bends":
        return _borne(site, rows, request), draws(~kept, rows.units)
    _require_known_curves(site, rows, request.protocol)
    if request.question in ("round", "train"):
        asked, over = _asked(
            site, rows, request.protocol, request.described, request.folds, request.ambiguity
        )
        return asked.reply(request.message, request.seed, request.round), over
    if request.question == "assess":
        return _assessment(site, rows, request), draws(~kept, rows.units)
    _require_kept(kept)
    return _bounds(site, rows, request), draws(kept, rows.units)


def _require_kept(kept: NDArray[np.bool_]) -> None:
    if not kept.any():
        raise RefusedError("no rows are kept out, by what was agreed on.")


def _prepared(site: Site, rows: SiteRows) -> Any:
    """How many rows there are, what may be asked of them, and the mean and deviation of every column, against
    which the server holds all that this site tells later."""
    kept = holdout(site, rows)
    answerable = releases(site, rows).answerable(fold_marks(site, rows))
    folds = np.isin(np.arange(1, FOLDS + 1), answerable)[None].astype(float)
    whole = rows.whole(~kept)
    sizes = [len(whole)], [int(kept.sum())]
    units = rows.units_of(~kept), rows.units_of(kept)
    return _own(client_side.prepared(whole, *sizes, folds, table_id(site, rows), *units))


def _places(site: Site, rows: SiteRows, request: Request) -> tuple[Places, int]:
    """At which places of the public grid this site's rows are cut into parts of enough rows, and the fewest
    that one has: of every fold, of every set that earlier runs have told apart, and of those kept out."""
    protocol = request.protocol
    sets = releases(site, rows).parts(marks_of(site, rows, request.folds))
    found, fewest = [], [draws(~holdout(site, rows), rows.units)]
    for j, most in enumerate(protocol.wanted.most):
        own: list[int] = []
        if most > 1:
            own, least = own_places(rows.features[:, j], protocol.grid[j], sets, rows.units, site.min_rows)
            fewest += [least] if own else []
        found.append(own)
    return Places(padded(found, PARTS - 1).astype(float)), min(fewest)


def _borne(site: Site, rows: SiteRows, request: Request) -> Bends:
    """How many of the segments that curves are to have the rows bear. Every second knot of all features goes
    until they do; where they bear none so, one feature after the other has as many as they bear."""
    of_lines, k = rows.protocol, len(rows.protocol.wanted.most)
    if request.protocol.curved is None:
        return Bends(np.ones(k))
    looks, wanted = _looks(site, rows), request.protocol.curved.knots
    looks.allow(wanted)
    marks, may = marks_of(site, rows, request.folds), releases(site, rows)
    finest: Basis = request.protocol.loss.basis  # type: ignore[attr-defined]

    def borne(segments: Sequence[int]) -> bool:
        curved = of_lines.at(of_lines.places_of(finest.thinned(segments))).curved
        return curved is None or may.bears(marks, curved)

    most = int(finest.segments.max())
    levels = [most, *(fewer for fewer in BORNE if fewer < most)]
    found = [next(level for level in levels if borne([level] * k))] * k
    if found[0] == 1:
        for j in np.flatnonzero(finest.segments > 1).tolist():
            found[j] = next(n for n in levels if n == 1 or borne([*found[:j], n, *found[j + 1 :]]))
    kept = of_lines.at(of_lines.places_of(finest.thinned(found))).curved
    looks.keep(wanted, {} if kept is None else kept.knots)
    return Bends(np.array(found, float))


@lru_cache(maxsize=16)
def _require_known_curves(site: Site, rows: SiteRows, protocol: Protocol) -> None:
    """Raise RefusedError for curves of which this site has not said that its rows bear them, without a look
    at these. What mean losses tell of them is known to its memory before they leave."""
    if protocol.curved is None:
        return
    memory, known = known_rows(site, rows)
    _looks(site, rows).require(protocol.curved.knots, lambda: memory.knots(known))
    releases(site, rows).folds(None, curved=protocol.curved)


def _looks(site: Site, rows: SiteRows) -> Looks:
    return Looks(state_of(site), known_rows(site, rows)[1].coding)


def marks_of(site: Site, rows: SiteRows, folds: int) -> NDArray[np.int64]:
    """(training rows,) the folds."""
    marks = fold_marks(site, rows)
    if folds not in marks:
        raise RefusedError(f"it has too few rows for {folds} folds.")
    return marks[folds]


@lru_cache(maxsize=2)
def _asked(
    site: Site,
    rows: SiteRows,
    protocol: Protocol,
    described: str,
    folds: int,
    ambiguity: Penalty | WassersteinBall | None,
) -> tuple[Asked, int]:
    """A round on the training rows, and over how many its reply is; kept, as the next round of the same run
    asks for the same. Raises RefusedError where the reply would tell too much."""
    here = training(site, rows)
    algorithm = protocol.algorithms[folds][described]
    support = WholeSpace(here.m)
    deal = (folds, state_of(site).key) if folds else None
    found = Asked.of(algorithm, here, protocol.loss, protocol.transport, support, ambiguity, deal)
    allowed = site.min_rows, site.one_sample_replies, site.trusted_server
    behind = rows_behind(algorithm, found.loss, found.rows, *allowed)
    if algorithm.evidence in ("all rows", "folds"):
        behind = releases(site, rows).folds(found.rows.marks, protocol.curved)
    return found, behind


def _used(protocol: Protocol, here: Federation, message: Assess | Fixed) -> Floats:
    """(1, d) the model that this site uses: its own around the server's, made anew from its training rows, or
    the server's."""
    freedom = np.asarray(message.freedom, float)
    if freedom.size:
        require_known_shrinkages([Shrinkage.of_freedom(freedom)])
    return client_side.own_models(protocol.loss, here.host_rows, here.sizes, message.x, freedom)


def _keep_own(site: Site, request: Request, used: Floats) -> None:
    """Write the model `used` (1, d) where it is this site's own; one of the same run that began again with
    fewer clients is in its place."""
    message, where = request.message, site.own / request.run / OWN_FILE
    try:
        if not np.any(np.asarray(message.freedom) > 0):
            where.unlink(missing_ok=True)
            return
        where.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(where, OwnModels({site.client: used[0]}, np.asarray(message.x, float)).to_bytes())
    except OSError as error:
        _log.error("this site's own model cannot be written to %s: %s", where, error)
        raise RefusedError(
            "its own model cannot be written; set own in its site.toml to a folder that it may write to, or "
            "agree on own = none."
        ) from error
    _log.info("run %s: this site's own model was written to %s; it has not left.", request.run, where)


def _own(found: T) -> T:
    """The reply of the one client that is here."""
    return jax.tree.map(lambda part: np.asarray(part[0]), found)


def _assessment(site: Site, rows: SiteRows, request: Request) -> Any:
    """How the model does on the training rows; the site makes its own model, if it is to have one."""
    protocol, here, message = request.protocol, training(site, rows), request.message
    problem = replace(protocol.problem(here), ambiguity=request.ambiguity)
    if message.radii.size:
        message = message._replace(reference=protocol.reference)
    used = _used(protocol, here, message)
    found = _own(client_side.assessment(problem, protocol.box, message, used))
    _keep_own(site, request, used)
    return found


def _bounds(site: Site, rows: SiteRows, request: Request) -> Any:
    """Of the rows kept out, by what was fixed before anybody looked at them."""
    protocol, fixed, kept = request.protocol, request.message, holdout(site, rows)
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
    used = _used(protocol, here, fixed)
    parts = [site.client], fresh.host_rows, fresh.sizes
    return _own(client_side.bounds(*parts, of, fixed, used, fresh.units))
