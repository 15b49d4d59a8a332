"""Rows from their exact second moments, where they are recorded to a few decimals: lattice reduction.

Let A (n, m) hold the rows of a set as whole numbers, with a column of ones, and G = A'A their second moments.
For whole u the vector A u is whole, and G tells its length u'G u. Where the columns of A span all of Z^n, as
m > n of them mostly do, reduction of G finds for every row i a u with u'G u = 1: then A u is plus or minus
the unit vector of i, and G u = A'(A u) is plus or minus the row itself. No more of A is needed.

Sums (m, m) of a set of rows are those of (features, target, 1) times its transpose, in agreed units: those of
a difference of two sets are the difference of their sums.
"""

from itertools import combinations

import numpy as np

# Lovasz' condition; above the second a coefficient is reduced further; steps of a reduction at the most.
_DELTA, _ETA, _STEPS = 0.99, 0.501, 60_000
# Sums of whole numbers that are further than this from whole ones are not told exactly.
_WHOLE = 0.3


def reduced(gram):
    """(U, H): whole vectors U (r, m), as rows, and H = U G U', the products of a reduced basis of the lattice
    that is spanned by vectors with products G (m, m), which may depend on each other; None where G turns out
    to be no such matrix."""
    order = np.argsort([int(one) for one in np.diag(gram)], kind="stable")
    m = size = len(order)
    u = np.array([[int(j == k) for j in range(m)] for k in order], dtype=object)
    h = gram[np.ix_(order, order)]
    r, mu = np.zeros((m, m)), np.zeros((m, m))
    k = 0
    for _ in range(_STEPS):
        if k == size:
            return u, h
        _size_reduce(u, h, r, mu, k)
        if h[k, k] <= 0:
            # It depends on the others.
            rest = [j for j in range(size) if j != k]
            u, h, size = u[rest], h[np.ix_(rest, rest)], size - 1
            continue
        if k and r[k, k] < (_DELTA - mu[k, k - 1] ** 2) * r[k - 1, k - 1]:
            # To the first place where it is shorter than what is there.
            place, left = 0, float(h[k, k])
            while place < k - 1 and _DELTA * r[place, place] <= left:
                left -= mu[k, place] * r[k, place]
                place += 1
            turned = [*range(place), k, *range(place, k), *range(k + 1, size)]
            u, h, k = u[turned], h[np.ix_(turned, turned)], place
            continue
        k += 1
    return None


def _size_reduce(u, h, r, mu, k):
    """Take whole multiples of the vectors before it off vector k, and work out its coefficients."""
    for _ in range(100):
        for j in range(k):
            r[k, j] = float(h[k, j]) - mu[j, :j] @ r[k, :j]
            mu[k, j] = r[k, j] / r[j, j]
        r[k, k] = float(h[k, k]) - mu[k, :k] @ r[k, :k]
        if k == 0 or np.abs(mu[k, :k]).max() <= _ETA:
            return
        left = mu[k, :k].copy()
        for j in range(k - 1, -1, -1):
            if times := int(np.rint(left[j])):
                left[:j] -= times * mu[j, :j]
                u[k] -= times * u[j]
                h[k] -= times * h[j]
                h[:, k] -= times * h[:, j]


def whole_rows(gram):
    """(rows (found, m) that are in the set, guesses (..., m)) from whole second moments (m, m), the last
    column of which is of ones: what is found is taken off, and the rest reduced again."""
    gram = np.array([[int(one) for one in row] for row in gram], dtype=object)
    rows, guesses = set(), np.zeros((0, len(gram)))
    while gram[-1, -1] > 0:
        found, guesses = _single_rows(gram)
        if not found:
            break
        rows |= set(found)
        for row, copies in found.items():
            gram = gram - copies * np.outer(np.array(row, dtype=object), np.array(row, dtype=object))
    return np.array(sorted(rows), float).reshape(-1, len(gram)), guesses


