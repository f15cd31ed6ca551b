"""Everything this package raises on purpose, as one tree.

Each error derives from :class:`CmpError` and from the built-in it refines, so that
``except ValueError`` keeps working. A message says what was wrong, where, and what to do.
"""

__all__ = [
    "CmpError",
    "ConflictingOutcomeError",
    "DatasetError",
    "GranularityError",
    "InvalidIdError",
    "LogCorruptedError",
    "LogTimeoutError",
    "LogUnavailableError",
    "LogVersionError",
    "MissingExtraError",
    "PositivityError",
    "ScopeError",
    "UndecidableError",
    "UnknownRoundError",
]


class CmpError(Exception):
    """Root of the tree."""


class InvalidIdError(CmpError, ValueError):
    """An id is not a stable string: None, bool, float, empty, a lone surrogate, or two ids that render alike."""


class ScopeError(CmpError, ValueError):
    """No scope was given, it is empty or malformed, or something crossed from one scope into another."""


class PositivityError(CmpError, ValueError):
    """A propensity is no probability (NaN, negative, above one), or leaves no contrast to estimate."""


class UndecidableError(CmpError, ValueError):
    """A decision was asked of numbers that cannot carry it, such as the sign of a utility relative to the pool."""


class ConflictingOutcomeError(CmpError, ValueError):
    """A round already has a different outcome for this metric, and ``correct=True`` was not given."""


class UnknownRoundError(CmpError, KeyError):
    """A round id is not in the log."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class LogVersionError(CmpError, RuntimeError):
    """The log was written under a schema that this version does not know."""


class LogCorruptedError(CmpError, OSError):
    """The log is no log, or is damaged: truncated, not a database, a table or a column missing."""


class LogTimeoutError(CmpError, TimeoutError):
    """The log did not make a round durable within ``log_timeout``; raised under ``on_error="raise"`` only."""


class LogUnavailableError(CmpError, OSError):
    """The log cannot be reached, read or written now: locked, its disk full, read-only, its server away."""


class GranularityError(CmpError, ValueError):
    """Labels match no memory at all: they name another unit (sessions against turns, say)."""


class DatasetError(CmpError, ValueError):
    """A benchmark file is absent, is not the file it should be, or cannot be read."""


class MissingExtraError(CmpError, ImportError):
    """An optional dependency is needed; the message names the extra to install."""
