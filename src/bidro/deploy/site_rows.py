"""A site's table as numbers, how the site splits it, and what it remembers of it.

Which rows are kept out and how folds are dealt is the site's own: by its key and what is in its rows.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bidro.arrays import Floats
from bidro.deploy.agreed import Agreed
from bidro.deploy.dominance import require_none_outweighs
from bidro.deploy.far_units import far_units_of
from bidro.deploy.known_rows import KnownRows, joined_rows
from bidro.deploy.network_protocol import protocol_of
from bidro.deploy.protocol import Protocol
from bidro.deploy.releases import Releases
from bidro.deploy.row_memory import Demanded, RowMemory
from bidro.deploy.rules import (
    RefusedError,
    draws,
    require_allowed_loss,
    require_allowed_network,
    require_common,
    words,
)
from bidro.deploy.site_check import Checked, checked, copies_in_words
from bidro.deploy.site_config import Site
from bidro.deploy.site_log import RunLimits, SiteLog
from bidro.deploy.site_state import SiteState
from bidro.deploy.table_versions import row_contents, version_of
from bidro.errors import BidroError
from bidro.federation import Federation
from bidro.guarantees.calibration import FOLDS
from bidro.model_file import target_numbers
from bidro.splits import arranged, cut_of, holdout_of, unit_ids
from bidro.tables import as_words, forget_read, read_one, require_declared

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class SiteRows:
    """The site's table as numbers, its rows in an order that depends on what is in them (`arranged`)."""

    agreed: Agreed
    features: Floats  # (N, k)
    target: Floats  # (N,)
    ids: NDArray[np.uint64]  # (N,) what a row is dealt by
    units: NDArray[np.uint64] | None = None  # (N,) of which unit each row is, where the schema names units
    contents: NDArray[np.uint64] | None = None  # (N,) 64 bits from all that the file says of each row

    @cached_property
    def protocol(self) -> Protocol:
        return protocol_of(self.agreed)

    def whole(self, wanted: NDArray[Any]) -> Floats:
        """(rows, k + 1) some of the rows, the target last."""
        return joined_rows(self.features, self.target, wanted)

    def units_of(self, wanted: NDArray[np.bool_]) -> NDArray[np.uint64] | None:
        """The units of some of the rows."""
        return None if self.units is None else self.units[wanted]

    def in_units(self, client: str, wanted: NDArray[np.bool_]) -> Federation:
        """Some of the rows in the agreed units, as those of one client."""
        samples = self.protocol.rows(self.features[wanted], self.target[wanted])
        parts = self.units_of(wanted), self.ids[wanted]
        return Federation.from_arrays({client: samples}, "unbounded", None, *parts)

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
        schema.require_listed_levels(table)
        features, target, labels = schema.matrix(table), target_numbers(schema, table), schema.units(table)
        # Under a budget rows far out count less, and nothing depends on where one lies.
        if agreed.support is not None and site.privacy is None:
            require_declared(agreed.support, schema, table)
        for name, count in schema.counted_as_other(table).items():
            _log.warning("%d row(s) have a level of '%s' that is not in the schema: 'other'.", count, name)
        contents = row_contents(table, schema.client)
        del table  # it is as large as the numbers
        forget_read()
        units = None if labels is None else unit_ids(labels)
        order, ids = arranged(np.zeros(len(target), np.int64), features, target, units)
        own = None if units is None else units[order]
        return cls(agreed, features[order], target[order], ids[order], own, contents[order])


@lru_cache(maxsize=8)
def state_of(site: Site) -> SiteState:
    return SiteState.open(site.state, site.client)


def site_log(site: Site, agreed: Agreed | None = None) -> SiteLog:
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
        seconds=float(site.max_seconds),
        runs=site.max_runs,
    )
    return SiteLog(state_of(site), site.approve == "ask", most)


@lru_cache(maxsize=8)
def table_id(site: Site, rows: SiteRows) -> float:
    """A random number that changes with the rows, and says nothing of them."""
    units = () if rows.units is None else (rows.units,)
    return float(state_of(site).table_id(rows.features, rows.target, *units))


@lru_cache(maxsize=8)
def table_version(site: Site, rows: SiteRows) -> int:
    """The number of the version of the site's table, the same by every agreement."""
    assert rows.contents is not None
    return version_of(state_of(site), known_rows(site, rows)[1], rows.contents, site.min_rows)


@lru_cache(maxsize=8)
def known_rows(site: Site, rows: SiteRows) -> tuple[RowMemory, KnownRows]:
    """The site's memory, and its table as that knows it."""
    means = 2 * len(rows.agreed.schema.features) + 1 if rows.agreed.options.hold_out else 0
    demanded = Demanded(site.min_rows, site.min_cell, rows.protocol.moments_dimension, means)
    memory = RowMemory(state_of(site), demanded)
    known = memory.known(rows.agreed.schema, rows.features, rows.target, rows.units)
    if known.copies:
        _log.warning("%s", copies_in_words(len(rows.target), known.copies, rows.units is not None))
    return memory, known


