"""What the flags say about servers: their URLs, and the files with tokens and certificates."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairlead import terminal
from fairlead.input.errors import Code, fail, render_error
from fairlead.runtime.outside.fetch import Web, WebAccess

TEXT_BYTES_MAX = 4 << 20
#: Exit code when nothing could be looked at.
COULD_NOT_LOOK = 3


def read_file(name: str, flag: str) -> str:
    """Return the text of a file, at most 4 MiB; CliError."""
    try:
        with Path(name).open("rb") as file:
            data = file.read(TEXT_BYTES_MAX + 1)
    except OSError as error:
        raise fail(
            Code.MANIFEST_UNREADABLE, f"{flag}: '{name}' cannot be read: {error.strerror}"
        ) from error
    if len(data) > TEXT_BYTES_MAX:
        message = f"{flag}: '{name}' is larger than {TEXT_BYTES_MAX >> 20} MiB"
        raise fail(Code.MANIFEST_TOO_LARGE, message)
    return data.decode("utf-8", "replace")


def check_url(url: str, flag: str) -> None:
    """Do nothing when it is the URL of a server without a user; CliError."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise fail(Code.BAD_VALUE, f"{flag}: '{url}' is not the URL of a server",
                   help=(f"{flag} http://127.0.0.1:9090",))  # fmt: skip
    if parts.username is not None:
        raise fail(
            Code.BAD_VALUE, f"{flag}: a user in a URL shows in lists of processes",
            help=("write user:password into a file, and give it as the login file",),
        )  # fmt: skip


def tell_unreadable(url: str, why: str) -> int:
    """Say that a Prometheus server gives nothing to look at, and why; return the exit code."""
    error = fail(
        Code.UNREACHABLE, f"{url} could not be read: {why}",
        help=(f"see that Prometheus answers there: curl {url.rstrip('/')}/api/v1/query?query=up",),
    )  # fmt: skip
    terminal.tell(render_error(error).removesuffix("\n"))
    return COULD_NOT_LOOK


def web_of(options: Mapping[str, Any], prefix: str = "") -> Web:
    """Return the access that flags such as `--PREFIX-token-file` describe; CliError."""
    start = f"{prefix}_" if prefix else ""

    def flag(name: str) -> str:
        return "--" + f"{start}{name}".replace("_", "-")

    def given(name: str) -> str:
        return str(options.get(start + name) or "")

    def content(name: str) -> str:
        return read_file(given(name), flag(name)).strip() if given(name) else ""

    login = content("login_file")
    if login and ":" not in login:
        raise fail(Code.BAD_VALUE, f"{flag('login_file')}: the file is not user:password")
    access = WebAccess(
        content("token_file"), login, given("ca_file"), given("cert_file"), given("key_file"),
        skips_verification=bool(options.get(f"{start}insecure")),
    )  # fmt: skip
    try:
        access.context()
    except OSError as error:  # also of the TLS library
        names = [each for each in ("ca_file", "cert_file", "key_file") if given(each)]
        message = f"{', '.join(map(flag, names))}: {error.strerror or error}"
        raise fail(Code.MANIFEST_UNREADABLE, message) from error
    return Web(access)
