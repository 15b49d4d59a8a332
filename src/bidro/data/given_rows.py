"""What users give an estimator besides numbers: whose row each is, as labels or as a column of a frame, and
sparse rows."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from bidro.core.arrays import machine_memory
from bidro.core.errors import BidroError
from bidro.core.splits import Draws, label_ids
from bidro.data.tables import Schema, learn_schema

# The one client of a table that names none.
ONLY_CLIENT = "all"
# Of the machine's memory so much may go to rows that were sparse: training needs some of it, too.
_DENSE_SHARE = 0.25


def client_labels(clients: Any, rows: int) -> NDArray[np.str_]:
    """The client of every row (N,) as text."""
    if clients is None:
        return np.full(rows, ONLY_CLIENT)
    return row_labels(clients, rows, "client")


def by_client(clients: NDArray[np.str_], values: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Each client's part of values (N, ...), in the order of the rows, by name."""
    names, codes = np.unique(clients, return_inverse=True)
    parts = np.split(values[np.argsort(codes, kind="stable")], np.cumsum(np.bincount(codes))[:-1])
    return dict(zip(names.tolist(), parts, strict=True))


def row_labels(given: Any, rows: int, what: str) -> NDArray[np.str_]:
    """A label a row (N,) as text: `what` each is of."""
    if isinstance(given, str):
        raise BidroError(
            f"'{given}' names one {what}, or a column, where the {what} of every row is needed; give one a "
            "row."
        )
    labels = column_or_1d(np.asarray(given), warn=False)
    if len(labels) != rows:
        raise BidroError(f"There are {rows} rows but {len(labels)} {what} labels; give one a row.")
    nameless = np.asarray(pd.isna(labels))
    if nameless.any():
        raise BidroError(f"Row {int(np.argmax(nameless))} has no {what}; name one for every row.")
    if labels.dtype.kind not in "iuf":
        return labels.astype(str)
    # As text a number takes room for the longest that there are: every one is written once.
    different, codes = np.unique(labels, return_inverse=True)
    return np.array(different.astype(str).tolist(), str)[codes]


def classes_and_codes(y: Any) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """(the classes, sorted, which of them each target (N,) is). Raises BidroError for a single class."""
    check_classification_targets(y)
    classes, codes = np.unique(column_or_1d(y, warn=True), return_inverse=True)
    if len(classes) < 2:
        raise BidroError(f"A classifier needs at least two classes, and there is 1 class: {classes[0]!r}.")
    return classes, codes


def column_taken(X: Any, given: Any, what: str) -> tuple[Any, Any]:
    """(rows, labels) where `given` names a column of the frame X: without that column, and what is in it.

    Anything else stays as it is. Raises BidroError for a name that is no column's.
    """
    if not isinstance(given, str):
        return X, given
    names = getattr(X, "columns", None)
    if names is None:
        raise BidroError(
            f"{'people' if what == 'person' else 'clients'}='{given}' names a column, and X has no names of "
            f"columns; give a DataFrame, or the {what} of every row."
        )
    if given not in list(names):
        raise BidroError(f"X has no column '{given}', which is to name the {what} of every row.")
    return X[[name for name in names if name != given]], X[given]


def learned_columns(X: Any, owners: NDArray[np.str_]) -> Schema | None:
    """How a frame with columns of text or categories is put into numbers, as `bidro fit` does it: one column
    of 0 and 1 for every level but the first. None for rows that are numbers already.

    Raises BidroError for a column that is neither numbers nor levels, and for missing values.
    """
    if not hasattr(X, "columns") or not any(_has_words(X[name]) for name in X.columns):
        return None
    table = _as_pandas(X)
    # Any target will do: it is looked at elsewhere.
    client, target = "whose row it is", "what is predicted"
    if {client, target} & set(map(str, table.columns)):
        raise BidroError(f"A column may not be called '{client}' or '{target}'; rename it.")
    whole = table.assign(**{client: owners, target: np.arange(len(table), dtype=float)})
    return learn_schema(whole, client, target, task="regression")


def coded(X: Any, schema: Schema | None) -> Any:
    """Rows as a frame of numbers, for a schema of `learned_columns`; as they are without one."""
    if schema is None:
        return X
    if not hasattr(X, "columns"):
        raise BidroError("This model was fitted on a frame with columns of text; give a frame that has them.")
    table = _as_pandas(X)
    schema.warn_of_unseen_levels(table)
    return pd.DataFrame(schema.matrix(table), columns=list(schema.features), index=table.index)


def _as_pandas(X: Any) -> pd.DataFrame:
    if isinstance(X, pd.DataFrame):
        return X
    return pd.DataFrame({name: X[name].to_list() for name in X.columns})


def _has_words(column: Any) -> bool:
    """Whether cells are text or declared levels."""
    kind = str(column.dtype)
    if kind in ("category", "string", "str", "String", "Categorical") or kind.startswith("Enum"):
        return True
    return kind == "object" and any(isinstance(value, str) for value in column)


def dense(X: Any) -> Any:
    """Rows (N, k) that may be sparse as an array. Raises BidroError where there is no room for it."""
    if not issparse(X):
        return X
    needed, there = 8 * X.shape[0] * X.shape[1], machine_memory()
    if there is not None and needed > _DENSE_SHARE * there:
        raise BidroError(
            f"Sparse rows are trained on as dense ones, which here take {needed / 1e9:.1f} GB, more than a "
            f"quarter of this machine's {there / 1e9:.1f} GB; make fewer columns, such as by TruncatedSVD or "
            "SelectKBest."
        )
    return np.asarray(X.toarray(), float)


def enough_to_choose(owners: NDArray[np.str_], people: NDArray[np.str_] | None) -> NDArray[np.bool_]:
    """(N,) the rows of clients with at least two rows, or people, that something can be cross-validated on;
    all of them where no client has. Warns of what is left out."""
    names, codes = np.unique(owners, return_inverse=True)
    counts = np.bincount(codes)
    if people is not None:
        counts = Draws.of(codes, label_ids(people)).counts(len(names))
    alone = counts < 2
    if not alone.any() or alone.all():
        return np.ones(len(owners), bool)
    left = alone[codes]
    what, which = "row" if people is None else "person", f"Client '{names[alone][0]}' has"
    if alone.sum() > 1:
        which = f"{alone.sum():,} clients, such as '{names[alone][0]}', have"
    warnings.warn(
        f"{which} one {what}, too few to choose anything by rows left out: {left.sum():,} of {len(left):,} "
        "rows are left out of training, and their clients get the shared model. To train on them, choose "
        "nothing: weights='fixed', personal=None.",
        stacklevel=3,
    )
    return ~left


def refuse(given: Mapping[str, Any]) -> None:
    """Raise BidroError for weights of rows, TypeError for anything else; None stands for "not given"."""
    if given.get("sample_weight") is not None:
        raise BidroError(
            "There is no sample_weight: every statement counts a row as one draw from its client. Give rows "
            "that were drawn several times as several rows; how much a whole client may count is `weights`."
        )
    unknown = sorted(set(given) - {"sample_weight"})
    if unknown:
        raise TypeError(f"fit() got an unexpected keyword argument '{unknown[0]}'")
