"""What the report page shows, as plain JSON: see `report.page`. Of a run, and of a model that was not trained
here: how that was trained, its coefficients, its worst case and what robustness cost are not known, and these
parts of the page are left out.

`headline` says how well a model does, for people: typical errors in the target's own unit, shares of right
predictions. A typical error is a mean loss brought back to the unit of the target (`registry.Entry.typical`),
so that a bound of the one is a bound of the other. For classes there is the share of right predictions.

`drawn_curves` has each column's share of the prediction, as a function of it: of a number a curve (or a line)
over its own units, or one for each level of a category that it has curves by; of a category one bar a level.
Where the rows are here, it is known where they lie, and how much a column matters is how much its share
varies over them; else it is how much it varies over values that are normal around the agreed centre, and over
levels that are all as frequent.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import ndtri

import bidro
from bidro.certify.certificate import Certificate, of_procedure
from bidro.certify.held_out import HeldOut, Paired
from bidro.certify.row_promise import RowPromise
from bidro.core.arrays import Floats, split_by_sizes
from bidro.data.federation import Federation
from bidro.data.given_rows import by_client
from bidro.data.standardise import Standard
from bidro.data.tables import Schema
from bidro.fit.baselines import Guess
from bidro.fit.fitted import FEWEST_DESCRIBED, ClientLoss
from bidro.fit.training import has_pooled
from bidro.losses import registry
from bidro.losses.linear import Pinball, Squared
from bidro.losses.log_link import Tweedie
from bidro.model.model_file import Model
from bidro.model.predictor import Curve, Predictor
from bidro.model.summary import bands_of
from bidro.selection.calibrate import Calibration
from bidro.selection.personalise import PersonalChoice
from bidro.selection.rule import worst_decile
from bidro.workflow.certify import Columns, ScoredRows
from bidro.workflow.evaluation import evaluation
from bidro.workflow.fit import Fit, radii_of
from bidro.workflow.options import LEVELS
from bidro.workflow.settings_summary import personal_in_words
from bidro.workflow.survival import survival_evaluation

Typical = Callable[[float], float]

# What is promised, the statement that is of the models in use first.
_OF_CLASSES = ("personal_mistakes", "mistakes")
_STATED = (*_OF_CLASSES, "personal", "clipped", "held_out")
# A mean loss with noise that is below so many of its standard errors cannot be distinguished from 0.
_DISTINCT = 2.0
_RIGHT = "the share of right predictions"
# Losses of which a largest one is that of one error.
CUT_ERRORS = ("squared", "absolute")
# A class with at most this share of the rows is rare: nearly all predictions are right that never say it.
_RARE = 0.15
# Of fewer rows than this nothing leads: one of them would move it by too much.
_FEWEST_RARE = 10
# The quantiles of clients' rows that are shown.
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
# Places of a normal distribution over which a share varies where rows are not here.
_PLACES = 101
# Of so many clients, those with the most rows, their own curves are drawn.
_MOST_OWN = 24
# How sure the bands around curves are.
_BANDS = 0.95


def headline(fit: Fit, evaluated: Mapping[str, Any]) -> dict[str, Any] | None:
    """None where a loss has no such measure, or nothing is known of it.

    `measure` is "error" or "right". `models` has over all rows what the models in use, the shared model,
    pooled training and one guess for everybody come to, as far as known, and `clients` the same by client
    (`guess_held_out` says whether the guess is evaluated on held-out rows; `of_people` whether all of it is
    of means of people, not of rows; `robust_in_use` whether the shared model is the most robust one).
    `guess` is what is guessed. `hidden_by_noise` has by client what a typical error is less than where
    privacy's noise hides more.
    """
    entry, classes = registry.entry_of(fit.model.loss), fit.model.schema.classes
    rows = np.array([one.rows for one in fit.evaluation.values()], float)
    if fit.model.schema.survival is not None:
        return None  # that a period passes without the event is right nearly always
    guess, typical = fit.baselines.guess, entry.typical if classes is None else None
    losses = {name: np.asarray(own) for name, own in fit.baselines.costs.items()}
    if typical is None and (not losses or not (classes or entry.by_errors)):
        return None
    if entry.by_errors:
        typical = float
    if not losses:  # sites report them clipped
        clients = evaluated["clients"].values()
        parts = {"personal": "personal", "shared": "loss"} | (
            {} if evaluated["pooled"] is None else {"pooled": "pooled"}
        )
        losses = {name: np.array([one[part] for one in clients]) for name, part in parts.items()}
    personal = fit.model.settings["personal"]
    if personal is None or not personal["clients"]:
        losses.pop("personal", None)
    counted = dict.fromkeys(losses, rows)
    if guess is not None:
        losses["guess"] = guess.costs
        counted["guess"] = rows if guess.held_out else np.asarray(fit.certificate.rows, float)
    plain, clipped = _for_people(typical), fit.certificate.clipped
    bounded = {}
    if fit.certificate.privacy is not None and clipped is not None:
        bounded = hidden_by_noise(fit.evaluation, clipped.largest)
    return {
        "measure": "error" if classes is None else "right",
        "words": entry.typical_words if classes is None else _RIGHT,
        "models": {
            name: plain(float(np.average(cost, weights=counted[name]))) for name, cost in losses.items()
        },
        "clients": {
            client: {name: plain(float(cost[i])) for name, cost in losses.items()}
            for i, client in enumerate(fit.evaluation)
        },
        "hidden_by_noise": {name: plain(most) for name, most in bounded.items()},
        "of_people": fit.baselines.of_people,
        "guess": None if guess is None else _guessed(fit, guess),
        "guess_held_out": None if guess is None else guess.held_out,
        "rare": _rare(fit, losses),
        "robust_in_use": fit.trained.shares_robust,
    }


def _rare(fit: Fit, known: Mapping[str, Any]) -> dict[str, Any] | None:
    """Where one of two classes has few of the rows, how well the models in use tell it from the other; None
    where none is rare, or rows are elsewhere."""
    rankings, classes, labels = fit.baselines.rankings, fit.model.schema.classes, fit.model.loss.labels
    if not rankings or classes is None or labels is None:
        return None
    used = rankings["personal" if "personal" in known else "shared"]
    if used.share > _RARE or used.rows < _FEWEST_RARE:
        return None
    pooled = rankings.get("pooled")
    return {
        "class": str(classes[list(labels).index(used.label)]),
        "share": used.share,
        "area": used.area,
        "lift": used.lift,
        "pooled_area": None if pooled is None else pooled.area,
    }


def _for_people(typical: Typical | None) -> Typical:
    """From a mean loss to a typical error; where there is none, from a share of mistakes to one of right
    predictions."""
    return (lambda cost: 1 - cost) if typical is None else (lambda cost: float(typical(cost)))


def hidden_by_noise(evaluated: Mapping[str, ClientLoss], largest: float) -> dict[str, float]:
    """By client what its mean loss is less than, where its standard error is so large that it cannot be
    distinguished from 0: the loss and twice that error, and no more than any loss counts as."""
    return {
        name: min(one.loss + _DISTINCT * one.se, largest)
        for name, one in evaluated.items()
        if one.se is not None and one.loss < _DISTINCT * one.se
    }


def _guessed(fit: Fit, guess: Guess) -> dict[str, Any]:
    """What is guessed: `kind` is "mean", "median", "quantile" or "class", and `value` a number or a class."""
    loss, classes = fit.model.loss, fit.model.schema.classes
    if classes is not None:
        assert loss.labels is not None
        return {"kind": "class", "value": str(classes[list(loss.labels).index(guess.value)])}
    if isinstance(loss, Tweedie):
        return {"kind": "mean", "value": float(loss.predicted(guess.value))}
    kind = "mean" if isinstance(loss, Squared) else "quantile" if isinstance(loss, Pinball) else "median"
    return {"kind": kind, "value": guess.value + fit.model.standard.middle}


def plain_promise(found: Certificate, typical: Typical | None, cuts_errors: bool) -> dict[str, Any] | None:
    """What a certificate promises of the models in use for every admissible mixture, in the same measure.

    typical: how a mean loss is brought to the unit of the target; None where it is not.
    cuts_errors: whether a largest loss is that of one error.

    `of` names the statement; `bound` is the largest error or the smallest share of right predictions, None
    where there are too few rows, which `shortage` then says, and how many would do; `largest` the error that
    any counts as at the most, None where nothing is cut. `binding` is the client that sets it, with so many
    held-out `rows` (or people); `enough` with the same mean would bring its bound half way to that mean, None
    where no number does. With `people` it is all of a mean of people, and `over_rows` has in the same measure
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
        "people": part.people,
        "over_rows": None,
    }
    if part.vacuous:
        return content | {"shortage": part.shortage}

    by_class = part.mistakes or typical is None
    plain = _for_people(None if by_class else typical)
    if (over_rows := part.over_rows) is not None:
        bound = None if over_rows.bound is None else plain(over_rows.bound)
        content["over_rows"] = {"observed": plain(over_rows.largest_mean), "bound": bound}
    cut = plain(part.largest) if part.clipped and cuts_errors and not by_class else None
    return content | {"bound": plain(part.bound), "largest": cut}


