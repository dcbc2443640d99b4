"""Commands of providers, as the controller's event loop runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
import uvloop

from fairlead.cloud.command import run_command

_START = asyncio.create_subprocess_exec


async def _ended(*arguments: str, **options: Any) -> asyncio.subprocess.Process:
    """Start a process and return once it has ended, as a busy event loop does."""
    process = await _START(*arguments, **options)
    async with asyncio.timeout(10):
        while process.stdin is None or not process.stdin.is_closing():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return process


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
def test_a_command_may_end_before_it_is_given_its_request(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asyncio, "create_subprocess_exec", _ended)
    asked: Coroutine[Any, Any, Any] = run_command("/bin/echo", '["one"]', request={"verb": "list"})
    assert run(asked) == ["one"]
