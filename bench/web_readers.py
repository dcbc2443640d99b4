"""Browsers that follow pages: `python -m bench.web_readers LINK URL...`.

It signs in with the one-time link, follows each URL's live updates, says so, and reads what comes
until its input ends. Then it prints how many pages and bytes came.
"""

from __future__ import annotations

import asyncio
import json
import sys
from urllib.parse import quote

from aiohttp import ClientConnectionError, ClientSession, ClientTimeout, TCPConnector


async def main(link: str, urls: list[str]) -> None:
    """Follow the URLs until the input ends."""
    base = link.partition("/login")[0]
    counts = {"pages": 0, "bytes": 0}
    reader, loop = asyncio.StreamReader(), asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    connector, timeout = TCPConnector(limit=0), ClientTimeout(total=None)
    async with ClientSession(connector=connector, timeout=timeout) as session:
        async with session.get(link) as answer:
            answer.raise_for_status()
            cookie = answer.headers["Set-Cookie"].partition(";")[0]
        async with asyncio.TaskGroup() as group:
            tasks = list[asyncio.Task[None]]()
            for url in urls:  # one after the other, as people come
                is_open = asyncio.Event()
                follow = _follow(session, f"{base}/live?of={quote(url, safe='')}", cookie,
                                 counts=counts, is_open=is_open)  # fmt: skip
                tasks.append(group.create_task(follow))
                await is_open.wait()
            print("following", flush=True)
            await reader.read()
            for task in tasks:
                task.cancel()
    print(json.dumps(counts), flush=True)


async def _follow(
    session: ClientSession, url: str, cookie: str, *, counts: dict[str, int],
    is_open: asyncio.Event,
) -> None:  # fmt: skip
    """Follow a page, again after a break, as a browser does."""
    while True:
        try:
            async with session.get(url, headers={"Cookie": cookie}) as answer:
                answer.raise_for_status()
                is_open.set()
                async for chunk in answer.content.iter_any():
                    counts["bytes"] += len(chunk)
                    counts["pages"] += chunk.count(b"event: main\n")
        except ClientConnectionError:
            await asyncio.sleep(1.0)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
