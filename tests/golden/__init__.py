"""Fits and messages as they were, number by number: a change of the code that changes no result keeps them.

`python -m tests.golden` prints what this code gives; with `--record` it rewrites `fits.json` and
`messages.json`. A difference is either a fault or a change that the changelog names.
"""
