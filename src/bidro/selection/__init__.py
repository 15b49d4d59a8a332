"""Model selection: cross-validation inside clients, and the rules that choose by it."""
