"""How much clients differ from a shared model: a variance component for every coefficient.

Around the shared model client i changes its coefficients by u_i ~ N(0, D), D diagonal, and its sum of losses
is, to second order,

    const - <r_i, u> + <u, A_i u> / 2,      r_i minus its gradient, A_i its curvature,

so that of rows with dispersion phi the most probable change is u_i = (A_i + phi D^-1)^-1 r_i. Of squared loss
phi is twice the variance of a residual; of a log-likelihood it is 1; else it is estimated by the sum of
squared slopes over that of curvatures (McCullagh's quasi-likelihood).

With L = (D / phi)^1/2 and P_i = I - (I + L A_i L)^-1, D is at the maximum of the restricted likelihood where
for every coefficient j

    D_j = sum_i u_ij^2 / T_j,      T_j = sum_i (P_i - P_i (sum_k P_k)^-1 P_i)_jj,

the second term of T being what the shared model, which has the same columns, takes from the rows (Patterson
and Thompson 1971). It is the step of the iteration too. Slopes that few rows tell apart are held at the mean
of all slopes, by `_PRIOR` clients that have it.

All of this is around what clients have in common, which is not what pooled training finds: that counts every
row alike, and takes clients' differences for noise of rows. Where client i's curvature in all numbers of the
model is G_i, and C_i that between these and the coefficients that differ, the most probable common model is
by generalised least squares

    x + (sum_i G_i - C_i K_i C_i')^-1 sum_i (h_i - C_i K_i r_i),      K_i = (A_i + phi D^-1)^-1,

h_i being minus the gradient in all numbers. `common_change` is what it adds to x.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

Numbers = NDArray[np.float64]

# Clients of the mean that every slope's component is held at.
_PRIOR = 2.0
_STEPS, _LEAST_CHANGE = 60, 1e-3
# Where clients' rows are fitted exactly D / phi has no limit: rows count at most so many times the prior,
# with which coefficients are free to eight digits.
_FREE = 1e8
# Components are estimated from about so many clients: more tell hardly more of a variance.
_ENOUGH_CLIENTS = 1_000
# Numbers that are handled together.
_TOGETHER = 1 << 22
# Slopes that may differ, of those that differ most: the others are shared.
MOST_SLOPES = 50
# What rounding leaves of a matrix's diagonal.
ROUNDING = 1e-9


class Expansion(NamedTuple):
    """The clients' sums of losses around a shared model, to second order; of several scores, as if the rows
    of each score were a client's own (c = n K)."""

    curvature: Numbers  # (c, q, q) A_i
    pull: Numbers  # (c, q) r_i
    squares: Numbers  # (c,) sums of squared slopes of the losses in the score, where it was expanded
    bend: Numbers  # (c,) sums of second derivatives in the score
    rows: Numbers  # (c,)
    exact: bool = False  # of squared loss, expanded around the shared model, where these are known anywhere

    def at(self, which: NDArray[np.int64] | slice) -> Expansion:
        """Of some of the clients."""
        A, r, squares, bend, rows = (part[which] for part in self[:-1])
        return Expansion(A, r, squares, bend, rows, self.exact)

    def among(self, columns: NDArray[np.int64]) -> Expansion:
        """With changes in some of the columns alone."""
        curvature = self.curvature[:, columns[:, None], columns]
        return self._replace(curvature=curvature, pull=self.pull[:, columns])


class Sums(NamedTuple):
    """The clients' sums of losses around a shared model x, to second order in all its numbers."""

    x: Numbers  # (d,)
    curvature: Numbers  # (d, d) over all clients
    held: Numbers  # (d, d) of what training adds to the losses, <x, held x> / 2
    cross: Numbers  # (c, d, q) each client's, between all numbers and the coefficients that may differ
    pull: Numbers  # (c, d) minus its gradient

    def among(self, columns: NDArray[np.int64]) -> Sums:
        """Where some of the coefficients alone may differ."""
        return self._replace(cross=self.cross[..., columns])


class Components(NamedTuple):
    variance: Numbers  # (q,) D
    dispersion: float  # phi

    @property
    def freedom(self) -> Numbers:
        """(q,) D / phi: the inverse of what is added to the second derivative of a sum of losses."""
        return self.variance / self.dispersion