def page_content(fit: Fit) -> dict[str, Any]:
    model, trained = fit.model, fit.trained
    entry = registry.entry_of(model.loss)
    evaluated = evaluation(fit.evaluation, fit.changes)
    loss = entry.in_words, entry.unit_in(model.schema.measure)
    survival = model.schema.survival is not None
    content = {
        **_head(model.schema, model.schema.classes, loss, model.settings["created"], fit.certificate),
        "version": model.versions["bidro"],
        "target_unit": model.schema.target_unit,
        "rows": sum(fit.certificate.rows),
        "held_out_rows": fit.held_out_rows,
        "procedure": fit.certificate.procedure,
        "criterion": model.settings["criterion"],
        "chosen": model.settings["chosen"],
        "concerns": model.settings["concerns"],
        "robustness_cost": model.settings["robustness_cost"],
        "varies": model.settings["varies"],
        "settings": _settings(fit),
        "features": _features(model),
        "curves": drawn_curves(model, _quantiles(fit), bands_of(fit, model.schema.features, _BANDS)),
        "intercept": _one_or_list(
            model.coefficients[1] if model.predictor().straight else model.predictor().base
        ),
        "solver": {
            "rounds": trained.rounds,
            "gap": trained.gap,
            "method": trained.method,
            "surrogate": model.settings.get("surrogate"),
            "history": [] if trained.solution is None else trained.solution.history.tolist(),
        },
        "calibration": _calibration(
            *(trained.calibration, trained.personal, fit.options.weights != "auto", trained.taken_from > 1)
        ),
        "clients": _clients(fit, evaluated),
        "overall": {name: part for name, part in evaluated.items() if name != "clients"},
        "plainly": headline(fit, evaluated),
        **({} if model.schema.survival is None else {"periods": list(model.schema.survival.grid.ends)}),
        **({} if fit.watched is None else {"survival": survival_evaluation(fit.watched)}),
        "levels": [
            {
                **level_content(level, model.schema.target_unit or ""),
                "plainly": None
                if survival
                else plain_promise(level, entry.typical, entry.word in CUT_ERRORS),
            }
            for level in fit.certificates.values()
        ],
        "default_level": list(fit.certificates).index(fit.options.confidence),
        "worst_case": _worst_cases(fit),
        "influence": None if fit.influence is None else dict(fit.influence),
        "federated": None if fit.federated is None else dict(fit.federated),
        "advice": _advice(fit),
    }
    if isinstance(fit.model.loss, Tweedie):
        content["loss"]["log_link"] = True
    if not content["worst_case"]:
        content["absent"]["worst_case"] = _no_worst_case(fit)
    return content


