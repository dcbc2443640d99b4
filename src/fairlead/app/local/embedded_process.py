"""The life of the cluster's process: event loop, signals, logs, and what its end means.

The cluster itself is put together in `serve`. Here its errors become one line with a remedy: an
exception group is opened to what caused it, and what the operating system or the store refuses is
distinguished from a fault of ours, which goes on to the caller.
"""

from __future__ import annotations

import asyncio
import gc
import io
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TextIO, cast

from fairlead.app.configuration.settings import Settings, remember
from fairlead.app.local.datadir import in_use, read_token, unusable
from fairlead.app.local.embedded import Cluster, StartFailed, StoreLost
from fairlead.app.local.listen_address import ListenFailed, listen_failed
from fairlead.app.run_file import (
    KUBECONFIG_FILE,
    LOG_FILE,
    RunningCluster,
    clear_running,
    identity,
    rotate_log,
    write_running,
)
from fairlead.app.signals import stop_on_signals
from fairlead.embedded.http.server import Server
from fairlead.embedded.storage.wal import DamagedData, DirectoryInUse, StoreError, WrongFormat
from fairlead.input.errors import Code, fail
from fairlead.kube.kubeconfig import KubeconfigError, write_kubeconfig
from fairlead.runtime.clock import SystemClock
from fairlead.runtime.kept.history import HistoryError, OtherSchema
from fairlead.runtime.logs import LogLevel, configure

CONTEXT = "fairlead"
#: How often the length of the log is looked at, and what may write it: stdout and stderr.
_LOG_LOOK_CHARACTERS = 1 << 20
_LOG_DESCRIPTORS = (1, 2)
#: New containers, less those freed, between two collections of the youngest generation.
YOUNG_OBJECTS_MAX = 20_000


def run_cluster(
    settings: Settings,
    *,
    ready: Callable[[RunningCluster], None],
    log_stream: TextIO,
    verbosity: int,
    say: Callable[[str], None] | None = None,
) -> None:
    """Run the cluster until SIGINT or SIGTERM; `ready` is called once everything works.

    `say` shows a sentence to the person at the terminal; without it, it goes to the log.

    CliError for what a person can mend: port, data directory, profile, disk. The second signal ends
    the process at once.
    """
    import uvloop

    clock = SystemClock()
    level = LogLevel.WARNING if log_stream.isatty() and not verbosity else LogLevel.INFO
    if verbosity > 1:
        level = LogLevel.DEBUG
    # `configure` wants a TextIO; structlog needs no more of it than write and flush.
    stream = cast("TextIO", _LogStream(log_stream, settings.data))
    log = configure(clock=clock, level=level, stream=stream)
    cluster = Cluster(
        settings, read_token(settings.data), clock=clock, log=log,
        say=say or log.info,
    )  # fmt: skip

    def announce(server: Server) -> None:
        remember(settings, server.port)
        kubeconfig = settings.data / KUBECONFIG_FILE
        write_kubeconfig(
            kubeconfig, server.url, cluster.token, CONTEXT, authority=cluster.authority
        )
        running = _this_process(server.url, clock.now(), cluster.nodes_kept)
        write_running(settings.data, running)
        settle_garbage_collector()
        ready(running)

    async def main() -> None:
        gc.disable()  # until what was loaded is there: none of it is garbage
        stop_on_signals(cluster.stop)
        await cluster.run(announce)

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())
    except BaseExceptionGroup as group:
        raise explain(settings, _innermost(group)) from group
    except (OSError, StoreError, HistoryError, KubeconfigError, ListenFailed) as error:
        raise explain(settings, error) from error
    finally:
        clear_running(settings.data, os.getpid())


def settle_garbage_collector() -> None:
    """Let the collector pass over what the start has loaded, and look seldom at the rest.

    With the usual thresholds a cluster of 50,000 pods spends more time on collections that find
    nothing than on its work, and its loop stands still for a second at a time.
    """
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS_MAX, 20, 50)
    gc.enable()


def _this_process(server: str, now: float, nodes_kept: int) -> RunningCluster:
    from fairlead import __version__

    pid = os.getpid()
    mine = identity(pid)
    assert mine is not None, "a running process has an identity"
    return RunningCluster(pid, mine.start_ticks, mine.boot_id, server, __version__, now, nodes_kept)


def _innermost(error: BaseException) -> BaseException:
    """Return what a group is about: the first of its parts that a person can mend, else the group.

    When the store is lost, everything that writes fails beside it; the store's word counts.
    """
    parts = _flatten(error)
    for kind in (StoreLost, ListenFailed, StartFailed, StoreError, HistoryError, KubeconfigError):
        for part in parts:
            if isinstance(part, kind):
                return part
    return parts[0] if len(parts) == 1 else error


def _flatten(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for part in error.exceptions for leaf in _flatten(part)]


class _LogStream(io.TextIOBase):
    """A log that cannot be written, on a full disk say, must not take the cluster along.

    That of a detached cluster is rotated while it runs.
    """

    def __init__(self, stream: TextIO, data: Path) -> None:
        self._stream, self._data = stream, data
        self._unlooked = 0  # characters since the length of the log was looked at

    def isatty(self) -> bool:
        """True on a terminal."""
        return self._stream.isatty()

    def write(self, text: str) -> int:
        """Write, or drop the text."""
        self._unlooked += len(text)
        if self._unlooked > _LOG_LOOK_CHARACTERS:
            self._unlooked = 0
            self.flush()
            with suppress(OSError):
                rotate_log(self._data, _LOG_DESCRIPTORS)
        try:
            return self._stream.write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        """Flush, or drop what is buffered."""
        with suppress(OSError):
            self._stream.flush()


def explain(settings: Settings, error: BaseException) -> BaseException:
    """Return the CliError for what a person can mend; anything else as it is."""
    data = settings.data
    if isinstance(error, DirectoryInUse):
        return in_use(data)
    if isinstance(error, WrongFormat):
        return fail(
            Code.DATA_VERSION, _what(error),
            help=("use the fairlead that wrote it, or start with another directory: --data DIR",),
        )  # fmt: skip
    if isinstance(error, (DamagedData, StoreError)):
        return fail(Code.DATA_DAMAGED, _what(error),
                    help=(f"keep a copy of {data}, then start elsewhere: --data DIR",))  # fmt: skip
    if isinstance(error, OtherSchema):
        return fail(Code.DATA_VERSION, str(error), help=("the jobs are in store, not there",))
    if isinstance(error, HistoryError):
        return fail(Code.DATA_DAMAGED, str(error), help=(f"it is in {data}",))
    if isinstance(error, ListenFailed):
        return listen_failed(error)
    if isinstance(error, StartFailed):
        return fail(Code.START_FAILED, f"the cluster did not start: {error}",
                    help=(f"the log says more: {data / LOG_FILE}",))  # fmt: skip
    if isinstance(error, StoreLost):
        return unusable(data, error.cause)
    if isinstance(error, KubeconfigError):
        return fail(Code.DATA_UNWRITABLE, str(error))
    if isinstance(error, OSError) and not isinstance(error, ConnectionError):
        return unusable(data, error)
    return error


def _what(error: StoreError) -> str:
    """Return the store's words without its remedy, which comes after the last colon."""
    return str(error).rpartition(": ")[0] or str(error)