def columns_that_differ(pull: Numbers, diagonal: Numbers, offset: bool) -> NDArray[np.int64]:
    """The columns that may differ, the offset, which is the last, always: those of the largest sums over
    clients of r_ij^2 / A_jj, which are 1 each where clients are alike."""
    q = pull.shape[1]
    slopes = q - offset
    if slopes <= MOST_SLOPES:
        return np.arange(q)
    differ = np.sum(pull**2, axis=0) / np.maximum(diagonal.sum(axis=0), np.finfo(float).tiny)
    most = np.argsort(-differ[:slopes], kind="stable")[:MOST_SLOPES]
    return np.append(np.sort(most), [slopes] if offset else []).astype(np.int64)


def start(expansion: Expansion, fixed: bool) -> Components:
    """Clients whose rows say of a coefficient about as much as the others do."""
    curvature = float(expansion.bend.sum())
    phi = 1.0 if fixed else float(expansion.squares.sum()) / curvature if curvature > 0 else 0.0
    diagonal = np.einsum("cjj->cj", expansion.curvature).mean(axis=0)
    known = diagonal > 0
    return Components(np.where(known, phi / np.where(known, diagonal, 1.0), 0.0), phi)


def components(
    expansion: Expansion,
    offset: bool,
    fixed: bool,
    parameters: float,
    begin: Components | None = None,
    steps: int = _STEPS,
    least_change: float = _LEAST_CHANGE,
    prior: float = _PRIOR,
) -> Components:
    """D and phi.

    Args:
        expansion: of the clients.
        offset: whether the last column is the offset, which has no prior.
        fixed: whether phi is 1, as of a log-likelihood.
        parameters: of the shared model, which the same rows were trained on.
        begin: components near by.
        steps, least_change: how long it goes on, and to which relative change.
        prior: clients that each slope's component is held at the mean with.

    Returns:
        The components; 0 for coefficients that no rows say anything of.
    """
    if len(expansion.rows) > _ENOUGH_CLIENTS:
        expansion = expansion.at(slice(None, None, -(-len(expansion.rows) // _ENOUGH_CLIENTS)))
    found = start(expansion, fixed) if begin is None else begin
    variance, phi = found
    if not phi > 0:
        return Components(np.zeros_like(variance), 1.0)
    slopes = np.arange(len(variance)) < len(variance) - offset
    diagonal = np.einsum("cjj->cj", expansion.curvature).mean(axis=0)
    most = np.where(diagonal > 0, _FREE / np.where(diagonal > 0, diagonal, 1.0), 0.0)
    bend = expansion.bend.sum() / expansion.rows.sum()
    for _ in range(steps):
        change, told, parts = _step(expansion, np.sqrt(variance / phi))
        squares = np.sum(change**2, axis=0)
        total = np.where(slopes, told, 0.0).sum()
        mean = np.where(slopes, squares, 0.0).sum() / total if total > 0 else 0.0
        held = np.where(slopes, prior, 0.0)
        weight = told + held
        after = np.where(weight > 0, (squares + held * mean) / np.where(weight > 0, weight, 1.0), 0.0)
        if not fixed:
            left = expansion.squares.sum() + (bend * parts if expansion.exact else 0.0)
            free = expansion.rows.sum() - told.sum() - parameters
            phi = max(float(left / (bend * max(free, 1.0))), 0.0)
        after = np.minimum(after, phi * most)
        moved = np.abs(after - variance).max(initial=0.0) > least_change * after.max(initial=0.0)
        variance = after
        if not moved or not phi > 0:
            break
    return Components(variance, phi) if phi > 0 else Components(np.zeros_like(variance), 1.0)


def _step(expansion: Expansion, scale: Numbers) -> tuple[Numbers, Numbers, float]:
    """(changes (c, q), T (q,), what they add to sums of squared slopes by a unit of mean curvature) at
    L = diag(scale)."""
    q, count = len(scale), len(expansion.rows)
    together = max(1, _TOGETHER // q**2)
    changes, shares = np.empty((count, q)), np.zeros((q, q))
    parts = [slice(begin, begin + together) for begin in range(0, count, together)]

    def share_of(part: slice) -> tuple[Numbers, Numbers]:
        scaled = scale[:, None] * expansion.curvature[part] * scale
        inverse = np.linalg.inv(scaled + np.eye(q))
        return np.asarray(np.eye(q) - inverse), np.asarray(inverse)

    kept = []
    for part in parts:
        share, inverse = share_of(part)
        changes[part] = scale * np.einsum("cij,cj->ci", inverse, scale * expansion.pull[part])
        shares += share.sum(axis=0)
        kept.append(share if len(parts) == 1 else None)
    told, root = np.diag(shares).copy(), np.linalg.pinv(shares, hermitian=True)
    for part, one in zip(parts, kept, strict=True):
        share = share_of(part)[0] if one is None else one
        told -= np.einsum("cij,jk,cki->i", share, root, share, optimize=True)
    moved = np.einsum("cij,cj->ci", expansion.curvature, changes)
    # The sum of (slope + curvature <z, u>)^2, the curvature counted as its mean over the rows.
    gained = np.sum((moved - 2 * expansion.pull) * changes)
    return changes, np.maximum(told, 0.0), float(gained)


def changes(expansion: Expansion, freedoms: Numbers) -> Numbers:
    """(c, P, q) the most probable changes (A_i + diag(1 / freedom))^-1 r_i, for each of freedoms (P, q)."""
    P, q = freedoms.shape
    found, together = np.empty((len(expansion.rows), P, q)), max(1, _TOGETHER // q**2)
    for begin in range(0, len(found), together):
        some = expansion.at(slice(begin, begin + together))
        for p, scale in enumerate(np.sqrt(freedoms)):
            scaled = scale[:, None] * some.curvature * scale + np.eye(q)
            solved = np.linalg.solve(scaled, (scale * some.pull)[..., None])
            found[begin : begin + together, p] = scale * solved[..., 0]
    return found


def common_change(expansion: Expansion, sums: Sums, freedom: Numbers, free: NDArray[np.bool_]) -> Numbers:
    """(d,) what is added to the shared model that both are around: the most probable common model of clients
    whose coefficients differ with this freedom (q,). Numbers that are not free (d,) stay as they are."""
    scale, (count, d, q) = np.sqrt(freedom), sums.cross.shape
    left, right = sums.curvature + sums.held, sums.pull.sum(axis=0) - sums.held @ sums.x
    together = max(1, _TOGETHER // max(d * q, 1))
    for begin in range(0, count, together):
        some = slice(begin, begin + together)
        factor = np.linalg.cholesky(scale[:, None] * expansion.curvature[some] * scale + np.eye(q))
        # K = L M^-1 L with M = F F', so that C K C' is the square of F^-1 L C'.
        across = np.linalg.solve(factor, (sums.cross[some] * scale).swapaxes(1, 2))  # (c, q, d)
        own = np.linalg.solve(factor, (scale * expansion.pull[some])[..., None])[..., 0]
        across = across.reshape(-1, d)
        left -= across.T @ across
        right -= across.T @ own.ravel()
    found = np.zeros(d)
    found[free] = solved(left[np.ix_(free, free)], right[free])
    return found


def moved(expansion: Expansion, sums: Sums, change: Numbers) -> Expansion:
    """The expansion of squared loss around the shared model with a change (d,); squares are shared out
    evenly, as their sum alone counts."""
    pull = expansion.pull - np.einsum("cdq,d->cq", sums.cross, change)
    # Of (y - s)^2 a squared slope is four times the loss.
    risen = 4 * (change @ sums.curvature @ change / 2 - sums.pull.sum(axis=0) @ change)
    squares = np.full(len(pull), max(float(expansion.squares.sum() + risen), 0.0) / len(pull))
    return expansion._replace(pull=pull, squares=squares)


def solved(matrix: Numbers, right: Numbers) -> Numbers:
    """matrix^-1 right for a matrix of second derivatives, directions without any left out."""
    size = np.sqrt(np.maximum(np.diag(matrix), 0.0))
    size = np.where(size > 0, size, 1.0)
    scaled = matrix / size / size[:, None] + ROUNDING * np.eye(len(matrix))
    over = right.T / size
    try:
        found = cho_solve(cho_factor(scaled, check_finite=False), over.T, check_finite=False)
    except np.linalg.LinAlgError:
        found = np.linalg.pinv(scaled, rcond=ROUNDING, hermitian=True) @ over.T
    return np.asarray((found.T / size).T)


def weights(expansion: Expansion, freedom: Numbers) -> Numbers:
    """(c,) how much of its own last coefficient a client keeps: from 0, that of the shared model, to 1."""
    scale, q = np.sqrt(freedom), len(freedom)
    found, together = np.empty(len(expansion.rows)), max(1, _TOGETHER // q**2)
    for begin in range(0, len(found), together):
        some = slice(begin, begin + together)
        scaled = scale[:, None] * expansion.curvature[some] * scale + np.eye(q)
        last = np.linalg.solve(scaled, np.broadcast_to(np.eye(q)[:, -1:], (len(scaled), q, 1)))
        found[some] = 1 - last[:, -1, 0]
    return found
