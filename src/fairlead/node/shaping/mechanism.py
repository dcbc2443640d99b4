"""Which mechanism a machine gets, and why (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from fairlead.node.shaping.devices import DeviceQueues, Route
from fairlead.node.shaping.table import Mechanism


class MechanismChoice(Enum):
    """What the settings say of the mechanism."""

    AUTO = "auto"
    HTB = "htb"
    LIMIT = "limit"


class ShapingChoice(NamedTuple):
    """A mechanism, the default route whose device has the classes, and why it is not classes."""

    mechanism: Mechanism
    route: Route | None = None
    why: str = ""


def _limit(why: str) -> ShapingChoice:
    return ShapingChoice(Mechanism.LIMIT, None, why)


def single_route(routes: Sequence[Route]) -> Route | str:
    """Return the route to the internet if there is one device of them, else why there is none.

    Of two gateways the one of IPv4 is returned, which can be asked.
    """
    devices = sorted({each.device for each in routes})
    if not devices:
        return "there is no route to the internet"
    if len(devices) > 1:
        return (
            f"routes to the internet lead to {', '.join(devices)}: each would have the whole rate"
        )
    return max(routes, key=lambda each: "." in each.gateway)


def choose(
    setting: MechanismChoice, route: Route | str, queues: DeviceQueues | None, without_htb: str = ""
) -> ShapingChoice:
    """Return what the machine gets; `queues` are of the route's device.

    `without_htb` says why classes were given up before, "" if they were not.
    """
    if setting is MechanismChoice.LIMIT:
        return _limit("the settings say limit")
    if isinstance(route, str):
        return _limit(route)
    if without_htb or queues is None:
        return _limit(without_htb or f"the queues of {route.device} cannot be read")
    if queues.is_ours:
        return ShapingChoice(Mechanism.HTB, route)
    if not queues.is_default:
        return _limit(f"{route.device} has the root qdisc {queues.root} of another, which is kept")
    if queues.root == "mq" and setting is MechanismChoice.AUTO:
        why = "which one root qdisc would put behind one lock; shaping.mechanism: htb does so"
        return _limit(f"{route.device} has several transmit queues, {why}")
    return ShapingChoice(Mechanism.HTB, route)
