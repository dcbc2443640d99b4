"""Machines as a provider lists them: the other half of what a cluster's nodes are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

#: Characters of what is said of a host.
DESCRIPTION_MAX = 300


class InstanceState(Enum):
    """What a provider says of a machine. One that is gone is not listed."""

    STARTING = "Starting"
    RUNNING = "Running"
    STOPPING = "Stopping"


@dataclass(frozen=True, slots=True)
class Instance:
    """A machine. `id` is what its node states as `spec.providerID`."""

    id: str
    pool: str
    state: InstanceState
    domain: str = ""
    token: str = ""
    #: When the provider will work on it, as START/END in RFC 3339; "" while nothing is announced.
    maintenance: str = ""
    #: It would begin that at once, if it were asked.
    may_begin: bool = False


@dataclass(frozen=True, slots=True)
class Inventory:
    """The machines of a pool; not complete when the provider's list was cut."""

    instances: tuple[Instance, ...]
    is_complete: bool = True
    #: What the list lacks beside machines, for people.
    warning: str = ""


@dataclass(frozen=True, slots=True)
class HostReport:
    """What is reported to the owner of a machine's host: that it is faulty, or is not any longer.

    `token` is the same each time that a report is sent, and another for each report: lower-case
    letters, digits and dashes. `since`: seconds of the epoch. `checks` found the faults, the worst
    first, each with its first code where there is one: `gpu-xid 79`, `gpu-lost`.
    """

    token: str
    machine: str
    description: str
    since: float
    checks: tuple[str, ...] = ()
    is_over: bool = False
