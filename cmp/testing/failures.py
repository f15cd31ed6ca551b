"""What a check raises."""

from __future__ import annotations

from cmp.errors import CmpError

__all__ = ["PropertyError"]


class PropertyError(CmpError, AssertionError):
    """A store or a design lacks a property it must have; the message names it first.

    Parameters
    ----------
    property_name
        Which property failed.
    message
        What was seen, and how to mend it.
    """

    def __init__(self, property_name: str, message: str) -> None:
        super().__init__(f"{property_name}: {message}")
        self.property_name = property_name
        self.message = message

    def __reduce__(self) -> tuple[type[PropertyError], tuple[str, str]]:
        """Let a failure travel between the processes of a test run."""
        return PropertyError, (self.property_name, self.message)
