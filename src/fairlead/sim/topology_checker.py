"""Checks at every placement that a gang is in one domain of the level that it requires, and every
slice in one domain of its level.

It reads the request and the labels from the objects by itself. A preference is no promise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fairlead.api.core import Node
from fairlead.api.job import Job
from fairlead.api.placement import Placement
from fairlead.decide.verdict import ObjectKey
from fairlead.model.topology import DEFAULT_LEVELS
from fairlead.sim.checkers import PromiseBroken
from fairlead.sim.observer import Observer

#: Label by level.
Labels = Mapping[str, str]


@dataclass(slots=True)
class TopologyChecker(Observer):
    """An `Observer`. `checked` counts the placements that a topology binds."""

    levels: Labels = field(default_factory=lambda: {each.name: each.key for each in DEFAULT_LEVELS})
    checked: int = 0
    _placements: dict[ObjectKey, Placement] = field(default_factory=dict[ObjectKey, Placement])
    _labels: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])

    def job(self, new: Job | None, key: ObjectKey, now: float) -> None:
        """Check a new placement."""
        placement = new.status.placement if new is not None and not new.is_finished else None
        if new is None or placement is None:
            self._placements.pop(key, None)
        elif self._placements.get(key) != placement:
            self._placements[key] = placement
            for number, (level, nodes) in enumerate(_together(new, placement)):
                self.checked += not number
                label = self.levels.get(level, level)
                domains = {self._labels.get(node, {}).get(label) for node in nodes}
                if len(domains) != 1 or None in domains:
                    found = ", ".join(sorted(str(each) for each in domains))
                    raise PromiseBroken(
                        f"2: {len(nodes)} members of {key[1]} must be in one {level}, but are in "
                        f"{found}"
                    )

    def node(self, new: Node | None, name: str, now: float) -> None:
        """Note the labels of a node; one that is gone keeps them."""
        if new is not None:
            self._labels[name] = new.metadata.labels


def _together(job: Job, placement: Placement) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the nodes that must be in one domain, and of which level."""
    asked = job.spec.topology
    if asked is None:
        return
    if asked.required:
        yield asked.key, tuple(node for role in placement.roles for node in role.nodes)
    for role in placement.roles if asked.slice_size else ():
        for start in range(0, len(role.nodes), asked.slice_size):
            yield asked.slice_level, role.nodes[start : start + asked.slice_size]
