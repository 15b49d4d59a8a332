"""A site: its own table, the agreed schema, and one function from a request to a reply.

The table never leaves. What does is one of the types in `questions`, or an algorithm's reply, computed over
at least `min_rows` rows; a request for anything else is answered with the reason why not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bidro.algorithms.contract import Algorithm
from bidro.client import Client, WassersteinBall
from bidro.deploy.agreed import Agreed
from bidro.deploy.questions import Assessment, Fixed, FreshBounds, Model, Prepared
from bidro.engines.compiled import compilation_cache
from bidro.engines.coordinator import Nothing, refusal_message, reply_message
from bidro.engines.plain import made
from bidro.engines.site import answer, client_of
from bidro.engines.wire import header_of, unpack
from bidro.errors import BidroError
from bidro.federation import Federation
from bidro.guarantees.heterogeneity import distance_to_reference
from bidro.guarantees.robust import mean_displacement, robust_risk
from bidro.guarantees.statements import Assessed, fresh_bounds
from bidro.losses import losses_of
from bidro.model_file import target_numbers
from bidro.problem import Problem
from bidro.sets import Simplex
from bidro.standard import Moments, Standard, require_inside
from bidro.tables import as_words, bounds_of, choose_kept_out, read_one
from bidro.training import unrestricted
from bidro.workflow.judged import ClientLoss
from bidro.workflow.options import read_toml

Floats = NDArray[np.float64]

# The environment variable with the path of the site's configuration.
VARIABLE = "BIDRO_SITE"
# A site's message on its largest losses is a mean over at least this many.
_LARGEST_LOSSES = 10

_RECONSTRUCTION = (
    "one-sample replies give records away: gradient and value of one row's loss, with the settings that the "
    "server chose, are enough to rebuild about four fifths of the sampled rows; if that is acceptable here, "
    "set one_sample_replies = true in this site's configuration."
)


@dataclass(frozen=True)
class Site:
    """`site.toml`; paths are relative to it."""

    client: str
    data: Path
    schema: Path
    min_rows: int = 10
    one_sample_replies: bool = False

    @classmethod
    def read(cls, path: Path) -> Site:
        content = read_toml(path)
        known = {"client": str, "data": str, "schema": str, "min_rows": int, "one_sample_replies": bool}
        for name, value in content.items():
            if name not in known or type(value) is not known[name]:
                raise BidroError(
                    f"'{path}': there is no entry {name} = {value!r}; a site has client, data, schema "
                    "(texts), min_rows (a number) and one_sample_replies (true or false)."
                )
        missing = [name for name in ("client", "data", "schema") if name not in content]
        if missing:
            raise BidroError(f"'{path}' does not say '{missing[0]}'.")
        if content.get("min_rows", 10) < 2:
            raise BidroError(f"'{path}': min_rows must be at least 2.")
        paths = {name: path.parent / content[name] for name in ("data", "schema")}
        return cls(**{**content, **paths})


@dataclass(frozen=True, eq=False)
class SiteRows:
    """The site's table as numbers, in the order of its rows."""

    agreed: Agreed
    features: Floats  # (N, k)
    target: Floats  # (N,)

    @classmethod
    def load(cls, site: Site) -> SiteRows:
        """Raises BidroError for a table that does not fit the agreed schema, in the user's own words."""
        agreed = Agreed.read(site.schema)
        schema, table = agreed.schema, read_one(site.data)
        if len(table) == 0:
            raise BidroError(f"'{site.data}' has no rows.")
        if schema.client in table:
            others = sorted(set(as_words(table[schema.client].dropna()).tolist()) - {site.client})
            if others:
                raise BidroError(f"'{site.data}' has rows of client '{others[0]}'; this site is another.")
        features, target = schema.matrix(table), target_numbers(schema, table)
        if agreed.support is not None:
            owners = np.full(len(target), site.client)
            columns = [*schema.features, schema.target]
            bounds = bounds_of(agreed.support, schema)
            require_inside(bounds, features, target, owners, columns, schema.classes is None)
        return cls(agreed, features, target)


