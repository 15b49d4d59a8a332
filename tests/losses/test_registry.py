"""A loss is one entry: with it estimators, command, model files, messages and page know it."""

import json
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest

from bidro import RobustRegressor
from bidro.core.errors import BidroError
from bidro.fit.fitted import Progress
from bidro.fit.settings import FitSettings, settings_of
from bidro.losses import Huber, Logistic, Softmax, losses_of, registry
from bidro.losses.linear import ResidualLoss, SmoothedHinge
from bidro.losses.registry import LossChoice, LossEntry
from bidro.losses.scalar import PiecewiseQuadratic
from bidro.model.model_file import Model
from bidro.workflow.fit import fit_tables
from bidro.workflow.folder import folder_files
from bidro.workflow.options import FitOptions


@dataclass(frozen=True)
class Insensitive(ResidualLoss):
    """max(0, |u| - 0.1)"""

    @property
    def scalar(self):
        return PiecewiseQuadratic((-0.1, 0.1), ((0.0, -1.0, -0.1), (0.0, 0.0, 0.0), (0.0, 1.0, -0.1)))


@pytest.fixture
def insensitive(monkeypatch):
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    registry.register_loss(
        LossEntry("insensitive", Insensitive, "regression", "insensitive error", "{target}")
    )


def test_one_entry_is_enough(insensitive, tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(80, 2)), columns=["a", "b"])
    frame["y"] = frame["a"] - 2 * frame["b"] + 0.3 * rng.normal(size=80)
    frame["site"] = np.repeat(["north", "south"], 40)
    own = RobustRegressor("insensitive", radius=0.05, weights="simplex", gap=1e-3)
    own.fit(frame[["a", "b"]], frame["y"], clients=frame["site"])
    assert own.duality_gap_ <= 1e-3
    np.testing.assert_allclose(own.coef_, [1.0, -2.0], atol=0.2)
    frame.to_csv(tmp_path / "t.csv", index=False)
    options = FitOptions(
        tables=(str(tmp_path / "t.csv"),),
        client="site",
        target="y",
        loss="insensitive",
        radius=0.05,
        weights="simplex",
        gap=1e-3,
    )
    files = folder_files(fit_tables(options, Progress()))
    page = json.loads(files["report.json"])
    assert page["loss"] == {"name": "insensitive error", "unit": "y"}
    assert "insensitive error" in files["report.html"]
    model = Model.from_bytes(files["model.safetensors"], "model")
    assert model.loss == Insensitive(True)


def test_a_word_or_a_class_is_taken_once(insensitive):
    with pytest.raises(BidroError, match="already"):
        registry.register_loss(LossEntry("insensitive", Huber, "regression", "", ""))
    with pytest.raises(BidroError, match="already"):
        registry.register_loss(LossEntry("other", Huber, "regression", "", ""))


def test_choices_become_losses_in_the_units_of_training():
    assert LossChoice("huber", None, True, {"threshold": 1.5}).in_units(4.0) == Huber(True, 6.0)
    assert LossChoice("logistic", 2, False).in_units(1.0) == Logistic(False, pseudo_rows=registry.PSEUDO_ROWS)
    assert LossChoice("logistic", 4).in_units(1.0) == Softmax(4, True, pseudo_rows=registry.PSEUDO_ROWS)
    assert LossChoice("smoothed hinge", 2).in_units(1.0) == SmoothedHinge(True)
    for bad, words in (
        (("huber", 2), "loss must be one of logistic, smoothed hinge for classification"),
        (("softmax", 3), "loss must be one of"),
        (("smoothed hinge", 3), "The smoothed hinge is for two classes, and there are 3; use 'logistic'"),
    ):
        with pytest.raises(BidroError, match=words):
            LossChoice(*bad)
    with pytest.raises(BidroError, match="threshold must be a finite number"):
        LossChoice("huber", None, True, {"threshold": "wide"})


def test_the_command_s_help_names_every_loss():
    (help_text,) = (known.help for field, known in settings_of(FitSettings) if field.name == "loss")
    assert all(word in help_text for word in registry.words())


@pytest.mark.parametrize("word", list(registry.kinds()))
def test_losses_on_the_host_are_those_of_single_rows(word):
    import jax.numpy as jnp

    rng = np.random.default_rng(3)
    kind = registry.kinds()[word]
    loss = Softmax(3, True) if kind is Softmax else kind(intercept=True)
    rows = 3 * rng.normal(size=(40, 4))
    if loss.labels is not None:
        rows[:, -1] = rng.choice(loss.labels, 40)
    x = rng.normal(size=loss.dimension(4))
    one_by_one = [float(loss.value(jnp.asarray(x), jnp.asarray(row))) for row in rows]
    np.testing.assert_allclose(losses_of(loss, x, rows), one_by_one, rtol=1e-13, atol=1e-13)
    assert isinstance(loss.values(x, rows), np.ndarray)
