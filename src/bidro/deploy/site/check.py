"""What a site would answer, worked out at the site and shown to its owner alone: names and counts stay
here.

Whether it would answer a run is found by one with this site alone, by the code of any run, on a copy of what
the site remembers. Nothing leaves, and nothing is remembered.
"""

from __future__ import annotations

import secrets
import shutil
import sqlite3
import tempfile
import warnings
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bidro.core.errors import BidroError
from bidro.deploy.agreement.agreement import Agreement, far_units_of
from bidro.deploy.agreement.job import Job
from bidro.deploy.consortium.kits import days_left
from bidro.deploy.messages.queries import Verdict
from bidro.deploy.server.certified import federated_network
from bidro.deploy.server.fit import federated_fit
from bidro.deploy.site.answers import fold_ids_of, ledger_of
from bidro.deploy.site.config import Site
from bidro.deploy.site.disclosure.cells import Levels, cell_counts
from bidro.deploy.site.disclosure.information import LARGEST_SHARE, Some, largest_share, shares_of_columns
from bidro.deploy.site.disclosure.known_rows import KnownRows, copies_in_words
from bidro.deploy.site.disclosure.memory import Releases, RowMemory
from bidro.deploy.site.disclosure.rules import PolicyViolationError, draws, words
from bidro.deploy.site.ledger import LEDGER, spent_content
from bidro.deploy.site.masked import NO_BUDGET, require_pinned
from bidro.deploy.site.rows import (
    SiteRows,
    dealt,
    fold_ids_by_count,
    holdout,
    known_rows,
    releases,
    require_allowed,
    state_of,
    training,
)
from bidro.deploy.site.session import approved_for, reply_of
from bidro.deploy.site.snapshot import snapshot, told_of
from bidro.deploy.site.state import DATABASE, KEY_FILE
from bidro.federated.engines.coordinator import Coordinator, InMemory, Policy
from bidro.federated.engines.record import Record
from bidro.fit.training import cross_validates, folds_of
from bidro.privacy.terms import Plan
from bidro.selection.calibrate import FoldLimits
from bidro.selection.personal import has_personal_models

# Rare levels and cells that are listed.
_LISTED = 20


@dataclass(frozen=True)
class Checked:
    """Counts are of rows, or of people where the schema names them (`counted`)."""

    counted: str  # "rows" or "people"
    table_rows: int  # of the table
    rows: int  # different ones, where these are counted
    copies: int  # rows of the table that are copies of others
    training: int
    held_out: int
    min_rows: int
    min_cell: int
    rare_levels: Mapping[str, int]  # among training rows, by name, the rarest first
    rare_cells: Mapping[str, int]  # two levels at once
    outweighed: Mapping[
        str, float
    ]  # by column and set of rows, the share of one row, or person, if too large
    folds: tuple[int, ...]  # that may be asked for; 1: over all training rows
    refused: str | None  # why a run would not be answered; None where it would be
    warnings: tuple[str, ...] = ()  # of columns that lie far from the agreed units
    asks: bool = False  # whether every run waits for the owner's approval
    new: int = 0  # rows that no run has used
    gone: int = 0  # rows that runs have used, and that are in the table no more
    waiting: int = 0  # rows that are not answered of until more are new

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def in_words(self) -> str:
        lines = [
            f"{self.rows} {self.counted}: {self.training} to train on, {self.held_out} held out; {self.new} "
            f"rows are new since earlier runs, and {self.gone} that these used are gone."
        ]
        if self.waiting:
            lines.append(
                f"{self.waiting} rows wait until there are enough that are new, or stay out with those who "
                "are gone: answers are of the others."
            )
        if self.copies:
            lines.append(copies_in_words(self.table_rows, self.copies, self.counted == "people"))
        for what, rule, least, found in (
            ("levels", "min_rows", self.min_rows, self.rare_levels),
            ("pairs of levels", "min_cell", self.min_cell, self.rare_cells),
        ):
            if found:
                lines.append(f"Too rare {what}, had by fewer {self.counted} than {rule} = {least}:")
                lines += [f"  {name}: {count}" for name, count in list(found.items())[:_LISTED]]
                if len(found) > _LISTED:
                    lines.append(f"  and {len(found) - _LISTED} more (--json lists all)")
            else:
                lines.append(f"No {what} are had by fewer {self.counted} than {rule} = {least}.")
        if self.outweighed:
            one = "row" if self.counted == "rows" else "person"
            lines.append(
                f"One {one} outweighs the others, with more than {LARGEST_SHARE:.0%} of a sum of squares:"
            )
            lines += [f"  {where}: {share:.4%}" for where, share in list(self.outweighed.items())[:_LISTED]]
        lines += [f"WARNING: {warning}" for warning in self.warnings]
        if self.refused is not None:
            lines.append(f"A run would be refused: {self.refused}")
            return "\n".join(lines)
        lines.append("A run would be answered.")
        if self.asks:
            lines.append('It waits for your approval first (approve = "ask").')
        lines.append(f"Cross-validation: {_folds(tuple(k for k in self.folds if k > 1))}.")
        return "\n".join(lines)


