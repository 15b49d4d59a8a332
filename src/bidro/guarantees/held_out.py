"""What rows kept out of training say about the true risk of a model, under any admissible mixture.

For each client a one-sided confidence bound of its true mean loss, from losses on rows that training never
saw; then the worst admissible mixture of these bounds. It covers the unknown mixture and the sampling error,
but no shift inside a client. Bounded losses: a betting bound and the empirical Bernstein bound, whichever a
user asks for; wrong or right: Clopper and Pearson's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv

from bidro.errors import BidroError
from bidro.sets import CappedSimplex, L1SimplexBall, Simplex
from bidro.trees import Frozen

Floats = NDArray[np.float64]
Bound = Literal["betting", "bernstein", "clopper-pearson"]


@dataclass(frozen=True, eq=False)
class HeldOut:
    """With probability at least `confidence` the true risk under every mixture in A is at most `bound`."""

    bound: float
    confidence: float
    clients: Mapping[str, float]  # one-sided bounds of the clients' true risks
    means: Mapping[str, float]  # mean losses on the rows kept out
    rows: Mapping[str, int]
    level: float  # beta of each client's bound
    kind: Bound
    largest: float  # that a loss counts as
    clipped: bool  # whether losses can be larger than that

    def __post_init__(self) -> None:
        for name in ("clients", "means", "rows"):
            object.__setattr__(self, name, Frozen(getattr(self, name)))

    @property
    def promise(self) -> str:
        what = f", each counted as at most {self.largest:.6g}," if self.clipped else ""
        if self.kind == "clopper-pearson":
            what = f" (0 or 1: the share of mistakes){what}"
        return (
            f"With confidence {self.confidence:g} the mean loss{what} of this model on new rows, drawn as "
            f"those kept out were and mixed in any admissible way, is at most {self.bound:.6g}. It says "
            "nothing about shift inside a client."
        )


class ClientBound(NamedTuple):
    """What one client's rows kept out say; all that has to leave it."""

    bound: float  # one-sided, of its true mean loss
    mean: float
    rows: int


def held_out(
    losses: Mapping[str, ArrayLike],
    confidence: float = 0.95,
    largest: float | None = None,
    mixtures: Simplex | CappedSimplex | L1SimplexBall | None = None,
    kind: Bound = "betting",
    clipped: bool = False,
) -> HeldOut:
    """The certificate from each client's losses on rows kept out of training, in [0, largest].

    `largest` must be known beforehand, from the declared support: a range read off the losses proves nothing.
    With `clipped`, larger losses count as `largest`, and the statement is about losses counted so.
    For the full simplex each bound needs level 1 - confidence only, since the whole fails only if that of the
    truly worst client does; a smaller set of mixtures needs all of them to hold together.
    """
    if not losses:
        raise BidroError("A held-out certificate needs the losses of at least one client.")
    if kind == "clopper-pearson":
        largest = 1.0
    if largest is None or not 0 < largest < math.inf:
        raise BidroError(
            "A held-out bound needs the largest value that the loss can take on the declared support; got "
            f"{largest}."
        )
    whole = Simplex(len(losses)) if mixtures is None else mixtures
    level = client_level(confidence, len(losses), whole)
    clients = {
        name: client_bound(name, given, level, largest, kind, clipped) for name, given in losses.items()
    }
    return worst_mixture(clients, confidence, largest, whole, kind, clipped)


def client_level(confidence: float, n: int, mixtures: Simplex | CappedSimplex | L1SimplexBall) -> float:
    """beta of each of n clients' bounds: see `held_out`."""
    if not 0 < confidence < 1:
        raise BidroError(f"The confidence must lie strictly between 0 and 1; got {confidence}.")
    if mixtures.dimension != n:
        raise BidroError(f"The mixtures are for {mixtures.dimension} clients but there are {n}.")
    full = isinstance(mixtures, Simplex)
    return 1 - confidence if full else -math.expm1(math.log(confidence) / n)


def client_bound(
    name: str, losses: ArrayLike, level: float, largest: float, kind: Bound, clipped: bool = False
) -> ClientBound:
    """From one client's losses (N_i,) in the order in which they came; it fails with probability at most
    `level`."""
    values = _checked(name, np.minimum(losses, largest) if clipped else losses, largest, kind)
    return ClientBound(_BOUNDS[kind](values / largest, level) * largest, float(values.mean()), len(values))


