"""Checks for other people's tests: does a store keep the contract, is a design what it says?

Nothing here needs pytest: a check returns what it looked at, or raises an ``AssertionError`` that says which property
failed and how to mend it.
"""

from cmp.testing.backends import BackendCheck, check_backend
from cmp.testing.designs import DesignCheck, check_design
from cmp.testing.failures import PropertyError

__all__ = ["BackendCheck", "DesignCheck", "PropertyError", "check_backend", "check_design"]
