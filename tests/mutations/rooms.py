"""Which tests are to notice a change of which file: the quick and close ones first."""

from __future__ import annotations

from typing import NamedTuple

from tests.mutations.changes import Change


def _tests(file: str, *names: str) -> tuple[str, ...]:
    """Some tests of a file, which as a whole would take too long for every change."""
    return tuple(f"tests/{file}.py::test_{name}" for name in names)


_SUPREMA = (
    "tests/risk/test_ascent.py",
    "tests/risk/test_exact.py",
    "tests/curves/test_solver.py::test_what_curves_cannot_have",
)
_CERTIFICATE = ("tests/certify/test_certificate_shown.py", "tests/certify/test_certificate.py")
_PLAN = (
    "tests/certify/test_plan.py",
    *_tests("certify/test_certificate", "the_fewest_rows_for_a_radius", "bad_requests_say_what_is_wrong"),
)
# All but the simulated coverage.
_RADIUS = _tests(
    "certify/test_radius",
    "by_hand",
    "the_mean_bound_against_plain_summation",
    "the_paper_s_own_case_p_is_half_of_m",
    "the_inverse_of_h",
    "radii_fall_with_rows_and_risk_and_have_an_inverse",
    "explicit_radii_scale_with_the_support_and_stay_within_it",
    "the_diameter_in_a_scaled_metric_and_with_labels",
    "labels_are_counted_as_the_loss_has_them",
    "the_paper_s_radius_at_its_edges",
    "the_explicit_risk_at_its_edges",
    "bad_requests_say_what_is_wrong",
)
_COVERAGE = _tests(
    "certify/test_radius",
    "coverage_of_the_whole",
    "vertices",
    "splits_of_a_wanted_confidence",
    "no_split_spends_more_than_there_is",
    "bad_requests_say_what_is_wrong",
)
_CONSTANTS = _tests(
    "problem/test_penalised",
    "the_bound_by_hand",
    "the_constants_by_hand_with_labels_and_an_intercept",
    "the_constants_of_the_theorem_are_upper_bounds",
    "the_theorem_says_where_it_does_not_apply",
    "bad_requests_say_what_is_wrong",
)
_INTERVAL = _tests(
    "certify/test_out_of_sample",
    "every_part_of_the_interval_a_second_time",
    "the_l1_diameter_bounds_all_distances",
    "the_l1_diameter_of_narrow_bounds_is_their_width",
    "a_known_delta_and_more_confidence",
    "the_promise_owns_up_to_radii_that_say_little",
)
_ON_SUPPORT = (
    *_tests(
        "certify/test_out_of_sample",
        "the_slope_on_the_support_against_pairs_of_points",
        "the_slope_with_labels_that_flip",
        "a_move_and_a_flip_together_can_be_steeper_than_either",
    ),
    *_tests(
        "certify/test_certificate",
        "the_largest_loss_and_slope_on_the_support",
        "a_loss_of_unknown_slope_has_no_interval",
    ),
    *_tests("curves/test_bound", "the_largest_loss_and_slope_on_a_box"),
)

