"""The study of published tables: its parts on small inputs, and what it does without its files."""

import gzip
import sys

import numpy as np
import pytest

from bidro import BidroError
from bidro.experiments.reproduce import ALGORITHMS, PENALTIES
from bidro.experiments.simulation import paper_problem, simulate
from bidro.federated.engines.in_process import run_many
from studies import published


@pytest.mark.filterwarnings("ignore::bidro.NonconcaveInnerWarning")
def test_the_independent_program_runs_the_same_algorithm():
    """After 400 rounds, the mean models of eight sampling seeds, within four standard errors."""
    data, count = simulate(2026), 8
    tables = np.tile(data.samples, (count, 1, 1))
    penalties = np.array(PENALTIES["BiDRO-FL"])
    theirs, weights = published.independent(tables, penalties, 400, seed=5)
    runs = run_many(
        ALGORITHMS["BiDRO-FL"], paper_problem(data, penalties), tables, 400, list(range(count)), workers=1
    )
    ours, alpha = np.array([r.x for r in runs]), np.array([r.alpha for r in runs])
    for a, b in ((ours, theirs), (alpha, weights)):
        error = np.sqrt((a.var(axis=0, ddof=1) + b.var(axis=0, ddof=1)) / count)
        assert np.all(np.abs(a.mean(axis=0) - b.mean(axis=0)) <= 4 * error + 1e-12)
        assert np.abs(a - a[0]).max() > 1e-3  # runs differ, so that this says something
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "heart").mkdir()
    for k, name in enumerate(published.CENTRES):
        lines = []
        for row in range(30 + 10 * k):
            values = [f"{v:.1f}" for v in rng.normal(size=13)]
            values[2], values[6] = str(1 + row % 4), str(row % 3)
            values[10:13] = ["?", "?", "?"]
            if row < 3:
                values[4] = "?"
            label = 1 if k == 2 and row > 3 else int(rng.integers(0, 4))
            lines.append(",".join([*values, str(label)]))
        (tmp_path / "heart" / f"processed.{name}.data").write_text("\n".join(lines))
    (tmp_path / "adult").mkdir()
    names = (
        "age,workclass,education,education-num,classification,fnlwgt,capital-gain,capital-loss,hours-per-week"
    )
    for part, rows in (("train", 60), ("test", 40)):
        lines = [names]
        for k in range(rows):
            education, kind = ("Doctorate" if k % 3 == 0 else "HS-grad"), ("?" if k % 7 == 0 else "Private")
            lines.append(f"{20 + k}, {kind}, {education}, 9, {'>50K.' if k % 2 else '<=50K'}, 1, 0, 0, 40")
        with gzip.open(tmp_path / "adult" / f"adult.{part}.gz", "wt") as file:
            file.write("\n".join(lines))
    return tmp_path


def test_the_split_is_flambys(folder):
    """66% of what has no gaps, by centre; indicators but the first of four and of three."""
    split = published.heart(folder)
    assert split.features.shape == (180 - 12, 8 + 3 + 2)
    sizes = [27, 37, 47, 57]
    assert [int(np.sum(split.client == k)) for k in range(4)] == sizes
    trained = [int(np.sum((split.client == k) & ~split.test)) for k in range(4)]
    assert trained == [int(0.66 * size) for size in sizes]
    # Where both classes have rows enough, their shares are the same on both sides up to a row.
    own = split.client == 3
    shares = [split.label[own & side].mean() for side in (split.test, ~split.test)]
    assert abs(shares[0] - shares[1]) < 1 / np.sum(own & split.test)
    assert set(np.unique(split.label)) == {0, 1}
    perfect = split.scored(split.label[split.test])
    np.testing.assert_array_equal(perfect, 1.0)


def test_adults_are_two_clients(folder):
    split = published.adult(folder)
    assert [int(np.sum((split.client == k) & split.test)) for k in (0, 1)] == [14, 26]
    assert split.features.shape == (100, 3)  # Private, Doctorate, HS-grad: a gap is none of the classes
    assert split.label.sum() == 50


def test_figures_stand_beside_the_published_ones():
    rows = [
        published.Row("ours", np.array([[0.5], [0.7]]), (0.25,), "them"),
        published.Row("b", np.ones((1, 1))),
    ]
    text = published.page({"simulation": rows}, {"rounds": 10, "runs": 2, "doctorates": 100})
    assert "| ours | 0.60000 ± 0.14142 | 0.25000 | them |" in text
    assert "| b | 1.00000 |  |  |" in text
    assert "after 10 rounds, 2 data sets" in " ".join(text.split())


def test_a_file_that_is_missing_is_named_before_work_begins(folder, monkeypatch):
    (folder / "adult" / "adult.test.gz").unlink()
    monkeypatch.setattr(sys, "argv", ["published", "--data", str(folder)])
    monkeypatch.setattr(published, "simulation", None)
    with pytest.raises(BidroError, match=r"adult\.test\.gz"):
        published.main()
