"""Pods of jobs that have ended: what they had sent, for a while beside their namespaces' sums.

The kernel keeps their counters, so an agent that is started again reports them as the one before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from fairlead.node.traffic.ruleset import NODE, AddressOwner, parse_name

#: For how long counters of a pod stay, of how many pods, and with how many lines.
KEPT_SECONDS = 900.0
PODS_MAX, LINES_MAX = 64, 96
#: A pod without a byte has a line of this class: nothing said would be no zero.
_NOTHING = "internal"


class EndedTrafficLine(msgspec.Struct, frozen=True, rename="camel"):
    """All bytes of a pod that has ended with a class of addresses."""

    namespace: str
    uid: str
    traffic_class: str
    sent: int
    received: int


@dataclass(slots=True)
class EndedPods:
    """Which counters of pods that have ended stay for now, and what they say."""

    lines: tuple[EndedTrafficLine, ...] = ()
    #: By pod: since when its counters are final, in the order in which they became so.
    _since: dict[AddressOwner, float] = field(default_factory=dict[AddressOwner, float])

    def surplus(
        self, finals: Mapping[str, int], jobless: Collection[AddressOwner], uptime: float
    ) -> set[str]:
        """Return the counters that need not stay any longer, and set `lines` to what the others
        say.

        `finals` are the bytes of all counters that change no more; `jobless` has pods of no job.
        """
        names: dict[AddressOwner, list[str]] = {}
        sizes: dict[AddressOwner, dict[str, list[int]]] = {}
        for name, size in finals.items():
            of = parse_name(name)
            owner = AddressOwner(of.namespace, of.uid) if of else NODE
            names.setdefault(owner, []).append(name)
            found = sizes.setdefault(owner, {})
            if of and size:
                found.setdefault(of.traffic_class, [0, 0])[of.direction == "in"] += size
        ended = {owner for owner in names if owner != NODE and owner not in jobless}
        since = {each: at for each, at in self._since.items() if each in ended}
        since |= dict.fromkeys(sorted(ended - since.keys()), uptime)
        lines = {
            owner: [EndedTrafficLine(*owner, name, *figures)
                    for name, figures in sorted(sizes[owner].items() or [(_NOTHING, [0, 0])])]
            for owner, at in since.items() if uptime - at < KEPT_SECONDS
        }  # fmt: skip
        kept = _with_room(lines)
        self.lines = tuple(line for owner in sorted(kept) for line in lines[owner])
        self._since = {each: at for each, at in since.items() if each in kept}
        return {name for owner, own in names.items() if owner not in kept for name in own}


def _with_room(lines: Mapping[AddressOwner, Sequence[EndedTrafficLine]]) -> set[AddressOwner]:
    """Return the pods that have room, of those in the order in which they ended: the namespace
    that has most loses its oldest.
    """
    spaces: dict[str, list[AddressOwner]] = {}
    for owner in reversed(list(lines)):
        spaces.setdefault(owner.namespace, []).append(owner)
    kept, count = set(lines), sum(map(len, lines.values()))
    while len(kept) > PODS_MAX or count > LINES_MAX:
        most = max(spaces, key=lambda each: (len(spaces[each]), each))
        oldest = spaces[most].pop()
        kept.remove(oldest)
        count -= len(lines[oldest])
    return kept