# All but the schedules of faults, which take a minute: they are for what these let pass.
_COORDINATOR = _tests(
    "federated/engines/test_coordinator",
    "without_a_client_the_run_is_as_if_it_had_never_been",
    "a_bad_reply_is_refused_with_its_senders_name",
    "a_client_that_says_why_it_does_not_answer_is_not_asked_again",
    "waiting_ends_with_the_patience_and_nothing_is_lost",
    "a_silent_client_is_asked_again_until_the_patience_ends",
    "clients_are_waited_for_as_long_as_the_policy_says",
    "the_record_says_what_was_exchanged",
    "clients_that_left_the_network_are_not_waited_for",
    "a_round_that_does_not_need_all_goes_on_with_those_who_replied",
    "who_must_reply_is_a_matter_of_the_policy",
    "a_reply_is_no_larger_than_its_numbers_and_64_kilobytes",
    "a_reply_says_over_how_many_rows_it_is",
    "how_long_an_exchange_took_is_on_the_record_in_milliseconds",
    "a_record_is_refused_where_it_is_none",
    "a_policy_waits_by_default_and_may_be_as_strict_as_can_be",
    "a_policy_that_makes_no_sense_is_refused",
)
_STATEMENTS = (
    "tests/certify/test_statements.py",
    *_tests(
        "certify/test_certificate",
        "what_cannot_be_stated_is_absent_with_a_reason",
        "a_restricted_set_of_mixtures_is_named",
        "mixtures_and_balls_in_words",
        "rows_kept_out_must_lie_on_the_declared_support",
        "too_few_rows_are_no_result",
        "people_in_a_certificate",
        "losses_of_zero_in_training_leave_a_level_to_clip_at",
        "a_loss_of_unknown_slope_has_no_interval",
        "bad_requests_say_what_is_wrong",
        "every_statement_a_second_time",
        "classes_have_a_bound_on_mistakes",
    ),
)
# Without a whole run of cross-validation.
_SITE = (
    "tests/deploy/test_site.py",
    "tests/deploy/test_configuration.py",
    *_tests(
        "deploy/test_federated",
        "nothing_leaves_a_site_that_rests_on_too_few_rows",
        "a_site_refuses_a_server_with_another_schema",
        "a_rare_level_or_class_is_not_summed_over",
        "a_request_that_makes_no_sense_is_refused_and_runs_nothing",
        "a_table_that_changes_in_the_midst_of_a_run_ends_it",
        "a_request_that_makes_no_sense_is_refused_and_runs_nothing",
        "with_a_declared_support_the_interval_is_that_of_fit",
    ),
)
_LIARS = (
    "tests/deploy/test_plausibility.py",
    "tests/deploy/test_reply_fuzz.py",
    "tests/deploy/test_liars.py",
)
_PROOFS = (
    "tests/solvers/test_cone_parts.py",
    "tests/solvers/test_dual_bound.py",
    "tests/solvers/test_bundle_server.py",
    "tests/solvers/test_bundle_bounds.py",
    *_tests(
        "solvers/test_solve",
        "against_a_cone_program",
        "optima_at_and_near_zero_where_the_risk_has_a_kink",
        "a_model_set_that_is_a_ball_and_a_bound_that_binds",
        "a_solution_resumes_to_a_tighter_gap_and_shows_its_history",
        "a_round_that_a_client_misses_is_repeated",
        "the_average_is_that_of_the_models_assessed",
        "the_other_methods_find_the_same[gradients]",
        "degenerate_problems_solve[exact fit, no radius]",
        "degenerate_problems_solve[separable classes]",
    ),
    *_tests(
        "solvers/test_hard_data",
        *(
            f"smooth_losses_reach_the_gap_on_data_of_any_kind[{case}]"
            for case in (
                "wide-0.05-squared",
                "wide-0.05-logistic",
                "far-0.05-squared",
                "sizes-0.05-huber",
                "traces-0.05-squared",
                "noise-0.05-logistic",
            )
        ),
    ),
)

