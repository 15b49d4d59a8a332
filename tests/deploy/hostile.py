"""Servers that are after rows: one that chooses its messages, and one that asks as bidro does and keeps what
it hears.

What either finds is held against the rows of the site, and against rows that are not there: by chance as many
of those are near a guess.
"""

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd
from safetensors.numpy import load

import bidro
from bidro.core.errors import BidroError
from bidro.deploy.server.serve import run_job
from bidro.deploy.site.config import Site
from bidro.deploy.site.disclosure.rules import PolicyViolationError
from bidro.deploy.site.rows import SiteRows, holdout, table_id
from bidro.deploy.site.session import reply_of
from bidro.deploy.site.snapshot import snapshot
from bidro.federated.engines.coordinator import InMemory, Nothing, Policy
from bidro.federated.engines.wire import described, header_of, pack, unpack
from bidro.fit.questions import Prepared, Segments
from bidro.selection.fold_queries import (
    CutsBroadcast,
    FoldCuts,
    FoldMoments,
    FoldScores,
    MomentsBroadcast,
    ScoresBroadcast,
    ScoresReply,
)
from bidro.solvers.bundle.algorithm import ExactMWDRO
from bidro.solvers.bundle.one_shot import OneShotMWDRO
from bidro.solvers.bundle.state import Broadcast, Reply
from tests.deploy.lattice import (
    left_out,
    rows_from_moments,
    sums_from_gradients,
    sums_from_losses,
    sums_from_moments,
)
from tests.deploy.sites import answering, job

NO_RADIUS = {"kind": "WassersteinBall", "radius": 0.0}


class NotToldError(Exception):
    """A site's sentence."""


@dataclass(frozen=True)
class Rebuilt:
    """How many of the rows that a site trains on were rebuilt."""

    rows: int
    exact: int = 0
    near: int = 0  # within 0.1 standard deviations in all columns
    chance: int = 0  # of as many rows that are not there
    refused: tuple[str, ...] = ()

    @property
    def nobody(self):
        return self.exact == 0 and self.near <= self.chance


def rebuilt(found, guesses, rows, refused=()):
    """From rows (found, m) that an attack is sure of, and guesses (..., m), in the table's own units."""
    spread = rows.std(axis=0)
    elsewhere = np.column_stack([np.random.default_rng(j).permutation(own) for j, own in enumerate(rows.T)])
    every = (
        np.concatenate([found, guesses]) if len(found) + len(guesses) else np.full((1, rows.shape[1]), np.inf)
    )

    def near(those, share):
        return sum(bool(np.any(np.all(np.abs(every - one) <= share * spread, axis=1))) for one in those)

    return Rebuilt(len(rows), near(rows, 1e-6), near(rows, 0.1), near(elsewhere, 0.1), tuple(refused))


