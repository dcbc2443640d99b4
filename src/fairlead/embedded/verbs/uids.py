"""Uids as objects have them: random ones of version 4 (RFC 9562), made by the hundred.

To ask the kernel for randomness, and to build a `uuid.UUID`, costs more than all checks of a small
object's metadata; so the bytes are drawn in blocks and written as text at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable

_SIZE_BYTES = 16
_BLOCK_UIDS = 256
#: The digit with the variant's two bits before two random ones, by a random digit.
_VARIANTS = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


class Uids:
    """Call it for a new uid. `draw(n)` returns n random bytes."""

    def __init__(self, draw: Callable[[int], bytes] = os.urandom) -> None:
        self._draw = draw
        self._block = ""
        self._next = 0

    def __call__(self) -> str:
        """Return a uid that was never returned before."""
        at = self._next
        if at >= len(self._block):
            self._block = self._draw(_SIZE_BYTES * _BLOCK_UIDS).hex()
            at = 0
        self._next = at + 2 * _SIZE_BYTES
        text = self._block[at : at + 2 * _SIZE_BYTES]
        variant = _VARIANTS[text[16]]
        return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{variant}{text[17:20]}-{text[20:]}"
