"""One path for a fit: what is asked of clients, what they answer, and how a model comes of it."""
