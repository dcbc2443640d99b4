"""`web`: the page of a cluster, for a browser on this machine."""

from __future__ import annotations

import errno
import os
import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlead.app.run_file import write_private
from fairlead.cli.cluster.cluster_settings import read_settings
from fairlead.cli.cluster.embedded import read_status
from fairlead.cli.connection.common import Common, check_extra, common
from fairlead.cli.connection.connect import Choice, find_connection
from fairlead.cli.connection.identity import submitter_name
from fairlead.cli.connection.transport import Api
from fairlead.input.errors import Code, Exit, fail
from fairlead.runtime.outside.fetch import Redirects, Web, WebAccess

if TYPE_CHECKING:
    from fairlead.web import WebOptions
    from fairlead.web.record import WebRecord

PORT = 8470
_LINK_SECONDS = 5.0
_OPENER = """<!doctype html><meta charset="utf-8"><title>Fairlead</title>
<meta http-equiv="refresh" content="0;url={url}"><a href="{url}">Open the page</a>
"""


@click.command(
    epilog="""Examples:

    \b
      fairlead web                     serve the page, and open it
      fairlead web --url               serve it, and print the one-time link
      fairlead web -n lab --port 9000

    Where the page of a cluster is being served already, this gives a new link to it and ends.
    """
)
@click.option("--url", "only_url", is_flag=True, help="Print the one-time link; open no browser.")
@click.option("--port", metavar="N", type=click.IntRange(0, 65_535),
              help=f"Port on the loopback address; 0: a free one. [default: {PORT}]")  # fmt: skip
@click.option("--grafana", metavar="URL", default="",
              help="A Grafana with Fairlead's boards, to which pages link.")  # fmt: skip
@common(output=False)
def web(common_: Common, *, only_url: bool, port: int | None, grafana: str) -> int:
    """Serve the web page of a cluster on this machine.

    It shows jobs, why they wait, their logs, arrays and nodes, with your rights and only to you: a
    link is good once, for five minutes. Ctrl-C ends it. Without -n it shows the jobs of all
    namespaces, or where you may not list those, of the kubeconfig's.
    """
    check_extra("web", "the web page", "jinja2")
    from fairlead.web.record import read_record, record_path

    if grafana and not grafana.startswith(("https://", "http://")):
        raise fail(Code.BAD_VALUE, f"--grafana: '{grafana}' is no URL",
                   help=("such as https://grafana.example.com",))  # fmt: skip
    connection = find_connection(Choice(common_.kubeconfig, common_.context), os.environ)
    path = record_path(os.environ, connection.server, common_.namespace)
    running = read_record(path)
    if running is not None and (link := _new_link(running)) is not None:
        _hand_over(common_, link, path, only_url=only_url)
        return Exit.OK
    api = common_.connect()
    options = replace(_options(common_, api, port, path), grafana=grafana)
    _serve(common_, api, options, only_url=only_url)
    return Exit.OK


def _options(common_: Common, api: Api, port: int | None, path: Path) -> WebOptions:
    from fairlead.app.configuration.controller_settings import ControllerSettings
    from fairlead.web import WebOptions

    status = read_status(api)
    settings = read_settings(api, status) or ControllerSettings()
    return WebOptions(
        PORT if port is None else port, is_port_asked=port is not None,
        namespace=common_.namespace, user=submitter_name(api), levels=settings.levels(),
        is_up=status is not None, record=path,
    )  # fmt: skip


def _serve(common_: Common, api: Api, options: WebOptions, *, only_url: bool) -> None:
    import uvloop

    from fairlead.runtime.clock import SystemClock
    from fairlead.runtime.logs import LogLevel, configure
    from fairlead.web import OwnPage, serve_web

    log = configure(clock=SystemClock(), level=LogLevel.INFO)

    def ready(page: OwnPage) -> None:
        common_.note(f"The page is served at {page.url} until Ctrl-C")
        _hand_over(common_, page.link(), options.record, only_url=only_url)

    try:
        uvloop.run(serve_web(common_, api.connection, options, log=log, ready=ready))
    except* OSError as group:
        error = next(each for each in group.exceptions if isinstance(each, OSError))
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        raise fail(
            Code.PORT_IN_USE, f"cannot listen on 127.0.0.1:{options.port}: {error.strerror}",
            help=("--port 0 takes a free one",),
        ) from error  # fmt: skip


def _hand_over(common_: Common, link: str, path: Path, *, only_url: bool) -> None:
    """Print a link; and open it, where this machine has a screen.

    Others of the machine can read the arguments of a browser, so that it gets a private file.
    """
    common_.emit(f"{link}\n")
    if only_url or not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return
    opener = path.with_suffix(".html")
    write_private(opener, _OPENER.format(url=link).encode())
    webbrowser.open(opener.as_uri())


def _new_link(running: WebRecord) -> str | None:
    """Return a new link of a page that is being served; None where it does not answer."""
    page = Web(WebAccess(token=running.key), redirects=Redirects.NOWHERE, is_direct=True)
    try:
        link = page.fetch(f"{running.url}/link", b"", bytes_max=4096, seconds_max=_LINK_SECONDS)
        return link.decode()
    except (OSError, ValueError):
        return None
