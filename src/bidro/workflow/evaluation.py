"""Evaluation of a model on rows with known targets: the clients' mean losses, typical errors, mistakes,
discrimination and calibration of classes, as numbers and as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit, softmax

from bidro.core.arrays import Floats
from bidro.data.given_rows import by_client
from bidro.data.tables import Schema
from bidro.fit.baselines import area_under_curve
from bidro.fit.fitted import Change, Changes, ClientLoss
from bidro.losses import errors_of, mistakes_of, registry
from bidro.losses.registry import LossEntry
from bidro.model.model_file import Model
from bidro.selection.rule import worst_decile
from bidro.workflow.survival import Watched, survival_evaluation
from bidro.workflow.survival import in_words as survival_in_words

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
# The share of rows whose intervals are looked at, and draws of what chance alone would show.
INSIDE, _DRAWS = 0.9, 2_000
_MODELS = {"pooled": "pooled training", "shared": "the shared model", "personal": "each client's own model"}
_SHORT = {"pooled": "pooled", "shared": "shared", "personal": "own"}


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
    table = schema.laid_out(table)
    people = schema.people(table)
    return None if people is None else by_client(schema.clients(table), people)


def rows_by_client(model: Model, table: pd.DataFrame) -> dict[str, Floats]:
    """Rows (N_i, m) of every client in a table, in the units of training, by name."""
    table = model.schema.laid_out(table)
    return by_client(model.schema.clients(table), model.rows(table))


def evaluated(model: Model, table: pd.DataFrame) -> dict[str, Any]:
    """`evaluation` of a model on a table with known targets, with the loss's name and the `measures`:
    over all rows under each of the three models, and of every client under the model that it uses.

    Clients that the model does not know use the shared one. Standard errors are by person where the model was
    trained so. `intervals` says how many rows are inside theirs, where the model has any: see `coverage`.
    `deviation` is that of the scores under the shared model and under pooled training.
    `not_in_training` has the clients that the model does not know, `counted_as_other` by column the rows
    whose level it does not know by name, `unseen_levels` those that count as the average level for want of
    another, `outside_range` by feature the rows outside what was seen.
    """
    survival, times = model.schema.survival, {}
    if survival is not None and not survival.is_laid_out(table):
        times = {"survival": survival_evaluation(Watched.fresh(model, table))}
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
    costs, entry = None, registry.entry_of(model.loss)
    if model.schema.classes is not None or entry.by_errors:
        cost = errors_of if entry.by_errors else mistakes_of

        def mean_cost(which: str, name: str) -> float:
            each = cost(model.loss, models[which][name], by_name[name])
            return ClientLoss.of(each, people=None if people is None else people[name]).loss

        costs = {which: {name: mean_cost(which, name) for name in by_name} for which in models}
    found["measured"] = measured(found, entry, costs)
    for name, own_rows in by_name.items():
        x, client = model.used_by(name), found["clients"][name]
        right = model.correct(own_rows, x)
        client |= measures(model, model.scores(own_rows, x), own_rows, right, client["personal"])
        # Of few rows it says more about chance than about the model.
        client.pop("calibration_error", None)
    if model.intervals is not None:
        held = {name: model.inside_interval(own, name, INSIDE) for name, own in by_name.items()}
        found["intervals"] = coverage(held, people is not None)
        for name, inside in held.items():
            found["clients"][name]["inside"] = float(inside.mean())
    loss = registry.entry_of(model.loss).word
    return {
        "loss": loss,
        "target": model.schema.target,
        "target_unit": model.schema.target_unit,
        **baselines["shared"],
        **found,
        **times,
        "deviation": {which: deviation(scores[which]) for which in ("shared", "pooled") if which in scores},
        "not_in_training": sorted(set(by_name) - set(model.clients)),
        "counted_as_other": model.schema.counted_as_other(model.schema.once(table)),
        "unseen_levels": model.schema.unseen_levels(model.schema.once(table)),
        "outside_range": model.outside(table),
    }


def coverage(inside: Mapping[str, NDArray[np.bool_]], people: bool = False) -> dict[str, float | None]:
    """How many rows are inside their intervals, from whether each (N_i,) by client is: over all rows, over
    the worst tenth of the clients, and what chance alone would show there if every row were inside with the
    promised probability by itself; None for rows of `people`, which are not."""
    rows = np.array([len(own) for own in inside.values()])
    share = np.array([own.mean() for own in inside.values()])
    return {
        "share": INSIDE,
        "inside": float(rows @ share / rows.sum()),
        "worst_decile": -float(worst_decile(-share)),
        "by_chance": None if people else lowest_by_chance(rows),
    }


def lowest_by_chance(rows: NDArray[np.int64], share: float = INSIDE) -> float:
    """The mean over draws of the share of rows inside in the worst tenth of clients with so many rows (n,),
    where every row is inside with the same probability."""
    drawn = np.random.default_rng(0).binomial(rows, share, (_DRAWS, len(rows)))
    return -float(np.mean(worst_decile(-drawn.T / rows[:, None])))


def _intervals_line(found: Mapping[str, Any]) -> list[str]:
    """How many rows are inside their intervals; nothing of a model without them."""
    if "intervals" not in found:
        return []
    one, clients = found["intervals"], len(found["clients"])
    worst = "at the worst client" if clients <= 10 else "in the worst tenth of the clients"
    chance = one["by_chance"]
    alone = (
        ""
        if chance is None
        else f" (chance alone, with {one['share']:.0%} everywhere, shows {chance:.1%} there)"
    )
    return [
        f"Intervals at {one['share']:.0%}: {one['inside']:.1%} of the rows are inside, "
        f"{one['worst_decile']:.1%} {worst}{alone}."
    ]


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
    """The evaluation as text, in the measure that people have (see `measured`): the models side by side, then
    every client, or of many clients the quantiles and the worst. Of times to an event it is what
    `workflow.survival` says, as nearly all periods pass without one."""
    if "survival" in found:
        return survival_in_words(found["survival"], MOST_LISTED)
    measure = found["measured"]
    unit = f" in {found['target_unit']}" if found["target_unit"] else ""
    title = {
        "right": "Right predictions",
        "error": "Typical error" + unit,
        "loss": f"Mean {found['loss']} loss",
    }
    heading = title[measure["of"]]
    rows = sum(one["rows"] for one in found["clients"].values())
    models = [(_MODELS[which], *one) for which, one in measure["models"].items()]
    right = measure["of"] == "right"
    lines = side_by_side(f"{heading}, on {count_of_rows(rows)}", right, len(found["clients"]), models)
    lines += _in_use_line(found)
    lines += _intervals_line(found)
    lines += _against_pooled(found)
    worst_first = sorted(measure["clients"].items(), key=lambda item: item[1][-1], reverse=not right)
    shown, counted = worst_first, "worst first"
    if len(worst_first) > MOST_LISTED:
        each = [one[-1] for _, one in worst_first]
        quantiles = np.quantile(each, (0.1, 0.5, 0.9))
        words = ("one in ten below", "half below", "nine in ten below")
        lines.append(
            f"{len(worst_first):,} clients by the model that each uses: "
            + ", ".join(
                f"{word} {_shown(value, right)}" for word, value in zip(words, quantiles, strict=True)
            )
        )
        shown, counted = worst_first[:_WORST_LISTED], f"the {_WORST_LISTED} worst (--json has all)"
    title_row = [f"{heading}, {counted}", "rows", *(_SHORT[which] for which in measure["models"])]
    if found["pooled"] is not None:
        title_row += ["mean loss against pooled"]
    return "\n".join(
        [*lines, "", *in_columns([title_row, *(_client_cells(name, own, found) for name, own in shown)])]
    )


def measured(
    found: Mapping[str, Any], entry: LossEntry, costs: Mapping[str, Mapping[str, float]] | None
) -> dict[str, Any]:
    """An evaluation in the measure that people have: `of` is "error", a typical error in the target's own
    unit, "right", the share of right predictions, or "loss" where a loss has neither.

    `models` has [over all rows, over the worst tenth of the clients] by model, pooled training first, and
    `clients` the same models' numbers by client in that order, the model that is used last.

    Args:
        found: What `evaluation` says.
        entry: The loss's.
        costs: By model and client, of classes the shares of wrong predictions, of counts and costs the mean
            absolute errors; None where the measure follows from the mean loss.
    """
    kind = "loss" if entry.typical is None else "error"
    if costs is not None:
        kind = "error" if entry.by_errors else "right"

    def plain(cost: float) -> float:
        if costs is None:
            return cost if entry.typical is None else entry.typical(cost)
        return 1 - cost if kind == "right" else cost

    rows = [one["rows"] for one in found["clients"].values()]
    models: dict[str, list[float]] = {}
    clients: dict[str, list[float]] = {name: [] for name in found["clients"]}
    for which, field in (("pooled", "pooled"), ("shared", "loss"), ("personal", "personal")):
        if which != "shared" and found[which] is None:
            continue
        of_client = {
            name: one[field] if costs is None else costs[which][name]
            for name, one in found["clients"].items()
        }
        each = np.array(list(of_client.values()))
        models[which] = [plain(float(np.average(each, weights=rows))), plain(float(worst_decile(each)))]
        for name, cost in of_client.items():
            clients[name].append(plain(cost))
    return {"of": kind, "models": models, "clients": clients}


def side_by_side(
    title: str,
    right: bool,
    clients: int,
    models: Sequence[tuple[str, float, float] | tuple[str, float, float, str]],
) -> list[str]:
    """Lines of a table of models: (name, over all rows, over the worst tenth of the clients, and a remark
    where there is one). How they stand against pooled training is in shares of its error, or in points of
    right predictions."""
    worst = "worst client" if clients <= 10 else "worst tenth of clients"
    pooled = next((model[1] for model in models if model[0] == _MODELS["pooled"]), None)
    rows = [[title, "all rows", worst, "against pooled"]]
    for name, overall, last, *remark in models:
        against = ""
        if pooled and name != _MODELS["pooled"]:
            against = f"{overall - pooled:+.1%}" if right else f"{overall / pooled - 1:+.1%}"
        rows.append([name, _shown(overall, right), _shown(last, right), against, *remark])
    return in_columns(rows)


def _shown(value: float, right: bool) -> str:
    """A share, or a number to three digits, without an exponent where that is readable."""
    if right:
        return f"{value:.1%}"
    if not 1e-4 <= abs(value) < 1e9:
        return f"{value:.3g}"
    return f"{value:,.{max(2 - math.floor(math.log10(abs(value))), 0)}f}"


def count_of_rows(rows: int) -> str:
    return "1 row" if rows == 1 else f"{rows:,} rows"


def _in_use_line(found: Mapping[str, Any]) -> list[str]:
    """Discrimination and calibration of the models in use, of classes; nothing for a number."""
    used = found["personal"] or found
    parts = []
    if used.get("auc") is not None:
        parts.append(f"area under the curve {used['auc']:.3f}")
    if "expected_minus_observed" in used:
        parts.append(f"expected minus observed {used['expected_minus_observed']:+.1%}")
    if "calibration_error" in used:
        parts.append(f"calibration error {used['calibration_error']:.3f} ({BINS} bins)")
    return [f"The models in use: {', '.join(parts)}."] if parts else []


def _against_pooled(found: Mapping[str, Any]) -> list[str]:
    """Which clients gain or lose against pooled training, beyond chance."""
    if found["pooled"] is None:
        return []
    lines = []
    for word in ("gain", "lose"):
        who = [name for name, one in found["clients"].items() if one["verdict"] == f"{word}s"]
        named = ", ".join(who[:_MOST_NAMED])
        more = f" and {len(who) - _MOST_NAMED:,} more" if len(who) > _MOST_NAMED else ""
        lines.append(
            f"{len(who):,} of {len(found['clients']):,} clients {word} by more than two standard errors "
            f"against pooled training{': ' if who else ''}{named}{more}."
        )
    return lines


def _client_cells(name: str, own: Sequence[float], found: Mapping[str, Any]) -> list[str]:
    """Its name, its rows, what each model comes to there, and what the model that it uses changes."""
    one, right = found["clients"][name], found["measured"]["of"] == "right"
    cells = [name, f"{one['rows']:,}", *(_shown(value, right) for value in own)]
    if "pooled" in one:
        change, before = one["personal_change"], abs(one["pooled"])
        error = "" if change["se"] is None or not before else f" ± {change['se'] / before:.1%}"
        cells += [f"{change['mean'] / before:+.1%}{error}" if before else "", one["verdict"] or ""]
    return [*cells, "not in training" if name in found["not_in_training"] else ""]


def in_columns(lines: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: the first column on the left, numbers on the right, remarks behind as they are."""
    numbers = len(lines[0])
    wide = [max(len(line[j]) for line in lines if j < len(line)) for j in range(numbers)]
    return [
        "  ".join(
            (
                line[0].ljust(wide[0]),
                *(cell.rjust(w) for cell, w in zip(line[1:numbers], wide[1:], strict=False)),
                *line[numbers:],
            )
        ).rstrip()
        for line in lines
    ]
