"""The one error a person is meant to read."""


class UserError(Exception):
    """A fault in what the user gave: one sentence that names the key or path and the remedy."""
