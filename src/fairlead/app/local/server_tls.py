"""The certificate of the cluster's server, kept in the data directory.

Made at the first start, by the code that makes the webhook's, and renewed at a start in the second
half of its life, or when it does not name the address. Each certificate has an authority of its own
whose key is not kept (`webhook.certificates`); the kubeconfig carries the authority and is
rewritten at each start. Copies of a kubeconfig made before a renewal no longer work after it.
"""

from __future__ import annotations

import json
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from fairlead.app.run_file import write_private
from fairlead.webhook.certificates import (
    BadCertificate,
    Material,
    Observed,
    Step,
    Times,
    from_secret,
    make,
    next_step,
    to_secret,
    validity_of,
)
from fairlead.webhook.tls import load_pair, server_context

TLS_FILE = "tls.json"
NAME = "fairlead"
#: A cluster may run for a year without a start in between.
TIMES = Times(life_seconds=730 * 86_400.0, renew_at=0.5)
_FILE_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class ServerTls:
    """What the server listens with, and the authority, in PEM, that its clients trust."""

    context: ssl.SSLContext
    authority: bytes


def server_tls(data: Path, host: str, now: float) -> ServerTls:
    """Return the settings of a server at `host`, with a new certificate when one is due. OSError.

    Only the process that holds the data directory may call it.
    """
    path = data / TLS_FILE
    hosts = _hosts(host)
    material = _read(path)
    if material is None or _is_due(material, hosts, now):
        authority, pair = make(hosts, now=now, times=TIMES, name=NAME)
        material = Material(authority, pair)
        write_private(path, json.dumps(to_secret(material)).encode())
    context = server_context()
    load_pair(context, material.serving)
    return ServerTls(context, material.bundle)


def _is_due(material: Material, hosts: tuple[str, ...], now: float) -> bool:
    step = next_step(material, Observed(now, now), hosts, now=now, times=TIMES)
    return step is not Step.KEEP or now < validity_of(material.serving).began_at


def _hosts(host: str) -> tuple[str, ...]:
    """Return every name and address by which this machine's clients may call the server."""
    own = socket.gethostname()
    names = ("127.0.0.1", "::1", "localhost", *([own] if own.isascii() and own else ()), host)
    return tuple(dict.fromkeys(names))


def _read(path: Path) -> Material | None:
    """Return what was kept; None when there is nothing that can be read."""
    try:
        if path.stat().st_size > _FILE_BYTES_MAX:
            return None
        values = json.loads(path.read_bytes())
        return from_secret({name: text for name, text in values.items() if text})
    except FileNotFoundError:
        return None
    except (ValueError, AttributeError, TypeError, BadCertificate):
        return None
