"""The models of all largest costs, in the folder of a fit: `frontier.zip`, and taking another one of them.

A fit chooses its model by rows left out in training, before any held-out row is looked at, and states it at
the confidence that was asked for. Whoever takes another one has seen what held-out rows say of all of them.
So each of the frontier, that of the fit among them, is stated with its share of the level: with K models and
confidence c each by itself at 1 - (1 - c) / K, and so all K at once at c, whichever is taken and why.

Several models of the same rows say more about these than one: the file is for those who hold the rows.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import bidro
from bidro.certify.intervals import FILE as INTERVALS_FILE
from bidro.core.errors import BidroError
from bidro.core.files import parsed_json, read_bytes
from bidro.model.model_file import FILE, Model
from bidro.model.personal_file import FILE as PERSONAL_FILE
from bidro.model.personal_file import personal_file_in
from bidro.report.page import page_html
from bidro.workflow.evaluation import evaluation
from bidro.workflow.fit import Fit, described_fit
from bidro.workflow.offer import offer_of, promise

FRONTIER_FILE = "frontier.zip"
_FORMAT, _VERSION, _INDEX = "bidro frontier", 1, "index.json"
# A date that files of any fit have, so that the same fit gives the same bytes.
_DATE = (1980, 1, 1, 0, 0, 0)


class Offered(NamedTuple):
    """One model of the frontier, in the measure that the table of a fit is in."""

    max_cost: float  # the least largest cost that takes it
    shared: tuple[float, float] | None  # of the shared model, over all rows and over the worst tenth of the
    # clients, of few clients the worst; None where there is no measure
    personal: tuple[float, float] | None  # the same with each client's own model, where some have one
    promise: str | None  # what is promised of it, of all models at once


class Frontier(NamedTuple):
    title: str  # what is measured
    right: bool  # whether that is a share of right predictions
    confidence: float  # of all models at once
    models: tuple[Offered, ...]  # by rising cost

    def place(self, max_cost: float) -> int:
        """Which model a largest cost takes."""
        return max(k for k, one in enumerate(self.models) if one.max_cost <= max_cost)


def fits_of(done: Fit) -> list[Fit]:
    """Each model of the frontier as the fit that gives it."""
    found = []
    for one in done.frontier:
        assert one.trained.calibration is not None
        level = 1 - (1 - done.options.confidence) / len(done.frontier)
        options = replace(done.options, max_cost=one.trained.calibration.max_cost, confidence=level)
        made = described_fit(options, done.model.schema, one, done.model.settings["created"])
        words = (
            f"Taken from {len(done.frontier)} models that one fit gave. What is stated has confidence "
            f"{level:.4g} for each model by itself, so that {done.options.confidence:.4g} holds for all of "
            "them at once, whichever is taken."
        )
        settings = {**made.model.settings, "chosen": {**made.model.settings["chosen"], "taken": words}}
        model = replace(made.model, settings=settings)
        watched = None if done.watched is None else replace(done.watched, model=model)
        found.append(replace(made, model=model, watched=watched))
    return found


def frontier_of(done: Fit, fits: list[Fit]) -> Frontier:
    """What `fits`, as `fits_of` has them, come to."""
    offered, title, right = [], "", False
    for fit in fits:
        assert fit.trained.calibration is not None
        found = offer_of(fit, evaluation(fit.evaluation, fit.changes))
        used: list[tuple[float, float] | None] = [None, None]
        if found is not None:
            title, right = found.title, found.right
            used = [*((one.overall, one.worst) for one in found.models if one.in_folder), *used]
        offered.append(Offered(fit.trained.calibration.max_cost, used[0], used[1], promise(fit)))
    return Frontier(title, right, done.options.confidence, tuple(offered))


def as_json(found: Frontier) -> dict[str, Any]:
    """The models as plain JSON; a largest cost of infinity is null."""
    models = [
        {**one._asdict(), "max_cost": None if math.isinf(one.max_cost) else one.max_cost}
        for one in found.models
    ]
    return {**found._asdict(), "models": models}


def frontier_bytes(found: Frontier, files: list[dict[str, str | bytes]]) -> bytes:
    """The file, of the folder's files of each model."""
    index = {"format": _FORMAT, "version": _VERSION, "bidro": bidro.__version__, **as_json(found)}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:

        def put(name: str, content: str | bytes) -> None:
            info = zipfile.ZipInfo(name, _DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)

        put(_INDEX, json.dumps(index, indent=1, allow_nan=False))
        for k, own in enumerate(files):
            for name, content in own.items():
                if not name.endswith(".html"):
                    put(f"{k}/{name}", content)
    return out.getvalue()


