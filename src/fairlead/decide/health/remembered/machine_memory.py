"""Remembers resets, reboots and replacements by the hardware, whatever the name of its node.

The record of a node ends with the Node. A machine that was replaced, and comes back under
another name, would begin with a clean sheet, and be repaired for ever. So each try is a row of the
Fleet, too, for 7 days, under what the agent reports of the machine: its board and its GPUs
(a virtual machine has another board each time, and the GPUs of its host).

A node says itself which machine it is. So a row counts for another node only once the node that it
is of has gone: no node that is there speaks for the machine of another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from fairlead.api.cluster.fleet import TRIED_MAX, MachineTry
from fairlead.api.cluster.node_report import NodeReport
from fairlead.api.kubernetes.core import Node
from fairlead.api.values.times import time_or
from fairlead.decide.health.policy import TRIES_SECONDS
from fairlead.model.health.node_record import NodeRecord, Try

_GPUS = "gpus"


@dataclass(frozen=True, slots=True)
class RememberedTries:
    """What was tried on the machine of a node while it had other names."""

    tries: tuple[Try, ...] = ()
    nodes: tuple[str, ...] = ()


def identities_of(node: Node, report: NodeReport | None) -> tuple[str, ...]:
    """Return what the machine of a node is known by; (): nothing."""
    if report is None or report.status.node_uid != node.metadata.uid:
        return ()
    status = report.status
    found = (("board", status.machine_id), (_GPUS, status.hardware.get(_GPUS, "")))
    return tuple(f"{name} {value}" for name, value in found if value)


def remembered(
    rows: Iterable[MachineTry], node: Node, report: NodeReport | None, *,
    present: Collection[str], now: float,
) -> RememberedTries:  # fmt: skip
    """Return what is known of the machine of a node beyond its own record."""
    known, own = frozenset(identities_of(node, report)), node.metadata
    found = [
        row for row in rows
        if row.uid != own.uid and not known.isdisjoint(row.machine)
        and (row.node == own.name or row.node not in present)
        and time_or(row.at, now) > now - TRIES_SECONDS
    ]  # fmt: skip
    tries = tuple(Try(row.action, row.at) for row in found)
    return RememberedTries(tries, tuple(dict.fromkeys(row.node for row in found)))


def with_tries(
    rows: tuple[MachineTry, ...],
    nodes: Iterable[tuple[Node, NodeRecord | None, NodeReport | None]], *, now: float,
) -> tuple[MachineTry, ...]:  # fmt: skip
    """Return the rows with the tries of these nodes; the same rows where there is nothing new."""
    known = {(row.action, row.at, row.machine) for row in rows}
    new = tuple(row for row in _rows(nodes) if (row.action, row.at, row.machine) not in known)
    if not new:
        return rows
    kept = (row for row in rows if time_or(row.at, now) > now - TRIES_SECONDS)
    return (*kept, *new)[-TRIED_MAX:]


def _rows(
    nodes: Iterable[tuple[Node, NodeRecord | None, NodeReport | None]],
) -> Iterator[MachineTry]:
    for node, record, report in nodes:
        if record is None or not record.tries or not (machine := identities_of(node, report)):
            continue
        meta = node.metadata
        for each in record.tries:
            if each.is_repair:
                yield MachineTry(machine, meta.name, meta.uid, each.action, each.at)
