"""MW-DRO: federation, loss, models, ambiguity and mixtures; its clients' risks and worst distributions."""
