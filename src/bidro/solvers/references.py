"""References: constants that are taken off the clients' risks where these reach the server.

The server then bounds min over x of max over alpha in A of sum_i alpha_i (R_i(x) - b_i), the minimax regret;
clients and messages know nothing of it. A regret may be 0 or negative, so that gaps are relative
to a risk instead: with alpha_1 in A, the clients' shares as far as A allows,

    regret + <alpha_1, b> >= <alpha_1, R(x)>     for the regret of x under the worst mixture.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bidro.problem.problem import Problem

Numbers = NDArray[np.float64]
_Regret = TypeVar("_Regret", float, Numbers)


class References(NamedTuple):
    """b_i; by default none, which changes nothing to the last bit."""

    each: Numbers | None = None  # (n,)
    mean: float = 0.0  # <alpha_1, b>

    @classmethod
    def of(cls, problem: Problem) -> References:
        each = np.zeros(problem.n) if problem.references is None else np.asarray(problem.references)
        if not each.any():
            return NO_REFERENCES
        return cls(each, float(np.asarray(problem.initial_weights) @ each))

    def off(self, risks: Numbers) -> Numbers:
        """The regrets (..., n) of these risks."""
        return risks if self.each is None else risks - self.each

    def risk(self, regret: _Regret) -> _Regret:
        """A mean risk that goes with this regret under the worst mixture: what gaps are relative to."""
        return regret + self.mean

    def of_cuts(self, multipliers: Numbers, owner: NDArray[np.int64]) -> float:
        """sum_j multipliers_j b_owner(j)."""
        return 0.0 if self.each is None else float(multipliers @ self.each[owner])

    def of_members(self, share: sparse.csr_matrix) -> References:
        """Those of members that stand for sum_i share_ji R_i."""
        return self if self.each is None else self._replace(each=np.asarray(share @ self.each))


NO_REFERENCES = References()
