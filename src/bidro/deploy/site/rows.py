"""A site's table as numbers, how the site splits it, and what it remembers of it.

Which rows are held out and how folds are dealt is the site's own: by its key and what is in its rows.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bidro.core.arrays import Floats, release
from bidro.core.errors import BidroError
from bidro.core.splits import arranged, cut_of, holdout_of, label_ids
from bidro.data.federation import Federation
from bidro.data.tables import as_words, read_one, require_declared
from bidro.deploy.agreement.agreement import Agreement
from bidro.deploy.messages.plan import QueryPlan, protocol_of
from bidro.deploy.site.config import Site
from bidro.deploy.site.disclosure.information import require_none_outweighs
from bidro.deploy.site.disclosure.known_rows import (
    KnownRows,
    copies_in_words,
    joined_rows,
    row_contents,
    to_digits,
    version_of,
)
from bidro.deploy.site.disclosure.memory import Demanded, Releases, RowMemory
from bidro.deploy.site.disclosure.rules import (
    PolicyViolationError,
    draws,
    require_allowed_network,
    require_common,
    require_permitted,
    words,
)
from bidro.deploy.site.state import RunLimits, SiteLog, SiteState
from bidro.model.model_file import target_numbers
from bidro.selection.calibrate import FOLDS

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class SiteRows:
    """The site's table as numbers, its rows in an order that depends on what is in them (`arranged`)."""

    agreed: Agreement
    features: Floats  # (N, k)
    target: Floats  # (N,)
    ids: NDArray[np.uint64]  # (N,) what a row is dealt by
    people: NDArray[np.uint64] | None = None  # (N,) of which person each row is, where it is named
    contents: NDArray[np.uint64] | None = None  # (N,) 64 bits from all that the file says of each row

    @cached_property
    def protocol(self) -> QueryPlan:
        return protocol_of(self.agreed)

    def whole(self, wanted: NDArray[Any]) -> Floats:
        """(rows, k + 1) some of the rows, the target last."""
        return joined_rows(self.features, self.target, wanted)

    def people_of(self, wanted: NDArray[np.bool_]) -> NDArray[np.uint64] | None:
        """The people of some of the rows."""
        return None if self.people is None else self.people[wanted]

    def only(self, wanted: NDArray[np.bool_]) -> SiteRows:
        """Some of the rows (N,)."""
        parts = (None if part is None else part[wanted] for part in (self.people, self.contents))
        return SiteRows(self.agreed, self.features[wanted], self.target[wanted], self.ids[wanted], *parts)

    def in_units(self, client: str, wanted: NDArray[np.bool_]) -> Federation:
        """Some of the rows in the agreed units, as those of one client."""
        samples = self.protocol.rows(self.features[wanted], self.target[wanted])
        parts = self.people_of(wanted), self.ids[wanted]
        return Federation.from_arrays({client: samples}, "unbounded", None, *parts)

    @classmethod
    def load(cls, site: Site) -> SiteRows:
        """Raises BidroError for a table that does not fit the agreed schema, in the user's own words."""
        agreed = Agreement.read(site.schema)
        schema, table = agreed.schema, read_one(site.data)
        if len(table) == 0:
            raise BidroError(f"'{site.data}' has no rows.")
        if schema.client in table:
            others = sorted(set(as_words(table[schema.client].dropna()).tolist()) - {site.client})
            if others:
                raise BidroError(f"'{site.data}' has rows of client '{others[0]}'; this site is another.")
        if schema.survival is not None and not schema.survival.is_laid_out(table):
            schema.survival.note_left_out(table, schema.target)
        table = schema.laid_out(table)
        schema.require_listed_levels(table)
        features, target, labels = schema.matrix(table), target_numbers(schema, table), schema.people(table)
        if agreed.neural_network is None:
            agreed.fit_options.loss.in_units(1.0).require_targets(target, schema.target)
        # Under a budget rows far out count less, and nothing depends on where one lies.
        if agreed.support is not None and site.privacy is None:
            require_declared(agreed.support, schema, table)
        for name, count in schema.counted_as_other(table).items():
            _log.warning("%d row(s) have a level of '%s' that is not in the schema: 'other'.", count, name)
        contents = row_contents(table, schema.client)
        del table  # it is as large as the numbers
        release()
        people = None if labels is None else label_ids(labels)
        order, ids = arranged(np.zeros(len(target), np.int64), features, target, people)
        own = None if people is None else people[order]
        # Rows are dealt as `bidro fit` deals them, by all digits; nothing else is known of these.
        numbers = to_digits(features[order]), to_digits(target[order])
        return cls(agreed, *numbers, ids[order], own, contents[order])