# What these files are compiled into is compiled anew for every change: few programs, and small ones.
_ON_PATHS = (
    "tests/risk/test_path_pieces.py",
    *_tests(
        "risk/test_exact",
        "coordinates_of_very_different_size",
        "squared_loss_below_its_growth_is_infinite_and_above_it_has_the_closed_form",
        "the_plain_ray_falls_short_on_a_box",
        "several_coordinates_that_cannot_move",
        "growth_on_either_side_outgrows_a_quadratic_cost",
        "a_local_maximum_on_a_short_stretch",
        "margins_on_a_box_with_many_bends",
        "unbounded_support_with_p_1_is_the_loss_itself_or_infinite",
    ),
)
_INNER = (
    *_tests(
        "risk/test_ascent",
        "only_a_quadratic_cost_makes_the_problem_concave",
        "labels_flip_where_that_pays",
        "below_the_curvature_the_error_is_unknown",
        "declared_curvature_gives_a_custom_loss_an_error_bound",
    ),
    *_tests("risk/test_exact", "softmax_on_a_box_is_its_supremum"),
)
_RISKS = (
    "tests/risk/test_root_form.py",
    "tests/risk/test_rounding.py",
    *_tests(
        "problem/test_worst_case",
        "squared_loss_in_closed_form_and_by_the_dual_search",
        "at_a_jump_the_worst_case_splits_mass",
        "gradients_against_finite_differences[Logistic]",
        "radii_too_small_to_show",
        "the_price_of_movement_next_to_zero",
        "p_1_unbounded_near_worst_cases_of_classes",
        "curvature_is_the_second_derivative_where_there_is_one",
    ),
    *_tests(
        "solvers/test_bundle_bounds",
        "planes_touch_the_risks_where_they_are_made",
        "no_multipliers_prove_too_much[cut]",
    ),
    *_tests("solvers/test_solve", "labels_that_flip_at_a_cost_p_1"),
    *_tests("solvers/test_solve_labels", "at_zero_the_risk_is_that_of_no_move"),
    *_tests(
        "risk/test_rows_numpy",
        "the_exact_solvers_clients_say_the_same_as_compiled_ones[softmax curves-0.1]",
        "the_exact_solvers_clients_say_the_same_as_compiled_ones[curves-0.1]",
    ),
)
_WORST_CASES = (
    "tests/problem/test_far_moves.py",
    *_tests(
        "problem/test_worst_case",
        "worst_cases_lie_in_their_ball_and_attain_the_risk",
        "p_1_unbounded_near_worst_cases_of_classes",
        "the_worst_mixture",
        "at_a_jump_the_worst_case_splits_mass",
        "exact_fit_and_zero_model",
        "bad_requests_say_what_is_wrong",
        "gradients_against_finite_differences[Logistic]",
    ),
    *_tests("curves/test_bound", "with_one_segment_the_bound_is_attained"),
)

