"""The classes of HTB on the default route's device: one for each team, its pods' below it (pure).

A packet finds its class by its priority, which the table sets; what has none is sent at once, past
all classes. A pod's class is promised its part of the team's rate, and may use what others of
the team leave. The promises add up to the team's rate at most, since HTB keeps a promise even when
the class above has nothing left. Rates are in bits per second, of frames as the device gets them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fairlead.node.shaping.limits import EgressLimits

#: The handle of our root qdisc. The kernel numbers those without one from 8001 on.
MAJOR = 0x7A1D
HANDLE = MAJOR << 16
ROOT = f"{MAJOR:x}:"
MINOR_MAX = 0xFFFE
#: Queues below a class, the best first: each connection of a pod has its part. The last is none
#: such, and is always there.
LEAVES = ("fq_codel", "fq", "sfq", "bfifo")
#: What may wait in a queue that is not fair, so that what comes behind is not late by half a
#: second, as with the kernel's own 1,000 packets; at least one packet before it is segmented, and
#: at most what the kernel's number of 32 bits holds.
_WAITING_SECONDS, _WAITING_BYTES_MIN, _WAITING_BYTES_MAX = 0.05, 3 << 15, 1 << 30
#: Bytes that a class sends in its turn; left to itself, the kernel takes a part of the rate and
#: warns of it.
_QUANTUM_MIN, _QUANTUM_MAX = 1_514, 60_000
_BITS_MIN = 8
#: What a class may send at once: 5 ms of its rate. Less than a timer's period would be lost.
_BURST_SECONDS, _BURST_BYTES_MIN, _BURST_BYTES_MAX = 0.005, 1 << 14, 1 << 30

#: What a class is of: ("team", name, "") or ("pod", uid, team).
Key = tuple[str, str, str]


class HtbClass(NamedTuple):
    """A class: its parent's number, 0 for none, the rate that it is promised, and its most."""

    parent: int
    rate: int
    ceil: int


@dataclass(frozen=True, slots=True)
class ClassPlan:
    """Classes by number, and what each is of."""

    classes: Mapping[int, HtbClass] = field(default_factory=dict[int, HtbClass])
    numbers: Mapping[Key, int] = field(default_factory=dict[Key, int])

    def ids(self) -> dict[Key, str]:
        """Return the id of each pod's class, as nft and tc write it."""
        return {key: class_id(n) for key, n in self.numbers.items() if key[0] == "pod"}


def class_id(number: int) -> str:
    """Return the id of a class, such as 7a1d:2."""
    return f"{MAJOR:x}:{number:x}"


def number_of(text: str) -> int:
    """Return the number of a class of ours by its id, 0 for others."""
    major, _, minor = text.partition(":")
    try:
        return int(minor, 16) if int(major, 16) == MAJOR else 0
    except ValueError:
        return 0


def pod_key(uid: str, team: str) -> Key:
    """Return the key of a pod's class: another when its team or destination is."""
    return "pod", uid, team


def plan_classes(limits: EgressLimits, before: Mapping[Key, int]) -> ClassPlan:
    """Return the classes for limits; what had a number keeps it. OSError for too many.

    The kernel keeps whole bytes per second.
    """
    keys: list[Key] = [("team", name, "") for name in sorted(limits.teams)]
    keys += [pod_key(each.owner.uid, each.team) for each in limits.pods]
    numbers = {key: before[key] for key in keys if key in before}
    # Those of before stay free until their classes are deleted: packets may be in them.
    taken = set(before.values())
    free = (n for n in range(1, MINOR_MAX) if n not in taken)
    for key in keys:
        if key not in numbers and (number := next(free, 0)):
            numbers[key] = number
    if len(numbers) < len(keys):
        raise OSError(f"only {MINOR_MAX:,} classes can be kept")
    members = Counter(each.team for each in limits.pods if each.team)
    classes = {
        numbers["team", name, ""]: HtbClass(0, _whole(bits), _whole(bits))
        for name, bits in limits.teams.items()
    }
    for each in limits.pods:
        number = numbers[pod_key(each.owner.uid, each.team)]
        if not each.team:
            classes[number] = HtbClass(0, _whole(each.bits), _whole(each.bits))
            continue
        share = limits.teams[each.team]
        most = min(share, each.bits or share)
        promised = _whole(min(most, share // members[each.team]))
        classes[number] = HtbClass(numbers["team", each.team, ""], promised, _whole(most))
    return ClassPlan(classes, numbers)


def _whole(bits: int) -> int:
    return max(_BITS_MIN, bits - bits % 8)


def additions(
    device: str, plan: ClassPlan, there: Mapping[int, HtbClass], leaves: Iterable[int], *, leaf: str
) -> list[str]:
    """Return lines of `tc -batch` that make or change classes, and give pods' classes a queue.

    `leaves` are the numbers of the classes that have their queue.
    """
    pods = {n for key, n in plan.numbers.items() if key[0] == "pod"}
    lines: list[str] = []
    changed = {number for number, each in plan.classes.items() if there.get(number) != each}
    for number, each in sorted(plan.classes.items(), key=lambda item: (item[0] in pods, item[0])):
        if number in changed:
            burst = int(each.ceil / 8 * _BURST_SECONDS)
            burst = min(max(burst, _BURST_BYTES_MIN), _BURST_BYTES_MAX)
            parent = class_id(each.parent) if each.parent else ROOT
            quantum = min(max(each.rate // 80, _QUANTUM_MIN), _QUANTUM_MAX)
            lines.append(
                f"class replace dev {device} parent {parent} "
                f"classid {class_id(number)} htb rate {each.rate}bit ceil {each.ceil}bit "
                f"burst {burst}b cburst {burst}b quantum {quantum}"
            )
    new = pods - set(leaves)
    if leaf == LEAVES[-1]:
        new |= pods & changed
    lines += [
        f"qdisc replace dev {device} parent {class_id(number)} {_queue(leaf, plan.classes[number])}"
        for number in sorted(new)
    ]
    return lines


def _queue(leaf: str, of: HtbClass) -> str:
    if leaf != LEAVES[-1]:
        return leaf
    waiting = int(of.ceil / 8 * _WAITING_SECONDS)
    return f"{leaf} limit {min(max(waiting, _WAITING_BYTES_MIN), _WAITING_BYTES_MAX)}"


def deletions(device: str, plan: ClassPlan, there: Mapping[int, HtbClass]) -> list[str]:
    """Return lines of `tc -batch` that delete classes that nothing leads to any more."""
    gone = [number for number in there if number not in plan.classes]
    gone.sort(key=lambda number: (there[number].parent == 0, number))  # those below first
    return [f"class del dev {device} classid {class_id(number)}" for number in gone]
