"""Opens every page of the built site in Chromium: `python -m tools.release.look_at_site DIR`.

`mkdocs --strict` finds links that lead nowhere. What only a browser shows is looked for here, in
the width of a desk and of a phone: a page that scrolls sideways as a whole, a table or a block of
code that is cut off without a scroll bar, a name in a table that is
broken within a word, a picture that does not load, a file from another server.
And search must find a page that is opened as a file. `--pictures DIR --pages PAGE...` also writes
what is seen.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web
from tests.e2e.chromium import Tab, chromium

#: Name of a window, its width and height in pixels.
WINDOWS = (("desk", 1280, 900), ("phone", 390, 844))
#: What is wrong with a page, as texts.
_FAULTS = r"""
(() => {
  const found = [];
  const wide = document.documentElement.scrollWidth - window.innerWidth;
  if (wide > 1) found.push(`the page is ${wide} px wider than the window`);
  for (const each of document.querySelectorAll("article table, article pre")) {
    let box = each;
    while (box && !/auto|scroll/.test(getComputedStyle(box).overflowX)
           && box.tagName !== "ARTICLE") box = box.parentElement;
    const scrolls = box && box.tagName !== "ARTICLE";
    const right = each.getBoundingClientRect().right;
    if (!scrolls && right > window.innerWidth + 1)
      found.push(`cut off: ${each.innerText.slice(0, 60)}`);
  }
  for (const each of document.querySelectorAll("article td code"))
    if (!/[\s\-\/.,=?|:]/.test(each.innerText) && each.getClientRects().length > 1)
      found.push(`broken within a word: ${each.innerText.slice(0, 60)}`);
  for (const each of document.images)
    if (each.complete && !each.naturalWidth) found.push(`no picture: ${each.getAttribute("src")}`);
  for (const each of document.querySelectorAll('article a[href^="#"]')) {
    const name = decodeURIComponent(each.getAttribute("href").slice(1));
    if (name && !document.getElementById(name)) found.push(`no anchor: #${name}`);
  }
  for (const each of performance.getEntriesByType("resource"))
    if (new URL(each.name).host !== location.host) found.push(`from elsewhere: ${each.name}`);
  if (!document.querySelector("article h1")) found.push("no heading");
  return found;
})()
"""


@asynccontextmanager
async def served(site: Path) -> AsyncGenerator[str]:
    """Serve a directory on loopback; yields its URL."""
    application = web.Application()
    application.router.add_static("/", site, show_index=False)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    listener = web.TCPSite(runner, "127.0.0.1", 0)
    await listener.start()
    port = runner.addresses[0][1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


def pages(site: Path) -> Iterator[str]:
    """Return the paths of the pages below the site, in order."""
    for each in sorted(site.rglob("*.html")):
        if each.name != "404.html":
            yield each.relative_to(site).as_posix()


async def faults(tab: Tab, url: str) -> list[str]:
    """Return what is wrong with a page in the present window."""
    await tab.open(url)
    found: list[str] = await tab.evaluate(_FAULTS)
    return found


async def is_found(tab: Tab, site: Path) -> bool:
    """True when search finds something on a page that is opened as a file."""
    await tab.open((site / "index.html").resolve().as_uri())
    await tab.evaluate(
        "(() => { const field = document.querySelector('.md-search__input'); field.focus();"
        " field.value = 'gang'; field.dispatchEvent(new Event('keyup', {bubbles: true})); })()"
    )
    try:
        await tab.until("document.querySelector('.md-search-result__item')")
    except TimeoutError:
        return False
    return True


async def look(site: Path, pictures: Path | None, shown: Sequence[str]) -> int:
    """Print what is wrong with each page, and return how many faults there are."""
    count = 0
    async with served(site) as root, chromium() as tab:
        if not await is_found(tab, site):
            print("search finds nothing on a page that is opened as a file", flush=True)
            count += 1
        for window, width, height in WINDOWS:
            await tab.look(width=width, height=height)
            for page in pages(site):
                for fault in await faults(tab, f"{root}/{page}"):
                    print(f"{page} ({window}): {fault}", flush=True)
                    count += 1
                if pictures is not None and page in shown:
                    name = f"{page.removesuffix('.html').replace('/', '-')}-{window}.png"
                    (pictures / name).write_bytes(await tab.picture())
    print(f"{count} faults on {len(list(pages(site)))} pages in {len(WINDOWS)} windows")
    return count


def main() -> int:
    """Return 1 where a page has a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", type=Path)
    parser.add_argument("--pictures", type=Path, metavar="DIR")
    parser.add_argument("--pages", nargs="*", default=[], help="pages to photograph")
    asked = parser.parse_args()
    if asked.pictures is not None:
        asked.pictures.mkdir(parents=True, exist_ok=True)
    return int(asyncio.run(look(asked.site, asked.pictures, asked.pages)) > 0)


if __name__ == "__main__":
    sys.exit(main())
