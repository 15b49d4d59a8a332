"""What `fit` is to do, from the options of the command and a schema."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bidro.curves import Category
from bidro.errors import BidroError
from bidro.fitting import Options
from bidro.privacy.terms import Budget, Terms
from bidro.standard import Standard
from bidro.tables import Schema, bounds_of
from bidro.training import LARGEST_COEFFICIENT, AlgorithmOne, Replies
from bidro.workflow.options import FitOptions

# The levels of confidence that the report can show.
LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)


def fit_options(
    options: FitOptions,
    schema: Schema,
    replies: Replies = "curvature",
    algorithm: AlgorithmOne | None = None,
    units: Standard | None = None,
    largest_coefficient: float = LARGEST_COEFFICIENT,
    privacy: Terms | None = None,
    units_drafted: bool = False,
) -> Options:
    """What `fit` is to do. Raises BidroError where the schema and the options have no loss."""
    support = None if options.support is None else bounds_of(options.support, schema)
    classes = None if schema.classes is None else len(schema.classes)
    loss = options.loss_choice(classes)
    choices = options.choices(replies)
    return Options(
        loss,
        replace(choices, curves=_with_categories(choices.curves, schema)),
        support,
        LEVELS,
        options.shift,
        algorithm,
        units=units,
        largest_coefficient=largest_coefficient,
        privacy=privacy,
        units_drafted=units_drafted,
    )


def private_terms(agreed: Terms | None, budget: Budget | None) -> Terms | None:
    """What a fit in one process releases under a budget: as agreed, or by default. Raises BidroError where
    a private run was agreed on and there is no budget."""
    if budget is not None:
        return agreed or Terms()
    if agreed is not None:
        raise BidroError(
            "The schema is of a private run: say how private it is to be with --epsilon, such as --epsilon 1."
        )
    return None


def _with_categories(curves: Any, schema: Schema) -> Any:
    """Curves by level name a category, of which numbers have a column for each level but the first."""
    if not isinstance(curves, dict):
        return curves
    known = {
        column.name: Category(column.name, column.coded, column.levels)
        for column in schema.columns
        if column.levels is not None
    }
    return {
        name: (one[0], known.get(one[1], one[1])) if isinstance(one, tuple) else one
        for name, one in curves.items()
    }
