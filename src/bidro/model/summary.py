"""`summary_of`: the table of a fitted model's coefficients that users of R expect, and how clients differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtri

from bidro.certify.coefficients import (
    FEWEST_CLIENTS,
    Covariance,
    apart,
    coefficient_obstacle,
    of_contrasts,
    posterior_covariances,
    row_sums,
    variance_interval,
    within_contrasts,
)
from bidro.core.arrays import Floats
from bidro.core.errors import BidroError, check_confidence
from bidro.core.sets import Box
from bidro.core.splits import Draws
from bidro.fit.fitted import Fitted
from bidro.losses import LinearScores, Squared, has_curves
from bidro.losses.registry import PSEUDO_ROWS
from bidro.model.predictor import Predictor
from bidro.risk.moments import of_clients
from bidro.selection.components import columns_that_differ, components
from bidro.selection.personal import expansion_of_squares
from bidro.selection.segments import with_smoothing

COLUMNS = ("estimate", "standard error", "lower", "upper", "p")
LEVEL = "level"
# Clients whose personal models are printed.
_MOST_SHOWN = 12
# Products of rows and squared parameters, about a second of them, that bands for a page may take.
_MOST_PRODUCTS = 5e9


@dataclass(frozen=True, eq=False)
class Summary:
    """The coefficients of a fitted model with their intervals, in the columns' own units.

    Examples:
        >>> import numpy as np
        >>> from bidro import RobustRegressor
        >>> rng = np.random.default_rng(0)
        >>> X, site = rng.normal(size=(300, 1)), np.repeat(["north", "south"], 150)
        >>> y = 2.0 * X[:, 0] + rng.normal(size=300)
        >>> found = RobustRegressor(weights="fixed").fit(X, y, clients=site).summary()
        >>> found.coefficients.loc["x0", "lower"] < 2.0 < found.coefficients.loc["x0", "upper"]
        True
    """

    confidence: float  # of every interval by itself
    coefficients: pd.DataFrame  # of the shared model: a line a coefficient, NaN where nothing is known
    curves: Mapping[str, pd.DataFrame]  # by feature with a curve: knot, value, standard error, lower, upper
    variation: pd.DataFrame  # standard deviations between clients: estimate, lower, upper
    clients: pd.DataFrame  # of personal models, by client and coefficient: estimate, error, lower, upper
    notes: tuple[str, ...]  # what intervals mean, or why there are none

    def __str__(self) -> str:
        lines = [f"Coefficients, with intervals at {self.confidence:.0%} each by itself"]
        lines += _indented(self.coefficients)
        for name, curve in self.curves.items():
            lines += ["", f"Curve of {name}, as a difference from an average row"]
            lines += _indented(curve)
        if len(self.variation):
            lines += ["", "How much clients differ: standard deviations between them"]
            lines += _indented(self.variation)
        if len(self.clients):
            names = self.clients.index.get_level_values(0)
            shown = list(dict.fromkeys(names))[:_MOST_SHOWN]
            more = len(set(names)) - len(shown)
            lines += [
                "",
                "Personal models" + (f" (of the first {len(shown)}; `clients` has all)" * (more > 0)),
            ]
            lines += _indented(self.clients[names.isin(shown)])
        return "\n".join([*lines, "", *self.notes])


def _indented(table: pd.DataFrame) -> list[str]:
    return ["  " + line for line in table.to_string(float_format="{:.4g}".format, na_rep="-").split("\n")]


def summary_of(
    fitted: Fitted, names: Sequence[str], confidence: float = 0.95, classes: Sequence[str] | None = None
) -> Summary:
    """Of a model whose training rows are here.

    Args:
        fitted: by `fit`.
        names: the features' (k,).
        confidence: of every interval by itself.
        classes: their names; None for a number.

    Returns:
        The tables. Where there is no interval, a note says why.

    Raises:
        BidroError: for a confidence outside (0, 1), and rows that are elsewhere.
    """
    check_confidence(confidence)
    problem, x = fitted.trained.problem, fitted.assessed.x
    if problem.federation.rows_elsewhere or fitted.clients is None:
        raise BidroError(
            "Intervals for coefficients need the training rows, and these are elsewhere, or have told noisy "
            "sums alone; only rows in this process have them."
        )
    loss, predictor = fitted.assessed.loss, Predictor(fitted.assessed.loss, x, fitted.standard)
    if not isinstance(loss, LinearScores):
        raise BidroError(f"There is no table of coefficients: {coefficient_obstacle(loss)}")
    outputs = [""] if loss.scores == 1 else [f" ({name})" for name in classes or range(loss.scores)]
    known = None if (why := _obstacle(fitted)) is not None else _shared(fitted, confidence)
    table = _table(fitted, predictor, names, outputs, known, confidence)
    curves = (
        {} if known is None or fitted.seen is None else _curves(fitted, names, outputs, known, confidence)
    )
    notes = [f"There are no intervals for these coefficients: {why}"] if why else _notes(fitted, confidence)
    variation, clients, more = _differences(fitted, names, confidence)
    return Summary(confidence, table, curves, variation, clients, (*notes, *more))


def bands_of(fitted: Fitted, names: Sequence[str], confidence: float = 0.95) -> dict[str, pd.DataFrame]:
    """The bands of `Summary.curves` by themselves; nothing where there are none, where a row has several
    scores, and where they would be long in the making.

    Args:
        fitted: by `fit`.
        names: the features' (k,).
        confidence: of a band, on average over its curve.
    """
    trained, loss = fitted.trained, fitted.assessed.loss
    federation, d = trained.problem.federation, len(fitted.assessed.x)
    if federation.rows_elsewhere or fitted.clients is None or fitted.seen is None:
        return {}
    several = not isinstance(loss, LinearScores) or loss.scores > 1
    if several or sum(federation.sizes) * d**2 > _MOST_PRODUCTS or _obstacle(fitted) is not None:
        return {}
    return _curves(fitted, names, [""], _shared(fitted, confidence), confidence)


def _obstacle(fitted: Fitted) -> str | None:
    trained = fitted.trained
    problem = trained.problem
    if (why := coefficient_obstacle(problem.loss)) is not None:
        return why
    if trained.solution is None:
        return "the model was trained by Algorithm 1, whose last step is no minimum."
    if problem.n > 1 and not trained.mixture_spec.fixed:
        return (
            "the clients' weights were chosen by how badly each is served, and the limit law of such a model "
            'is not normal; weights="fixed" has them.'
        )
    if np.any(np.asarray(problem.eps) > 0):
        return "with a radius the model minimises a worst case, not a mean; a radius of 0 has them."
    if isinstance(problem.models, Box) and np.any((problem.models.lower == 0) | (problem.models.upper == 0)):
        return "slopes are held to one sign, and at the edge an estimate is not normal."
    return None


def _notes(fitted: Fitted, confidence: float) -> list[str]:
    problem = fitted.trained.problem
    draws = "people" if problem.federation.people is not None else "rows"
    found = [
        f"Each interval holds the coefficient that all {draws} like these would have with probability about "
        f"{confidence:.0%}, by itself: sandwich standard errors"
        f"{', clustered by person' if draws == 'people' else ''}, for any spread of the errors. It assumes "
        f"independent {draws}, many of them, of these clients in these proportions."
    ]
    if has_curves(problem.loss):
        found.append(
            "Bands of curves are Bayesian, the smoothing being the prior: they hold on average over a curve, "
            "not at every place. They take the number of segments, which cross-validation chose on the same "
            "rows, as given."
        )
    if fitted.trained.pairs is not None and fitted.trained.pairs.pairs:
        found.append(
            "Bands of features in pairs are at the mean of the other feature, and take the pairs, chosen by "
            "cross-validation on the same rows or named, as given."
        )
    if problem.loss.infimum_at_infinity:
        found.append(
            f"Slopes are held back by {PSEUDO_ROWS:g} of a row of every client, as a prior is; the interval "
            "has that in it on average over coefficients."
        )
    calibration = fitted.trained.calibration
    if calibration is not None and len({one.mixture_spec for one in calibration.candidates}) > 1:
        found.append(
            "That clients count by their rows was itself chosen by cross-validation, and intervals take it "
            "as given."
        )
    return found


def _draws(fitted: Fitted) -> NDArray[np.int64] | None:
    federation = fitted.trained.problem.federation
    if federation.people is None:
        return None
    return Draws.of(np.repeat(np.arange(federation.n), federation.sizes), federation.people).of_row


def _as_trained(fitted: Fitted) -> LinearScores:
    """The loss with all that pulls at its models in training."""
    loss = with_smoothing(fitted.trained.problem).loss
    if loss.infimum_at_infinity:
        loss = replace(loss, pseudo_rows=PSEUDO_ROWS)  # type: ignore[type-var]
    assert isinstance(loss, LinearScores)
    return loss


def _shared(fitted: Fitted, confidence: float) -> Covariance:
    """The covariance of the shared model, in the units of training."""
    trained = fitted.trained
    federation, x, loss = trained.problem.federation, fitted.assessed.x, _as_trained(fitted)
    sizes = np.asarray(federation.sizes)
    weights = trained.alpha * sizes.sum() / sizes
    sums = row_sums(loss, x, federation.host_rows, np.repeat(weights, sizes), _draws(fitted))
    penalty = np.zeros((len(x), len(x)))
    if loss.penalty is not None:
        penalty += 2 * sizes.sum() * loss.penalty
    if (pull := loss.pull(len(x))) is not None:
        penalty += 2 * weights.sum() * pull
    found = Covariance.of(sums, penalty, loss.log_likelihood)
    return within_contrasts(found, of_contrasts(loss, federation.m))


def _lines(fitted: Fitted) -> tuple[Floats, NDArray[np.bool_]]:
    """((outputs, k + 1, d) what takes a model in the units of training to coefficients, and last the
    intercept, in the columns' own units, (k,) which features have no curve): with curves the intercept is the
    score of an average row."""
    loss, standard = fitted.assessed.loss, fitted.standard
    assert isinstance(loss, LinearScores)
    k, d = len(standard.mean), len(fitted.assessed.x)
    rows = fitted.trained.problem.federation.host_rows
    # A column that does not vary is 0 in the units of training, and is in no prediction.
    mean = np.where(rows[:, :-1].min(axis=0) < rows[:, :-1].max(axis=0), standard.mean, 0.0)
    layout = loss.layout(k + 1)
    curved = np.zeros(k, bool)
    found = np.zeros((loss.scores, k + 1, d))
    if loss.basis is None or loss.basis.straight:
        feature, straight = np.arange(k), True
    else:
        feature, straight = loss.basis.feature, False
        curved = loss.basis.most_segments > 1
        for j, levels in enumerate(loss.basis.by):
            if levels is not None:
                curved[[j, *levels.columns]] = True
        curved[list(loss.basis.paired)] = True
    for output in range(loss.scores):
        for column, j in enumerate(feature.tolist()):
            place = layout[output, column]
            if not curved[j]:
                found[output, j, place] = 1 / standard.spread[j]
            if straight:
                found[output, -1, place] = -mean[j] / standard.spread[j]
        if loss.intercept:
            found[output, -1, layout[output, -1]] = 1.0
    if loss.scores > 1:
        found = found - found.mean(axis=0)
    return found, ~curved


def _table(
    fitted: Fitted,
    predictor: Predictor,
    names: Sequence[str],
    outputs: Sequence[str],
    known: Covariance | None,
    confidence: float,
) -> pd.DataFrame:
    lines, straight = _lines(fitted)
    with_intercept = bool(fitted.assessed.loss.intercept)  # type: ignore[attr-defined]
    parts, labels = [], []
    for output, suffix in zip(lines, outputs, strict=True):
        estimate = output @ predictor.x
        estimate[-1] += fitted.standard.middle
        cells = np.full((len(estimate), len(COLUMNS)), np.nan)
        cells[:, 0] = estimate
        if known is not None:
            errors = known.errors(output)
            lower, upper = known.interval(estimate, errors, confidence)
            cells[:, 1:] = np.column_stack([errors, lower, upper, known.p_values(estimate, errors)])
        # The intercept first, as in R.
        order = [*([len(names)] if with_intercept else []), *np.flatnonzero(straight)]
        parts.append(cells[order])
        labels += [("(intercept)" if j == len(names) else names[j]) + suffix for j in order]
    return pd.DataFrame(np.concatenate(parts), index=labels, columns=list(COLUMNS))


def _curves(
    fitted: Fitted, names: Sequence[str], outputs: Sequence[str], known: Covariance, confidence: float
) -> dict[str, pd.DataFrame]:
    """Bands at the knots and at both ends of what was seen."""
    loss, standard, x = fitted.assessed.loss, fitted.standard, fitted.assessed.x
    assert isinstance(loss, LinearScores)
    assert fitted.seen is not None
    if loss.basis is None:
        return {}
    basis, layout = loss.basis, loss.layout(len(names) + 1)
    starts, found = np.cumsum(basis.segments) - basis.segments, {}
    for curve, (j, level) in enumerate(basis.each_curve()):
        levels = basis.by[j] if basis.by else None
        if basis.segments[curve] == 1 and levels is None and j not in basis.paired:
            continue
        low, high = ((side[j] - standard.mean[j]) / standard.spread[j] for side in fitted.seen)
        places = np.array([low, *basis.knots[curve], high])
        columns = np.arange(starts[curve], starts[curve] + basis.segments[curve])
        along = basis.along(columns, places)
        for output, suffix in enumerate(outputs):
            lines = np.zeros((len(places), len(x)))
            lines[:, layout[output, columns]] = along
            if loss.scores > 1:
                lines -= np.mean([_at(layout[o, columns], along, len(x)) for o in range(loss.scores)], axis=0)
            value, errors = lines @ x, known.errors(lines)
            lower, upper = known.interval(value, errors, confidence)
            name = names[j] if levels is None else f"{names[j]}, {levels.names[level]}"
            own = np.column_stack([value, errors, lower, upper])
            at = standard.mean[j] + standard.spread[j] * places
            found[name + suffix] = pd.DataFrame(own, index=at, columns=["value", *COLUMNS[1:4]])
    return found


def _at(columns: NDArray[np.int64], along: Floats, d: int) -> Floats:
    found = np.zeros((len(along), d))
    found[:, columns] = along
    return found


def _differences(
    fitted: Fitted, names: Sequence[str], confidence: float
) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """(how much clients differ, the personal models, notes on both)."""
    trained, loss = fitted.trained, fitted.assessed.loss
    variation = pd.DataFrame(columns=["estimate", "lower", "upper"], dtype=float)
    clients = pd.DataFrame(columns=list(COLUMNS[:4]), dtype=float)
    if not isinstance(loss, Squared) or trained.problem.n == 1 or _people(fitted):
        return variation, clients, _no_differences(fitted)
    federation, x = trained.problem.federation, fitted.assessed.x
    if trained.personal is not None and trained.personal.common is not None:
        x = trained.personal.common
    told = expansion_of_squares(
        loss,
        of_clients(federation.host_rows, federation.sizes, loss),
        np.asarray(federation.sizes, float),
        x,
    )
    q, k = told.pull.shape[1], len(names)
    columns = columns_that_differ(told.pull, np.einsum("nqq->nq", told.curvature), loss.intercept)
    part = told.among(columns)
    found = components(part, loss.intercept, False, len(x))
    b, v = apart(part.curvature, part.pull, found.freedom, found.dispersion)
    unit = np.append(1 / fitted.standard.spread, np.ones(int(loss.intercept)))[:q]
    cells, labels = [], []
    for place, column in enumerate(columns.tolist()):
        ends = np.sqrt(variance_interval(b[:, place], v[:, place], confidence))
        own = np.array([math.sqrt(found.variance[place]), *ends]) * unit[column]
        cells.append(own)
        labels.append(LEVEL if column == k else f"slope of {names[column]}")
    variation = pd.DataFrame(np.array(cells), index=labels, columns=["estimate", "lower", "upper"])
    few = (
        f" There are intervals from {FEWEST_CLIENTS} clients on."
        if trained.problem.n < FEWEST_CLIENTS
        else ""
    )
    notes = [
        "How much clients differ: by restricted maximum likelihood, intervals by the chi-squared law of the "
        "clients' own estimates, for normal differences; the level is that of a row that is average in "
        f"everything.{few}"
    ]
    chosen = trained.personal
    straight = loss.basis is None or loss.basis.straight
    if chosen is None or not chosen.adopts.any():
        return variation, clients, notes
    if not straight:
        return variation, clients, [*notes, "Personal curves have no intervals here; personal lines have."]
    variance = np.zeros(q)
    variance[columns] = found.variance
    covariances = posterior_covariances(
        told.curvature, chosen.freedom, variance, found.dispersion, chosen.share
    )
    lines = _lines(fitted)[0][0]
    order = [*([k] if loss.intercept else []), *range(k)]
    tables, keys = [], []
    for i, name in enumerate(federation.names):
        if not chosen.adopts[i]:
            continue
        estimate = lines @ fitted.personal_models[name]
        estimate[-1] += fitted.standard.middle
        errors = np.sqrt(np.maximum(np.einsum("md,de,me->m", lines, covariances[i], lines), 0.0))
        half = float(ndtri((1 + confidence) / 2)) * errors
        tables.append(np.column_stack([estimate, errors, estimate - half, estimate + half])[order])
        keys += [(name, "(intercept)" if j == k else names[j]) for j in order]
    clients = pd.DataFrame(
        np.concatenate(tables), index=pd.MultiIndex.from_tuples(keys), columns=list(COLUMNS[:4])
    )
    notes.append(
        "Intervals of personal models are of the client's own coefficient, posterior ones: they hold on "
        "average over clients whose differences are normal, not at each, so that there are no p-values. "
        "They take the components above as given."
    )
    return variation, clients, notes


def _people(fitted: Fitted) -> bool:
    return fitted.trained.problem.federation.people is not None


def _no_differences(fitted: Fitted) -> list[str]:
    if fitted.trained.problem.n == 1:
        return []
    if _people(fitted):
        return [
            "How much clients differ has no interval here: rows of one person are not independent, and what "
            "persons differ by is not told from what clients do."
        ]
    return ["How much clients differ has an interval for squared loss alone."]
