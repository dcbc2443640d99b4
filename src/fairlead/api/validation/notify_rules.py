"""What `spec.notify` must fulfil beyond its schema, and what a URL of a notice may be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import SplitResult, urlsplit

from fairlead.api.causes import duplicate, invalid, required
from fairlead.api.jobs.notify import MAIL_ADDRESS, SECRET_KEY, URL_MAX, Notify
from fairlead.api.status import StatusCause

_WAYS = "one of url, urlKey, mail and command"


def parse_url(text: str) -> SplitResult | str:
    """Return a URL in its parts, or what is wrong with it, without the URL itself."""
    if len(text) > URL_MAX:
        return f"must have at most {URL_MAX} characters"
    if not text.isascii() or any(not " " < each < "\x7f" for each in text):
        return "must consist of printable ASCII characters without spaces"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return "must be a URL such as https://host/path"
    if parts.scheme not in ("https", "http") or not parts.hostname:
        return "must be a URL such as https://host/path"
    if "@" in parts.netloc:
        return "must name no user: put the whole URL into the Secret instead"
    if port == 0 or "\\" in text:
        return "must be a URL such as https://host/path"
    return parts


def notify_causes(targets: Sequence[Notify], path: str) -> Iterator[StatusCause]:
    """Yield every rule that the targets of a job break."""
    for i, each in enumerate(targets):
        at = f"{path}[{i}]"
        given = [bool(way) for way in (each.url, each.url_key, each.mail, each.command)]
        if not any(given):
            yield required(at, _WAYS)
        elif sum(given) > 1:
            yield invalid(at, f"{sum(given)} targets", f"must be {_WAYS}")
        if not each.on:
            yield required(f"{at}.on", "Start, End, Fail or Preempt")
        for event in {each.on[j] for j in range(len(each.on)) if each.on[j] in each.on[:j]}:
            yield duplicate(f"{at}.on", event.value)
        if each.url and isinstance(problem := parse_url(each.url), str):
            yield invalid(f"{at}.url", each.url, problem)
        if each.url_key and not SECRET_KEY.fullmatch(each.url_key):
            why = "must be the key of a Secret: letters, digits, '-', '_' and '.'"
            yield invalid(f"{at}.urlKey", each.url_key, why)
        if each.mail and not MAIL_ADDRESS.fullmatch(each.mail):
            yield invalid(f"{at}.mail", each.mail, "must be one address such as ada@example.com")
        if each.form is not None and (each.mail or each.command):
            yield invalid(f"{at}.form", each.form.value, "is for URLs alone")
        for j, word in enumerate(each.command):
            if "\0" in word or (j == 0 and not word):
                why = "must have no NUL, and the first one must name a program"
                yield invalid(f"{at}.command[{j}]", word, why)
