"""A model of bidro that predicts with NumPy alone; nothing else need be installed.

As a module: `predict({"age": [61, 40], "ward": ["surgery", "trauma"]})`, with the columns of training by
name: numbers (NaN for an empty cell, dates as days since 1970-01-01) and categories as text ("" for an
empty one).
The column of the client is optional; where it is there, each row gets its client's own model, if it has one.
As a program: `python FILE.py table.csv > predictions.csv`.

A cell that the model refuses gives no prediction: NaN, or an empty label.
"""

from __future__ import annotations

import csv
import json  # noqa: F401 - by which the model is read
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MODEL: dict[str, Any] = {}


def predict(table: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """By name `prediction` (rows,) of a number; of classes `label` (rows,) and `probabilities`, or `scores`
    where the loss has none, (rows, classes), in the order of MODEL["classes"]."""
    features = np.stack([own for one in MODEL["columns"] for own in _coded(one, table)], axis=1)
    design = _design(features) if "curves" in MODEL else features
    scores = _scores(design, *MODEL["shared"])
    if MODEL["client"] in table:
        clients = np.array([str(name) for name in table[MODEL["client"]]], object)
        for name in set(clients) & set(MODEL["models"]):
            own = clients == name
            scores[own] = _scores(design[own], *MODEL["models"][name])
    if MODEL["classes"] is None:
        return {"prediction": np.exp(scores[:, 0]) if MODEL["exponential"] else scores[:, 0]}
    if scores.shape[1] == 1:
        scores = np.hstack([0 * scores, scores])
        best = (scores[:, 1] > 0).astype(int)
    else:
        best = scores.argmax(axis=1)
    label = np.where(np.isnan(scores[:, 0]), "", np.array(MODEL["classes"], object)[best])
    if not MODEL["probabilities"]:
        return {"label": label, "scores": scores}
    with np.errstate(under="ignore"):
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    return {"label": label, "probabilities": odds / odds.sum(axis=1, keepdims=True)}


def _scores(design: Any, slopes: Any, offsets: Any) -> Any:
    return design @ np.array(slopes).T + np.array(offsets)


def _coded(column: Mapping[str, Any], table: Mapping[str, Sequence[Any]]) -> list[Any]:
    """The columns of numbers (rows,) that a column of the table becomes."""
    name = column["of"] or column["name"]
    if name not in table:
        raise KeyError(f"The table has no column '{name}', which the model needs.")
    cells = table[name]
    if column["of"] is not None:
        return [np.array([_empty(cell) for cell in cells], float)]
    if column["levels"] is None:
        numbers = np.array([np.nan if _empty(cell) else float(cell) for cell in cells])
        if column.get("exposure"):
            numbers = np.log(np.where(numbers > 0, numbers, np.nan))
        return [
            numbers if column["filler"] is None else np.where(np.isnan(numbers), column["filler"], numbers)
        ]
    codes = np.array([_place(column, cell) for cell in cells], float)
    levels = len(column["levels"])
    # A level that is not listed is an equal share of each, a cell that is refused is no number.
    return [
        np.where(np.isnan(codes), np.nan, np.where(codes < 0, 1 / levels, codes == k))
        for k in range(1, levels)
    ]


def _place(column: Mapping[str, Any], cell: Any) -> float:
    """Which level a cell is, -1 for none that is listed, NaN for one that is refused."""
    levels, other = column["levels"], column["other"]
    unlisted = -1 if other is None else levels.index(other)
    if _empty(cell):
        if column["filler"] is None:
            return np.nan
        return levels.index(column["filler"]) if column["filler"] in levels else unlisted
    if str(cell) in levels:
        return levels.index(str(cell))
    same = [k for k, level in enumerate(levels) if _number(level) == _number(cell) is not None]
    return same[0] if len(same) == 1 else unlisted


def _number(cell: Any) -> float | None:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return None


def _empty(cell: Any) -> bool:
    return cell is None or cell == "" or cell != cell


def _design(features: Any) -> Any:
    """(rows, segments) how far each row is through each segment of the curves, in the units of training."""
    curves = MODEL["curves"]
    rows = (features - np.array(curves["mean"])) / np.array(curves["spread"])
    feature, curve = np.array(curves["feature"]), np.array(curves["curve"])
    low = np.array([-np.inf if end is None else end for end in curves["low"]])
    high = np.array([np.inf if end is None else end for end in curves["high"]])
    each = rows[:, feature]
    for j, by in enumerate(curves["by"]):
        if by is not None:
            away = rows[:, None, by["columns"]] - np.array(by["values"])
            level = np.argmin((away**2).sum(axis=2), axis=1)
            own = feature == j
            of_column = np.where(own, curve - curve[own].min(), 0)
            each = np.where((level[:, None] == of_column) | ~own, each, 0.0)
    return np.where(each < low, low, np.where(each > high, high, each)) - np.clip(0.0, low, high)


if __name__ == "__main__":
    with open(sys.argv[1], newline="", encoding="utf-8-sig") as file:
        lines = list(csv.reader(file))
    found = predict({name: [line[j] for line in lines[1:]] for j, name in enumerate(lines[0])})
    out = csv.writer(sys.stdout)
    more = [] if "prediction" in found else [f"probability of {name}" for name in MODEL["classes"]]
    out.writerow(["prediction", *(more if "probabilities" in found else [])])
    said: Any = found.get("prediction", found.get("label"))
    wide = found.get("probabilities", np.empty((len(said), 0)))
    out.writerows([one, *own] for one, own in zip(said.tolist(), wide.tolist(), strict=True))
