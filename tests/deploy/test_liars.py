"""Sites that lie: what contradicts itself is caught with the site's name, whatever the policy; honest sites
with odd data never are; what cannot be refuted is bounded and shown."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from bidro.certify.certificate import Certificate
from bidro.core.errors import BidroError
from bidro.deploy.server.audit import in_words
from bidro.deploy.server.serve import run_job
from bidro.federated.engines.coordinator import InMemory, Policy
from bidro.model.model_file import Model
from tests.deploy.liars import lying, only
from tests.deploy.sites import NAMES, QUICK, answering, job, table, write_sites
from tests.small import mostly_slow

HUBER = {**QUICK, "loss": "huber"}


def ran(folder, whole, options, lie=None, name="mid", support=None, **parts):
    agreed = write_sites(folder, whole, support, 'release = "trusted"\nmin_rows = 2')
    clients = answering(folder, sorted(whole["site"].unique()))
    if lie is not None:
        clients[name] = lying(clients[name], lie)
    run = parts.pop("run", "test")
    made = job(agreed, run, tuple(clients), options=options, **parts)
    return run_job(made, InMemory(clients), folder / "runs")


def model_of(files):
    return Model.from_bytes(files["model.safetensors"], "model")


def value(number):
    return lambda array: np.full_like(array, number)


def first(number):
    def changed(array):
        flat = array.copy().reshape(-1)
        flat[0] = number
        return flat.reshape(array.shape)

    return changed


def off_diagonal(array):
    """Covariances that no deviations allow."""
    changed = array.copy()
    changed[..., 0, 1] = changed[..., 1, 0] = 3.0
    return changed


def indefinite(array):
    """Three columns of which each two go against each other as far as possible."""
    changed = array.copy()
    for i, j in ((0, 1), (0, 3), (1, 3)):
        s = np.sqrt(array[..., i, i] * array[..., j, j])
        changed[..., i, j] = changed[..., j, i] = -0.99 * s
    return changed


# What was accepted before replies were held against each other stands first.
LIES = {
    "cuts too high": (HUBER, only("round", "ExactMWDRO", attained=lambda v: v + 8), "at least"),
    "cuts a little too high": (HUBER, only("round", "ExactMWDRO", attained=lambda v: v + 0.02), "at least"),
    "cuts too steep": (HUBER, only("round", "ExactMWDRO", gradient=lambda v: 0.5 * v), "by another"),
    "an upper end of 1e300": (HUBER, only("round", "ExactMWDRO", upper=value(1e300)), "no rows have"),
    "an upper end of 100": (HUBER, only("round", "ExactMWDRO", upper=value(100.0)), "known exactly"),
    "risks of 1e300": (
        HUBER,
        only("round", "ExactMWDRO", upper=value(1e300), attained=value(1e300)),
        "no rows have",
    ),
    "no proof": (HUBER, only("round", "ExactMWDRO", certified=value(0.0)), "no upper end"),
    "a concave risk": (HUBER, only("round", "ExactMWDRO", curvature=lambda v: -v), "not positive semi"),
    "curvature of 1e300": (HUBER, only("round", "ExactMWDRO", curvature=value(1e300)), "no rows have"),
    "below 0": (HUBER, only("round", "ExactMWDRO", upper=value(-1.0), attained=value(-2.0)), "below 0"),
    "means of 1e150": (QUICK, only("prepare", mean=value(1e150)), "above 1e"),
    "moments of 1e150": (QUICK, only("round", "OneShotMWDRO", mean=value(1e150)), "no rows have"),
    "moments that changed": (QUICK, only("round", mean=lambda v: v + 0.01), "other than when"),
    "no symmetry": (QUICK, only("round", "OneShotMWDRO", around=lambda v: np.triu(v)), "not symmetric"),
    "covariances": (QUICK, only("round", "OneShotMWDRO", around=off_diagonal), "larger than the deviations"),
    "indefinite moments": (QUICK, only("round", "OneShotMWDRO", around=indefinite), "not positive semi"),
    "half a row": (QUICK, only("prepare", rows=lambda v: v + 0.5), "no count"),
    "no rows": (QUICK, only("prepare", rows=value(0.0), people=value(0.0)), "on no rows"),
    "people of no schema": (QUICK, only("prepare", people=value(3.0)), "names none"),
    "more rows": ({}, only("prepare", rows=lambda v: v + 1, people=lambda v: v + 1), "folds of"),
    "too many folds": (QUICK, only("prepare", folds=value(9.0)), "folds"),
    "other deviations": (QUICK, only("prepare", deviation=lambda v: v - 0.01), "other than when"),
    "other means": (QUICK, only("prepare", mean=lambda v: v + 0.5), "other than when"),
    "folds that are none": ({}, only("round", "FoldMoments", rows=lambda v: v + 1), "folds of"),
    "folds of other rows": ({}, only("round", "FoldMoments", around=first(9.0)), "moments|deviation"),
    "a loss of 1e300": (QUICK, only("assess", loss=value(1e300)), "no rows have"),
    "a loss below 0": (QUICK, only("assess", loss=value(-1.0)), "below 0"),
    "a better loss": (
        QUICK,
        only("assess", loss=lambda v: 0.9 * v, personal_loss=lambda v: 0.9 * v),
        "second moments make it",
    ),
    "an error below 0": (QUICK, only("assess", se=value(-1.0)), "below 0"),
    "a bound of 0": (QUICK, only("bounds", clipped=value(0.0)), "a bound on it of 0"),
    "a bound of 1e30": (QUICK, only("bounds", clipped=value(1e30)), "no loss counts as more"),
}  # fmt: skip


@pytest.mark.parametrize("lie", list(LIES))
def test_a_contradiction_stops_the_run_with_the_name_of_the_site(lie, tmp_path):
    options, change, words = LIES[lie]
    with pytest.raises(BidroError, match=words) as found:
        ran(tmp_path, table(), options, change)
    assert str(found.value).startswith("Client 'mid' contradicts itself: it")
    lines = (tmp_path / "runs" / "test" / "progress.txt").read_text().splitlines()
    assert any("mid: Client 'mid' contradicts itself" in line for line in lines)


@pytest.mark.parametrize("lie", ["cuts a little too high", "moments that changed", "a bound of 0"])
def test_with_continue_the_run_goes_on_without_the_liar(lie, tmp_path):
    options, change, _ = LIES[lie]
    going_on = Policy(on_client_loss="continue", min_clients=2)
    files = ran(tmp_path, table(), options, change, policy=going_on)
    honest = table()[table()["site"] != "mid"]
    alone = ran(tmp_path, honest, options, run="alone")
    assert np.array_equal(model_of(files).x, model_of(alone).x)
    audit = json.loads(files["audit.json"])
    assert "contradicts itself" in audit["lost"]["mid"]
    assert [fault["client"] for fault in audit["faults"]] == ["mid"]
    assert "not accepted from 'mid'" in in_words(audit)


def test_a_site_in_another_unit_is_named_before_it_hides_the_others(tmp_path):
    """A consistent lie, or grams for tonnes: beside it nothing of the others would be left."""
    whole = table()
    whole.loc[whole["site"] == "mid", "v"] *= 1e9
    with pytest.raises(BidroError, match=r"Client 'mid': its column 'v' is of size .* in another unit"):
        ran(tmp_path, whole, QUICK)


def shifted(whole, by, columns):
    return whole.assign(**{name: whole[name] + by for name in columns})


def scaled(whole, by, columns):
    return whole.assign(**{name: whole[name] * by for name in columns})


# As many rows at all sites: programs are compiled once.
SMALL = (80,) * 5


def odd_tables():
    plain = table(sizes=(70, 85, 70, 80, 75))
    mid = plain["site"] == "mid"
    return {
        "plain": plain,
        "features far from 0": shifted(plain, 1e6, ["u", "v"]),
        "all far from 0": shifted(plain, 1e6, ["u", "v", "y"]),
        "tiny": scaled(plain, 1e-8, ["u", "y"]),
        "huge": scaled(plain, 1e8, ["v", "y"]),
        "one site far away": plain.assign(u=plain["u"] + 1e4 * mid, y=plain["y"] - 1e4 * mid),
        "rows twice": pd.concat([plain, plain], ignore_index=True),
        "a site of one row repeated": pd.concat(
            [plain[~mid], plain[mid].iloc[[0] * 40]], ignore_index=True
        ),
        "a column that does not vary": plain.assign(still=3.7),
        "an exact fit": plain.assign(y=np.round(2 * plain["u"] - plain["v"] + 1, 3)),
    }  # fmt: skip


# Copies are one person, and those that are not in the same sets tell them apart: such sites answer nothing.
COPIES = {"rows twice": "a sum over fewer than", "a site of one row repeated": "it has 1 different rows"}


def honest(folder, odd, options, run="test"):
    """A run over an odd table, in which no site contradicts itself, or which is not answered."""
    if odd in COPIES:
        with pytest.raises(BidroError, match=COPIES[odd]):
            ran(folder, odd_tables()[odd], options, run=run)
        return
    files = ran(folder, odd_tables()[odd], options, run=run)
    assert json.loads(files["audit.json"])["faults"] == []


@pytest.mark.parametrize("odd", list(odd_tables()))
def test_honest_sites_with_odd_data_never_contradict_themselves(odd, tmp_path):
    for run, options in (("cv", {}), ("ball", QUICK), ("wide", {**QUICK, "radius": 1.0})):
        honest(tmp_path, odd, {**options, "gap": 1e-3}, run)


LOSSES = [
    *((False, loss) for loss in ("huber", "absolute", "pinball")),
    *((True, loss) for loss in ("logistic", "smoothed hinge")),
]


@pytest.mark.parametrize(
    ("classes", "loss", "radius"),
    mostly_slow(
        [(*one, radius) for one in LOSSES for radius in (0.0, 0.1, 1.0, "cross-validate")],
        lambda case: case[1:] in (("huber", 0.1), ("logistic", 0.0)),
    ),
)
def test_honest_sites_never_contradict_themselves(classes, loss, radius, tmp_path):
    options = {**QUICK, "loss": loss, "radius": radius, "gap": 1e-3}
    sizes = SMALL
    if radius == "cross-validate":
        # Classes are to be had by enough rows of every fold.
        options, sizes = {"loss": loss, "radius": radius, "gap": 1e-3}, (200,) * 5
    files = ran(tmp_path, table(classes, sizes=sizes), options)
    assert json.loads(files["audit.json"])["faults"] == []


@pytest.mark.slow
@pytest.mark.parametrize("odd", [name for name in odd_tables() if name != "plain"])
def test_honest_sites_with_odd_data_and_another_loss_never_contradict_themselves(odd, tmp_path):
    honest(tmp_path, odd, {**HUBER, "gap": 1e-2})


@pytest.mark.slow
def test_honest_sites_with_a_support_people_and_labels_that_move_never_contradict_themselves(tmp_path):
    whole, options = table(True, sizes=SMALL), {**QUICK, "metric": "joint", "gap": 1e-2}
    support = {"u": (-10.0, 10.0), "v": (-20.0, 40.0)}
    assert json.loads(ran(tmp_path, whole, options, support=support)["audit.json"])["faults"] == []


# ---- what cannot be refuted


def test_the_certificate_says_by_whose_word_it_holds(tmp_path):
    files = ran(tmp_path, table(sizes=SMALL), QUICK)
    certificate = Certificate.from_json(files["certificate.json"].decode())
    assert certificate.mixtures.endswith("as reported by the sites")


def consistent_liar(whole, by=10.0):
    """Rows that are made up: nothing in them contradicts itself."""
    return whole.assign(y=whole["y"] + by * whole["u"] * (whole["site"] == "west"))


@pytest.mark.parametrize("weights", ["simplex", "fixed"])
def test_no_site_weighs_more_than_max_weight(weights, tmp_path):
    """However large its losses are, and however many rows it says it has."""
    whole = consistent_liar(table(sizes=(70, 70, 70, 70, 500)))
    options = {**QUICK, "weights": weights, "hold_out": 0.0}
    free = model_of(ran(tmp_path, whole, options, run="free")).settings["client_weights"]
    assert free["west"] > 0.4
    capped = model_of(ran(tmp_path, whole, options, run="capped", max_weight=0.3)).settings["client_weights"]
    assert capped["west"] == pytest.approx(0.3, abs=1e-6)
    assert sum(capped.values()) == pytest.approx(1)
    if weights == "fixed":
        np.testing.assert_allclose([capped[name] for name in NAMES[:-1]], 0.7 / 4)


def test_max_weight_needs_room_for_all(tmp_path):
    agreed = write_sites(tmp_path, table(sizes=SMALL))
    for wrong in (0.1, 1.5, "x", True):
        with pytest.raises(BidroError, match="max_weight must be a share from 1 / 5"):
            job(agreed, max_weight=wrong)


def test_the_influence_of_a_site_is_what_a_run_without_it_shows(tmp_path):
    """Against another run, without the site, in which the others are asked anew."""
    whole = consistent_liar(table(sizes=SMALL), 0.5)
    for name, options, tolerance in (("squared", QUICK, 0.05), ("huber", HUBER, 0.3)):
        folder = tmp_path / name  # sites of their own: these tell of so many models and no more
        folder.mkdir()
        files = ran(folder, whole, {**options, "hold_out": 0.0}, run=f"{name}-all")
        found = json.loads(files["audit.json"])["influence"]
        assert found["sites"][0]["site"] == "west"
        assert found == json.loads(files["report.json"])["influence"]
        rest = whole[whole["site"] != "west"]
        without = model_of(ran(folder, rest, {**options, "hold_out": 0.0}, run=f"{name}-rest"))

        def predictions(model):
            w, b = model.coefficients
            return model.schema.matrix(whole) @ np.asarray(w)[0] + float(np.asarray(b)[0])

        moved = np.sqrt(np.mean((predictions(model_of(files)) - predictions(without)) ** 2))
        told = found["sites"][0]
        if name == "squared":
            assert told["moved"] == pytest.approx(moved, rel=tolerance)
        else:
            assert moved * (1 - tolerance) <= told["moved"] <= 6 * moved  # a bound: columns may go together
        words = in_words(json.loads(files["audit.json"]))
        assert f"without 'west' (weight {told['weight']:.1%}) predictions move by" in words


def test_who_gains_without_a_site_gains_in_a_run_without_it(tmp_path):
    whole = consistent_liar(table(sizes=SMALL), 2.0)
    options = {**QUICK, "hold_out": 0.0, "radius": 0.0}
    files = ran(tmp_path, whole, options, run="all")
    told = json.loads(files["audit.json"])["influence"]["sites"][0]
    rest = ran(tmp_path, whole[whole["site"] != "west"], options, run="rest")
    before, after = (
        dict(zip(one["names"], one["empirical"], strict=True))
        for one in (json.loads(part["certificate.json"]) for part in (files, rest))
    )
    for name, change in told["changes"].items():
        assert change == pytest.approx(after[name] - before[name], rel=1e-3, abs=1e-4)
        assert (name in told["gain"]) == (change < -1e-3 * before[name])
        assert (name in told["lose"]) == (change > 1e-3 * before[name])


def test_where_influence_is_not_known_the_audit_says_so(tmp_path):
    """Kinks: the last replies hold no curvature of the sites' risks as they are."""
    files = ran(tmp_path, table(sizes=SMALL), {**QUICK, "loss": "absolute", "gap": 1e-1})
    audit = json.loads(files["audit.json"])
    assert audit["influence"]["sites"] == []
    assert "not known" in in_words(audit)


def test_a_changed_max_weight_is_another_run(tmp_path):
    agreed = write_sites(tmp_path, table(sizes=SMALL), None, "min_rows = 2")
    run_job(job(agreed, options=QUICK), InMemory(answering(tmp_path)), tmp_path / "runs")
    again = replace(job(agreed, options=QUICK, resume=True), max_weight=0.5)
    with pytest.raises(BidroError, match="other settings"):
        run_job(again, InMemory(answering(tmp_path)), tmp_path / "runs")


@pytest.mark.parametrize("rows_a_person", mostly_slow([1, 3], lambda rows: rows == 1))
def test_honest_sites_with_people_never_contradict_themselves(rows_a_person, tmp_path):
    """Also where every person has one row, and bounds on mistakes are still those of people."""
    whole = table(True, sizes=tuple(rows_a_person * size for size in SMALL))
    whole["who"] = [f"p{k // rows_a_person}" for k in range(len(whole))]
    agreed = write_sites(tmp_path, whole, None, "min_rows = 2", person="who")
    made = job(agreed, options={**QUICK, "radius": 0.0, "gap": 1e-2})
    files = run_job(made, InMemory(answering(tmp_path)), tmp_path / "runs")
    assert json.loads(files["audit.json"])["faults"] == []