# By file under src/bidro.
TESTS: dict[str, tuple[str, ...]] = {
    "core/sets/base.py": ("tests/core/sets",),
    "core/sets/vectors.py": ("tests/core/sets",),
    "core/sets/weights.py": ("tests/core/sets",),
    "ambiguity/base.py": ("tests/ambiguity",),
    "ambiguity/none.py": ("tests/ambiguity",),
    "ambiguity/penalty.py": ("tests/problem/test_problem.py", "tests/ambiguity"),
    "ambiguity/wasserstein.py": ("tests/problem/test_problem.py", "tests/ambiguity"),
    "risk/inner/exact.py": ("tests/risk/test_several_classes.py", *_SUPREMA),
    "risk/inner/path.py": _ON_PATHS,
    "risk/inner/problem.py": ("tests/risk/test_two_classes.py", *_INNER),
    "risk/inner/ascent.py": _SUPREMA,
    "risk/rows_jax.py": _RISKS,
    "risk/inner/ball.py": _RISKS,
    "risk/rounding.py": ("tests/risk/test_rounding.py",),
    "solvers/bundle/algorithm.py": _PROOFS,
    "solvers/bundle/state.py": ("tests/solvers/test_kink_history.py", *_PROOFS),
    "solvers/bundle/model.py": (*_PROOFS, "tests/solvers/test_working_set.py"),
    "solvers/bundle/bound.py": ("tests/solvers/test_cone_duals.py", *_PROOFS),
    "solvers/bundle/steps.py": (
        "tests/solvers/test_newton_step.py",
        "tests/solvers/test_unseen_directions.py",
        *_PROOFS,
    ),
    "risk/oracle.py": ("tests/risk/test_lift.py", "tests/risk/test_oracles.py"),
    "risk/moments.py": ("tests/risk/test_moments.py",),
    "risk/rows_numpy.py": ("tests/risk/test_rows_numpy.py",),
    "risk/rows_kinked.py": ("tests/risk/test_rows_kinked.py",),
    "risk/rows_curves.py": ("tests/risk/test_rows_curves.py",),
    "solvers/minimax_newton.py": (
        "tests/solvers/test_minimax_newton.py",
        "tests/selection/test_cross_validate.py",
    ),
    "solvers/references.py": ("tests/solvers/test_references.py",),
    "selection/replies.py": ("tests/risk/test_oracles.py", "tests/selection/test_cross_validate.py"),
    "selection/cross_validate.py": (
        "tests/selection/test_cross_validate.py",
        "tests/selection/test_calibrate.py",
        "tests/solvers/test_references.py",
    ),
    "losses/predicted.py": ("tests/losses/test_predicted.py",),
    "selection/calibrate.py": ("tests/selection/test_calibrate.py",),
    "certify/certificate.py": (
        *_CERTIFICATE,
        "tests/fit/test_private.py",
        "tests/deploy/test_private.py",
    ),
    "certify/convergence.py": _CONSTANTS,
    "certify/coverage.py": _COVERAGE,
    "problem/worst_case.py": (
        "tests/curves/test_bound.py",
        "tests/problem/test_penalised.py",
        *_WORST_CASES,
    ),
    "certify/radius.py": ("tests/certify/test_empirical_radius.py", *_RADIUS),
    "certify/held_out.py": (
        "tests/certify/test_held_out.py",
        "tests/certify/test_paired.py",
        "tests/certify/test_arguments.py",
    ),
    "certify/mean_bounds.py": (
        "tests/certify/test_held_out.py",
        "tests/certify/test_private_bounds.py",
    ),
    "certify/out_of_sample.py": ("tests/certify/test_heterogeneity.py", *_ON_SUPPORT, *_INTERVAL),
    "selection/personalise.py": (
        "tests/selection/test_personalise.py",
        "tests/estimators/test_personal_models.py",
    ),
    "certify/plan.py": (*_PLAN, "tests/certify/test_private_plan.py"),
    "selection/rule.py": ("tests/selection/test_rule.py", "tests/selection/test_calibrate.py"),
    "workflow/certify.py": ("tests/certify/test_models_from_elsewhere.py",),
    "problem/client.py": _WORST_CASES,
    "selection/segments.py": ("tests/curves/test_fit.py",),
    "certify/statements.py": _STATEMENTS,
    "certify/trained_rows.py": ("tests/certify/test_trained_rows.py",),
    "privacy/accounting.py": ("tests/privacy/test_accounting.py",),
    "privacy/discrete_gaussian.py": ("tests/privacy/test_discrete_gaussian.py",),
    "privacy/ledger.py": ("tests/privacy/test_ledger.py",),
    "privacy/mechanisms.py": ("tests/privacy/test_mechanisms.py",),
    "privacy/row_arithmetic.py": ("tests/privacy/test_mechanisms.py",),
    "privacy/terms.py": ("tests/fit/test_private.py",),
    "privacy/noisy_model.py": ("tests/fit/test_private.py",),
    "fit/private.py": ("tests/fit/test_private.py",),
    "fit/private_side.py": ("tests/fit/test_private.py",),
    "federated/engines/coordinator.py": _COORDINATOR,
    "fit/client_side.py": ("tests/fit/test_client_side.py",),
    "certify/rounding.py": ("tests/certify/test_rounding.py",),
    "fit/network.py": ("tests/fit/test_layout.py",),
    "fit/settings.py": ("tests/fit/test_settings.py",),
    "deploy/messages/queries.py": ("tests/deploy/test_requests.py", *_SITE, "tests/deploy/test_attacks.py"),
    "deploy/site/session.py": _SITE,
    "deploy/site/answers.py": (*_SITE, "tests/deploy/test_private.py"),
    "deploy/site/rows.py": _SITE,
    "deploy/site/ledger.py": (
        "tests/deploy/test_private_promises.py",
        "tests/deploy/test_private.py",
        "tests/cli/test_private.py",
    ),
    "deploy/site/state.py": ("tests/deploy/test_site_state.py",),
    "deploy/site/disclosure/rules.py": ("tests/deploy/test_rules.py",),
    "deploy/site/disclosure/cells.py": ("tests/deploy/test_cells.py",),
    "deploy/site/disclosure/information.py": (
        "tests/deploy/test_information.py",
        "tests/deploy/test_dominant_rows.py",
    ),
    "deploy/site/disclosure/known_rows.py": ("tests/deploy/test_row_memory.py",),
    "deploy/site/disclosure/memory.py": (
        "tests/deploy/test_row_memory.py",
        "tests/deploy/test_releases.py",
        "tests/deploy/test_attacks_by_labels.py",
    ),
    "deploy/server/plausibility.py": (*_LIARS, "tests/deploy/test_plausibility_private.py"),
    "deploy/server/influence.py": ("tests/deploy/test_liars.py",),
    "deploy/server/runs.py": (
        "tests/deploy/test_progress.py",
        "tests/deploy/test_runs.py",
        "tests/deploy/test_federated.py",
    ),
    "deploy/transport/drive.py": ("tests/deploy/test_runs.py", "tests/cli/test_federate.py"),
    "data/splines.py": (
        "tests/curves/test_basis.py",
        "tests/curves/test_files.py",
        "tests/curves/test_fit.py",
    ),
    "model/model_file.py": (
        "tests/model/test_model_file.py",
        *_tests(
            "curves/test_files",
            "knots_and_ranges_come_back",
            "predictions_shares_and_rows_outside_what_was_seen",
            "hostile_knots_are_refused",
            "ranges_that_are_not_of_the_features_are_refused",
        ),
    ),
}


