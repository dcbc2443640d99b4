"""Short constructors for levels, so that a check reads as one table row."""

from __future__ import annotations

from fairlead.doctor.check import Level, Severity


def critical(limit: float, *, nodes_from: int = 0) -> Level:
    """Return a critical level."""
    return Level(Severity.CRITICAL, limit, nodes_from)


def warning(limit: float, *, nodes_from: int = 0) -> Level:
    """Return a warning level."""
    return Level(Severity.WARNING, limit, nodes_from)


def info(limit: float, *, nodes_from: int = 0) -> Level:
    """Return an informational level."""
    return Level(Severity.INFO, limit, nodes_from)


#: For measures that yield 1 where the fault is present and 0 where it is not.
IS_CRITICAL = (critical(0.5),)
IS_WARNING = (warning(0.5),)
IS_INFO = (info(0.5),)
