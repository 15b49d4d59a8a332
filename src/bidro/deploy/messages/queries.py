"""The questions that a server may ask of a site, each declared once: `QUERIES`.

From a declaration requests are checked before any work (nothing outside the agreement, and no number that is
not sane), counted and logged by the site, shown as progress, and explained in audits. What is left is what
the agreed protocol asks: of a neural network the agreed network, algorithm, seed and rounds, and weights of
its shape.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

import bidro
from bidro.ambiguity import Penalty, WassersteinBall
from bidro.certify.intervals import tells_of_rows
from bidro.certify.statements import is_clip_level
from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.deploy.messages.plan import (
    HEADER_BYTES,
    NetworkQueryPlan,
    QueryPlan,
    as_text,
)
from bidro.deploy.site.disclosure.rules import PolicyViolationError
from bidro.federated.algorithm import Algorithm
from bidro.federated.engines.coordinator import Nothing
from bidro.federated.engines.wire import described, unpack
from bidro.fit import questions
from bidro.model.onnx.run import MOST_BYTES
from bidro.privacy.masking import Roster
from bidro.privacy.terms import SharedNoise
from bidro.selection.calibrate import FOLDS
from bidro.selection.fold_queries import FoldScores
from bidro.selection.personal import PersonalCorrections, PersonalExpansions, coefficients

# The names of runs, which become folders at sites.
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ALWAYS = frozenset({"version", "run", "question", "round", "client", "agreed"})
# What smooths curves in training is at most this.
_LARGEST_SMOOTHING = 1e6
_LARGEST_DIRECTION = 1e6
# Radii, in agreed spreads, and widths over which kinks are smoothed may be so large.
_LARGEST_RADIUS, _LARGEST_WIDTH = 1e3, 1e12
# A personal model differs from the shared one as freely as if its pull were of 1 / freedom rows.
_LARGEST_FREEDOM = 1e12
# Gradients are clipped at norms between such powers of two.
_CLIP_BITS = 40
# Models may be outside the box, and other numbers beyond their limits, by rounding.
_ROUNDING = 1e-9
# Steps of a stage of DRFA.
_MOST_STEPS = 10**6

_NO_SUCH_QUESTION = "there is no such question."
_OTHER_CURVES = "it was asked about curves that were not agreed on."
_OTHER_PENALTY = "it was asked for another penalty than was agreed on."
_OTHER_ROUND = "it was asked for a round of something that was not agreed on."
_OTHER_NUMBER = "a message holds a number of another shape or size than agreed on."


# What a site's verdict warns of, in this order; which column, row or run it is its owner sees.
WARNINGS = (
    "a column lies far from the agreed units: is it in another unit?",
    "rows look like people with several rows each whom no column names, or are copies of others.",
    "less than a tenth of its privacy budget is left.",
    "its certificate ends within 30 days; ask the coordinator for a new kit.",
)


class Verdict(NamedTuple):
    """That a site would answer a run."""

    warnings: Floats  # (4,) of 0 and 1, see WARNINGS


class Score(NamedTuple):
    """The message of "score"."""

    model: NDArray[np.uint8]  # (bytes,) an ONNX file


class Weights(NamedTuple):
    """The message of "evaluate"."""

    x: NDArray[np.float64]  # (d,) of the agreed network


class Scores(NamedTuple):
    """ "score" and "evaluate": bounds of the model's mean loss on held-out rows, and nothing else of them.
    Both are rounded up to a grid that only the site knows: see `site.answers`."""

    loss: NDArray[np.float64]  # (1,) empty where the loss is the mistakes themselves
    mistakes: NDArray[np.float64]  # (1,) empty for a number

    @classmethod
    def like(cls, mistakes_alone: bool, classes: bool) -> Scores:
        return cls(np.zeros(0 if mistakes_alone else 1), np.zeros(1 if classes else 0))


@dataclass(frozen=True, eq=False)
class Request:
    """A request that the protocol knows."""

    protocol: QueryPlan  # that of the curves which it is about
    run: str
    query: Query
    round: int
    table: float | None = None  # the id of the table that it is about
    message: Any = None  # of the query's type, every number in its range
    models: int = 0  # that are to be evaluated
    ambiguity: Penalty | WassersteinBall | None = None
    folds: int = 0  # 0 for all training rows
    algorithm: Algorithm | None = None
    described: str = ""  # what the protocol knows the algorithm by
    seed: int = 0
    means: int = 0  # of losses, each of one model and clipped at one level or not, that tell of single rows
    roster: Roster | None = None  # over which sites sums are masked, where noise is shared

    @property
    def question(self) -> str:
        return self.query.name

    @property
    def kind(self) -> str:
        """What it is counted as: the question, or the algorithm whose round it is."""
        if self.question == "round":
            return type(self.algorithm).__name__
        return self.query.counted_as or self.question


class Content(NamedTuple):
    """What a reply holds."""

    what: str  # in a few words
    reveals: str  # what its numbers tell whoever reads them, by the names of the fields


# Raises PolicyViolationError for an array of a message that was not agreed on; `unpack` has seen that all its
# numbers are finite.
Rule = Callable[[QueryPlan, Any], object]


@dataclass(frozen=True, eq=False)
class Query:
    """One question, with all that is to be known of it.

    name: by which requests ask it. by: the agreements that it is asked by. message: the type of its arrays;
    numbers: their shapes and ranges. reply: the type of replies; what: they hold, in a few words; reveals:
    what that tells whoever reads it; of rounds the algorithm decides. header: entries besides those of every
    request. read: completes a request from its header and bytes. models: that are evaluated. means: mean
    losses that are told. once: whether a run needs one alone. statement: whether answers are no function of
    second moments and are counted over a table; without_noise: by which name, where without noise alone.
    counted_as: the name that a site counts it by, if another. of_model: whether it says about which curves it
    is, where curves are agreed on. stage: what a run is doing, if not shown by the name.
    """

    name: str
    by: Literal["any", "every", "linear", "curves", "network", "private"]
    what: str = ""
    reveals: str = ""
    message: type[Any] = Nothing
    reply: type[Any] | None = None
    header: frozenset[str] = frozenset()
    numbers: Mapping[str, Rule] = field(default_factory=dict)
    read: Callable[[Request, Mapping[str, Any], bytes], Request] | None = None
    models: int = 0
    means: int | Callable[[QueryPlan, Any], int] = 0
    once: bool = True
    statement: bool = False
    without_noise: str = ""
    counted_as: str = ""
    of_model: bool = False
    stage: str = ""

    def asked_by(self, plan: QueryPlan) -> bool:
        """Whether an agreement has this question."""
        if self.by == "any":
            return True
        if plan.agreed.privacy is not None or self.by == "private":
            return plan.agreed.privacy is not None and self.by == "private"
        if self.by == "curves":
            return plan.has_curves
        return self.by == "every" or (self.by == "network") == isinstance(plan, NetworkQueryPlan)

    def checked(self, request: Request, header: Mapping[str, Any], data: bytes) -> Request:
        """The request with what its header and arrays say. Raises PolicyViolationError, or BidroError, for
        what the protocol would not ask."""
        if self.read is not None:
            request = self.read(request, header, data)
        message = unpack(data, self.message) if request.message is None else request.message
        for name, rule in self.numbers.items():
            rule(request.protocol, getattr(message, name))
        means = self.means if isinstance(self.means, int) else self.means(request.protocol, message)
        return replace(request, message=message, models=request.models or self.models, means=means)


def checked_request(plan: QueryPlan, client: str, header: Mapping[str, Any], data: bytes) -> Request:
    """The request in `data`. Raises PolicyViolationError, or BidroError, for anything that the protocol would
    not ask of this client."""
    query = _query(plan, client, header)
    if "curves" in header:
        plan = _about(plan, header["curves"])
    most = plan.most_bytes if query.name != "score" else MOST_BYTES + HEADER_BYTES
    if len(data) > most:
        raise PolicyViolationError(
            f"a request of {len(data):,} bytes is larger than anything that was agreed on."
        )
    request = Request(plan, str(header["run"]), query, _whole(header["round"], 1, 10**9, "round"))
    if "table" in query.header:
        table = header["table"]
        if type(table) is not float or not math.isfinite(table):
            raise PolicyViolationError("it was asked about a table that has no such id.")
        request = replace(request, table=table)
    return query.checked(request, header, data)


def _query(plan: QueryPlan, client: str, header: Mapping[str, Any]) -> Query:
    """The question of a request, whose header has all that it is to have and nothing else."""
    if header.get("version") != bidro.__version__:
        raise PolicyViolationError(
            f"it has bidro {bidro.__version__}, and the server another version; use the same."
        )
    if header.get("client") != client:
        raise PolicyViolationError("its configuration names another client than the one that was asked.")
    if header.get("agreed") != plan.agreed.digest:
        raise PolicyViolationError("its schema.toml says something else than the server's; agree on one.")
    name = header.get("question")
    if not isinstance(name, str) or name not in QUERIES or not QUERIES[name].asked_by(plan):
        raise PolicyViolationError(_NO_SUCH_QUESTION)
    query = QUERIES[name]
    if name == "score" and plan.agreed.scores is None:
        raise PolicyViolationError(
            "how models are scored was not agreed on; agree on [scores] in schema.toml."
        )
    curves = {"curves"} if query.of_model and plan.has_curves else set()
    shared = plan.agreed.privacy is not None and plan.agreed.privacy.shared is not None
    roster = {"roster"} if shared and query.by == "private" else set()
    if set(header) != _ALWAYS | query.header | curves | roster:
        raise PolicyViolationError("it was asked for something that was not agreed on.")
    if not isinstance(header["run"], str) or not RUN_NAME.fullmatch(header["run"]):
        raise PolicyViolationError("the run's name is not one that a folder can have.")
    return query


def _about(plan: QueryPlan, said: Any) -> QueryPlan:
    """The protocol of the curves that a request is about."""
    if said is None:
        return plan
    if not isinstance(said, dict) or set(said) != {"segments", "smoothing"}:
        raise PolicyViolationError("curves have a number of segments a feature, and how they are smoothed.")
    segments, smoothing = said["segments"], said["smoothing"]
    if type(smoothing) is not float or not 0 <= smoothing <= _LARGEST_SMOOTHING:
        raise PolicyViolationError("how curves are smoothed is not a number as agreed on.")
    if not isinstance(segments, list) or not all(type(own) is int and own >= 1 for own in segments):
        raise PolicyViolationError(_OTHER_CURVES)
    finest = plan.finest
    if len(segments) != finest.features or finest.thinned(segments).segments.tolist() != segments:
        raise PolicyViolationError(_OTHER_CURVES)
    return plan.at(segments, smoothing)


def _whole(value: Any, least: int, most: int, what: str) -> int:
    if type(value) is not int or not least <= value <= most:
        raise PolicyViolationError(f"the {what} must be a whole number from {least} to {most}.")
    return value


# What requests say besides their numbers.


def _read_segments(request: Request, header: Mapping[str, Any], data: bytes) -> Request:
    return replace(request, folds=_whole(header["folds"], 2, FOLDS, "number of folds"))


def _read_round(request: Request, header: Mapping[str, Any], data: bytes) -> Request:
    plan = request.protocol
    folds = _whole(header["folds"], 0, FOLDS, "number of folds")
    seed = _whole(header["seed"], 0, 2**62, "seed")
    described_as = as_text(header["algorithm"])
    algorithm = plan.algorithms.get(folds, {}).get(described_as)
    if algorithm is None:
        raise PolicyViolationError(_OTHER_ROUND)
    message = unpack(data, algorithm.broadcast_type)
    models = _models_of_round(plan, algorithm, message, folds)
    ball = _ambiguity(plan, header["ambiguity"])
    request = replace(request, message=message, models=models, ambiguity=ball, folds=folds, seed=seed)
    return replace(request, algorithm=algorithm, described=described_as)


def _read_assess(request: Request, header: Mapping[str, Any], data: bytes) -> Request:
    return replace(request, ambiguity=_ambiguity(request.protocol, header["ambiguity"]))


def _ambiguity(plan: QueryPlan, said: Any) -> Penalty | WassersteinBall | None:
    """The penalty that was agreed on, or the radius that the server has chosen."""
    if plan.ambiguity is not None:
        if said != described(plan.ambiguity):
            raise PolicyViolationError(_OTHER_PENALTY)
        return plan.ambiguity
    if not isinstance(said, dict) or set(said) != {"kind", "radius"} or said["kind"] != "WassersteinBall":
        raise PolicyViolationError("a radius is missing.")
    radius = said["radius"]
    if type(radius) is not float or not 0 <= radius <= _LARGEST_RADIUS:
        raise PolicyViolationError(f"a radius must be a number from 0 to {_LARGEST_RADIUS:g} spreads.")
    return WassersteinBall(radius)


def _read_private(request: Request, header: Mapping[str, Any], data: bytes) -> Request:
    agreed = request.protocol.agreed
    assert agreed.plan is not None
    _whole(request.round, 1, agreed.plan.rounds if request.question == "gradients" else 1, "round")
    if agreed.plan.shared is not None:
        request = replace(request, roster=_roster(agreed.plan.shared, header))
    elif request.question in ("counts", "describe"):
        raise PolicyViolationError(_NO_SUCH_QUESTION)
    if request.question == "losses" and agreed.options.hold_out == 0:
        raise PolicyViolationError("no rows are held out, by what was agreed on.")
    return request


def _roster(shared: SharedNoise, header: Mapping[str, Any]) -> Roster:
    """Over which sites masked sums are, this one among them."""
    names = header["roster"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise PolicyViolationError("a roster is a list of sites' names.")
    if names != sorted(set(names)) or header["client"] not in names:
        raise PolicyViolationError("a roster names every site once, in order, and the one that is asked.")
    try:
        return shared.roster(names)
    except BidroError as error:
        raise PolicyViolationError(str(error)) from error


def _read_network(request: Request, header: Mapping[str, Any], data: bytes) -> Request:
    """A question about the agreed network: a round of its training, or the bounds of what came out."""
    plan = request.protocol
    assert isinstance(plan, NetworkQueryPlan)
    if header["network"] != plan.digest:
        raise PolicyViolationError(
            f"the factory '{plan.network.factory}' makes another network here than at the server; "
            "install the same version of it at both."
        )
    seed = plan.agreed.options.seed
    request = replace(request, ambiguity=plan.ambiguity, seed=seed)
    if request.question == "evaluate":
        return replace(request, message=_unpacked(data, Weights))
    if header["round"] > plan.network.rounds:
        raise PolicyViolationError(
            f"it was asked for round {header['round']}, and {plan.network.rounds} were agreed on."
        )
    if (header["seed"], header["folds"]) != (seed, 0) or isinstance(header["seed"], bool):
        raise PolicyViolationError(f"batches are drawn from the agreed seed, {seed}, over all training rows.")
    if header["ambiguity"] != described(plan.ambiguity):
        raise PolicyViolationError(_OTHER_PENALTY)
    text = as_text(header["algorithm"])
    algorithm = plan.algorithms[0].get(text)
    if algorithm is None:
        raise PolicyViolationError(_OTHER_ROUND)
    message = _unpacked(data, algorithm.broadcast_type)
    for name, value in message._asdict().items():
        if name != "x":
            _require_sent_along(name, value)
    return replace(request, message=message, algorithm=algorithm, described=text)


def _unpacked(data: bytes, kind: type[Any]) -> Any:
    """What is wrong with a message is of the message alone, and may be said."""
    try:
        return unpack(data, kind)
    except BidroError as error:
        raise PolicyViolationError(f"it does not follow the request: {error}") from error


# Shapes and ranges of arrays.


def _require_models(plan: QueryPlan, x: Any, shape: Sequence[int] | None = None) -> int:
    """How many models (..., d) these are: of this leading shape if one is given, and no more than ever are
    asked for at once."""
    leading = x.shape[:-1]
    fits = x.dtype == np.float64 and x.ndim >= 1 and x.shape[-1] == plan.dimension
    fits = fits and math.prod(leading) <= plan.most_solves
    if not fits or (shape is not None and tuple(leading) != tuple(shape)):
        raise PolicyViolationError(
            "it was asked about models of other sizes, or more of them, than agreed on."
        )
    if x.size and np.abs(x).max() > plan.largest * (1 + _ROUNDING):
        raise PolicyViolationError(
            "it was asked about a model with larger numbers than the agreed largest_coefficient = "
            f"{plan.agreed.limits.largest_coefficient:g} allows."
        )
    return math.prod(leading)


def _freedom(plan: QueryPlan, freedom: Any) -> None:
    """Of a personal model, as was agreed on, or of none."""
    if freedom.size == 0:
        return
    q, word = _coefficients(plan), plan.agreed.options.personal
    if freedom.shape != (q + 1,) or freedom.dtype != np.float64:
        raise PolicyViolationError("a personal model has a number a coefficient that says how free it is.")
    _require_freedom(freedom[:-1], (q,))
    _require_in(freedom[-1], (), 0.0, 1.0)
    if np.any(freedom > 0) and (word is None or (word == "offset" and np.any(freedom[: q - 1] > 0))):
        raise PolicyViolationError("it was asked for a personal model that was not agreed on.")


def _coefficients(plan: QueryPlan) -> int:
    """How many coefficients of a score a personal model changes."""
    return coefficients(plan.loss, len(plan.columns))


def _require_freedom(freedom: Any, shape: tuple[int, ...]) -> None:
    _require_in(freedom, shape, 0.0, _LARGEST_FREEDOM)


def _radii(plan: QueryPlan, radii: Any) -> None:
    if radii.size and plan.box is None:
        raise PolicyViolationError("no support was agreed on.")
    _require_in(radii, (len(plan.levels) if radii.size else 0,), 0.0, _LARGEST_RADIUS)


def _weights(plan: QueryPlan, x: Any) -> None:
    """Of the agreed network."""
    if x.dtype != np.float64 or x.shape != (plan.dimension,):
        raise PolicyViolationError(
            f"it was asked about weights of shape {x.shape}, and the agreed network has "
            f"{plan.dimension:,} in one row."
        )
    largest = plan.agreed.limits.largest_coefficient
    if np.abs(x).max() > largest * (1 + _ROUNDING):
        raise PolicyViolationError(
            "it was asked about a network with larger weights than the agreed largest_coefficient = "
            f"{largest:g} allows."
        )


def _require_sent_along(name: str, value: Any) -> None:
    """Of what some algorithms send along: the clients' weights, and how far a stage of DRFA is."""
    fits = value.dtype == np.float64 and value.ndim == 1 if name == "alpha" else value.dtype == np.int64
    most = {"alpha": 1 + _ROUNDING, "step": _MOST_STEPS, "in_b": 1}[name]
    if not fits or (name != "alpha" and value.shape != ()) or np.any(value < 0) or np.any(value > most):
        raise PolicyViolationError(_OTHER_NUMBER)


