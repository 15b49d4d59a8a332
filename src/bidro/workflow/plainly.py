"""How well a model does, for people: typical errors in the target's own unit, shares of right predictions.

A typical error is a mean loss brought back to the unit of the target (`registry.Entry.typical`), so that a
bound of the one is a bound of the other. For classes there is the share of right predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bidro.fitting.beside import Guess
from bidro.fitting.fitted import ClientLoss
from bidro.guarantees.certificate import Certificate
from bidro.guarantees.held_out import HeldOut
from bidro.losses import registry
from bidro.losses.linear import Pinball, Squared
from bidro.workflow.fit import Fit

Typical = Callable[[float], float]

# What is promised, the statement that is of the models in use first.
_OF_CLASSES = ("own_mistakes", "mistakes")
_STATED = (*_OF_CLASSES, "own", "clipped", "held_out")
# A mean loss with noise that is below so many of its standard errors cannot be told from none.
_TOLD = 2.0
# Losses of which a largest one is that of one error.
CUT_ERRORS = ("squared", "absolute")


def plainly(fit: Fit, judged: Mapping[str, Any]) -> dict[str, Any] | None:
    """None where a loss has no such measure, or nothing is known of it.

    `measure` is "error" or "right". `models` has over all rows what the models in use, the shared model,
    pooled training and one guess for everybody come to, as far as known, and `clients` the same by client
    (`guess_kept_out` says whether the guess is judged on rows kept out; `of_people` whether all of it is of
    means of people, not of rows). `guess` is what is guessed. `untold`
    has by client what a typical error is less than where privacy's noise does not let more be told.
    """
    entry, classes = registry.entry_of(fit.model.loss), fit.model.schema.classes
    rows = np.array([one.rows for one in fit.judged.values()], float)
    guess = fit.beside.guess
    losses = {name: np.asarray(own) for name, own in fit.beside.costs.items()}
    if (classes is not None and not losses) or (classes is None and entry.typical is None):
        return None
    if not losses:  # sites tell them clipped
        clients = judged["clients"].values()
        losses = {
            "own": np.array([one["own"] for one in clients]),
            "shared": np.array([one["loss"] for one in clients]),
        }
        if judged["pooled"] is not None:
            losses["pooled"] = np.array([one["pooled"] for one in clients])
    own = fit.model.settings["own"]
    if own is None or not own["clients"]:
        losses.pop("own", None)
    counted = dict.fromkeys(losses, rows)
    if guess is not None:
        losses["guess"] = guess.costs
        counted["guess"] = rows if guess.kept_out else np.asarray(fit.certificate.rows, float)
    names = list(fit.judged)
    return {
        "measure": "error" if classes is None else "right",
        "words": entry.typical_words if classes is None else "the share of right predictions",
        "models": {
            name: _plain(fit, float(np.average(cost, weights=counted[name]))) for name, cost in losses.items()
        },
        "clients": {
            client: {name: _plain(fit, float(cost[i])) for name, cost in losses.items()}
            for i, client in enumerate(names)
        },
        "untold": _untold(fit),
        "of_people": fit.beside.of_units,
        "guess": None if guess is None else _guessed(fit, guess),
        "guess_kept_out": None if guess is None else guess.kept_out,
    }


def untold(judged: Mapping[str, ClientLoss], largest: float) -> dict[str, float]:
    """By client what its mean loss is less than, where its standard error is so large that it cannot be told
    from none: the loss and twice that error, and no more than any loss counts as."""
    return {
        name: min(one.loss + _TOLD * one.se, largest)
        for name, one in judged.items()
        if one.se is not None and one.loss < _TOLD * one.se
    }


def _untold(fit: Fit) -> dict[str, float]:
    """The same as typical errors, of a fit with privacy budgets."""
    part = fit.certificate.clipped
    if fit.certificate.privacy is None or part is None:
        return {}
    return {name: _plain(fit, most) for name, most in untold(fit.judged, part.largest).items()}


def _plain(fit: Fit, cost: float) -> float:
    """A mean loss as an error, a share of mistakes as one of right predictions."""
    typical = registry.entry_of(fit.model.loss).typical
    if fit.model.schema.classes is not None:
        return 1 - cost
    assert typical is not None
    return float(typical(cost))


def _guessed(fit: Fit, guess: Guess) -> dict[str, Any]:
    """What is guessed: `kind` is "mean", "median", "quantile" or "class", and `value` a number or a class."""
    loss, classes = fit.model.loss, fit.model.schema.classes
    if classes is not None:
        assert loss.labels is not None
        return {"kind": "class", "value": str(classes[list(loss.labels).index(guess.value)])}
    kind = "mean" if isinstance(loss, Squared) else "quantile" if isinstance(loss, Pinball) else "median"
    return {"kind": kind, "value": guess.value + fit.model.standard.middle}


def plain_promise(found: Certificate, typical: Typical | None, cuts_errors: bool) -> dict[str, Any] | None:
    """What a certificate promises of the models in use for every admissible mixture, in the same measure.

    typical: how a mean loss is brought to the unit of the target; None where it is not.
    cuts_errors: whether a largest loss is that of one error.

    `of` names the statement; `bound` is the largest error or the smallest share of right predictions, None
    where there are too few rows, which `shortage` then says, and how many would do; `largest` the error that
    any counts as at the most, None where nothing is cut. `binding` is the client that sets it, with so many
    `rows` (or units) kept out; `enough` with the same mean would bring its bound half way to that mean, None
    where no number does. With `units` it is all of a mean of people, and `over_rows` has in the same measure
    that of rows: what was `observed` at the worst client, and its `bound`, None where there is none; it is
    itself None where it is not known. None where nothing of this kind is stated.
    """
    names = _STATED if typical is not None else _OF_CLASSES
    stated: list[tuple[str, HeldOut]] = [
        (name, one) for name in names if (one := getattr(found, name)) is not None
    ]
    if not stated:
        return None
    of, part = stated[0]
    content: dict[str, Any] = {
        "of": of,
        "bound": None,
        "largest": None,
        "shortage": None,
        "binding": part.binding,
        "rows": part.rows[part.binding],
        "enough": part.enough,
        "units": part.units,
        "over_rows": None,
    }
    if part.vacuous:
        return content | {"shortage": part.shortage}

    def plain(cost: float) -> float:
        return 1 - cost if part.mistakes or typical is None else typical(cost)

    if (beside := part.over_rows) is not None:
        bound = None if beside.bound is None else plain(beside.bound)
        content["over_rows"] = {"observed": plain(beside.largest_mean), "bound": bound}
    if part.mistakes or typical is None:
        return content | {"bound": 1 - part.bound}
    cut = typical(part.largest) if part.clipped and cuts_errors else None
    return content | {"bound": typical(part.bound), "largest": cut}
