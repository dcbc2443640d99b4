"""The wait of one task: a flag, a deadline, whichever comes first."""

from __future__ import annotations

import asyncio

from fairlead.runtime.wake_up import WakeUp
from fairlead.sim.loop import run


def now() -> float:
    return asyncio.get_running_loop().time()


def test_it_ends_with_the_flag_or_at_the_deadline_and_says_which() -> None:
    async def main() -> None:
        wake = WakeUp()
        asyncio.get_running_loop().call_later(5.0, wake.set)
        assert await wake.wait(60.0)
        assert now() == 5.0
        wake.clear()
        assert not await wake.wait(60.0)
        assert now() == 65.0

    run(main())


def test_a_flag_that_was_set_before_the_wait_ends_it_at_once() -> None:
    async def main() -> None:
        wake = WakeUp()
        wake.set()
        assert await wake.wait()
        assert await wake.wait(1.0)  # until it is taken back
        assert now() == 0.0

    run(main())


def test_a_cancelled_wait_leaves_no_timer() -> None:
    async def main() -> None:
        wake = WakeUp()
        task = asyncio.create_task(wake.wait(1000.0))
        await asyncio.sleep(1.0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        assert not await wake.wait(2.0)
        assert now() == 3.0

    run(main())
