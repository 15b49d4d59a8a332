"""The models that a fit could give, side by side: what `bidro fit` ends with.

Each is evaluated on the same rows, in the measure that the page leads with (`page_content.headline`): a
typical error in the target's own unit, or the share of right predictions. One guess for everybody is what
they are held against.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from bidro.losses import registry
from bidro.selection.rule import MAX_COST, worst_decile
from bidro.workflow.evaluation import side_by_side
from bidro.workflow.fit import Fit
from bidro.workflow.page_content import CUT_ERRORS, headline, plain_promise

# What people want of the shared model, and the largest cost that each stands for: see `FitSettings.max_cost`.
PREFERENCES = {"mean": 0.0, "balanced": MAX_COST, "worst": math.inf}
# In the order of the table.
_NAMES = {
    "guess": "one guess for everybody",
    "pooled": "pooled training",
    "robust": "robust to any mix",
    "shared": "the shared model",
    "personal": "each client's own model",
}


class Offered(NamedTuple):
    """One model, in the measure of the table."""

    name: str
    overall: float  # over all rows
    worst: float  # over the worst tenth of the clients, of few clients the worst
    in_folder: bool


class Offer(NamedTuple):
    """All of them, the guess for everybody first."""

    title: str  # what is measured
    right: bool  # whether that is a share of right predictions, of which more is better
    clients: int
    models: tuple[Offered, ...]
    rare: str | None = None  # of a rare class, how well it is told from the other


def offer_of(fit: Fit, evaluated: Mapping[str, Any]) -> Offer | None:
    """The models that a fit could give, with what `evaluation` says of it; None for a loss that has no
    measure for people, or where nothing is known of it."""
    found = headline(fit, evaluated)
    if found is None or not found["models"]:
        return None
    right, calibration, shared = found["measure"] == "right", fit.trained.calibration, "shared"
    if calibration is not None and calibration.place == calibration.pooled and "pooled" in found["models"]:
        shared = "pooled"
    elif found["robust_in_use"] and "robust" in found["models"]:
        shared = "robust"
    models = []
    for name, words in _NAMES.items():
        if name not in found["models"] or (name == "shared" != shared):
            continue
        each = np.array([one[name] for one in found["clients"].values()])
        worst = float(-worst_decile(-each) if right else worst_decile(each))
        models.append(Offered(words, found["models"][name], worst, name in (shared, "personal")))
    unit = fit.model.schema.target_unit
    title = "Right predictions" if right else "Typical error" + (f" in {unit}" if unit else "")
    return Offer(title, right, len(fit.evaluation), tuple(models), _rare_words(found["rare"]))


def _rare_words(found: Mapping[str, Any] | None) -> str | None:
    if found is None:
        return None
    return (
        f"'{found['class']}' is rare ({found['share']:.1%} of the rows): the area under the curve of the "
        f"models in use is {found['area']:.3f}, and among the tenth of the rows that they find likeliest it "
        f"is {found['lift']:.1f} times as frequent as among all."
    )


def in_words(offer: Offer, on: str) -> str:
    """The table as text; `on` are the rows that all of it is of."""
    rows = [(*one[:3], "in the folder" * one.in_folder) for one in offer.models]
    table = side_by_side(f"{offer.title}, on {on}", offer.right, offer.clients, rows)
    return "\n".join([*([] if offer.rare is None else [offer.rare]), *table])


def why(fit: Fit) -> str:
    """Which shared model is in the folder, why, and how to have another."""
    found = fit.trained.calibration
    if found is None or fit.options.weights != "auto":
        return "The shared model was trained for the weights that were given."
    wanted = next((word for word, cost in PREFERENCES.items() if cost == found.max_cost), None)
    if found.place == found.pooled:
        others = {
            "mean": "as you prefer; `--prefer balanced` or `--prefer worst` guard against other mixes.",
            "worst": "as no other model serves the worst-served clients better.",
        }
        return "The shared model is pooled training, " + others.get(
            str(wanted),
            f"as no other serves the worst-served clients better, beyond chance, for at most "
            f"{found.max_cost:.0%} on average; `--prefer worst` takes the most robust one all the same.",
        )
    if wanted == "worst":
        return (
            "The shared model is the most robust one, as you prefer; `--prefer balanced` heeds its cost, too."
        )
    return (
        "The shared model is robust: its worst-served clients gain more than the mean pays, beyond chance; "
        "`--prefer mean` takes pooled training instead, `--prefer worst` the most robust one."
    )


def promise(fit: Fit) -> str | None:
    """What is promised of the models in use: of rows, or where these are elsewhere of a typical error. None
    where nothing of the kind is stated."""
    if fit.model.schema.survival is not None:
        return None
    entry, certificate = registry.entry_of(fit.model.loss), fit.certificate
    if certificate.of_rows is not None:
        return certificate.of_rows.in_words(fit.model.schema.target_unit or "")
    found = plain_promise(certificate, entry.typical, entry.word in CUT_ERRORS)
    if found is None:
        return None
    level = f"{100 * certificate.confidence:.4g}% confidence"
    if found["bound"] is None:
        return f"Too few rows to promise anything with {level}: {found['shortage']}."
    if fit.model.schema.classes is not None:
        return f"With {level}, whatever the mix of these clients, at least {found['bound']:.1%} is right."
    unit = "" if fit.model.schema.target_unit is None else f" {fit.model.schema.target_unit}"
    cut = (
        ""
        if found["largest"] is None
        else f", where an error above {found['largest']:.3g}{unit} counts as that"
    )
    most = f"{found['bound']:.3g}{unit}{cut}"
    return f"With {level}, whatever the mix of these clients, the typical error is at most {most}."
