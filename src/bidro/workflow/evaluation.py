"""Evaluation of a model on rows with known targets: the clients' mean losses, typical errors, mistakes,
discrimination and calibration of classes, as numbers and as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit, softmax

from bidro.core.arrays import Floats
from bidro.data.given_rows import by_client
from bidro.data.tables import Schema
from bidro.fit.fitted import Change, Changes, ClientLoss
from bidro.losses import registry
from bidro.model.model_file import Model
from bidro.selection.rule import worst_decile

# Of the calibration error, of equal width.
BINS = 10
# A client's loss is said to be higher only beyond so many standard errors of the difference.
_ERRORS = 2.0
# And only by more than this share of it: what is less is rounding, or what a solver leaves.
_TOLD_APART = 1e-6
# More clients than this are summarised on the screen: quantiles, and so many of the worst.
MOST_LISTED = 50
_WORST_LISTED = 10
_MOST_NAMED = 5
_MODELS = {"personal": "with personal models", "pooled": "pooled training"}


def measures(
    model: Model, scores: Floats, rows: Floats, right: NDArray[np.bool_] | None, loss: float
) -> dict[str, Any]:
    """Of scores (N, outputs) for rows (N, m) in the units of training, whose mean loss is `loss`. `right`
    (N,) says whose class is predicted, None for a number.

    Squared loss has `root_mean_squared_error`, in the target's own unit. Classes have `accuracy`, `mistakes`
    (the share of wrong predictions) and `auc`, the area under the curve of one class against the rest, of
    more than two classes the mean; None where the rows are of one class. Of probabilities there are
    `expected_minus_observed`, of two classes the mean probability of the second less its share of the rows,
    and `calibration_error`, see there.
    """
    entry, classes = registry.entry_of(model.loss), model.schema.classes
    if classes is None or right is None:
        return {"root_mean_squared_error": float(np.sqrt(loss))} if entry.root_unit else {}
    if scores.shape[1] == 1:
        each, truth = scores, (rows[:, -1:] > 0)
        chances = expit(scores)
    else:
        # Only differences between the scores of a row mean anything.
        each = chances = softmax(scores, axis=1)
        truth = rows[:, -1:] == np.arange(len(classes))
    shares = {"accuracy": float(right.mean()), "mistakes": float(1 - right.mean())}
    found: dict[str, Any] = {**shares, "auc": _mean_area(each, truth)}
    if entry.probabilities:
        if scores.shape[1] == 1:
            found["expected_minus_observed"] = float(chances.mean() - truth.mean())
        found["calibration_error"] = calibration_error(chances, truth)
    return found


def area_under_curve(scores: Floats, positive: NDArray[np.bool_]) -> float | None:
    """The area under the ROC curve of scores (N,), ties counted by half; None where all rows are of one
    class."""
    several, others = int(positive.sum()), int((~positive).sum())
    if several == 0 or others == 0:
        return None
    below = np.sort(scores[~positive])
    lower, at_most = (np.searchsorted(below, scores[positive], side) for side in ("left", "right"))
    return float((lower.sum() + at_most.sum()) / (2 * several * others))


def calibration_error(chances: Floats, truth: NDArray[np.bool_]) -> float:
    """The mean distance of probabilities (N, classes) from the shares of what is true, over rows, in ten bins
    of equal width a class; the mean over classes. By chance it is above 0, of few rows far above."""
    bins = np.minimum((chances * BINS).astype(int), BINS - 1)
    apart = [
        np.abs(np.bincount(bins[:, k], chances[:, k] - truth[:, k], BINS)).sum() / len(chances)
        for k in range(chances.shape[1])
    ]
    return float(np.mean(apart))


def deviation(scores: Floats) -> float:
    """The standard deviation of scores (N, outputs), of several outputs together; for a numeric target in its
    own unit."""
    return float(np.sqrt(np.sum(np.var(scores, axis=0))))


def _mean_area(scores: Floats, truth: NDArray[np.bool_]) -> float | None:
    areas = [area_under_curve(scores[:, k], truth[:, k]) for k in range(truth.shape[1])]
    known = [area for area in areas if area is not None]
    return float(np.mean(known)) if known else None


def verdict(change: Change, before: float) -> str | None:
    """Whether a client "gains" or "loses" against its loss `before`, of pooled training, beyond chance and
    rounding; None where neither."""
    if change.se is None or abs(change.mean) <= max(_ERRORS * change.se, _TOLD_APART * abs(before)):
        return None
    return "loses" if change.mean > 0 else "gains"


def evaluation(
    clients: Mapping[str, ClientLoss], changes: Mapping[str, Changes] | None = None
) -> dict[str, Any]:
    """Mean over all rows, worst client and worst decile of the shared model; the same in `personal`, with
    every client using its personal model, None where none has one, and in `pooled`, of pooled training, None
    where `changes` against it are not known; and the clients.

    A client has its mean loss with its standard error, that under the model it uses, `personal`, and where
    `changes` are known that of pooled training, what changed with standard errors, and in `verdict` whether
    it "gains" or "loses" by the model it uses beyond chance, or None.
    """
    rows = np.array([one.rows for one in clients.values()])
    used = [one.personal for one in clients.values()]
    shared = [one.loss for one in clients.values()]
    each: dict[str, Any] = {name: one._asdict() for name, one in clients.items()}
    pooled = None
    if changes is not None:
        for name, change in changes.items():
            before = clients[name].loss - change.shared.mean
            each[name] |= {
                "pooled": before,
                "shared_change": change.shared._asdict(),
                "personal_change": change.personal._asdict(),
                "verdict": verdict(change.personal, before),
            }
        pooled = _over_clients([each[name]["pooled"] for name in clients], rows)
    return {
        **_over_clients(shared, rows),
        "personal": None if used == shared else _over_clients(used, rows),
        "pooled": pooled,
        "clients": each,
    }


def _over_clients(means: list[float], rows: NDArray[np.int64]) -> dict[str, float]:
    losses = np.array(means)
    return {
        "mean": float(rows @ losses / rows.sum()),
        "worst_client": float(losses.max()),
        "worst_decile": float(worst_decile(losses)),
    }


def people_by_client(schema: Schema, table: pd.DataFrame) -> dict[str, NDArray[np.str_]] | None:
    """The person of every row of every client in a table, by name, in the order of `rows_by_client`; None
    where the schema names none."""
    people = schema.people(table)
    return None if people is None else by_client(schema.clients(table), people)


def rows_by_client(model: Model, table: pd.DataFrame) -> dict[str, Floats]:
    """Rows (N_i, m) of every client in a table, in the units of training, by name."""
    return by_client(model.schema.clients(table), model.rows(table))


def evaluated(model: Model, table: pd.DataFrame) -> dict[str, Any]:
    """`evaluation` of a model on a table with known targets, with the loss's name and the `measures`:
    over all rows under each of the three models, and of every client under the model that it uses.

    Clients that the model does not know use the shared one. Standard errors are by person where the model was
    trained so. `deviation` is that of the scores under the shared model and under pooled training.
    `not_in_training` has the clients that the model does not know, `counted_as_other` by column the rows
    whose level it does not know by name, `unseen_levels` those that count as the average level for want of
    another, `outside_range` by feature the rows outside what was seen.
    """
    by_name, people = rows_by_client(model, table), people_by_client(model.schema, table)
    models = {"shared": dict.fromkeys(by_name, model.x)}
    if not set(model.personal).isdisjoint(by_name):
        models["personal"] = {name: model.used_by(name) for name in by_name}
    if model.pooled is not None:
        models["pooled"] = dict.fromkeys(by_name, model.pooled)
    losses = {
        which: {name: model.losses(rows, x[name]) for name, rows in by_name.items()}
        for which, x in models.items()
    }
    found, rows = _evaluation(losses, people), np.concatenate(list(by_name.values()))

    def of_all(what: Callable[[Floats, Floats], Any], which: str) -> Any:
        """(N, ...) of every row under its client's model, client by client."""
        return np.concatenate([what(rows, models[which][name]) for name, rows in by_name.items()])

    scores = {which: of_all(model.scores, which) for which in models}
    baselines = {}
    for which in models:
        right = None if model.schema.classes is None else of_all(model.correct, which)
        mean = (found if which == "shared" else found[which])["mean"]
        baselines[which] = measures(model, scores[which], rows, right, mean)
    for which in set(models) - {"shared"}:
        found[which] |= baselines[which]
    for name, own_rows in by_name.items():
        x, client = model.used_by(name), found["clients"][name]
        right = model.correct(own_rows, x)
        client |= measures(model, model.scores(own_rows, x), own_rows, right, client["personal"])
        # Of few rows it says more about chance than about the model.
        client.pop("calibration_error", None)
    return {
        "loss": registry.entry_of(model.loss).word,
        "target": model.schema.target,
        "target_unit": model.schema.target_unit,
        **baselines["shared"],
        **found,
        "deviation": {which: deviation(scores[which]) for which in ("shared", "pooled") if which in scores},
        "not_in_training": sorted(set(by_name) - set(model.clients)),
        "counted_as_other": model.schema.counted_as_other(table),
        "unseen_levels": model.schema.unseen_levels(table),
        "outside_range": model.outside(table),
    }


