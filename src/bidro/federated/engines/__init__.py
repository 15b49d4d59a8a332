"""Who runs the rounds. Engines know the contract of `bidro.federated.algorithms` and no algorithm by name."""
