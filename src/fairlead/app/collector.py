"""The collector of one agent: writes its report into the NodeReport of the node.

It reads the file that the agent replaces as soon as it is notified of that, and writes what changed
at a bounded rate. A report is written as it stands, so one that is missed is made up for by the
next. It never says that an agent was heard which has ended: a report has the agent's own time.

Each node has one, and nothing makes them act at the same time: starts, retries and confirmations
are spread at random. One that knows its object does not read it again before it writes.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from fairlead.api.cluster.node_report import (
    NodeReport,
    NodeReportSpec,
    NodeReportStatus,
    ReportedTraffic,
)
from fairlead.api.kubernetes.core import Node
from fairlead.api.meta import merge_diff, to_wire
from fairlead.api.names import TUNING_PROFILE
from fairlead.api.resources import NODE_REPORTS, NODES
from fairlead.api.status import AlreadyExists, ApiError, Conflict, Forbidden, NotFound
from fairlead.api.values.egress import TrafficDirection
from fairlead.api.values.times import format_time, parse_time
from fairlead.decide.network import HELD_BACK_SECONDS_MIN
from fairlead.model.health.node_record import record_of
from fairlead.node.repairs import REQUEST_VERSION, RepairRequest, encode_request
from fairlead.node.reports.node_report import UnreadableReport, decode_report, report_status
from fairlead.node.shaping import RATES_VERSION, DestinationRate, EgressRates, TeamRate
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.logs import SILENT, Logger

#: Between two looks at the file while none is notified.
LOOK_SECONDS = 5.0
#: Between two writes, at least, on average: two may follow each other at once, so that a fault does
#: not wait for what was written before it. And at most while the agent says the same.
WRITE_SECONDS_MIN, CONFIRM_SECONDS = 5.0, 600.0
_MOMENT_SECONDS = 0.01
RETRY_SECONDS, RETRY_SECONDS_MAX = 1.0, 60.0
#: Collectors that start together, as after a loss of power, begin within so long.
START_SECONDS = 10.0
#: Retries and confirmations come earlier by up to this share of their time.
_SPREAD = 0.2
#: Between two reads of the node's shares of teams' budgets.
ASK_SECONDS = 10.0
#: Between two looks at what the agent is asked for: while its node has faults, and otherwise.
REQUEST_SECONDS_MIN, REQUEST_SECONDS = 15.0, 60.0
#: An agent keeps 1,000 faults; its report has a fourth of this at most.
REPORT_BYTES_MAX = 4 << 20
#: Begins the name of a report that nobody writes: whether it could be is tried.
_OF_ANOTHER = "of-another-node-"
#: A demand that changes by less of a power of two is no news.
_DEMAND_STEPS = 4
#: Rates of traffic that are news: of so many bits per second, and twice or half of those before.
#: They change all the time, so they alone are written once in this time.
TRAFFIC_SECONDS, _RATE_MIN, _RATE_FACTOR = 60.0, 10**6, 2


class Collector:
    """Runs until it is stopped. `read` returns what the agent last wrote; OSError.

    `tell` replaces the agent's file of shares of teams' budgets, `ask` that of requests, `choose`
    that of the tuning profile's name; OSError.
    """

    def __init__(
        self,
        client: Client,
        node: str,
        read: Callable[[], bytes],
        *,
        tell: Callable[[bytes], None] | None = None,
        ask: Callable[[bytes], None] | None = None,
        choose: Callable[[bytes], None] | None = None,
        clock: Clock,
        rng: random.Random,
        log: Logger = SILENT,
    ) -> None:
        self._rng = rng
        self._client = client
        self._node = node
        self._read = read
        self._tell = tell
        #: The spec of the report, as the agent's file has it.
        self._told: NodeReportSpec | None = None
        self._asked_at = float("-inf")
        self._hand_over = ask
        self._handed: bytes | None = None
        self._choose = choose
        self._chosen: bytes | None = None
        self._requests_at = float("-inf")
        self._clock = clock
        self._log = log
        self._stop, self._notified = asyncio.Event(), asyncio.Event()
        self._written: NodeReportStatus | None = None
        self._written_at = float("-inf")
        #: Until when the writes so far would take, one after another with the time between two.
        self._busy_until = float("-inf")
        #: The object as the latest write left it, and how old a report is that is confirmed.
        self._known: NodeReport | None = None
        self._confirm_seconds = CONFIRM_SECONDS
        self._trouble = ""
        self._knows_its_rights = False

    def stop(self) -> None:
        """End the loop at its next step."""
        self._stop.set()
        self._notified.set()

    def notify(self) -> None:
        """Look at the file soon: it was replaced."""
        self._notified.set()

    async def run(self) -> None:
        """Follow the report until stopped; what fails is tried again."""
        wait = RETRY_SECONDS
        await _await(self._stop, self._rng.uniform(0, START_SECONDS))
        while not self._stop.is_set():
            self._notified.clear()
            try:
                await self.look()
                await self.ask_agent()
                wait = RETRY_SECONDS
                self._note("")
            except (OSError, UnreadableReport) as error:
                self._note(f"The report of the agent cannot be read: {error}")
            except ApiError as error:
                self._note(f"The report cannot be written: {error}")
                wait = min(wait * 2, RETRY_SECONDS_MAX)
                await _await(self._stop, self._spread(wait))
                continue
            pause = self._pause(asyncio.get_running_loop().time())
            await _await(self._stop if pause else self._notified, pause or LOOK_SECONDS)

    def _pause(self, instant: float) -> float:
        """Return for how long nothing may be written, in seconds; 0 for less than a moment."""
        left = self._busy_until - WRITE_SECONDS_MIN - instant
        return left if left > _MOMENT_SECONDS else 0.0

    def _spread(self, seconds: float) -> float:
        return seconds * self._rng.uniform(1 - _SPREAD, 1)

    async def look(self) -> None:
        """Write the report if it says something new; OSError, UnreadableReport, ApiError."""
        now, instant = self._clock.now(), asyncio.get_running_loop().time()
        if self._pause(instant):
            return
        report = decode_report(self._read())
        new = report_status(report, node_uid="", now=now)
        if self._written is not None and not _is_news(self._written, new, self._confirm_seconds):
            await self._ask(new, instant)
            return
        await self._try_rights()
        known = self._known
        try:
            written = await self._write(known, new)
        except (Conflict, NotFound):
            if known is None:
                raise
            written = await self._write(None, new)  # it is another one, or others changed it
        self._pass_on(written.spec, now)
        self._written, self._written_at = new, instant
        self._busy_until = max(self._busy_until, instant) + WRITE_SECONDS_MIN
        self._confirm_seconds = self._spread(CONFIRM_SECONDS)

    async def ask_agent(self) -> None:
        """Hand over what the node's record asks of its agent, and its profile; ApiError, OSError.

        The record is of the Node that this collector's token names; nothing else is asked for.
        """
        instant = asyncio.get_running_loop().time()
        if (self._hand_over is None and self._choose is None) or instant < self._requests_at:
            return
        written = self._written
        is_sick = written is not None and any(each.action.asks for each in written.faults)
        wait = REQUEST_SECONDS_MIN if is_sick or self._handed else REQUEST_SECONDS
        self._requests_at = instant + self._spread(wait)
        node = await self._client.get(NODES, self._node)
        text = encode_request(_request_of(node))
        if self._hand_over is not None and text != self._handed:
            self._hand_over(text)
            self._handed = text
        name = f"{node.metadata.labels.get(TUNING_PROFILE, '')}\n".encode()
        if self._choose is not None and name != self._chosen:
            self._choose(name)
            self._chosen = name

    async def _write(self, known: NodeReport | None, new: NodeReportStatus) -> NodeReport:
        """Return the object as it is with a new status; ApiError.

        `known` is the object as it was last seen; None: it is read, or made.
        """
        self._known = None
        node = await self._client.get(NODES, self._node)  # it may have been made again
        before = await self._stored() if known is None else known
        diff = merge_diff(to_wire(before.status), to_wire(replace(new, node_uid=node.metadata.uid)))
        if diff:
            version = {"resourceVersion": before.metadata.resource_version}
            before = await self._client.patch(
                NODE_REPORTS, self._node, {"metadata": version, "status": diff},
                subresource="status",
            )  # fmt: skip
        self._known = before
        return before

    async def _ask(self, new: NodeReportStatus, instant: float) -> None:
        """Read the shares again, where the agent keeps limits; ApiError, OSError.

        Also without pods of a team with a budget: what those that come may begin with is there
        before them.
        """
        if self._tell is None or new.shaping is None or instant < self._asked_at + ASK_SECONDS:
            return
        self._asked_at = instant
        self._pass_on((await self._stored()).spec, self._clock.now())

    def _pass_on(self, spec: NodeReportSpec, now: float) -> None:
        """Write the shares for the agent, where they or their confirmation are new; OSError.

        They were confirmed when the divider says, but not in the future of this machine's clock.
        """
        at = spec.egress_at or ""
        if self._tell is None or not at or self._told == spec:
            return
        teams, ingress = (
            tuple(
                TeamRate(e.team, e.namespaces, e.bits_per_second, e.safe_bits_per_second)
                for e in spec.shares(direction)
            )
            for direction in TrafficDirection
        )
        confirmed = format_time(min(parse_time(at), now))
        destinations = tuple(
            DestinationRate(e.destination, e.direction, e.bits_per_second, e.safe_bits_per_second)
            for e in spec.destinations
        )
        rates = EgressRates(RATES_VERSION, confirmed, teams, at, ingress, destinations)
        self._tell(msgspec.json.encode(rates))
        self._told = spec

    async def _stored(self) -> NodeReport:
        """Return the object, which is made where there is none."""
        try:
            return await self._read_own()
        except NotFound:
            with suppress(AlreadyExists):
                await self._client.create(NODE_REPORTS, {"metadata": {"name": self._node}})
            return await self._read_own()

    async def _try_rights(self) -> None:
        """Warn, once, where reports of other nodes could be written with this token; ApiError.

        An installation that is older than the policy which prevents it shows nothing else of that.
        """
        if self._knows_its_rights:
            return
        with suppress(Forbidden):
            body = {"metadata": {"generateName": _OF_ANOTHER}}
            await self._client.create(NODE_REPORTS, body, dry_run=True)
            self._log.warning(
                "The token of this collector may write the reports of all nodes: install the "
                "admission policies of this version (admissionPolicies.enabled), and run the "
                "collector under the account of the installation",
                node=self._node,
            )
        self._knows_its_rights = True

    async def _read_own(self) -> NodeReport:
        """Return the object by a patch that changes nothing; ApiError.

        A right to read would be one to read the reports of all nodes; admission, which judges
        writes alone, holds each collector to the report of its node.
        """
        return await self._client.patch(NODE_REPORTS, self._node, {}, subresource="status")

    def _note(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            self._log.warning(trouble, node=self._node)
        self._trouble = trouble


async def _await(event: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set, for so long at most."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def _request_of(node: Node) -> RepairRequest | None:
    """Return what the record of a node asks of its agent; None: nothing that could be done."""
    record = record_of(node.metadata.annotations)
    if record is None or record.request is None or record.deadline is None or not record.tries:
        return None
    asked, boot_id = record.request, record.tries[-1].boot_id
    if not boot_id or asked.is_by_provider:
        return None
    return RepairRequest(
        REQUEST_VERSION, asked.id, asked.action, boot_id, record.deadline, asked.components,
        asked.takes_back,
    )  # fmt: skip


def _is_news(old: NodeReportStatus, new: NodeReportStatus, confirm_seconds: float) -> bool:
    """True for a report that says something else, or confirms one that is so old by now.

    Counts, evidence and last sights go with the next write.
    """
    if _substance(old) != _substance(new):
        return True
    if new.exports is not None and (old.exports is None or old.exports.at != new.exports.at):
        return True  # each window is added up once
    if _seconds(new) - _seconds(old) >= TRAFFIC_SECONDS and _is_other(old.traffic, new.traffic):
        return True
    return _seconds(new) - _seconds(old) >= confirm_seconds


def _substance(status: NodeReportStatus) -> object:
    faults = [
        (each.check, each.component, each.codes, each.severity, each.action, each.first_seen)
        for each in status.faults
    ]
    sources = [(each.source, each.state, each.lost) for each in status.sources]
    shaping = status.shaping and (
        status.shaping.mechanism,
        status.shaping.shares_at,
        status.shaping.classes,
        [
            (each.destination, each.direction, each.limit, _step(each.demand))
            for each in status.shaping.destinations
        ],
        [
            (direction, each.team, each.limit, _step(each.demand))
            for direction in TrafficDirection
            for each in status.shaping.lines(direction)
        ],
        [
            (each.namespace, each.name)
            for each in status.shaping.pods
            if each.held_back_seconds >= HELD_BACK_SECONDS_MIN
        ],
    )
    return (faults, sources, status.boot_id, status.left_out, status.tuning, status.answered,
            shaping)  # fmt: skip


def _is_other(old: ReportedTraffic | None, new: ReportedTraffic | None) -> bool:
    """True where some rate is far from the one that was written, or a pod has ended."""
    if old is None or new is None:
        return old is not new
    if not {each.pod for each in new.ended} <= {each.pod for each in old.ended}:
        return True
    before, after = _rates(old), _rates(new)
    for key in before.keys() | after.keys():
        less, more = sorted((before.get(key, 0), after.get(key, 0)))
        if more >= _RATE_MIN and more >= less * _RATE_FACTOR:
            return True
    return False


def _rates(traffic: ReportedTraffic) -> dict[tuple[str, ...], int]:
    return {
        (each.namespace, each.team, each.job, each.traffic_class, direction): rate
        for each in traffic.flows
        for direction, rate in (("out", each.sent_rate), ("in", each.received_rate))
    }


def _step(demand: int) -> int:
    return round(math.log2(demand + 1) * _DEMAND_STEPS)


def _seconds(status: NodeReportStatus) -> float:
    return 0.0 if status.observed_at is None else parse_time(status.observed_at)