def _single_rows(gram):
    """({row: its copies}, guesses) from one reduction.

    Unit vectors are looked for among short vectors and their sums, and, as columns may span every second
    point of Z^n alone, among the halves of these. A row with c copies is a vector of length c, and G u is c
    times the row. Any other short vector is a few rows with small weights, and a guess at the row that has
    most of it.
    """
    basis = reduced(gram)
    if basis is None:
        return {}, np.zeros((0, len(gram)))
    (u, h), found, guesses = basis, {}, []

    def take(vector, length):
        row = gram.dot(vector)
        times = abs(row[-1])
        is_one = length == times or (times == 2 and length == 4)
        if times and is_one and all(one % times == 0 for one in row):
            found[tuple(int(one // row[-1]) for one in row)] = times if length == times else 1
        elif times:
            guesses.append([float(one) / float(row[-1]) for one in row])

    for place, vector in enumerate(u):
        take(vector, h[place, place])
    if not found:
        for i, j in combinations(range(len(u)), 2):
            for sign in (1, -1):
                take(u[i] + sign * u[j], h[i, i] + h[j, j] + 2 * sign * h[i, j])
    return found, np.array(guesses, float).reshape(-1, len(gram))


def rows_from_moments(sums, scale, centre):
    """(rows that are in the set, guesses), both (..., m - 1) in steps of each column, from sums (m, m) over
    them in agreed units, of which a column's numbers are `scale` steps wide and `centre` steps from 0."""
    nearest = np.rint(centre)
    turn = np.diag(np.append(scale, 1.0))
    turn[:-1, -1] = centre - nearest
    whole = turn @ sums @ turn.T
    if np.abs(whole - np.rint(whole)).max() > _WHOLE or np.linalg.eigvalsh(whole)[0] < -len(whole):
        return np.zeros((0, len(scale))), np.zeros((0, len(scale)))
    rows, guesses = whole_rows(np.rint(whole))
    return rows[:, :-1] + nearest, guesses[:, :-1] + nearest


def sums_from_gradients(models, gradients, losses, rows):
    """Sums over a set of rows from mean squared losses (models,) and their gradients (models, d) at models
    (models, d), the intercept last: gradients are linear in the model, so that d + 1 of them tell all."""
    models, gradients = np.asarray(models), np.asarray(gradients)
    d = models.shape[1]
    both = np.column_stack([models, -np.ones(len(models))])
    told = np.linalg.lstsq(both, gradients / 2, rcond=None)[0]
    products, with_target = (told[:d] + told[:d].T) / 2, told[d]
    squares = losses - np.sum(models @ products * models, axis=1) + 2 * models @ with_target
    return rows * _with_target(products, with_target, np.median(squares))


def sums_from_losses(models, losses, rows):
    """The same from losses at (d + 1) (d + 2) / 2 models alone, of which they are a quadratic function."""
    models = np.asarray(models)
    v = np.column_stack([models, -np.ones(len(models))])
    i, j = np.triu_indices(v.shape[1])
    told = np.linalg.lstsq(np.where(i == j, 1, 2) * v[:, i] * v[:, j], losses, rcond=None)[0]
    whole = np.zeros((v.shape[1], v.shape[1]))
    whole[i, j] = whole[j, i] = told
    return rows * _with_target(whole[:-1, :-1], whole[:-1, -1], whole[-1, -1])


def _with_target(products, with_target, squares):
    """Means of (features, target, 1) times its transpose from those of (features, 1)."""
    whole = np.block([[products, with_target[:, None]], [with_target[None], np.array([[squares]])]])
    order = [*range(len(products) - 1), len(products), len(products) - 1]
    return whole[np.ix_(order, order)]


def sums_from_moments(mean, around, rows):
    """Sums over a set from its mean (m - 1,) and its second moments (m - 1, m - 1) around it."""
    z = np.append(mean, 1.0)
    whole = np.outer(z, z)
    whole[:-1, :-1] += around
    return rows * whole


def left_out(trained):
    """Sums (folds, m, m) over the rows of each fold, from those over all rows but these."""
    trained = np.asarray(trained)
    return trained.sum(axis=0) / (len(trained) - 1) - trained
