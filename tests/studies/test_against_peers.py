"""The study against other methods: what its figures are of."""

import numpy as np
import pytest

from studies import against_peers as study


def split(**losses):
    """Two clients with 10 and 30 rows, and these mean losses of each."""
    rows = np.array([10, 30])
    sums = {name.replace("_", " "): (rows * own).tolist() for name, own in losses.items()}
    seconds = dict.fromkeys(sums, 1.0)
    return {"rows": rows.tolist(), "losses": sums, "seconds": seconds, "failed": {}}


def test_a_rival_is_compared_over_the_splits_that_both_have_and_the_lowest_mean_is_the_best():
    first = split(bidro=[2.0, 1.0], LightGBM=[4.0, 1.0], EBM=[1.0, 1.0])
    second = split(bidro=[4.0, 3.0], LightGBM=[4.0, 4.0])
    for one, shared in ((first, [2.0, 2.0]), (second, [3.9, 3.1])):
        one["losses"][study.SHARED] = (np.array([10, 30]) * shared).tolist()
    found = study.summary([first, second])
    # Means 1.25 and 3.25 against 1.75 and 4; of the first split alone 1.25 against 1.
    assert found["against"]["LightGBM"]["ratio"] == pytest.approx(4.5 / 5.75)
    assert found["against"]["EBM"]["ratio"] == pytest.approx(1.25)
    assert (found["best"], found["ratio"], found["splits"]) == ("EBM", pytest.approx(1.25), 1)
    # Ratios of the worst client: 6 to 8, and 2 to 1.
    assert found["worst_ratio"] == pytest.approx(2.0)
    # Of four pairs of client and split one is more than 1% above the shared model.
    assert found["harmed"] == pytest.approx(0.25)
    # Of what each client adds to the difference of the means, 0.25 and 0.
    assert found["error"] == pytest.approx(np.sqrt(2) * np.std([0.25, 0.0]) * np.sqrt(2))


def test_the_page_says_which_figures_are_of_fewer_splits_and_which_there_are_none_of():
    one = split(bidro=[2.0, 1.0], LightGBM=[4.0, 1.0])
    one["losses"][study.SHARED] = one["losses"]["bidro"]
    more = split(bidro=[2.0, 1.0], LightGBM=[4.0, 1.0], ridge=[4.0, 2.0])
    more["losses"][study.SHARED] = more["losses"]["bidro"]
    more["failed"]["mixed"] = "why"
    text = study.page({"pigs": {"splits": {"1": one, "2": more}}}, " on commit abc")
    line = next(line for line in text.splitlines() if line.startswith("| pigs"))
    assert "0.50 (1)" in line
    assert "failed" in line
    assert "not run" in line
    assert "on commit abc" in text
