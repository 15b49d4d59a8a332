"""What training was robust to and what that costs, as settings of a model and as sentences: radii, the
largest weight ratio, the worst mixture, clients' personal models; and why the model may be of little use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bidro.core.errors import listed
from bidro.fit.fitted import Fitted
from bidro.fit.settings import FitSettings
from bidro.fit.training import Trained, has_pooled
from bidro.selection.calibrate import Calibration
from bidro.selection.cross_validate import loss_has_kinks
from bidro.workflow.evaluation import verdict

_REGRET = "The criterion is regret: what clients lose beyond what they could attain by themselves."
# Clients of the worst mixture that are named.
MOST_NAMED = 5
# A model whose predictions vary by less than this share of what pooled training's do says little.
_HARDLY_VARIES = 0.5
# A mean loss, or a client's, above that of pooled training by more than this share is said.
_FAR_ABOVE = 0.05
_MOST_LOSING_NAMED = 3


def settings_summary(settings: Mapping[str, Any]) -> dict[str, str]:
    """A sentence each on `radius`, `weights`, the `criterion` if it is regret, `curves` where they were
    requested, and, for several clients, the `worst_mixture`.

    `settings` are those of a model: radii, client_weights and rows by client, radii None where there are no
    balls; max_weight_ratio, None where there is none; gap, None where the solution is not certified; the
    criterion; weights and max_cost as requested.
    """
    words = {"radius": _radius(settings), "weights": _weights(settings)}
    if settings["criterion"] == "regret":
        words["criterion"] = _REGRET
    if settings["robustness_cost"] is not None and len(settings["rows"]) > 1:
        words["robustness_cost"] = _robustness_cost(settings)
    if settings.get("curves") is not None:
        words["curves"] = _curves(settings)
    if settings.get("pairs") is not None:
        words["pairs"] = _pairs(settings["pairs"])
    if settings["personal"] is not None:
        words["personal"] = _personal(settings["personal"], len(settings["rows"]))
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
    ratio = settings["max_weight_ratio"]
    if len(settings["rows"]) == 1:
        return "There is one client, so there is no mixture to guard against."
    if settings["mixing"] < 1:
        return _mixed(ratio, settings["mixing"])
    if ratio is None:
        return "The weight ratio is not limited: training guarded against any mixture of the clients."
    if ratio == 1:
        return (
            "The largest weight ratio is 1, so each client counts by its share of the rows: training did not "
            "guard against another mixture of the clients."
        )
    return (
        f"The largest weight ratio is {ratio:g}: training guarded against mixtures in which no client counts "
        f"for more than {ratio:g} times its share of the rows."
    )


def _mixed(ratio: float | None, mixing: float) -> str:
    held = "" if ratio is None else f", none of it for more than {ratio:g} times a client's share of the rows"
    return (
        f"Training guarded against mixtures in which up to {mixing:.0%} of the weight goes to other clients "
        f"than by their rows{held}."
    )


def _robustness_cost(settings: Mapping[str, Any]) -> str:
    found = settings["robustness_cost"]
    before = "pooled training" + " with the same radius" * found["same_radius"]
    if found["pooled"] and settings["weights"] != "auto":
        radius = " with its radius" * found["same_radius"]
        return f"The weights were fixed by rows: the shared model is pooled training{radius}."
    if found["pooled"]:
        # At any cost the lowest is taken, beyond chance or not.
        any_cost = float(settings["max_cost"]) == math.inf
        when = "whatever it costs" if any_cost else "beyond chance, within the largest cost"
        return f"The shared model is that of {before}: no candidate was better for the worst clients {when}."
    mean, worst = found["mean"], -found["worst_decile"]
    cost = f"pays {mean:.1%} on average" if mean >= 0 else f"gains {-mean:.1%} on average"
    gain = f"gains {worst:.1%}" if worst >= 0 else f"pays {-worst:.1%}"
    return f"Against {before} it {cost}; the worst tenth of the clients {gain} (on rows left out)."


def curves_settings(fitted: Fitted, choices: FitSettings) -> dict[str, Any] | None:
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


def pairs_settings(fitted: Fitted) -> dict[str, Any] | None:
    """The pairs of features that were taken, and the mean losses by which; None where there were none to
    choose."""
    choice = fitted.trained.pairs
    if choice is None:
        return None
    columns = fitted.trained.problem.federation.columns
    names = [[columns[j] for j in pair.features] for pair in choice.pairs]
    return {"names": names, "counts": list(choice.counts), "left_out": choice.means.tolist()}


def _pairs(pairs: Mapping[str, Any]) -> str:
    count, tried = len(pairs["names"]), dict(zip(pairs["counts"], pairs["left_out"], strict=False))
    if not count:
        return "No pair of features was taken: none lowered the loss on rows left out by a standard error."
    named = ", ".join(" and ".join(one) for one in pairs["names"])
    what = "pair of features has effects" if count == 1 else "pairs of features have effects"
    words = f"{count} {what} that depend on each other: {named}"
    if count in tried and 0 in tried and tried[0] > 0:
        words += f"; on rows left out the mean loss is {1 - tried[count] / tried[0]:.1%} below that without"
    return f"{words}."


def _personal(personal: Mapping[str, Any], clients: int) -> str:
    count = len(personal["clients"])
    if count == 0:
        return "No client gains by a personal model: all use the shared one."
    what = "model" if any(personal.get("freedom", [1.0, 0.0])[:-1]) else "offset"
    who = "uses" if count == 1 else "use"
    return (
        f"{count} of {clients} clients {who} a personal {what}, which lowers the mean loss on rows left out "
        f"by {-personal['mean']:.1%}; new clients get the shared model."
    )


def personal_in_words(personal: Mapping[str, Any]) -> str:
    """How much clients differ, and how far their personal models follow them; `personal` as in a model's
    settings."""
    if not personal["clients"]:
        return "none: every client uses the shared model"
    if "freedom" not in personal:
        return "as an earlier version of bidro has held them at the shared model"
    unit = personal.get("unit") or ""
    parts = []
    if personal["level"]:
        parts.append(f"by {personal['level']:.3g}{unit and ' '}{unit} in their level")
    slopes = sorted(personal["slopes"].items(), key=lambda one: -one[1])[:MOST_NAMED]
    named = [f"{own:.3g} for {name}" for name, own in slopes]
    if named and any(personal["freedom"][:-1]):
        parts.append(f"in what a standard deviation of a feature changes: {', '.join(named)}")
    kept = sorted(personal["kept"].values())
    words = f"clients differ (one standard deviation) {'; '.join(parts)}" if parts else "clients differ"
    if kept and kept[-1] > 0:
        words += f"; of their own level they keep {kept[0]:.0%} to {kept[-1]:.0%}"
    return words


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
    if settings["max_weight_ratio"] == 1:
        which = "The mixture of training"
    elif settings["gap"] is None:
        which = "The mixture at the end of training, which is not certified to be the worst"
    else:
        which = "The worst mixture of training"
    return f"{which}: {', '.join(parts)}."


def robustness_cost(found: Calibration | None) -> dict[str, Any] | None:
    """By which share the mean loss rises, and the worst decile falls, against pooled training, on rows left
    out; whether that was chosen, and whether it has the same radius. None where it was not cross-validated.
    """
    if not has_pooled(found):
        return None
    mean, worst = found.means, found.worst_deciles
    return {
        "mean": _share(mean[found.place], mean[found.pooled]),
        "worst_decile": _share(worst[found.place], worst[found.pooled]),
        "pooled": found.place == found.pooled,
        "same_radius": bool(found.chosen.scale == 0 and found.radii.any()),
    }


def personal_settings(trained: Trained, unit: str = "") -> dict[str, Any] | None:
    """Who uses a personal model, held how strongly, and what that changes on rows left out."""
    if trained.personal is None:
        return None
    personal, federation = trained.personal, trained.problem.federation
    rows = federation.counted
    with_own = [(name, i) for i, name in enumerate(federation.names) if personal.adopts[i]]
    columns = [*federation.columns[:-1], None][: len(personal.deviation)]
    return {
        "scale": personal.scale,
        "unit": unit,  # of scores
        "freedom": personal.freedom.tolist(),
        "newcomers": personal.newcomers.tolist(),
        "clients": [name for name, _ in with_own],
        # Standard deviations between clients, in the target's unit, or in log-odds: of the level, and of the
        # slope of every feature, a standard deviation of it.
        "level": float(personal.deviation[-1]) if None in columns else None,
        "slopes": {
            name: float(own)
            for name, own in zip(columns, personal.deviation, strict=True)
            if name is not None and own > 0
        },
        # How much of its own level a client keeps: 0 is the shared one, 1 its own.
        "kept": {name: float(personal.own[i]) for name, i in with_own},
        "mean": _share(float(rows @ personal.used), float(rows @ personal.shared)),
    }


def concerns(fitted: Fitted) -> list[str]:
    """Sentences on what may make the model of little use: it hardly varies, it is far worse on average than
    pooled training, or some clients lose much by it."""
    found = []
    if fitted.varies is not None and fitted.varies < _HARDLY_VARIES:
        found.append(
            f"This model hardly varies: its predictions spread {fitted.varies:.0%} as much as those of "
            "pooled training, so it says nearly the same to everybody. Allow a lower cost, or use fixed "
            "weights."
        )
    cost = robustness_cost(fitted.trained.calibration)
    if cost is not None and cost["mean"] > _FAR_ABOVE:
        found.append(
            f"The shared model's mean loss is {cost['mean']:.0%} above that of pooled training, on rows left "
            "out in cross-validation. With a lower largest cost it is less."
        )
    losing = _losing(fitted)
    if losing:
        named = listed([f"'{name}' ({share:+.0%})" for name, share in losing], _MOST_LOSING_NAMED)
        found.append(f"On held-out rows these clients are served worse than by pooled training: {named}.")
    return found


def _losing(fitted: Fitted) -> list[tuple[str, float]]:
    """Clients with a loss above that of pooled training beyond chance, by which share, largest first."""
    found = []
    for name, change in (fitted.changes or {}).items():
        personal, used = change.personal, fitted.evaluation[name].personal
        before = used - personal.mean
        if before > 0:
            share = personal.mean / before
            if share > _FAR_ABOVE and verdict(personal, before) == "loses":
                found.append((name, share))
    return sorted(found, key=lambda one: -one[1])


def _share(after: float, before: float) -> float:
    return float(after / before - 1) if before else 0.0
