"""Would the tests notice? Signs, bounds and constants of the source are changed one at a time, in a copy of
it, and the tests of that room are run: a change that no test notices marks a sentence that nothing holds.

    python -m tests.mutations --room sets --budget 20
    python -m tests.mutations --room sets --again report.json    # only what survived in an earlier report
"""