def reply_to(request: bytes) -> bytes:
    """The reply of the site whose configuration `BIDRO_SITE` names."""
    compilation_cache()
    path = os.environ.get(VARIABLE)
    if path is None:
        return refusal_message(request, f"the environment variable {VARIABLE} names no site.toml.")
    try:
        site = Site.read(Path(path))
        return reply_of(site, _loaded(site, _stamp(site)), request)
    except BidroError as error:
        return refusal_message(request, str(error))


def _stamp(site: Site) -> tuple[int, ...]:
    """Changes when the site's files do."""
    stats = [path.stat() if path.exists() else None for path in (site.data, site.schema)]
    return tuple(part for stat in stats if stat for part in (stat.st_mtime_ns, stat.st_size))


@lru_cache(maxsize=1)
def _loaded(site: Site, stamp: tuple[int, ...]) -> SiteRows:
    del stamp
    return SiteRows.load(site)


def reply_of(site: Site, rows: SiteRows, request: bytes) -> bytes:
    """The site's reply to a request: what is asked, or the reason why it is not given."""
    try:
        asked = header_of(request)
        reply, over = _answered(site, rows, asked, request)
    except (KeyError, TypeError, ValueError) as error:
        why = (
            str(error) if isinstance(error, BidroError) else f"the request cannot be understood ({error!r})."
        )
        return refusal_message(request, why)
    return reply_message(reply, request, over)


def _answered(site: Site, rows: SiteRows, asked: Mapping[str, Any], request: bytes) -> tuple[Any, int]:
    """(the reply, the fewest rows that a number in it rests on)."""
    if asked["agreed"] != rows.agreed.digest:
        raise BidroError("this site's schema.toml says something else than the server's; agree on one.")
    kept_out = choose_kept_out(np.full(len(rows.target), site.client), asked["hold_out"], asked["split_seed"])
    for what, count in (("trains on", int((~kept_out).sum())), ("keeps out", int(kept_out.sum()))):
        if 0 < count < site.min_rows or (count == 0 and what == "trains on"):
            raise BidroError(
                f"it {what} {count} of its {len(kept_out)} rows, fewer than its min_rows = {site.min_rows}; "
                "give it more rows, change hold_out, or lower min_rows at that site."
            )
    if asked["question"] == "prepare":
        unpack(request, Nothing)
        return _prepared(site, rows, kept_out), int((~kept_out).sum())
    if asked["question"] == "round":
        varies = ("round", "run", "seed")
        how = json.dumps({name: part for name, part in asked.items() if name not in varies}, sort_keys=True)
        algorithm, client = _client(site.client, rows, how)
        over = _rows_behind(site, algorithm, client)
        return answer(algorithm, client, asked["seed"], asked["round"], request), over
    samples = _samples(rows, kept_out if asked["question"] == "bounds" else ~kept_out, asked)
    if asked["question"] == "assess":
        return _assessment(site, samples, asked, unpack(request, Model)), _largest_count(site, samples)
    if asked["question"] == "bounds":
        return _bounds(site, samples, asked, unpack(request, Fixed)), len(samples)
    raise BidroError(f"there is no question '{asked['question']}'.")


@lru_cache(maxsize=2)
def _client(name: str, rows: SiteRows, how: str) -> tuple[Algorithm, Client]:
    """What a request for a round describes; kept, as the next round of the same run describes the same."""
    asked = json.loads(how)
    kept_out = choose_kept_out(np.full(len(rows.target), name), asked["hold_out"], asked["split_seed"])
    return client_of(name, _samples(rows, ~kept_out, asked), asked)


def _samples(rows: SiteRows, wanted: NDArray[np.bool_], asked: Mapping[str, Any]) -> Floats:
    """(N_i, k + 1) some of the rows in the units that the server says."""
    own = asked["standard"]
    mean, spread = np.asarray(own["mean"], float), np.asarray(own["spread"], float)
    standard = Standard(mean, spread, float(own["middle"]), float(own["target_spread"]))
    return standard.rows(rows.features[wanted], rows.target[wanted])


