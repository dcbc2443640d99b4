"""Worker processes of a pool end with the process that started them, however that one ends.

By themselves they wait for work for ever once it has been killed.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.connection import wait


def end_with_parent() -> None:
    """Watch over the parent in a thread: the initializer of the pool."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    sentinel = parent.sentinel

    def follow() -> None:
        wait([sentinel])
        os._exit(1)

    threading.Thread(target=follow, name="end-with-parent", daemon=True).start()