@lru_cache(maxsize=8)
def state_of(site: Site) -> SiteState:
    return SiteState.open(site.state, site.client)


def site_log(site: Site, agreed: Agreement | None = None) -> SiteLog:
    """What the site was asked; with the limits of an agreement, where it is to answer by one."""
    if agreed is None:
        return SiteLog(state_of(site), site.approve == "ask")
    limits, each, features = agreed.limits, RunLimits().each, len(agreed.schema.features)
    most = RunLimits(
        each=each,
        # A row has one number more than features. The difference between a model's mean losses, clipped at
        # two levels, may be one row's: so no more of these than one short of two for each of its numbers.
        statements=min(each, features),
        means=2 * features + 1,
        scored=0 if agreed.scores is None else agreed.scores.models,
        rounds=limits.rounds,
        models=limits.models,
        models_in_all=limits.models_in_all,
        seconds=float(limits.seconds),
        runs=limits.runs,
    )
    return SiteLog(state_of(site), site.approve == "ask", most)


@lru_cache(maxsize=8)
def table_id(site: Site, rows: SiteRows) -> float:
    """A random number that changes with the rows, and says nothing of them."""
    people = () if rows.people is None else (rows.people,)
    return float(state_of(site).table_id(rows.features, rows.target, *people))


@lru_cache(maxsize=8)
def table_version(site: Site, rows: SiteRows) -> int:
    """The number of the version of the site's table, the same by every agreement."""
    assert rows.contents is not None
    return version_of(state_of(site), known_rows(site, rows)[1], rows.contents, site.min_rows)


@lru_cache(maxsize=8)
def known_rows(site: Site, rows: SiteRows) -> tuple[RowMemory, KnownRows]:
    """The site's memory, and its table as that knows it."""
    means = 2 * len(rows.agreed.schema.features) + 1
    demanded = Demanded(site.min_rows, site.min_cell, rows.protocol.moments_dimension, means)
    memory = RowMemory(state_of(site), demanded)
    known = memory.known(rows.agreed.schema, rows.features, rows.target, rows.people)
    if known.copies:
        _log.warning("%s", copies_in_words(len(rows.target), known.copies, rows.people is not None))
    return memory, known


def dealt(site: Site, rows: SiteRows) -> NDArray[np.bool_]:
    """(N,) which rows are held out of training, whether there are enough or not: an exact share of the table
    that sums first left of. Later tables keep to its cut, and so do other agreements, whatever share these
    say, so that a row, or person, never changes sides: what is added is about that share."""
    here = np.array([site.client]), np.zeros(len(rows.target), np.int64)
    share, state = rows.agreed.options.hold_out, state_of(site)
    cut = state.cut(_dealt_by(site, rows), share)
    wanted = share if cut is None else 0.5  # of which nothing depends where there is a cut
    return holdout_of(*here, rows.ids, wanted, state.key, rows.people is None, cut=cut)


def _dealt_by(site: Site, rows: SiteRows) -> str:
    """What sides depend on beside the key: of rows the columns, whose content deals them; of people nothing,
    so that a person stays on a side under every agreement on the same share."""
    return f"rows {known_rows(site, rows)[1].coding}" if rows.people is None else "units"


@lru_cache(maxsize=2)
def holdout(site: Site, rows: SiteRows) -> NDArray[np.bool_]:
    """(N,) which rows are held out of training. Raises PolicyViolationError where too few are there or
    here."""
    share, named = rows.agreed.options.hold_out, words(rows.people)
    known = known_rows(site, rows)[1]
    every = draws(np.ones(len(rows.target), bool), known.counted)
    if rows.people is None and every < len(rows.target):
        named = "different rows"
    if every < 3 and share > 0:
        raise PolicyViolationError(
            f"it has {every} {named}, too few to keep some out and train on the rest; give it more, or agree "
            "on another hold_out."
        )
    kept = dealt(site, rows)
    for what, part in (("trains on", ~kept), ("holds out", kept)):
        count = draws(part, known.counted)
        if 0 < count < site.min_rows or (count == 0 and what == "trains on"):
            raise PolicyViolationError(
                f"it {what} {count} of its {every} {named}, fewer than its min_rows = {site.min_rows}; give "
                f"it more {named}, agree on another hold_out, or lower min_rows at that site."
            )
    require_common(known.rarest(~kept), site.min_rows, rows.people)
    if kept.any():
        held_out = np.flatnonzero(kept)
        require_none_outweighs(lambda part: rows.whole(held_out[part]), known.people[kept])
    return kept


