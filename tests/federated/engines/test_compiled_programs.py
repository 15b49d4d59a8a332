"""How many programs a small piece of work compiles, in a process of its own: on the host there is NumPy."""

import json
import subprocess
import sys
from textwrap import dedent

COUNTED = """
    import json
    import jax
    import numpy as np

    counts, seen = {}, []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, seconds, **rest: seen.append(name) if name.endswith("backend_compile_duration") else None
    )

    def mark(what):
        counts[what] = len(seen)
        seen.clear()

    from bidro.ambiguity import Penalty, WassersteinBall
    from bidro.solvers.solve import solve
    from bidro.data.federation import Federation
    from bidro.losses import Hinge, Logistic, Squared
    from bidro.problem.problem import Problem
    from bidro.risk.moments import of_clients, of_folds
    from bidro.selection.cross_validate import Candidate
    from bidro.core.sets import Ball, Box, CappedSimplex, L1SimplexBall
    from bidro.risk.transport import Transport
    from tests.small import fold_losses

    mark("imports")
    rng = np.random.default_rng(0)
    features = [rng.normal(size=(size, 2)) for size in (30, 40, 50)]
    parts = [np.column_stack([own, own.sum(axis=1) + rng.normal(size=len(own))]) for own in features]
    federation = Federation.from_arrays(parts, "unbounded")
    Federation.from_arrays(parts, "from data").folds(3)
    Federation.elsewhere({"a": 3}, ["x", "y"])
    signs = [np.column_stack([own[:, :2], np.sign(own[:, 2])]) for own in parts]
    labelled = Federation.from_arrays(signs, "unbounded")
    metric, radius = Transport.features_only(3), WassersteinBall(0.1)
    problem = Problem(federation, Squared(intercept=True), Box.cube(9.0, 3), metric, radius)
    others = [
        Problem(federation, Squared(), Ball(np.zeros(2), 3.0), Transport.euclidean(3), Penalty(30.0)),
        Problem(
            labelled, Hinge(), Box.cube(9.0, 2), Transport.classification(3, 1.0), WassersteinBall(0.1),
            CappedSimplex.around_proportions(federation.sizes, 2.0),
        ),
        Problem(
            labelled, Logistic(), Box.cube(9.0, 2), Transport.classification(3, 1.0), WassersteinBall(0.1),
            L1SimplexBall(federation.proportions, 0.3),
        ),
    ]
    for one in (problem, *others):
        one.initial_model, one.constant_model, one.constant_risk, one.initial_weights, one.fingerprint
        one.clients
    mark("problems")
    samples, sizes = np.asarray(federation.samples), federation.sizes
    solve(problem, moments=of_clients(samples, sizes))
    trained = of_folds(samples, sizes, federation.folds(3), 3)
    fold_losses(problem, (Candidate(0.0, 1.0), Candidate(1.0, np.inf)), trained)
    mark("from moments")
    solve(problem)
    mark("solve")
    from bidro.selection.calibrate import calibrate
    calibrate(others[-1], (0.0,), folds=2)
    solve(others[-1])
    mark("classes")
    print(json.dumps(counts))
"""


def test_only_what_is_worth_compiling_is_compiled():
    done = subprocess.run(
        [sys.executable, "-c", dedent(COUNTED)], capture_output=True, text=True, check=True, timeout=300
    )
    counts = json.loads(done.stdout)
    assert counts["imports"] == 0
    assert counts["problems"] == 0
    # Of all that is done with moments, only the proof's linear maximum over the model set.
    assert counts["from moments"] <= 1, counts
    assert counts["solve"] <= 20, counts
    # Cross-validation and a solve of two classes, whose worst cases have a closed form.
    assert counts["classes"] <= 2, counts
