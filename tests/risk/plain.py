"""Risks by their formulas, in extended precision, without any code of bidro: what oracles are held against.

A loss is given by its word, its knots and its intercept; a roughness or pseudo-rows by the matrix of the
quadratic form that they add.
"""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np

Wide = np.longdouble


class Stated(NamedTuple):
    """One client's risk over some rows."""

    word: str  # squared, logistic, huber (threshold 1), softmax (3 classes)
    knots: tuple[tuple[float, ...], ...]  # of every feature
    intercept: bool
    scale: np.ndarray  # (features,) of moves
    rows: np.ndarray  # (N, features + 1)
    eps: float
    form: np.ndarray  # (d, d): x' form x is added to the mean loss
    room: float = 0.0  # added to the mean loss under the root of squared loss, which smooths an exact fit

    @property
    def classes(self) -> int:
        return 3 if self.word == "softmax" else 1

    @property
    def segments(self) -> list[int]:
        return [len(own) + 1 for own in self.knots]

    def design(self) -> np.ndarray:
        """(N, columns): what each segment of a curve that is 0 at 0 contributes to a value."""
        columns = []
        for value, knots in zip(self.rows[:, :-1].T, self.knots, strict=True):
            ends = [-np.inf, *knots, np.inf]
            for low, high in pairwise(ends):
                at = np.clip(np.asarray(value, Wide), low, high)
                columns.append(at - np.clip(Wide(0), low, high))
        return np.stack(columns, axis=1)

    def matrices(self) -> np.ndarray:
        """(classes, N, d) what a model is multiplied with for the score of each class."""
        design, K = self.design(), self.classes
        q = design.shape[1]
        found = np.zeros((K, len(design), K * q + K * self.intercept), Wide)
        for k in range(K):
            found[k, :, k * q : (k + 1) * q] = design
            if self.intercept:
                found[k, :, K * q + k] = 1
        return found

    def pairs(self, x: np.ndarray) -> list[tuple[Wide, np.ndarray, bool]]:
        """Of one predictor or of every pair of classes: (norm, its slope (d,), whether a row moves by it)."""
        q, labels = sum(self.segments), set(self.rows[:, -1])
        each = [(0, None)] if self.classes == 1 else list(combinations(range(3), 2))
        found = []
        for one, other in each:
            w = np.asarray(x[one * q : (one + 1) * q], Wide)
            if other is not None:
                w = w - np.asarray(x[other * q : (other + 1) * q], Wide)
            norm, slope = self._norm(w)
            full = np.zeros(len(x), Wide)
            full[one * q : (one + 1) * q] = slope
            if other is not None:
                full[other * q : (other + 1) * q] = -slope
            found.append((norm, full, other is None or one in labels or other in labels))
        return found

    def _norm(self, w: np.ndarray) -> tuple[Wide, np.ndarray]:
        """The l2 norm, over features, of the steepest slope in units of the scale."""
        tops, places, begin = [], [], 0
        for size, scale in zip(self.segments, self.scale, strict=True):
            place = begin + int(np.argmax(np.abs(w[begin : begin + size])))
            tops.append(w[place] / Wide(scale))
            places.append(place)
            begin += size
        norm = np.sqrt(np.sum(np.square(tops)))
        slope = np.zeros(len(w), Wide)
        slope[places] = np.asarray(tops) / np.asarray(self.scale, Wide) / norm
        return norm, slope

    def at(self, x: np.ndarray, lifted: bool, nu: Wide | None = None) -> tuple[Wide, np.ndarray, np.ndarray]:
        """(value, gradient (k,), Hessian (k, k)) in z = (x, nu) where lifted, at nu(x) or another nu."""
        x, d = np.asarray(x, Wide), len(x)
        mean, slope, bend = self._mean(x)
        form = np.asarray(self.form, Wide)
        mean, slope, bend = mean + x @ form @ x, slope + 2 * form @ x, bend + 2 * form
        pairs = self.pairs(x)
        nu = max(norm for norm, *_ in pairs) if nu is None else nu
        gradient, hessian = np.zeros(d + lifted, Wide), np.zeros((d + lifted,) * 2, Wide)
        if self.word == "squared":
            rmse = np.sqrt(mean + Wide(self.room))
            of_rmse, bent = slope / (2 * rmse), bend / (2 * rmse) - np.outer(slope, slope) / (4 * rmse**3)
            root = rmse + self.eps * nu
            of_root = np.append(of_rmse, np.full(int(lifted), self.eps))
            hessian[:d, :d] = 2 * root * bent
            return root**2, 2 * root * of_root, hessian + 2 * np.outer(of_root, of_root)
        gradient[:d], hessian[:d, :d] = slope, bend
        if all(moves for *_, moves in pairs):
            if lifted:
                gradient[d] = self.eps
            return mean + self.eps * nu, gradient, hessian
        # Classes that no row is of: the norm over the others, which is no function of nu.
        norm, along, _ = max((pair for pair in pairs if pair[2]), key=lambda pair: pair[0])
        gradient[:d] += self.eps * along
        return mean + self.eps * norm, gradient, hessian

    def _mean(self, x: np.ndarray) -> tuple[Wide, np.ndarray, np.ndarray]:
        """(mean loss, its gradient, its Hessian)."""
        matrices, y, N = self.matrices(), np.asarray(self.rows[:, -1], Wide), len(self.rows)
        scores = matrices @ x  # (classes, N)
        if self.word == "softmax":
            shares = np.exp(scores - scores.max(axis=0))
            shares /= shares.sum(axis=0)
            own = y.astype(int)
            loss = -np.log(shares[own, np.arange(N)])
            slopes = shares - (np.arange(3)[:, None] == own)
            bends = np.einsum("kn,kl->kln", shares, np.eye(3, dtype=Wide)) - shares[:, None] * shares
        else:
            u = y * scores[0] if self.word == "logistic" else scores[0] - y
            if self.word == "squared":
                loss, slope, bend = u**2, 2 * u, 2 + 0 * u
            elif self.word == "huber":
                inside = np.abs(u) <= 1
                loss, slope = np.where(inside, u**2 / 2, np.abs(u) - Wide(1) / 2), np.clip(u, -1, 1)
                bend = inside.astype(Wide)
            else:
                loss, slope = np.log1p(np.exp(-u)), -y / (1 + np.exp(u))
                bend = 1 / ((1 + np.exp(u)) * (1 + np.exp(-u)))
            slopes, bends = slope[None], bend[None, None]
        gradient = np.einsum("kn,knd->d", slopes, matrices) / N
        hessian = np.einsum("kln,knd,lne->de", bends, matrices, matrices) / N
        return loss.mean(), gradient, hessian
