"""Contents for the report page, made up but of the shape and size of real ones."""

import math
from dataclasses import replace

import numpy as np

from bidro.data.tables import Schema
from bidro.losses.predicted import PredictedLoss, Scored
from bidro.workflow.certify import Columns, Range, ScoredRows
from bidro.workflow.page_content import bounds_content, scored_content

HOSPITALS = ["Northfield General", "St Anne's", "Harbour Road", "West Moor", "Queen's Cross", "Alder Vale"]
CONFIDENCES = [0.5, 0.8, 0.9, 0.95, 0.99]
FEATURES = ["age", "systolic pressure", "prior admissions", "creatinine", "weekend", "distance to ward"]
BINDING = {"binding": "West Moor", "rows": 44, "enough": 120, "people": False}
MIXTURE_SPECS = [(1.0, 1.0), (5.0, 0.02), (5.0, 0.05), (5.0, 0.1), (5.0, 0.4), (5.0, 1.0), (None, 1.0)]


def content(names=HOSPITALS, seed=0):
    """A regression over these clients, with every part present."""
    rng = np.random.default_rng(seed)
    clients = _clients(names, rng)
    losses = np.array([c["loss"] for c in clients])
    rows = np.array([c["rows"] for c in clients])
    return {
        "title": "Length of stay, six hospitals" if len(names) == 6 else f"Scores in {len(names)} schools",
        "created": "2026-11-16",
        "version": "0.1.0",
        "task": "regression",
        "loss": {"name": "squared error", "unit": "days²"},
        "target": "stay",
        "client_column": "hospital",
        "rows": int(rows.sum()),
        "held_out_rows": sum(c["held_out_rows"] for c in clients),
        "criterion": "risk",
        "chosen": {
            "radius": "Radii are from 0.0125 to 0.0527: training guarded against shift inside each client, "
            "by so many standard deviations.",
            "weights": "Training guarded against mixtures in which up to 5% of the weight goes to other "
            "clients than by their rows, none of it for more than 5 times a client's share of the rows.",
            "robustness_cost": "Against pooled training it pays 1.4% on average; the worst tenth of the "
            "clients gains 9.0% (on rows left out).",
            "personal": "Some clients use a personal model, which lowers the mean loss on "
            "rows left out by 6.0%; new clients get the shared model.",
        },
        "concerns": [],
        "robustness_cost": {"mean": 0.014, "worst_decile": -0.09, "pooled": False, "same_radius": False},
        "varies": 0.93,
        "settings": [
            ["Loss", "squared error, with an intercept"],
            ["Radius", "cross-validated, c = 0.5"],
            ["Weights", "capped at 3 times each share"],
            ["Metric", "Euclidean, features in units of their spread"],
            ["Held-out rows", "one in five of each client, drawn with seed 0"],
        ],
        "features": _features(rng),
        "intercept": 1.2034,
        "solver": {
            "rounds": 8,
            "gap": 3.1e-7,
            "method": "curvature",
            "history": _history(),
            "surrogate": None,
        },
        "calibration": _calibration(),
        "clients": clients,
        "overall": {
            **_over_clients(losses, rows),
            "personal": _over_clients(np.array([c["personal"] for c in clients]), rows),
            "pooled": _over_clients(np.array([c["pooled"] for c in clients]), rows),
        },
        "plainly": _plainly(clients, math.sqrt, "mean", 6.4),
        "mixtures": "any mixture of the clients",
        "levels": [_level(confidence, clients) for confidence in CONFIDENCES],
        "default_level": 3,
        "absent": {"mistakes": "the target is a number, not a class."},
        "worst_case": [_worst_case(name, rng) for name in names],
        "advice": [
            f"{clients[0]['name']} weighs most for its rows. Doubling them narrows the interval most.",
            "The interval is wide because its radii hold for any distribution. The clipped bound says more.",
        ],
    }


def many(count=60):
    return content([f"School {k + 1:02d}" for k in range(count)], seed=1)


