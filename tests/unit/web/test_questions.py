"""Asking why: answers are shared, kept for a while, and waited for with patience."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from fairlead.cli.connection.common import Common, Format
from fairlead.kube.kubeconfig import Connection
from fairlead.web.sources import questions as module
from fairlead.web.sources.questions import ANSWER_SECONDS, Questions, QuestionThreads

KEY = ("default", "train")


def asking_with(clock: Any) -> tuple[Questions, QuestionThreads]:
    threads = QuestionThreads()
    connection = Connection("http://nowhere", source="a test")
    return Questions(COMMON, connection, clock, threads), threads


COMMON = Common(Format.TABLE, "", False, "", "", True, False, True, 0)


class Clock:
    at = 1_000.0

    def now(self) -> float:
        return self.at


class SlowAnswer:
    """What the command would say; it comes once the test lets it."""

    count = 0
    may_answer = threading.Event()

    def __init__(self, *_: Any) -> None:
        pass

    def of(self, name: str) -> Any:
        type(self).count += 1
        assert type(self).may_answer.wait(20)
        return self

    def text(self, *_: Any) -> str:
        return f"answer {self.count}"


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> type[SlowAnswer]:
    class Own(SlowAnswer):
        count = 0
        may_answer = threading.Event()

    monkeypatch.setattr(module, "Asking", Own)
    return Own


async def test_a_page_does_not_wait_for_a_slow_answer_and_is_told_once_it_has_come(
    slow: type[SlowAnswer],
) -> None:
    clock, told = Clock(), asyncio.Event()
    asking, threads = asking_with(clock)
    asking.answered = told.set
    assert await asking.why(KEY, patience_seconds=0.01) is None
    assert await asking.why(KEY, patience_seconds=0.01) is None
    slow.may_answer.set()
    await told.wait()
    found = await asking.why(KEY, patience_seconds=0.01)
    assert found is not None
    assert found.text == "answer 1\n"
    assert slow.count == 1, "one question for all who look"
    await threads.close()


async def test_a_fault_of_an_answer_that_nobody_waits_for_is_reported(
    slow: type[SlowAnswer], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: told.set_result(context["exception"])
    )
    monkeypatch.setattr(slow, "text", lambda *_: 1 / 0)
    asking, threads = asking_with(Clock())
    assert await asking.why(KEY, patience_seconds=0.01) is None
    slow.may_answer.set()
    assert isinstance(await told, ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        await asking.why(KEY)
    await threads.close()


async def test_an_old_answer_is_shown_while_a_new_one_is_asked_for(
    slow: type[SlowAnswer],
) -> None:
    clock, told = Clock(), asyncio.Event()
    asking, threads = asking_with(clock)
    slow.may_answer.set()
    first = await asking.why(KEY)
    assert first is not None
    assert first.text == "answer 1\n"
    asking.answered = told.set
    clock.at += ANSWER_SECONDS
    assert await asking.why(KEY, patience_seconds=5) is first
    await told.wait()
    second = await asking.why(KEY, patience_seconds=5)
    assert second is not None
    assert second.text == "answer 2\n"
    await threads.close()
