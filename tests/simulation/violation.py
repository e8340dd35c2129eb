"""What a run that fails raises."""


class Violation(AssertionError):
    """Something that must always hold does not."""
