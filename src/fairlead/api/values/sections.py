"""Groups of values that people set in files: their fields, with bounds and what each is for.

They are here, below everything, so that what decides by a setting takes its default from where the
setting is declared. `input/sections.py` reads files of them.
"""

from __future__ import annotations

import msgspec
from msgspec import Meta

HOUR = 3600
DAY = 24 * HOUR
YEAR = 365 * DAY


class Section(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True,
               kw_only=True):  # fmt: skip
    """A group of fields."""


def about(text: str) -> Meta:
    """Return what a field is for, which the reference and the schema say."""
    return Meta(description=text)


def within(least: int, most: int, text: str) -> Meta:
    """Return the bounds of a number, both inclusive, and what it is for."""
    return Meta(ge=least, le=most, description=text)
