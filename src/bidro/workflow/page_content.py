"""What the report page shows of a run, as plain JSON: see `report.page`."""

from __future__ import annotations

from typing import Any

import numpy as np

from bidro.arrays import Floats
from bidro.fitting.fitted import Displacement
from bidro.guarantees.calibration import Calibration
from bidro.guarantees.certificate import Certificate
from bidro.guarantees.held_out import HeldOut
from bidro.guarantees.own import Own
from bidro.guarantees.price import worst_decile
from bidro.losses import registry
from bidro.model_file import Model
from bidro.training import has_pooled
from bidro.workflow.chosen import shrinkage_in_words
from bidro.workflow.drawn_curves import drawn_curves
from bidro.workflow.fit import Fit, radii_of
from bidro.workflow.judged import evaluation
from bidro.workflow.plainly import CUT_ERRORS, plain_promise, plainly


def page_content(fit: Fit) -> dict[str, Any]:
    model, trained = fit.model, fit.trained
    entry = registry.entry_of(model.loss)
    judged = evaluation(fit.judged, fit.changes)
    confidences = [level.confidence for level in fit.levels]
    classes = model.schema.classes
    content = {
        "title": f"{model.schema.target} by {model.schema.client}",
        "created": model.settings["created"],
        "version": model.versions["bidro"],
        "task": "regression" if classes is None else "classification",
        "loss": {"name": entry.in_words, "unit": entry.unit_in(model.schema.measure)},
        "target": model.schema.target,
        "measured_in": model.schema.measured_in,
        "client_column": model.schema.client,
        "rows": sum(fit.certificate.rows),
        "held_out_rows": fit.held_out_rows,
        "criterion": model.settings["criterion"],
        "chosen": model.settings["chosen"],
        "concerns": model.settings["concerns"],
        "paid": model.settings["paid"],
        "varies": model.settings["varies"],
        "settings": _settings(fit),
        "features": _features(model),
        "curves": drawn_curves(model, fit.lie),
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
        "calibration": _calibration(trained.calibration, trained.own, fit.options.weights != "auto"),
        "clients": _clients(fit, judged),
        "overall": {name: part for name, part in judged.items() if name != "clients"},
        "mixtures": fit.certificate.mixtures,
        "plainly": plainly(fit, judged),
        "levels": [
            {**level_content(level), "plainly": plain_promise(level, entry.typical, entry.word in CUT_ERRORS)}
            for level in fit.levels
        ],
        "default_level": confidences.index(fit.certificate.confidence),
        "absent": dict(fit.certificate.absent),
        "worst_case": _worst_cases(fit),
        "influence": None if fit.influence is None else dict(fit.influence),
        "federated": None if fit.federated is None else dict(fit.federated),
        "advice": _advice(fit),
    }
    if not content["worst_case"]:
        content["absent"]["worst_case"] = _no_worst_case(fit)
    if classes is not None:
        content["classes"] = list(classes)
    return content


def _settings(fit: Fit) -> list[list[str]]:
    settings, options = fit.model.settings, fit.options
    rows = [
        ["Loss", registry.entry_of(fit.model.loss).in_words],
        ["Radii", f"{settings['chosen']['radius']} {settings['radius']}"],
        ["Weights in training", settings["chosen"]["weights"]],
        ["Metric", "features move, the target does not" if options.metric == "features" else "all move"],
        ["Rows kept out", f"{options.hold_out:.0%} of every client{_of_units(fit)}"],
        ["Random seed", str(options.seed)],
    ]
    calibration = fit.trained.calibration
    if calibration is not None:
        cap = "none" if np.isinf(calibration.chosen.cap) else f"{calibration.chosen.cap:g}"
        chosen = calibration.chosen
        rows.insert(2, ["Choice", f"c = {chosen.scale:g}, cap = {cap}, blend = {chosen.blend:g}"])
    if "criterion" in settings["chosen"]:
        rows.insert(1, ["Criterion", settings["chosen"]["criterion"]])
    if settings["own"] is not None:
        rows.insert(-2, ["Own models", shrinkage_in_words(settings["own"])])
    for title, name in (("Privacy", "privacy"), ("What the noise costs", "noise")):
        if name in settings["chosen"]:
            rows.insert(0, [title, settings["chosen"][name]])
    rows += [[f"Version of {name}", version] for name, version in fit.model.versions.items()]
    return rows


def _of_units(fit: Fit) -> str:
    unit = fit.model.schema.unit
    return "" if unit is None else f", by units: rows with the same '{unit}' are kept together"


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


def _calibration(found: Calibration | None, own: Own | None, given: bool) -> dict[str, Any] | None:
    """The candidates on rows left out; which is pooled training, which guards against any mixture (AFL), and
    which is chosen. `own` has the same of the clients' own models around the choice; with `given` weights
    the price does not count."""
    if found is None:
        return None
    candidates = [
        {
            "scale": one.scale,
            "cap": None if np.isinf(one.cap) else one.cap,
            "blend": one.blend,
            "score": float(score),
            "mean": float(mean),
            "worst_decile": float(decile),
        }
        for one, score, mean, decile in zip(
            found.candidates, found.scores, found.means, found.worst_deciles, strict=True
        )
    ]
    any_mixture = [k for k, one in enumerate(found.candidates) if np.isinf(one.cap) and one.blend == 1]
    return {
        "folds": found.deal.folds,
        "price": None if np.isinf(found.price) or given else found.price,
        "given": given,
        "candidates": candidates,
        "pooled": found.pooled if has_pooled(found) else None,
        "afl": min(any_mixture, key=lambda k: found.candidates[k].scale, default=None),
        "chosen": found.place,
        "own": None if own is None or not own.adopts.any() else _with_own(found, own),
    }


