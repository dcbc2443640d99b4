"""`web-server`: the page for the users of a cluster, as `fairlead install` runs it."""

from __future__ import annotations

import os
from pathlib import Path

import click

from fairlead.cli.connection.common import Common, check_extra, common
from fairlead.cli.connection.connect import Choice, replica_connection
from fairlead.input.errors import Code, Exit, fail

LISTEN_DEFAULT = "0.0.0.0:8443"


@click.command(
    epilog="""Examples:

    \b
      fairlead web-server --settings web.yaml                    in a pod: its service account
      fairlead web-server --listen 127.0.0.1:8443 --context lab  beside the cluster, for a look
    """
)
@click.option("--listen", metavar="ADDR", default=LISTEN_DEFAULT, show_default=True,
              help="HOST:PORT of the page, over TLS.")  # fmt: skip
@click.option("--settings", "settings_file", metavar="FILE", default="",
              help="Settings of the page: its URL, how users sign in. [default: none]")  # fmt: skip
@click.option("--cert-dir", metavar="DIR", type=click.Path(path_type=Path), default=None,
              help="Directory with tls.crt and tls.key that somebody else renews. "
              "[default: it makes its own]")  # fmt: skip
@click.option("--secrets", metavar="DIR", type=click.Path(path_type=Path), default=None,
              help="Directory with oidc-client-secret, oidc-ca.crt and proxy-ca.crt, those of them "
              "that the settings need. [default: none]")  # fmt: skip
@common(output=False)
def web_server(
    common_: Common, *, listen: str, settings_file: str, cert_dir: Path | None,
    secrets: Path | None,
) -> int:  # fmt: skip
    """Serve the web page to the users of a cluster.

    Users sign in with a token of the cluster, at an OpenID provider, or by a proxy; each sees what
    the API server lets him list, and changes what it lets him change. `fairlead install` runs it
    with the value `web.enabled`. For yourself alone, use `fairlead web`.
    """
    import uvloop

    from fairlead.app.configuration.controller_settings import ControllerSettings
    from fairlead.app.configuration.settings import parse_listen
    from fairlead.app.configuration.web_settings import WebSettings, load_web_settings
    from fairlead.cli.cluster.archive import URL_VARIABLE
    from fairlead.cli.cluster.cluster_settings import read_settings
    from fairlead.cli.connection.transport import Api
    from fairlead.runtime.clock import SystemClock
    from fairlead.runtime.logs import LogFormat, LogLevel, configure

    check_extra("web", "the web page", "jinja2", "jwt")
    from fairlead.web.users import UserPageOptions, serve_users

    # Each question is asked with the rights of its user: of no store beside the API server.
    os.environ.pop(URL_VARIABLE, None)
    host, port = parse_listen(listen)
    settings = load_web_settings(Path(settings_file)) if settings_file else WebSettings()
    connection = replica_connection(Choice(common_.kubeconfig, common_.context), os.environ)
    cluster = read_settings(Api(connection), None) or ControllerSettings()
    log = configure(clock=SystemClock(), level=LogLevel.INFO, log_format=LogFormat.AUTO)
    options = UserPageOptions(host, port, settings, cluster.levels(), cert_dir, secrets)

    def ready(bound: int) -> None:
        log.info("Serving the page", url=settings.url, port=bound, pid=os.getpid())

    try:
        uvloop.run(serve_users(connection, options, log=log, ready=ready))
    except* OSError as group:
        error = next(each for each in group.exceptions if isinstance(each, OSError))
        raise fail(
            Code.PORT_IN_USE, f"cannot listen on {listen}: {error.strerror}",
            help=("--listen HOST:0 takes a free one",),
        ) from error  # fmt: skip
    return Exit.OK
