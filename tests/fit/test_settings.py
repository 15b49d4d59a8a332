"""The settings of a fit: one dataclass, from which parameters, options and files are made."""

import inspect
import math
import tomllib

import click
import numpy as np
import pytest
import typer
from sklearn.base import clone

from bidro import RobustClassifier, RobustRegressor
from bidro.cli import app
from bidro.core.errors import BidroError
from bidro.fit.settings import TRAINING, FitSettings, settings_of
from bidro.selection.rule import MAX_COST
from bidro.workflow.options import FitOptions, TableColumns

NUMBERLESS = ("0.5", None, True, False, [0.5], 1j)


@pytest.mark.parametrize(
    ("name", "allowed", "not_allowed"),
    [
        ("criterion", ("risk", "regret"), ("Risk", None, 1, [])),
        ("metric", ("features", "joint"), ("other", None)),
        ("label_cost", (1e-9, 3, 1e9), (0, -1.0, math.inf, math.nan, *NUMBERLESS)),
        ("p", (None, 1, 1.5, 2.0), (0.999, math.inf, math.nan, "2", True, [2.0])),
        ("radius", ("cross-validate", "bootstrap", "explicit", 0, 0.5, [0.1, 0.0]), ("auto",)),
        ("radius", ({"a": 0.0, "b": 1.0},), ({"a": -1.0}, {"a": "x"}, [[0.1]], object())),
        ("radius", (), (-1e-9, math.inf, math.nan, [0.1, -0.1], [0.1, math.inf])),
        ("weights", ("auto", "simplex", "fixed", 1, 1.0, 7.5), ("cap", 0.999, math.inf, math.nan)),
        ("weights", (), (None, True, [2.0])),
        ("quantile", (1e-9, 0.5), (0, 1, math.nan, *NUMBERLESS[:1])),
        ("power", (1, 1.5, 2), (0.9, 2.1, math.nan, "1.5")),
        ("exposure", (None, "years"), (3, ["years"])),
        ("threshold", (1e-9, 5), (0, -1.0, math.inf, math.nan)),
        ("hold_out", (0, 0.0, 0.99), (1, -0.1, math.nan, "0.2", True)),
        ("new_clients", (0, 0.0, 0.99), (1, -0.1, math.nan, "0.2", True)),
        ("gap", (1e-12, 1), (0, -1, math.inf, math.nan, "1e-6")),
        ("folds", (None, 2, np.int64(7)), (1, 2.0, "5")),
        ("seed", (0, 2**62 - 1, np.int64(3)), (-1, 2**62, 0.0, "0")),
        ("increasing", ((), ["age"], ("age", "bmi")), ("age", [3], 3, None)),
        ("personal", ("auto", "offset", None), ("none", "Auto", 3)),
        ("curves", ("auto", None, 1, 64, {"age": (8, "sex")}), ("none", 0, 65, {"age": "8@sex"})),
    ],
)
def test_what_is_refused_and_what_is_not(name, allowed, not_allowed):
    for value in allowed:
        FitSettings(**{name: value})
    for value in not_allowed:
        with pytest.raises(BidroError):
            FitSettings(**{name: value})


def test_words_are_named_one_after_the_other():
    with pytest.raises(BidroError, match=r"metric must be 'features' or 'joint'; got 'x'"):
        FitSettings(metric="x")
    with pytest.raises(
        BidroError, match=r"a largest weight ratio of at least 1, 'auto', 'simplex' or 'fixed'; got 'x'"
    ):
        FitSettings(weights="x")


def test_a_max_cost_is_of_weights_that_are_chosen():
    assert FitSettings.max_cost == MAX_COST
    FitSettings(weights="fixed", max_cost=MAX_COST)
    with pytest.raises(BidroError, match="max_cost is for weights='auto'"):
        FitSettings(weights="fixed", max_cost=0.1)