def classes():
    """Three classes, so that coefficients and the intercept are lists, and mistakes are bounded."""
    made = content(seed=2)
    rng = np.random.default_rng(3)
    for feature in made["features"]:
        feature["coefficient"] = rng.normal(size=3).tolist()
        feature["standardised"] = rng.normal(size=3).tolist()
    for level in made["levels"]:
        level["mistakes"] = {"bound": 0.21, "clients": np.linspace(0.12, 0.21, len(made["clients"])).tolist()}
        level["promises"]["mistakes"] = "At most 21% of predictions on new rows are wrong."
        level["personal_mistakes"] = {"bound": 0.19, "clients": [0.11] * len(made["clients"])}
        level["promises"]["personal_mistakes"] = "At most 19% are wrong, each client with its personal model."
        level["plainly"] = {
            "of": "personal_mistakes",
            "bound": 0.81,
            "largest": None,
            "shortage": None,
            **BINDING,
        }
    changed = {"task": "classification", "classes": ["home", "ward", "intensive care"]}
    for client in made["clients"]:
        client["typical_error"] = None
    changed["plainly"] = _plainly(made["clients"], lambda loss: 1 - loss / 4, "class", "ward")
    changed["plainly"] |= {"measure": "right", "words": "the share of right predictions"}
    return made | changed | {"loss": {"name": "log loss", "unit": ""}, "intercept": [0.2, -0.1, 0.4]}


def curves(scores=1, rows_here=True):
    """A model with curves, of a number or of so many classes; with more columns than are drawn at first."""
    made = content(seed=6) if scores == 1 else classes()
    rng = np.random.default_rng(7)
    columns = []
    for j in range(14):
        values = (2 / (1 + j)) * rng.normal(size=(5, scores))
        own = values[:, 0].tolist() if scores == 1 else values.tolist()
        if j == 1:
            columns.append({"name": "ward", "matters": 1.5, "levels": list("abcde"), "values": own})
            columns[-1] |= {"shares": [0.1, 0.2, 0.3, 0.2, 0.2]} if rows_here else {}
            continue
        one = {
            "name": f"number {j}",
            "matters": 2 / (1 + j),
            "knots": [-3.0, -1.0, 0.0, 1.5, 40.0],
            "values": own,
        }
        if rows_here and j < 3:
            one["band"] = {"share": 0.95, "ends": [[v - 0.5 for v in own], [v + 0.25 for v in own]]}
        if rows_here:
            one["rows"] = {c["name"]: sorted(rng.normal(5, 5, 5).tolist()) for c in made["clients"]}
        columns.append(one)
    drawn = {"columns": columns, "rows_here": rows_here, "quantiles": [0.1, 0.25, 0.5, 0.75, 0.9]}
    return made | {"curves": drawn}


def times():
    """Times to an event: no share of right predictions leads, and a client with one person has no figures."""
    made, ends = content(seed=12), [30.0, 90.0, 365.0]
    for level in made["levels"]:
        level["plainly"] = None
        level.pop("of_rows", None)
    one = {"rows": 40, "events": 21, "concordance": 0.71, "brier": 0.16}
    alone = {"rows": 1, "events": 0, "concordance": None, "brier": None}
    seen = {"predicted": [0.9, 0.7, 0.4], "observed": [0.92, 0.66, 0.41]}
    few = {"predicted": [0.9, 0.7, 0.4], "observed": [1.0, None, None]}
    names = [client["name"] for client in made["clients"]]
    survival = {
        "time": "days",
        "unit": "days",
        "event": "died",
        "ends": ends,
        "held_out": True,
        "whose": "people",
        "models": {"guess": one | {"concordance": 0.5, "brier": 0.21}, "pooled": one, "shared": one},
        "clients": {name: one | seen if k else alone | few for k, name in enumerate(names)},
    }
    task = {"task": "classification", "classes": ["no", "yes"], "target": "died"}
    return made | task | {"plainly": None, "periods": ends, "survival": survival}


def bare():
    """Nothing held out, no declared box, no calibration, no personal models, no worst case."""
    made = content(seed=4)
    for client in made["clients"]:
        client |= {
            "held_out_rows": 0,
            "loss": client["training_loss"],
            "radius": 0.0,
            "robust": client["training_loss"],
            **{
                "personal": client["training_loss"],
                "pooled": None,
                "shared_change": None,
                "personal_change": None,
            },
            **{"verdict": None, "has_personal": False},
        }
    reasons = {
        "interval": "the support is not declared.",
        "held_out": "no rows were held out of training.",
        "clipped": "no rows were held out of training.",
        "shift": "no shift radius was chosen.",
        "calibration": "the radius was set by hand.",
        "worst_case": "the model was trained without radii.",
    }
    levels = [{"confidence": c, "interval": None, "promises": {}} for c in CONFIDENCES]
    absent = {"held_out_rows": 0, "levels": levels, "calibration": None, "worst_case": None}
    overall = made["overall"] | {"personal": None, "pooled": None}
    chosen = {name: made["chosen"][name] for name in ("radius", "weights")}
    unknown = {"overall": overall, "chosen": chosen, "robustness_cost": None, "varies": None, "plainly": None}
    return made | absent | unknown | {"absent": reasons}


