"""A site: its own table, the agreed schema, and one function from a request to a reply.

The table never leaves. What does is one of the types in `questions`, or an algorithm's reply, computed over
at least `min_rows` rows; a request for anything else is answered with the reason why not.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from numpy.typing import NDArray

import bidro
from bidro.algorithms.own_correction import Shrinkage
from bidro.arrays import Floats
from bidro.deploy.agreed import Agreed
from bidro.deploy.known_rows import KnownRows
from bidro.deploy.releases import Releases
from bidro.deploy.row_memory import Demanded, RowMemory
from bidro.deploy.rules import (
    RefusedError,
    draws,
    require_allowed_loss,
    require_common_values,
    require_known_shrinkages,
    rows_behind,
    words,
)
from bidro.deploy.site_check import Checked, checked
from bidro.deploy.site_log import Question, SiteLog
from bidro.deploy.site_state import SiteState
from bidro.engines.asked import Asked
from bidro.engines.compiled import compilation_cache
from bidro.engines.coordinator import Nothing, refusal_message, reply_message
from bidro.engines.plain import described, made
from bidro.engines.wire import header_of, unpack
from bidro.errors import BidroError
from bidro.federation import Federation
from bidro.fitting import client_side
from bidro.fitting.questions import Adopt, Adopted, Assess, Assessment, Fixed, Prepared
from bidro.guarantees.calibration import FOLDS
from bidro.guarantees.statements import Assessed
from bidro.losses import Loss
from bidro.model_file import target_numbers
from bidro.own_file import FILE as OWN_FILE
from bidro.own_file import OwnModels, write_private
from bidro.sets import Box, Simplex, WholeSpace
from bidro.splits import choose_holdout, content_order, kept_out_of, unit_ids
from bidro.standard import Standard
from bidro.tables import as_words, bounds_of, read_one, require_declared
from bidro.training import unrestricted
from bidro.workflow.toml_files import read_toml

T = TypeVar("T")

_log = logging.getLogger(__name__)

# The environment variable with the path of the site's configuration.
VARIABLE = "BIDRO_SITE"
# The names of runs, which become folders here.
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# A site's message on its largest losses is a mean over at least this many.
_LARGEST_LOSSES = 10


@dataclass(frozen=True)
class Site:
    """`site.toml`; paths are relative to it."""

    client: str
    data: Path
    schema: Path
    own: Path  # folder for the site's own models, one folder a run
    state: Path  # folder for what the site remembers: see `site_state`
    min_rows: int = 10
    min_cell: int = 5
    approve: str = "always"  # or "ask": every run waits for `bidro site approve`
    one_sample_replies: bool = False
    losses_with_kinks: bool = False

    @classmethod
    def read(cls, path: Path) -> Site:
        content = read_toml(path)
        known: dict[str, type] = {"one_sample_replies": bool, "losses_with_kinks": bool}
        known |= dict.fromkeys(("client", "data", "schema", "own", "state", "approve"), str)
        known |= dict.fromkeys(("min_rows", "min_cell"), int)
        for name, value in content.items():
            if name not in known or type(value) is not known[name]:
                raise BidroError(
                    f"'{path}': there is no entry {name} = {value!r}; a site has client, data, schema, own, "
                    "state, approve (texts), min_rows, min_cell (numbers), one_sample_replies and "
                    "losses_with_kinks (true or false)."
                )
        missing = [name for name in ("client", "data", "schema") if name not in content]
        if missing:
            raise BidroError(f"'{path}' does not say '{missing[0]}'.")
        if content.get("min_rows", 10) < 2:
            raise BidroError(f"'{path}': min_rows must be at least 2.")
        if content.get("min_cell", 5) < 1:
            raise BidroError(f"'{path}': min_cell must be at least 1.")
        if content.get("approve", "always") not in ("always", "ask"):
            raise BidroError(f'\'{path}\': approve must be "always" or "ask".')
        content = {"own": "own", "state": "state", **content}
        paths = {name: path.parent / content[name] for name in ("data", "schema", "own", "state")}
        return cls(**{**content, **paths})


@dataclass(frozen=True, eq=False)
class SiteRows:
    """The site's table as numbers, its rows in an order that depends on what is in them (`content_order`)."""

    agreed: Agreed
    features: Floats  # (N, k)
    target: Floats  # (N,)
    units: NDArray[np.uint64] | None = None  # (N,) of which unit each row is, where the schema names units

    def whole(self, wanted: NDArray[np.bool_]) -> Floats:
        """(rows, k + 1) some of the rows, the target last."""
        return np.column_stack([self.features[wanted], self.target[wanted]])

    def units_of(self, wanted: NDArray[np.bool_]) -> NDArray[np.uint64] | None:
        """The units of some of the rows."""
        return None if self.units is None else self.units[wanted]

    @property
    def has_classes(self) -> bool:
        return self.agreed.schema.classes is not None

    @property
    def content(self) -> bytes:
        """All that is in the rows."""
        units = b"" if self.units is None else self.units.tobytes()
        return self.features.tobytes() + self.target.tobytes() + units

    @classmethod
    def load(cls, site: Site) -> SiteRows:
        """Raises BidroError for a table that does not fit the agreed schema, in the user's own words."""
        agreed = Agreed.read(site.schema)
        schema, table = agreed.schema, read_one(site.data)
        if len(table) == 0:
            raise BidroError(f"'{site.data}' has no rows.")
        if schema.client in table:
            others = sorted(set(as_words(table[schema.client].dropna()).tolist()) - {site.client})
            if others:
                raise BidroError(f"'{site.data}' has rows of client '{others[0]}'; this site is another.")
        features, target, labels = schema.matrix(table), target_numbers(schema, table), schema.units(table)
        if agreed.support is not None:
            require_declared(agreed.support, schema, table)
        for name, count in schema.counted_as_other(table).items():
            _log.warning("%d row(s) have a level of '%s' that is not in the schema: 'other'.", count, name)
        units = None if labels is None else unit_ids(labels)
        order = content_order(np.zeros(len(target), np.int64), features, target, units)
        return cls(agreed, features[order], target[order], None if units is None else units[order])


