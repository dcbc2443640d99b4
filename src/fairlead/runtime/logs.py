"""Structured logs: constant messages with key/value facts; JSON for machines, columns for people.

Nothing here is global except what `configure` sets in structlog, and only main calls that;
everything else takes a `Logger` argument. The message is constant and in the past tense ("Restarted
controller"), everything that varies is a fact, so that lines can be counted and searched.
Source: kubernetes/community contributors/devel/sig-instrumentation/logging.md.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from enum import Enum
from typing import Any, Protocol, TextIO, cast

from fairlead.api.values.times import format_micro_time
from fairlead.runtime.clock import Clock
from fairlead.terminal import escaped, json_escaped


class Logger(Protocol):
    """What the code logs to. Info: a state changed; error: an administrator may have to act."""

    def debug(self, event: str, **facts: Any) -> Any:
        """Log details: verdicts and timing."""
        ...

    def info(self, event: str, **facts: Any) -> Any:
        """Log a change of state."""
        ...

    def warning(self, event: str, **facts: Any) -> Any:
        """Log something undesired that is being dealt with."""
        ...

    def error(self, event: str, **facts: Any) -> Any:
        """Log what an operator may have to act on."""
        ...


class SilentLogger:
    """Logs nothing; for libraries' defaults and tests."""

    def debug(self, event: str, **facts: Any) -> None:
        """Drop it."""

    info = warning = error = debug


SILENT = SilentLogger()


class LogFormat(Enum):
    """How lines look. AUTO is columns on a terminal and JSON elsewhere."""

    AUTO = "auto"
    JSON = "json"
    COLUMNS = "columns"


class LogLevel(Enum):
    """The least level that is written; the values are those of Python's logging."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


def configure(
    *,
    clock: Clock,
    log_format: LogFormat = LogFormat.AUTO,
    level: LogLevel = LogLevel.INFO,
    stream: TextIO | None = None,
) -> Logger:
    """Set structlog up and return the root logger. Call it once, in main; default: stderr.

    What libraries log by Python's logging (asyncio: an exception in a callback) is written as lines
    of the same form, from WARNING on.
    """
    import msgspec
    import structlog

    out = sys.stderr if stream is None else stream
    if log_format is LogFormat.AUTO:
        log_format = LogFormat.COLUMNS if out.isatty() else LogFormat.JSON

    def stamp(_logger: Any, _method: str, entry: MutableMapping[str, Any]) -> Any:
        return {"time": format_micro_time(clock.now()), **entry}

    def to_json(_logger: Any, _method: str, entry: MutableMapping[str, Any]) -> str:
        entry["message"] = entry.pop("event")
        head = {name: entry.pop(name) for name in ("time", "level", "message")}
        return json_escaped(msgspec.json.encode({**head, **entry}, enc_hook=str).decode())

    def to_printable(_logger: Any, _method: str, entry: MutableMapping[str, Any]) -> Any:
        return {k: escaped(fact) if isinstance(fact, str) else fact for k, fact in entry.items()}

    processors: list[Any] = [structlog.processors.add_log_level, stamp]
    if log_format is LogFormat.JSON:
        processors += [structlog.processors.format_exc_info, to_json]
    else:
        processors += [
            structlog.processors.format_exc_info,
            to_printable,
            structlog.dev.ConsoleRenderer(
                colors=out.isatty(), timestamp_key="time", sort_keys=False, pad_event_to=32,
                exception_formatter=structlog.dev.plain_traceback,
            ),
        ]  # fmt: skip
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level.value),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=True,
    )
    # Bound once: the proxy that `get_logger` returns binds again for each line, written or not.
    log = cast("Logger", structlog.get_logger().bind())
    logging.basicConfig(handlers=[_Forwarding(log)], force=True)
    return log


def _is_of_a_closed_connection(record: logging.LogRecord) -> bool:
    """True for what uvloop logs of a connection that this process closed during a TLS handshake."""
    error = record.exc_info[1] if record.exc_info else None
    is_closed = isinstance(error, RuntimeError) and "the handler is closed" in str(error)
    return is_closed and record.name == "asyncio" and "SSL" in record.getMessage()


class _Forwarding(logging.Handler):
    """Writes the records of Python's logging as lines of ours."""

    def __init__(self, log: Logger) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        if _is_of_a_closed_connection(record):
            return
        try:
            text = record.getMessage()
        except (TypeError, ValueError, KeyError):  # arguments that do not fit the format
            text = str(record.msg)
        write = self._log.error if record.levelno >= logging.ERROR else self._log.warning
        write("Library logged", library=record.name, text=text, exc_info=record.exc_info)
