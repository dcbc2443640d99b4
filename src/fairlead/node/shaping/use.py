"""What limits do: rates, drops and demand between two looks (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from fairlead.api.values.egress import TrafficDirection
from fairlead.node.shaping.limits import EgressLimits, ShapedPod

#: Pods of a report: those that send most.
PODS_MAX = 20
#: A team that is held back wants more than it sends. How much more is not known, so it asks for
#: so many percent of its share at the first look (which may be chance), and at those after it.
_GROWTH_PERCENT = (125, 400, 1600, 25600)
#: What is not held back asks for a sixteenth more than it sends, so that it can grow.
_HEADROOM = 16
#: It is held back if it has dropped, sends so much of its share, or so much while packets wait.
_LIMITED_PERCENT, _WAITING_PERCENT = 98, 50


class TeamEgress(msgspec.Struct, frozen=True, rename="camel"):
    """What the pods of a team on this node send to the internet, in bits per second.

    `looks_limited` counts the looks since which it is held back.
    """

    team: str
    limit: int
    sent: int
    demand: int
    dropped: int
    pods: int
    looks_limited: int = 0


class ShapedPodLine(msgspec.Struct, frozen=True, rename="camel"):
    """What a pod sends to the internet, in bits per second; `limit` is its own, 0 for none.

    `held_back_seconds` says since when it is held at its own or its team's limit, without a break.
    """

    namespace: str
    name: str
    uid: str
    team: str
    limit: int
    sent: int
    dropped: int
    held_back_seconds: int = 0


class DestinationUse(msgspec.Struct, frozen=True, rename="camel"):
    """What all pods of this node exchange with a destination, as `TeamEgress` has it of a team."""

    destination: str
    direction: TrafficDirection
    limit: int
    sent: int
    demand: int
    dropped: int
    pods: int


class ShapingUsage(msgspec.Struct, frozen=True, rename="camel"):
    """How this machine shapes; `mechanism` is "" where nothing has a limit.

    `why` says why it is not classes, `refused` which annotations are no rate, `shares` which of the
    divider's shares are in force. `ingress` has what teams receive: `sent` is what was let in.
    `classes` are those that can be limited here.
    """

    mechanism: str = ""
    device: str = ""
    queue: str = ""
    why: str = ""
    teams: tuple[TeamEgress, ...] = ()
    pods: tuple[ShapedPodLine, ...] = ()
    pods_left_out: int = 0
    refused: tuple[str, ...] = ()
    shares: str = ""
    ingress: tuple[TeamEgress, ...] = ()
    destinations: tuple[DestinationUse, ...] = ()
    classes: tuple[str, ...] = ()


class Flow(NamedTuple):
    """Bytes that went out, packets that were dropped, and bytes that wait."""

    size: int
    drops: int
    waiting: int = 0


Flows = Mapping[str, Flow]


def flow_lines(
    limits: EgressLimits,
    now: Flows,
    before: Flows,
    *,
    seconds: float,
    last: Iterable[TeamEgress] = (),
    held_back: Mapping[str, int] = {},
) -> tuple[tuple[TeamEgress, ...], tuple[ShapedPodLine, ...]]:
    """Return a line for each team and pod; `now` and `before` are by uid, and by "team/NAME".

    `last` are the lines of the look before: their limits were in force meanwhile. `held_back` has
    the seconds for which pods were held back by then, by uid.

    A counter that is smaller than before began again.
    """

    def moved(name: str) -> Flow:
        new, old = now.get(name, Flow(0, 0)), before.get(name, Flow(0, 0))
        if new.size < old.size or new.drops < old.drops:
            old = Flow(0, 0)
        if name not in before:
            old = new
        bits = int((new.size - old.size) * 8 / seconds) if seconds > 0 else 0
        return Flow(bits, new.drops - old.drops, new.waiting)

    flows = {each.owner.uid: moved(each.owner.uid) for each in limits.pods}
    looks_before = {each.team: (each.limit, each.looks_limited) for each in last}
    teams: dict[str, TeamEgress] = {}
    for name, limit in sorted(limits.teams.items()):
        own = [each for each in limits.pods if each.team == name]
        sent = sum(flows[each.owner.uid].size for each in own)
        dropped = moved(f"team/{name}").drops + sum(flows[each.owner.uid].drops for each in own)
        waits = any(flows[each.owner.uid].waiting for each in own)
        percent = _WAITING_PERCENT if waits else _LIMITED_PERCENT
        was, looks = looks_before.get(name, (limit, 0))
        looks = looks + 1 if dropped or sent * 100 >= was * percent else 0
        demand = sent + sent // _HEADROOM
        if looks:
            demand = was * _GROWTH_PERCENT[min(looks, len(_GROWTH_PERCENT)) - 1] // 100
        most = sum(each.bits for each in own) if all(each.bits for each in own) else demand
        teams[name] = TeamEgress(name, limit, sent, min(demand, most), dropped, len(own), looks)
    pods = [
        _pod_line(each, flows[each.owner.uid], teams.get(each.team),
                  held_back.get(each.owner.uid, 0) + round(seconds))
        for each in limits.pods
    ]  # fmt: skip
    return tuple(teams.values()), tuple(sorted(pods, key=lambda each: (-each.sent, each.uid)))


def _pod_line(pod: ShapedPod, flow: Flow, team: TeamEgress | None, held: int) -> ShapedPodLine:
    """Return the line of a pod; `held` is what it has been held back for, if it still is.

    Which pod a team's limit has dropped packets of is not known: of those that send their part.
    """
    is_held = bool(flow.drops or flow.waiting)
    is_held |= bool(pod.bits) and flow.size * 100 >= pod.bits * _LIMITED_PERCENT
    if team is not None and team.looks_limited:
        is_held |= flow.size * team.pods * 2 >= team.limit
    return ShapedPodLine(
        pod.owner.namespace, pod.name, pod.owner.uid, pod.team, pod.bits, flow.size, flow.drops,
        held if is_held else 0,
    )  # fmt: skip
