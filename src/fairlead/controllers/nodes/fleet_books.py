"""Writes the Fleet object, on which the fleet and the health controller book what they take."""

from __future__ import annotations

from fairlead.api.cluster.fleet import FLEET_NAME
from fairlead.api.meta import merge_diff, to_wire
from fairlead.api.resources import FLEETS
from fairlead.api.status import AlreadyExists
from fairlead.decide.removal.books import WriteFleet
from fairlead.runtime.client import Client
from fairlead.runtime.object_writer import ObjectWriter
from fairlead.runtime.watching.barrier import Written


class FleetBooks:
    """The writes of one controller; safe to repeat."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._objects = ObjectWriter(client)

    async def create(self) -> Written | None:
        """Create the one object; None when it is there."""
        try:
            made = await self._client.create(FLEETS, {"metadata": {"name": FLEET_NAME}, "spec": {}})
        except AlreadyExists:
            return None
        return Written.of(FLEETS, made)

    async def write(self, action: WriteFleet) -> Written:
        """Write the status that was decided on the version that `action` carries; Conflict."""
        fleet = action.fleet
        diff = merge_diff(to_wire(fleet.status), to_wire(action.status))
        return await self._objects.patch_status(FLEETS, fleet.metadata, diff)
