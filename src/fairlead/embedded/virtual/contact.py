"""What a virtual node answers to a connection, and whether its kubelet renews its lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from fairlead.decide.health.unreachable_nodes import Contact
from fairlead.embedded.virtual.stages.records import NodeFault, VirtualNodeRecord


class VirtualContact:
    """The network of virtual nodes, as monitors see it."""

    def __init__(self, records: Callable[[], Mapping[str, VirtualNodeRecord]]) -> None:
        """`records` returns the nodes that there are now, by name."""
        self._records = records

    def renews(self, name: str) -> bool:
        """True for a node whose kubelet works; those that are not virtual always do."""
        record = self._records().get(name)
        return record is None or (record.fault is None and not record.is_ended)

    async def connect(self, address: str, port: int, seconds: float) -> Contact:
        """Connect to an address: nodes that are broken answer nothing for so many seconds.

        One whose kubelet alone is broken refuses.
        """
        at_address = [each for each in self._records().values() if each.address == address]
        if not at_address:
            return Contact.UNKNOWN
        if any(each.fault is None and not each.is_ended for each in at_address):
            return Contact.CONNECTED
        if any(each.fault is NodeFault.NOT_READY for each in at_address):
            return Contact.REFUSED
        await asyncio.sleep(seconds)
        return Contact.SILENT