def predictions(classes=False):
    """Of a model that was not trained here: numbers against another model's, or predicted classes alone."""
    return scored_content(predictions_table(classes), 0.95)


def predictions_table(classes=False):
    rng = np.random.default_rng(7)
    clients = np.repeat(HOSPITALS[:4], 80)
    target = rng.normal(size=320)
    said, other = target + 0.4 * rng.normal(size=320), target + 0.6 * rng.normal(size=320)
    columns = Columns("hospital", "stay", "predicted")
    if classes:
        scored = Scored.labels(*(np.where(values > 0, "long", "short") for values in (target, said)))
        loss, against = PredictedLoss("mistakes"), None
        known = Range.of(loss, scored, None, None)
    else:
        scored, against = Scored.numbers(target, said), Scored.numbers(target, other)
        loss, known = PredictedLoss("squared"), Range(None, 4.0, "Losses are clipped at 4, as was said.")
    return ScoredRows(scored, clients, loss, known, against=against, columns=columns)


def bounds():
    """Of a model that was not trained here, where the sites have told bounds alone."""
    table = predictions_table()
    found = table.certificate(0.95)
    alone = replace(found, clipped=replace(found.clipped, means={}), against=None)
    schema = Schema("hospital", "stay", None, ())
    return bounds_content(alone, schema, ("squared error", "stay²"), "2026-01-01")


