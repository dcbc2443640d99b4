"""The way of one member through the gate: its own tests, those between members, and the result.

It ends within `SECONDS_MAX` whatever the others do; then its program starts. Only a verdict that a
node has failed, or a failure of its own node, keeps the program from starting.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec.structs import replace

from fairlead.api.cluster.machine_result import (
    MachineFinding,
    PairMeasure,
    SuiteResult,
    worst_outcome,
)
from fairlead.api.cluster.node_report import WHY_MAX
from fairlead.api.cluster.node_suites import Suite, gang_suite
from fairlead.api.jobs.preflight import PreflightSuite
from fairlead.api.names import (
    ENV_ATTEMPT,
    ENV_HOSTFILE,
    ENV_JOB_UID,
    ENV_MPI_KEY_FILE,
    ENV_NODE,
    ENV_ROLE,
)
from fairlead.api.names import EXIT_STOPPED as STOPPED
from fairlead.api.values.outcomes import MachineOutcome
from fairlead.member.gang_link import Gang, LinkLost, NoKeyError, join, read_key
from fairlead.node.gang_gate import pairs
from fairlead.node.gang_gate.leader import Hello, Leader, Meeting
from fairlead.node.machine_tests.runner import run_test

#: From the start of a member's test to that of its program.
SECONDS_MAX = 30.0
#: For the start of Python, and for what is written in the end.
_SLACK_SECONDS = 2.0
#: This member's node failed; or another one's.
EXIT_FAILED, EXIT_STOPPED = 1, STOPPED
_TEST = "gang"


@dataclass(frozen=True, slots=True)
class GateEnd:
    """What a member leaves, and how it ends."""

    result: SuiteResult
    code: int
    message: str


@dataclass(frozen=True, slots=True)
class _Place:
    """This member, and where the others are, in rank order."""

    gang: Gang
    node: str
    role: str
    addresses: tuple[str, ...]


def run_gate(
    wish: PreflightSuite, environment: Mapping[str, str], *, suite: Suite | None = None,
    seconds_max: float = SECONDS_MAX,
) -> GateEnd:  # fmt: skip
    """Test this node, and with the others of its gang the connections; never raises."""
    return asyncio.run(_run(wish, environment, suite or gang_suite(), seconds_max))


async def _run(
    wish: PreflightSuite, environment: Mapping[str, str], suite: Suite, seconds_max: float
) -> GateEnd:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds_max - _SLACK_SECONDS
    found = await asyncio.to_thread(_own_tests, suite)
    result = SuiteResult(suite.name, tuple(found))
    #: What all members were given to follow; without it each follows its own tests.
    stop: str | None = None
    measured, message = list[PairMeasure](), ""
    try:
        place = _place_of(environment)
        if place is not None:
            async with asyncio.timeout_at(deadline):
                is_network = wish is PreflightSuite.NETWORK
                stop, message = await _with_others(
                    place, result, measured, deadline=deadline, is_network=is_network
                )
    except Exception as error:  # noqa: BLE001 # it says nothing of the machine
        message = str(error) or "the other members did not answer in time"
        late = MachineFinding(_TEST, MachineOutcome.ERROR, message[:WHY_MAX])
        result = replace(result, measured=(*result.measured, late))
    result = replace(result, pairs=tuple(measured))
    if stop is None:
        stop = "own" if worst_outcome(result.measured) is MachineOutcome.FAILED else ""
    code = {"own": EXIT_FAILED, "other": EXIT_STOPPED}.get(stop, 0)
    return GateEnd(result, code, message)


def _own_tests(suite: Suite) -> list[MachineFinding]:
    """Run the tests of this node. Others may run beside them, so no lock keeps them apart."""
    deadline = time.monotonic() + suite.seconds
    return [run_test(each, seconds_max=deadline - time.monotonic()) for each in suite.kinds()]


async def _with_others(
    place: _Place, result: SuiteResult, measured: list[PairMeasure], *,
    deadline: float, is_network: bool,
) -> tuple[str, str]:  # fmt: skip
    """Return "" to go on, "own" where this node failed, else "other"; and the words for it.

    What was measured with others is put into `measured`, also where the rest fails.
    """
    gang = place.gang
    with pairs.listen(place.addresses[gang.rank]) as listener:

        async def meet(meeting: Meeting) -> PairMeasure:
            found = await asyncio.to_thread(_meet, gang, listener, meeting)
            measured.append(found)
            return found

        hello = Hello(place.node, place.role, result, listener.getsockname()[1])
        if gang.rank == 0:
            verdict = await Leader(
                gang, hello, meet, place.addresses, deadline, is_network=is_network
            ).lead()
            if verdict.outcome is not MachineOutcome.FAILED:
                return "", verdict.message
            return ("own" if 0 in verdict.failed else "other"), verdict.message
        link, _ = await join(gang, max(0.1, deadline - asyncio.get_running_loop().time()))
        try:
            await link.send(msgspec.to_builtins(hello))
            while True:
                match await link.receive():
                    case {"meet": dict(asked)}:
                        found = await meet(msgspec.convert(asked, Meeting))
                        await link.send({"measure": msgspec.to_builtins(found)})
                    case {"verdict": str(outcome), "message": str(text), "failed": list(failed)}:
                        if outcome != MachineOutcome.FAILED.value:
                            return "", text
                        return ("own" if gang.rank in failed else "other"), text
                    case _:
                        raise LinkLost
        finally:
            link.close()


def _meet(gang: Gang, listener: socket.socket, meeting: Meeting) -> PairMeasure:
    if not meeting.address:
        return pairs.serve(gang, listener, meeting.number, meeting.peer)
    return pairs.meet(
        gang, meeting.address, meeting.port, number=meeting.number, server=meeting.peer
    )


def _place_of(environment: Mapping[str, str]) -> _Place | None:
    """Return this member's place; None: it has no others. ValueError, OSError, NoKeyError."""
    size, rank = int(environment.get("WORLD_SIZE", "1")), int(environment.get("RANK", "0"))
    if size <= 1:
        return None
    addresses = _addresses(environment.get(ENV_HOSTFILE, ""))
    if len(addresses) != size or not 0 <= rank < size:
        raise ValueError(f"the host file has {len(addresses)} members, and the gang {size}")
    file = environment.get(ENV_MPI_KEY_FILE, "")
    if not file:
        raise NoKeyError("the gang has no key")
    uid, attempt = environment.get(ENV_JOB_UID, ""), environment.get(ENV_ATTEMPT, "")
    scope = f"preflight/{uid}/{attempt}"
    first = Gang(rank, size, addresses[0], 0, scope, read_key(Path(file)))
    # Not MASTER_PORT, which is the program's.
    gang = Gang(rank, size, addresses[0], first.ports()[1], scope, first.key)
    node = environment.get(ENV_NODE) or f"rank {rank}"
    return _Place(gang, node, environment.get(ENV_ROLE, ""), addresses)


def _addresses(file: str) -> tuple[str, ...]:
    lines: Sequence[str] = Path(file).read_text(encoding="utf-8").splitlines() if file else ()
    return tuple(line.split()[0] for line in lines if line.strip())
