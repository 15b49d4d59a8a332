"""What a user sees when something is wrong: one sentence that says what, where and what to do."""


class BidroError(ValueError):
    """Bad input or an impossible request; the message is one clear sentence for the user."""
