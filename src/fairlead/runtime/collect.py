"""Keep the cyclic garbage collector out of large first lists.

While tens of thousands of objects are decoded, the collector would scan again and again what was
just built: most of the time of a large decode. So it rests during first lists, and afterwards what
is there is frozen: it is not garbage and not worth another look. A simulation uses none of this.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


class CollectorRest:
    """Give `rest` to mirrors as `initial_list`; lists may overlap, the last one to end freezes."""

    def __init__(self) -> None:
        self._resting = 0
        self._was_enabled = False

    @contextmanager
    def rest(self) -> Generator[None]:
        """Collect nothing inside; on the way out exempt what is there from later collections."""
        if self._resting == 0:
            self._was_enabled = gc.isenabled()
            gc.disable()
        self._resting += 1
        try:
            yield
        finally:
            self._resting -= 1
            if self._resting == 0:
                gc.freeze()
                if self._was_enabled:
                    gc.enable()
