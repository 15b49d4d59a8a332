"""A site: its table and configuration, and one function from a request to a reply."""
