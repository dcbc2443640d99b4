"""The entry point: runs a command and turns whatever happens into an exit code, never a traceback.

Kept free of imports so that Ctrl-C is caught from the first moment on.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as typing has it, which takes long to import
if TYPE_CHECKING:
    from typing import NoReturn

INTERRUPTED = 130


def main() -> NoReturn:
    """Run `fairlead` with `sys.argv` and end the process."""
    import atexit
    import gc
    import signal

    code = 0

    def leave() -> None:
        # An interrupt inside `exec` of text, as in the making of a data class, leaves a mark for
        # which `python -m` ends by sending itself SIGINT, which any thread may take.
        if code == INTERRUPTED:
            os._exit(code)

    def leave_at_once(_signal: int, _frame: object) -> None:
        os._exit(INTERRUPTED)

    atexit.register(leave)  # the first one, so the last to be called
    code = guarded(sys.argv[1:])
    # Nothing is left that could catch an interrupt: `timeout` sends one to us and one to our group.
    signal.signal(signal.SIGINT, leave_at_once)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # the reader has closed it: keep the last flush quiet, too
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    gc.freeze()  # the last collection walks over all that is loaded, and frees nothing that matters
    sys.exit(code)


def guarded(arguments: list[str]) -> int:
    """Run a command line and return its exit code."""
    try:
        from fairlead.cli.app import run

        return run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return 0  # the reader of our output has seen enough
    except SystemExit as exit_:  # click's completion ends this way
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
