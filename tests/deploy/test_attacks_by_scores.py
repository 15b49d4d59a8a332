"""A server that makes models to read rows: what it would learn without the rules of scoring, and with them.

It knows where a person's features lie, and wants the target; or whether such a person is there at all.
"""

import numpy as np
import onnxruntime
import pytest

from bidro.certify.held_out import ClientBound, client_bound
from bidro.core.errors import BidroError
from bidro.deploy.agreement.agreement import ScoresAgreement
from bidro.deploy.messages.queries import Score, Scores
from bidro.deploy.site import answers as scored_rows
from bidro.deploy.site.answers import ROW_CHANGES, rounded_up
from bidro.deploy.site.config import Site
from bidro.deploy.site.rows import SiteRows, holdout
from bidro.deploy.site.state import SiteLog, write_key
from bidro.federated.engines.wire import unpack
from bidro.model.onnx.run import OnnxModel
from tests.deploy.sites import table, write_sites
from tests.deploy.test_site import asked_of
from tests.model.onnx.graphs import INT64, of_matrix

MOST, MIN_ROWS = 8.0, 10
FAR = 1e6


def victim(folder, models=2, key=None):
    """(a site, the features (k,) of a person that it holds out, that person's target, how many it keeps)."""
    state = folder / "state" / "east"
    state.mkdir(parents=True)
    if key is not None:
        write_key(state, key)
    scores = ScoresAgreement("absolute", largest=MOST, models=models)
    write_sites(folder, table(), None, 'allows = ["scores"]', training={"hold_out": 0.4}, scores=scores)
    site = Site.read(folder / "east.toml")
    rows = SiteRows.load(site)
    kept = holdout(site, rows)
    return site, rows.features[kept][3], float(rows.target[kept][3]), int(kept.sum())


def inside(person):
    """Nodes and constants that give `in` (rows, 1): 1 for a row at the person's features, else 0."""
    nodes = [
        ("Sub", ["X", "person"], ["away"], {}),
        ("Abs", ["away"], ["size"], {}),
        ("ReduceMax", ["size"], ["most"], {"axes": [1], "keepdims": 1}),
        ("Less", ["most", "near"], ["in"], {}),
    ]
    return nodes, {"person": person[None], "near": np.array([[1e-9]])}


def spike(person, guess):
    """The same for everybody, but for the person a guess."""
    nodes, constants = inside(person)
    nodes.append(("Where", ["in", "guess", "others"], ["y"], {}))
    return of_matrix(nodes, 3, {**constants, "guess": np.array([[guess]]), "others": np.zeros((1, 1))})


def told(site, data, run):
    """The bound of the loss, or why there is none."""
    message = Score(np.frombuffer(data, np.uint8))
    refused, reply = asked_of(site, "score", message, run=run, table=None)
    return refused if refused else float(unpack(reply, Scores).loss[0])


def exactly(bound, most, share, offset):
    return bound


def nearer(site, person, low, high, run):
    """Which of two guesses is nearer to the person's target, as far as the answers tell: False where they are
    the same; or why there is no answer."""
    answers = [told(site, spike(person, guess), f"{run}-{k}") for k, guess in enumerate((low, high))]
    if isinstance(answers[-1], str):
        return answers[-1]
    return False if answers[0] == answers[1] else low if answers[0] < answers[1] else high


def test_one_persons_target_is_not_worked_out(tmp_path, monkeypatch):
    """Of exact bounds two models, which differ at one person alone, tell which guess is nearer, and so on."""
    # Where the grid of bounds begins follows from the key; now and then it falls between the two.
    site, person, target, _ = victim(tmp_path, key=bytes([1] * 32))
    low, high = -8.0, 8.0
    with monkeypatch.context() as opened:
        opened.setattr(scored_rows, "rounded_up", exactly)
        opened.setattr(SiteLog, "reserve", lambda *_: None)
        for k in range(5):
            middle = (low + high) / 2
            below = nearer(site, person, low, high, f"open-{k}") == low
            low, high = (low, middle) if below else (middle, high)
    assert low <= target <= high
    assert high - low == 0.5
    # By the rules the two are told alike, and there is no third.
    assert nearer(site, person, -8.0, 8.0, "first") is False
    assert "all that may be" in nearer(site, person, -8.0, 1.23, "second")


