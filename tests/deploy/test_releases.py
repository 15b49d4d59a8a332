"""What a site may send sums over in a run, after other runs."""

import numpy as np
import pytest

from bidro.data.tables import Column, Schema
from bidro.deploy.site.check import checked
from bidro.deploy.site.disclosure.memory import Demanded, Releases, RowMemory
from bidro.deploy.site.disclosure.rules import PolicyViolationError
from bidro.deploy.site.state import SiteState

NUMBERS = Schema("site", "y", None, (Column("u"), Column("v")))
SEXES = Schema("site", "y", None, (Column("u"), Column("sex", ("f", "m")), Column("ward", ("a", "b"))))


def releases(folder, features, target, schema=NUMBERS, min_rows=10, kept=None, parameters=3):
    memory = RowMemory(SiteState.open(folder, "east"), Demanded(min_rows, 5, parameters))
    holdout = np.zeros(len(target), bool) if kept is None else kept
    return Releases(memory, memory.known(schema, features, target, None), holdout)


def rows(n):
    whole = np.random.default_rng(0).normal(size=(n, 3))
    return whole[:, :2], whole[:, 2]


def fold_ids(n, counts=range(2, 6)):
    """Folds as sites deal them: a row's share of [0, 1), cut into equal parts."""
    shares = (np.arange(n) + 0.5) / n
    return {count: np.floor(shares * count).astype(int) for count in counts}


def test_the_same_folds_again_are_answered_where_fewer_are_not(tmp_path):
    """Of 200 rows: five folds and then three cut sets of 13 rows, five and then two sets of 20."""
    own = releases(tmp_path, *rows(200), min_rows=20)
    dealt = fold_ids(200)
    assert own.answerable(dealt) == (1, 2, 3, 4, 5)
    assert own.training() == 200
    assert own.folds(dealt[5]) == 40
    assert own.answerable(dealt) == (1, 2, 5)
    assert own.folds(dealt[2]) == 20
    with pytest.raises(PolicyViolationError, match="could be worked out from this run and earlier ones"):
        own.folds(dealt[3])
    assert own.folds(None) == 20


def test_rows_kept_out_are_a_set_and_those_of_other_hold_outs_cut_it(tmp_path):
    features, target = rows(200)
    kept = np.arange(200) < 40
    own = releases(tmp_path, features, target, min_rows=20, kept=kept)
    assert own.check() == own.training() == 40
    for more, allowed in ((59, False), (60, True)):
        again = releases(tmp_path, features, target, min_rows=20, kept=np.arange(200) < more)
        if allowed:
            assert again.training() == 20
        else:
            with pytest.raises(PolicyViolationError):
                again.check()
    # There are too few to begin with.
    few = releases(tmp_path / "few", features, target, kept=np.arange(200) < 9)
    with pytest.raises(
        PolicyViolationError, match="fewer than 10 of its rows, its min_rows, could be worked out; use"
    ):
        few.training()


def test_rare_cells_leave_fewer_folds_and_then_none(tmp_path):
    n = 120
    rng = np.random.default_rng(1)
    for both, allowed in ((12, (1, 2)), (6, (1,)), (4, ())):
        sex, ward = np.arange(n) % 2, (np.arange(n) // 2) % 2
        # Of the rows with both levels all but some lose one of them, evenly over the folds.
        with_both = np.flatnonzero((sex == 1) & (ward == 1))
        keep = with_both[np.linspace(0, len(with_both) - 1, both).round().astype(int)]
        ward[np.setdiff1d(with_both, keep)] = 0
        features = np.column_stack([rng.normal(size=n), sex, ward])
        own = releases(tmp_path / str(both), features, rng.normal(size=n), SEXES, min_rows=3)
        assert own.answerable(fold_ids(n)) == allowed
        said = checked(own.memory, own.known, own.holdout, fold_ids(n))
        assert said.folds == allowed
        assert said.rare_cells == ({"sex=m with ward=b": 4} if both == 4 else {})
        if allowed:
            assert own.training() == both
        else:
            with pytest.raises(
                PolicyViolationError, match="with two levels or classes at once, its min_cell"
            ):
                own.training()
            assert "A run would be refused: a sum over fewer than 5" in said.in_words()


def test_few_people_a_parameter_leave_no_folds_and_then_nothing(tmp_path):
    """Of 24 rows, by the number of parameters: all that is told of a set counts as its second moments."""
    features, target = rows(24)
    for parameters, allowed in ((5, (1, 2)), (6, (1,)), (11, (1,)), (12, ())):
        own = releases(tmp_path / str(parameters), features, target, parameters=parameters)
        assert own.answerable(fold_ids(24)) == allowed
        said = checked(own.memory, own.known, own.holdout, fold_ids(24))
        assert said.folds == allowed
        if allowed:
            own.training()
        if 2 not in allowed:
            with pytest.raises(PolicyViolationError, match="too few people in a set"):
                own.folds(fold_ids(24)[2])
    assert "A run would be refused: it has too few people" in said.in_words()