def reply_to(request: bytes) -> bytes:
    """The reply of the site whose configuration `BIDRO_SITE` names; never raises.

    What is wrong with the site's own files is said in its log, not to the server: it may hold data.
    """
    compilation_cache()
    try:
        path = os.environ.get(VARIABLE)
        if path is None:
            raise BidroError(f"The environment variable {VARIABLE} names no site.toml.")
        site = Site.read(Path(path))
        rows = _loaded(site, _stamp(site))
    except Exception as error:
        _log.error("this site cannot answer: %s", error)
        return refusal_message(request, "its configuration or its table is not in order; its log says why.")
    return reply_of(site, rows, request)


def _stamp(site: Site) -> tuple[int, ...]:
    """Changes when the site's files do."""
    stats = [path.stat() if path.exists() else None for path in (site.data, site.schema)]
    return tuple(part for stat in stats if stat for part in (stat.st_mtime_ns, stat.st_size))


@lru_cache(maxsize=1)
def _loaded(site: Site, stamp: tuple[int, ...]) -> SiteRows:
    del stamp
    return SiteRows.load(site)


def reply_of(site: Site, rows: SiteRows, request: bytes) -> bytes:
    """The site's reply to a request: what is asked, or the reason why it is not given; never raises."""
    try:
        return _logged(site, rows, request)
    except RefusedError as refused:
        return refusal_message(request, str(refused))
    except Exception as error:
        # Whatever else goes wrong, its text may hold data.
        _log.error("a request could not be followed: %s: %s", type(error).__name__, error)
        return refusal_message(request, "the request could not be followed; its log says why.")


