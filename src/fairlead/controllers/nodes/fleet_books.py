"""What the fleet and the health controller share: the books of what they take, on the Fleet object,
and how the API server answers them.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from fairlead.api.cluster.fleet import FLEET_NAME
from fairlead.api.meta import merge_diff, to_wire
from fairlead.api.resources import FLEETS
from fairlead.api.status import AlreadyExists, ApiError
from fairlead.decide.removal.books import WriteFleet
from fairlead.decide.removal.trust import Pulse
from fairlead.runtime.client import Client
from fairlead.runtime.clock import loop_time
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


class TimedRequests:
    """How the API server answers the requests of one controller."""

    def __init__(self) -> None:
        self._pulse = Pulse()

    def pulse(self, instant: float) -> Pulse:
        """Return the averages at an instant of the loop."""
        self._pulse = self._pulse.aged(instant)
        return self._pulse

    @contextmanager
    def timed(self) -> Generator[None]:
        """Take in one request: what is sent in the context."""
        started_at, failed = loop_time(), False
        try:
            yield
        except ApiError as error:
            failed = error.retryable
            raise
        finally:
            ended_at = loop_time()
            self._pulse = self._pulse.after(ended_at - started_at, failed=failed, instant=ended_at)