def test_a_model_that_looks_at_all_rows_sees_one(tmp_path):
    """Its predictions of all rows would hang on whether the person is among them, which no rounding hides."""
    site, person, _, _ = victim(tmp_path)
    nodes, constants = inside(person)
    nodes += [
        ("Cast", ["in"], ["is_in"], {"to": 11}),
        ("ReduceMax", ["is_in"], ["anybody"], {"axes": [0], "keepdims": 1}),
        ("Mul", ["anybody", "less"], ["nearer"], {}),
        ("Add", ["nearer", "far"], ["same"], {}),
        ("Mul", ["is_in", "zero"], ["nothing"], {}),
        ("Add", ["same", "nothing"], ["y"], {}),
    ]
    constants |= {"less": np.array([[-FAR]]), "far": np.array([[FAR]]), "zero": np.zeros((1, 1))}
    data = of_matrix(nodes, 3, constants)
    rows = SiteRows.load(site)
    kept = rows.features[holdout(site, rows)]
    # Run on all rows at once it tells: everybody's prediction is 0 where the person is there, absurd without.
    session = onnxruntime.InferenceSession(data)
    assert not session.run(None, {"X": kept})[0].any()
    assert np.all(session.run(None, {"X": kept[4:]})[0] == FAR)
    assert told(site, data, "run") == MOST


def test_a_model_that_fails_on_one_person_is_answered_and_counts(tmp_path):
    """A refusal would say that the person is there, and could be asked for as often as one likes."""
    site, person, _, rows = victim(tmp_path)

    def failing(at):
        nodes, constants = inside(at)
        nodes += [
            ("Cast", ["in"], ["one"], {"to": INT64}),
            ("Mul", ["one", "outside"], ["place"], {}),
            ("Gather", ["table", "place"], ["y"], {}),
        ]
        return of_matrix(nodes, 3, {**constants, "outside": np.array([[9]]), "table": np.zeros(1)})

    answers = [told(site, failing(at), f"run-{k}") for k, at in enumerate((person, person + 7.0))]
    assert all(isinstance(answer, float) for answer in answers)
    step, apart = MOST * ROW_CHANGES * MIN_ROWS / rows, abs(answers[0] - answers[1])
    # The last step of a secret grid may end beyond the largest loss, which is told then.
    cut = max(answers) == MOST and apart < step
    assert cut or apart in (pytest.approx(0.0), pytest.approx(step))
    assert "all that may be" in told(site, failing(person - 7.0), "run-3")


def test_a_process_that_breaks_is_answered_and_counts(tmp_path, monkeypatch):
    site, person, _, _ = victim(tmp_path, models=1)

    def broken(*_):
        raise BidroError("The process ended.")

    with monkeypatch.context() as opened:
        opened.setattr(OnnxModel, "run", broken)
        assert told(site, spike(person, 0.0), "run-0") == MOST
    assert "all that may be" in told(site, spike(person, 1.0), "run-1")


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("rows", [40, 100, 400])
def test_two_models_that_differ_at_one_person_seldom_differ_in_what_is_told(rows, confidence):
    """Whatever the other rows' losses are: for at most one offset in min_rows. Of exact bounds it is always
    seen."""
    rng = np.random.default_rng(rows)
    share = ROW_CHANGES * MIN_ROWS / rows
    offsets = (np.arange(500) + 0.5) / 500
    for kind, size in (("betting", 4), ("clopper-pearson", 8)):
        for place in range(size):
            others = rng.beta(0.3, rng.uniform(0.3, 9), rows - 1) * (place > 0)
            if kind == "clopper-pearson":
                others = np.round(others)
            both = [
                client_bound("it", [*others, at], 1 - confidence, 1.0, kind).bound  # type: ignore[arg-type]
                for at in (0.0, 1.0)
            ]
            assert both[0] < both[1]
            seen = np.mean(
                [rounded_up(both[0], 1.0, share, o) != rounded_up(both[1], 1.0, share, o) for o in offsets]
            )
            assert seen <= 1 / MIN_ROWS + 2 / len(offsets), (kind, both)


def test_the_offset_of_the_grid_is_the_sites_own(tmp_path):
    """Of two sites with the same rows and other keys it is another, and for one table it stays."""
    answers = []
    for k in range(2):
        site, *_ = victim(tmp_path / str(k), key=bytes([k] * 32))
        rows = SiteRows.load(site)
        grid, bounds = scored_rows.SiteGrid(site, rows), [ClientBound(1e-9, 0.0, 100)]
        places = [grid.bounds(bounds, np.zeros(100), 100, 1.0, None)[0].bound for _ in range(2)]
        assert places[0] == places[1]
        assert places[0] != grid.mistakes(bounds)[0].bound
        answers.append(places[0])
    assert answers[0] != answers[1]
