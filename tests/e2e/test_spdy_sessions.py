"""Sessions by SPDY without WebSocket, as clients before kubectl 1.30 have them: what breaks them.

The real kubectl does so in tests/e2e/test_session_clients.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.conformance.http_server import TOKEN, eventually
from tests.e2e.session_world import V4, V5, SessionWorld, session_world
from tests.patience import PATIENCE_SECONDS
from tests.unit.embedded.test_spdy import Client as SpdyClient
from tests.unit.embedded.test_spdy import data

from fairlead.embedded.http.streams import spdy_sockets
from fairlead.embedded.http.streams.spdy_sockets import SIZE_BYTES_MAX

pytestmark = pytest.mark.e2e
TERMINAL = ("stdin", "stdout", "tty")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[SessionWorld]:
    async with session_world(tmp_path) as made:
        yield made


_SPDY = SpdyClient()
_OPENED = b"".join(
    _SPDY.open(2 * number + 1, streamtype=kind)
    for number, kind in enumerate(("error", "stdout", "stdin", "resize"))
)


@pytest.mark.parametrize(
    ("sent", "open_seconds"),
    [(b"\x80\x02\0\x01\0\0\0\0", 30.0), (data(5, b"early"), 30.0),
     (_OPENED + data(7, b"{\n"), 30.0), (_OPENED + data(7, bytes(SIZE_BYTES_MAX + 1)), 30.0),
     (SpdyClient().open(1, streamtype="stdin"), 0.2)],
    ids=["another version", "early input", "no JSON", "a long size", "one stream"],
)  # fmt: skip
async def test_spdy_that_breaks_the_protocol_ends_the_session_and_its_program(
    world: SessionWorld, sent: bytes, open_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spdy_sockets, "OPEN_SECONDS_MAX", open_seconds)
    await world.running_pod("p")
    program = f"{time.time_ns()}"
    pairs = [("command", word) for word in ("sleep", program)]
    url = urlsplit(world.url("p", "exec", *pairs, *((flag, "true") for flag in TERMINAL)))
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    head = [f"POST {url.path}?{url.query} HTTP/1.1", "Host: x", "Connection: Upgrade",
            "Upgrade: SPDY/3.1", f"Authorization: Bearer {TOKEN}",
            *(f"X-Stream-Protocol-Version: {each}" for each in (V5, V4)), "", ""]  # fmt: skip
    writer.write("\r\n".join(head).encode())
    async with asyncio.timeout(PATIENCE_SECONDS):
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
        assert f"X-Stream-Protocol-Version: {V4}\r\n".encode() in answer
        if open_seconds > 1:  # else it may have ended before it is looked for
            await eventually(lambda: _runs(program))
        writer.write(sent)
        await reader.read()
    writer.close()
    await eventually(lambda: not _runs(program))


def _runs(word: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            if word in path.read_text():
                return True
    return False


async def test_spdy_of_versions_that_are_not_served_is_refused(world: SessionWorld) -> None:
    await world.running_pod("p")
    url = world.url("p", "exec", ("command", "ls"), ("stdout", "true"))
    for asked in ({}, {"X-Stream-Protocol-Version": "channel.k8s.io"}):
        headers = {"Upgrade": "SPDY/3.1", "Connection": "Upgrade", **asked}
        async with world.api.session.post(url, headers=headers) as response:
            assert response.status == 400
            assert f"server accepts [{V4}]" in (await response.json())["message"]
