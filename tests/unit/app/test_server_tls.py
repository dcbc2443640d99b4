"""The certificate of the cluster's server: kept, trusted, and renewed in time."""

from __future__ import annotations

import json
import socket
import ssl
import stat
import threading
import time
from pathlib import Path

import pytest

from fairlead.app.local.server_tls import TIMES, TLS_FILE, ServerTls, server_tls

HOST = "127.0.0.1"


def is_trusted(tls: ServerTls, authority: bytes, name: str) -> bool:
    """Tell whether a strict client that trusts the authority accepts what the server shows."""
    client = ssl.create_default_context(cadata=authority.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    ours, theirs = socket.socketpair()

    def serve() -> None:
        try:
            tls.context.wrap_socket(theirs, server_side=True).close()
        except OSError:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client.wrap_socket(ours, server_hostname=name).close()
    except ssl.SSLCertVerificationError:
        return False
    finally:
        ours.close()
        thread.join()
    return True


def test_it_is_made_once_for_every_name_of_this_machine_and_kept_private(tmp_path: Path) -> None:
    now = time.time()
    first = server_tls(tmp_path, HOST, now)
    assert stat.S_IMODE((tmp_path / TLS_FILE).stat().st_mode) == 0o600
    for name in ("127.0.0.1", "::1", "localhost", socket.gethostname()):
        assert is_trusted(first, first.authority, name), name
    assert not is_trusted(first, first.authority, "example.com")
    again = server_tls(tmp_path, HOST, now + 60)
    assert again.authority == first.authority
    assert is_trusted(again, first.authority, "localhost")
    (tmp_path / "elsewhere").mkdir()
    elsewhere = server_tls(tmp_path / "elsewhere", HOST, now)
    assert not is_trusted(elsewhere, first.authority, "localhost")


def test_it_is_renewed_at_a_start_in_the_second_half_of_its_life(tmp_path: Path) -> None:
    now = time.time()
    first = server_tls(tmp_path, HOST, now)
    half = TIMES.life_seconds * TIMES.renew_at
    assert server_tls(tmp_path, HOST, now + half - 10_000).authority == first.authority
    second = server_tls(tmp_path, HOST, now + half)
    assert second.authority != first.authority
    # a clock that was wrong then and is right now
    third = server_tls(tmp_path, HOST, now)
    assert third.authority != second.authority
    assert is_trusted(third, third.authority, "localhost")


def test_another_address_gets_a_certificate_that_names_it(tmp_path: Path) -> None:
    now = time.time()
    first = server_tls(tmp_path, HOST, now)
    assert not is_trusted(first, first.authority, "10.1.2.3")
    second = server_tls(tmp_path, "10.1.2.3", now)
    assert is_trusted(second, second.authority, "10.1.2.3")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"tls.crt": 1}', b'{"tls.crt": "!"}', b"x" * 100_000]
)
def test_a_damaged_file_is_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / TLS_FILE).write_bytes(content)
    made = server_tls(tmp_path, HOST, time.time())
    assert is_trusted(made, made.authority, HOST)
    assert json.loads((tmp_path / TLS_FILE).read_bytes())["tls.crt"]