def _quantiles(fit: Fit) -> RowQuantiles | None:
    """Where the rows lie that curves are drawn over; None where these are elsewhere."""
    if fit.trained_rows is None or fit.clients is None or fit.model.predictor().straight:
        return None
    return row_quantiles(fit.clients.federation, fit.standard)


def _head(
    columns: Schema | Columns,
    classes: Sequence[str] | None,
    loss: tuple[str, str],
    created: str,
    stated: Certificate,
) -> dict[str, Any]:
    """What every page says of a model: what it predicts, by which loss (its name and its unit), what for."""
    return {
        "title": f"{columns.target} by {columns.client}",
        "created": created,
        "version": bidro.__version__,
        "task": "regression" if classes is None else "classification",
        "loss": dict(zip(("name", "unit"), loss, strict=True)),
        "target": columns.target,
        "client_column": columns.client,
        "mixtures": stated.mixtures,
        "absent": dict(stated.absent),
        **({} if classes is None else {"classes": list(classes)}),
    }


def _settings(fit: Fit) -> list[list[str]]:
    settings, options = fit.model.settings, fit.options
    rows = [
        ["Loss", registry.entry_of(fit.model.loss).in_words],
        ["Radii", f"{settings['chosen']['radius']} {settings['radius']}"],
        ["Weights in training", settings["chosen"]["weights"]],
        ["Metric", "features move, the target does not" if options.metric == "features" else "all move"],
        ["Held-out rows", f"{options.hold_out:.0%} of every client{_at_least(fit)}{_of_people(fit)}"],
        ["Random seed", str(options.seed)],
    ]
    calibration = fit.trained.calibration
    if calibration is not None:
        ratio = calibration.chosen.max_weight_ratio
        limit = "none" if np.isinf(ratio) else f"{ratio:g}"
        chosen = calibration.chosen
        rows.insert(
            2, ["Choice", f"c = {chosen.scale:g}, max_weight_ratio = {limit}, mixing = {chosen.mixing:g}"]
        )
    if "criterion" in settings["chosen"]:
        rows.insert(1, ["Criterion", settings["chosen"]["criterion"]])
    if settings["personal"] is not None:
        rows.insert(-2, ["Personal models", personal_in_words(settings["personal"])])
    for title, name in (("Privacy", "privacy"), ("What the noise costs", "noise")):
        if name in settings["chosen"]:
            rows.insert(0, [title, settings["chosen"][name]])
    rows += [[f"Version of {name}", version] for name, version in fit.model.versions.items()]
    return rows


