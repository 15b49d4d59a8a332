"""What robustness costs and brings, and what to be said of a model that may be of little use."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bidro.fitting import Fitted
from bidro.fitting.fitted import Change
from bidro.guarantees.calibration import Calibration
from bidro.training import Trained, has_pooled

# A model whose predictions vary by less than this share of what pooled training's do says little.
_HARDLY_VARIES = 0.5
# A mean loss, or a client's, above that of pooled training by more than this share is said.
_FAR_ABOVE = 0.05
# A client's loss is said to be higher only beyond so many standard errors of the difference.
_ERRORS = 2.0
# And only by more than this share of it: what is less is rounding, or what a solver leaves.
_TOLD_APART = 1e-6
_MOST_NAMED = 3


def paid(found: Calibration | None) -> dict[str, Any] | None:
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


def own_settings(trained: Trained) -> dict[str, Any] | None:
    """Who uses a model of its own, held how strongly, and what that changes on rows left out."""
    if trained.own is None:
        return None
    own, federation = trained.own, trained.problem.federation
    rows = federation.counted
    used = np.where(own.adopts, own.own, own.shared)
    return {
        "shrinkage": [None if math.isinf(part) else part for part in own.shrinkage],
        "newcomers": [None if math.isinf(part) else part for part in own.newcomers],
        "clients": [name for name, adopts in zip(federation.names, own.adopts, strict=True) if adopts],
        "mean": _share(float(rows @ used), float(rows @ own.shared)),
    }


def verdict(change: Change, before: float) -> str | None:
    """Whether a client "gains" or "loses" against its loss `before`, of pooled training, beyond chance and
    rounding; None where neither."""
    if change.se is None or abs(change.mean) <= max(_ERRORS * change.se, _TOLD_APART * abs(before)):
        return None
    return "loses" if change.mean > 0 else "gains"


def concerns(fitted: Fitted) -> list[str]:
    """Sentences on what may make the model of little use: it hardly varies, it is far worse on average than
    pooled training, or some clients lose much by it."""
    found = []
    if fitted.varies is not None and fitted.varies < _HARDLY_VARIES:
        found.append(
            f"This model hardly varies: its predictions spread {fitted.varies:.0%} as much as those of "
            "pooled training, so it says nearly the same to everybody. Allow a lower price, or use fixed "
            "weights."
        )
    cost = paid(fitted.trained.calibration)
    if cost is not None and cost["mean"] > _FAR_ABOVE:
        found.append(
            f"On average the shared model loses {cost['mean']:.0%} more than pooled training, on rows left "
            "out in cross-validation; weights chosen within a lower price lose less."
        )
    losing = _losing(fitted)
    if losing:
        named = ", ".join(f"'{name}' ({share:+.0%})" for name, share in losing[:_MOST_NAMED])
        more = f" and {len(losing) - _MOST_NAMED} more" if len(losing) > _MOST_NAMED else ""
        found.append(f"On rows kept out these clients lose more than under pooled training: {named}{more}.")
    return found


def _losing(fitted: Fitted) -> list[tuple[str, float]]:
    """Clients with a loss above that of pooled training beyond chance, by which share, largest first."""
    found = []
    for name, change in (fitted.changes or {}).items():
        own, used = change.own, fitted.judged[name].own
        before = used - own.mean
        if before > 0:
            share = own.mean / before
            if share > _FAR_ABOVE and verdict(own, before) == "loses":
                found.append((name, share))
    return sorted(found, key=lambda one: -one[1])


def _share(after: float, before: float) -> float:
    return float(after / before - 1) if before else 0.0
