"""What a fit says it chose is what it chose: the words, the marks, and the made-up table's hospitals."""

import json

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

from bidro import RobustRegressor, example_visits
from bidro.certify.certificate import Certificate
from bidro.certify.held_out import held_out_bound
from bidro.model.model_file import load_model
from bidro.workflow import page_content
from bidro.workflow.settings_summary import personal_in_words, settings_summary
from tests.cli.test_command import run, visits


def settings(
    radii=(0.1, 0.1),
    max_weight_ratio=None,
    weights=(0.8, 0.2),
    rows=(10, 30),
    gap=1e-7,
    mixing=1.0,
    robustness_cost=None,
    personal=None,
):
    names = [f"h{k}" for k in range(len(rows))]
    return {
        "radius": "The radii were given.",
        "radii": dict(zip(names, radii, strict=True)),
        "max_weight_ratio": max_weight_ratio,
        "mixing": mixing,
        "robustness_cost": robustness_cost,
        "personal": personal,
        "client_weights": dict(zip(names, weights, strict=True)),
        "rows": dict(zip(names, rows, strict=True)),
        "gap": gap,
        "weights": "auto",
        "max_cost": 0.02,
        "criterion": "risk",
    }


def test_radii_in_words():
    for radii, words in (
        ((0.0, 0.0), "The radius is 0: training did not guard against shift"),
        ((0.1, 0.1), "The radius is 0.1: training guarded against shift inside each client"),
        ((0.1, 0.2), "Radii are from 0.1 to 0.2: training guarded against shift inside each client"),
        ((0.0, 0.2), "inside the clients whose radius is above 0"),
        ((None, None), "There is no radius: training used penalties."),
    ):
        assert words in settings_summary(settings(radii))["radius"]


def test_caps_and_mixtures_in_words():
    for ratio, words in (
        (None, "guarded against any mixture"),
        (1.0, "did not guard against another mixture"),
        (3.0, "no client counts for more than 3 times its share of the rows"),
    ):
        assert words in settings_summary(settings(max_weight_ratio=ratio))["weights"]
    worst = settings_summary(settings(weights=(0.3, 0.7)))["worst_mixture"]
    assert worst == "The worst mixture of training: h1 70% (75% of the rows), h0 30% (25% of the rows)."
    assert "not certified" in settings_summary(settings(gap=None))["worst_mixture"]
    assert settings_summary(settings(max_weight_ratio=1.0))["worst_mixture"].startswith(
        "The mixture of training"
    )
    many = settings((0.1,) * 40, None, (0.5, *(0.5 / 39,) * 39), (5,) * 40)
    assert "the other 35 clients 45% together" in settings_summary(many)["worst_mixture"]
    alone = settings_summary(settings((0.1,), None, (1.0,), (9,)))
    assert "no mixture to guard against" in alone["weights"]
    assert "worst_mixture" not in alone


def test_what_is_paid_in_words():
    robustness_cost = {"mean": 0.014, "worst_decile": -0.09, "pooled": False, "same_radius": False}
    for changed, words in (
        ({}, "Against pooled training it pays 1.4% on average; the worst tenth of the clients gains 9.0%"),
        (
            {"mean": -0.01, "worst_decile": 0.02},
            "gains 1.0% on average; the worst tenth of the clients pays 2.0%",
        ),
        ({"same_radius": True}, "Against pooled training with the same radius it pays"),
    ):
        assert (
            words
            in settings_summary(settings(mixing=0.05, robustness_cost=robustness_cost | changed))[
                "robustness_cost"
            ]
        )
    assert "up to 5% of the weight" in settings_summary(settings(mixing=0.05))["weights"]
    assert "robustness_cost" not in settings_summary(settings())


def test_why_it_is_pooled_training_in_words():
    """Candidates within the largest cost may look better, but not beyond chance; fixed weights leave no
    choice."""
    robustness_cost = {"mean": 0.0, "worst_decile": 0.0, "pooled": True, "same_radius": False}
    none = "no candidate was better for the worst clients"
    for asked, same_radius, words in (
        (
            {},
            False,
            f"The shared model is that of pooled training: {none} beyond chance, within the largest cost.",
        ),
        ({"max_cost": "inf"}, True, f"pooled training with the same radius: {none} whatever it costs."),
        ({"max_cost": float("inf")}, False, f"{none} whatever it costs."),
        ({"weights": "fixed"}, False, "fixed by rows: the shared model is pooled training."),
        ({"weights": 1.0}, True, "fixed by rows: the shared model is pooled training with its radius."),
    ):
        found = settings(max_weight_ratio=1.0, robustness_cost=robustness_cost | {"same_radius": same_radius})
        assert settings_summary(found | asked)["robustness_cost"].endswith(words)


def test_personal_models_in_words():
    own = {"freedom": [0.1, 0.4], "newcomers": [0.1, 0.2], "clients": ["h0"], "mean": -0.031, "unit": "days"}
    own |= {"level": 1.25, "slopes": {"age": 0.5}, "kept": {"h0": 0.8}}
    for changed, words, held in (
        (
            {},
            "1 of 2 clients uses a personal model, which lowers",
            "features changes: 0.5 for age; of their own",
        ),
        (
            {"clients": ["h0", "h1"], "freedom": [0.0, 0.4]},
            "use a personal offset",
            "by 1.25 days in their level",
        ),
        ({"clients": []}, "No client gains by a personal model", "none"),
    ):
        assert words in settings_summary(settings(personal=own | changed))["personal"]
        assert held.replace("features", "a feature") in personal_in_words(own | changed)
    assert "of their own level they keep 80% to 80%" in personal_in_words(own)


