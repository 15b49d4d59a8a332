"""What a site answers from its rows, one function a question; requests have been checked before.

PRIVATE RUNS are answered by sums over rows, with noise that the site's budget pays for. A site with a budget
adds noise, and sends nothing that is not in its ledger, and noted in its state, first. What it answers or
refuses, and how, depends on its rows through these sums alone: no rule about rows is looked at, rows that lie
far out are scaled down, and a table with few rows, or none on one side, is answered as any other. A site
without a budget answers the same questions exactly, by the rules of any other run, where its owner trusts the
server, which chooses where rows are clipped.

OF A MODEL THAT WAS SENT to it a site tells confidence bounds from its held-out rows, rounded up. The model is
whatever the server likes. One that is right on a single person, and absurd elsewhere, would make
that person's loss of the mean; one that fails, or that looks at other rows, on a certain row alone would tell
that it is there. So rows are run one by one, by a process that can do nothing else (`model.onnx.run`); a row
without a prediction counts as the largest loss, and so do all where the process broke; and a bound goes up to
the next place of a grid whose steps are what `min_rows` rows can change, and whose offset only the site
knows: what one row changes is seen for one offset in `min_rows`. Rounded up it still holds.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bidro.ambiguity import Penalty, WassersteinBall
from bidro.certify.held_out import ClientBound
from bidro.certify.intervals import Calibration, row_scores, tells_of_rows
from bidro.certify.out_of_sample import largest_loss
from bidro.certify.rounding import Rounding, among_people, step, upwards
from bidro.certify.row_promise import SHARE
from bidro.certify.statements import CLIP, CertifiedModel, LossLimits, RowLosses, client_report
from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.core.files import write_private
from bidro.core.pytrees import mapped
from bidro.core.sets import Simplex, WholeSpace
from bidro.core.splits import holdout_of
from bidro.data.federation import Federation
from bidro.data.tables import Schema, read_one
from bidro.deploy.messages.plan import NetworkQueryPlan, QueryPlan
from bidro.deploy.messages.queries import PRIVATE, Request, Scores
from bidro.deploy.site.config import Site
from bidro.deploy.site.disclosure.information import ROWS_A_PARAMETER
from bidro.deploy.site.disclosure.rules import (
    CLIPPED,
    SINGLE_ROWS,
    PolicyViolationError,
    draws,
    rows_behind,
)
from bidro.deploy.site.ledger import RELIED_ON, begin_release, end_release, exact_left, ledger_in
from bidro.deploy.site.masked import NO_BUDGET, asked_about, require_in_order, require_pinned, under_masks
from bidro.deploy.site.rows import (
    SiteRows,
    fold_ids_by_count,
    holdout,
    known_rows,
    releases,
    state_of,
    table_id,
    training,
)
from bidro.federated.engines.remote import Participant
from bidro.federated.engines.wire import pack, unpack
from bidro.fit import client_side
from bidro.fit.private_side import PrivateClient, PrivateRows, in_agreed_units, own_sums
from bidro.fit.questions import FEW, Assess, HoldoutQuery, NoisyTable, Segments
from bidro.losses import Loss, losses_of
from bidro.losses.predicted import SUM_TOLERANCE, PredictedLoss, Scored
from bidro.model.onnx.run import OnnxModel, Predictions, Roles, by_name
from bidro.model.personal_file import FILE as PERSONAL_FILE
from bidro.model.personal_file import PersonalModels
from bidro.privacy.ledger import Ledger, OverspentError
from bidro.privacy.table_one import TableOne
from bidro.privacy.terms import MASKED, Budget, Plan
from bidro.selection.calibrate import FOLDS

T = TypeVar("T")

_log = logging.getLogger(__name__)


def answered(site: Site, rows: SiteRows, request: Request) -> tuple[Any, int]:
    """(the reply, the fewest rows that a number in it rests on, 0 where that is not told)."""
    if request.query.by not in ("private", "any"):
        releases(site, rows)
        if request.query.of_model:
            _require_borne(site, rows, request.protocol)
    return ANSWERS[request.question](site, rows, request)


def _prepared(site: Site, rows: SiteRows, request: Request) -> tuple[Any, int]:
    """How many rows there are, what may be asked of them, and the mean and deviation of every column, against
    which the server holds all that this site tells later."""
    kept = holdout(site, rows)
    answerable = releases(site, rows).answerable(fold_ids_by_count(site, rows))
    folds = np.isin(np.arange(1, FOLDS + 1), answerable)[None].astype(float)
    whole = rows.whole(~kept)
    # Of an agreement without a hold-out nobody asks about rows that another one has held out.
    told = kept & (rows.agreed.options.hold_out > 0)
    sizes = [len(whole)], [int(told.sum())]
    people = rows.people_of(~kept), rows.people_of(told)
    found = _own(client_side.prepared(whole, *sizes, folds, table_id(site, rows), *people))
    # The mean of a column of 0 and 1 counts the rows of a level.
    return found, known_rows(site, rows)[1].rarest(~kept)


def _segments(site: Site, rows: SiteRows, request: Request) -> tuple[Segments, int]:
    """How many of the segments that curves are to have the rows bear."""
    over = draws(~holdout(site, rows), rows.people)
    return Segments(np.array(_borne(site, rows, request.folds), float)), over


@lru_cache(maxsize=16)
def _borne(site: Site, rows: SiteRows, folds: int) -> tuple[int, ...]:
    """(k,) segments. Every second knot of all features goes until the rows bear them; where they bear none
    so, one feature after the other has as many as they bear."""
    plan, may, fold_ids = rows.protocol, releases(site, rows), fold_ids_of(site, rows, folds)
    finest = plan.finest

    def borne(segments: Sequence[int]) -> bool:
        curved = plan.at(finest.thinned(segments).segments.tolist()).curved
        return curved is None or may.bears(fold_ids, curved)

    def fewer(most: int) -> list[int]:
        return [most, *(fewer(most // 2) if most > 1 else ())]

    k, levels = finest.features, fewer(int(finest.segments.max()))
    found = [next(level for level in levels if borne([level] * k))] * k
    if found[0] == 1:
        for j in np.flatnonzero(finest.segments > 1).tolist():
            found[j] = next(n for n in levels if n == 1 or borne([*found[:j], n, *found[j + 1 :]]))
    return tuple(finest.thinned(found).segments.tolist())


@lru_cache(maxsize=16)
def _require_borne(site: Site, rows: SiteRows, protocol: QueryPlan) -> None:
    """Raise PolicyViolationError for curves of more segments than this site has said that its rows bear:
    which others they would bear nobody is told. What mean losses tell of curves is known to its memory
    before they leave."""
    if protocol.segments is None:
        return
    if not any(
        np.all(np.less_equal(protocol.segments, _borne(site, rows, folds))) for folds in _told(site, rows)
    ):
        raise PolicyViolationError("it was asked about curves of more segments than its rows bear.")
    releases(site, rows).folds(None, curved=protocol.curved)


def _told(site: Site, rows: SiteRows) -> list[int]:
    """Over how many folds it answers, from the most."""
    fold_ids = fold_ids_by_count(site, rows)
    return sorted((one for one in releases(site, rows).answerable(fold_ids) if one > 1), reverse=True)


def fold_ids_of(site: Site, rows: SiteRows, folds: int) -> NDArray[np.int64]:
    """(training rows,) the folds."""
    fold_ids = fold_ids_by_count(site, rows)
    if folds not in fold_ids:
        raise PolicyViolationError(f"it has too few rows for {folds} folds.")
    return fold_ids[folds]


def _round(site: Site, rows: SiteRows, request: Request) -> tuple[Any, int]:
    parts = request.protocol, request.described, request.folds, request.ambiguity
    query, over = _participant(site, rows, *parts)
    return query.reply(request.message, request.seed, request.round), over


@lru_cache(maxsize=2)
def _participant(
    site: Site,
    rows: SiteRows,
    protocol: QueryPlan,
    described: str,
    folds: int,
    ambiguity: Penalty | WassersteinBall | None,
) -> tuple[Participant, int]:
    """A round on the training rows, and over how many its reply is; kept, as the next round of the same run
    asks for the same. Raises PolicyViolationError where the reply would tell too much."""
    here = training(site, rows)
    algorithm = protocol.algorithms[folds][described]
    support = WholeSpace(here.m)
    fold_spec = (folds, state_of(site).key) if folds else None
    found = Participant.of(algorithm, here, protocol.loss, protocol.transport, support, ambiguity, fold_spec)
    if folds:
        # As they were dealt when sums over them first left.
        own = found.rows._replace(fold_ids=fold_ids_of(site, rows, folds))
        found = replace(found, rows=own)
    allowed = site.min_rows, SINGLE_ROWS in site.allows
    behind = rows_behind(algorithm, found.loss, found.rows, *allowed)
    if algorithm.rows_behind in ("all rows", "folds"):
        behind = releases(site, rows).folds(found.rows.fold_ids, protocol.curved)
    return found, behind


def _used(protocol: QueryPlan, here: Federation, message: Assess | HoldoutQuery) -> Floats:
    """(1, d) the model that this site uses: its own around the server's, made anew from its training rows, or
    the server's."""
    return client_side.personal_models(protocol.loss, here.host_rows, here.sizes, message)