def _logged(site: Site, rows: SiteRows, request: bytes) -> bytes:
    """The reply, once the site's log knows of it."""
    log, question = site_log(site), question_of(request)
    try:
        log.allow(question)
        reply, over = _answered(site, rows, header_of(request), request)
        message = reply_message(reply, request, over)
    except Exception as error:
        log.refused(question, str(error) if isinstance(error, RefusedError) else "it could not be followed.")
        raise
    log.answered(question, over, len(message))
    return message


def question_of(request: bytes) -> Question:
    """What the log knows a request by."""
    asked = header_of(request)
    digest = hashlib.sha256(request).hexdigest()
    return Question(str(asked.get("run", "")), str(asked["question"]), int(asked.get("round", 1)), digest)


@lru_cache(maxsize=8)
def state_of(site: Site) -> SiteState:
    return SiteState.open(site.state, site.client)


def site_log(site: Site) -> SiteLog:
    return SiteLog(state_of(site), site.approve == "ask")


@lru_cache(maxsize=8)
def table_id(site: Site, rows: SiteRows) -> float:
    """A random number that changes with the rows, and says nothing of them."""
    return float(state_of(site).table_id(rows.content))


@lru_cache(maxsize=8)
def known_rows(site: Site, rows: SiteRows) -> tuple[RowMemory, KnownRows]:
    """The site's memory, and its table as that knows it."""
    schema = rows.agreed.schema
    classes = len(schema.classes or ())
    parameters = (len(schema.features) + 1) * (classes if classes > 2 else 1)
    memory = RowMemory(state_of(site), Demanded(site.min_rows, site.min_cell, parameters))
    return memory, memory.known(schema, rows.features, rows.target, rows.units)


def _answered(site: Site, rows: SiteRows, asked: Mapping[str, Any], request: bytes) -> tuple[Any, int]:
    """(the reply, the fewest rows that a number in it rests on)."""
    if asked["version"] != bidro.__version__:
        raise RefusedError(f"it has bidro {bidro.__version__}, and the server another version; use the same.")
    if asked["client"] != site.client:
        raise RefusedError("its configuration names another client than the one that was asked.")
    if asked["agreed"] != rows.agreed.digest:
        raise RefusedError("its schema.toml says something else than the server's; agree on one.")
    question = asked["question"]
    if question != "prepare" and asked["table"] != table_id(site, rows):
        raise RefusedError("its table has changed since the run began; begin a new run.")
    holdout = _holdout(site, rows, asked["hold_out"], asked["split_seed"])
    _releases(site, rows, asked["hold_out"], asked["split_seed"])
    if question == "prepare":
        unpack(request, Nothing)
        return _prepared(site, rows, holdout, asked["split_seed"]), draws(~holdout, rows.units)
    require_allowed_loss(made(asked["loss"]), site.losses_with_kinks)
    if question == "round":
        varies = ("round", "run", "seed")
        how = json.dumps({name: part for name, part in asked.items() if name not in varies}, sort_keys=True)
        described_round, over = _asked(site, rows, how)
        return described_round.answer(asked["seed"], asked["round"], request), over
    wanted = holdout if question == "bounds" else ~holdout
    samples, units, over = _samples(rows, wanted, asked), rows.units_of(wanted), draws(wanted, rows.units)
    if question == "adopt":
        return _adopted(site, samples, asked, unpack(request, Adopt)), over
    if question == "assess":
        largest = max(_LARGEST_LOSSES, site.min_rows)
        found = _assessment(site, rows, samples, units, asked, unpack(request, Assess), largest)
        return _own(found), min(over, largest)
    if question == "bounds":
        of, fixed = _fixed(asked, request)
        used = _used(of.loss, _samples(rows, ~holdout, asked), fixed)
        bounds = client_side.bounds([site.client], samples, [len(samples)], of, fixed, used, units)
        return _own(bounds), over
    raise RefusedError("there is no such question.")


