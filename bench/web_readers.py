"""Browsers that follow pages: `python -m bench.web_readers LINK URL...`.

It signs in with the one-time link, follows each URL's live updates, and reads what comes until it
is killed.
"""

from __future__ import annotations

import asyncio
import sys
from urllib.parse import quote

from aiohttp import ClientConnectionError, ClientSession, ClientTimeout, TCPConnector

#: Browsers come one after the other.
_BETWEEN_SECONDS = 0.05


async def main(link: str, urls: list[str]) -> None:
    """Follow the URLs."""
    base = link.partition("/login")[0]
    connector, timeout = TCPConnector(limit=0), ClientTimeout(total=None)
    async with ClientSession(connector=connector, timeout=timeout) as session:
        async with session.get(link) as answer:
            answer.raise_for_status()
            cookie = answer.headers["Set-Cookie"].partition(";")[0]
        async with asyncio.TaskGroup() as group:
            for url in urls:
                path = f"{base}/live?of={quote(url, safe='')}"
                group.create_task(_follow(session, path, cookie))
                await asyncio.sleep(_BETWEEN_SECONDS)


async def _follow(session: ClientSession, url: str, cookie: str) -> None:
    """Follow a page, again after a break, as a browser does."""
    while True:
        try:
            async with session.get(url, headers={"Cookie": cookie}) as answer:
                answer.raise_for_status()
                async for _ in answer.content.iter_any():
                    pass
        except ClientConnectionError:
            await asyncio.sleep(1.0)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