def _dealt(site: Site, rows: SiteRows) -> NDArray[np.bool_]:
    """(N,) which rows are kept out of training, whether there are enough or not: an exact share of the table
    that sums first left of. Later tables keep to its cut, so that a row, or person, never changes sides: what
    is added is about that share."""
    here = np.array([site.client]), np.zeros(len(rows.target), np.int64)
    share, state = rows.agreed.options.hold_out, state_of(site)
    cut = state.cut(_dealt_by(site, rows), share)
    return holdout_of(*here, rows.ids, share, state.key, rows.units is None, cut=cut)


def _dealt_by(site: Site, rows: SiteRows) -> str:
    """What sides depend on beside the key: of rows the columns, whose content deals them; of units nothing,
    so that a person stays on a side under every agreement on the same share."""
    return f"rows {known_rows(site, rows)[1].coding}" if rows.units is None else "units"


@lru_cache(maxsize=2)
def holdout(site: Site, rows: SiteRows) -> NDArray[np.bool_]:
    """(N,) which rows are kept out of training. Raises RefusedError where too few are there or here."""
    share, named = rows.agreed.options.hold_out, words(rows.units)
    known = known_rows(site, rows)[1]
    every = draws(np.ones(len(rows.target), bool), known.counted)
    if rows.units is None and every < len(rows.target):
        named = "different rows"
    if every < 3 and share > 0:
        raise RefusedError(
            f"it has {every} {named}, too few to keep some out and train on the rest; give it more, or agree "
            "on another hold_out."
        )
    kept = _dealt(site, rows)
    for what, part in (("trains on", ~kept), ("keeps out", kept)):
        count = draws(part, known.counted)
        if 0 < count < site.min_rows or (count == 0 and what == "trains on"):
            raise RefusedError(
                f"it {what} {count} of its {every} {named}, fewer than its min_rows = {site.min_rows}; give "
                f"it more {named}, agree on another hold_out, or lower min_rows at that site."
            )
    require_common(known.rarest(~kept), site.min_rows, rows.units)
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
    """What sums may be sent over. Raises RefusedError where those over the training rows, or over those kept
    out, may not."""
    kept, state = holdout(site, rows), state_of(site)
    found = Releases(*known_rows(site, rows), kept)
    if kept.any():
        # Before anything leaves, and for good: a cut that nothing has left by yet does no harm.
        share, cut = rows.agreed.options.hold_out, cut_of(site.client, rows.ids, kept, state.key)
        state.keep_cut(_dealt_by(site, rows), share, cut)
    found.training()
    return found


def fold_marks(site: Site, rows: SiteRows) -> dict[int, NDArray[np.int64]]:
    """The folds (training rows,) by their number, as far as there are rows for them."""
    own = training(site, rows)
    counts = range(2, FOLDS + 1)
    return {count: own.folds(count, state_of(site).key) for count in counts if own.unit_counts[0] >= count}


def require_allowed(site: Site, rows: SiteRows) -> None:
    """Raise RefusedError where the owner does not want what is agreed on to be trained here, or the agreed
    network cannot be made."""
    network = rows.agreed.neural_network
    if network is None:
        require_allowed_loss(rows.protocol.loss, site.losses_with_kinks, site.trusted_server)
        return
    require_allowed_network(network.factory, site.networks, site.trusted_server)
    try:
        rows.protocol.dimension  # noqa: B018 - makes the network, once
    except Exception as error:
        # What another package raises may hold anything.
        _log.error("the agreed network cannot be made: %s: %s", type(error).__name__, error)
        with_torch = "" if find_spec("torch") else " and PyTorch (bidro[torch]), which is not there"
        raise RefusedError(
            f"it cannot make the agreed network by '{network.factory}': install the package that it is in"
            f"{with_torch}; its log says why."
        ) from error


def check_site(site: Site, rehearse: bool = True) -> Checked:
    """What the site would answer by its agreement, for its owner: counts, and whether a run would be
    answered, by one with this site alone unless that is not wanted."""
    # What answers is built on this module.
    from bidro.deploy.site_rehearsal import on_a_copy

    found = on_a_copy(site, lambda copy: _checked(copy, rehearse))
    return replace(found, asks=site.approve == "ask")


def _checked(site: Site, rehearse: bool) -> Checked:
    from bidro.deploy.site_rehearsal import refusal_of_a_run

    rows = SiteRows.load(site)
    refused = None
    try:
        require_allowed(site, rows)
        kept = holdout(site, rows)
    except RefusedError as error:
        refused, kept = str(error), np.zeros(len(rows.target), bool)
        if draws(~kept, rows.units) >= 3:
            kept = _dealt(site, rows)
    marks = {} if refused is not None else fold_marks(site, rows)
    found = checked(*known_rows(site, rows), kept, marks, refused)
    # Under a budget no rule about rows is looked at, and the budget decides.
    if rehearse and (found.refused is None or site.privacy is not None):
        found = replace(found, refused=refusal_of_a_run(site, rows, found.folds))
    far = far_units_of(rows.agreed, rows.features, rows.target)
    said = [one.in_words(numbers=True) for one in far]
    columns, combinations = known_rows(site, rows)[1].repeating()
    if columns:
        said.append(
            f"its columns {', '.join(columns)} have {combinations} combinations of values in "
            f"{len(rows.target)} rows: if these are people with several rows each, name the column that "
            "tells people apart (unit in the schema); else every row counts as a person, and the "
            "combinations follow from the sums."
        )
    return replace(found, warnings=tuple(said))
