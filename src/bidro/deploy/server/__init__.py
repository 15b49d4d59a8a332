"""The server of a run: what it asks, whether replies can be true, and what it keeps."""
