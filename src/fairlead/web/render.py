"""Pages from templates: everything escapes itself, and what is not printable is shown as escapes.

A template gets values and views; it decides nothing. `Page` is what a view returns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from fairlead.api.values.times import format_time, parse_time
from fairlead.decide.words import duration, plural
from fairlead.terminal import escaped

ROOT = Path(__file__).parent
_INSTANT = re.compile(r"\b(\d{4}-[01]\d-[0-3]\dT[0-2]\d:[0-5]\d:[0-5]\dZ)")


@dataclass(frozen=True, slots=True)
class Page:
    """A view: its template with values, its title, and the command that shows the same."""

    template: str
    title: str
    values: Mapping[str, Any]
    command: str
    #: The part of the site that it is in.
    section: str = ""
    status: int = 200
    #: What the page is about beside the mirrors changes with time: it is made again so often.
    seconds: float = 10.0


def link(*parts: str, **query: object) -> str:
    """Return a path of the site; parts of the query without a value are left out."""
    path = "/" + "/".join(quote(part, safe="") for part in parts)
    given = {name.rstrip("_"): value for name, value in query.items() if value not in ("", None)}
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


def instant(at: float | None) -> Markup:
    """Return an instant, which the page's script shows in the viewer's zone."""
    if at is None:
        return Markup("&ndash;")
    text = format_time(at)
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(
        text, f"{text[:10]} {text[11:19]} UTC"
    )


def timed(text: str) -> Markup:
    """Return a text in which each instant is one of `instant`."""
    parts = _INSTANT.split(text)
    made = [
        instant(parse_time(part)) if n % 2 else escape(shown(part)) for n, part in enumerate(parts)
    ]
    return Markup().join(made)


def shown(value: object) -> object:
    """Return what a value of a template is printed as: text with escapes for what is not
    printable.
    """
    return escaped(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def state_chip(state: str) -> Markup:
    """Return the state of a job, an array or a node: a word with a mark, in a colour."""
    name = re.sub("[^a-z]", "", state.lower())
    return Markup('<span class="state s-{}">{}</span>').format(name, shown(state))


@cache
def environment() -> Environment:
    """Return the templates."""
    made = Environment(
        loader=FileSystemLoader(ROOT / "templates"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, finalize=shown, auto_reload=False,
    )  # fmt: skip
    known = cast("dict[str, object]", made.globals)  # its stubs know those of Jinja2 itself
    known |= {"link": link, "plural": plural}
    made.filters |= {"duration": duration, "instant": instant, "state": state_chip, "timed": timed}
    return made


def render_main(page: Page) -> str:
    """Return what is between the page's header and its footer."""
    return environment().get_template(page.template).render(page.values)


def render_whole(page: Page, main: str, frame: Mapping[str, Any]) -> str:
    """Return the page as a document."""
    values = {"page": page, "main": Markup(main), **frame}  # noqa: S704 # made by a template
    return environment().get_template("base.html").render(values)
