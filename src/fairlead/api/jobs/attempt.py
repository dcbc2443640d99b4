"""The attempts of a job, as its status holds them: records, progress, and counts of members."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from fairlead.api.jobs.placement import HeldNodes
from fairlead.api.jobs.preflight import PreflightRecord
from fairlead.api.meta import Instant, Wire
from fairlead.api.values.bounds import doc

#: Members of an attempt that are written as stragglers, at most.
STRAGGLERS_MAX = 4


class Cause(Enum):
    """Whose fault an attempt's end was. Only USER counts against `restart.limit`."""

    USER = "User"
    NODE = "Node"
    INFRASTRUCTURE = "Infrastructure"


class Straggler(Wire, frozen=True):
    """A member that needs longer than the others of its role for its own part of a step."""

    member: Annotated[str, doc("The member, as ROLE-INDEX.")]
    node: Annotated[str, doc("Its node. Empty where the placement does not have it.")] = ""
    microseconds: Annotated[int, doc("Its own work in a step, as it reports it.")] = 0
    median_microseconds: Annotated[int, doc("The median of the members that were compared.")] = 0
    compared: Annotated[int, doc("Members of its role that were compared.")] = 0
    found_at: Annotated[Instant | None, doc("When it was found.")] = None
    is_suspected: Annotated[
        bool, doc("Its node is suspected until it is tested: jobs.stragglersSuspect was set.")
    ] = False

    @property
    def percent(self) -> int:
        """By how much its own work is more than the median; the gang is at most as much slower."""
        if self.median_microseconds <= 0:
            return 0
        return round(100 * (self.microseconds / self.median_microseconds - 1))


class Attempt(Wire, frozen=True):
    """One attempt at running the gang."""

    number: Annotated[int, doc("1 for the first attempt.")]
    begun_at: Annotated[
        Instant | None, doc("When the attempt had its nodes and its pods could be made.")
    ] = None
    started_at: Annotated[Instant | None, doc("When all members were running.")] = None
    may_have_late_pods: Annotated[
        bool,
        doc(
            "When all members were running, creations of pods may still have been on their way. "
            "Controllers that start later await them before they end the attempt."
        ),
    ] = False
    finished_at: Annotated[Instant | None, doc("When the attempt ended.")] = None
    cause: Annotated[
        Cause | None,
        doc(
            "Whose fault the end was: User, Node or Infrastructure. Only User counts against "
            "restart.limit."
        ),
    ] = None
    reason: Annotated[str, doc("One word for how it ended.")] = ""
    message: Annotated[str, doc("How it ended, for people.")] = ""
    exit_code: Annotated[
        int | None,
        doc(
            "Exit code of the member that ended the attempt, 128 + N for signal N. Absent where "
            "no program's end was the cause."
        ),
    ] = None
    member: Annotated[
        str,
        doc(
            "Member whose end or trouble ended the attempt, as ROLE-INDEX: the first one, where "
            "others followed. Empty where none did."
        ),
    ] = ""
    resumed_from_step: Annotated[
        int | None, doc("Step of the checkpoint that it continued from.")
    ] = None
    nodes_lost: Annotated[tuple[str, ...], doc("Nodes that were lost during the attempt.")] = ()
    saved_at: Annotated[
        Instant | None, doc("When its latest checkpoint was reported, once it ended.")
    ] = None
    team: Annotated[str, doc("Team that it counted for.")] = ""
    held: Annotated[
        tuple[HeldNodes, ...],
        doc("Its GPUs by pool and by the team that lent them, when it was placed."),
    ] = ()
    sizes: Annotated[
        dict[str, int], doc("Members of each role, in a job that may run with fewer than count.")
    ] = {}
    template_digest: Annotated[
        str,
        doc(
            "Digest of the roles and the checkpoint that the attempt began with: no pod is made "
            "from others."
        ),
    ] = ""
    preflight: Annotated[
        PreflightRecord | None,
        doc("The test of its nodes before its program started. Absent: none was asked for."),
    ] = None
    stragglers: Annotated[
        tuple[Straggler, ...],
        doc("Members that were slower than the others of their role for long, 4 at most."),
    ] = ()
    pods_version: Annotated[
        str,
        doc(
            "The newest resourceVersion among the job's pods when the attempt was closed. The "
            "scheduler gives nodes away only after it has seen the pods up to it."
        ),
    ] = ""


class Progress(Wire, frozen=True):
    """What a member reported: its latest step and the latest step that a checkpoint holds."""

    step: Annotated[int, doc("Latest step that the job reported.")] = 0
    checkpoint_step: Annotated[int | None, doc("Step a restart goes on from.")] = None
    reported_at: Annotated[Instant | None, doc("When it was reported.")] = None
    ignored_line: Annotated[str, doc("Latest line that could not be read.")] = ""
    checkpointed_at: Annotated[
        Instant | None,
        doc("When the latest checkpoint was reported. Absent: with the first report."),
    ] = None
    checkpoint_seconds: Annotated[
        int | None, doc("Seconds between the reports of the latest two checkpoints.")
    ] = None

    @property
    def saved_at(self) -> str | None:
        """The instant of the latest checkpoint, None when there is none or it is not known."""
        if self.checkpoint_step is None:
            return None
        return self.checkpointed_at or self.reported_at


class MemberCounts(Wire, frozen=True):
    """How many members are in which state in the current attempt."""

    total: Annotated[int, doc("All members of the gang.")] = 0
    pending: Annotated[int, doc("Members whose pods do not run yet.")] = 0
    running: Annotated[int, doc("Members that run.")] = 0
    succeeded: Annotated[int, doc("Members that ended well.")] = 0
    failed: Annotated[int, doc("Members that failed.")] = 0
