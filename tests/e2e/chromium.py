"""Chromium without a screen, driven over its debugging protocol: no driver, no library."""

from __future__ import annotations

import asyncio
import base64
import itertools
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory
from typing import Any

from aiohttp import ClientSession, ClientWebSocketResponse
from tests.patience import PATIENCE_SECONDS

CHROMIUM = shutil.which("chromium") or ""
#: What a call is answered when the page goes while it runs.
_CHANGED, _GONE = "Inspected target navigated", "Cannot find context"
_LISTENING = b"DevTools listening on "


class CallError(Exception):
    """The browser refused a call; the argument is its message."""


class Tab:
    """One page of the browser."""

    def __init__(self, socket: ClientWebSocketResponse, session: str) -> None:
        self._socket, self._session = socket, session
        self._numbers = itertools.count(1_000)

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol; events meanwhile are passed over."""
        number = next(self._numbers)
        await self._socket.send_json(
            {"id": number, "method": method, "params": parameters, "sessionId": self._session}
        )
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (answer := await self._socket.receive_json()).get("id") != number:
                pass
        if error := answer.get("error"):
            raise CallError(error["message"])
        found: dict[str, Any] = answer["result"]
        return found

    async def evaluate(self, script: str) -> Any:
        """Return the value of an expression, a promise's once it has one."""
        answer = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def open(self, url: str) -> None:
        """Go to an address, and return once it is there."""
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete' && document.body")

    async def until(self, condition: str) -> None:
        """Return once an expression is true; it may fail while pages change."""
        script = f"(() => {{ try {{ return !!({condition}); }} catch {{ return false; }} }})()"
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await self._holds(script):  # noqa: ASYNC110 # a page has no event of ours
                await asyncio.sleep(0.05)

    async def _holds(self, script: str) -> bool:
        """Return whether it is true in a page that stays for as long as that takes."""
        try:
            return bool(await self.evaluate(script))
        except CallError as error:
            if _CHANGED not in str(error) and _GONE not in str(error):
                raise
            return False

    async def text(self, selector: str = "main") -> str:
        """Return what a person reads in an element."""
        return str(await self.evaluate(f"document.querySelector({selector!r})?.innerText ?? ''"))

    async def press(self, key: str) -> None:
        """Press a key."""
        text = {"text": key} if len(key) == 1 else {}
        await self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    async def look(self, *, width: int, height: int = 900, scheme: str = "light") -> None:
        """Have a window of this size, in light or dark."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height,
            deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        feature = {"name": "prefers-color-scheme", "value": scheme}
        await self.call("Emulation.setEmulatedMedia", features=[feature])

    async def picture(self) -> bytes:
        """Return what is seen, as PNG."""
        answer = await self.call("Page.captureScreenshot", format="png")
        return base64.b64decode(answer["data"])


@asynccontextmanager
async def chromium() -> AsyncGenerator[Tab]:
    """Yield a tab of a browser of its own, which ends with the block."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--disable-dev-shm-usage", "--ignore-certificate-errors", "--no-first-run",
            "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with (
                ClientSession() as http,
                http.ws_connect(await _address(process), max_msg_size=1 << 28) as socket,
            ):
                yield await _tab(socket)
        finally:
            process.kill()
            await process.wait()


async def _address(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for line in process.stderr:
            if line.startswith(_LISTENING):
                return line.removeprefix(_LISTENING).decode().strip()
    raise AssertionError("the browser has ended")


async def _tab(socket: ClientWebSocketResponse) -> Tab:
    async def root(number: int, method: str, **parameters: Any) -> dict[str, Any]:
        await socket.send_json({"id": number, "method": method, "params": parameters})
        while (answer := await socket.receive_json()).get("id") != number:
            pass
        found: dict[str, Any] = answer["result"]
        return found

    target = (await root(1, "Target.createTarget", url="about:blank"))["targetId"]
    attached = await root(2, "Target.attachToTarget", targetId=target, flatten=True)
    tab = Tab(socket, attached["sessionId"])
    await tab.call("Page.enable")
    return tab
