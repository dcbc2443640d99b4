"""Logs: JSON lines for machines, columns for people, levels."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from pathlib import Path

import pytest
import structlog

from fairlead.runtime.logs import LogFormat, LogLevel, configure


class FixedClock:
    def now(self) -> float:
        return 1_767_225_600.25


@pytest.fixture(autouse=True)
def _restore():
    before = logging.root.handlers[:]
    logging.root.handlers.clear()
    yield
    logging.root.handlers[:] = before
    structlog.reset_defaults()


def test_a_json_line_begins_with_time_level_and_message_and_holds_the_facts() -> None:
    out = io.StringIO()
    log = configure(clock=FixedClock(), stream=out)
    log.info("Placed job", object="a/train", nodes=4, place=Path("/x"))
    [line] = out.getvalue().splitlines()
    assert list(json.loads(line).items()) == [
        ("time", "2026-01-01T00:00:00.250000Z"),
        ("level", "info"),
        ("message", "Placed job"),
        ("object", "a/train"),
        ("nodes", 4),
        ("place", "/x"),
    ]


def test_a_crash_is_logged_with_its_traceback_on_one_line() -> None:
    out = io.StringIO()
    log = configure(clock=FixedClock(), log_format=LogFormat.JSON, stream=out)
    try:
        raise ZeroDivisionError("broken")
    except ZeroDivisionError as error:
        log.error("Service crashed", exc_info=error)
    [line] = out.getvalue().splitlines()
    assert "ZeroDivisionError: broken" in json.loads(line)["exception"]


def test_columns_are_for_people_and_debug_is_off_by_default() -> None:
    out = io.StringIO()
    log = configure(clock=FixedClock(), log_format=LogFormat.COLUMNS, stream=out)
    log.debug("Hidden")
    log.warning("Mirror lost contact", kind="Pod")
    assert "Hidden" not in out.getvalue()
    assert "Mirror lost contact" in out.getvalue()
    assert "kind=Pod" in out.getvalue()


def test_debug_is_written_when_asked_for() -> None:
    out = io.StringIO()
    log = configure(clock=FixedClock(), level=LogLevel.DEBUG, stream=out)
    log.debug("Performed action", cycle=1)
    assert json.loads(out.getvalue())["cycle"] == 1


def test_what_an_event_loop_reports_is_one_line_like_all_others() -> None:
    """uvloop reports what a socket's callback raised to the loop's handler, which logs it."""
    out = io.StringIO()
    configure(clock=FixedClock(), stream=out)

    async def main() -> None:
        facts = {"message": "Fatal error on SSL protocol", "exception": RuntimeError("closed")}
        asyncio.get_running_loop().call_exception_handler(facts)

    asyncio.run(main())
    [line] = out.getvalue().splitlines()
    entry = json.loads(line)
    assert (entry["level"], entry["message"]) == ("error", "Library logged")
    assert (entry["library"], entry["text"]) == ("asyncio", "Fatal error on SSL protocol")
    assert "RuntimeError: closed" in entry["exception"]


@pytest.mark.parametrize(
    ("level", "text", "args", "expected"),
    [
        (logging.INFO, "seen", (), []),
        (logging.WARNING, "slow: %d s", (3,), [("warning", "slow: 3 s")]),
        (logging.ERROR, "bad %d", ("x",), [("error", "bad %d")]),
        (logging.CRITICAL, "lost", (), [("error", "lost")]),
    ],
)
def test_libraries_log_from_warnings_on(
    level: int, text: str, args: tuple[object, ...], expected: list[tuple[str, str]]
) -> None:
    out = io.StringIO()
    configure(clock=FixedClock(), stream=out)
    configure(clock=FixedClock(), stream=out)  # a second one replaces the first
    logging.getLogger("some.library").log(level, text, *args)
    entries = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(e["level"], e["text"]) for e in entries] == expected
    assert all("exception" not in e for e in entries)


@pytest.mark.parametrize(
    ("library", "text", "error", "lines"),
    [
        ("asyncio", "Fatal error on SSL protocol", RuntimeError("x; the handler is closed"), 0),
        ("asyncio", "Fatal error on SSL protocol", RuntimeError("x"), 1),
        ("asyncio", "Fatal error on transport", RuntimeError("the handler is closed"), 1),
        ("other", "Fatal error on SSL protocol", RuntimeError("the handler is closed"), 1),
    ],
)
def test_a_connection_that_is_closed_in_its_handshake_is_no_line(
    library: str, text: str, error: Exception, lines: int
) -> None:
    out = io.StringIO()
    configure(clock=FixedClock(), stream=out)
    logging.getLogger(library).error(text, exc_info=error)
    assert len(out.getvalue().splitlines()) == lines