def _models_of_round(plan: QueryPlan, algorithm: Algorithm, message: Any, folds: int) -> int:
    """The number of models in the message of a round."""
    fields: dict[str, Any] = message._asdict()
    models = 0
    shape: tuple[int, ...] | None = None
    if "x" in fields:
        if isinstance(algorithm, PersonalCorrections):
            shape = (folds,)
        elif isinstance(algorithm, PersonalExpansions):
            shape = (folds + 1,)
        elif isinstance(algorithm, FoldScores):
            shape = (folds, fields["x"].shape[1] if fields["x"].ndim == 3 else 0)
        elif not folds:
            shape = ()
        models += _require_models(plan, fields.pop("x"), shape)
    leading = () if shape == () else (models,)
    if "bend_x" in fields:
        bends = _require_models(plan, fields.pop("bend_x"))
        _require_in(fields.pop("bend_fold"), (bends,), 0, folds, whole=True)
        _require_among(fields.pop("bend_scale"), (bends,), plan.scales)
        _require_in(fields.pop("bends"), (), 0, bends, whole=True)
        models += bends
    if "before" in fields:
        # Asked about before, or not: of them the reply has no more than other weights in one curvature.
        before, count = fields.pop("before"), (getattr(algorithm, "kink_history", 0),)
        _require_models(plan, before[..., :-1], count)
        _require_in(before[..., -1], count, 0.0, _LARGEST_WIDTH)
    for name, value in fields.items():
        if name == "fold":
            _require_in(value, leading, 0, folds, whole=True)
        elif name == "freedom":
            _require_freedom(value, (*leading, _coefficients(plan)))
        elif name == "columns":
            _require_in(value, (*leading, value.shape[-1]), 0, _coefficients(plan) - 1, whole=True)
        elif name == "scale":
            _require_among(value, leading, plan.scales)
        elif name == "width":
            _require_in(value, leading, 0.0, _LARGEST_WIDTH)
        elif name == "alpha":
            _require_in(value, (value.size,), 0.0, 1.0 + _ROUNDING)
        elif name in ("active", "models"):
            _require_in(value, (), 0, leading[0] if leading else 0, whole=True)
        else:
            raise PolicyViolationError("a message holds a number that was not agreed on.")
    return models