def _at_least(fit: Fit) -> str:
    least = fit.options.least_held_out
    return f", and at least {least} where that is no more than half, else that half" if least else ""


def _of_people(fit: Fit) -> str:
    person = fit.model.schema.person
    return "" if person is None else f", by people: rows with the same '{person}' are kept together"


def _one_or_list(values: Floats) -> float | list[float]:
    return float(values[0]) if len(values) == 1 else [float(v) for v in values]


def _features(model: Model) -> list[dict[str, Any]]:
    """Coefficients; of a curve the slope between the ends of what was seen, and the curve itself."""
    if not model.predictor().straight:
        return _curved_features(model)
    coefficients, _ = model.coefficients
    standard = coefficients * model.standard.spread
    return [
        {
            "name": name,
            "coefficient": _one_or_list(coefficients[:, j]),
            "standardised": _one_or_list(standard[:, j]),
        }
        for j, name in enumerate(model.schema.features)
    ]


def _curved_features(model: Model) -> list[dict[str, Any]]:
    assert model.low is not None
    assert model.high is not None
    predictor, found = model.predictor(), []
    curves = predictor.curves(model.schema.features, model.low, model.high)
    for (name, curve), (j, _) in zip(curves.items(), predictor.basis.each_curve(), strict=True):
        width = curve.knots[-1] - curve.knots[0]
        slope = np.atleast_1d((curve.values[-1] - curve.values[0]) / (width if width > 0 else 1.0))
        found.append(
            {
                "name": name,
                "coefficient": _one_or_list(slope),
                "standardised": _one_or_list(slope * model.standard.spread[j]),
                "curve": {part: values.tolist() for part, values in curve._asdict().items()},
            }
        )
    return found


def _calibration(
    found: Calibration | None, personal: PersonalChoice | None, given: bool, taken: bool
) -> dict[str, Any] | None:
    """The candidates on rows left out; which is pooled training, which guards against any mixture (AFL), and
    which is chosen. `personal` has the same of the clients' personal models around the choice, not of a model
    that was `taken` in its place; with `given` weights the largest cost does not count."""
    if found is None:
        return None
    candidates = [
        {
            "scale": one.scale,
            "max_weight_ratio": None if np.isinf(one.max_weight_ratio) else one.max_weight_ratio,
            "mixing": one.mixing,
            "score": float(score),
            "mean": float(mean),
            "worst_decile": float(decile),
        }
        for one, score, mean, decile in zip(
            found.candidates, found.scores, found.means, found.worst_deciles, strict=True
        )
    ]
    any_mixture = [k for k, one in enumerate(found.candidates) if one.mixture_spec == (np.inf, 1)]
    return {
        "folds": found.fold_spec.folds,
        "max_cost": None if np.isinf(found.max_cost) or given else found.max_cost,
        "given": given,
        "candidates": candidates,
        "pooled": found.pooled if has_pooled(found) else None,
        "afl": min(any_mixture, key=lambda k: found.candidates[k].scale, default=None),
        "chosen": found.place,
        "personal": None
        if personal is None or not personal.adopts.any() or taken
        else _with_personal(found, personal),
    }


def _with_personal(found: Calibration, personal: PersonalChoice) -> dict[str, float]:
    """Mean and worst decile on rows left out, every client with the model that it uses."""
    used = personal.used
    return {
        "mean": float(np.average(used, weights=found.sizes)),
        "worst_decile": float(worst_decile(used)),
    }


