"""Keeps the kernel's limits in step with the pods of the node and their teams' shares.

The kernel has all state, as for counting: which address has which class or limit is in the table,
and the rates are the classes'. So an agent that ends after any line is followed by one that goes on
from there, or by `remove_shaping`. Packets without a class pass everything, so what is killed
between two steps leaves a pod without its limit for a moment, and cuts nothing off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from fairlead.api.values.egress import TrafficDirection
from fairlead.model.egress_lease import LEASE_TIMES, EgressLeaseTimes
from fairlead.model.health.faults import Moment
from fairlead.node.shaping import devices, probe
from fairlead.node.shaping.classes import (
    HANDLE,
    LEAVES,
    ClassPlan,
    Key,
    additions,
    class_id,
    deletions,
    number_of,
    plan_classes,
    pod_key,
)
from fairlead.node.shaping.devices import ClassUse, DeviceQueues, NoSuchQueue, Route
from fairlead.node.shaping.limits import (
    EGRESS,
    INGRESS,
    EgressLimits,
    EgressRates,
    TrafficWay,
    bandwidth_limits,
    decode_rates,
    destination_limits,
    limited_classes,
    limits_of,
)
from fairlead.node.shaping.mechanism import MechanismChoice, ShapingChoice, choose, single_route
from fairlead.node.shaping.table import (
    TABLE,
    Mechanism,
    ShapingTable,
    Ways,
    changes,
    drops_in,
    parse_table,
    remove,
    team_name,
    wanted_table,
)
from fairlead.node.shaping.use import (
    PODS_MAX,
    DestinationUse,
    Flow,
    Flows,
    ShapedPodLine,
    ShapingUsage,
    TeamEgress,
    flow_lines,
)
from fairlead.node.traffic import netlink, nft
from fairlead.node.traffic.classes import PrefixList
from fairlead.node.traffic.counting import plan_of
from fairlead.node.traffic.netlink import Counted
from fairlead.node.traffic.pods import PodSource, owners, read_pods
from fairlead.node.traffic.ruleset import TABLE as COUNTING
from fairlead.node.traffic.ruleset import CountingPlan, counter_name

#: After a probe that failed, classes are left alone for so long.
RETRY_SECONDS = 600.0
#: Without a pod that has a limit, what is set stays for so many looks: pods come and go.
IDLE_LOOKS = 60
RATES_BYTES_MAX = 1 << 20
#: A limit of the table that is new lets a second of its rate through at once, so it changes at most
#: so often, and of a team's share that part is kept back.
LIMIT_SECONDS, LIMIT_PERCENT = 20.0, 95
#: Limits in force by name, and since when.
_Pace = dict[str, tuple[int, float]]


@dataclass(frozen=True, slots=True)
class ShapingOptions:
    """`pod_bits_max`: what no pod may exceed, 0 for no such limit. `rates`: the file of shares.

    `keeps_bandwidth`: Kubernetes' own annotations count as well.
    """

    mechanism: MechanismChoice = MechanismChoice.AUTO
    pod_bits_max: int = 0
    rates: str = ""
    keeps_bandwidth: bool = False
    times: EgressLeaseTimes = LEASE_TIMES


@dataclass(frozen=True, slots=True)
class ShapingFacts:
    """One look. `unreadable` says what could not be read; `taken_back` why classes were."""

    usage: ShapingUsage
    unreadable: tuple[str, ...] = ()
    taken_back: str = ""


@dataclass(slots=True)
class Shaping:
    """The shaping of one machine. Used by one thread at a time.

    `answers` asks the gateway of a route with packets of a priority; `now` has the uptime, too.
    """

    pods: PodSource
    now: Callable[[], Moment]
    own: Sequence[PrefixList] = ()
    options: ShapingOptions = ShapingOptions()
    answers: Callable[[Route, int], bool] = probe.answers
    _plan: CountingPlan = field(init=False)
    _held: ShapingTable | None = None
    _numbers: Mapping[Key, int] | None = None
    _leaf: str = ""
    _has_probed: bool = False
    _cannot_probe: bool = False
    _without_htb: str = ""
    _retry_at: float = float("inf")
    _idle: int = 0
    _rates: EgressRates | None = None
    _flows: dict[TrafficWay, Flows] = field(default_factory=dict[TrafficWay, Flows])
    _flows_at: float = 0.0
    _held_back: Mapping[str, int] = field(default_factory=dict[str, int])
    _usage: ShapingUsage | None = None
    #: Limits as they should be, and the lines of the look before.
    _last: dict[TrafficWay, EgressLimits] = field(default_factory=dict[TrafficWay, EgressLimits])
    _lines: dict[TrafficWay, tuple[TeamEgress, ...]] = field(
        default_factory=dict[TrafficWay, tuple[TeamEgress, ...]]
    )
    _paced: dict[TrafficWay, _Pace] = field(default_factory=dict[TrafficWay, _Pace])

    def __post_init__(self) -> None:
        self._plan = plan_of(self.own)

    def last_usage(self) -> ShapingUsage | None:
        """Return what the last look found; None before the first."""
        return self._usage

    def read(self) -> ShapingFacts:
        """Bring the kernel in step, and return what the limits do; OSError."""
        limits, unreadable = self._limits()
        is_sending = any(each.pods for way, each in limits.items() if way.can_wait)
        is_limited = any(each.pods for each in limits.values())
        taken_back = ""
        try:
            choice = self._choice()
            if choice.mechanism is Mechanism.HTB and is_sending:
                taken_back = self._by_classes(self._in_force(limits, Mechanism.HTB), choice)
                choice = self._choice() if taken_back else choice
            is_htb = choice.mechanism is Mechanism.HTB and is_sending
            in_force = self._in_force(limits, Mechanism.HTB if is_htb else Mechanism.LIMIT)
            if is_limited and not is_htb:
                self._by_limits(in_force)
            elif not is_limited and self._held is not None:
                self._lead(choice.mechanism, in_force, {})  # what had a limit has none any more
        except OSError:
            self._held = self._numbers = None  # read again from the kernel
            raise
        self._idle = 0 if is_limited else self._idle + 1
        if self._idle > IDLE_LOOKS or (not is_limited and self._usage is None):
            remove_shaping()
            self._held = self._numbers = None
        self._usage = self._used(in_force, choice)
        return ShapingFacts(self._usage, unreadable, taken_back or self._without_htb)

    def _limits(self) -> tuple[Ways, tuple[str, ...]]:
        """Return the limits that apply, those of before while the pods cannot be read."""
        unreadable: list[str] = []
        try:
            self._rates = self._read_rates()
        except (OSError, ValueError) as error:  # the last known rates fall by their age
            unreadable.append(f"rates: {error}")
        try:
            pods = read_pods(self.pods)
            whose, _ = owners(pods, netlink.addresses())
        except OSError as error:
            if self._usage is None:
                raise
            said = f"{error.filename or ''} {error.strerror or error}".strip()
            return self._last, (*unreadable, f"pods: {said}")
        instant, times = self.now().time, self.options.times
        found = {EGRESS: limits_of(pods, whose, self._rates, instant,
                                   pod_bits_max=self.options.pod_bits_max, times=times),
                 INGRESS: limits_of(pods, whose, self._rates, instant,
                                    direction=TrafficDirection.INGRESS, times=times)}  # fmt: skip
        if self.options.keeps_bandwidth:
            found |= bandwidth_limits(pods, whose)
        if self._rates is not None:
            destinations, unknown = destination_limits(
                pods, whose, self._rates, instant, classes=self._plan.classes, times=times,
            )  # fmt: skip
            found |= destinations
            unreadable += unknown
        self._last = found
        return found, tuple(unreadable)

    def _read_rates(self) -> EgressRates | None:
        """Return the shares of teams, None where no file is named or there is none yet."""
        if not self.options.rates:
            return None
        try:
            with Path(self.options.rates).open("rb") as file:
                data = file.read(RATES_BYTES_MAX + 1)
        except FileNotFoundError:
            return self._rates
        if len(data) > RATES_BYTES_MAX:
            raise ValueError(f"{self.options.rates} is larger than {RATES_BYTES_MAX >> 20} MiB")
        return decode_rates(data)

    def _choice(self) -> ShapingChoice:
        if self.now().uptime_seconds >= self._retry_at:
            self._without_htb, self._retry_at = "", float("inf")
        try:
            route = single_route(devices.default_routes())
            queues = None if isinstance(route, str) else devices.read_queues(route.device)
        except OSError as error:
            return choose(self.options.mechanism, str(error), None)
        return choose(self.options.mechanism, route, queues, self._without_htb)

    def _by_classes(self, limits: Ways, choice: ShapingChoice) -> str:
        """Keep limits by classes; returns why they were taken back, "" if they were not."""
        route = choice.route
        assert route is not None
        queues = devices.read_queues(route.device)
        try:
            if not queues.is_ours:
                self._has_probed = False
                devices.add_root(route.device)
                queues = devices.read_queues(route.device)
            plan = self._set_classes(limits, queues)
        except OSError as error:
            self._held = self._numbers = None  # how far it came is read from the kernel
            if isinstance(error, NoSuchQueue):
                self._without_htb = "the kernel has no HTB"
            else:
                self._without_htb, self._retry_at = f"{error}", self._retry_time()
            return self._without_htb
        if why := self._probe(route, plan):
            remove_shaping()
            self._held = self._numbers = None
            if not self.answers(route, 0):  # the gateway never answers: that says nothing
                self._cannot_probe = True
                return ""
            self._without_htb, self._retry_at = why, self._retry_time()
            return why
        for device in devices.our_devices():
            if device != route.device:
                devices.delete_root(device)
        return ""

    def _retry_time(self) -> float:
        return self.now().uptime_seconds + RETRY_SECONDS

    def _set_classes(self, limits: Ways, queues: DeviceQueues) -> ClassPlan:
        """Make classes, lead packets there, then delete what nothing leads to; OSError."""
        device = queues.device
        if self._numbers is None:
            self._numbers = self._recovered(limits, queues)
        plan = plan_classes(_sent(limits), self._numbers)
        if not self._leaf:
            self._leaf = next(iter(queues.leaves.values()), "")
        leaf = self._leaf or LEAVES[-1]
        devices.change(additions(device, plan, queues.classes, queues.leaves, leaf=leaf))
        if not self._leaf:
            pods = [class_id(n) for key, n in sorted(plan.numbers.items()) if key[0] == "pod"]
            self._leaf = devices.find_leaf(device, pods[0])
            devices.change(additions(device, plan, plan.classes, (), leaf=self._leaf))
        self._lead(Mechanism.HTB, limits, plan.ids())
        there = devices.read_queues(device)
        if any(there.classes.get(number) != each for number, each in plan.classes.items()):
            raise OSError(f"the classes of {device} are not what was set")
        devices.change(deletions(device, plan, there.classes))
        self._numbers = plan.numbers
        return plan

    def _recovered(self, limits: Ways, queues: DeviceQueues) -> dict[Key, int]:
        """Return the numbers that an agent before gave, as the kernel has them."""
        elements = self._table().elements
        numbers: dict[Key, int] = {}
        shaped = [(way.prefix, pod) for way, of in limits.items() if way.can_wait
                  for pod in of.pods]  # fmt: skip
        for prefix, pod in shaped:
            for each in pod.addresses:
                there = elements.get(f"{prefix}class{each.version}", {})
                number = number_of(there.get(str(each), ""))
                found = queues.classes.get(number)
                if found is None or bool(found.parent) != bool(pod.team):
                    continue
                if pod.team and numbers.setdefault(("team", pod.team, ""), found.parent) != (
                    found.parent
                ):
                    continue
                numbers[pod_key(pod.owner.uid, pod.team)] = number
        used = list(numbers.values())
        return numbers if len(used) == len(set(used)) else {}

    def _by_limits(self, limits: Ways) -> None:
        """Keep limits by dropping."""
        self._lead(Mechanism.LIMIT, limits, {})
        self._numbers = None
        for device in devices.our_devices():
            devices.delete_root(device)

    def _in_force(self, limits: Ways, mechanism: Mechanism) -> dict[TrafficWay, EgressLimits]:
        """Return the limits without changes that come too soon, where packets are dropped."""
        return {
            way: self._in_pace(each, way) if drops_in(way, mechanism) else each
            for way, each in limits.items()
        }

    def _in_pace(self, limits: EgressLimits, way: TrafficWay) -> EgressLimits:
        """Return the limits without changes that come too soon after those before."""
        instant, before = self.now().uptime_seconds, self._paced.get(way, {})
        after: _Pace = {}

        def paced(name: str, bits: int) -> int:
            old, since = before.get(name, (0, 0.0))
            keeps = bool(old) and (old == bits or instant - since < LIMIT_SECONDS)
            after[name] = (old, since) if keeps else (bits, instant)
            return after[name][0]

        pods = tuple(
            each._replace(bits=paced(f"pod/{each.owner.uid}", each.bits)) if each.bits else each
            for each in limits.pods
        )
        teams = {name: paced(f"team/{name}", bits) for name, bits in limits.teams.items()}
        self._paced[way] = after
        return EgressLimits(pods, teams, limits.refused)

    def _lead(self, mechanism: Mechanism, limits: Ways, classes: Mapping[Key, str]) -> None:
        """Make the table what it should be, in one transaction; OSError."""
        kept = {way: _reduced(each) if drops_in(way, mechanism) else each
                for way, each in limits.items()}  # fmt: skip
        wanted = wanted_table(self._plan, mechanism, kept, classes)
        if wanted.marker not in netlink.counters(TABLE):
            self._held = None
        nft.apply(changes(self._plan, mechanism, self._table(), wanted))
        self._held = wanted

    def _table(self) -> ShapingTable:
        if self._held is None:
            try:
                self._held = parse_table(nft.listed(TABLE))
            except (KeyError, TypeError, ValueError) as error:
                raise OSError(nft.NOT_UNDERSTOOD) from error
        return self._held

    def _probe(self, route: Route, plan: ClassPlan) -> str:
        """Ask the gateway, once, with packets of no class and of a class; "" if it answers."""
        if self._has_probed or self._cannot_probe:
            return ""
        self._has_probed = True
        if not route.gateway or "." not in route.gateway:
            return ""
        pods = [number for key, number in sorted(plan.numbers.items()) if key[0] == "pod"]
        for priority in (0, HANDLE | pods[0]):
            if not self.answers(route, priority):
                where = class_id(pods[0]) if priority else "no class"
                return f"the gateway {route.gateway} did not answer to a packet of {where}"
        return ""

    def _used(self, limits: Ways, choice: ShapingChoice) -> ShapingUsage:
        instant = self.now().uptime_seconds
        seconds = instant - self._flows_at if self._usage else 0.0
        flows = self._now(limits, choice)
        lines: dict[TrafficWay, tuple[TeamEgress, ...]] = {}
        pods: tuple[ShapedPodLine, ...] = ()
        for way, of in limits.items():
            lines[way], found = flow_lines(
                of, flows[way], self._flows.get(way, {}), seconds=seconds,
                last=self._lines.get(way, ()), held_back=self._held_back,
            )  # fmt: skip
            pods = found if way == EGRESS else pods
        self._flows, self._flows_at, self._lines = flows, instant, lines
        self._held_back = {each.uid: each.held_back_seconds for each in pods}
        destinations = tuple(
            DestinationUse(way.traffic_class, way.direction, each.limit, each.sent, each.demand,
                           each.dropped, each.pods)
            for way in limits if way not in (EGRESS, INGRESS) for each in lines[way]
        )  # fmt: skip
        usage = ShapingUsage(
            teams=lines.get(EGRESS, ()), pods=pods[:PODS_MAX],
            pods_left_out=max(0, len(pods) - PODS_MAX),
            refused=tuple(each for of in limits.values() for each in of.refused),
            shares=self._rates.shares if self._rates else "", ingress=lines.get(INGRESS, ()),
            destinations=destinations, classes=limited_classes(self._plan.classes),
        )  # fmt: skip
        ways = [way for way, each in limits.items() if each.pods]
        if not any(way.can_wait for way in ways):
            by = Mechanism.LIMIT.value if ways else ""
            return msgspec.structs.replace(usage, mechanism=by)
        is_htb = choice.mechanism is Mechanism.HTB
        return msgspec.structs.replace(
            usage, mechanism=choice.mechanism.value,
            device=choice.route.device if choice.route else "",
            queue=self._leaf if is_htb else "", why=choice.why,
        )  # fmt: skip

    def _now(self, limits: Ways, choice: ShapingChoice) -> dict[TrafficWay, Flows]:
        """Return what passed and was dropped so far, by uid of pods and "team/NAME", of ways."""
        found: dict[TrafficWay, Flows] = {}
        uses: Mapping[int, ClassUse] = {}
        is_sending = any(each.pods for way, each in limits.items() if way.can_wait)
        if is_sending and choice.mechanism is Mechanism.HTB and choice.route is not None:
            uses = devices.read_queues(choice.route.device).uses
        dropping = any(each.pods and drops_in(way, choice.mechanism)
                       for way, each in limits.items())  # fmt: skip
        dropped = netlink.counters(TABLE) if dropping else {}
        counted = netlink.counters(COUNTING) if dropping else {}
        for way, of in limits.items():
            if not of.pods:
                found[way] = {}
            elif drops_in(way, choice.mechanism):
                found[way] = _dropping(of, way, dropped, counted)
            else:
                found[way] = self._of_classes(of, uses)
        return found

    def _of_classes(self, limits: EgressLimits, uses: Mapping[int, ClassUse]) -> Flows:
        numbers = self._numbers or {}
        names = {pod_key(each.owner.uid, each.team): each.owner.uid for each in limits.pods}
        names |= {("team", name, ""): f"team/{name}" for name in limits.teams}
        return {
            name: Flow(*uses[numbers[key]])
            for key, name in names.items()
            if numbers.get(key) in uses
        }


def _dropping(
    limits: EgressLimits,
    way: TrafficWay,
    dropped: Mapping[str, Counted],
    counted: Mapping[str, Counted],
) -> Flows:
    """Return what limits that drop have let through and dropped so far, as `_now` does."""
    flows = {
        f"team/{name}": Flow(0, dropped[team_name(way, name)].packets)
        for name in limits.teams
        if team_name(way, name) in dropped
    }
    direction = "out" if way.is_egress else "in"
    for pod in limits.pods:
        passed = counted.get(counter_name(pod.owner, way.traffic_class, direction))
        lost = dropped.get(f"{way.prefix}pod/{pod.owner.namespace}/{pod.owner.uid}")
        flows[pod.owner.uid] = Flow(passed.size if passed else 0, lost.packets if lost else 0)
    return flows


def _sent(limits: Ways) -> EgressLimits:
    """Return all limits of what can wait, which have classes of one tree."""
    sent = [each for way, each in limits.items() if way.can_wait]
    teams = {name: bits for each in sent for name, bits in each.teams.items()}
    return EgressLimits(tuple(pod for each in sent for pod in each.pods), teams)


def _reduced(limits: EgressLimits) -> EgressLimits:
    """Return limits that drop, with the part of teams' shares that is kept back."""
    teams = {name: bits * LIMIT_PERCENT // 100 for name, bits in limits.teams.items()}
    return replace(limits, teams=teams)


def remove_shaping() -> bool:
    """Take back all that is set, by whichever agent; False where nothing was. OSError."""
    there = bool(netlink.counters(TABLE))
    if there:
        nft.apply(remove())
    mine = devices.our_devices()
    for device in mine:
        devices.delete_root(device)
    return there or bool(mine)