@pytest.mark.parametrize("estimator", [RobustRegressor, RobustClassifier])
def test_estimators_have_the_settings_as_parameters(estimator):
    named = {known.parameter or field.name: field.default for field, known in settings_of(FitSettings)}
    parameters = inspect.signature(estimator).parameters
    assert {name: p.default for name, p in parameters.items() if name != "loss"}.items() <= named.items()
    loss, *others = parameters.values()
    assert (loss.name, loss.kind) == ("loss", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    assert {p.kind for p in others} == {inspect.Parameter.KEYWORD_ONLY}
    own = {"threshold", "quantile", "power", "exposure"} if estimator is RobustRegressor else {"width"}
    of_code = {"moments_alone", "held_still"}
    of_losses = {"threshold", "quantile", "power", "exposure", "width"}
    elsewhere = ({"hold_out", "new_clients", "shift"} | of_code | of_losses) - own
    assert set(parameters) == named.keys() - elsewhere
    radius = {"north": 0.1}
    again = clone(estimator(radius=radius, random_state=3, curves={"age": 8}))
    assert again.get_params()["radius"] == radius
    words = "(curves={'age': 8}, radius={'north': 0.1}, random_state=3)"
    assert " ".join(repr(again).split()) == f"{estimator.__name__}{words}"


def test_a_subclass_with_parameters_of_its_own_keeps_the_settings_that_it_gives():
    class Pooled(RobustRegressor):
        def __init__(self, radius=0.1):
            super().__init__(radius=radius, weights="fixed", personal=None)

    found = Pooled(0.2)._settings()
    assert (found.radius, found.weights, found.personal, found.curves) == (0.2, "fixed", None, "auto")


def test_commands_have_the_settings_as_options():
    fit = typer.main.get_command(app).commands["fit"]
    options = {one.name: one for one in fit.params}
    named = {field.name: known for field, known in settings_of(FitOptions)}
    made = {name for name, known in named.items() if known.option is not None}
    assert options.keys() - made == {"tables", "out", "config", "force", "json", "prefer", "verbose"}
    assert made <= options.keys()
    assert all(options[name].help.startswith(named[name].help) for name in made)
    ends = {
        "max_cost": "[0.02]",
        "radius": "[0]",
        "gap": "[1e-6]",
        "folds": "[5]",
        "loss": "[squared or logistic]",
    }
    assert all(options[name].help.endswith(end) for name, end in ends.items())
    assert isinstance(options["seed"].type, click.types.IntParamType)
    assert {field.name for field, _ in settings_of(TableColumns)} <= made


@pytest.mark.parametrize(
    "options",
    [
        FitOptions(),
        FitOptions(personal=None, curves=None, max_cost=math.inf, folds=3, loss="huber"),
        FitOptions(("a.csv", "b.csv"), curves={"age": (8, "sex"), "bmi=high": None, "weight": "auto"}),
        FitOptions(radius={"north": 0.1, 'so"uth': 0.0}, support={"age": [0, 120]}, increasing=("age",)),
        FitOptions(
            features=("a", "b"), weights=3.0, metric="joint", shift=0.1, missing="median", person="id"
        ),
    ],
)
def test_options_come_back_from_their_file(options, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(options.to_toml())
    assert FitOptions.from_toml(path) == options
    assert FitOptions.from_toml(path, weights="simplex", max_cost=0.02).weights == "simplex"


def test_what_a_file_has_in_words():
    content = tomllib.loads(
        FitOptions(personal=None, curves={"age": (8, "sex")}, max_cost=math.inf).to_toml()
    )
    assert (content["personal"], content["curves"], content["max_cost"]) == ("none", {"age": "8@sex"}, "inf")
    assert not {"p", "width", "fit_intercept", "moments_alone", "loss", "folds"} & content.keys()
    with pytest.raises(BidroError, match="'run' has an unknown option 'width'; there are categories, client"):
        FitOptions.from_file({"width": 1.0}, "'run'")
    with pytest.raises(BidroError, match="drop in 'run' is a list of names; got 'age'"):
        FitOptions.from_file({"drop": "age"}, "'run'")


def test_what_sites_agree_on():
    assert sorted(TRAINING) == [
        *("confidence", "criterion", "curves", "decreasing", "folds", "gap", "hold_out", "increasing"),
        *("label_cost", "loss", "max_cost", "metric", "personal", "quantile", "radius", "seed"),
        *("shift", "threshold", "weights"),
    ]
