"""What a user sees when something is wrong: one sentence that says what, where and what to do."""

import unicodedata
from collections.abc import Iterable
from importlib.util import find_spec
from numbers import Real
from typing import Any, TypeGuard

# Of a text that was written elsewhere, so many characters are shown.
_MOST_SHOWN = 600


class BidroError(ValueError):
    """Bad input or an impossible request; the message is one clear sentence for the user.

    Examples:
        >>> from bidro import BidroError, Box
        >>> try:
        ...     Box([1.0], [0.0])
        ... except BidroError as error:
        ...     print(error)
        A box needs lower <= upper; coordinate 0 has 1.0 > 0.0.
    """


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value of any type is one real number, of Python or NumPy."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_confidence(confidence: Any) -> None:
    """Raise BidroError for a confidence that no statement can have."""
    if not is_number(confidence) or not 0 < confidence < 1:
        raise BidroError(
            f"The confidence must be a number strictly between 0 and 1, such as 0.95; got {confidence!r}."
        )


def require_package(module: str, extra: str, what: str) -> None:
    """Raise BidroError where a package that only some work needs is not installed; `extra` brings it."""
    if find_spec(module) is None:
        raise BidroError(f"{what} needs a package that is not installed; pip install 'bidro[{extra}]'.")


def listed(names: Iterable[Any], most: int = 12) -> str:
    """Names with commas between them; of more than `most`, the first and how many more there are."""
    words = [str(name) for name in names]
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def one_line(text: object, most: int = _MOST_SHOWN) -> str:
    """A text from elsewhere as one line that does nothing to a terminal, a log or a page: without control
    characters and marks that turn its direction, and cut where it is long."""
    begun = str(text)[: 4 * most]
    kept = "".join(c if unicodedata.category(c)[0] not in "CZ" else " " for c in begun)
    words = " ".join(kept.split())
    return words if len(words) <= most and len(begun) == len(str(text)) else f"{words[:most]}..."
