"""What claims change in node table and ledger: rows of devices, and of drivers of volumes."""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.api.values.quantity import ATTACHED, CLAIMED
from fairlead.model.claimed.devices import DeviceTable
from fairlead.model.claimed.volumes import VolumeTable
from fairlead.model.gang.gangs import JobKey
from fairlead.model.holdings.ledger import Ledger
from fairlead.model.inventory.nodes import NodeTable


def follow_rows(
    volumes: VolumeTable, devices: DeviceTable, table: NodeTable, ledger: Ledger
) -> Iterable[JobKey]:
    """Take in what has changed of claims, in what nodes offer and what pods have there; return the
    jobs to judge again.
    """
    changes, attached = devices.follow(), volumes.follow()
    if attached.offers is not None:
        table.devices.put_volumes(attached.offers)
    for resource in table.set_devices(changes.nodes, changes.served):
        ledger.book_resource(resource)
    for node, lost in changes.stranded.items():
        ledger.set_stranded(node, lost, "stranded devices of")
    for node, lost in attached.attached.items():
        ledger.set_stranded(node, lost, "volumes attached to")
    for pod, had in changes.pods.items():
        ledger.set_claimed(pod, had, CLAIMED)
    for pod, had in attached.pods.items():
        ledger.set_claimed(pod, had, ATTACHED)
    return dict.fromkeys((*volumes.pop_stale(), *changes.jobs))