def _folds(counts: tuple[int, ...]) -> str:
    return f"with {' or '.join(map(str, counts))} folds" if counts else "none"


def checked(
    memory: RowMemory,
    known: KnownRows,
    holdout: NDArray[np.bool_],
    fold_ids: Mapping[int, NDArray[np.int64]],
    refused: str | None = None,
) -> Checked:
    """Of the rows of a table, those held out (N,) of it and the folds (training rows,) of the others by
    their number. `refused` is why a run is not answered whatever its folds, where that is known. Nothing is
    released."""
    people, demanded = known.named_people, memory.demanded
    levels = Levels.of(known.schema, known.features, known.target)
    training = np.where(holdout, -1, 0)
    cells = cell_counts(levels.has, training, 1, known.counted)[0]
    releases = Releases(memory, known, holdout)
    folds: tuple[int, ...] = ()
    if refused is None:
        folds = releases.answerable(fold_ids)
        if 1 not in folds:
            try:
                releases.check()
            except PolicyViolationError as error:
                refused = str(error)
    all_may = refused is None and set(fold_ids) <= set(folds)  # then nobody outweighs the others anywhere
    rare = {name: int(n) for name, n in zip(levels.names, np.diag(cells), strict=True)}
    pairs = {
        f"{levels.names[i]} with {levels.names[j]}": int(cells[i, j])
        for i, j in zip(*np.triu_indices_from(cells, 1), strict=True)
    }
    return Checked(
        counted=words(people),
        table_rows=len(holdout),
        rows=draws(np.ones(len(holdout), bool), known.counted),
        copies=known.copies,
        training=draws(~holdout, known.counted),
        held_out=draws(holdout, known.counted),
        min_rows=demanded.min_rows,
        min_cell=demanded.min_cell,
        rare_levels=_below(rare, demanded.min_rows),
        rare_cells=_below(pairs, demanded.min_cell),
        outweighed={} if all_may else _outweighed(known, holdout, fold_ids),
        folds=folds,
        refused=refused,
    )


def _below(counts: Mapping[str, int], least: int) -> dict[str, int]:
    """Those that somebody has, and too few, the fewest first."""
    return dict(
        sorted(((k, n) for k, n in counts.items() if 0 < n < least), key=lambda pair: (pair[1], pair[0]))
    )


def _rows_of(known: KnownRows, own: NDArray[np.intp]) -> Some:
    """Some rows of the table, by their places."""
    return lambda part: known.whole(own[part])