def _keep_personal(site: Site, request: Request, used: Floats) -> None:
    """Write the model `used` (1, d) where it is this site's own; one of the same run that began again with
    fewer clients is in its place."""
    message, where = request.message, site.personal / request.run / PERSONAL_FILE
    try:
        if not np.any(np.asarray(message.freedom) > 0):
            where.unlink(missing_ok=True)
            return
        where.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(where, PersonalModels({site.client: used[0]}, np.asarray(message.x, float)).to_bytes())
    except OSError as error:
        _log.error("this site's personal model cannot be written to %s: %s", where, error)
        raise PolicyViolationError(
            "its personal model cannot be written; set state in its site.toml to a folder that it may "
            "write to, or agree on personal = none."
        ) from error
    _log.info("run %s: this site's personal model was written to %s; it has not left.", request.run, where)


def _own(found: T) -> T:
    """The reply of the one client that is here."""
    alone: T = mapped(lambda part: np.asarray(part[0]), found)
    return alone


def _assessment(site: Site, rows: SiteRows, request: Request) -> tuple[Any, int]:
    """How the model does on the training rows; the site makes its personal model, if it is to have one."""
    protocol, here, message = request.protocol, training(site, rows), request.message
    problem, over = replace(protocol.problem(here), ambiguity=request.ambiguity), ~holdout(site, rows)
    if message.radii.size:
        message = message._replace(reference=protocol.reference)
    used = _used(protocol, here, message)
    found = _own(client_side.assessment(problem, protocol.box, message, used))
    _keep_personal(site, request, used)
    if message.radii.size:
        of = protocol, np.asarray(message.x)
        found = found._replace(robust=_coarse(*of, np.asarray(found.robust), draws(over, rows.people)))
    return found, draws(over, rows.people)


