"""What training guarded against, in plain words: the radii, the cap on the weights, the worst mixture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bidro.fitting import Fitted
from bidro.guarantees.calibration import loss_has_kinks
from bidro.training import Choices

_REGRET = "The criterion is regret: what clients lose beyond what they could attain by themselves."
# Clients of the worst mixture that are named.
MOST_NAMED = 5


def chosen_in_words(settings: Mapping[str, Any]) -> dict[str, str]:
    """A sentence each on `radius`, `weights`, the `criterion` if it is regret, `curves` where they were asked
    for, and, for several clients, the `worst_mixture`.

    `settings` are those of a model: radii, client_weights and rows by client, radii None where there are no
    balls; cap, None where there is none; gap, None where the solution is not certified; the criterion;
    weights and price as they were asked for.
    """
    words = {"radius": _radius(settings), "weights": _weights(settings)}
    if settings["criterion"] == "regret":
        words["criterion"] = _REGRET
    if settings["paid"] is not None and len(settings["rows"]) > 1:
        words["price"] = _price(settings)
    if settings.get("curves") is not None:
        words["curves"] = _curves(settings)
    if settings["own"] is not None:
        words["own"] = _own(settings["own"], len(settings["rows"]))
    if len(settings["rows"]) > 1:
        words["worst_mixture"] = _worst_mixture(settings)
    return words


def _radius(settings: Mapping[str, Any]) -> str:
    radii = list(settings["radii"].values())
    if any(radius is None for radius in radii):
        return f"There is no radius: training used penalties. {settings['radius']}"
    low, high = min(radii), max(radii)
    if high == 0:
        return "The radius is 0: training did not guard against shift inside a client."
    size = (
        f"The radius is {low:.3g}" if math.isclose(low, high) else f"Radii are from {low:.3g} to {high:.3g}"
    )
    each = "each client" if low > 0 else "the clients whose radius is above 0"
    return f"{size}: training guarded against shift inside {each}, by so many standard deviations."


def _weights(settings: Mapping[str, Any]) -> str:
    cap = settings["cap"]
    if len(settings["rows"]) == 1:
        return "There is one client, so there is no mixture to guard against."
    if settings["blend"] < 1:
        return _blended(cap, settings["blend"])
    if cap is None:
        return "There is no cap: training guarded against any mixture of the clients."
    if cap == 1:
        return (
            "The cap is 1, so each client counts by its share of the rows: training did not guard against "
            "another mixture of the clients."
        )
    return (
        f"The cap is {cap:g}: training guarded against mixtures in which no client counts for more than "
        f"{cap:g} times its share of the rows."
    )


def _blended(cap: float | None, blend: float) -> str:
    held = "" if cap is None else f", none of it for more than {cap:g} times a client's share of the rows"
    return (
        f"Training guarded against mixtures in which up to {blend:.0%} of the weight goes to other clients "
        f"than by their rows{held}."
    )


def _price(settings: Mapping[str, Any]) -> str:
    paid = settings["paid"]
    before = "pooled training" + " with the same radius" * paid["same_radius"]
    if paid["pooled"] and settings["weights"] != "auto":
        radius = " with its radius" * paid["same_radius"]
        return f"The weights were fixed by rows: the shared model is pooled training{radius}."
    if paid["pooled"]:
        # At any price the lowest is taken, beyond chance or not.
        any_price = float(settings["price"]) == math.inf
        when = "whatever the price" if any_price else "beyond chance, within the price"
        return f"The shared model is that of {before}: no candidate was better for the worst clients {when}."
    mean, worst = paid["mean"], -paid["worst_decile"]
    cost = f"pays {mean:.1%} on average" if mean >= 0 else f"gains {-mean:.1%} on average"
    gain = f"gains {worst:.1%}" if worst >= 0 else f"pays {-worst:.1%}"
    return f"Against {before} it {cost}; the worst tenth of the clients {gain} (on rows left out)."


def curves_settings(fitted: Fitted, choices: Choices) -> dict[str, Any] | None:
    """The segments that were taken by feature, and the mean losses by which; None where there was nothing to
    choose."""
    choice, names = fitted.trained.segments, fitted.trained.problem.federation.columns[:-1]
    lines = {"segments": dict.fromkeys(names, 1), "left_out": [], "place": 0}
    if fitted.seen is None and choices.curves is not None and choices.cross_validates_radius:
        return {**lines, "for_the_radius": True}
    if fitted.seen is None and choices.curves is not None and loss_has_kinks(fitted.trained.problem.loss):
        return {**lines, "for_the_loss": True}
    if fitted.seen is None or choice is None:
        return None
    return {
        "segments": dict(zip(names, choice.basis.most_segments.tolist(), strict=True)),
        # Mean losses from the fewest segments to the most; none where segments were given.
        "left_out": choice.means.tolist(),
        "place": choice.place,
    }


def _curves(settings: Mapping[str, Any]) -> str:
    curves, tried = settings["curves"], settings["curves"]["left_out"]
    most = max(curves["segments"].values())
    if curves.get("for_the_radius"):
        return (
            "Every feature is a straight line, as the radius is cross-validated; give the radius, or numbers "
            "of segments, to have curves."
        )
    if curves.get("for_the_loss"):
        return (
            "Every feature is a straight line, as choosing curves takes long for a loss with kinks; give "
            "numbers of segments to have them."
        )
    if most == 1 and not tried:
        return "Every feature is a straight line: for curves there are too few rows, or too few values."
    if most == 1:
        return "Every feature is a straight line: no curves were better on rows left out by a standard error."
    count = sum(segments > 1 for segments in curves["segments"].values())
    words = f"{count} of {len(curves['segments'])} features are curves of up to {most} segments"
    if curves["place"] > 0:
        lower = 1 - tried[curves["place"]] / tried[0]
        words += f"; on rows left out the mean loss is {lower:.1%} below that of the fewest segments tried"
    bound = (
        ". With curves the certified risks are upper bounds of the worst cases inside clients"
        if max((radius or 0.0) for radius in settings["radii"].values()) > 0
        else ""
    )
    return f"{words}{bound}."


def _own(own: Mapping[str, Any], clients: int) -> str:
    count = len(own["clients"])
    if count == 0:
        return "No client gains by a model of its own: all use the shared one."
    what = "offset" if own["shrinkage"][1] is None else "correction of the model"
    who = "uses its" if count == 1 else "use their"
    return (
        f"{count} of {clients} clients {who} own {what}, which lowers the mean loss on rows left out by "
        f"{-own['mean']:.1%}; new clients get the shared model."
    )


def shrinkage_in_words(own: Mapping[str, Any]) -> str:
    """How strongly clients' own models are held at the shared one; `own` as in a model's settings."""
    offset, slopes = own["shrinkage"]
    if not own["clients"] or offset is None:
        return "none: every client uses the shared model"
    held = f"held at the shared model as strongly as by {offset:g} rows more that agree with it"
    if slopes is None:
        return f"an offset of its own, {held}; the coefficients are shared"
    return f"the offset is {held}, each coefficient as by {slopes:g} such rows"


def _worst_mixture(settings: Mapping[str, Any]) -> str:
    weights, rows = settings["client_weights"], settings["rows"]
    total = sum(rows.values())
    order = sorted(weights, key=lambda name: -weights[name])
    # Naming all but one would not be shorter than naming all.
    named = order if len(order) <= MOST_NAMED + 1 else order[:MOST_NAMED]
    parts = [f"{name} {weights[name]:.0%} ({rows[name] / total:.0%} of the rows)" for name in named]
    others = order[len(named) :]
    if others:
        parts.append(
            f"the other {len(others):,} clients {sum(weights[name] for name in others):.0%} together"
        )
    if settings["cap"] == 1:
        which = "The mixture of training"
    elif settings["gap"] is None:
        which = "The mixture at the end of training, which is not certified to be the worst"
    else:
        which = "The worst mixture of training"
    return f"{which}: {', '.join(parts)}."