def worst_mixture(
    clients: Mapping[str, ClientBound],
    confidence: float,
    largest: float,
    mixtures: Simplex | CappedSimplex | L1SimplexBall,
    kind: Bound,
    clipped: bool = False,
) -> HeldOut:
    """The whole from its clients' bounds, each of `client_level`."""
    worst = float(mixtures.linear_maximum(jnp.asarray([one.bound for one in clients.values()]))[0])
    return HeldOut(
        worst,
        confidence,
        {name: one.bound for name, one in clients.items()},
        {name: one.mean for name, one in clients.items()},
        {name: one.rows for name, one in clients.items()},
        client_level(confidence, len(clients), mixtures),
        kind,
        largest,
        clipped,
    )


def shifted(certificate: HeldOut, slope: float, shift: float) -> float:
    """The held-out bound plus room for shift: every client's distribution may move by `shift` in W_1 (or W_p,
    p >= 1), the loss having slope at most `slope` in the sample: bound + slope shift."""
    if not (0 <= slope < math.inf and 0 <= shift < math.inf):
        raise BidroError(f"Slope and shift must be finite and not negative; got {slope} and {shift}.")
    return certificate.bound + slope * shift


def shifted_squared(certificate: HeldOut, steepness: float, shift: float) -> float:
    """The same for squared loss and a shift in W_2: (sqrt(bound) + shift nu)^2, nu = ||S^-1 a(x)||."""
    if not (0 <= steepness < math.inf and 0 <= shift < math.inf):
        raise BidroError(f"Steepness and shift must be finite and not negative; got {steepness} and {shift}.")
    return (math.sqrt(certificate.bound) + shift * steepness) ** 2


def empirical_bernstein(values: Floats, beta: float) -> float:
    """Maurer and Pontil's bound of the mean of values in [0, 1]: it fails with probability at most beta."""
    n = len(values)
    if n < 2:
        return 1.0
    log = math.log(2 / beta)
    variance = float(values.var(ddof=1))
    return min(1.0, float(values.mean()) + math.sqrt(2 * variance * log / n) + 7 * log / (3 * (n - 1)))


def betting(values: Floats, beta: float) -> float:
    """A bound of the mean of values in [0, 1] by betting against each candidate (hedged capital).

    If the mean is mu, a gambler who before each value stakes a share lambda_t that depends on earlier values
    only has capital prod (1 + lambda_t (mu - v_t)), a nonnegative martingale: it reaches 1 / beta with
    probability at most beta. Candidates against which it does are ruled out, and the bound is the least of
    them. The stakes are those of Waudby-Smith and Ramdas, from the running mean and variance.
    """
    n = len(values)
    counts = np.arange(1, n + 1)
    means = (0.5 + np.cumsum(values)) / (counts + 1)
    spreads = (0.25 + np.cumsum((values - means) ** 2)) / (counts + 1)
    before = np.concatenate([[0.25], spreads[:-1]])
    # The same stakes for all candidates, and no more than three quarters of the capital: so what is won rises
    # with the candidate, and a search may halve.
    stakes = np.minimum(np.sqrt(2 * math.log(1 / beta) / (n * before)), 0.75)

    def ruled_out(candidate: float) -> bool:
        capital = np.cumsum(np.log1p(stakes * (candidate - values)))
        return bool(capital.max() >= math.log(1 / beta))

    low, high = 0.0, 1.0
    if not ruled_out(high):
        return high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if ruled_out(middle) else (middle, high)
    return high


def clopper_pearson(values: Floats, beta: float) -> float:
    """The exact bound of a probability from zeros and ones."""
    n, wrong = len(values), int(values.sum())
    return 1.0 if wrong == n else float(betaincinv(wrong + 1, n - wrong, 1 - beta))


_BOUNDS: dict[str, Callable[[Floats, float], float]] = {
    "betting": betting,
    "bernstein": empirical_bernstein,
    "clopper-pearson": clopper_pearson,
}


def _checked(name: str, given: ArrayLike, largest: float, kind: Bound) -> Floats:
    values = np.asarray(given, float)
    if values.ndim != 1 or len(values) == 0:
        raise BidroError(f"Client '{name}' has no rows kept out; keep at least one.")
    if not np.all(np.isfinite(values)) or values.min() < 0 or values.max() > largest * (1 + 1e-12):
        raise BidroError(f"Client '{name}' has losses outside [0, {largest:g}], the range that was declared.")
    if kind == "clopper-pearson" and not np.all(np.isin(values, (0.0, 1.0))):
        raise BidroError(f"Clopper and Pearson's bound is for losses of 0 and 1; client '{name}' has others.")
    return values