def read_frontier(folder: Path) -> tuple[Frontier, list[dict[str, bytes]]]:
    """(the models, the files of each). Raises BidroError where there is none, or a file is damaged."""
    path = folder / FRONTIER_FILE
    if not path.exists():
        raise BidroError(
            f"'{folder}' holds one model: `bidro fit` keeps others where it chooses the weights, there is "
            "more than one to have, and the rows are in this process; fit again with --max-cost or --prefer."
        )
    try:
        with zipfile.ZipFile(io.BytesIO(read_bytes(path))) as archive:
            index: dict[str, Any] = parsed_json(archive.read(_INDEX))
            if index["format"] != _FORMAT or index["version"] != _VERSION:
                raise ValueError(f"its version is {index['version']!r}")
            models = [_restored(**one) for one in index["models"]]
            files: list[dict[str, bytes]] = [{} for _ in models]
            for name in archive.namelist():
                if name != _INDEX:
                    place, _, own = name.partition("/")
                    files[int(place)][own] = archive.read(name)
        if not models or models[0].max_cost != 0:
            raise ValueError("there is no model for a largest cost of 0")
        for content in files:
            Model.from_bytes(content[FILE], str(path))
        found = Frontier(str(index["title"]), bool(index["right"]), float(index["confidence"]), tuple(models))
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise BidroError(f"'{path}' is damaged: {error}; fit again.") from error
    return found, files


def _restored(max_cost: Any, shared: Any, personal: Any, promise: Any) -> Offered:
    cost = math.inf if max_cost is None else float(max_cost)
    pairs = [None if one is None else (float(one[0]), float(one[1])) for one in (shared, personal)]
    return Offered(cost, pairs[0], pairs[1], None if promise is None else str(promise))


def taken(folder: Path, files: Mapping[str, bytes]) -> dict[str, str | bytes]:
    """The files of a folder with another model of its frontier. Raises BidroError where a client was adapted
    to the one that is there."""
    shared = Model.from_bytes(read_bytes(folder / FILE), str(folder / FILE)).x
    if adapted := sorted(personal_file_in(folder, shared).adapted):
        raise BidroError(
            f"'{adapted[0]}' was adapted to the model in '{folder}', and would be lost; fit anew, choose, "
            "and adapt then."
        )
    kept: dict[str, str | bytes] = {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.is_file() and path.name not in (PERSONAL_FILE, INTERVALS_FILE, *files)
    }
    return {**kept, **files, "report.html": page_html(parsed_json(files["report.json"]))}


def in_words(found: Frontier, place: int | None) -> str:
    """The models as a table; `place` is the one in the folder, None where it is that of the fit."""
    rows = [(found.title or "Models", "shared model", "worst clients", "each its own", "worst clients", "")]
    for k, one in enumerate(found.models):
        cost = "--prefer worst" if math.isinf(one.max_cost) else f"--max-cost {one.max_cost:.4g}"
        values = [*(one.shared or (None, None)), *(one.personal or (None, None))]
        numbers = ["" if v is None else f"{v:.1%}" if found.right else f"{v:#.3g}" for v in values]
        rows.append((cost, *numbers, "  in the folder" * (k == place)))  # type: ignore[arg-type]
    columns = [j for j in range(1, 5) if any(row[j] for row in rows[1:])]
    wide = [max(len(row[j]) for row in rows) for j in range(5)]
    return "\n".join(
        "  ".join((row[0].ljust(wide[0]), *(row[j].rjust(wide[j]) for j in columns))) + row[5] for row in rows
    )