def _outweighed(
    known: KnownRows, holdout: NDArray[np.bool_], fold_ids: Mapping[int, NDArray[np.int64]]
) -> dict[str, float]:
    """The columns in which one row, or person, outweighs the others, by where that is, the largest share
    first; of combinations of columns, where no column by itself does, that there is one."""
    sets = {"the rows to train on": ~holdout, "the held-out rows": holdout}
    for folds, own in fold_ids.items():
        for fold in range(folds):
            some = ~holdout
            some[some] = own == fold
            sets[f"fold {fold + 1} of {folds}"] = some
    names = [*known.schema.features, known.schema.target]
    found: dict[str, float] = {}
    for where, some in sets.items():
        if not some.any():
            continue
        rows, people = _rows_of(known, np.flatnonzero(some)), known.people[some]
        largest = largest_share(rows, people)
        if largest <= LARGEST_SHARE:
            continue
        each = {
            f"{name}, in {where}": share
            for name, share in zip(names, shares_of_columns(rows, people), strict=True)
        }
        if max(each.values()) <= LARGEST_SHARE:
            each = {f"a combination of columns, in {where}": largest}
        found |= {what: share for what, share in each.items() if share > LARGEST_SHARE}
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


T = TypeVar("T")


def on_a_copy(site: Site, look: Callable[[Site], T]) -> T:
    """What is found at the site with a copy of its state, which is forgotten then."""
    state = state_of(site)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "state")
        folder.mkdir(mode=0o700)
        shutil.copy2(state.folder / KEY_FILE, folder / KEY_FILE)
        for name in (DATABASE, LEDGER):
            if (state.folder / name).exists():
                with (
                    closing(sqlite3.connect(state.folder / name)) as kept,
                    closing(sqlite3.connect(folder / name)) as copy,
                ):
                    kept.backup(copy)
        return look(replace(site, state=folder, approve="always"))


def refusal_of_a_run(site: Site, rows: SiteRows, folds: tuple[int, ...]) -> str | None:
    """Why a run by the site's agreement would end at this site, which offers these numbers of folds; None
    where it would not. The site's state is a copy, which changes."""
    if rows.agreed.plan is not None and rows.agreed.plan.shared is not None:
        return _refusal_of_shared_noise(site, rows, rows.agreed.plan)
    agreed = _of_one_round(rows.agreed)
    here = rows if agreed is rows.agreed else replace(rows, agreed=agreed)
    _forget_what_is_said_again(site, rows)
    spent = None if site.privacy is None else len(ledger_of(site).releases())
    carrier = InMemory({site.client: lambda request: reply_of(site, here, request)})
    job = Job(f"check-{secrets.token_hex(8)}", (site.client,), agreed, Policy())

    def noticed(question: str, *_: object) -> None:
        # What this agreement's first question has been told before, an honest run asks again for nothing.
        if spent is not None and question == "gradients" and len(ledger_of(site).releases()) == spent:
            raise _AnsweredBeforeError

    with Record(site.state / "record") as record, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        coordinator = Coordinator(job.run, carrier, record, job.policy, watch=noticed)
        try:
            if agreed.neural_network is not None:
                federated_network(job, coordinator, "")
            else:
                federated_fit(job, coordinator, "")
                _require_folds(site, here, folds)
        except _AnsweredBeforeError:
            return None
        except BidroError as error:
            return str(error).removeprefix(f"Client '{site.client}': ")
    return None


def _refusal_of_shared_noise(site: Site, rows: SiteRows, plan: Plan) -> str | None:
    """The same where a run needs other sites: by what such a run would cost, unless it has been paid for."""
    if site.privacy is None:
        return NO_BUDGET
    try:
        require_pinned(site, rows)
        plan.require_room(len(rows.target))
    except BidroError as error:
        return str(error)
    ledger, budget = ledger_of(site), site.privacy
    costs = [plan.cost(one, budget).rho for one in ("counts", "losses", "moments")]
    whole = sum(costs, plan.rounds * plan.cost("gradients", budget).rho)
    paid = {sent.about.get("agreed") for release in ledger.releases() for sent in release.sent}
    left = budget.rho - ledger.spent(budget.rows_per_person)
    if whole <= left or rows.agreed.digest in paid:
        return None
    return (
        f"a run by this agreement would cost {float(whole / budget.rho):.3g} of its privacy budget, of which "
        f"{max(float(left / budget.rho), 0.0):.3g} is left."
    )