def _prepared(site: Site, rows: SiteRows, kept_out: NDArray[np.bool_]) -> Prepared:
    found = Moments.of(rows.features[~kept_out], rows.target[~kept_out])
    rows_of, fresh, fewest = (np.asarray(float(v)) for v in (found.rows, kept_out.sum(), site.min_rows))
    return Prepared(rows_of, fresh, fewest, found.mean, found.deviation)


def _rows_behind(site: Site, algorithm: Algorithm, client: Client) -> int:
    """The fewest rows that a number in the reply rests on. Raises BidroError where these are too few.

    What is left out of a fold counts, as the server can take differences between folds.
    """
    if algorithm.evidence == "one row":
        if not site.one_sample_replies:
            raise BidroError(_RECONSTRUCTION)
        return 1
    rows, what = int(client.rows.size), "a reply"
    if algorithm.evidence == "folds":
        assert client.rows.folds is not None
        rows, what = int(np.min(np.asarray(client.rows.folds.counts))), "what a fold leaves out"
    if rows < site.min_rows:
        raise BidroError(
            f"{what} would rest on {rows} rows, fewer than its min_rows = {site.min_rows}; use fewer folds, "
            "set the radius, or lower min_rows at that site."
        )
    dimension = client.inner.loss.dimension(client.rows.samples.shape[-1])
    if algorithm.second_order and rows <= 2 * dimension:
        raise BidroError(
            f"{what} rests on {rows} rows, too few to send curvature for a model of {dimension} parameters: "
            "it needs more than twice as many; use --replies gradient or fewer folds."
        )
    return rows


def _assessment(site: Site, samples: Floats, asked: Mapping[str, Any], message: Model) -> Assessment:
    problem = _own_problem(site, samples, asked)
    x = np.asarray(message.x)
    losses = losses_of(problem.loss, x, samples)
    robust, distance = [], []
    for radius in asked["radii"]:
        declared = _own_problem(site, samples, {**asked, "support": asked["box"]}, float(radius))
        robust.append(float(robust_risk(declared, x, curvature=False).value[0]))
    if robust:
        distance = [distance_to_reference(samples, message.reference, problem.transport)]
    k = samples.shape[1] - 1
    moved, typical = np.zeros(k), np.zeros(k)
    if problem.eps is not None:
        moved, typical = mean_displacement(problem, x, site.client)
    judged = ClientLoss.of(losses)
    return Assessment(
        np.asarray(judged.loss),
        np.asarray(judged.se),
        np.sort(losses)[-_largest_count(site, samples) :].mean(),
        np.asarray(robust, float),
        np.asarray(distance, float),
        moved,
        typical,
    )


def _largest_count(site: Site, samples: Floats) -> int:
    """How many of the largest losses a site averages: one alone would be a row's."""
    return min(len(samples), max(_LARGEST_LOSSES, site.min_rows))


def _own_problem(
    site: Site, samples: Floats, asked: Mapping[str, Any], radius: float | None = None
) -> Problem:
    """This client's problem; with a radius, over the ball of that radius."""
    loss, transport, support = (made(asked[part]) for part in ("loss", "transport", "support"))
    federation = Federation.from_arrays({site.client: samples}, support)
    problem = unrestricted(federation, loss, transport, asked["standard"]["target_spread"])
    ambiguity = made(asked["ambiguity"]) if radius is None else WassersteinBall(radius)
    return Problem(federation, loss, problem.models, transport, ambiguity)


def _bounds(site: Site, samples: Floats, asked: Mapping[str, Any], message: Fixed) -> FreshBounds:
    loss, x = made(asked["loss"]), np.asarray(message.x)
    largest = float(message.largest[0]) if message.largest.size else None
    of = Assessed(loss, x, Simplex(1), float(message.seen), largest, None, False)
    found = [fresh_bounds(site.client, of, samples, float(level)) for level in np.asarray(message.levels)]
    judged = ClientLoss.of(losses_of(loss, x, samples))
    parts = {
        name: np.array([one[name].bound for one in found if name in one])
        for name in ("clipped", "held_out", "mistakes")
    }
    means = [found[0][name].mean if name in found[0] else 0.0 for name in parts]
    return FreshBounds(np.asarray(judged.loss), np.asarray(judged.se), **parts, means=np.array(means))
