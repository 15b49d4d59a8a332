"""What the sites of a federation agree on, and the job of a run."""