# Of `evaluation`, for every client; None where pooled training was not cross-validated.
_OF_CLIENT = ("loss", "se", "personal", "pooled", "shared_change", "personal_change", "verdict")


def _clients(fit: Fit, evaluated: dict[str, Any]) -> list[dict[str, Any]]:
    trained, certificate = fit.trained, fit.certificate
    shares = np.asarray(certificate.rows) / sum(certificate.rows)
    radii = radii_of(fit.trained)
    kept, personal = fit.held_out_rows > 0, fit.model.settings["personal"]
    have_personal = set() if personal is None else set(personal["clients"])
    root = registry.entry_of(fit.model.loss).root_unit
    return [
        {
            "name": name,
            "rows": certificate.rows[i],
            "held_out_rows": evaluated["clients"][name]["rows"] if kept else 0,
            **{field: evaluated["clients"][name].get(field) for field in _OF_CLIENT},
            "typical_error": float(np.sqrt(evaluated["clients"][name]["personal"])) if root else None,
            "has_personal": name in have_personal,
            "training_loss": certificate.empirical[i],
            "robust": None if trained.risks is None else float(trained.risks[i]),
            "weight": float(trained.alpha[i]),
            "share": float(shares[i]),
            "radius": radii[i],
            # Weights are those of a solver, equal to the shares only to a tolerance.
            "binding": bool(trained.alpha[i] > shares[i] + 1e-5),
        }
        for i, name in enumerate(certificate.names)
    ]


def level_content(found: Certificate, unit: str = "") -> dict[str, Any]:
    """All that is stated at one confidence, with the bounds of the clients in their order; `unit` is the
    target's."""
    promises: dict[str, str] = {}
    interval = shift = None
    if (part := found.interval) is not None:
        interval = {name: getattr(part, name) for name in ("lower", "upper", "sampling", "heterogeneity")}
        interval |= {"radii": part.radii.tolist(), "risks": part.risks.tolist()}
        promises["interval"] = part.promise
    held: dict[str, Any] = {}
    too_few: dict[str, str] = {}
    for name in ("held_out", "clipped", "mistakes", "personal", "personal_mistakes"):
        one: HeldOut | None = getattr(found, name)
        held[name] = None
        if one is not None and one.vacuous:
            too_few[name] = one.promise
        elif one is not None:
            bounds = [one.clients[client] for client in found.names]
            held[name] = {"bound": one.bound, "largest": one.largest, "clients": bounds, "people": one.people}
            held[name]["each_by_itself"] = one.each_by_itself
            promises[name] = one.promise
    if found.shift is not None:
        shift = {"radius": found.shift.radius, "bound": found.shift.bound}
        promises["shift"] = found.shift.promise
    return {
        "confidence": found.confidence,
        "of_rows": None if found.of_rows is None else of_rows_content(found.of_rows, unit, found.procedure),
        "interval": interval,
        **held,
        "shift": shift,
        "promises": promises,
        "too_few": too_few,
    }


def of_rows_content(found: RowPromise, unit: str, procedure: float | None = None) -> dict[str, Any]:
    """What is promised of rows: in words, with the amount in them that leads, None where there is none;
    `useless` where one guess for everybody is promised as much. `promise` says what is assumed, and where a
    `procedure` is certified, trained on such a share of the rows, that it is."""
    useless = found.bound is not None and found.guess is not None and found.bound >= found.guess
    return {
        "words": found.in_words(unit),
        "amount": None if found.bound is None else found.amount(found.bound, unit),
        "bound": found.bound,
        "useless": useless,
        "promise": found.promise if procedure is None else f"{found.promise} {of_procedure(procedure)}",
    }


def _worst_cases(fit: Fit) -> list[dict[str, Any]]:
    """How far the worst cases of the clients that count most move their rows and the mean of each feature;
    nothing moves in one whose radius is 0."""
    standard, features, radii = fit.model.standard, fit.model.schema.features, fit.model.settings["radii"]
    found = []
    for name, moves in fit.displaced.items():
        if radii[name]:
            change = (moves.moved * standard.spread).tolist()
            before: list[float | None] = [None] * len(features)
            if moves.before is not None:
                before = (moves.before * standard.spread + standard.mean).tolist()
            each = zip(features, before, change, moves.typical.tolist(), strict=True)
            moved = [dict(zip(("name", "before", "change", "in_sd"), one, strict=True)) for one in each]
            found.append({"client": name, "moved": moved})
    return found