def _evaluation(
    losses: Mapping[str, Mapping[str, Floats]], people: Mapping[str, NDArray[np.str_]] | None
) -> dict[str, Any]:
    """`evaluation` of losses (N_i,) by model and client."""
    shared = losses["shared"]
    personal, pooled = losses.get("personal", shared), losses.get("pooled")

    def labels(name: str) -> NDArray[np.str_] | None:
        return None if people is None else people[name]

    def change(name: str, after: Floats, before: Floats) -> Change:
        apart = ClientLoss.of(after - before, people=labels(name))
        return Change(apart.loss, apart.se)

    clients = {
        name: ClientLoss.of(each, personal=personal[name], people=labels(name))
        for name, each in shared.items()
    }
    if pooled is None:
        return evaluation(clients)
    changes = {
        name: Changes(change(name, shared[name], before), change(name, personal[name], before))
        for name, before in pooled.items()
    }
    return evaluation(clients, changes)


def in_words(found: Mapping[str, Any]) -> str:
    """The evaluation as text: every client, or of many clients the quantiles and the worst."""
    measure = found["target_unit"]
    unit = "" if measure is None else f", in {registry.unit_of(found['loss'], measure)}"
    lines = [f"{found['loss']} loss{unit}: {_model_line(found, measure)}", *_classes_line(found)]
    for which, title in _MODELS.items():
        if found[which] is not None:
            lines += [f"  {title}: {_model_line(found[which], measure)}", *_classes_line(found[which])]
    lines += _against_pooled(found)
    worst_first = sorted(found["clients"].items(), key=lambda item: -item[1]["personal"])
    shown = worst_first
    if len(worst_first) > MOST_LISTED:
        quantiles = np.quantile([one["personal"] for _, one in worst_first], (0, 0.1, 0.5, 0.9, 1))
        words = ("best", "10%", "median", "90%", "worst")
        lines.append(
            f"  {len(worst_first):,} clients, mean losses: "
            + ", ".join(f"{word} {value:.4g}" for word, value in zip(words, quantiles, strict=True))
        )
        lines.append(f"  the {_WORST_LISTED} worst (--json has all):")
        shown = worst_first[:_WORST_LISTED]
    lines += _in_columns([_client_cells(name, one, found) for name, one in shown])
    return "\n".join(lines)


