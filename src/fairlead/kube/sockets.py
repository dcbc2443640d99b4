"""What a connection needs besides HTTP: TLS settings, the socket's options, the token's file."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from fairlead.kube.kubeconfig import Connection, KubeconfigError


def read_token(file: Path) -> str:
    """Return the token in a file; KubeconfigError when there is none to read."""
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise KubeconfigError(f"token file {file} cannot be read: {error}") from error


def tls_context(connection: Connection) -> ssl.SSLContext:
    """Return the TLS settings of a connection; KubeconfigError when certificates are unusable."""
    try:
        authority = connection.certificate_authority.decode("ascii") or None
        context = ssl.create_default_context(cadata=authority)
        if connection.skip_server_verification:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if connection.client_certificate:
            import tempfile  # few connections need it, and commands start without it

            with tempfile.NamedTemporaryFile() as file:  # 0600; ssl reads files only
                file.write(connection.client_certificate + b"\n" + connection.client_key)
                file.flush()
                context.load_cert_chain(file.name)
    except (ssl.SSLError, UnicodeDecodeError, ValueError) as error:
        raise KubeconfigError(
            f"{connection.source}: a certificate or key is not usable PEM: {error}"
        ) from error
    return context


def plain_host(host: str) -> str | bytes:
    """Return a host for a socket: as bytes, but for names beyond ASCII. For a text Python loads a
    codec, which raises UnicodeError for a name that is too long.
    """
    return host.encode() if host.isascii() else host


def probe(made: socket.socket, *, dead_peer_seconds: int) -> None:
    """Have a socket ask a silent peer for a sign of life (Linux tcp(7)).

    A machine that lost its power sends no word of it: without this a watch would wait for it until
    its own time is over.
    """
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    step = max(1, dead_peer_seconds // 6)
    values = {
        "TCP_KEEPIDLE": 3 * step, "TCP_KEEPINTVL": step, "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": 1000 * dead_peer_seconds,
    }  # fmt: skip
    for name, value in values.items():
        option: int | None = getattr(socket, name, None)
        if option is not None:
            made.setsockopt(socket.IPPROTO_TCP, option, value)