def _clients(names, rng):
    count = len(names)
    rows = rng.integers(90, 1600, count)
    training = np.sort(rng.gamma(8.0, 0.055, count))[::-1]
    raw = np.where(np.arange(count) < max(2, count // 12), rows * 3.0, rows * rng.uniform(0, 0.9, count))
    weights = raw / raw.sum()
    clients = []
    for k, name in enumerate(names):
        loss = float(training[k] * rng.uniform(0.97, 1.12))
        held = int(rows[k] // 4)
        pooled = loss * (1.1 - 0.3 * (k % 2))
        own = loss * 0.9 if k % 3 else loss
        error = 0.05 * loss
        change = own - pooled
        clients.append(
            {
                "name": name,
                "rows": int(rows[k]),
                "held_out_rows": held,
                "loss": loss,
                "se": float(1.4 * loss / math.sqrt(held)),
                "personal": own,
                "pooled": pooled,
                "shared_change": {"mean": loss - pooled, "se": error},
                "personal_change": {"mean": change, "se": error},
                "verdict": None if abs(change) <= 2 * error else "gains" if change < 0 else "loses",
                "typical_error": math.sqrt(own),
                "has_personal": k % 3 != 0,
                "training_loss": float(training[k]),
                "robust": float(training[k] * 1.25),
                "weight": float(weights[k]) if k < count - 1 or count == 1 else 1e-9,
                "share": float(rows[k] / rows.sum()),
                "radius": float(0.5 / math.sqrt(rows[k])),
                "binding": k < max(2, count // 12),
            }
        )
    return clients


def _plainly(clients, typical, kind, value):
    """Typical errors, or shares of right predictions; the guess costs half more than pooled training."""
    rows = [client["held_out_rows"] for client in clients]
    losses = {name: [client[name] for client in clients] for name in ("personal", "pooled")}
    losses |= {"shared": [client["loss"] for client in clients], "guess": [1.5 * p for p in losses["pooled"]]}
    losses["robust"] = [0.8 * p if p == max(losses["pooled"]) else 1.05 * p for p in losses["pooled"]]
    return {
        "measure": "error",
        "words": "the root of the mean squared error",
        "models": {name: typical(float(np.average(own, weights=rows))) for name, own in losses.items()},
        "clients": {
            client["name"]: {name: typical(own[i]) for name, own in losses.items()}
            for i, client in enumerate(clients)
        },
        "guess": {"kind": kind, "value": value},
        "guess_held_out": True,
        "robust_in_use": False,
    }


def _level(confidence, clients):
    spread = math.sqrt(math.log(1 / (1 - confidence)) + 1)
    radii = [1.2 * spread / c["rows"] ** 0.25 for c in clients]
    risks = [(math.sqrt(c["training_loss"]) + 2.1 * r) ** 2 for c, r in zip(clients, radii, strict=True)]
    held = [c["loss"] + 12 * spread / c["held_out_rows"] ** 0.9 for c in clients]
    clipped = [c["loss"] + 2.2 * spread * c["se"] for c in clients]
    upper = max(risks)
    sampling, heterogeneity = 0.7 * upper, 0.2 * upper
    top, with_shift = 6.21, (math.sqrt(max(clipped)) + 0.1) ** 2
    return {
        "confidence": confidence,
        "interval": {
            "lower": upper - sampling - heterogeneity,
            "upper": upper,
            "sampling": sampling,
            "heterogeneity": heterogeneity,
            "radii": radii,
            "risks": risks,
        },
        "held_out": {"bound": max(held), "clients": held},
        "clipped": {"bound": max(clipped), "largest": top, "clients": clipped},
        "mistakes": None,
        "personal": {"bound": 0.9 * max(clipped), "largest": top, "clients": [0.9 * one for one in clipped]},
        "personal_mistakes": None,
        "shift": {"radius": 0.05, "bound": with_shift},
        "plainly": {
            "of": "personal",
            "bound": math.sqrt(0.9 * max(clipped)),
            "largest": math.sqrt(top),
            "shortage": None,
            **BINDING,
        },
        "promises": _promises(confidence, upper, max(held), max(clipped), with_shift),
    }


def _promises(confidence, upper, held, clipped, with_shift):
    level, counted = f"With confidence {confidence:g} the mean loss", ", each counted as at most 6.21,"
    rest = "on new rows, drawn as those held out were and mixed in any admissible way, is at most"
    not_said = "It says nothing about shift inside a client."
    return {
        "interval": f"With probability at least {confidence:g} over the clients' samples, the true mean "
        f"loss under any mixture of the clients is at most {upper:.6g}.",
        "held_out": f"{level} of this model {rest} {held:.6g}. {not_said}",
        "clipped": f"{level}{counted} of this model {rest} {clipped:.6g}. {not_said}",
        "personal": f"{level}{counted} of the models that the clients use {rest} {0.9 * clipped:.6g}. "
        f"{not_said}",
        "shift": f"{level}{counted} stays at most {with_shift:.6g} if, after the rows were drawn, every "
        "client's distribution moves by at most 0.05 in the metric of the problem.",
    }


def _features(rng):
    spread = [16.0, 18.5, 1.4, 0.5, 0.45, 12.0]
    standardised = [0.41, -0.12, 0.77, 0.18, -0.03, 0.002]
    return [
        {"name": name, "coefficient": value / sd, "standardised": value}
        for name, value, sd in zip(FEATURES, standardised, spread, strict=True)
    ]


def _history():
    best = 0.6581
    return [[best + 1.9 * 0.15**k, best - 0.9 * 0.13**k] for k in range(8)]


def _over_clients(losses, rows):
    return {
        "mean": float(losses @ rows / rows.sum()),
        "worst_client": float(losses.max()),
        "worst_decile": float(np.sort(losses)[-math.ceil(len(losses) / 10) :].mean()),
    }


# Changes of the mean and of the worst tenth against pooled training, of each of MIXTURE_SPECS.
MEANS = [0.0, 0.005, 0.014, 0.073, 0.1, 0.15, 0.71]
WORST = [0.0, -0.056, -0.09, -0.12, -0.15, -0.16, -0.2]


def _calibration(scales=(0.0,)):
    candidates = [
        {
            "scale": scale,
            "max_weight_ratio": max_weight_ratio,
            "mixing": mixing,
            "score": 0.7 * (1 + 0.8 * worst + 0.01 * scale),
            "mean": 0.4 * (1 + mean + 0.02 * scale),
            "worst_decile": 0.8 * (1 + worst + 0.01 * scale),
        }
        for scale in scales
        for (max_weight_ratio, mixing), mean, worst in zip(MIXTURE_SPECS, MEANS, WORST, strict=True)
    ]
    own = {"mean": 0.4 * 0.93, "worst_decile": 0.8 * 0.85}
    marks = {"pooled": 0, "afl": len(MIXTURE_SPECS) - 1, "chosen": 2}
    return {"folds": 5, "max_cost": 0.02, "given": False, "candidates": candidates, **marks, "personal": own}


def radii():
    """Radii were cross-validated as well, whatever they cost."""
    made = content(seed=6)
    return made | {"calibration": _calibration((0.0, 0.5, 1.0, 2.0)) | {"max_cost": None, "personal": None}}


def regret():
    """Trained for the clients' regret, to which the solver's bounds belong."""
    made = content(seed=8)
    words = "The criterion is regret: what clients lose beyond what they could attain by themselves."
    return made | {"criterion": "regret", "chosen": made["chosen"] | {"criterion": words}}


def pooled():
    """Nothing was better than pooled training, and there are concerns."""
    made = content(seed=7)
    words = (
        "The shared model is that of pooled training: no candidate was better for the worst clients beyond "
        "chance, within the largest cost."
    )
    concerns = ["This model hardly varies.", "On held-out rows these clients lose: 'St Anne's' (+12%)."]
    return made | {
        "calibration": made["calibration"] | {"chosen": 0, "personal": {"mean": 0.2, "worst_decile": 0.3}},
        "chosen": made["chosen"] | {"robustness_cost": words},
        "robustness_cost": {"mean": 0.0, "worst_decile": 0.0, "pooled": True, "same_radius": False},
        "concerns": concerns,
    }


def _worst_case(name, rng):
    before = [61.2, 128.4, 1.1, 1.02, 0.28, 9.4]
    spread = [16.0, 18.5, 1.4, 0.5, 0.45, 12.0]
    moves = rng.normal(scale=0.12, size=6)
    return {
        "client": name,
        "moved": [
            {"name": feature, "before": b, "change": m * sd, "in_sd": float(m)}
            for feature, b, m, sd in zip(FEATURES, before, moves, spread, strict=True)
        ],
    }


def hostile():
    """Names that would be markup, a place in the template, or too long for a label, were they not text."""
    names = [
        "</script><img src=x onerror=alert(1)>",
        "{{script}} & <b>bold</b>",
        "<!--<script>",
        "\u2028line\u2029ends",
        "Royal and Ancient Infirmary of the Seven Parishes, with the Cottage Hospital",
        "a" * 90,
    ]
    made = content(names, seed=5)
    made["features"][0]["name"] = made["worst_case"][0]["moved"][0]["name"] = "<svg onload=alert(2)>" * 4
    return made | {"title": "</title><script>alert(3)</script>"}


def federated():
    """With what would be without each site."""
    made = content(seed=4)
    first, second, *others = [client["name"] for client in made["clients"]]
    made["influence"] = {
        "words": "The model without each site in turn, found exactly.",
        "sites": [
            {"site": first, "weight": 0.31, "moved": 0.42, "changes": {}, "gain": others, "lose": [second]},
            {"site": second, "weight": 0.2, "moved": 0.01, "changes": {}, "gain": [], "lose": []},
        ],
    }
    made["federated"] = {
        "run": "stay",
        "rounds": 9,
        "left": [
            _left("Rows, means and spreads", [first, second, *others], 1, 27, 904),
            _left("Where values lie", [first, second, *others], 1, 315, 2720),
            _left("Segments that rows bear", [first, second, *others], 1, 5, 240),
            _left("Second moments", [first, second, *others], 2, 129, 1352),
            _left("Losses in training", [first, second, *others], 1, 17, 816),
            _left("Losses on held-out rows", [second, *others], 1, 22, 992),
        ],
        "refused": [{"site": first, "why": "it tells of 12 rows behind a reply, and of 9 in all."}],
        "lost": {"Far Field": "it did not answer for 300 s"},
    }
    made["plainly"]["guess_held_out"] = False
    return made


def _left(what, sites, messages, numbers, sent):
    """What each of these sites sent: so many messages of so many numbers and bytes."""
    each = {"messages": messages, "numbers": messages * numbers, "bytes": messages * sent}
    whole = {name: len(sites) * number for name, number in each.items()}
    reveals = f"{what} of each site, and no row."
    by_site = {site: dict(each) for site in sites}
    return {"what": what, "reveals": reveals, "fewest_rows": 24, **whole, "sites": by_site}
