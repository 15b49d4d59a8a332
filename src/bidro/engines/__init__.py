"""Who runs the rounds. Engines know the contract of `bidro.algorithms` and no algorithm by name."""