def _no_worst_case(fit: Fit) -> str:
    radii = fit.model.settings["radii"].values()
    if any(radii):
        return "the radius of each client that counts most is 0."
    if all(radius == 0 for radius in radii):
        return "the radius is 0, so that training did not guard against shift inside a client."
    return "there is no radius, because training used penalties."


def _advice(fit: Fit) -> list[str]:
    certificate, alpha = fit.certificate, fit.trained.alpha
    advice = []
    if certificate.privacy is not None:
        advice += [certificate.privacy.promise, certificate.privacy.cost]
    if certificate.interval is not None:
        advice.append(certificate.interval.advice)
    else:
        advice.append(f"There is no Wasserstein interval: {certificate.absent['interval']}")
    if certificate.clipped is not None and certificate.clipped.vacuous:
        what = certificate.clipped.draws
        advice.append(f"Too few {what} were held out to promise anything: {certificate.clipped.shortage}.")
    elif certificate.clipped is None:
        advice.append("No rows were held out, so nothing is stated from fresh rows; use --hold-out 0.2.")
    else:
        worst, what = certificate.clipped.binding, certificate.clipped.draws
        advice.append(
            f"The held-out bound is set by '{worst}', with {certificate.clipped.rows[worst]} {what} held "
            f"out; more {what} there lower it first."
        )
    most = int(np.argmax(alpha))
    # Where weights are fixed the largest client counts most, which says nothing about where to look.
    if len(alpha) > 1 and not fit.trained.mixture_spec.fixed:
        advice.append(
            f"'{certificate.names[most]}' counts most in the worst mixture of training "
            f"({alpha[most]:.0%}): what makes the target easier to predict there helps most."
        )
    return advice


def scored_content(table: ScoredRows, confidence: float) -> dict[str, Any]:
    """The content of the page, with statements at this confidence and at others."""
    confidences = sorted({*LEVELS, confidence})
    levels = [table.certificate(level) for level in confidences]
    stated = levels[confidences.index(confidence)]
    evaluated = evaluation(_scored_losses(table))
    columns, loss, typical = table.columns, table.loss, registry.typical_of(table.loss.word)
    assert columns is not None
    named, today = (loss.in_words, loss.unit(columns.target)), datetime.datetime.now(datetime.UTC).date()
    return {
        **_head(columns, table.scored.classes, named, today.isoformat(), stated),
        "trained": False,
        "rows": 0,
        "held_out_rows": len(table.clients),
        "origin": table.known.origin,
        "settings": _scored_settings(table, columns),
        "clients": [
            {"name": name, "held_out_rows": one["rows"], "loss": one["loss"], "se": one["se"]}
            for name, one in evaluated["clients"].items()
        ],
        "overall": {name: evaluated[name] for name in ("mean", "worst_client", "worst_decile")},
        "plainly": _scored_plainly(evaluated, loss.word, typical),
        "levels": [
            {
                **level_content(level),
                "against": level.against and _against(level.against, level.names),
                "plainly": plain_promise(level, typical, loss.word in CUT_ERRORS),
            }
            for level in levels
        ],
        "default_level": confidences.index(confidence),
        "advice": _scored_advice(stated),
    }


def _scored_plainly(
    evaluated: Mapping[str, Any], word: str, typical: Typical | None
) -> dict[str, Any] | None:
    """How well the predictions do in a measure for people, as `headline` has it; None for losses
    without one."""
    if word != "mistakes" and typical is None:
        return None

    plain = _for_people(typical)
    return {
        "measure": "right" if typical is None else "error",
        "words": _RIGHT if typical is None else registry.typical_words(word),
        "models": {"shared": plain(evaluated["mean"])},
        "clients": {name: {"shared": plain(one["loss"])} for name, one in evaluated["clients"].items()},
        "guess": None,
        "guess_held_out": None,
        "of_people": False,
    }


def bounds_content(found: Certificate, schema: Schema, loss: tuple[str, str], created: str) -> dict[str, Any]:
    """The content of the page where clients report bounds alone: no loss of anybody is known. `loss` is
    its name and its unit."""
    held = found.fresh
    assert held is not None
    return {
        **_head(schema, schema.classes, loss, created, found),
        "trained": False,
        "target_unit": schema.target_unit,
        "rows": 0,
        "held_out_rows": sum(held.rows.values()),
        "origin": found.balls,
        "settings": [["Loss", loss[0]], ["What is known of it", found.balls]],
        "clients": [{"name": client, "held_out_rows": held.rows[client]} for client in found.names],
        "overall": None,
        "levels": [level_content(found)],
        "default_level": 0,
        "advice": _scored_advice(found),
    }