@pytest.mark.parametrize(("radius", "weights"), [("0", "fixed"), ("0.1", "simplex")])
def test_the_command_and_the_page_say_what_was_chosen(tmp_path, capsys, radius, weights):
    visits().to_csv(tmp_path / "visits.csv", index=False)
    fit = (
        *("fit", tmp_path / "visits.csv", "--client", "hospital", "--target", "stay"),
        *("--radius", radius, "--weights", weights, "--out", tmp_path / "model", "--force", "--verbose"),
    )
    code, out, err = run(capsys, *fit)
    assert code == 0, err
    model, page = load_model(tmp_path / "model"), json.loads((tmp_path / "model/report.json").read_text())
    chosen = model.settings["chosen"]
    assert chosen == settings_summary(model.settings) == page["chosen"]
    assert all(words in out for words in chosen.values())
    guarded = weights == "simplex"
    assert bool(page["worst_case"]) == guarded
    assert ("the radius is 0" in page["absent"].get("worst_case", "")) != guarded
    assert ("did not guard against shift" in chosen["radius"]) != guarded
    assert ("did not guard against another mixture" in chosen["weights"]) != guarded
    if not guarded:
        assert not any(client["binding"] for client in page["clients"])
        assert not any("worst mixture" in line for line in page["advice"])
    code, out, _ = run(capsys, *fit, "--json")
    assert json.loads(out)["chosen"] == chosen
    assert json.loads(out)["max_weight_ratio"] == (None if guarded else 1.0)
    # The mark is at the largest weight, on the screen and in the file.
    most = max(model.settings["client_weights"], key=model.settings["client_weights"].get)
    certificate = Certificate.from_json((tmp_path / "model" / "certificate.json").read_text())
    assert certificate.counts_most == (most,)


def test_regret_is_said_on_the_screen_and_on_the_page(tmp_path, capsys):
    visits().to_csv(tmp_path / "visits.csv", index=False)
    said = "The criterion is regret: what clients lose beyond what they could attain by themselves."
    for criterion in ("risk", "regret"):
        code, out, err = run(
            capsys,
            *("fit", tmp_path / "visits.csv", "--client", "hospital", "--target", "stay"),
            *("--criterion", criterion, "--out", tmp_path / criterion, "--verbose"),
        )
        assert code == 0, err
        page = json.loads((tmp_path / criterion / "report.json").read_text())
        assert page["criterion"] == criterion
        regret = criterion == "regret"
        assert (said in out) == (["Criterion", said] in page["settings"]) == regret
        assert page["chosen"].get("criterion") == (said if regret else None)


@pytest.fixture(scope="module")
def example():
    table = example_visits()
    columns = ["age", "bmi", "earlier", "walk", "frailty"]
    train, test = train_test_split(table, test_size=0.2, stratify=table["hospital"], random_state=0)
    model = RobustRegressor(radius=0.02).fit(train[columns], train["stay"], clients=train["hospital"])
    return model, columns, test


def test_the_mark_on_the_readmes_example(example):
    model, columns, test = example
    found = model.certify(test[columns], test["stay"], clients=test["hospital"])
    most = max(model.client_weights_, key=model.client_weights_.get)
    assert found.counts_most == (most,)
    (line,) = (line for line in str(found).splitlines() if line.endswith(" *"))
    assert line.split()[0] == most


def test_other_seeds_are_fresh_rows_of_the_same_hospitals(example):
    """No bound from some rows is contradicted by rows of other seeds; each has its error probability."""
    model, columns, test = example
    means = []
    for seed in range(1, 9):
        fresh = example_visits(seed)
        errors = (model.predict(fresh[columns]) - fresh["stay"]) ** 2
        means.append(errors.groupby(fresh["hospital"]).mean())
    means = np.array(means)
    error = means.std(axis=0, ddof=1) / np.sqrt(len(means))
    names = sorted(set(test["hospital"]))
    for seed in (0, 1, 2):
        rows = test if seed == 0 else example_visits(seed)
        found = model.certify(rows[columns], rows["stay"], clients=rows["hospital"], confidence=0.99).clipped
        # Losses are counted as at most a level, which lowers means a little; the bounds are of those.
        assert np.all(means.mean(axis=0) <= [found.clients[name] * 1.02 for name in names] + 3 * error)
    # Hospitals differ more than one hospital does from seed to seed.
    assert means.mean(axis=0).std() > 3 * error.max()


def test_the_page_shows_no_bound_that_says_nothing():
    losses = {"a": np.full(60, 0.1), "b": np.array([1.0, 0.9])}
    clipped = held_out_bound(losses, 0.95, 1.0, clipped=True)
    assert clipped.vacuous
    found = Certificate(
        0.95, ("a", "b"), (60, 2), (0.1, 0.5), "any mixture", None, None, clipped, None, None, {}, "", None
    )
    level = page_content.level_content(found)
    assert level["clipped"] is None
    assert level["too_few"]["clipped"] == clipped.promise
    assert "clipped" not in level["promises"]
