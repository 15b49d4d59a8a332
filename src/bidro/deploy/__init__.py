"""Across machines: the client's side, the server's side, and the networks that join them."""