def _coarse(protocol: QueryPlan, x: Floats, risks: Floats, people: int) -> Floats:
    """Risks (levels,) over balls, upwards to a quarter of what one person adds at most. The bounds of the
    support stop the worst case of the rows that lie next to them: what a risk is below the one without
    bounds, which follows from second moments, may be one row's."""
    largest = _largest(protocol, x)
    assert largest is not None
    width = step(np.array([largest]), people)
    return np.array([min(upwards(risk, width), largest) for risk in risks])


def _largest(protocol: QueryPlan, x: Floats) -> float | None:
    """The largest loss on the agreed support; None without one."""
    if protocol.box is None:
        return None
    declared = Federation.elsewhere({"site": 1}, protocol.columns, protocol.box)
    return largest_loss(protocol.problem(declared), np.asarray(x))


def _bounds(site: Site, rows: SiteRows, request: Request) -> tuple[Any, int]:
    """Of the held-out rows, by what was fixed before anybody looked at them."""
    protocol, fixed, kept = request.protocol, request.message, _held_out(site, rows)
    fresh = rows.in_units(site.client, kept)
    x, largest = np.asarray(fixed.x), _largest(protocol, fixed.x)
    if (largest is None) != (fixed.largest.size == 0):
        raise PolicyViolationError("the largest loss follows from the support that was agreed on.")
    here = training(site, rows)
    if float(fixed.seen) < CLIP * float(losses_of(protocol.loss, x, here.host_rows).mean()) * (1 - 1e-9):
        raise PolicyViolationError(
            "losses are clipped at no less than eight times a site's mean loss in training: where lower ones "
            "are clipped tells of single rows."
        )
    of = CertifiedModel(protocol.loss, x, Simplex(1), float(fixed.seen), largest, None, False)
    used = _used(protocol, here, fixed)
    parts = [site.client], fresh.host_rows, fresh.sizes
    found = _own(client_side.bounds(*parts, of, fixed, used, fresh.people))
    models = [used[0], x] if fixed.freedom.size else [x]
    return found._replace(rows=_bounds_of_rows(site, rows, protocol.loss, models, fresh)), draws(
        kept, rows.people
    )


