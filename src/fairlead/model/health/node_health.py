"""Which nodes are ready, which are cordoned or close, and since when a node has been not ready.

The one reading of a node's condition: fed once per process, read by every controller. The node
table keeps readiness as a column, from the same function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from fairlead.api.kubernetes.core import Node, NodeCondition
from fairlead.api.names import MAINTENANCE, MAINTENANCE_ANNOUNCED, READY
from fairlead.api.values.times import time_or
from fairlead.model.health.unreachable import unreachable_since
from fairlead.model.health.windows import Window, drain_of, read_window


class NodeHealth:
    """The health of every node, by name; changes are reported to observers."""

    def __init__(self) -> None:
        self._usable: dict[str, bool] = {}
        self._unready_since: dict[str, float] = {}
        self._unreachable: dict[str, float] = {}
        self._cordoned: dict[str, None] = {}
        self._closing: dict[str, Window] = {}
        self._observers: list[Callable[[str], None]] = []
        #: Every node that exists: True when a pod may be bound there now.
        self.usable: Mapping[str, bool] = MappingProxyType(self._usable)
        #: Nodes that exist and are not ready or unreachable, with the instant since when.
        self.unready_since: Mapping[str, float] = MappingProxyType(self._unready_since)
        #: Those that were found unreachable, from two sides: they count as lost at once.
        self.unreachable: Mapping[str, float] = MappingProxyType(self._unreachable)
        #: Nodes that a person or a controller has cordoned.
        self.cordoned: Mapping[str, None] = MappingProxyType(self._cordoned)
        #: Nodes that gangs are to leave, and when: drains, and maintenance of the provider.
        self.closing: Mapping[str, Window] = MappingProxyType(self._closing)

    def __contains__(self, name: str) -> bool:
        """True for a node that exists."""
        return name in self._usable

    def on_change(self, observer: Callable[[str], None]) -> Callable[[], None]:
        """Call `observer` with the name of each node whose health changed; return what ends it."""
        self._observers.append(observer)
        return lambda: self._observers.remove(observer)

    def put(self, node: Node, now: float) -> None:
        """Take in a node, new or changed; only a change is reported."""
        name = node.metadata.name
        before = self._facts(name)
        since = _unready_since(node, self._unready_since.get(name, now))
        unreachable = unreachable_since(node)
        if unreachable is not None:
            since = unreachable if since is None else min(since, unreachable)
        is_cordoned = node.spec.unschedulable
        is_leaving = node.metadata.deletion_timestamp is not None
        self._usable[name] = since is None and not is_cordoned and not is_leaving
        self._unready_since.pop(name, None)
        self._unreachable.pop(name, None)
        self._cordoned.pop(name, None)
        if since is not None:
            self._unready_since[name] = since
        if unreachable is not None:
            self._unreachable[name] = unreachable
        if is_cordoned:
            self._cordoned[name] = None
        self._closing.pop(name, None)
        if (window := _closing(node)) is not None:
            self._closing[name] = window
        if self._facts(name) != before:
            self._report(name)

    def remove(self, name: str) -> None:
        """Take in that a node is gone."""
        if self._usable.pop(name, None) is None:
            return
        self._unready_since.pop(name, None)
        self._unreachable.pop(name, None)
        self._cordoned.pop(name, None)
        self._closing.pop(name, None)
        self._report(name)

    def _facts(self, name: str) -> tuple[object, ...]:
        is_cordoned, window = name in self._cordoned, self._closing.get(name)
        since, unreachable = self._unready_since.get(name), name in self._unreachable
        return self._usable.get(name), since, unreachable, is_cordoned, window

    def _report(self, name: str) -> None:
        for observer in list(self._observers):
            observer(name)


def is_ready(node: Node) -> bool:
    """True when the node's Ready condition is "True"."""
    condition = _ready_condition(node)
    return condition is not None and condition.status == "True"


def is_answering(node: Node) -> bool:
    """True when the node is ready, and was not found unreachable before its condition says so."""
    return is_ready(node) and unreachable_since(node) is None


def _ready_condition(node: Node) -> NodeCondition | None:
    for condition in node.status.conditions:
        if condition.type == READY:
            return condition
    return None


def _closing(node: Node) -> Window | None:
    """Return from when on no gang may be there; None: nothing asks gangs to leave."""
    drain, announced = drain_of(node.metadata.annotations), _announced(node)
    if drain is None or announced is None or announced.start >= drain.start:
        return announced if drain is None else drain
    return replace(drain, start=announced.start)


def _announced(node: Node) -> Window | None:
    """Return when maintenance is, if that is as the provider has announced it."""
    notes = node.metadata.annotations
    announced = notes.get(MAINTENANCE_ANNOUNCED)
    if not announced or notes.get(MAINTENANCE) != announced:
        return None
    window = read_window(announced)
    return None if window.error else window


def _unready_since(node: Node, default: float) -> float | None:
    """Return since when a node has been not ready; None when it is ready.

    A node that has never reported counts from its creation. `default` is for a node that says no
    instant that can be read.
    """
    condition = _ready_condition(node)
    if condition is None:
        return time_or(node.metadata.creation_timestamp, default)
    if condition.status == "True":
        return None
    return time_or(condition.last_transition_time, default)