@lru_cache(maxsize=2)
def _holdout(site: Site, rows: SiteRows, hold_out: float, seed: int) -> NDArray[np.bool_]:
    """(N,) which rows are kept out of training. Raises RefusedError where too few are there or here."""
    if rows.units is not None:
        units = np.array([len(np.unique(rows.units))])
        if units - kept_out_of(units, hold_out) < 2:
            raise RefusedError(
                f"it has {units[0]} unit(s), too few to keep some out and train on the rest; give it more "
                "units, or change hold_out."
            )
    holdout = choose_holdout(
        np.full(len(rows.target), site.client), rows.features, rows.target, hold_out, seed, rows.units
    )
    named, every = words(rows.units), draws(np.ones(len(holdout), bool), rows.units)
    for what, part in (("trains on", ~holdout), ("keeps out", holdout)):
        count = draws(part, rows.units)
        if 0 < count < site.min_rows or (count == 0 and what == "trains on"):
            raise RefusedError(
                f"it {what} {count} of its {every} {named}, fewer than its min_rows = {site.min_rows}; give "
                f"it more {named}, change hold_out, or lower min_rows at that site."
            )
    training = rows.whole(~holdout)
    require_common_values(training, site.min_rows, rows.has_classes, rows.units_of(~holdout))
    return holdout


@lru_cache(maxsize=2)
def _releases(site: Site, rows: SiteRows, hold_out: float, seed: int) -> Releases:
    """What sums may be sent over. Raises RefusedError where those over the training rows, or over those kept
    out, may not."""
    found = Releases(*known_rows(site, rows), _holdout(site, rows, hold_out, seed))
    found.training()
    return found


@lru_cache(maxsize=2)
def _asked(site: Site, rows: SiteRows, how: str) -> tuple[Asked, int]:
    """What a request for a round describes, and over how many rows its reply is; kept, as the next round of
    the same run describes the same. Raises RefusedError where the reply would tell too much."""
    asked = {**json.loads(how), "support": described(WholeSpace(len(rows.agreed.schema.features) + 1))}
    holdout = _holdout(site, rows, asked["hold_out"], asked["split_seed"])
    found = Asked.of(site.client, _samples(rows, ~holdout, asked), asked, rows.units_of(~holdout))
    behind = rows_behind(found.algorithm, found.loss, found.rows, site.min_rows, site.one_sample_replies)
    if found.algorithm.evidence != "one row":
        releases = _releases(site, rows, asked["hold_out"], asked["split_seed"])
        behind = releases.folds(found.rows.marks, found.algorithm.second_order)
    return found, behind


def _samples(rows: SiteRows, wanted: NDArray[np.bool_], asked: Mapping[str, Any]) -> Floats:
    """(N_i, k + 1) some of the rows in the units that the server says."""
    return _standard(asked).rows(rows.features[wanted], rows.target[wanted])


def _standard(asked: Mapping[str, Any]) -> Standard:
    own = asked["standard"]
    mean, spread = np.asarray(own["mean"], float), np.asarray(own["spread"], float)
    return Standard(mean, spread, float(own["middle"]), float(own["target_spread"]))


def check_site(site: Site, hold_out: float, seed: int = 0) -> Checked:
    """What its owner is told of a run that would keep out this share. Raises BidroError where the site's own
    files are not in order."""
    rows, refused = SiteRows.load(site), None
    try:
        holdout = _holdout(site, rows, hold_out, seed)
    except RefusedError as error:
        refused, holdout = str(error), np.zeros(len(rows.target), bool)
    return checked(*known_rows(site, rows), holdout, _marks(site, rows, holdout, seed), refused)


def _marks(site: Site, rows: SiteRows, holdout: NDArray[np.bool_], seed: int) -> dict[int, NDArray[np.int64]]:
    """The fold of every training row, by how many folds there are."""
    units = rows.units_of(~holdout)
    own = Federation.from_arrays({site.client: rows.whole(~holdout)}, "unbounded", units=units)
    return {count: own.folds(count, seed) for count in range(2, FOLDS + 1) if own.unit_counts[0] >= count}