def _bounds_of_rows(
    site: Site, rows: SiteRows, loss: Loss, models: Sequence[Floats], fresh: Federation
) -> Floats:
    """(models,) how far 9 of 10 held-out rows lie from what each of these models (d,) predicts at most: the
    score of one row, rounded up until it may be that of many people."""
    if not tells_of_rows(loss):
        return np.zeros(0)
    found = []
    for x in models:
        own = Calibration.of(row_scores(loss, x, fresh.host_rows), fresh.people)
        bound = own.bound(1 - SHARE, rows.agreed.options.confidence)
        few = math.isinf(bound)
        found.append(FEW if few else among_people(bound, own.scores, own.draws, site.min_cell))
    return np.array(found)


def _held_out(site: Site, rows: SiteRows) -> NDArray[np.bool_]:
    """(N,) which rows are held out. Raises PolicyViolationError where none are."""
    kept = holdout(site, rows)
    if not kept.any() or rows.agreed.options.hold_out == 0:
        raise PolicyViolationError("no rows are held out, by what was agreed on.")
    return kept


def _private(site: Site, rows: SiteRows, request: Request) -> tuple[Any, int]:
    """(the reply, the fewest rows that a number in it rests on, which with noise is not told)."""
    plan = rows.agreed.plan
    assert plan is not None
    if plan.shared is not None:
        assert request.roster is not None
        plan = plan.over(len(request.roster.names))
        if site.privacy is None:
            raise PolicyViolationError(NO_BUDGET)
        require_pinned(site, rows)
        reply = _released(site, rows, plan, site.privacy, request)
        return (under_masks(site, rows, request, reply) if request.question in MASKED else reply), 0
    if site.privacy is None:
        over = _require_rules(site, rows, plan, request)
        return _reply(PrivateClient(_rows(site, rows), plan, None), request), over
    return _released(site, rows, plan, site.privacy, request), 0


def ledger_of(site: Site) -> Ledger:
    """What the site has released under its budget."""
    return ledger_in(state_of(site))


def _released(site: Site, rows: SiteRows, plan: Plan, budget: Budget, request: Request) -> Any:
    """What the ledger has, or what is drawn now and then in it, and whether exact sums have left before.
    Raises PolicyViolationError where the budget does not last, or what was spent of it is not known."""
    cost = plan.cost(request.question, budget)
    about = asked_about(request)

    def draw() -> bytes:
        try:
            if request.question == "describe":
                return pack(_table_one(site, rows, plan, budget))
            client = PrivateClient.of(_rows(site, rows), plan, budget)
        except BidroError as error:
            raise PolicyViolationError(str(error)) from error
        return pack(_reply(client, request))

    key, state, charged = _key(rows, budget, request), state_of(site), False
    ledger = ledger_in(state)
    most = budget.rows_per_person
    if plan.shared is not None:
        require_in_order(ledger, key, about)
        most = plan.shared.rows_per_person
        if request.question in MASKED:
            about[RELIED_ON] = str(plan.shared.relied_on(plan.sites, budget.honest))
    begin_release(state, ledger, key)
    try:
        found = ledger.release(key, cost.part, cost.rho, budget.rho, about, draw, most)
        charged = True
    except OverspentError as error:
        raise PolicyViolationError(str(error)) from error
    finally:
        end_release(state, key, charged)
    assert request.query.reply is not None
    reply = unpack(found, request.query.reply)
    # As it is now, also of what was released before.
    return reply._replace(exact=np.array(float(exact_left(state))))


