"""The studies of intervals: their parts on small inputs."""

from __future__ import annotations

import numpy as np
import pytest

from studies import coefficients, row_coverage, row_intervals


@pytest.mark.parametrize("law", row_coverage.LAWS)
def test_a_law_has_the_shares_that_it_draws(law):
    of = row_coverage.LAWS[law]
    drawn = of.draw(np.random.default_rng(0), 40_000)
    for q in np.quantile(drawn, [0.1, 0.5, 0.9]):
        share = np.mean(drawn <= q)
        assert float(of.share(q)) == pytest.approx(
            share, abs=4 * np.sqrt(share * (1 - share) / 40_000) + 1e-4
        )


def test_every_promise_of_rows_is_simulated_and_a_false_one_shows():
    lines = row_coverage.rows_study("exponential", 3) + row_coverage.people_study("normal", 2)
    lines += row_coverage.new_clients_study("t3", 3) + row_coverage.people_together_study("t3", 3)
    lines += row_coverage.sites_study("uniform", 3)
    assert len({one["what"] for one in lines}) == 14
    assert all(0 <= one["observed"] <= 1 for one in lines)
    false = row_coverage._line("made up", "none", np.full((100, 2), [1.0, 0.0]), 0.9)
    assert not false["holds"]
    text = row_coverage.page([*lines, false])
    assert "Not: " in text
    assert "made up / none" in text


def test_coverage_of_coefficients_is_of_the_truth_and_has_its_error():
    found = coefficients.slopes_study("60 persons of 5 rows", 3)
    assert (found["repetitions"], found["given"]) == (3, 3)
    assert 0 <= found["least"] <= found["observed"] <= 1
    known = coefficients.coverage_of(np.array([[1.0, 0.0], [1.0, 1.0]]))
    assert known == {"observed": 0.75, "error": 0.25, "least": 0.5}
    parts = {name: [found] for name in ("unpenalised", "hard", "chosen", "penalised")}
    assert coefficients.page(parts).count("60 persons of 5 rows") == 4


def test_tables_are_summed_up_by_method_with_what_chance_gives():
    rows, inside = [10, 30], {"inside": [8.0, 30.0], "width": [20.0, 60.0], "infinite": [0.0, 0.0]}
    wide = {"inside": [10.0, 30.0], "width": [0.0, 90.0], "infinite": [10.0, 0.0]}
    methods = dict.fromkeys(row_intervals.METHODS, inside) | {"bidro": wide}
    found = row_intervals.summary([{"rows": rows, "calibration": [3, 7], "methods": methods}])
    assert found["methods"]["pooled"] == {"coverage": 0.95, "worst_tenth": 0.8, "width": 1.0, "infinite": 0.0}
    assert found["methods"]["bidro"] == {"coverage": 1.0, "worst_tenth": 1.0, "width": 1.5, "infinite": 0.25}
    # The lower of two binomial shares.
    assert 0.8 < found["chance"] < 0.9
    text = row_intervals.page({"made up": {"summary": found}})
    assert "1.50 (25% infinite)" in text
    assert "80% / 1.00" in text
