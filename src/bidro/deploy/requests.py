"""What a request may say, checked before any work: nothing outside the agreement, and no number that is not
sane. What is left is what the agreed protocol asks."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

import bidro
from bidro.algorithms.contract import Algorithm
from bidro.algorithms.cross_validation import FoldScores
from bidro.algorithms.fold_moments import FoldMoments
from bidro.algorithms.own_correction import OwnCorrections, Shrinkage
from bidro.client import Penalty, WassersteinBall
from bidro.deploy.network_protocol import NetworkProtocol
from bidro.deploy.network_requests import NETWORK_QUESTIONS, checked_training
from bidro.deploy.places import STEPS
from bidro.deploy.protocol import HEADER_BYTES, FeaturePlaces, Protocol, as_text
from bidro.deploy.rules import RefusedError
from bidro.deploy.score_messages import Score
from bidro.engines.coordinator import Nothing
from bidro.engines.plain import described
from bidro.engines.wire import unpack
from bidro.fitting.questions import Assess, AtModel, Bend, Fixed, Judge
from bidro.guarantees.calibration import FOLDS
from bidro.guarantees.own import SHRINKAGES
from bidro.guarantees.statements import is_clip_level
from bidro.scoring.ports import MOST_BYTES

T = TypeVar("T")

# The names of runs, which become folders at sites.
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ALWAYS = frozenset({"version", "run", "question", "round", "client", "agreed"})
# What a request says besides, by question.
_MORE = {
    "prepare": frozenset[str](),
    "spread": frozenset({"table", "folds"}),
    "bends": frozenset({"table", "folds", "moments"}),
    "round": frozenset({"table", "seed", "folds", "algorithm", "ambiguity"}),
    "assess": frozenset({"table", "ambiguity"}),
    "bounds": frozenset({"table"}),
    "score": frozenset[str](),
    **NETWORK_QUESTIONS,
}
# All that is asked in a private run: no id of a table, which would tell that it has changed.
PRIVATE = ("moments", "gradients", "losses")
# All that there are.
QUESTIONS = (*_MORE, *PRIVATE)
# Questions about a model: where curves are agreed on, they say which.
_OF_A_MODEL = ("round", "assess", "bounds")
# What smooths curves in training is at most this.
_LARGEST_SMOOTHING = 1e6
_LARGEST_DIRECTION = 1e6
# Radii, in agreed spreads, and widths over which kinks are smoothed may be so large.
_LARGEST_RADIUS, _LARGEST_WIDTH = 1e3, 1e12
# Gradients are clipped at norms between such powers of two.
_CLIP_BITS = 40
# Models may be outside the box by rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Request:
    """A request that the protocol knows."""

    protocol: Protocol  # that of the curves which it is about
    run: str
    question: str
    round: int
    table: float | None
    message: Any  # of the question's type, every number in its range
    models: int  # that are to be evaluated
    ambiguity: Penalty | WassersteinBall | None = None
    folds: int = 0  # 0 for all training rows
    algorithm: Algorithm | None = None
    described: str = ""  # what the protocol knows the algorithm by
    seed: int = 0
    means: int = 0  # of losses, each of one model and clipped at one level or not, that tell of single rows

    @property
    def kind(self) -> str:
        """The question, or the algorithm whose round it is; how a network came about makes no difference to
        what is said of it."""
        if self.question in NETWORK_QUESTIONS:
            return "score" if self.question == "evaluate" else self.question
        return self.question if self.algorithm is None else type(self.algorithm).__name__


def checked_request(protocol: Protocol, client: str, header: Mapping[str, Any], data: bytes) -> Request:
    """The request in `data`. Raises RefusedError, or BidroError, for anything that the protocol would not
    ask of this client."""
    _require_header(protocol, client, header)
    run, question = str(header["run"]), str(header["question"])
    if "curves" in header:
        protocol = _about(protocol, header["curves"])
    most = protocol.most_bytes if question != "score" else MOST_BYTES + HEADER_BYTES
    if len(data) > most:
        raise RefusedError(f"a request of {len(data):,} bytes is larger than anything that was agreed on.")
    parts = protocol, run, question, _whole(header["round"], 1, 10**9, "round")
    if question in PRIVATE:
        return _private(protocol, data, parts)
    if question == "prepare":
        return Request(*parts, None, unpack(data, Nothing), 0)
    if question == "score":
        model = unpack(data, Score)
        if model.model.dtype != np.uint8 or model.model.ndim != 1:
            raise RefusedError("a model to be scored is the bytes of a file.")
        return Request(*parts, None, model, 1, means=1)
    table = header["table"]
    if type(table) is not float or not math.isfinite(table):
        raise RefusedError("it was asked about a table that has no such id.")
    if question == "round":
        return _round(protocol, header, data, parts, table)
    if isinstance(protocol, NetworkProtocol):
        asked = checked_training(protocol, header, data)
        of = Request(*parts, table, asked.message, 1, protocol.ambiguity, means=1)
        seed = protocol.agreed.options.seed
        return replace(of, algorithm=asked.algorithm, described=asked.described, seed=seed)
    if question in ("spread", "bends"):
        return _of_curves(protocol, header, data, parts, table)
    check = _Numbers(protocol)
    if question == "bounds":
        fixed = unpack(data, Fixed)
        check.fixed(fixed)
        models = 1 + bool(np.any(fixed.freedom > 0)) + bool(fixed.pooled.size)
        return Request(*parts, table, fixed, 2, means=models + (protocol.box is not None))
    assess = unpack(data, Assess)
    check.assess(assess)
    ball = _ambiguity(protocol, header["ambiguity"])
    return Request(*parts, table, assess, 2, ball, means=1)


def _require_header(protocol: Protocol, client: str, header: Mapping[str, Any]) -> None:
    if header.get("version") != bidro.__version__:
        raise RefusedError(f"it has bidro {bidro.__version__}, and the server another version; use the same.")
    if header.get("client") != client:
        raise RefusedError("its configuration names another client than the one that was asked.")
    if header.get("agreed") != protocol.agreed.digest:
        raise RefusedError("its schema.toml says something else than the server's; agree on one.")
    question = header.get("question")
    known = _MORE if protocol.agreed.privacy is None else dict.fromkeys(PRIVATE, frozenset[str]())
    if not isinstance(question, str) or question not in known:
        raise RefusedError("there is no such question.")
    if question in ("spread", "bends") and not protocol.has_curves:
        raise RefusedError("there is no such question.")
    of_network = isinstance(protocol, NetworkProtocol)
    if question not in ("prepare", "score") and (question in NETWORK_QUESTIONS) != of_network:
        raise RefusedError("there is no such question.")
    if question == "score" and protocol.agreed.scores is None:
        raise RefusedError("how models are scored was not agreed on; agree on [scores] in schema.toml.")
    curves = {"curves"} if protocol.has_curves and question in _OF_A_MODEL else set()
    if set(header) != _ALWAYS | known[question] | curves:
        raise RefusedError("it was asked for something that was not agreed on.")
    if not isinstance(header["run"], str) or not RUN_NAME.fullmatch(header["run"]):
        raise RefusedError("the run's name is not one that a folder can have.")


_Parts = tuple[Protocol, str, str, int]


def _about(protocol: Protocol, said: Any) -> Protocol:
    """The protocol of the curves that a request is about."""
    if said is None:
        return protocol
    if not isinstance(said, dict) or set(said) != {"places", "smoothing"}:
        raise RefusedError("curves have places where they bend, and how they are smoothed.")
    places, smoothing = said["places"], said["smoothing"]
    if type(smoothing) is not float or not 0 <= smoothing <= _LARGEST_SMOOTHING:
        raise RefusedError("how curves are smoothed is not a number as agreed on.")
    if not isinstance(places, list) or not all(isinstance(own, list) for own in places):
        raise RefusedError("it was asked about curves that were not agreed on.")
    return protocol.at(_places(protocol, places), smoothing)


def _places(protocol: Protocol, places: Sequence[Sequence[Any]]) -> FeaturePlaces:
    """Places of the public grid, ascending, no more a feature than agreed on."""
    most = protocol.wanted.most
    fits = len(places) == len(most)
    fits = fits and all(len(own) < segments for own, segments in zip(places, most, strict=True))
    fits = fits and all(type(one) is int and 0 <= one <= STEPS for own in places for one in own)
    if not fits or any(b <= a for own in places for a, b in pairwise(own)):
        raise RefusedError("it was asked about curves that were not agreed on.")
    return tuple(tuple(own) for own in places)


def _private(protocol: Protocol, data: bytes, parts: _Parts) -> Request:
    """A question of a private run."""
    plan, question = protocol.agreed.plan, parts[2]
    assert plan is not None
    most = plan.rounds if question == "gradients" else 1
    _whole(parts[3], 1, most, "round")
    if question == "moments":
        return Request(*parts, None, unpack(data, Nothing), 0)
    check = _Numbers(protocol)
    if question == "gradients":
        asked = unpack(data, AtModel)
        check.private(asked.x, asked.level)
        check._in(asked.clip, (), 2.0**-_CLIP_BITS, 2.0**_CLIP_BITS)
        d = plan.columns - 1
        check._in(asked.directions, (d, d), -_LARGEST_DIRECTION, _LARGEST_DIRECTION)
        return Request(*parts, None, asked, 1)
    if protocol.agreed.options.hold_out == 0:
        raise RefusedError("no rows are kept out, by what was agreed on.")
    judge = unpack(data, Judge)
    check.private(judge.x, judge.level)
    return Request(*parts, None, judge, 1, means=plan.degree)


def _of_curves(
    protocol: Protocol, header: Mapping[str, Any], data: bytes, parts: _Parts, table: float
) -> Request:
    """A question about where curves may bend."""
    folds = _whole(header["folds"], 2, FOLDS, "number of folds")
    if parts[2] == "spread":
        return Request(*parts, table, unpack(data, Nothing), 0, folds=folds)
    message, moments = unpack(data, Bend), header["moments"]
    array, most = np.asarray(message.places), protocol.wanted.most
    fits = array.dtype == np.int64 and array.shape == (len(most), max(most) - 1)
    if not fits or type(moments) is not bool:
        raise RefusedError("it was asked about curves that were not agreed on.")
    places = _places(protocol, [[one for one in own if one >= 0] for own in array.tolist()])
    if moments and protocol.agreed.replies != "curvature":
        raise RefusedError("it was asked for second moments, and gradients were agreed on.")
    return Request(protocol.at(places), *parts[1:], table, message, 0, folds=folds)


def _round(
    protocol: Protocol, header: Mapping[str, Any], data: bytes, parts: _Parts, table: float
) -> Request:
    folds = _whole(header["folds"], 0, FOLDS, "number of folds")
    seed = _whole(header["seed"], 0, 2**62, "seed")
    described_as = as_text(header["algorithm"])
    algorithm = protocol.algorithms.get(folds, {}).get(described_as)
    if algorithm is None:
        raise RefusedError("it was asked for a round of something that was not agreed on.")
    message = unpack(data, algorithm.broadcast_type)
    models = _Numbers(protocol).broadcast(algorithm, message, folds)
    ambiguity = _ambiguity(protocol, header["ambiguity"])
    return Request(*parts, table, message, models, ambiguity, folds, algorithm, described_as, seed)


def _ambiguity(protocol: Protocol, said: Any) -> Penalty | WassersteinBall | None:
    """The penalty that was agreed on, or the radius that the server has chosen."""
    if protocol.ambiguity is not None:
        if said != described(protocol.ambiguity):
            raise RefusedError("it was asked for another penalty than was agreed on.")
        return protocol.ambiguity
    if not isinstance(said, dict) or set(said) != {"kind", "radius"} or said["kind"] != "WassersteinBall":
        raise RefusedError("a radius is missing.")
    radius = said["radius"]
    if type(radius) is not float or not 0 <= radius <= _LARGEST_RADIUS:
        raise RefusedError(f"a radius must be a number from 0 to {_LARGEST_RADIUS:g} spreads.")
    return WassersteinBall(radius)


def _whole(value: Any, least: int, most: int, what: str) -> int:
    if type(value) is not int or not least <= value <= most:
        raise RefusedError(f"the {what} must be a whole number from {least} to {most}.")
    return value


@dataclass(frozen=True, eq=False)
class _Numbers:
    """Shapes and ranges of the arrays in messages; `unpack` has seen that all are finite."""

    protocol: Protocol

    def model(self, x: Any, most: int, shape: Sequence[int] | None = None) -> int:
        """How many models (..., d) these are: at most `most`, of this leading shape if one is given."""
        d, largest = self.protocol.dimension, self.protocol.largest
        leading = x.shape[:-1]
        if x.dtype != np.float64 or x.ndim < 1 or x.shape[-1] != d or math.prod(leading) > most:
            raise RefusedError("it was asked about models of other sizes, or more of them, than agreed on.")
        if shape is not None and tuple(leading) != tuple(shape):
            raise RefusedError("it was asked about models of other sizes, or more of them, than agreed on.")
        if x.size and np.abs(x).max() > largest * (1 + _ROUNDING):
            raise RefusedError(
                "it was asked about a model with larger numbers than the agreed largest_coefficient = "
                f"{self.protocol.agreed.limits.largest_coefficient:g} allows."
            )
        return math.prod(leading)

    def private(self, x: Any, level: Any) -> None:
        """A model in spreads of the target, and what losses in squares of these are clipped at."""
        shape = (len(self.protocol.columns),)
        largest = self.protocol.agreed.limits.largest_coefficient * (1 + _ROUNDING)
        if x.shape != shape or x.dtype != np.float64 or np.abs(x).max() > largest:
            raise RefusedError("it was asked about a model of another size than agreed on.")
        if level.dtype != np.float64 or level.shape != () or not is_clip_level(float(level), 1.0):
            raise RefusedError("losses are clipped at a power of two, and at nothing else.")

    def freedom(self, freedom: Any) -> None:
        """Of an own model: one of the agreed shrinkages, or none."""
        if freedom.size == 0:
            return
        word = self.protocol.agreed.options.own
        if freedom.shape != (2,) or freedom.dtype != np.float64 or np.any(freedom < 0):
            raise RefusedError("an own model has two numbers that say how free it is.")
        known = () if word == "none" else SHRINKAGES[word]
        if np.any(freedom > 0) and Shrinkage.of_freedom(freedom) not in known:
            raise RefusedError("it was asked for an own model with a shrinkage that was not agreed on.")

    def pooled(self, pooled: Any) -> None:
        if pooled.size:
            self.model(pooled, 1, ())

    def fixed(self, message: Fixed) -> None:
        protocol = self.protocol
        self.model(message.x, 1, ())
        self.freedom(message.freedom)
        self.pooled(message.pooled)
        if not np.array_equal(message.levels, protocol.levels):
            raise RefusedError("it was asked for bounds at other levels than those agreed on.")
        if np.shape(message.seen) != () or not is_clip_level(float(message.seen), protocol.loss_unit):
            raise RefusedError("losses are clipped at a power of two of their unit, and at nothing else.")

    def assess(self, message: Assess) -> None:
        protocol = self.protocol
        self.model(message.x, 1, ())
        self.freedom(message.freedom)
        self.pooled(message.pooled)
        self._in(message.shown, (), 0, 1)
        if message.reference.size:
            raise RefusedError("a cloud to measure distances to is agreed on, not sent.")
        if message.radii.size and protocol.box is None:
            raise RefusedError("no support was agreed on.")
        count = len(protocol.levels) if message.radii.size else 0
        self._in(message.radii, (count,), 0.0, _LARGEST_RADIUS)

    def broadcast(self, algorithm: Algorithm, message: Any, folds: int) -> int:
        """The number of models in the message of a round."""
        fields: dict[str, Any] = message._asdict()
        most, models = self.protocol.most_solves, 0
        shape: tuple[int, ...] | None = None
        if isinstance(algorithm, FoldMoments) and not algorithm.candidates:
            self._in(fields.pop("x"), (0,), 0, 0)
            shape = ()
        if "x" in fields:
            if isinstance(algorithm, OwnCorrections):
                shape = (folds,)
            elif isinstance(algorithm, FoldScores):
                shape = (folds, fields["x"].shape[1] if fields["x"].ndim == 3 else 0)
            elif not folds or isinstance(algorithm, FoldMoments):
                shape = ()
            models += self.model(fields.pop("x"), most, shape)
        leading = () if shape == () else (models,)
        if "bend_x" in fields:
            bends = self.model(fields.pop("bend_x"), most)
            self._in(fields.pop("bend_fold"), (bends,), 0, folds, whole=True)
            self._among(fields.pop("bend_scale"), (bends,), self.protocol.scales)
            self._in(fields.pop("bends"), (), 0, bends, whole=True)
            models += bends
        if "before" in fields:
            # Asked about before, or not: of them the reply has no more than other weights in one curvature.
            before, count = fields.pop("before"), (getattr(algorithm, "follows", 0),)
            self.model(before[..., :-1], count[0], count)
            self._in(before[..., -1], count, 0.0, _LARGEST_WIDTH)
        for name, value in fields.items():
            if name == "fold":
                self._in(value, leading, 0, folds, whole=True)
            elif name == "scale":
                self._among(value, leading, self.protocol.scales)
            elif name == "width":
                self._in(value, leading, 0.0, _LARGEST_WIDTH)
            elif name == "alpha":
                self._in(value, (value.size,), 0.0, 1.0 + _ROUNDING)
            elif name in ("active", "models"):
                self._in(value, (), 0, leading[0] if leading else 0, whole=True)
            else:
                raise RefusedError("a message holds a number that was not agreed on.")
        return models

    def _in(self, value: Any, shape: tuple[int, ...], least: float, most: float, whole: bool = False) -> None:
        array: NDArray[Any] = np.asarray(value)
        fits = array.shape == shape and array.dtype in (np.float64, np.int64, np.int32)
        if (
            not fits
            or np.any(array < least)
            or np.any(array > most)
            or (whole and np.any(array != np.rint(array)))
        ):
            raise RefusedError("a message holds a number of another shape or size than agreed on.")

    def _among(self, value: Any, shape: tuple[int, ...], known: NDArray[np.float64]) -> None:
        self._in(value, shape, 0.0, math.inf)
        if not np.all(np.isin(value, known)):
            raise RefusedError("it was asked about a radius that is none of the agreed candidates'.")