def _table_one(site: Site, rows: SiteRows, plan: Plan, budget: Budget) -> NoisyTable:
    """The sums of Table 1, of the table as its file has it: what is missing is not filled."""
    agreed = rows.agreed
    asked = TableOne.of(agreed.schema, agreed.units)
    own = own_sums(asked, agreed.schema, read_one(site.data), budget, plan)
    return NoisyTable(own.values, np.array(budget.numbers))


def _key(rows: SiteRows, budget: Budget, request: Request) -> bytes:
    """Of all that determines a release but the rows themselves: what was released stays released, whatever
    becomes of the table. Where noise is shared a site's own budget does not determine it, and over which
    sites a sum is does: so that one mask never hides two values."""
    about: dict[str, Any] = {
        "agreed": rows.agreed.digest,
        "question": request.question,
        "round": request.round,
    }
    if request.roster is None:
        about["budget"] = list(budget.numbers)
    elif request.question in MASKED:
        about["roster"] = request.roster.digest.hex()
    text = json.dumps(about, sort_keys=True).encode()
    return hashlib.sha256(text + b"\0" + pack(request.message)).digest()


def _reply(answering: PrivateClient, request: Request) -> Any:
    if request.question in ("moments", "counts"):
        return getattr(answering, request.question)()
    return getattr(answering, request.question)(request.message)


@lru_cache(maxsize=2)
def _rows(site: Site, rows: SiteRows) -> PrivateRows:
    """The site's rows z, those of training and those held out. Under a budget on which side a row is says
    nothing of others."""
    agreed, everyone = rows.agreed, np.zeros(len(rows.target), np.int64)
    if site.privacy is None:
        kept = holdout(site, rows)
    else:
        share, by_row = agreed.options.hold_out, rows.people is None
        kept = holdout_of(
            np.array([site.client]), everyone, rows.ids, share, state_of(site).key, by_row, alone=True
        )
    training, fresh = (
        in_agreed_units(
            agreed.standard.rows(rows.features[part], rows.target[part]),
            agreed.standard.target_spread,
            None if agreed.plan is None else agreed.plan.basis,
        )
        for part in (~kept, kept)
    )
    people = rows.people_of(~kept), rows.people_of(kept)
    try:
        shared = agreed.plan.shared if agreed.plan is not None else None
        most = None if shared is None else shared.rows_per_person
        return PrivateRows.of(training, fresh, *people, site.privacy, most)
    except BidroError as error:
        raise PolicyViolationError(f"its site.toml cannot be followed: {error}") from error


def _require_rules(site: Site, rows: SiteRows, plan: Plan, request: Request) -> int:
    """The fewest rows that a reply without noise rests on. Raises PolicyViolationError where these are too
    few."""
    if site.release != "trusted":
        # With the first question already, before others spend their budgets on the later ones.
        raise PolicyViolationError(CLIPPED)
    kept, may = holdout(site, rows), releases(site, rows)
    if request.question != "losses":
        return may.folds(None)
    count = draws(kept, rows.people)
    if count <= ROWS_A_PARAMETER * (plan.degree + 1):
        raise PolicyViolationError(
            f"it holds out {count} rows, too few to tell {plan.degree + 1} sums of their losses without "
            "noise; agree on a smaller degree, or give this site a privacy budget."
        )
    return count


# One of n rows changes a bound by at most so many n-ths of the largest loss (found by trying: 2.9 at
# confidence 0.99).
ROW_CHANGES = 3


def _score(site: Site, rows: SiteRows, request: Request) -> tuple[Scores, int]:
    """Raises PolicyViolationError for a model that does not fit, in words that hold nothing of the rows: it
    is read and tried before any of them is looked at."""
    kept, schema = _held_out(site, rows), rows.agreed.schema
    agreed_scores = rows.agreed.scores
    assert agreed_scores is not None
    probabilities = agreed_scores.predicted.of_probabilities
    try:
        model, roles = checked_model(
            request.message.model.tobytes(), schema, site.client, probabilities, True
        )
        model.require_time(int(kept.sum()))
    except BidroError as error:
        raise PolicyViolationError(f"it does not score this model: {error}") from error
    said = None
    try:
        found = model.run(_inputs(model, schema, rows.features[kept], site.client))
    except BidroError as error:
        # That it broke on these rows would tell of them: it counts, and is answered as all else.
        _log.error("a model could not be run, and all its losses count as the largest: %s", error)
    else:
        said = Predictions.of(model, roles, found, schema.classes or ())
    return _bounds_of_losses(site, rows, said)