@lru_cache(maxsize=2)
def training(site: Site, rows: SiteRows) -> Federation:
    """The training rows in the agreed units."""
    return rows.in_units(site.client, ~holdout(site, rows))


@lru_cache(maxsize=2)
def releases(site: Site, rows: SiteRows) -> Releases:
    """What sums may be sent over. Raises PolicyViolationError where those over the training rows, or over
    those held out, may not."""
    kept, state = holdout(site, rows), state_of(site)
    found = Releases(*known_rows(site, rows), kept)
    if kept.any():
        # Before anything leaves, and for good: a cut that nothing has left by yet does no harm.
        share, cut = rows.agreed.options.hold_out, cut_of(site.client, rows.ids, kept, state.key)
        state.keep_cut(_dealt_by(site, rows), share, cut)
    known = found.known
    folds = np.zeros(len(kept), np.uint64)
    for count, fold_ids in fold_ids_by_count(site, rows).items():
        # A byte a number of folds; 0 for a row that is not dealt to so many.
        folds[~kept] |= (fold_ids + 1).astype(np.uint64) << np.uint64(8 * count)
    state.keep_dealt(_dealt_by(site, rows), np.stack([_identity(known), rows.ids, folds]))
    found.training()
    return found


def _identity(known: KnownRows) -> NDArray[np.uint64]:
    """(N,) by which rows, or people, are known again when they are dealt."""
    return known.hashes if known.named_people is None else known.people


def _dealt_before(site: Site, rows: SiteRows) -> NDArray[np.uint64]:
    """(2, N) what each row was dealt by, and its folds, when sums over it first left; 0 where none did."""
    known = known_rows(site, rows)[1]
    hashes, *dealt_by = state_of(site).dealt(_dealt_by(site, rows))
    found = np.zeros((2, len(rows.target)), np.uint64)
    if len(hashes):
        at = np.minimum(np.searchsorted(hashes, _identity(known)), len(hashes) - 1)
        found = np.where(hashes[at] == _identity(known), np.stack(dealt_by)[:, at], found)
    return found


def as_dealt(site: Site, rows: SiteRows) -> SiteRows:
    """The rows with what they were dealt by when sums over them first left: a table that was written anew, so
    that a last digit differs, moves nobody. People are dealt by their labels."""
    if rows.people is not None:
        return rows
    before = _dealt_before(site, rows)[0]
    dealt_by = np.where(before > 0, before, rows.ids)
    return rows if np.array_equal(dealt_by, rows.ids) else replace(rows, ids=dealt_by)


def fold_ids_by_count(site: Site, rows: SiteRows) -> dict[int, NDArray[np.int64]]:
    """The folds (training rows,) by their number, as far as there are rows for them: those in which each row
    was when sums over it first left."""
    own, kept = training(site, rows), _dealt_before(site, rows)[1][~holdout(site, rows)]
    found = {}
    for count in range(2, FOLDS + 1):
        if own.draw_counts[0] >= count:
            before = (kept >> np.uint64(8 * count) & np.uint64(255)).astype(np.int64) - 1
            found[count] = np.where(before >= 0, before, own.folds(count, state_of(site).key))
    return found


def require_allowed(site: Site, rows: SiteRows) -> None:
    """Raise PolicyViolationError where the owner does not want what is agreed on to be trained here, or the
    agreed network cannot be made."""
    network = rows.agreed.neural_network
    if network is not None:
        require_allowed_network(network.factory, site.allows)
    require_permitted(rows.agreed.release, site.release)
    if network is None:
        return
    try:
        rows.protocol.dimension  # noqa: B018 - makes the network, once
    except Exception as error:
        # What another package raises may hold anything.
        _log.error("the agreed network cannot be made: %s: %s", type(error).__name__, error)
        with_torch = "" if find_spec("torch") else " and PyTorch (bidro[torch]), which is not there"
        raise PolicyViolationError(
            f"it cannot make the agreed network by '{network.factory}': install the package that it is in"
            f"{with_torch}; its log says why."
        ) from error
