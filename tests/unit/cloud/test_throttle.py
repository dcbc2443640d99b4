"""The throttle of calls to a cloud, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fairlead.cloud.calls import Throttle
from fairlead.cloud.provider import CloudError
from fairlead.sim.loop import run


async def answered(question: Callable[[], Any]) -> Any:
    return question()


def test_calls_stay_within_the_bucket() -> None:
    async def main() -> None:
        throttle, loop = Throttle("AWS", 25.0, 2.5), asyncio.get_running_loop()
        for _ in range(25):
            await throttle.take()
        assert loop.time() == 0.0
        for _ in range(10):
            await throttle.take()
        assert loop.time() == pytest.approx(10 / 2.5)
        await asyncio.sleep(1000)
        assert throttle.per_second == 2.5
        started = loop.time()
        await asyncio.gather(*(throttle.take() for _ in range(35)))
        assert loop.time() - started == pytest.approx(10 / 2.5), "side by side, too"

    run(main())


def test_a_cloud_that_names_a_time_to_wait_is_not_asked_before_then() -> None:
    async def main() -> None:
        throttle = Throttle("Azure", 25.0, 2.5)
        for named, seconds in ((30.0, 30), (1.0, 4), (1e6, 600)):
            throttle.refused(named)
            await asyncio.sleep(seconds - 0.5)
            with pytest.raises(CloudError, match="Azure throttles"):
                await throttle.take()
            await asyncio.sleep(0.5)
            await throttle.take()

    run(main())


def test_how_long_the_next_call_would_wait_is_known_before_it_is_made() -> None:
    async def main() -> None:
        throttle, loop = Throttle("Azure", 2.0, 0.5), asyncio.get_running_loop()
        for expected in (0.0, 0.0, 2.0):
            assert throttle.wait_seconds() == pytest.approx(expected)
            started = loop.time()
            await throttle.take()
            assert loop.time() - started == pytest.approx(expected)

    run(main())


def test_the_pause_after_a_throttled_call_doubles_and_ends_with_one_that_passes() -> None:
    async def main() -> None:
        throttle = Throttle("AWS", 25.0, 2.5)
        for seconds in (2, 4, 8, 16, 32, 64, 120, 120):
            throttle.refused()
            await asyncio.sleep(seconds - 0.5)
            with pytest.raises(CloudError, match="AWS throttles"):
                await throttle.take()
            await asyncio.sleep(0.5)
            await throttle.take()
        await throttle.call(answered, lambda: None)
        throttle.refused()
        await asyncio.sleep(2)
        await throttle.take()

    run(main())