def _scored_losses(table: ScoredRows) -> dict[str, ClientLoss]:
    losses = table.loss.values(table.scored)
    if table.known.clip is not None:
        # What is stated is of losses counted so, and a loss of infinity has no place on a page.
        losses = np.minimum(losses, table.known.clip)
    people = None if table.people is None else by_client(table.clients, table.people)
    return {
        name: ClientLoss.of(own, None if people is None else people[name])
        for name, own in by_client(table.clients, losses).items()
    }


def _against(found: Paired, names: tuple[str, ...]) -> dict[str, Any]:
    return {
        "bound": found.bound,
        "better": found.better,
        "lower": found.lower,
        "largest": found.largest if found.clipped else None,
        "people": found.people,
        "promise": found.promise,
        "means": [found.means[name] for name in names],
        "clients": [found.clients[name] for name in names],
    }


def _scored_settings(table: ScoredRows, columns: Columns) -> list[list[str]]:
    predicted = columns.prediction or ", ".join((columns.probabilities or {}).values())
    rows = [
        ["Loss", table.loss.in_words],
        ["Its range", table.known.origin],
        ["Predictions", predicted],
    ]
    if table.loss.word == "pinball":
        rows.insert(1, ["Quantile", f"{table.loss.quantile:g}"])
    if columns.person is not None:
        rows.append(["People", f"rows with the same '{columns.person}' are one draw, with their mean loss"])
    return rows


def _scored_advice(found: Certificate) -> list[str]:
    held = found.fresh
    assert held is not None
    what = held.draws
    if held.vacuous:
        return [f"There are too few {what} to promise anything: {held.shortage}."]
    advice = [
        f"The bound is set by '{held.binding}', with {held.rows[held.binding]:,} {what}; more {what} there "
        "lower it first."
    ]
    if found.against is not None and not found.against.lower:
        binding = found.against.binding
        advice.append(
            f"Whether the model is better than the other at every client hangs on '{binding}', with "
            f"{found.against.rows[binding]:,} {what}."
        )
    return advice


class RowQuantiles(NamedTuple):
    """Quantiles and means of the training rows, in the columns' own units."""

    clients: tuple[str, ...]  # those with at least FEWEST_DESCRIBED rows
    quantiles: Floats  # (clients, k, quantiles) of the rows of each of these
    mean: Floats  # (k,) over all rows: of a coded level, how many have it
    places: Floats  # (places, k) quantiles of all rows


def row_quantiles(federation: Federation, standard: Standard) -> RowQuantiles:
    """From rows in standard units that are here."""
    rows, sizes = federation.host_rows[:, :-1], federation.sizes
    parts = dict(zip(federation.names, split_by_sizes(rows, sizes), strict=True))
    parts = {name: own for name, own in parts.items() if len(own) >= FEWEST_DESCRIBED}
    each = np.empty((len(parts), rows.shape[1], len(QUANTILES)))
    for i, own in enumerate(parts.values()):
        each[i] = np.quantile(own, QUANTILES, axis=0).T
    shares = (np.arange(_PLACES) + 0.5) / _PLACES
    each = standard.spread[None, :, None] * each + standard.mean[None, :, None]
    every = standard.spread * np.quantile(rows, shares, axis=0) + standard.mean
    return RowQuantiles(tuple(parts), each, standard.spread * rows.mean(axis=0) + standard.mean, every)


