"""The inner supremum over xi (eq. inner_sup_xi): exact where the loss allows it, ascent elsewhere."""

from bidro.risk.inner.ascent import BacktrackingAscent, FixedStepAscent
from bidro.risk.inner.exact import Exact
from bidro.risk.inner.problem import Inner, InnerMax, Oracle

__all__ = [
    "BacktrackingAscent",
    "Exact",
    "FixedStepAscent",
    "Inner",
    "InnerMax",
    "Oracle",
    "default_oracle",
]


def default_oracle(inner: Inner) -> Oracle:
    """The exact supremum where there is one, backtracking ascent elsewhere."""
    return Exact() if Exact.obstacle(inner) is None else BacktrackingAscent()