def _with_own(found: Calibration, own: Own) -> dict[str, float]:
    """Mean and worst decile on rows left out, every client with the model that it uses."""
    used = np.where(own.adopts, own.own, own.shared)
    return {
        "mean": float(np.average(used, weights=found.sizes)),
        "worst_decile": float(worst_decile(used)),
    }


# Of `evaluation`, for every client; None where pooled training was not cross-validated.
_JUDGED = ("loss", "se", "own", "pooled", "shared_change", "own_change", "verdict")


def _clients(fit: Fit, judged: dict[str, Any]) -> list[dict[str, Any]]:
    trained, certificate = fit.trained, fit.certificate
    shares = np.asarray(certificate.rows) / sum(certificate.rows)
    radii = radii_of(fit.trained)
    kept, own = fit.held_out_rows > 0, fit.model.settings["own"]
    have_own = set() if own is None else set(own["clients"])
    root = registry.entry_of(fit.model.loss).root_unit
    return [
        {
            "name": name,
            "rows": certificate.rows[i],
            "held_out_rows": judged["clients"][name]["rows"] if kept else 0,
            **{field: judged["clients"][name].get(field) for field in _JUDGED},
            "typical_error": float(np.sqrt(judged["clients"][name]["own"])) if root else None,
            "has_own": name in have_own,
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


def level_content(found: Certificate) -> dict[str, Any]:
    """All that is stated at one confidence, with the bounds of the clients in their order."""
    interval = None
    promises: dict[str, str] = {}
    if found.interval is not None:
        part = found.interval
        interval = {
            "lower": part.lower,
            "upper": part.upper,
            "sampling": part.sampling,
            "heterogeneity": part.heterogeneity,
            "radii": part.radii.tolist(),
            "risks": part.risks.tolist(),
        }
        promises["interval"] = part.promise
    held: dict[str, Any] = {}
    too_few: dict[str, str] = {}
    for name in ("held_out", "clipped", "mistakes", "own", "own_mistakes"):
        one: HeldOut | None = getattr(found, name)
        held[name] = None
        if one is not None and one.vacuous:
            too_few[name] = one.promise
        elif one is not None:
            bounds = [one.clients[client] for client in found.names]
            held[name] = {"bound": one.bound, "largest": one.largest, "clients": bounds, "units": one.units}
            held[name]["each_by_itself"] = one.each_by_itself
            promises[name] = one.promise
    shift = None
    if found.shift is not None:
        shift = {"radius": found.shift.radius, "bound": found.shift.bound}
        promises["shift"] = found.shift.promise
    return {
        "confidence": found.confidence,
        "interval": interval,
        **held,
        "shift": shift,
        "promises": promises,
        "too_few": too_few,
    }


def _worst_cases(fit: Fit) -> list[dict[str, Any]]:
    """Of the clients that count most; nothing moves in one whose radius is 0."""
    radii = fit.model.settings["radii"]
    return [_worst_case(fit, name, found) for name, found in fit.worst_cases.items() if radii[name]]


def _no_worst_case(fit: Fit) -> str:
    radii = fit.model.settings["radii"].values()
    if any(radii):
        return "the radius of each client that counts most is 0."
    if all(radius == 0 for radius in radii):
        return "the radius is 0, so that training did not guard against shift inside a client."
    return "there is no radius, because training used penalties."


def _worst_case(fit: Fit, name: str, found: Displacement) -> dict[str, Any]:
    """How far a client's worst case moves its rows and the mean of each feature."""
    standard = fit.model.standard
    change, before = found.moved * standard.spread, None
    if found.before is not None:
        before = found.before * standard.spread + standard.mean
    moved = [
        {
            "name": feature,
            "before": None if before is None else float(before[j]),
            "change": float(change[j]),
            "in_sd": float(found.typical[j]),
        }
        for j, feature in enumerate(fit.model.schema.features)
    ]
    return {"client": name, "moved": moved}


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
        advice.append(f"Too few {what} were kept out to promise anything: {certificate.clipped.shortage}.")
    elif certificate.clipped is None:
        advice.append("No rows were kept out, so nothing is stated from fresh rows; use --hold-out 0.2.")
    else:
        worst, what = certificate.clipped.binding, certificate.clipped.draws
        advice.append(
            f"The held-out bound is set by '{worst}', with {certificate.clipped.rows[worst]} {what} kept "
            f"out; more {what} there lower it first."
        )
    most = int(np.argmax(alpha))
    # With a cap of 1 the largest client counts most, which says nothing about where to look.
    if len(alpha) > 1 and not fit.trained.weighing.fixed:
        advice.append(
            f"'{certificate.names[most]}' counts most in the worst mixture of training "
            f"({alpha[most]:.0%}): what makes the target easier to predict there helps most."
        )
    return advice