def _require_in(value: Any, shape: tuple[int, ...], least: float, most: float, whole: bool = False) -> None:
    array: NDArray[Any] = np.asarray(value)
    fits = array.shape == shape and array.dtype in (np.float64, np.int64, np.int32)
    fits = fits and bool(np.all((array >= least) & (array <= most)))
    if not fits or (whole and np.any(array != np.rint(array))):
        raise PolicyViolationError(_OTHER_NUMBER)


def _require_among(value: Any, shape: tuple[int, ...], known: NDArray[np.float64]) -> None:
    _require_in(value, shape, 0.0, math.inf)
    if not np.all(np.isin(value, known)):
        raise PolicyViolationError("it was asked about a radius that is none of the agreed candidates'.")


def _means_of_bounds(plan: QueryPlan, message: questions.HoldoutQuery) -> int:
    models = 1 + bool(np.any(message.freedom > 0)) + bool(message.pooled.size)
    of_rows = 1 + bool(message.freedom.size) if tells_of_rows(plan.loss) else 0
    return models + (plan.box is not None) + of_rows


def _means_with_noise(plan: QueryPlan, message: Any) -> int:
    assert plan.agreed.plan is not None
    return plan.agreed.plan.degree


def _rule(fits: Callable[[QueryPlan, Any], bool], sentence: str) -> Rule:
    """Refuses an array that does not fit, by this sentence."""

    def require(plan: QueryPlan, value: Any) -> None:
        if not fits(plan, value):
            raise PolicyViolationError(sentence)

    return require