def _evaluation(site: Site, rows: SiteRows, request: Request) -> tuple[Scores, int]:
    """The same of the agreed network with these weights, which is not run row by row: nobody but the agreed
    factory says what it does, and no row of it has a part in another's."""
    protocol, kept = rows.protocol, _held_out(site, rows)
    assert isinstance(protocol, NetworkQueryPlan)
    found = protocol.predicted(request.message.x, rows.features[kept])
    if protocol.classes is None:
        return _bounds_of_losses(site, rows, Predictions(found))
    return _bounds_of_losses(site, rows, Predictions(shares=found, classes=protocol.classes))


def _bounds_of_losses(site: Site, rows: SiteRows, said: Predictions | None) -> tuple[Scores, int]:
    """From what a model says of the held-out rows; None where it says nothing."""
    kept, agreed, schema = holdout(site, rows), rows.agreed, rows.agreed.schema
    assert agreed.scores is not None
    loss, most = agreed.scores.predicted, agreed.scores.most(schema.classes)
    losses, wrong = np.full(int(kept.sum()), most), np.ones(int(kept.sum()))
    if said is not None and schema.classes is None:
        losses = _of_numbers(said, rows.target[kept], loss, most)
    elif said is not None and schema.classes is not None:
        losses, wrong = _of_classes(said, schema.classes, rows.target[kept], loss, most)
    counted = RowLosses(
        None if loss.word == "mistakes" else losses, None if schema.classes is None else wrong
    )
    levels, grid = [1 - agreed.options.confidence], SiteGrid(site, rows)
    found = client_report(
        "it", counted, LossLimits(most, None), levels, people=rows.people_of(kept), rounding=grid
    ).bounds
    both = (np.array([one.bound for one in found.get(part, ())]) for part in ("clipped", "mistakes"))
    return Scores(*both), draws(kept, rows.people)


def checked_model(
    data: bytes, schema: Schema, client: str, probabilities: bool, must_lock: bool
) -> tuple[OnnxModel, Roles]:
    """The model in a file, if it is one for rows of this schema. Raises BidroError where it is not."""
    examples = {column.name: column.levels[0] for column in schema.columns if column.levels and not column.of}
    model = OnnxModel.of(data, {**examples, schema.client: client}, len(schema.features), must_lock)
    roles = Roles.of(model.outputs, schema.classes is None)
    if probabilities and roles.shares is None:
        raise BidroError("The agreed loss needs probabilities, and the model gives classes alone.")
    if (
        roles.shares is not None
        and model.classes is not None
        and set(model.classes) != set(schema.classes or ())
    ):
        raise BidroError("The model has other classes than those of the agreed schema.")
    if by_name(model.inputs, [*schema.read, schema.client], schema.features):
        texts = {column.name for column in schema.columns if column.levels is not None} | {schema.client}
        for port in model.inputs:
            if (port.kind == "text") != (port.name in texts):
                raise BidroError(
                    f"The model takes '{port.name}' as {port.kind}, and by the schema it is not that."
                )
    return model, roles


def _inputs(
    model: OnnxModel, schema: Schema, features: Floats, client: str
) -> dict[str, Floats | NDArray[np.str_]]:
    """Rows (N, k), as the schema codes them, as the model takes them."""
    if not by_name(model.inputs, [*schema.read, schema.client], schema.features):
        return {model.inputs[0].name: features}
    found: dict[str, Floats | NDArray[np.str_]] = {schema.client: np.full(len(features), client)}
    begin = 0
    for column in schema.columns:
        own = features[:, begin : begin + len(column.coded)]
        begin += len(column.coded)
        if column.levels is None:
            found[column.name] = own
        elif column.of is not None:
            # What the schema has filled is empty for a model that fills by itself.
            found[column.of] = np.where(own == 1, np.nan, found[column.of])
        else:
            found[column.name] = np.array(column.levels)[own.astype(int) @ np.arange(1, len(column.levels))]
    return found


