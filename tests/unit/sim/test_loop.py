"""The virtual-time loop: jumps, order of equal deadlines, refusals."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from types import FrameType
from typing import Any

import pytest

from fairlead.runtime.clock import LoopClock, SystemClock
from fairlead.sim.loop import Deadlock, SimulationError, run


def test_a_year_of_sleep_passes_at_once_and_to_the_exact_instant() -> None:
    async def main() -> float:
        await asyncio.sleep(365 * 86_400.0)
        return LoopClock(1_000.0).now()

    assert run(main()) == 1_000.0 + 365 * 86_400.0


def test_timers_with_equal_deadlines_run_in_the_order_they_were_set() -> None:
    async def main() -> list[int]:
        seen: list[int] = []
        loop = asyncio.get_running_loop()
        for i in range(50):
            loop.call_at(10.0, seen.append, i)
        await asyncio.sleep(11)
        return seen

    assert run(main()) == list(range(50))


def test_a_cancelled_timer_does_not_move_time() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        loop.call_at(100.0, print).cancel()
        await asyncio.sleep(1)
        return loop.time()

    assert run(main()) == 1.0


def test_timeouts_follow_virtual_time() -> None:
    async def main() -> None:
        async with asyncio.timeout(5):
            await asyncio.sleep(6)

    with pytest.raises(TimeoutError):
        run(main())


def test_waiting_for_what_never_comes_is_a_deadlock() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        run(main())


def test_threads_sockets_processes_and_signals_are_refused() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(SimulationError, match="threads"):
            await asyncio.to_thread(threading.get_ident)
        with pytest.raises(SimulationError, match="sockets"):
            await asyncio.open_connection("127.0.0.1", 1)
        with pytest.raises(SimulationError, match="processes"):
            await asyncio.create_subprocess_exec("true")
        with pytest.raises(SimulationError, match="signals"):
            loop.add_signal_handler(2, print)

    run(main())


def test_the_wall_clock_and_threads_raise_for_our_own_code_and_only_there() -> None:
    async def main() -> None:
        ours: dict[str, object] = {"__name__": "fairlead.somewhere", "time": time}
        for call in ("time.time()", "time.monotonic()", "time.sleep(0)"):
            with pytest.raises(SimulationError, match="not allowed in a simulation"):
                eval(call, ours)  # a caller whose module is ours
        assert time.time() > 0
        with pytest.raises(SimulationError, match=r"time.time is not allowed"):
            SystemClock().now()

    run(main())
    assert SystemClock().now() > 0


def test_real_time_is_back_at_whatever_line_an_alarm_ends_a_run() -> None:
    """An alarm once came between the fence and what lifts it, and no later test read the clock."""
    real = (time.time, time.monotonic, threading.Thread.start, gc.get_threshold())

    class Alarm(KeyboardInterrupt):
        pass

    async def main() -> None:
        await asyncio.sleep(1)

    def met_at(line: int) -> bool:
        """Run with an alarm at the so-and-so-many-th line of `run`; False: it has fewer."""
        left = line

        def trace(frame: FrameType, event: str, _arg: Any) -> Any:
            nonlocal left
            if not frame.f_code.co_qualname.startswith(("run", "_refusing")):
                return None
            left -= event == "line"
            if not left:
                left = -1
                raise Alarm
            return trace

        begun = main()
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            run(begun)
        except Alarm:
            return True
        finally:
            sys.settrace(before)
            begun.close()
        return False

    lines = 0
    while met_at(lines + 1):
        lines += 1
        assert (time.time, time.monotonic, threading.Thread.start, gc.get_threshold()) == real
    assert lines > 50
