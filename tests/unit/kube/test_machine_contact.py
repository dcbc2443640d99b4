"""How a connection to a machine ends, over real sockets."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest

from fairlead.decide.health.unreachable_nodes import Contact
from fairlead.kube.machine_contact import contact_machine


async def test_a_machine_that_listens_is_connected_to_without_a_byte() -> None:
    heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            heard.set_result(await reader.read())
        except ConnectionError:
            heard.set_result(b"")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert await contact_machine("127.0.0.1", port, 5.0) is Contact.CONNECTED
        assert await heard == b""


async def test_a_port_on_which_nothing_listens_refuses() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        assert await contact_machine("127.0.0.1", port, 5.0) is Contact.REFUSED


async def test_a_machine_that_takes_no_connection_is_silent_after_the_time() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        others = [socket.socket() for _ in range(3)]
        for other in others:  # its queue is full: packets are dropped, as by a machine that is off
            other.setblocking(False)
            other.connect_ex(address)
        assert await contact_machine("127.0.0.1", address[1], 0.3) is Contact.SILENT
        for other in others:
            other.close()


@pytest.mark.parametrize(
    ("number", "wanted"),
    [
        (errno.EHOSTUNREACH, Contact.SILENT), (errno.ETIMEDOUT, Contact.SILENT),
        (errno.ECONNRESET, Contact.REFUSED), (errno.ENETUNREACH, Contact.UNKNOWN),
        (errno.EMFILE, Contact.UNKNOWN), (errno.EPERM, Contact.UNKNOWN),
    ],
)  # fmt: skip
async def test_what_is_no_fault_of_the_machine_says_nothing_of_it(
    number: int, wanted: Contact, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise OSError(number, "as the system says it")

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", fail)
    assert await contact_machine("192.0.2.1", 10250, 1.0) is wanted