class Server:
    """One that asks a site for whatever it likes."""

    def __init__(self, folder, name="east", run="attack"):
        self.site = Site.read(folder / f"{name}.toml")
        self.rows = SiteRows.load(self.site)
        self.run, self.asked, self.refused, self.training = run, 0, [], 0

    def ask(self, question, message, like, **more):
        """The reply; raises NotToldError."""
        self.asked += 1
        header = {
            "version": bidro.__version__, "client": self.site.client, "agreed": self.rows.agreed.digest,
            "question": question, "run": self.run, "round": self.asked, **more,
        }  # fmt: skip
        if question != "prepare":
            header["table"] = table_id(self.site, snapshot(self.site, self.rows))
        if question == "round" and self.rows.protocol.has_curves:
            header.setdefault("curves", None)
        reply = reply_of(self.site, self.rows, pack(message, header))
        if "refused" in header_of(reply):
            self.refused.append(header_of(reply)["refused"])
            raise NotToldError(self.refused[-1])
        return unpack(reply, like)

    def round(self, algorithm, folds, message, like, **more):
        more = {"seed": 0, "ambiguity": NO_RADIUS, "folds": folds, "algorithm": described(algorithm), **more}
        return self.ask("round", message, like, **more)

    def known(self, folds, kind, protocol=None, **settings):
        """The agreed algorithm of a kind, with these settings, over so many folds."""
        every = (protocol or self.rows.protocol).algorithms[folds].values()
        fits = [one for one in every if isinstance(one, kind)]
        fits = [one for one in fits if all(getattr(one, name) == value for name, value in settings.items())]
        if not fits:
            self.refused.append(f"{kind.__name__} is not agreed on")
            raise NotToldError(self.refused[-1])
        return fits[0]

    def offered(self):
        """Numbers of folds that it is told it may ask for, from the most."""
        said = self.ask("prepare", Nothing(), Prepared)
        self.training = int(said.rows)
        return [folds for folds in (5, 4, 3, 2) if np.ravel(said.folds)[folds - 1]]

    def sizes(self, folds):
        """(folds,) rows of each, which come with the losses of any models."""
        models = np.zeros((folds, 1, self.rows.protocol.dimension))
        return self.round(self.known(folds, FoldScores), folds, ScoresBroadcast(models), ScoresReply).rows

    def by_gradients(self, folds, protocol=None, **more):
        """Sums over the rows of every fold, from gradients at d + 1 models over all others."""
        protocol = protocol or self.rows.protocol
        d, sizes = protocol.dimension, self.sizes(folds)
        x = np.concatenate([np.zeros((1, d)), np.eye(d)])
        models, fold = np.tile(x, (folds, 1)), np.repeat(np.arange(folds), len(x))
        algorithm = self.known(folds, FoldCuts, protocol, sends_curvature=False)
        most, told = protocol.most_solves, []
        for begin in range(0, len(models), most):
            part = slice(begin, begin + most)
            count = len(models[part])
            zero = np.zeros(count)
            message = CutsBroadcast(np.asarray(count), models[part], zero, fold[part], zero)
            told.append(self.round(algorithm, folds, message, Reply, **more))
        gradient = np.concatenate([one.gradient for one in told])[:, :d].reshape(folds, len(x), d)
        loss = np.concatenate([one.upper for one in told]).reshape(folds, len(x))
        others = sizes.sum() - sizes
        return left_out(
            [sums_from_gradients(x, gradient[k], loss[k], others[k]) for k in range(folds)]
        ), sizes

    def by_losses(self, folds):
        """The same from nothing but the mean losses of models over each fold."""
        d = self.rows.protocol.dimension
        count, together = (d + 1) * (d + 2) // 2, self.rows.protocol.most_solves // folds
        x = np.random.default_rng(0).uniform(-1, 1, (count + 5, d))
        told = []
        for begin in range(0, len(x), together):
            models = np.broadcast_to(x[begin : begin + together], (folds, *x[begin : begin + together].shape))
            message = ScoresBroadcast(np.ascontiguousarray(models))
            told.append(self.round(self.known(folds, FoldScores), folds, message, ScoresReply))
        losses, sizes = np.concatenate([one.loss for one in told], axis=1), told[0].rows
        return np.array([sums_from_losses(x, own, n) for own, n in zip(losses, sizes, strict=True)]), sizes

    def by_moments(self, folds):
        """The same from second moments, where these are sent."""
        algorithm = self.known(folds, FoldMoments)
        told = self.round(algorithm, folds, MomentsBroadcast(), FoldMoments.reply_type)
        sums = [sums_from_moments(*one) for one in zip(told.mean, told.around, told.rows, strict=True)]
        return left_out(sums), told.rows.sum() / (folds - 1) - told.rows

    def by_curves(self, bent, folds):
        """(sums over the rows of every fold of the columns of curves, where some features (by place) bend at
        their agreed centre, which features the columns are of)."""
        of_lines = self.rows.protocol
        k = len(of_lines.wanted.most)
        segments = [2 if j in bent else 1 for j in range(k)]
        borne = self.ask("segments", Nothing(), Segments, folds=folds).segments
        if np.any(borne < segments):
            self.refused.append("these curves are not borne")
            raise NotToldError(self.refused[-1])
        curved = of_lines.at(segments)
        said = {"segments": segments, "smoothing": 0.0}
        return self.by_gradients(folds, curved, curves=said)[0], curved.loss.basis.feature

    def over_all(self):
        """[Sums over all training rows], from one reply with second moments or from d + 1 gradients; [] where
        neither is told."""
        try:
            self.offered()
        except NotToldError:
            return []
        d, count = self.rows.protocol.dimension, self.training
        at = [Broadcast(x, np.zeros(())) for x in (np.zeros(d), *np.eye(d))]
        try:
            told = self.round(self.known(0, OneShotMWDRO), 0, at[0], OneShotMWDRO.reply_type)
            return [sums_from_moments(told.mean, told.around, count)]
        except NotToldError:
            pass
        try:
            exact = self.known(0, ExactMWDRO, sends_curvature=False)
            each = [self.round(exact, 0, one, Reply) for one in at]
        except NotToldError:
            return []
        parts = [one.gradient[:d] for one in each], [float(one.upper) for one in each]
        return [sums_from_gradients([one.x for one in at], *parts, count)]

    def by_any(self, folds):
        """The same by whatever is told."""
        try:
            return self.by_gradients(folds)
        except NotToldError:
            return self.by_moments(folds)

    def by_several_numbers_of_folds(self, ask):
        """Sums over sets of rows, from as many numbers of folds as are answered. Rows are dealt by where a
        random number of theirs lies between 0 and 1: folds of two numbers overlap in stretches."""
        sets, up_to = [], {Fraction(0): 0.0}
        try:
            offered = self.offered()
        except NotToldError:
            return []
        for folds in offered:
            try:
                sums, _ = ask(folds)
            except NotToldError:
                continue
            sets += list(sums)
            up_to |= {Fraction(k + 1, folds): own for k, own in enumerate(np.cumsum(sums, axis=0))}
        ends = [up_to[place] for place in sorted(up_to)]
        sets += [after - before for before, after in pairwise(ends)]
        return [one for one in sets if one[-1, -1] > 0.5]