def _model_line(found: Mapping[str, Any], measure: str | None) -> str:
    return (
        f"mean {found['mean']:.4g}{_second_measure(found, measure)}, worst client "
        f"{found['worst_client']:.4g}, worst decile {found['worst_decile']:.4g}"
    )


def _classes_line(found: Mapping[str, Any]) -> list[str]:
    """Discrimination and calibration of classes; nothing for a number."""
    if "mistakes" not in found:
        return []
    parts = [f"mistakes {found['mistakes']:.1%}"]
    if found["auc"] is not None:
        parts.append(f"area under the curve {found['auc']:.3f}")
    if "expected_minus_observed" in found:
        parts.append(f"expected minus observed {found['expected_minus_observed']:+.1%}")
    if "calibration_error" in found:
        parts.append(f"calibration error {found['calibration_error']:.3f} ({BINS} bins)")
    return [f"    {', '.join(parts)}"]


def _against_pooled(found: Mapping[str, Any]) -> list[str]:
    """Lines against pooled training: the deviation of predictions, and which clients gain or lose beyond
    chance."""
    if found["pooled"] is None:
        return []
    shared, pooled = found["deviation"]["shared"], found["deviation"]["pooled"]
    lines = [f"  deviation of the predictions {shared:.4g}, under pooled training {pooled:.4g}"]
    for word in ("gain", "lose"):
        who = [name for name, one in found["clients"].items() if one["verdict"] == f"{word}s"]
        named = ", ".join(who[:_MOST_NAMED])
        more = f" and {len(who) - _MOST_NAMED:,} more" if len(who) > _MOST_NAMED else ""
        lines.append(
            f"  {len(who):,} of {len(found['clients']):,} clients {word} by more than two standard errors "
            f"against pooled training{': ' if who else ''}{named}{more}"
        )
    return lines


def _client_cells(name: str, one: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Its name, its loss under the shared model, its personal one and pooled training, what changed, its
    rows."""
    se = "" if one["se"] is None else f" ± {one['se']:.2g}"
    shared = f"{one['loss']:.4g}{se}"
    cells = [f"{name:<20} {shared}"]
    if found["personal"] is not None:
        cells.append(f"personal {one['personal']:.4g}")
    cells[-1] += _second_measure(one, found["target_unit"])
    if "pooled" in one:
        change = one["personal_change"]
        error = "" if change["se"] is None else f" ± {change['se']:.2g}"
        cells += [f"pooled {one['pooled']:.4g}", f"{change['mean']:+.4g}{error}", one["verdict"] or ""]
    new = ", not in training" if name in found["not_in_training"] else ""
    rows = "1 row" if one["rows"] == 1 else f"{one['rows']:,} rows"
    return [*cells, f"({rows}{new})"]


def _in_columns(lines: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def _second_measure(found: Mapping[str, Any], measure: str | None) -> str:
    if "accuracy" in found:
        return f" (accuracy {found['accuracy']:.1%})"
    if "root_mean_squared_error" in found:
        unit = "" if measure is None else f" {measure}"
        return f" (root {found['root_mean_squared_error']:.4g}{unit})"
    return ""
