"""What a user sees when something is wrong: one sentence that says what, where and what to do."""

from importlib.util import find_spec


class BidroError(ValueError):
    """Bad input or an impossible request; the message is one clear sentence for the user."""


def require_package(module: str, extra: str, what: str) -> None:
    """Raise BidroError where a package that only some work needs is not installed; `extra` brings it."""
    if find_spec(module) is None:
        raise BidroError(f"{what} needs a package that is not installed; pip install 'bidro[{extra}]'.")