def files_of(room: str) -> list[str]:
    """The files of a room (`core/sets`) or one file (`core/sets/weights.py`)."""
    return [file for file in TESTS if file == room or file.startswith(f"{room}/")]


class Equivalent(NamedTuple):
    """Changes that change nothing that is promised, so that no test could or should notice."""

    file: str
    line: str  # the line's text, without the spaces around it
    after: str  # that line after the change, or what is put in it
    why: str


_SPEED = "where a slower way begins; both are right"
# Constants that say when or how often something is tried, by file, line and other values of the same size.
_TUNED: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    (
        "solvers/bundle/algorithm.py",
        "_ROUNDING = 1e-11",
        ("2e-11",),
        "how much of a fall is rounding: steps only",
    ),
    (
        "solvers/bundle/steps.py",
        "_COARSEST = 1e-5",
        ("2e-05",),
        "the unit of a program, which proves afresh",
    ),
    (
        "solvers/bundle/steps.py",
        "_SHOWS, _HARDLY = 0.1, 0.9999",
        ("0.2",),
        "how soon kinks are smoothed less",
    ),
    (
        "solvers/bundle/steps.py",
        "_SAME_MIXTURE = 1e-3",
        ("0.002",),
        "when curvatures are mixed anew: steps only",
    ),
    ("solvers/bundle/model.py", "_HARDLY_BENT = 1e-6", ("2e-06",), "a size, with nothing at its edge"),
    (
        "solvers/bundle/model.py",
        "_REACH = 1e3",
        ("2000.0", "1001.0"),
        "how far a program looks: steps only",
    ),
    (
        "solvers/bundle/bound.py",
        "_AT_EDGE = 1e-6",
        ("2e-06",),
        "what is mended; what is proven is proven afresh",
    ),
    (
        "solvers/bundle/bound.py",
        "_USED = 1e-10",
        ("2e-10",),
        "what is mended; what is proven is proven afresh",
    ),
    ("solvers/bundle/bound.py", "_FIRST = 1e2", ("200.0", "101.0"), "what is mended first; proven afresh"),
    ("solvers/bundle/bound.py", "_TIMES = 2", ("3", "4"), "mended once more, which is never worse"),
    ("risk/inner/ball.py", "_APART = 1e-13", ("2e-13",), "how close a bracket is, within what is promised"),
    (
        "risk/inner/ball.py",
        "_LARGEST = 1e60",
        ("2e+60",),
        "no multiplier in use is of that size",
    ),
    ("risk/inner/ball.py", "_JUMP = 1e-6", ("2e-06",), "which curvature is sent near a jump: steps only"),
    ("risk/rows_jax.py", "_LEAST_STIFFNESS = 1e-3", ("0.002",), "near a jump any curvature is a guess"),
    ("risk/inner/path.py", "_NEWTON_STEPS = 60", ("61", "120"), "converged before"),
    ("risk/inner/path.py", "_HALVINGS = 60", ("61", "120"), "to the last bit before"),
    ("core/sets/vectors.py", "_HALVINGS = 100", ("101", "200"), "to the last bit before"),
)
EQUIVALENT: tuple[Equivalent, ...] = (
    *(Equivalent(file, line, after, why) for file, line, others, why in _TUNED for after in others),
    *(Equivalent("certify/out_of_sample.py", "MOST_PAIRED = 12", after, _SPEED) for after in ("13", "24")),
    *(
        Equivalent("certify/out_of_sample.py", "EXACT_ROWS = 2000", after, _SPEED)
        for after in ("2001", "4000")
    ),
    *(
        Equivalent("certify/out_of_sample.py", "REFERENCE_POINTS = 500", after, _SPEED)
        for after in ("501", "1000")
    ),
    *(
        Equivalent(
            "certify/trained_rows.py",
            "_FLIPPED_TOGETHER = 1 << 20",
            after,
            "how many at a time",
        )
        for after in ("_FLIPPED_TOGETHER = 2 << 20", "_FLIPPED_TOGETHER = 1 << 21")
    ),
    *(
        Equivalent(
            "data/splines.py",
            "if len(places) < 3 or most < 2:",
            after,
            "without it there is no knot either, as none lies between the ends; it says so at once",
        )
        for after in (
            "False",
            "(len(places) < 3 and most < 2)",
            "if len(places) < 0 or most < 2:",
            "if len(places) < 3 or most < 0:",
        )
    ),
    *(
        Equivalent("risk/rows_numpy.py", line, after, "how many rows at a time: the same sums")
        for line, others in (
            (
                "for block in blocks(rows, loss, models * classes**2, columns**2):",
                (
                    "(models / classes ** 2)",
                    "(classes * 2)",
                    "(columns * 2)",
                    *(
                        f"for block in blocks(rows, loss, models * classes**{one}, columns**{two}):"
                        for one, two in ((4, 2), (0, 2), (3, 2), (2, 4), (2, 0), (2, 3))
                    ),
                ),
            ),
            (
                "for block in blocks(rows, loss, models * classes, models * columns):",
                ("(models / classes)", "(models / columns)"),
            ),
            (
                "for block in blocks(rows.by_fold[one], loss, len(wanted) * classes, len(wanted) * columns):",
                ("(len(wanted) / classes)", "(len(wanted) / columns)"),
            ),
            ("for block in blocks(rows, _linear(loss), 1, len(x)):", ("2", "0")),
            ("height = min(height, _ONE_THREAD // max(multiplications, 1))", ("2",)),
        )
        for after in others
    ),
    Equivalent(
        "solvers/bundle/steps.py",
        "return np.asarray(np.minimum(self.down, self.up) < (1 - _NEAR) / 2 * self.width)",
        "(np.minimum(self.down, self.up) <= (1 - _NEAR) / 2 * self.width)",
        "at just that share, to the last bit, either will do",
    ),
    *(
        Equivalent(
            "data/splines.py", "at = np.arange(1, len(places) - 1)", after, "the ends are taken out below"
        )
        for after in (
            "at = np.arange(0, len(places) - 1)",
            "at = np.arange(1, len(places) - 0)",
            "at = np.arange(1, (len(places) + 1))",
        )
    ),
    Equivalent(
        "data/splines.py",
        "inner = np.unique(at[(at > 0) & (at < len(places) - 1)])",
        "(at <= len(places) - 1)",
        "above the last place there are no rows, which are fewer than any number that is asked",
    ),
    Equivalent(
        "deploy/server/plausibility.py",
        "safe = np.where(scale > 0, scale, 1.0)",
        "safe = np.where(scale > 0, scale, 2.0)",
        "0 divided by it",
    ),
    Equivalent(
        "certify/radius.py",
        "largest = max(finest, int((4 * rows + 1) ** (1 / m)) + 1)",
        "largest = max(finest, int((4 * rows + 1) ** (1 / m)) + 0)",
        "the last k is full from the first level on, where A is 1",
    ),
    *(
        Equivalent(
            "certify/radius.py",
            "largest = max(finest, int((4 * rows + 1) ** (1 / m)) + 1)",
            after,
            "more k are tried, at which A is 1",
        )
        for after in ("5", "8", "2")
    ),
    Equivalent(
        "selection/calibrate.py", "seed: int = 0,", "1", "any seed deals out folds as well as another"
    ),
    Equivalent(
        "certify/radius.py",
        "full = left & (cells >= 4 * rows + 1)",
        "(cells > 4 * rows + 1)",
        "at equality the term is k^(-p l) either way",
    ),
    Equivalent(
        "certify/coverage.py",
        "common = float(brentq(lambda e: spent(e) - target, low, high, xtol=1e-15 * high, rtol=8.9e-16))",
        "2e-15",
        "what the root is missed by is mended by dividing by `over`",
    ),
    Equivalent(
        "certify/coverage.py",
        "return np.asarray(risks if over <= 1 else -np.expm1(np.log1p(-risks) / over))",
        "(over < 1)",
        "divided by 1",
    ),
    Equivalent(
        "certify/coverage.py",
        "rule.risk(int(n), float(e) - delta) if e > delta else 1.0",
        "(e >= delta)",
        "at a radius of 0 the risk is 1 as well",
    ),
    Equivalent(
        "certify/out_of_sample.py",
        "if radii.max() > 0.5 * rule.diameter:",
        "(radii.max() >= 0.5 * rule.diameter)",
        "at half the diameter either sentence is true",
    ),
    Equivalent(
        "solvers/bundle/algorithm.py",
        "if fall < _ENOUGH * step.predicted - rounding:",
        "(fall <= _ENOUGH * step.predicted - rounding)",
        "a fall of just the share that is enough, to the last bit",
    ),
    Equivalent(
        "solvers/bundle/algorithm.py",
        "if fall > _GOOD * step.predicted:",
        "(fall >= _GOOD * step.predicted)",
        "a fall of just the share that is good, to the last bit",
    ),
    Equivalent(
        "solvers/bundle/bound.py",
        "left = np.where(slope > 0, here - lower, upper - here)",
        "(slope >= 0)",
        "a slope of 0 costs nothing whatever the width",
    ),
    *(
        Equivalent(
            "solvers/bundle/bound.py",
            "weight = np.where(length > 0, 1 / np.where(length > 0, length, 1.0), 0.0)",
            after,
            "an equation of zeros alone has no part whatever its weight",
        )
        for after in (
            "weight = np.where((length >= 0), 1 / np.where(length > 0, length, 1.0), 0.0)",
            "weight = np.where(length > 0, 1 / np.where((length >= 0), length, 1.0), 0.0)",
        )
    ),
    Equivalent(
        "solvers/bundle/bound.py",
        "rows = np.any(system != 0, axis=1)",
        "rows = np.any(system != 1, axis=1)",
        "equations of zeros alone change nothing",
    ),
    Equivalent(
        "solvers/bundle/bound.py",
        "weight = np.where(length > 0, 1 / np.where(length > 0, length, 1.0), 0.0)",
        "weight = np.where(length > 0, 1 / np.where(length > 0, length, 2.0), 0.0)",
        "divided by where it is not taken",
    ),
    *(
        Equivalent(
            "solvers/bundle/bound.py", line, after, "of multipliers of 0: divided by where it is not taken"
        )
        for line, after in (
            ("size = cone.dual_norm(y) or 1.0", "size = cone.dual_norm(y) or 2.0"),
            ("square = float(toward @ toward) or 1.0", "square = float(toward @ toward) or 2.0"),
            ("u = np.where(able, y / (size or 1.0), 0.0)", "u = np.where(able, y / (size or 2.0), 0.0)"),
            (
                "each = np.where(matrix > 0, np.abs(slope) / np.where(matrix > 0, matrix, 1.0), 0.0)",
                "each = np.where(matrix > 0, np.abs(slope) / np.where(matrix > 0, matrix, 2.0), 0.0)",
            ),
        )
    ),
    Equivalent(
        "risk/inner/ball.py", "_NEAR = 1e-10", "2e-10", "both forms hold on either side, to this precision"
    ),
    Equivalent(
        "risk/inner/path.py",
        "speed = side * jnp.where(moves, a * inverse_scale**2, 1.0)  # (2, m): of each coordinate with nu",
        "2.0",
        "of coordinates that do not move",
    ),
    Equivalent(
        "risk/inner/path.py",
        "slope = jnp.where(side > 0, scalar.right_slope, scalar.left_slope)",
        "slope = jnp.where(side > 0, scalar.left_slope, scalar.right_slope)",
        "whether either side has no end is all that counts, and both are of the same rate",
    ),
    Equivalent(
        "risk/inner/path.py",
        "moving = jnp.where(rate > 0, rate, 1.0)",
        "(rate >= 0)",
        "nothing moves on such a piece, and what is not finite there counts as where it begins",
    ),
    Equivalent(
        "risk/inner/path.py",
        "useful = (side < 0) & (spent > 0)",
        "(spent >= 0)",
        "one more point at which the objective is evaluated, where a corner is the highest",
    ),
    Equivalent(
        "problem/worst_case.py",
        "if np.abs(model).max(initial=0.0) > LARGEST_SIZE:",
        "if np.abs(model).max(initial=1.0) > LARGEST_SIZE:",
        "1 is not too large",
    ),
    Equivalent(
        "certify/trained_rows.py",
        'return f"{share} equal rows {those}" if self.if_new < UNLIKELY else None',
        "(self.if_new <= UNLIKELY)",
        "no chance is that number to the last bit",
    ),
    *(
        Equivalent(
            "certify/trained_rows.py",
            "warnings.warn(note, TrainedRowsWarning, stacklevel=3)",
            after,
            "the line that a warning points to",
        )
        for after in ("0", "4", "6")
    ),
    *(
        Equivalent(
            "problem/worst_case.py",
            "far = 1e8 * (_turn(inner, risk) + np.abs(before).max()) / steepest",
            after,
            "as far as that",
        )
        for after in ("100000001.0", "200000000.0")
    ),
    Equivalent("certify/coverage.py", "least = 1e-300", "2e-300", "either is as good as nothing"),
    Equivalent(
        "deploy/site/session.py",
        "compilation_cache()",
        "pass",
        "what was compiled is kept for the next time: speed",
    ),
    Equivalent(
        "deploy/site/rows.py",
        "if own.draw_counts[0] >= count:",
        "(own.draw_counts[0] > count)",
        "a fold of one row is never enough, as min_rows is at least 2",
    ),
    Equivalent("certify/radius.py", "high *= 2", "3", "any factor above 1 finds a bracket"),
    Equivalent(
        "core/sets/weights.py",
        "first = near - _water_level(near, lower, upper, total)",
        "(near + _water_level(near, lower, upper, total))",
        "the second pass finds the level from any shift",
    ),
    Equivalent(
        "core/sets/weights.py",
        "return xp.where(count > 0, level, middle)",
        "(count >= 0)",
        "nothing moves only where lower = upper, and then any level will do",
    ),
    Equivalent(
        "model/model_file.py",
        "return np.asarray((scores[:, 0] > 0) == (rows[:, -1] > 0))",
        "(rows[:, -1] >= 0)",
        "of two classes the target is -1 or 1",
    ),
    Equivalent(
        "core/sets/weights.py",
        "if np.any(found < 0) or abs(found.sum() - 1) > 1e-9:",
        "(abs(found.sum() - 1) >= 1e-09)",
        "no sum is off by that number to the last bit",
    ),
    *(
        Equivalent(
            "risk/inner/path.py",
            "return Pieces(side, 0 * one, jnp.inf * one, rate * one, 0 * one, 0 * one)",
            after,
            "divided by 1",
        )
        for after in ("(0 / one)", "(jnp.inf / one)", "(rate / one)")
    ),
)


def why_equivalent(file: str, change: Change) -> str | None:
    """None where the change must be noticed."""
    for one in EQUIVALENT:
        if (one.file, one.line) == (file, change.text) and one.after in (change.after, change.text_after):
            return one.why
    return None
