"""`Certificate`: all that is stated about one model, as one immutable object that can be kept and shown.

Three statements, each with the sentence that says what it promises, or why it is absent:
- the interval of the out-of-sample theorem (any shift within explicit radii, sampling error, any mixture);
- the held-out bound (sampling error, any mixture; no shift inside a client): of the mean loss, where the
  support bounds it; of the mean loss with each loss counted as at most the largest on the training rows,
  which is far tighter where the support is wide; and for classes of the share of mistakes;
- a held-out bound with room for a chosen shift inside every client.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from bidro.client import Client
from bidro.errors import BidroError
from bidro.federation import Federation
from bidro.guarantees.held_out import Bound, HeldOut, held_out, shifted, shifted_squared
from bidro.guarantees.on_support import largest_loss, support_lipschitz
from bidro.guarantees.out_of_sample import Interval, certify
from bidro.guarantees.radius import coverage_obstacle
from bidro.losses import Squared
from bidro.problem import Problem
from bidro.sets import CappedSimplex, Simplex

FORMAT, VERSION = "bidro certificate", 1


@dataclass(frozen=True)
class Shift:
    """The clipped held-out bound if every client's distribution moves by at most `radius` in W_p after the
    rows were drawn."""

    radius: float
    bound: float
    promise: str


@dataclass(frozen=True)
class Certificate:
    """See the module's docstring. Clients are in the order of `names`."""

    confidence: float
    names: tuple[str, ...]
    rows: tuple[int, ...]  # that the interval rests on
    empirical: tuple[float, ...]  # mean losses on these rows
    mixtures: str  # the admissible ones, in words
    interval: Interval | None
    held_out: HeldOut | None
    clipped: HeldOut | None  # losses counted as at most the largest on the training rows
    mistakes: HeldOut | None  # the share of wrong predictions, for losses with labels
    shift: Shift | None
    absent: Mapping[str, str]  # why a statement is not made, by its name
    balls: str  # what the radii that the model was trained with stand for

    @property
    def binding(self) -> str:
        """The client that counts most in the worst mixture (by empirical risk where there is no interval)."""
        weights = self.empirical if self.interval is None else self.interval.alpha
        return self.names[int(np.argmax(weights))]

    def __str__(self) -> str:
        return _table(self)

    def to_json(self) -> str:
        content = {"format": FORMAT, "version": VERSION, **_plain(self)}
        return json.dumps(content, indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """Raises BidroError for text that is no certificate of this version."""
        try:
            content = json.loads(text)
        except ValueError as error:
            raise BidroError(f"This is not a certificate: it cannot be read as JSON ({error}).") from error
        if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
            raise BidroError(f"This is not a certificate: there is no format '{FORMAT}' in it.")
        if (version := content.pop("version", None)) != VERSION:
            raise BidroError(f"This certificate is of version {version}; this program reads {VERSION}.")
        return _restored(content)


def certificate(
    problem: Problem,
    x: ArrayLike,
    confidence: float = 0.95,
    kept_out: Mapping[str, ArrayLike] | None = None,
    *,
    shift: float | None = None,
    delta: float | None = None,
    split: Literal["equal", "smallest largest"] = "equal",
    bound: Bound = "betting",
) -> Certificate:
    """Everything that can be stated about the model `x` with this confidence (each statement by itself).

    `problem` holds the clients' rows, the metric and the mixtures; `kept_out` rows (N_i, m) of the same
    clients that training never saw. What cannot be stated is absent with a reason. Set the problem's mixtures
    to those that statements are to cover, not to a calibrated cap.
    """
    federation, model = problem.federation, jnp.asarray(np.asarray(x, float))
    absent: dict[str, str] = {}
    interval = held = clipped = mistakes = room = None
    fresh = None if kept_out is None else _fresh_rows(federation, kept_out)
    if (why := interval_obstacle(problem, x)) is None:
        interval = certify(problem, x, confidence, delta, split)
    else:
        absent["interval"] = why
    if fresh is None:
        absent["held_out"] = absent["clipped"] = "no rows were kept out of training."
    else:
        losses = {name: np.asarray(problem.loss.values(model, rows)) for name, rows in fresh.items()}
        # Fixed before the rows kept out were seen.
        seen = float(jnp.max(problem.loss.values(model, federation.samples)))
        clipped = held_out(losses, confidence, seen, problem.weights, bound, clipped=True)
        if (top := largest_loss(problem, x)) is None:
            absent["held_out"] = (
                "no declared support bounds the loss, so rare large ones cannot be ruled out."
            )
        else:
            held = held_out(losses, confidence, top, problem.weights, bound)
        if problem.loss.labels is not None:
            wrong = {name: np.asarray(problem.loss.mistakes(model, rows)) for name, rows in fresh.items()}
            mistakes = held_out(wrong, confidence, 1.0, problem.weights, "clopper-pearson")
    slope = shift_slope(problem, model)
    if shift is None:
        absent["shift"] = "no shift radius was chosen."
    elif clipped is None:
        absent["shift"] = f"room for shift is added to a held-out bound, and {absent['clipped']}"
    elif slope is None:
        absent["shift"] = "the slope of this loss on the support is not known; declare a box."
    else:
        room = _with_shift(problem, clipped, shift, slope)
    return Certificate(
        confidence,
        federation.names,
        federation.sizes,
        tuple(float(v) for v in _client_means(problem, model)),
        mixtures_in_words(problem),
        interval,
        held,
        clipped,
        mistakes,
        room,
        MappingProxyType(absent),
        ball_promise(problem),
    )


def interval_obstacle(problem: Problem, x: ArrayLike) -> str | None:
    """Why the out-of-sample theorem says nothing of this model; None where it does."""
    why = coverage_obstacle(problem.federation, problem.transport)
    if why is not None:
        return why
    try:
        support_lipschitz(problem, x)
    except BidroError as error:
        return str(error)
    return None


def ball_promise(problem: Problem) -> str:
    """What the balls that a model was trained with stand for."""
    if problem.eps is None:
        return "Trained without Wasserstein balls around the clients' samples."
    radii = np.asarray(problem.eps)
    size = f"Trained with radii from {radii.min():.4g} to {radii.max():.4g}: robustness to shift"
    why = coverage_obstacle(problem.federation, problem.transport)
    if why is not None:
        return f"{size}, without coverage of the true distribution: {why}"
    return f"{size}; coverage is stated for the explicit radii of the interval only."


def shift_slope(problem: Problem, x: Array) -> float | None:
    """What a shift of 1 in W_p does to the loss at most, or for squared loss with p >= 2 to its root; None
    where it is not known."""
    loss, transport = problem.loss, problem.transport
    if isinstance(loss, Squared) and transport.p >= 2:
        return float(loss.dual_norm(x, transport.inverse_scale))
    try:
        return support_lipschitz(problem, x)
    except BidroError:
        return None


def mixtures_in_words(problem: Problem) -> str:
    weights = problem.weights
    if isinstance(weights, Simplex):
        return "any mixture of the clients"
    if isinstance(weights, CappedSimplex):
        return "mixtures within the declared bounds of each client's weight, if the true one is among them"
    return "mixtures within the declared distance of a centre, if the true one is among them"


def _with_shift(problem: Problem, held: HeldOut, shift: float, slope: float) -> Shift:
    squared = isinstance(problem.loss, Squared) and problem.transport.p >= 2
    bound = (shifted_squared if squared else shifted)(held, slope, shift)
    return Shift(
        shift,
        bound,
        f"With confidence {held.confidence:g} the mean loss, each counted as at most {held.largest:.6g}, "
        f"stays at most {bound:.6g} if, after the rows were drawn, every client's distribution moves by at "
        f"most {shift:g} in the metric of the problem.",
    )


def _fresh_rows(federation: Federation, kept_out: Mapping[str, ArrayLike]) -> dict[str, Array]:
    if set(kept_out) != set(federation.names):
        missing = sorted(set(federation.names) - set(kept_out))
        unknown = sorted(set(kept_out) - set(federation.names))
        raise BidroError(
            "Rows kept out must be of the clients of the problem: "
            + (f"there are none of '{missing[0]}'." if missing else f"there is no client '{unknown[0]}'.")
        )
    ordered = {name: kept_out[name] for name in federation.names}
    fresh = Federation.from_arrays(ordered, federation.support, federation.columns)
    return {name: fresh.client_samples(name) for name in fresh.names}


def _client_means(problem: Problem, x: Array) -> Array:
    clients = problem.clients

    def one(client: Client) -> Array:
        return client.rows.mean(client.inner.loss.values, x)

    return jax.vmap(one, in_axes=(clients.client_axes(),))(clients)


def _table(found: Certificate) -> str:
    """A few statements and a line a client."""
    lines = [f"Certificate at confidence {found.confidence:g}, for {found.mixtures}"]
    statements = {
        "Wasserstein": ("interval", found.interval and _interval_line(found.interval)),
        "Held out": ("held_out", found.held_out and f"true loss at most {found.held_out.bound:.6g}"),
        "Clipped": ("clipped", found.clipped and _clipped_line(found.clipped)),
        "With shift": ("shift", found.shift and _shift_line(found.shift)),
    }
    for title, (name, line) in statements.items():
        lines.append(f"  {title:<12} {line or 'absent: ' + found.absent[name]}")
    if found.mistakes is not None:
        lines.append(f"  {'Mistakes':<12} at most {found.mistakes.bound:.2%} of predictions")
    head = f"  {'client':<16} {'rows':>8} {'mean loss':>10}"
    head += "".join(f" {title:>10}" for title in _columns(found))
    lines.append(head)
    for i, name in enumerate(found.names):
        line = f"  {name[:16]:<16} {found.rows[i]:>8,} {found.empirical[i]:>10.4g}"
        line += "".join(f" {values[i]:>10.4g}" for values in _columns(found).values())
        lines.append(line + (" *" if name == found.binding else ""))
    lines.append("  * counts most in the worst mixture")
    if found.interval is not None:
        lines.append(f"  {found.interval.advice}")
    return "\n".join(lines)


def _columns(found: Certificate) -> dict[str, list[float]]:
    columns: dict[str, list[float]] = {}
    if found.interval is not None:
        columns["radius"] = found.interval.radii.tolist()
        columns["robust"] = found.interval.risks.tolist()
    if found.clipped is not None:
        columns["clipped"] = [found.clipped.clients[name] for name in found.names]
    return columns


def _clipped_line(held: HeldOut) -> str:
    return f"true loss at most {held.bound:.6g}, each counted as at most {held.largest:.6g}"


def _shift_line(shift: Shift) -> str:
    return f"clipped loss at most {shift.bound:.6g} under a shift of {shift.radius:g}"


def _interval_line(interval: Interval) -> str:
    return (
        f"true loss in [{interval.lower:.6g}, {interval.upper:.6g}] "
        f"(sampling {interval.sampling:.3g}, heterogeneity {interval.heterogeneity:.3g})"
    )


def _plain(value: Any) -> Any:
    """Dataclasses, mappings, arrays and numbers as JSON holds them; None for an infinite end."""
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, np.ndarray | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value.item() if isinstance(value, np.integer) else value


def _restored(content: dict[str, Any]) -> Certificate:
    try:
        part = content["interval"]
        interval = None
        if part is not None:
            ends = {end: -math.inf if part[end] is None else part[end] for end in ("lower", "paper_lower")}
            arrays = {name: np.asarray(part[name], float) for name in ("radii", "risks", "alpha")}
            interval = Interval(**{**part, **ends, **arrays, "names": tuple(part["names"])})
        held, clipped, mistakes = (
            None if content[name] is None else HeldOut(**content[name])
            for name in ("held_out", "clipped", "mistakes")
        )
        found = Certificate(
            float(content["confidence"]),
            tuple(map(str, content["names"])),
            tuple(map(int, content["rows"])),
            tuple(map(float, content["empirical"])),
            str(content["mixtures"]),
            interval,
            held,
            clipped,
            mistakes,
            None if content["shift"] is None else Shift(**content["shift"]),
            MappingProxyType({str(name): str(why) for name, why in content["absent"].items()}),
            str(content["balls"]),
        )
        # Whatever is missing or of another kind shows when it is written out again.
        found.to_json()
        str(found)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise BidroError(f"This certificate is damaged: {type(error).__name__}, {error}.") from error
    return found