def _number(least: float, most: float, matrix: bool = False) -> Rule:
    """A number in this range, or a matrix of them for a model's numbers in both directions."""
    return lambda plan, value: _require_in(
        value, (_private_numbers(plan),) * 2 if matrix else (), least, most
    )


def _private_numbers(plan: QueryPlan) -> int:
    """Of a model in a private run."""
    assert plan.agreed.plan is not None
    return plan.agreed.plan.columns - 1


_OF_A_MODEL: dict[str, Rule] = {
    "x": lambda plan, x: _require_models(plan, x, ()),
    "freedom": _freedom,
    "common": lambda plan, x: _require_models(plan, x, ()) if x.size else None,
    "pooled": lambda plan, x: _require_models(plan, x, ()) if x.size else None,
}
# Of a private run: a model in spreads of the target, and what losses in squares of these are clipped at.
_IN_SPREADS: dict[str, Rule] = {
    "x": _rule(
        lambda plan, x: (
            x.shape == (_private_numbers(plan),)
            and x.dtype == np.float64
            and np.abs(x).max() <= plan.agreed.limits.largest_coefficient * (1 + _ROUNDING)
        ),
        "it was asked about a model of another size than agreed on.",
    ),
    "level": _rule(
        lambda plan, level: (
            level.dtype == np.float64 and level.shape == () and is_clip_level(float(level), 1.0)
        ),
        "losses are clipped at a power of two, and at nothing else.",
    ),
}

