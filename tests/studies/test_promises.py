"""The studies of what is promised: their parts on small inputs."""

import math

from studies import promises


def test_held_out_bounds_hold_on_the_papers_data(monkeypatch):
    monkeypatch.setattr(promises, "HELD_OUT_ROWS", (50,))
    monkeypatch.setattr(promises, "FRESH_ROWS", 20_000)
    found = promises.held_out_study(30)
    assert [row["bound"] for row in found] == 3 * ["declared", "bernstein", "clipped"]
    assert [row["observed"] for row in found[:3]] * 3 == [row["observed"] for row in found]
    # Four standard errors of a share of 30 repetitions.
    assert all(row["observed"] >= 0.9 - 4 * math.sqrt(0.09 / 30) for row in found)
    assert found[0]["mean_bound_over_true"] > found[2]["mean_bound_over_true"] > 1
    page = promises.page([], found)
    assert page.count("| 50 |") == 9
