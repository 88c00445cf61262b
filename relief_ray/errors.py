"""The one error a user is meant to read."""


class UserError(ValueError):
    """Bad input: names the place, what was found, what was expected and the fix."""
