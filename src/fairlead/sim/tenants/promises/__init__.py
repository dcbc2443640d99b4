"""What others are promised, whatever the tenant does; begin with `gangs.py`."""

from fairlead.sim.tenants.promises.devices import DevicePromises
from fairlead.sim.tenants.promises.footprint import entries_of
from fairlead.sim.tenants.promises.gangs import LATE_SECONDS_MAX, PREEMPTORS, SHARED, Promises

__all__ = [
    "LATE_SECONDS_MAX",
    "PREEMPTORS",
    "SHARED",
    "DevicePromises",
    "Promises",
    "entries_of",
]
