"""Photographs every page of a full cluster, and measures it: `python -m tools.web_pictures DIR`.

The cluster is that of `bench/web_world.py`: 10,000 jobs, 7,500 nodes, 50 teams. For each page it
prints how long the server's processor was busy until Chromium had painted the first text, and the
browser's main thread (both without what other work the machine had), when the answer began and that
text was there (since the page was asked for), and what the page and its files weigh. Pictures are
taken in light and in dark.
`--images` also writes those of docs/images. It needs Chromium.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path

from bench.web_world import PAGES, RESEARCHER, FullAnswers, objects
from tests.e2e.chromium import Tab, chromium
from tests.e2e.web_world import page_of

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
WIDTH, HEIGHT = 1280, 900
#: Pictures of docs/images, by page, and the height of each.
DOCUMENTED = {"home": 860, "cluster": 760, "node": 900, "runs": 820}
_TIMES = """
(() => { const page = performance.getEntriesByType("navigation")[0];
  const paint = performance.getEntriesByName("first-contentful-paint")[0];
  const files = performance.getEntriesByType("resource").filter((each) => each.responseEnd);
  return JSON.stringify([page.responseStart, paint ? paint.startTime : null,
    page.encodedBodySize + files.reduce((sum, each) => sum + each.encodedBodySize, 0)]); })()
"""
_PAINTED = 'performance.getEntriesByName("first-contentful-paint").length > 0'


async def photograph(out: Path, *, is_for_docs: bool) -> None:
    """Open each page, print its times, and write its pictures."""
    began = time.monotonic()
    async with (
        page_of(objects(), user=RESEARCHER, answers=FullAnswers()) as browser,
        chromium() as tab,
    ):
        print(f"{time.monotonic() - began:.0f} s until the cluster was there", flush=True)
        await tab.look(width=WIDTH, height=HEIGHT)
        await tab.call("Performance.enable", timeDomain="threadTicks")
        await tab.open(browser.link())
        for name, path in PAGES.items():
            browser.cluster.version += 1  # as after a change: nothing that was made is kept
            busy = time.thread_time()
            await tab.open(browser.url + path)
            await tab.until(_PAINTED)
            busy, thread = (time.thread_time() - busy) * 1e3, await _thread_ms(tab)
            answered, painted, size = json.loads(await tab.evaluate(_TIMES))
            print(
                f"{name:14} took {busy:4.0f} ms of a core, the browser {thread:4.0f} ms; "
                f"answered {answered:5.0f} ms, painted {painted:5.0f} ms, {size / 1e3:5.0f} kB",
                flush=True,
            )  # fmt: skip
            await _pictures(tab, name, out, is_for_docs=is_for_docs)


async def _thread_ms(tab: Tab) -> float:
    """Return what the main thread has used of a processor for the page that is open."""
    metrics = (await tab.call("Performance.getMetrics"))["metrics"]
    return next(each["value"] for each in metrics if each["name"] == "TaskDuration") * 1e3


async def _pictures(tab: Tab, name: str, out: Path, *, is_for_docs: bool) -> None:
    for scheme in ("light", "dark"):
        await tab.look(width=WIDTH, height=HEIGHT, scheme=scheme)
        (out / f"{name}-{scheme}.png").write_bytes(await tab.picture())
    height = DOCUMENTED.get(name)
    if height is not None and is_for_docs:
        await tab.look(width=WIDTH, height=height)
        (IMAGES / f"web-{name}.png").write_bytes(await tab.picture())
    await tab.look(width=WIDTH, height=HEIGHT)


def main() -> None:
    """Read the arguments and photograph."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, metavar="DIR")
    parser.add_argument("--images", action="store_true", help="also those of docs/images")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    asyncio.run(photograph(given.out, is_for_docs=given.images))


if __name__ == "__main__":
    main()
