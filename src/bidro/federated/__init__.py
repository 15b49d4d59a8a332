"""Rounds between a server and clients: the contract of an algorithm, algorithms, and who runs them."""