def _require_folds(site: Site, rows: SiteRows, folds: tuple[int, ...]) -> None:
    """Raise BidroError where several sites would be asked about folds, and this one does not allow them: by
    itself it is not asked."""
    agreed = rows.agreed
    if agreed.algorithm is not None or agreed.privacy is not None:
        return
    choices = agreed.fit_options.choices
    if cross_validates(choices, 2, has_personal_models(rows.protocol.loss)):
        count = folds_of(min(training(site, rows).sizes), choices, FoldLimits(folds))
        releases(site, rows).folds(fold_ids_of(site, rows, count))


class _AnsweredBeforeError(Exception):
    """The run asks what is in the ledger."""


def _of_one_round(agreed: Agreement) -> Agreement:
    """The agreement, but where one round of training is like another, with one of them."""
    if agreed.neural_network is not None:
        return replace(agreed, neural_network=replace(agreed.neural_network, rounds=1))
    if agreed.algorithm is not None:
        return replace(agreed, algorithm=replace(agreed.algorithm, rounds=1))
    return agreed


def _forget_what_is_said_again(site: Site, rows: SiteRows) -> None:
    """A run by the same agreement over the same table ends at the same model, and what is said of that again
    is no other statement; that of the rehearsal, whose model is of this site alone, stands for it."""
    agreed, table = approved_for(site, rows)
    with state_of(site).transaction() as connection:
        connection.execute("DELETE FROM stated WHERE content LIKE ? || ' %'", (f"{agreed} {table}",))


def check_site(site: Site, rehearse: bool = True, rows: SiteRows | None = None) -> Checked:
    """What the site would answer by its agreement, for its owner: counts, and whether a run would be
    answered, by one with this site alone unless that is not wanted. `rows` where they have been read."""
    found = on_a_copy(site, lambda copy: _checked(copy, rehearse, rows or SiteRows.load(site)))
    return replace(found, asks=site.approve == "ask")


# Days before the end of its certificate, and the share of its budget, from which on a site warns.
_DAYS, _LEFT = 30, 0.1


def verdict(site: Site, rows: SiteRows) -> Verdict:
    """What leaves of a check: that a run would be answered, with what to look at. Raises PolicyViolationError
    with why it would not. Under a privacy budget nothing that depends on the rows is told."""
    found = check_site(site, rows=rows)
    if found.refused is not None:
        raise PolicyViolationError(found.refused)
    days = days_left(site.schema.parent)
    spent = 0.0
    if site.privacy is not None:
        spent = float(spent_content(ledger_of(site), site.privacy)["spent"])
    of_rows = site.privacy is None
    far = far_units_of(rows.agreed, rows.features, rows.target) if of_rows else []
    repeated = of_rows and (found.copies > 0 or len(found.warnings) > len(far))
    warned = (bool(far), repeated, spent > 1 - _LEFT, days is not None and days < _DAYS)
    return Verdict(np.array(warned, float))


def _checked(site: Site, rehearse: bool, rows: SiteRows) -> Checked:
    refused, told, whole = None, told_of(site, rows), rows
    if site.privacy is None:
        rows = snapshot(site, rows)
    try:
        require_allowed(site, rows)
        kept = holdout(site, rows)
    except PolicyViolationError as error:
        refused, kept = str(error), np.zeros(len(rows.target), bool)
        if draws(~kept, rows.people) >= 3:
            kept = dealt(site, rows)
    fold_ids = {} if refused is not None else fold_ids_by_count(site, rows)
    found = checked(*known_rows(site, rows), kept, fold_ids, refused)
    waiting = len(whole.target) - len(rows.target)
    found = replace(found, new=int(np.sum(~told.before)), gone=told.gone, waiting=waiting)
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
            "tells people apart (person in the schema); else every row counts as a person, and the "
            "combinations follow from the sums."
        )
    return replace(found, warnings=tuple(said))
