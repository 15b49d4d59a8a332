"""What a site does not send, whoever asks: anything from which a row could be read.

Numbers rest on at least `min_rows` people where the schema names them, and else different rows, as
rows of one person, and copies of one row, tell of that person alone. A sum against a column of two values,
such as a coded level or a class, is a sum over the rows with one of them, so that each value at a site must
be had by as many people. Of folds, what is left out counts, as a server can take differences. Which sets may
be told of is for the memory of rows to say (`memory`).

All that rounds tell of squared loss follows from second moments, whatever models are asked about. Any other
loss tells more with every model: along intercepts a logistic gradient has a pole for every row, and at a kink
of a loss, or of its slope, the answer changes with the few rows next to it. So what leaves is one of three
kinds (`Release`), of which an agreement chooses one and an owner says the most that may: a server that
chooses models is trusted by contract, or asked nothing. Replies from one row, models from elsewhere and
networks are the owner's to allow besides.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.federated.algorithm import Algorithm, HostData
from bidro.losses import Loss

# The person (N,) that each row is of; None where every row is one by itself.
Ids = NDArray[np.uint64] | None
# What leaves a site: sums with noise under its budget; second moments, exactly; what the algorithm asks.
# Each owner permits one of these, and what stands before it.
Release = Literal["private", "moments", "trusted"]
RELEASES: tuple[Release, ...] = get_args(Release)


class PolicyViolationError(BidroError):
    """Why a site does not answer, in words that hold nothing of its data and may leave it."""


# In `allows` of site.toml, beside the factories of networks: what its owner consents to.
SINGLE_ROWS, SCORES = "single rows", "scores"
ONE_SAMPLE = (
    "replies from one row give records away: gradient and value of one row's loss, with the settings that "
    "the server chose, are enough to rebuild about four fifths of the sampled rows; if that is acceptable "
    f'here, set allows = ["{SINGLE_ROWS}"] in this site\'s configuration.'
)
TRUSTED = (
    'what was agreed on, release = "trusted", lets exact numbers leave about models that the server chooses, '
    "and one that chooses them for that purpose can rebuild rows; if the server is trusted here to run bidro "
    'as it is, set release = "trusted" in this site\'s configuration.'
)
NO_MOMENTS = (
    'what was agreed on, release = "moments", lets second moments leave exactly, and its owner permits '
    'nothing but sums with noise; if they may, set release = "moments" in this site\'s configuration.'
)
SCORED = (
    "a model that the server sends is one that it chooses, and what is said of it tells of the rows that it "
    f'was made for; if that is acceptable here, set allows = ["{SCORES}"] in this site\'s configuration.'
)
CLIPPED = (
    "it has no privacy budget: its sums would be exact, of rows that the server chooses by where it clips "
    "them, so that single rows can be found; give this site a privacy budget ([privacy] epsilon = NUMBER), "
    'or, if the server is trusted here to run bidro as it is, set release = "trusted" in this site\'s '
    "configuration."
)
MANY = (
    "it has too few people in a set that sums are told of, or could be worked out from: what is told of them "
    "would be enough to work out rows; use fewer folds, fewer columns or segments, or give it more people."
)
FEW_WITHOUT_NEW_ROWS = (
    "nearly all people of a set that sums are told of have new rows, or as many more, and a few do not: what "
    "does not change from row to row could be worked out of these few; use its table as it was, or wait for "
    "rows of all of them, or of fewer."
)


def draws(some: NDArray[np.bool_], people: Ids) -> int:
    """How many rows are among some (N,) of them, or how many people, from the person (N,) of each."""
    return int(some.sum()) if people is None else len(np.unique(people[some]))


def rarest_value(rows: Floats, classes: bool, people: Ids = None) -> int:
    """How many rows (N, m), or people (N,), have the rarer value of a column of two values, the least over
    such columns, or, where the target (last) is of `classes`, the rarest of these; all where there are none.

    Of several classes, too, there is a sum over the rows of each: the gradient has a part for every class.
    """
    least = draws(np.ones(len(rows), bool), people)
    if classes and len(rows):
        target = rows[:, -1]
        least = min(draws(target == value, people) for value in np.unique(target))
    for column in rows.T:
        same = column == column[0]
        others = column[~same]
        if len(others) and np.all(others == others[0]):
            least = min(least, draws(same, people), draws(~same, people))
    return least


def require_common(rarest: int, min_rows: int, people: Ids) -> None:
    """Raise PolicyViolationError where the rarest of a column's two values, or class, is had by fewer than
    `min_rows` people."""
    if rarest < min_rows:
        raise PolicyViolationError(
            f"a level or class is had by fewer than its min_rows = {min_rows} of its training "
            f"{words(people)}; merge rare levels in the schema, or lower min_rows at that site."
        )


def words(people: Ids) -> str:
    return "rows" if people is None else "people"


def require_permitted(agreed: Release, permitted: Release) -> None:
    """Raise PolicyViolationError where an agreement lets more leave than the owner permits."""
    if RELEASES.index(agreed) > RELEASES.index(permitted):
        raise PolicyViolationError(TRUSTED if agreed == "trusted" else NO_MOMENTS)


def require_allowed_network(factory: str, allowed: Collection[str]) -> None:
    """Raise PolicyViolationError for a network that the site does not allow by the name of its factory."""
    if factory not in allowed:
        raise PolicyViolationError(
            f"its owner has not allowed the network of '{factory}', whose code would run there; if it may, "
            f'set allows = ["{factory}"] in this site\'s configuration.'
        )


def rows_behind(
    algorithm: Algorithm,
    loss: Loss,
    rows_here: HostData,
    min_rows: int,
    one_sample: bool,
) -> int:
    """The fewest rows, or people, that a number in the reply rests on as far as the algorithm says it:
    which sets of rows there may be is for the memory of rows to say. Raises PolicyViolationError for replies
    from one row, or from a batch of few people, that the owner does not allow."""
    if algorithm.rows_behind == "one row":
        if not one_sample:
            raise PolicyViolationError(ONE_SAMPLE)
        return 1
    if isinstance(algorithm.rows_behind, int):
        return _rows_behind_batch(algorithm.rows_behind, loss, rows_here, min_rows, one_sample)
    return draws(np.ones(len(rows_here.samples), bool), rows_here.people)


def _rows_behind_batch(batch: int, loss: Loss, rows_here: HostData, min_rows: int, one_sample: bool) -> int:
    """The fewest rows, or people, that can be behind a sum over a batch, or over a value in it: the batch may
    have been filled by the people with most rows, and have missed all but one with that value."""
    samples, people = rows_here.samples, rows_here.people
    everything = draws(np.ones(len(samples), bool), people)
    least = min(batch, everything)
    if people is not None:
        _, sizes = np.unique(people, return_counts=True)
        least = int(np.searchsorted(np.cumsum(np.sort(sizes)[::-1]), min(batch, len(samples)))) + 1
    rare = rarest_value(samples, loss.labels is not None, people)
    if rare < everything:
        least = max(1, rare - (everything - least))
    if least < min_rows and not one_sample:
        raise PolicyViolationError(
            f"a batch of {batch} rows, or what in it has one level or class, can be of fewer {words(people)} "
            f"than its min_rows = {min_rows}; agree on larger batches or on all rows, or, if replies from "
            f'few rows are acceptable here, set allows = ["{SINGLE_ROWS}"] in this site\'s configuration.'
        )
    return least


def too_few(named: str, what: str, rule: str, least: int, earlier: bool) -> str:
    """The sentence of a refusal, and what to do: it says nothing of the rows but that they are too few."""
    few = f"fewer than {least} of its {named}{what}, its {rule}"
    if earlier:
        return (
            f"a sum over {few}, could be worked out from this run and earlier ones, because its table has "
            "changed by too little since, or its folds or hold-out are others; use its table as it was, wait "
            f"for more new {named}, or use fewer folds."
        )
    return (
        f"a sum over {few}, could be worked out; use fewer folds, merge rare levels in the schema, give it "
        f"more {named}, or lower {rule} at that site."
    )
