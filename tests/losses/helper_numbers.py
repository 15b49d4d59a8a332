"""Functions and numbers that a loss of tests names."""

SCALE = 2.0


def scaled(value):
    return SCALE * value
