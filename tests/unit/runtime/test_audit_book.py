"""What takes is recorded before it is done, and not done where it cannot be recorded."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from fairlead.api.status import Conflict, Forbidden, Unavailable
from fairlead.decide.takings import Taking, TakingKind
from fairlead.history.memory import MemoryHistory
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.kept.audit import Appended, AuditQuery, AuditRecord, Draft
from fairlead.runtime.kept.audit_book import AuditBook
from fairlead.runtime.kept.audit_export import (
    AuditExport,
    AuditTarget,
    TargetFailed,
    parse_target,
)
from fairlead.runtime.kept.history import HistoryError
from fairlead.runtime.logs import SILENT
from fairlead.sim.loop import run


class Failing(MemoryHistory):
    """Refuses records while it `fails`."""

    fails = False

    async def append_audit(self, drafts: Sequence[Draft]) -> Appended:
        if self.fails:
            raise HistoryError("the disk is full")
        return await super().append_audit(drafts)


class Controller:
    """Takes what its actions name; `ends` are what `perform` raises, in turn."""

    def __init__(self, history: MemoryHistory, ends: Sequence[Exception] = ()) -> None:
        self.done: list[tuple[str, int]] = []
        self._history = history
        self._ends = list(ends)

    def takings(self, action: str) -> Sequence[Taking]:
        if action == "nothing":
            return ()
        return (Taking(action, TakingKind.END, f"Job default/{action}", "u", "Idle", "", {}),)

    async def perform(self, action: str) -> str:
        self.done.append((action, len(await kinds(self._history))))
        if self._ends:
            raise self._ends.pop(0)
        return action


async def kinds(history: MemoryHistory) -> list[str]:
    """The kinds of all records, in order."""
    query = AuditQuery(limit=1_000)
    return [each.kind async for page in history.query_audit(query) for each in page]


def book_of(history: MemoryHistory) -> AuditBook:
    return AuditBook(history, writer="here", clock=LoopClock(1_767_225_600.0))


def test_the_record_is_there_when_the_act_begins_and_an_act_without_a_taking_has_none() -> None:
    async def main() -> None:
        history = Failing()
        controller = Controller(history)
        act = book_of(history).around(controller)
        assert await act("nothing") == "nothing"
        assert await act("a") == "a"
        assert controller.done == [("nothing", 0), ("a", 1)]

    run(main())


def test_what_cannot_be_recorded_is_not_done_and_may_be_tried_again() -> None:
    async def main() -> None:
        history = Failing()
        controller = Controller(history)
        act = book_of(history).around(controller)
        history.fails = True
        with pytest.raises(Unavailable, match="no record of it can be kept: the disk is full"):
            await act("a")
        assert controller.done == []
        history.fails = False
        await act("a")
        assert controller.done == [("a", 1)]

    run(main())


@pytest.mark.parametrize("refusal", [Conflict("changed"), Forbidden("no")], ids=["stale", "never"])
def test_what_the_api_refuses_has_a_second_record_and_later_a_new_one(refusal: Exception) -> None:
    async def main() -> None:
        history = Failing()
        act = book_of(history).around(Controller(history, [refusal]))
        with pytest.raises(type(refusal)):
            await act("a")
        await act("a")
        assert await kinds(history) == ["End", "NotDone", "End"]

    run(main())


def test_a_try_without_an_answer_is_recorded_once() -> None:
    async def main() -> None:
        history = Failing()
        act = book_of(history).around(Controller(history, [Unavailable("?"), Unavailable("?")]))
        for _ in range(2):
            with pytest.raises(Unavailable):
                await act("a")
        await act("a")
        assert await kinds(history) == ["End"]

    run(main())


def test_a_controller_that_takes_nothing_is_called_as_it_is() -> None:
    class Other:
        async def perform(self, action: str) -> str:
            return action

    other = Other()
    assert book_of(MemoryHistory()).around(other) == other.perform


class Receiver:
    """A target that keeps numbers; it refuses so many calls first."""

    def __init__(self, refusals: int = 0) -> None:
        self.numbers: list[int] = []
        self.refusals = refusals

    async def send(self, records: Sequence[AuditRecord]) -> None:
        if self.refusals:
            self.refusals -= 1
            raise TargetFailed("it answered 503")
        self.numbers += [each.number for each in records]


def test_each_target_gets_all_records_in_order_and_a_dead_one_holds_up_no_other() -> None:
    async def main() -> None:
        history = Failing()
        book = book_of(history)
        well, slow, dead = Receiver(), Receiver(3), Receiver(10**9)
        targets = [
            AuditTarget(parse_target(f"https://{host}/"), receiver)
            for host, receiver in (("a", well), ("b", slow), ("c", dead))
        ]
        await book.record([_taking(n) for n in range(250)])
        reported: list[int] = []
        export = AuditExport(
            history, book, targets, rng=random.Random(1), log=SILENT, reported=reported.append
        )
        task = asyncio.create_task(export.run())
        await asyncio.sleep(1)
        assert well.numbers == list(range(1, 251))
        await book.record([_taking(250)])
        await asyncio.sleep(120)
        assert well.numbers == slow.numbers == list(range(1, 252))
        assert export.failing == {"https://c:443": "it answered 503"}
        task.cancel()
        await asyncio.sleep(0.1)
        assert (max(reported), reported[-1]) == (2, 0)
        # The next process goes on where this one was, and a target behind the store begins again.
        again = Receiver()
        next_targets = [AuditTarget(targets[0].address, again)]
        second = AuditExport(history, book, next_targets, rng=random.Random(1), log=SILENT)
        task = asyncio.create_task(second.run())
        await asyncio.sleep(60)
        assert again.numbers == []
        await history.note_audit_sent(targets[0].address.key, 10_000)
        await asyncio.sleep(60)
        assert again.numbers == list(range(1, 252))
        task.cancel()

    run(main())


def _taking(number: int) -> Taking:
    return Taking(f"id-{number}", TakingKind.END, "Job default/a", "u", "Idle", "", {})


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("syslog://host", "begins with none of file, https, http, tcp, tls, udp"),
        ("https://me:secret@host/", "names a user"),
        ("https:///path", "must be https://HOST:PORT/PATH"),
        ("tcp://host/path", "must be tcp://HOST:PORT"),
        ("file://host/path", "must be file:// and the absolute path"),
        ("file:///directory/", "must be file:// and the absolute path"),
        ("tcp://host:99999", "out of range"),
    ],
)
def test_a_target_that_is_none_is_refused_with_the_reason(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        parse_target(url)
    assert "secret" not in str(refused.value)


def test_what_is_shown_of_a_target_leaves_out_the_path_of_its_url() -> None:
    address: Any = parse_target("https://example.com/token-1?x=2")
    assert address.url == "https://example.com:443/token-1?x=2"
    assert "token-1" not in address.shown + address.key
    assert parse_target("udp://[::1]").port == 514