def _prepared(site: Site, rows: SiteRows, holdout: NDArray[np.bool_], seed: int) -> Prepared:
    training, units = rows.whole(~holdout), rows.units_of(~holdout)
    marks = _marks(site, rows, holdout, seed)
    answerable = Releases(*known_rows(site, rows), holdout).answerable(marks)
    folds = max(
        (answerable.moments if max(answerable.moments, default=1) > 1 else answerable.folds), default=1
    )
    sizes = [len(training)], [int(holdout.sum())], [folds if folds > 1 else 0]
    return _own(client_side.prepared(training, *sizes, table_id(site, rows), units, rows.units_of(holdout)))


def _used(loss: Loss, training: Floats, message: Adopt | Assess | Fixed) -> Floats:
    """(1, d) the model that this site uses: its own around the server's, made anew from its training rows, or
    the server's."""
    freedom = np.asarray(message.freedom, float)
    if freedom.size:
        require_known_shrinkages([Shrinkage.of_freedom(freedom)])
    return client_side.own_models(loss, training, [len(training)], message.x, freedom)


def _adopted(site: Site, training: Floats, asked: Mapping[str, Any], message: Adopt) -> Adopted:
    """Write the site's own model, and tell that there is one."""
    run = str(asked["run"])
    if not _RUN.fullmatch(run):
        raise RefusedError("the run's name is not one that a folder can have.")
    where = site.own / run / OWN_FILE
    if not np.any(np.asarray(message.freedom) > 0):
        where.unlink(missing_ok=True)
        return Adopted(np.zeros(()))
    x, used = np.asarray(message.x, float), _used(made(asked["loss"]), training, message)
    try:
        where.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(where, OwnModels({site.client: used[0]}, x).to_bytes())
    except OSError as error:
        _log.error("this site's own model cannot be written to %s: %s", where, error)
        raise RefusedError(
            "its own model cannot be written; set own in its site.toml to a folder that it may write to, or "
            "run with own = none."
        ) from error
    _log.info("run %s: this site's own model was written to %s; it has not left.", run, where)
    return Adopted(np.ones(()))


def _own(found: T) -> T:
    """The reply of the one client that is here."""
    return jax.tree.map(lambda part: np.asarray(part[0]), found)


def _assessment(
    site: Site,
    rows: SiteRows,
    samples: Floats,
    units: NDArray[np.uint64] | None,
    asked: Mapping[str, Any],
    message: Assess,
    largest: int,
) -> Assessment:
    loss, transport = made(asked["loss"]), made(asked["transport"])
    federation = Federation.from_arrays({site.client: samples}, "unbounded", units=units)
    whole = unrestricted(federation, loss, transport, asked["standard"]["target_spread"])
    problem = replace(whole, ambiguity=made(asked["ambiguity"]))
    if len(message.reference) and not message.radii.size:
        raise RefusedError("a distance is part of an interval, which needs radii.")
    declared = _declared_box(rows, asked, loss.labels) if message.radii.size else None
    return client_side.assessment(problem, declared, message, largest, _used(loss, samples, message))


def _fixed(asked: Mapping[str, Any], request: bytes) -> tuple[Assessed, Fixed]:
    """What the request says of the model, and what was fixed before the rows kept out are looked at."""
    fixed = unpack(request, Fixed)
    largest = float(fixed.largest[0]) if fixed.largest.size else None
    seen = float(fixed.seen)
    return Assessed(made(asked["loss"]), np.asarray(fixed.x), Simplex(1), seen, largest, None, False), fixed


def _declared_box(rows: SiteRows, asked: Mapping[str, Any], labels: tuple[float, ...] | None) -> Box:
    """The agreed support in the server's units: the site's own, not one that the server names."""
    if rows.agreed.support is None:
        raise RefusedError("no support was agreed on.")
    return _standard(asked).box(bounds_of(rows.agreed.support, rows.agreed.schema), labels)