def drawn_curves(
    model: Model, of_rows: RowQuantiles | None, bands: Mapping[str, pd.DataFrame] | None = None
) -> dict[str, Any] | None:
    """As JSON, the columns that matter most first, with `bands` around their curves; None for a model of
    straight lines."""
    predictor = model.predictor()
    if predictor.straight or model.low is None or model.high is None:
        return None
    curves = predictor.curves(model.schema.features, model.low, model.high)
    of_feature = [j for j, _ in predictor.basis.each_curve()]
    largest = sorted(model.personal, key=lambda name: -model.settings["rows"].get(name, 0))[:_MOST_OWN]
    # Clients' own models bend at the same places.
    personal = {
        client: model.predictor(model.personal[client]).curves(model.schema.features, model.low, model.high)
        for client in largest
    }
    found, place = list[dict[str, Any]](), 0
    for column in model.schema.columns:
        some = slice(place, place + len(column.coded))
        if column.levels is None:
            own = [one for one, j in zip(curves.items(), of_feature, strict=True) if j == place]
            values = np.stack([_of_number(model, place, of_rows, level) for level in range(len(own))])
            # One picture after the other, whatever else there is: all matter as much as they do together.
            weights = np.full(values.shape[1], 1 / values.shape[1])
            matters = float(np.mean([_varies(each, weights) for each in values]))
            rows = {} if of_rows is None else {"rows": _rows(of_rows, place)}
            found += [
                {"name": name, "matters": matters, "knots": curve.knots.tolist()}
                | {"values": curve.values.tolist(), **rows, **_band(curve, (bands or {}).get(name))}
                | {"personal": {client: one[name].values.tolist() for client, one in personal.items()}}
                for name, curve in own
            ]
        else:
            values, weights = _of_levels(model, some, of_rows)
            shown = values[:, 0] if values.shape[1] == 1 else values  # of two classes, one score
            content = {"levels": list(column.levels), "values": shown.tolist()}
            if of_rows is not None:
                content["shares"] = weights.tolist()
            found.append({"name": column.name, "matters": _varies(values, weights), **content})
        place += len(column.coded)
    return {
        "columns": sorted(found, key=lambda one: -one["matters"]),
        "pairs": _drawn_pairs(predictor, model.schema.features),
        "rows_here": of_rows is not None,
        "quantiles": list(QUANTILES),
    }


def _band(curve: Curve, known: pd.DataFrame | None) -> dict[str, Any]:
    """Its lower and upper ends at the knots of a curve; nothing where it is not known."""
    if known is None:
        return {}
    away = [known[side] - known["value"] for side in ("lower", "upper")]
    return {"band": {"share": _BANDS, "ends": [(curve.values + own.to_numpy()).tolist() for own in away]}}


def _drawn_pairs(predictor: Predictor, names: Sequence[str]) -> list[dict[str, Any]]:
    """What pairs of features add at their knots, those first that vary most over these."""
    found = []
    shares = predictor.pairs(names).values()
    for pair, own in zip(predictor.basis.pairs, shares, strict=True):
        places = own.values.reshape(own.values.shape[0] * own.values.shape[1], -1)
        matters = _varies(places, np.full(len(places), 1 / len(places)))
        content = {"names": [names[j] for j in pair.features], "knots": [side.tolist() for side in own.knots]}
        found.append({**content, "values": own.values.tolist(), "matters": matters})
    return sorted(found, key=lambda one: -one["matters"])


def _varies(values: Floats, weights: Floats) -> float:
    """The deviation of values (places, outputs) that have weights (places,)."""
    away = values - weights @ values
    return float(np.sqrt(np.mean(weights @ away**2)))


def _rows(of_rows: RowQuantiles, place: int) -> dict[str, list[float]]:
    """By client, of those with enough rows."""
    return {name: own[place].tolist() for name, own in zip(of_rows.clients, of_rows.quantiles, strict=True)}


def _of_number(model: Model, place: int, of_rows: RowQuantiles | None, level: int) -> Floats:
    """(places, outputs) the share of a number over the rows, or over a normal distribution; of one level,
    where it has curves by level."""
    standard = model.standard
    rows = np.tile(standard.mean, (_PLACES, 1))
    normal = ndtri((np.arange(_PLACES) + 0.5) / _PLACES)
    rows[:, place] += standard.spread[place] * normal
    if of_rows is not None:
        rows[:, place] = of_rows.places[:, place]
    by = model.predictor().basis.in_units(standard.mean, standard.spread).by
    levels = by[place] if by else None
    if levels is not None:
        rows[:, list(levels.columns)] = levels.values[level]
    return np.asarray(model.predictor().shares(rows)[:, :, 1 + place])


def _of_levels(model: Model, some: slice, of_rows: RowQuantiles | None) -> tuple[Floats, Floats]:
    """((levels, outputs) the share of every level, (levels,) how many rows have it), the first, which has no
    column of its own, first."""
    count = some.stop - some.start + 1
    rows = np.tile(model.standard.mean, (count, 1))
    rows[:, some] = np.eye(count)[:, 1:]
    values = model.predictor().shares(rows)[:, :, 1:][:, :, some].sum(axis=2)
    weights = np.full(count, 1 / count)
    if of_rows is not None:
        coded = of_rows.mean[some]
        weights = np.append(1 - coded.sum(), coded)
    return np.asarray(values), weights
