"""The transport's own parts; what it does with a server is in tests/conformance."""

from __future__ import annotations

import socket
import sys

import pytest

from fairlead.kube.transport import probe


@pytest.mark.skipif(sys.platform != "linux", reason="options of Linux")
def test_a_silent_peer_is_asked_for_a_sign_of_life_and_given_up_in_time() -> None:
    with socket.socket() as made:
        probe(made, dead_peer_seconds=30)
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        idle, interval, count, unacknowledged = (
            made.getsockopt(socket.IPPROTO_TCP, option)
            for option in (
                socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT,
                socket.TCP_USER_TIMEOUT,
            )
        )  # fmt: skip
        assert idle + interval * count == 30
        assert unacknowledged == 30_000
