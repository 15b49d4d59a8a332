"""Of which rows of its table a site answers, so that a table that is kept up to date never shuts it out.

What leaves is of a *snapshot*: people whose sides and folds are fixed. A table differs from the snapshot that
was told of last by rows that are new, and by rows that are gone. Sums with them and without them differ by
them alone, so that they must be many, by the rule of the site's memory (`disclosure.memory`). Where they are:

- new rows join together, all that are there, when there are enough of them behind every sum that was told
  before, in every fold; then the snapshot is another. Until then answers are of the rows as they were;
- of people of whom rows are gone, or were changed, no row is used any more, and with them some others stay
  out, chosen by the site's key among those who were in the same sets, as few as the rule wants: so nobody can
  tell who of these it was. What has left cannot be recalled.

A site asks its memory which rows were told of, and by the rule what it may tell: nothing else is kept. The
snapshot of a run stays what it was when the run began, as what it has been told of is known from then on.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from bidro.deploy.site.config import Site
from bidro.deploy.site.disclosure.memory import Releases, Told
from bidro.deploy.site.disclosure.rules import PolicyViolationError
from bidro.deploy.site.rows import SiteRows, as_dealt, fold_ids_by_count, holdout, known_rows

Rows = NDArray[np.bool_]


@lru_cache(maxsize=2)
def snapshot(site: Site, rows: SiteRows) -> SiteRows:
    """The rows of a table that the site answers of: all of them where nothing was told before, or where the
    rule allows it; all of them, too, where it allows none, which the answer then says."""
    rows = as_dealt(site, rows)
    told = told_of(site, rows)
    new = ~told.before
    if new.all() or (not new.any() and not told.gone):
        return rows
    kept, folds = _without_the_gone(site, rows, told)
    # Of the same people there may be new rows; without these, new people may be enough.
    for more in (new & ~told.changed, new & ~told.changed & ~told.known):
        if more.any() and folds <= (found := _folds(site, rows, kept | more)) and found:
            return rows.only(kept | more)
    return rows.only(kept) if folds else rows


def told_of(site: Site, rows: SiteRows) -> Told:
    """What of a table was told before."""
    memory, known = known_rows(site, rows)
    return memory.told(known)


def _without_the_gone(site: Site, rows: SiteRows, told: Told) -> tuple[Rows, int]:
    """(which rows (N,) of the last snapshot are used further, over how many folds: 0 where none may be): as
    many as can be of those that give the most folds."""
    here = told.before & ~told.changed
    if not told.gone:
        return here, _folds(site, rows, here)
    people = known_rows(site, rows)[1].people  # keyed hashes: their order is random
    beside = np.unique(people[told.beside & here])
    counts, count = [0], site.min_rows
    while count < len(beside):
        counts.append(count)
        count *= 2
    tried = [here & ~np.isin(people, beside[:count]) for count in [*counts, len(beside)]]
    folds = [_folds(site, rows, some) for some in tried]
    best = int(np.argmax(folds))
    return tried[best], folds[best]


def _folds(site: Site, rows: SiteRows, some: Rows) -> int:
    """Over how many folds the site would answer of some of the rows (N,), 1 where over all alone, 0 where it
    would not at all."""
    if not some.any():
        return 0
    here = rows if some.all() else rows.only(some)
    try:
        found = Releases(*known_rows(site, here), holdout(site, here))
        found.require_borne()
        return max(found.answerable(fold_ids_by_count(site, here)), default=0)
    except PolicyViolationError:
        return 0
