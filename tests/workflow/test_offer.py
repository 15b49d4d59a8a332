"""The table of models that a fit ends with: what it is made of, and what `--prefer` takes."""

import json

import numpy as np
import pytest

from bidro import example_visits, load_model
from bidro.workflow.offer import PREFERENCES, Offer, Offered, in_words
from tests.cli.test_command import run


@pytest.fixture(scope="module")
def visits(tmp_path_factory):
    where = tmp_path_factory.mktemp("offer")
    example_visits().to_csv(where / "visits.csv", index=False)
    return where


def fitted(visits, capsys, prefer, *more):
    asked = ("fit", visits / "visits.csv", "--client", "hospital", "--target", "stay", "--curves", "none")
    out = visits / f"{prefer}{len(more)}"
    code, words, err = run(capsys, *asked, "--prefer", prefer, "--out", out, "--force", *more)
    assert code == 0, err
    return words, load_model(out)


def _row(words, name):
    (line,) = (line for line in words.splitlines() if line.startswith(name))
    return line


def test_the_table_has_what_the_page_leads_with_and_marks_what_is_in_the_folder(visits, capsys):
    words, _ = fitted(visits, capsys, "mean")
    page = json.loads((visits / "mean0" / "report.json").read_text())["plainly"]
    for name, which in {
        "one guess for everybody": "guess",
        "pooled training": "pooled",
        "robust to any mix": "robust",
        "each client's own model": "personal",
    }.items():
        worst = max(one[which] for one in page["clients"].values())
        assert f"{page['models'][which]:#.3g}" in _row(words, name)
        assert f"{worst:#.3g}" in _row(words, name)
    marked = [line.split("  ")[0] for line in words.splitlines() if line.endswith("in the folder")]
    assert marked == ["pooled training", "each client's own model"]
    assert "The shared model is pooled training, as you prefer" in words


def test_the_robust_row_is_the_model_that_prefer_worst_gives(visits, capsys):
    """What is offered is what one gets by asking for it: the same errors on the same rows."""
    before, pooled = fitted(visits, capsys, "mean")
    after, robust = fitted(visits, capsys, "worst")
    offered, given = _row(before, "robust to any mix"), _row(after, "robust to any mix")
    assert given.endswith("in the folder")
    assert given.split()[4:6] == offered.split()[4:6]
    assert not np.allclose(pooled.x, robust.x)
    # On fresh rows of a year later, with another mix and another worn device, it serves the worst better.
    later = example_visits(seed=1, later=True)
    worst = {}
    for name, model in {"pooled": pooled, "robust": robust}.items():
        errors = (model.predict(later.drop(columns="hospital"))["prediction"] - later["stay"]) ** 2
        worst[name] = errors.groupby(later["hospital"]).mean().max()
    assert worst["robust"] < 0.9 * worst["pooled"]


def test_prefer_is_a_word_for_the_largest_cost(visits, capsys):
    for word, cost in PREFERENCES.items():
        _, by_word = fitted(visits, capsys, word)
        assert float(by_word.settings["max_cost"]) == cost
    asked = ("fit", visits / "visits.csv", "--client", "hospital", "--target", "stay", "--out", visits / "x")
    code, _, err = run(capsys, *asked, "--prefer", "mean", "--max-cost", "0.1")
    assert code == 2
    assert "leave one of them out" in err


def test_right_predictions_are_shares_and_the_worst_client_has_the_least():
    models = (Offered("pooled training", 0.9, 0.7, True), Offered("robust to any mix", 0.88, 0.8, False))
    words = in_words(Offer("Right predictions", True, 12, models), "100 held-out rows")
    assert "worst tenth of clients" in words
    assert _row(words, "pooled training").split()[2:4] == ["90.0%", "70.0%"]
    assert "-2.0%" in _row(words, "robust to any mix")


def test_a_rare_class_leads_with_how_well_it_is_told_from_the_other(tmp_path, capsys):
    rows = example_visits()
    rows["long"] = np.where(rows["stay"] > 11.5, "yes", "no")
    rows.drop(columns="stay").to_csv(tmp_path / "rare.csv", index=False)
    asked = ("--client", "hospital", "--target", "long", "--curves", "none", "--out", tmp_path / "model")
    code, words, err = run(capsys, "fit", tmp_path / "rare.csv", *asked)
    assert code == 0, err
    rare = json.loads((tmp_path / "model" / "report.json").read_text())["plainly"]["rare"]
    assert rare["class"] == "yes"
    assert 0.01 < rare["share"] < 0.15
    assert words.startswith(f"'yes' is rare ({rare['share']:.1%} of the rows)")
    assert f"{rare['area']:.3f}" in words.splitlines()[0]
    assert rare["area"] > 0.8
    assert rare["lift"] > 2