_DECLARED = (
    Query(
        "check",
        "any",
        "A verdict",
        "Whether the site would answer a run by this agreement, and whether it is warned of units, repeated "
        "people, its budget and its certificate (under a privacy budget of the last two alone); where it "
        "would not, the sentence with which it would refuse. Asked by bidro federate --check, and by no run.",
        reply=Verdict,
        once=False,
        stage="checking",
    ),
    Query(
        "prepare",
        "every",
        "Rows, means and spreads",
        "How many rows (and people) the site has, over how many folds it answers, with curvature or without, "
        "and mean and deviation of each of its columns: of levels and classes, how many rows have them.",
        reply=questions.Prepared,
        stage="preparing",
    ),
    Query(
        "segments",
        "curves",
        "Segments that rows bear",
        "How many segments of the agreed curves the site's rows bear, with none or enough rows in every one, "
        "in every fold and together with every level and other curve: a number a feature.",
        reply=questions.Segments,
        header=frozenset({"table", "folds"}),
        read=_read_segments,
    ),
    Query(
        "round",
        "linear",
        header=frozenset({"table", "seed", "folds", "algorithm", "ambiguity"}),
        read=_read_round,
        once=False,
        of_model=True,
    ),
    Query(
        "assess",
        "linear",
        "Losses in training",
        "Mean loss of the model, and of the site's own, on its training rows, how much their predictions "
        "vary, and how far its worst case moves each feature on average; with a declared support also its "
        "robust risks and its distance to a cloud that everybody has. No row.",
        message=questions.Assess,
        reply=questions.Assessment,
        header=frozenset({"table", "ambiguity"}),
        numbers={
            **_OF_A_MODEL,
            "shown": _number(0, 1),
            "reference": _rule(
                lambda plan, cloud: not cloud.size,
                "a cloud to measure distances to is agreed on, not sent.",
            ),
            "radii": _radii,
        },
        read=_read_assess,
        models=2,
        means=1,
        statement=True,
        of_model=True,
        stage="assessing",
    ),
    Query(
        "bounds",
        "linear",
        "Losses on held-out rows",
        "Mean losses of the shared model, of the site's own and of pooled training on the held-out rows, "
        "how much they differ, and confidence bounds; and how far 9 of 10 of these rows lie from their "
        "prediction at most, rounded up until half of min_rows people may be the one whose it is. No row.",
        message=questions.HoldoutQuery,
        reply=questions.HoldoutBounds,
        header=frozenset({"table"}),
        numbers={
            **_OF_A_MODEL,
            "levels": _rule(
                lambda plan, levels: np.array_equal(levels, plan.levels),
                "it was asked for bounds at other levels than those agreed on.",
            ),
            "seen": _rule(
                lambda plan, seen: np.shape(seen) == () and is_clip_level(float(seen), plan.loss_unit),
                "losses are clipped at a power of two of their unit, and at nothing else.",
            ),
        },
        models=2,
        means=_means_of_bounds,
        statement=True,
        of_model=True,
        stage="certifying",
    ),
    Query(
        "score",
        "every",
        "Bounds of another model's losses",
        "Confidence bounds of the mean loss of a model from elsewhere on the held-out rows, and of its "
        "share of mistakes, rounded up to steps of what min_rows rows can change. No mean and no row.",
        message=Score,
        reply=Scores,
        numbers={
            "model": _rule(
                lambda plan, model: model.dtype == np.uint8 and model.ndim == 1,
                "a model to be scored is the bytes of a file.",
            )
        },
        models=1,
        means=1,
        statement=True,
    ),
    Query(
        "train",
        "network",
        "Steps of a network",
        "The network after its steps over the site's rows, or gradients of it, from batches whose rows the "
        "seed tells. With more weights than rows they can hold these rows nearly as they are: whoever reads "
        "them must be trusted not to look.",
        header=frozenset({"table", "network", "seed", "folds", "algorithm", "ambiguity"}),
        numbers={"x": _weights},
        read=_read_network,
        models=1,
        means=1,
        once=False,
    ),
    Query(
        "evaluate",
        "network",
        "Bounds of a network's losses",
        "Confidence bounds of the trained network's mean loss on the held-out rows, and of its share of "
        "mistakes, rounded up to steps of what min_rows rows can change. No mean and no row.",
        message=Weights,
        reply=Scores,
        header=frozenset({"table", "network"}),
        numbers={"x": _weights},
        read=_read_network,
        models=1,
        means=1,
        statement=True,
        counted_as="score",  # how a network came about makes no difference to what is said of it
        stage="certifying",
    ),
    # Of a private run, where every number has noise that the site's privacy budget pays for. Nothing says
    # the id of a table, which would tell that it has changed.
    Query(
        "moments",
        "private",
        "Second moments with noise",
        "Sums of products of all columns over the training rows, with noise; rows far out count less. At a "
        "site without a budget the same without noise: the covariances of all its columns.",
        reply=questions.NoisyMoments,
        read=_read_private,
    ),
    Query(
        "counts",
        "private",
        "Number of rows with noise",
        "How many training rows there are, with noise; asked where noise is shared, as sums of products are "
        "then seen of all sites together alone.",
        reply=questions.NoisyCount,
        read=_read_private,
    ),
    Query(
        "describe",
        "private",
        "Table 1 with noise",
        "Sums over all rows, masked: in every number of the table values, squares and how many rows lie in "
        "each part of a public grid; in every category how many have each level; and what is missing.",
        reply=questions.NoisyTable,
        read=_read_private,
    ),
    Query(
        "gradients",
        "private",
        "Gradients with noise",
        "Sums over the training rows of the loss and its slopes at a model, none counted as more than a "
        "level, and how many slopes are below it, with noise; without noise at a site without a budget.",
        message=questions.GradientsQuery,
        reply=questions.NoisyGradients,
        numbers={
            **_IN_SPREADS,
            "clip": _number(2.0**-_CLIP_BITS, 2.0**_CLIP_BITS),
            "directions": _number(-_LARGEST_DIRECTION, _LARGEST_DIRECTION, matrix=True),
        },
        read=_read_private,
        models=1,
        once=False,
    ),
    Query(
        "losses",
        "private",
        "Losses on held-out rows, with noise",
        "Sums over the rows held out of how many have a loss about so large, with noise; without noise at a "
        "site without a budget.",
        message=questions.NoisyHoldoutQuery,
        reply=questions.NoisyLosses,
        numbers=_IN_SPREADS,
        read=_read_private,
        models=1,
        means=_means_with_noise,
        without_noise="exact losses",
    ),
)
QUERIES = {query.name: query for query in _DECLARED}
PRIVATE = tuple(name for name, query in QUERIES.items() if query.by == "private")
# What sites count of these: kinds of which a run needs one, and kinds whose answers are no function of second
# moments.
_EXACT = tuple(query.without_noise for query in QUERIES.values() if query.without_noise)
ONCE = (*(query.counted_as or name for name, query in QUERIES.items() if query.once), *_EXACT)
STATEMENTS = (*(query.counted_as or name for name, query in QUERIES.items() if query.statement), *_EXACT)


