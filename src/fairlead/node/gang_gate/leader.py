"""The first member of a gang in its gate: gathers what all found, has pairs meet, and says whether
they go on.

    each member -> first    its findings, and the port on which it waits for others
    first -> the two        meet (round after round); each answers with its measure
    first -> all            the verdict: go on, or stop, and why

What is not there in time is missing, and a missing result holds nobody up for longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fairlead.api.cluster.machine_result import PAIRS_MAX, PairMeasure, SuiteResult
from fairlead.member.gang_link import Gang, Link, LinkLost, Message, Reception, listen, spawning
from fairlead.model.health.gang_check import (
    CheckedMember,
    GangVerdict,
    Pair,
    judge_gang,
    merged,
    ring,
    second_opinions,
)
from fairlead.node.gang_gate.pairs import MEETING_SECONDS_MAX

#: Before the end of all: for the verdict to reach the members.
VERDICT_SECONDS = 1.5
#: And for the meetings of all rounds, where there are some.
ROUND_SECONDS = MEETING_SECONDS_MAX + 0.5


class Hello(msgspec.Struct, frozen=True):
    """What a member says first."""

    node: str
    role: str
    result: SuiteResult
    port: int = 0


class Meeting(msgspec.Struct, frozen=True):
    """Whom a member meets; it connects where `address` is given, else it waits."""

    number: int
    peer: int
    address: str = ""
    port: int = 0


@dataclass(slots=True)
class Leader:
    """What the first member knows; `own` is itself, `meet` carries a meeting of its own out."""

    gang: Gang
    own: Hello
    meet: Any
    addresses: Sequence[str]
    deadline: float
    is_network: bool
    links: dict[int, Link] = field(default_factory=dict[int, Link])
    hellos: dict[int, Hello] = field(default_factory=dict[int, Hello])
    pairs: dict[int, list[PairMeasure]] = field(default_factory=dict[int, list[PairMeasure]])

    async def lead(self) -> GangVerdict:
        """Return the verdict, once all members that came know it; OSError: no port is free."""
        self.hellos[0] = self.own
        all_in, over = asyncio.Event(), asyncio.Event()

        async def welcome(rank: int, link: Link) -> None:
            await link.send({"welcome": self.gang.size})
            hello = msgspec.convert(dict(await link.receive()), Hello)
            if rank in self.links:
                return
            self.links[rank], self.hellos[rank] = link, hello
            if len(self.hellos) == self.gang.size:
                all_in.set()
            await over.wait()

        async with spawning() as spawn:
            spawn(Reception(self.gang, _lenient(welcome), spawn).serve(listen(self.gang)))
            await self._until(all_in)
            if self.is_network and len(self.hellos) == self.gang.size:
                await self._rounds()
            verdict = judge_gang(self._members())
            body = _verdict(verdict)
            await asyncio.gather(*(self._tell(rank, body) for rank in sorted(self.links)))
            over.set()
        return verdict

    async def _until(self, all_in: asyncio.Event) -> None:
        rounds = 4 if self.is_network else 0
        latest = self.deadline - VERDICT_SECONDS - rounds * 1.0
        try:
            async with asyncio.timeout_at(latest):
                await all_in.wait()
        except TimeoutError:
            return

    async def _rounds(self) -> None:
        for number, pairs in enumerate(ring(self.gang.size)):
            await self._round(number, pairs)
        nodes = [self.hellos[rank].node for rank in range(self.gang.size)]
        again = second_opinions(merged(self._results()), nodes)
        if again:
            await self._round(PAIRS_MAX, again)

    async def _round(self, number: int, pairs: Sequence[Pair]) -> None:
        """Have each pair meet, the lower rank as the client, unless the time is nearly over."""
        if asyncio.get_running_loop().time() > self.deadline - VERDICT_SECONDS - 1.0:
            return
        asks: list[tuple[int, Meeting]] = []
        for client, server in pairs:
            asks.append((server, Meeting(number, client)))
            address, port = self.addresses[server], self.hellos[server].port
            asks.append((client, Meeting(number, server, address, port)))
        found = await asyncio.gather(*(self._ask(rank, meeting) for rank, meeting in asks))
        for (rank, meeting), measure in zip(asks, found, strict=True):
            known = self.pairs.setdefault(rank, [])
            if len(known) < PAIRS_MAX:
                known.append(measure or PairMeasure(meeting.peer, error="no answer"))

    async def _ask(self, rank: int, meeting: Meeting) -> PairMeasure | None:
        """Return what a member measured; None: it did not answer."""
        latest = min(
            asyncio.get_running_loop().time() + ROUND_SECONDS, self.deadline - VERDICT_SECONDS
        )
        try:
            async with asyncio.timeout_at(latest):
                if rank == 0:
                    return await self.meet(meeting)
                await self.links[rank].send({"meet": msgspec.to_builtins(meeting)})
                answer = await self.links[rank].receive()
                return msgspec.convert(answer.get("measure"), PairMeasure)
        except (TimeoutError, LinkLost, msgspec.ValidationError):
            return None

    async def _tell(self, rank: int, body: Message) -> None:
        try:
            async with asyncio.timeout(VERDICT_SECONDS):
                await self.links[rank].send(body)
        except (TimeoutError, LinkLost):
            return

    def _results(self) -> dict[int, SuiteResult]:
        return {
            rank: msgspec.structs.replace(each.result, pairs=tuple(self.pairs.get(rank, ())))
            for rank, each in self.hellos.items()
        }

    def _members(self) -> list[CheckedMember]:
        results = self._results()
        missing = "it did not come in time"
        out: list[CheckedMember] = []
        for rank in range(self.gang.size):
            hello = self.hellos.get(rank)
            node, role = (hello.node, hello.role) if hello else (f"rank {rank}", "")
            out.append(CheckedMember(rank, node, role, results.get(rank), missing))
        return out


def _verdict(verdict: GangVerdict) -> Mapping[str, Any]:
    return {
        "verdict": verdict.outcome.value, "message": verdict.message,
        "failed": sorted(verdict.failed),
    }  # fmt: skip


def _lenient(welcome: Any) -> Any:
    """Return the same, where a member that says something else is one that is gone."""

    async def checked(rank: int, link: Link) -> None:
        try:
            await welcome(rank, link)
        except msgspec.ValidationError as error:
            raise LinkLost from error

    return checked
