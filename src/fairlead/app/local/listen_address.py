"""Whether the API server of a cluster on this machine can listen where it is asked to."""

from __future__ import annotations

import errno
import os
import socket

from fairlead.app.configuration.settings import Settings
from fairlead.input.errors import CliError, Code, fail


class ListenFailed(Exception):
    """The address cannot be listened on."""

    def __init__(self, host: str, port: int, cause: OSError) -> None:
        super().__init__(f"cannot listen on {host}:{port}: {cause}")
        self.host = host
        self.port = port
        self.cause = cause


def require_address(settings: Settings) -> None:
    """Refuse an address on which nothing can listen, before anything is made for the cluster.

    A port that was not asked for may be replaced, so only the host counts then. CliError.
    """
    port = settings.port if settings.is_port_asked else 0
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        socket.create_server((settings.host, port), family=family).close()
    except OSError as error:
        raise listen_failed(ListenFailed(settings.host, port, error)) from error


def listen_failed(error: ListenFailed) -> CliError:
    """Return what to say of an address that is taken, or that this machine does not have."""
    address = f"{error.host}:{error.port}"
    if error.cause.errno == errno.EADDRINUSE:
        return fail(
            Code.PORT_IN_USE, f"another process listens on {address}",
            help=("--listen 127.0.0.1:0 takes a free port; "
                  f"ss -ltnp 'sport = :{error.port}' names the process",),
        )  # fmt: skip
    why = os.strerror(error.cause.errno) if error.cause.errno else str(error.cause)
    return fail(Code.LISTEN_ADDRESS, f"cannot listen on {address}: {why}",
                help=("--listen 127.0.0.1:0",))  # fmt: skip