# What replies to rounds hold, by what they are of.
_ROUNDS = {
    "curvature": Content(
        "Risks with curvature",
        "Value, gradient and curvature of the site's risk at the models asked for. For squared loss these "
        "determine the site's second moments: the covariances of all its columns. For other smooth losses "
        "they are sums over all rows; for losses with kinks, which a site must allow, the last rounds can "
        "tell single rows.",
    ),
    "moments": Content(
        "Second moments",
        "Means and second moments of the site's rows, in cross-validation fold by fold: the covariances of "
        "all its columns; where curves are agreed on, of what of a column lies in each segment.",
    ),
    "gradient": Content(
        "Risks with gradients",
        "Value and gradient of the site's risk at the models asked for: averages over all its rows, and less "
        "than curvature tells; many rounds together still narrow down the second moments.",
    ),
    "scores": Content("Losses of candidates", "One mean loss a candidate, over the rows of each fold."),
    "personal": Content(
        "Losses of personal models",
        "How well the site would do with a personal model: one mean loss for every strength with which "
        "that is held at the shared one, on its rows left out and on those trained on.",
    ),
    "average": Content(
        "Steps of the model",
        "A step of the model by the gradient over all the site's rows, and its mean loss.",
    ),
    "one row": Content(
        "Gradients of single rows",
        "Gradient and value of ONE row's loss. With the settings, which the server knows, four fifths of the "
        "sampled records can be rebuilt from them.",
    ),
}
_OF_FOLDS = (
    "As above for every fold's training rows; differences between folds tell the same of the rows of one "
    "fold, and these are what the least number of rows counts."
)
# What a round is for, by its algorithm.
_STAGES = {
    **dict.fromkeys(
        ("FoldMoments", "FoldRisks", "FoldCuts", "FoldScores", "PersonalCorrections", "PersonalExpansions"),
        "choosing",
    ),
    **dict.fromkeys(("OneShotMWDRO", "ExactMWDRO", "BiDROFL"), "solving"),
    **dict.fromkeys(("FedAvg", "AFL", "DRFA", "QFFL", "GroupDRO", "BiDROLocal"), "training"),
    "ServerOptimised": "training",
}


def content_of(question: str, fields: Mapping[str, Sequence[int]], rows: int) -> Content:
    """What a reply holds, by the shapes of its fields and over how many rows it is."""
    query = QUERIES[question]
    found = Content(query.what, query.reveals) if query.what else _ROUNDS[_reply_of_round(fields, rows)]
    if "curvature" in fields and len(fields["gradient"]) > 1 and rows != 1:
        return found._replace(reveals=f"{found.reveals} {_OF_FOLDS}")
    return found


def _reply_of_round(fields: Mapping[str, Sequence[int]], rows: int) -> str:
    if rows == 1:
        return "one row"
    if "around" in fields:
        return "moments"
    if "curvature" in fields:
        return "curvature" if fields["curvature"][-1] else "gradient"
    if "left_out" in fields:
        return "personal"
    return "scores" if list(fields) == ["loss", "rows"] else "average"


def stage_of(what: str) -> str:
    """What a run is doing, by a question or the algorithm of a round."""
    if what in QUERIES:
        return QUERIES[what].stage or what
    return _STAGES.get(what, what)
