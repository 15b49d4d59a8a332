"""Many small minimax problems at once: the next model of every solve of a cross-validation.

Around a model x_hat each client's risk is taken for what it was there, its gradient and a curvature,

    r_i(z) = R_i + <G_i, z - z_hat> + stiffness / 2 (z - z_hat)' H_i (z - z_hat),   z = x or (x, nu(x)),

and the worst mixture of these, max over alpha in A of sum_i alpha_i r_i, is minimised over X. What is not
smooth in it is smoothed: the mixtures by an entropy, mu KL(alpha | shares), the norms in nu by
sqrt(||v||^2 + delta^2), their maximum by a softmax, and the edges of X by a logarithmic barrier. Each of
these changes the value by at most a stated unit, so that Newton's method, with the smoothing taken back step
by step, finds the minimum to a few units. All solves are arrays: (candidates, folds, ...), with one curvature
a candidate.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidro.losses.base import Cone
from bidro.sets.base import Constraints

Numbers = NDArray[np.float64]
Marks = NDArray[np.bool_]

# Smoothing is taken back by this factor whenever a step has become small beside it.
_LESS_SMOOTH = 6.0
_MOST_STEPS = 80
# Armijo's share of the promised fall. A step that falls short of it is shortened by powers of the second
# number, tried in such lots: a call for a few more of them costs little.
_ENOUGH, _SHORTER, _LOTS = 1e-4, 0.3, ((0, 1), (1, 4), (4, 9), (9, 25))
_ROUNDING = 1e-13
# Candidates that are done are set aside where fewer than this share go on.
_FEW = 0.75
# Curvature is raised by this share of what it is in the coordinate's own units.
_RIDGE = 1e-11
_TINY = float(np.finfo(float).tiny)


class Caps(NamedTuple):
    """Mixtures alpha = (1 - blend) shares + blend a with a_i <= kappa shares_i, for every candidate's kappa
    and blend."""

    shares: Numbers  # (n,)
    kappa: Numbers  # (candidates, 1, 1), inf for no cap
    blend: Numbers = np.ones((1, 1, 1))  # (candidates, 1, 1)

    def worst(self, risks: Numbers) -> Numbers:
        """(candidates, folds) max over alpha of <alpha, risks>, risks being (candidates, folds, n)."""
        order = np.argsort(-risks, axis=-1)
        most = np.minimum(self.kappa * self.shares[order], 1.0)
        filled = np.cumsum(most, axis=-1)
        alpha = self._blended(np.clip(1.0 - (filled - most), 0.0, most), self.shares[order])
        return np.asarray(np.sum(alpha * np.take_along_axis(risks, order, axis=-1), axis=-1))

    def _blended(self, a: Numbers, shares: Numbers) -> Numbers:
        return (1.0 - self.blend) * shares + self.blend * a

    def smoothed(self, risks: Numbers, mu: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """(max of <alpha, risks> - blend mu KL(a | shares), its alpha, what of it no cap or blend holds).

        a_i = shares_i min(kappa, exp(risks_i / mu - level)), with the level at which they sum to 1: the
        largest are held by their caps, and as many of them as make the rest fit under theirs.
        """
        logits = risks / mu[..., None]
        order = np.argsort(-logits, axis=-1)
        ordered, shares = np.take_along_axis(logits, order, axis=-1), self.shares[order]
        held = np.cumsum(shares, axis=-1) - shares  # shares of those before
        with np.errstate(divide="ignore", invalid="ignore"):
            left = np.where(held > 0, 1.0 - self.kappa * held, 1.0)
            rest = np.logaddexp.accumulate((ordered + np.log(shares))[..., ::-1], axis=-1)[..., ::-1]
            level = np.where(left > 0, rest - np.log(np.where(left > 0, left, 1.0)), -np.inf)
            fits = (left > 0) & (ordered - level <= np.log(self.kappa))
        # Without rounding there is always one that fits; else it is the last with anything left.
        last = np.maximum(np.sum(left > 0, axis=-1) - 1, 0)
        first = np.where(fits.any(axis=-1), fits.argmax(axis=-1), last)[..., None]
        level = np.take_along_axis(level, first, axis=-1)
        raised = np.minimum(logits - level, np.log(self.kappa))
        a = self.shares * np.exp(raised)
        a = np.where(self.kappa == 1, self.shares, a / a.sum(axis=-1, keepdims=True))
        free = (logits - level < np.log(self.kappa)) & (self.kappa > 1)
        entropy = self.blend * np.where(a > 0, a * np.log(np.maximum(a, _TINY) / self.shares), 0.0)
        alpha = self._blended(a, self.shares)
        value = np.sum(alpha * risks, axis=-1) - mu * np.sum(entropy, axis=-1)
        return value, alpha, self.blend * np.where(free, a, 0.0)

    @property
    def most_entropy(self) -> Numbers:
        """(candidates, 1) no KL(a | shares) is above it."""
        return np.log(np.minimum(self.kappa[..., 0], 1 / self.shares.min()))


class Steepness:
    """nu(x) = max over cones ||B x + b||; nothing where risks are not lifted."""

    def __init__(self, cones: tuple[Cone, ...]) -> None:
        self.count = len(cones)
        if cones:
            self.matrix = np.stack([cone.matrix for cone in cones])  # (cones, rows, d)
            self.offset = np.stack([cone.offset for cone in cones])
            squares = np.einsum("pri,prj->pij", self.matrix, self.matrix)
            self.squares = squares.reshape(self.count, -1)  # B' B

    @property
    def overshoot(self) -> float:
        """By how many times the smoothing nu can be above what it is."""
        return 1 + float(np.log(self.count))

    def at(self, x: Numbers) -> Numbers:
        """nu (...) of models (..., d)."""
        norms = np.linalg.norm(self.vectors(x), axis=-1)
        return np.asarray(norms.max(axis=-1))

    def lift(self, x: Numbers) -> Numbers:
        """z of models (..., d)."""
        return np.concatenate([x, self.at(x)[..., None]], axis=-1) if self.count else x

    def vectors(self, x: Numbers) -> Numbers:
        """B x + b (..., cones, rows) of models (..., d)."""
        return np.asarray(np.einsum("prd,...d->...pr", self.matrix, x) + self.offset)

    def norm_of(self, v: Numbers, delta: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """(nu (...), norms (..., cones), parts (..., cones) of them in the maximum) of v = B x + b, norms and
        their maximum smoothed over delta (...)."""
        norms = np.sqrt(np.sum(v**2, axis=-1) + delta[..., None] ** 2)
        top = norms.max(axis=-1, keepdims=True)
        parts = np.exp((norms - top) / delta[..., None])
        return top[..., 0] + delta * np.log(parts.sum(axis=-1)), norms, parts

    def smoothed(self, x: Numbers, delta: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """(nu, its gradient, its second derivative), smoothed over delta (...)."""
        v = self.vectors(x)
        nu, norms, parts = self.norm_of(v, delta)
        share = parts / parts.sum(axis=-1, keepdims=True)
        slopes = np.einsum("prd,...pr->...pd", self.matrix, v) / norms[..., None]
        gradient = np.einsum("...p,...pd->...d", share, slopes)
        d = x.shape[-1]
        second = ((share / norms) @ self.squares).reshape(*x.shape, d)
        spread = share * (1 / delta[..., None] - 1 / norms)
        second = second + np.swapaxes(slopes * spread[..., None], -1, -2) @ slopes
        second -= (gradient[..., :, None] / delta[..., None, None]) * gradient[..., None, :]
        return nu, gradient, second


class Local(NamedTuple):
    """What is known around the models x_hat; leading axes (candidates, folds)."""

    x: Numbers  # (..., d)
    risks: Numbers  # (..., n)
    gradient: Numbers  # (..., n, k)
    curvature: Numbers  # (candidates, n, k, k)
    stiffness: Numbers  # (...)
    unit: Numbers  # (...) what each smoothing may change the value by
    expected: Numbers  # (...) by how much the value may fall: smoothing begins there
    wanted: Marks  # (...) of the others nothing is asked


class Step(NamedTuple):
    x: Numbers  # (..., d) the next models
    predicted: Numbers  # (...) by how much the worst mixture of the r_i falls there


class _Place(NamedTuple):
    value: Numbers  # (...) smoothed, with the barrier
    risks: Numbers  # (..., n) the r_i
    alpha: Numbers
    giving: Numbers  # (..., n) what of alpha gives way to the risks
    slopes: Numbers  # (..., n, k) gradients of the r_i in z
    nu_gradient: Numbers
    nu_second: Numbers


class LocalMinimax:
    """min over x in X of max over alpha of sum_i alpha_i r_i(x), for all solves."""

    def __init__(self, caps: Caps, steepness: Steepness, limits: Constraints, local: Local) -> None:
        self.caps, self.steepness, self.limits, self.local = caps, steepness, limits, local
        self.z = steepness.lift(local.x)
        # Per unit of smoothing: mu, delta and the weight of the barrier.
        self.mu = local.unit / np.maximum(caps.most_entropy, 1.0)
        self.delta = np.ones_like(local.unit)
        if steepness.count:
            steepest = np.maximum(local.gradient[..., -1].max(axis=-1), _TINY)
            self.delta = np.minimum(local.unit / (steepest * steepness.overshoot), 1e3 + self.z[..., -1])
        edges = np.isfinite(limits.lower).sum() + np.isfinite(limits.upper).sum() + len(limits.norms)
        self.barrier = local.unit / max(int(edges), 1)

    def solve(self) -> Step:
        local = self.local
        found = x = self._inside(local.x)
        smooth = np.maximum(local.expected / np.maximum(local.unit, _TINY), 1.0)
        done, part, rows = ~local.wanted, self, np.arange(len(x))
        for _ in range(_MOST_STEPS):
            going: Marks = np.any(~done, axis=1)
            if going.sum() < _FEW * len(going):
                # Candidates that are done are set aside.
                found[rows] = x
                part, rows, x, smooth, done = (
                    part._of(going),
                    rows[going],
                    x[going],
                    smooth[going],
                    done[going],
                )
            place = part._at(x, smooth)
            gradient, second = part._derivatives(x, smooth, place)
            step = np.zeros_like(x)
            step[~done] = _newton(gradient[~done], second[~done])
            fall = np.maximum(-np.sum(gradient * step, axis=-1), 0.0)
            settled = fall <= 0.5 * smooth * part.local.unit
            done |= settled & (smooth <= 1)
            if done.all():
                break
            x = part._along(x, step, smooth, fall, done, place)
            smooth = np.where(settled, np.maximum(smooth / _LESS_SMOOTH, 1.0), smooth)
        found[rows] = x
        return Step(found, self._worst(local.x) - self._worst(found))

    def _of(self, candidates: Marks) -> LocalMinimax:
        """The solves of some candidates."""
        kappa, blend = (
            np.broadcast_to(limit, self.caps.kappa.shape)[candidates]
            for limit in (self.caps.kappa, self.caps.blend)
        )
        caps = self.caps._replace(kappa=kappa, blend=blend)
        local = {name: part[candidates] for name, part in self.local._asdict().items()}
        return LocalMinimax(caps, self.steepness, self.limits, Local(**local))

    def _inside(self, x: Numbers) -> Numbers:
        """Models at the edge of X, moved inside by a small share of its width."""
        lower, upper = self.limits.lower, self.limits.upper
        width = np.where(np.isfinite(upper - lower), upper - lower, 0.0)
        x = np.clip(x, lower + 1e-6 * width, upper - 1e-6 * width)
        for matrix, offset, radius in self.limits.norms:
            out = np.linalg.norm(x @ matrix.T + offset, axis=-1) / ((1 - 1e-6) * radius)
            middle = -np.linalg.lstsq(matrix, offset, rcond=None)[0]
            x = np.where((out > 1)[..., None], middle + (x - middle) / np.maximum(out, 1.0)[..., None], x)
        return np.asarray(x)

    def _bends(self, move: Numbers) -> Numbers:
        """(candidates, folds, n, k) stiffness H_i move."""
        C, n, k, _ = self.local.curvature.shape
        bent = self.local.curvature.reshape(C, n * k, k) @ np.swapaxes(move, 1, 2)
        return np.swapaxes(bent, 1, 2).reshape(C, -1, n, k) * self.local.stiffness[..., None, None]

    def _risks(self, move: Numbers) -> tuple[Numbers, Numbers]:
        """(r_i, their gradients in z) at z_hat + move."""
        bends = self._bends(move)
        risks = self.local.risks + ((self.local.gradient + 0.5 * bends) @ move[..., None])[..., 0]
        return risks, self.local.gradient + bends

    def _worst(self, x: Numbers) -> Numbers:
        return self.caps.worst(self._risks(self.steepness.lift(x) - self.z)[0])

    def _at(self, x: Numbers, smooth: Numbers) -> _Place:
        gradient = second = np.zeros(0)
        move = x - self.z[..., : x.shape[-1]]
        if self.steepness.count:
            nu, gradient, second = self.steepness.smoothed(x, smooth * self.delta)
            move = np.concatenate([move, (nu - self.z[..., -1])[..., None]], axis=-1)
        risks, slopes = self._risks(move)
        value, alpha, giving = self.caps.smoothed(risks, smooth * self.mu)
        value = value + smooth * self.barrier * self.barrier_at(x)
        return _Place(value, risks, alpha, giving, slopes, gradient, second)

    def barrier_at(self, x: Numbers) -> Numbers:
        """The logarithmic barrier (...) of models (..., d), inf outside X."""
        total = np.zeros(x.shape[:-1])
        with np.errstate(invalid="ignore", divide="ignore"):
            for distance in (self.limits.upper - x, x - self.limits.lower):
                total -= np.sum(np.where(np.isinf(distance), 0.0, np.log(distance)), axis=-1)
            for matrix, offset, radius in self.limits.norms:
                total -= np.log(radius**2 - np.sum((x @ matrix.T + offset) ** 2, axis=-1))
        return np.where(np.isnan(total), np.inf, total)

    def _derivatives(self, x: Numbers, smooth: Numbers, place: _Place) -> tuple[Numbers, Numbers]:
        """Gradient and second derivative in x of the smoothed worst mixture with its barrier."""
        alpha, slopes, local = place.alpha, place.slopes, self.local
        C, n, k, _ = local.curvature.shape
        d = x.shape[-1]
        of_z = (alpha[..., None, :] @ slopes)[..., 0, :]
        second = (alpha @ local.curvature.reshape(C, n, k * k)).reshape(*alpha.shape[:2], k, k)
        second = second * local.stiffness[..., None, None]
        weight = place.giving
        total = np.maximum(weight.sum(axis=-1), _TINY)
        middle = (weight[..., None, :] @ slopes) / total[..., None, None]
        apart = slopes - middle
        turning = np.swapaxes(apart * weight[..., None], -1, -2) @ apart
        second = second + turning / (smooth * self.mu)[..., None, None]
        gradient, in_x = of_z[..., :d], second[..., :d, :d]
        if self.steepness.count:
            slope, of_nu = place.nu_gradient, np.maximum(of_z[..., -1], 0.0)
            cross = second[..., :d, -1:] * slope[..., None, :]
            in_x = in_x + cross + np.swapaxes(cross, -1, -2)
            in_x = in_x + second[..., -1:, -1:] * slope[..., :, None] * slope[..., None, :]
            in_x = in_x + of_nu[..., None, None] * place.nu_second
            gradient = gradient + of_z[..., -1:] * slope
        weight = smooth * self.barrier
        up, down = 1 / (self.limits.upper - x), 1 / (x - self.limits.lower)
        gradient = gradient + weight[..., None] * (up - down)
        in_x = in_x.copy()
        in_x[..., np.arange(d), np.arange(d)] += weight[..., None] * (up**2 + down**2)
        for matrix, offset, radius in self.limits.norms:
            v = x @ matrix.T + offset
            room, pull = radius**2 - np.sum(v**2, axis=-1), v @ matrix
            share = 2 * weight / room
            gradient = gradient + share[..., None] * pull
            in_x = in_x + share[..., None, None] * (matrix.T @ matrix)
            in_x = in_x + (2 * share / room)[..., None, None] * pull[..., :, None] * pull[..., None, :]
        return gradient, in_x

    def _along(
        self, x: Numbers, step: Numbers, smooth: Numbers, fall: Numbers, done: Marks, place: _Place
    ) -> Numbers:
        """x + t step, with t shortened until the value falls enough."""
        rays = self._rays(x, step, smooth, ~done, place)
        here, fall = place.value[~done], fall[~done]
        t, waiting = np.zeros(len(fall)), np.arange(len(fall))
        for lot in _LOTS:
            tried = _SHORTER ** np.arange(*lot)
            each = np.repeat(waiting, len(tried))
            value = rays.only(each).value(self, np.tile(tried, len(waiting)))
            with np.errstate(invalid="ignore"):
                enough = here - _ENOUGH * tried[:, None] * fall + _ROUNDING * np.abs(here)
                found = value.reshape(-1, len(tried)) <= enough.T[waiting]
            any_ = found.any(axis=1)
            t[waiting[any_]] = tried[found.argmax(axis=1)[any_]]
            waiting = waiting[~any_]
            if len(waiting) == 0:
                break
        moved = x.copy()
        moved[~done] += t[:, None] * step[~done]
        return moved

    def _rays(self, x: Numbers, step: Numbers, smooth: Numbers, wanted: Marks, place: _Place) -> _Rays:
        d, k, zero = x.shape[-1], self.z.shape[-1], np.zeros((*x.shape[:-1], self.z.shape[-1] - x.shape[-1]))
        along = np.concatenate([step, zero], axis=-1)
        at, slopes, bent_along = place.risks, place.slopes, self._bends(along)
        if k > d:
            at, slopes = self._risks(np.concatenate([x - self.z[..., :d], zero], axis=-1))
        coefficients = [
            at,
            (slopes @ along[..., None])[..., 0],
            0.5 * (bent_along @ along[..., None])[..., 0],
        ]
        v = v_along = nu = np.zeros(wanted.shape)
        if k > d:
            bent_nu = 0.5 * self.local.curvature[:, None, :, -1, -1] * self.local.stiffness[..., None]
            coefficients += [slopes[..., -1], bent_along[..., -1], bent_nu]
            cones = self.steepness
            v, v_along, nu = cones.vectors(x), cones.vectors(step) - cones.offset, self.z[..., -1]
        parts = (x, step, smooth, np.stack(coefficients, axis=-2), v, v_along, nu)
        kappa, blend = (
            np.broadcast_to(limit[..., 0], wanted.shape) for limit in (self.caps.kappa, self.caps.blend)
        )
        units = (smooth * self.mu, smooth * self.delta, smooth * self.barrier, kappa, blend)
        return _Rays(*(part[wanted] for part in (*parts, *units)))


class _Rays(NamedTuple):
    """The smoothed values along x + t step, one ray a row: risks are quadratic in t and nu."""

    x: Numbers  # (rays, d)
    step: Numbers  # (rays, d)
    smooth: Numbers  # (rays,)
    coefficients: Numbers  # (rays, 3 or 6, n) of 1, t, t^2, and w, t w, w^2, w = nu - nu_hat
    v: Numbers  # (rays, cones, rows) B x + b
    v_along: Numbers  # (rays, cones, rows) B step
    nu: Numbers  # (rays,) nu_hat
    mu: Numbers  # (rays,)
    delta: Numbers  # (rays,)
    barrier: Numbers  # (rays,)
    kappa: Numbers  # (rays,)
    blend: Numbers  # (rays,)

    def only(self, some: NDArray[np.int64]) -> _Rays:
        return _Rays(*(part[some] for part in self))

    def value(self, of: LocalMinimax, t: Numbers) -> Numbers:
        """(rays,) at t (rays,)."""
        powers = [np.ones_like(t), t, t**2]
        if of.steepness.count:
            w = of.steepness.norm_of(self.v + t[:, None, None] * self.v_along, self.delta)[0] - self.nu
            powers += [w, t * w, w**2]
        risks = (np.stack(powers, axis=-1)[:, None, :] @ self.coefficients)[:, 0]
        caps = Caps(of.caps.shares, self.kappa[:, None], self.blend[:, None])
        value = caps.smoothed(risks, self.mu)[0]
        return value + self.barrier * of.barrier_at(self.x + t[:, None] * self.step)


def _newton(gradient: Numbers, second: Numbers) -> Numbers:
    """-second^-1 gradient, in units in which the diagonal is 1 and raised a little."""
    diagonal = np.einsum("...ii->...i", second)
    units = 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    scaled = second * units[..., :, None] * units[..., None, :]
    eye = np.eye(gradient.shape[-1])
    found = np.linalg.solve(scaled + _RIDGE * eye, (units * gradient)[..., None])[..., 0]
    return np.asarray(-units * found)
