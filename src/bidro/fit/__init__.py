"""One path for a fit: the queries to clients, their replies, and the steps from these to a model."""