def _of_numbers(said: Predictions, target: Floats, loss: PredictedLoss, most: float) -> Floats:
    """(N,) losses; a row without a finite prediction counts as the largest."""
    assert said.numbers is not None
    known = np.isfinite(said.numbers)
    with np.errstate(over="ignore"):
        losses = loss.values(Scored(target, np.where(known, said.numbers, 0.0)))
    return np.where(known & np.isfinite(losses), np.minimum(losses, most), most)


def _of_classes(
    said: Predictions, classes: tuple[str, ...], target: Floats, loss: PredictedLoss, most: float
) -> tuple[Floats, Floats]:
    """(losses (N,), mistakes (N,)); a row of which no class, or no probabilities, are said counts as the
    largest loss and a mistake, and so does one whose label is not of its highest probability."""
    codes = (target + 1) / 2 if len(classes) == 2 else target
    true = np.array(classes)[codes.astype(int)]
    if said.shares is None:
        assert said.labels is not None
        wrong = np.asarray(said.labels != true, float)
        return wrong, wrong
    shares = said.shares[:, [said.classes.index(name) for name in classes]]
    with np.errstate(invalid="ignore", over="ignore"):
        fine = np.all((shares >= 0) & np.isfinite(shares), axis=1)
        fine &= np.abs(shares.sum(axis=1) - 1) <= SUM_TOLERANCE
    if said.labels is not None:
        fine &= ~said.contradicts & (said.labels != "")
    safe = np.where(fine[:, None], shares, 1 / len(classes))
    scored = Scored(codes, safe / safe.sum(axis=1, keepdims=True), classes)
    labels = np.array(classes)[scored.predicted.argmax(axis=1)] if said.labels is None else said.labels
    wrong = np.asarray((labels != true) | ~fine, float)
    if loss.word == "mistakes":
        return wrong, wrong
    losses = loss.values(scored)
    return np.where(fine, np.minimum(losses, most), most), wrong


@dataclass(frozen=True, eq=False)
class SiteGrid(Rounding):
    """Bounds go up to the next place of the site's own grid; at most to what counts as the largest."""

    site: Site
    rows: SiteRows

    def bounds(
        self, found: list[ClientBound], losses: Floats, draws: int, largest: float, mean: float | None
    ) -> list[ClientBound]:
        return [self._up("loss", one, largest) for one in found]

    def mistakes(self, found: list[ClientBound]) -> list[ClientBound]:
        return [self._up("mistakes", one, 1.0) for one in found]

    def _up(self, what: str, one: ClientBound, most: float) -> ClientBound:
        secret = state_of(self.site).derived(f"grid of {what}, table {table_id(self.site, self.rows):.0f}")
        offset = int.from_bytes(secret[:7], "little") / 2**56
        share = ROW_CHANGES * self.site.min_rows / one.rows
        return ClientBound(rounded_up(one.bound, most, share, offset), None, one.rows)


def rounded_up(bound: float, most: float, share: float, offset: float) -> float:
    """The least of most share (k + offset), k a whole number, that is not below the bound; `most` where that
    is above it."""
    step = most * share
    place = math.ceil(bound / step - offset)
    while (place + offset) * step < bound:
        place += 1
    return min((place + offset) * step, most)


# By question: (the reply, the fewest rows that a number in it rests on).
def _verdict(site: Site, rows: SiteRows, request: Request) -> tuple[Any, int]:
    # The check is a run, answered by this module.
    from bidro.deploy.site.check import verdict

    return verdict(site, rows), 0


ANSWERS: dict[str, Callable[[Site, SiteRows, Request], tuple[Any, int]]] = {
    "check": _verdict,
    "prepare": _prepared,
    "segments": _segments,
    "round": _round,
    "assess": _assessment,
    "bounds": _bounds,
    "score": _score,
    "train": _round,
    "evaluate": _evaluation,
    **dict.fromkeys(PRIVATE, _private),
}
