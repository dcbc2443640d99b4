"""Tries whether a machine answers: one TCP connection, which carries no byte and is cut at once."""

from __future__ import annotations

import asyncio
import errno

from fairlead.decide.health.unreachable_nodes import Contact

#: No machine answers for the address: a router says so, or the neighbour table does.
_ABSENT = frozenset((errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ETIMEDOUT))
_REFUSED = frozenset((errno.ECONNREFUSED, errno.ECONNRESET))


async def contact_machine(address: str, port: int, seconds: float) -> Contact:
    """Connect to an IP address, for so long; UNKNOWN for what is no fault of the machine.

    No route from here (ENETUNREACH), a firewall of this machine (EPERM), no file descriptor left.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds):
            transport, _ = await loop.create_connection(asyncio.Protocol, address, port)
    except OSError as error:  # a time-out is one as well
        if isinstance(error, TimeoutError) or error.errno in _ABSENT:
            return Contact.SILENT
        return Contact.REFUSED if error.errno in _REFUSED else Contact.UNKNOWN
    transport.abort()
    return Contact.CONNECTED