class Steps(NamedTuple):
    """The columns of a table, the target last, in the steps in which they are recorded."""

    scale: np.ndarray  # (m,) of an agreed unit
    centre: np.ndarray  # (m,) of the agreed centre
    each: np.ndarray  # (m,) steps of a column's own unit

    @classmethod
    def of(cls, agreed, table):
        """Those of a table; how many decimals a column has is no secret."""
        numbers = table[[*agreed.schema.features, agreed.schema.target]].to_numpy(float)
        each = 10.0 ** np.array([_decimals(own) for own in numbers.T])
        units = agreed.standard
        scale, centre = np.append(units.spread, 1.0), np.append(units.mean, units.middle)
        return cls(scale * each, centre * each, each)

    def rows(self, sums):
        """(rows, guesses) in the columns' own units, from the sums over sets of rows."""
        found = [rows_from_moments(one, self.scale, self.centre) for one in sums]
        none = np.zeros((0, len(self.each)))
        return tuple(np.concatenate([none, *(one[k] for one in found)]) / self.each for k in (0, 1))

    def count(self, means, most):
        """Over how many rows, at the most, second moments are: their sums are whole numbers."""
        first = means[-1, :-1] * self.scale + self.centre - np.rint(self.centre)
        every = np.arange(2, most + 1)[:, None] * first
        away = np.abs(every - np.rint(every)).max(axis=1)
        return 2 + int(np.argmin(away > 1e-3)) if np.any(away <= 1e-3) else 0


def _decimals(column):
    return next(
        k for k in range(9) if np.allclose(column * 10**k, np.rint(column * 10**k), rtol=0, atol=1e-6)
    )


def trained_on(site):
    """(rows, m) what a site trains on, or would, the target last."""
    rows = SiteRows.load(site)
    try:
        return rows.whole(~holdout(site, rows))
    except PolicyViolationError:
        return rows.whole(np.ones(len(rows.target), bool))


def attacked(server, sets):
    """What sums over sets give away at the server's site."""
    rows, agreed = np.unique(trained_on(server.site), axis=0), server.rows.agreed
    steps = Steps.of(agreed, pd.DataFrame(rows, columns=[*agreed.schema.features, agreed.schema.target]))
    return rebuilt(*steps.rows(sets), rows, server.refused)


def heard_in_a_run(folder, agreed, names, run="honest", most=10**9, **training):
    """([(request, reply)] by site, why the run ended early or None) of an honest run, of which no more than
    `most` messages to a site are waited for."""
    answers, heard = answering(folder, names), {name: [] for name in names}

    def listened(name):
        def reply(request):
            if len(heard[name]) == most:
                raise TimeoutError("enough was heard")
            said = answers[name](request)
            heard[name].append((request, said))
            return said

        return reply

    try:
        run_job(
            job(agreed, run, names, options=training, policy=Policy(patience=0.01)),
            InMemory({name: listened(name) for name in names}),
            folder / "runs",
        )
    except BidroError as error:
        return heard, str(error)
    return heard, None


def sums_heard(heard, steps):
    """Sums over the rows of folds from what an honest run has asked and was told."""
    models, told, sums, most = {}, {}, [], 0
    for request, reply in heard:
        header, said, fields = header_of(request), load(request), load(reply)
        if "refused" in header_of(reply) or header.get("curves"):
            continue
        if header["question"] == "prepare":
            most = int(fields["rows"])
        if header["question"] != "round":
            continue
        folds, kind = header["folds"], header["algorithm"]["kind"]
        if kind == "FoldMoments":
            each = zip(fields["mean"], fields["around"], fields["rows"], strict=True)
            sums += list(left_out([sums_from_moments(*one) for one in each]))
        if kind not in ("FoldCuts", "FoldNewton"):
            continue
        for k in range(int(said["active"] if kind == "FoldCuts" else said["models"])):
            if said["scale"][k] == 0:
                place = folds, int(said["fold"][k])
                loss = fields["attained"][k] + fields["smoothing"][k]
                models.setdefault(place, []).append(said["x"][k])
                told.setdefault(place, []).append([*fields["gradient"][k][: len(said["x"][k])], loss])
    for folds in sorted({folds for folds, _ in models}):
        means = []
        for fold in range(folds):
            numbers = np.array(told[folds, fold])
            means.append(sums_from_gradients(models[folds, fold], numbers[:, :-1], numbers[:, -1], 1))
        counts = [steps.count(one, most) for one in means]
        sums += list(left_out([n * one for n, one in zip(counts, means, strict=True)]))
    return sums
