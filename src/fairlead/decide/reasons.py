"""The closed set of reasons why a job is where it is, each with its outcome and message template.

Free-text reasons do not exist: a verdict is a reason plus the numbers in `facts`, and every surface
(`fairlead why`, conditions, events, metrics) renders the same pair. A template names only facts
that its producer always supplies; a unit test renders every one of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum, Flag, auto
from typing import Self

from fairlead.api.values.quantity import humanize
from fairlead.decide.words import duration, resource_word, room_words


class Outcome(Enum):
    """What a verdict means for the one who waits, from best to worst."""

    PLACED = "Placed"
    WAITING = "Waiting"  # time alone, or the end of another job, may help
    BLOCKED = "Blocked"  # somebody must act
    IMPOSSIBLE = "Impossible"  # the request itself must change


class Trait(Flag):
    """What follows from a reason, for those who read verdicts."""

    #: More nodes could place the job: pools buy them.
    NODES_HELP = auto()
    #: Enough of what it asks for is free, but it may not use that, or not as it lies.
    HAS_ROOM = auto()
    #: When it starts follows from the ends of other jobs, or from the time of nodes.
    HAS_FORECAST = auto()
    #: It waits for the time of some nodes.
    IS_TIMED = auto()
    #: A place is kept for it, which others leave.
    KEEPS_PLACE = auto()
    #: Those are jobs of lower priority.
    HAS_VICTIMS = auto()
    #: The fact `job` names the job ahead that it waits for.
    HAS_JOB_AHEAD = auto()
    #: It would fit but for jobs at the head of the queue.
    WOULD_FIT = auto()
    #: Room is kept for the job ahead until the fact `starts_by`.
    ROOM_KEPT = auto()
    #: It waits for its restart without nodes.
    BACKS_OFF = auto()
    #: Only the scheduler can know it: it is explained as it was written.
    WRITTEN_ONLY = auto()


_NONE = Trait(0)
_NOMINATED = Trait.KEEPS_PLACE | Trait.WRITTEN_ONLY
_CAPACITY = Trait.NODES_HELP | Trait.HAS_FORECAST
_LIMIT = Trait.HAS_ROOM | Trait.HAS_FORECAST | Trait.WRITTEN_ONLY
_BEHIND = _CAPACITY | Trait.HAS_ROOM | Trait.HAS_JOB_AHEAD | Trait.WRITTEN_ONLY


class Reason(Enum):
    """Why. CamelCase, stable, used as a metric label and in conditions.

    `severity` orders reasons when several hold (higher wins); `traits` are what others do because
    of it; `template` is a str.format text.
    """

    _value_: str
    outcome: Outcome
    severity: int
    traits: Trait
    template: str

    def __new__(
        cls, value: str, meaning: tuple[Outcome, Trait], severity: int, template: str
    ) -> Self:
        """Make a member."""
        reason = object.__new__(cls)
        reason._value_ = value
        reason.outcome, reason.traits = meaning
        reason.severity, reason.template = severity, template
        return reason

    def has(self, trait: Trait) -> bool:
        """True when this follows from the reason."""
        return trait in self.traits

    @staticmethod
    def of(value: str) -> Reason | None:
        """Return the reason that is written so; None for one that this version does not know."""
        return _BY_VALUE.get(value)

    PLACED = "Placed", (Outcome.PLACED, _NONE), 0, "placed on {nodes_used} nodes"
    PENDING_EVALUATION = (
        "PendingEvaluation", (Outcome.WAITING, _NONE), 10,
        "not evaluated yet; {ahead} jobs are ahead in the queue",
    )  # fmt: skip
    BACKING_OFF = (
        "BackingOff", (Outcome.WAITING, Trait.BACKS_OFF), 20,
        "restarts as attempt {attempt} after a back-off of {backoff_seconds}",
    )  # fmt: skip
    RESTARTING = (
        "Restarting", (Outcome.WAITING, _NONE), 20,
        "{cause}; it restarts once its members have ended: {members} have not",
    )  # fmt: skip
    STOPPING = (
        "Stopping", (Outcome.WAITING, _NONE), 20,
        "{cause}; it ends once its members have ended: {members} have not",
    )  # fmt: skip
    NOT_BEFORE = "NotBefore", (Outcome.WAITING, _NONE), 20, "may not start before {until}"
    DEADLINE_MISSED = (
        "DeadlineMissed", (Outcome.IMPOSSIBLE, _NONE), 100,
        "with its time limit of {limit_seconds} it can no longer end by {until}, its deadline",
    )  # fmt: skip
    DEPENDENCY = "Dependency", (Outcome.WAITING, _NONE), 20, "waits for job {job} to be {state}"
    DEPENDENCY_MISSING = (
        "DependencyMissing", (Outcome.WAITING, _NONE), 20,
        "waits for job {job} to be {state}, but there is no such job at present; submit it, or "
        "cancel this one",
    )  # fmt: skip
    DEPENDENCY_CYCLE = (
        "DependencyCycle", (Outcome.BLOCKED, _NONE), 60,
        "waits for itself: {path}; cancel one of these jobs, or change its spec.after",
    )  # fmt: skip
    GROUP_INCOMPLETE = (
        "GroupIncomplete", (Outcome.WAITING, _NONE), 20,
        "{members_present} of {members} members exist; {owner} creates the others",
    )  # fmt: skip
    GROUP_HELD = (
        "GroupHeld", (Outcome.WAITING, _NONE), 20,
        "all {members} members of {owner} exist, but another controller holds some of them by its "
        "own scheduling gate and has to let them in first",
    )  # fmt: skip
    REPAIRING = (
        "Repairing", (Outcome.WAITING, Trait.WRITTEN_ONLY), 30,
        "keeps the nodes of {members_kept} of {members} members; no replacement yet for "
        "{nodes_lost} nodes, lost or cordoned",
    )  # fmt: skip
    PREEMPTING = (
        "Preempting", (Outcome.WAITING, _NOMINATED | Trait.HAS_VICTIMS), 25,
        "its place on {nodes} nodes is kept for it; waits for {victims} jobs of lower priority to "
        "end there",
    )  # fmt: skip
    WAITING_FOR_CHECKPOINT = (
        "WaitingForCheckpoint", (Outcome.WAITING, _NOMINATED | Trait.HAS_VICTIMS), 25,
        "its place on {nodes} nodes is kept for it; waits for {victims} jobs of lower priority to "
        "end there, {saving} of them after a checkpoint",
    )  # fmt: skip
    DEFRAGMENTING = (
        "Defragmenting", (Outcome.WAITING, _NOMINATED), 25,
        "its place on {nodes} nodes is kept for it; waits for {moves} jobs to leave it for other "
        "nodes, which are kept for them",
    )  # fmt: skip
    RESERVED = (
        "Reserved", (Outcome.WAITING, _NOMINATED), 25,
        "its place on {nodes} nodes is kept for it; waits for the last pods there to end",
    )  # fmt: skip
    PLACE_WITHDRAWN = (
        "PlaceWithdrawn", (Outcome.WAITING, _NONE), 20,
        "its place of {placed_at} was not confirmed before node {node} ceased to take pods; it is "
        "placed again",
    )  # fmt: skip
    PREEMPTED = (
        "Preempted", (Outcome.WAITING, _NONE), 30,
        "gives its nodes back for job {job} of priority {priority}",
    )  # fmt: skip
    MOVED = (
        "Moved", (Outcome.WAITING, _NONE), 30,
        "moves to other nodes, which are kept for it, to make room for job {job}",
    )  # fmt: skip
    CONSOLIDATED = (
        "Consolidated", (Outcome.WAITING, _NONE), 30,
        "moves to other nodes, which are kept for it, so that {nodes} nodes of its pool can be "
        "removed: {shown}",
    )  # fmt: skip
    BEHIND_EARLIER_JOB = (
        "BehindEarlierJob", (Outcome.WAITING, _BEHIND | Trait.WOULD_FIT), 35,
        "fits now, but job {job} is ahead in the queue and needs the room",
    )  # fmt: skip
    BEHIND_RESERVATION = (
        "BehindReservation", (Outcome.WAITING, _BEHIND | Trait.WOULD_FIT | Trait.ROOM_KEPT), 35,
        "fits now, but the room is kept for job {job}, which is ahead in the queue and starts by "
        "{starts_by}; jobs whose time limits end before may start now",
    )  # fmt: skip
    BEHIND_EXPECTED_START = (
        "BehindExpectedStart", (Outcome.WAITING, _BEHIND | Trait.WOULD_FIT | Trait.ROOM_KEPT), 35,
        "fits now, but the room is kept for job {job}, which is ahead in the queue and is expected "
        "to start by {starts_by}, going by the run times of past jobs; jobs that end before by "
        "their time limits, or without one by the run times of jobs like them, may start now",
    )  # fmt: skip
    BEHIND_TEAM_JOB = (
        "BehindTeamJob", (Outcome.WAITING, _BEHIND), 35,
        "its team starts jobs in strict order, and job {job}, which is ahead, waits for nodes that "
        "it could use",
    )  # fmt: skip
    AWAITING_QUOTA = (
        "AwaitingQuota", (Outcome.WAITING, Trait.HAS_ROOM | Trait.WRITTEN_ONLY), 40,
        "the quota of its namespace has no room for it, so it keeps no nodes from other jobs: "
        "{message}",
    )  # fmt: skip
    INSUFFICIENT_CAPACITY = (
        "InsufficientCapacity", (Outcome.WAITING, _CAPACITY), 40,
        "needs {asked} {resource}, {free} of {total} are free: {short} short",
    )  # fmt: skip
    FRAGMENTED = (
        "Fragmented", (Outcome.WAITING, _CAPACITY | Trait.HAS_ROOM), 45,
        "{free} {resource} are free, but in pieces: room for {members_fit} of {members} members",
    )  # fmt: skip
    TOPOLOGY_UNAVAILABLE = (
        "TopologyUnavailable", (Outcome.WAITING, _CAPACITY | Trait.HAS_ROOM), 45,
        "no {topology_key} has room for all {members} members; the best has room for {members_fit}",
    )  # fmt: skip
    SLICES_UNAVAILABLE = (
        "SlicesUnavailable", (Outcome.WAITING, _CAPACITY | Trait.HAS_ROOM), 45,
        "in slices of {slice_size} members, each in one {slice_level}, {within} has room for "
        "{members_fit} of {members} members",
    )  # fmt: skip
    AWAITING_PREFERRED = (
        "AwaitingPreferred", (Outcome.WAITING, Trait.HAS_ROOM | Trait.HAS_FORECAST), 30,
        "waits for one {topology_key} until {until}, then takes {then}; the best of {domains} has "
        "room for {members_fit} of {members} members",
    )  # fmt: skip
    NEIGHBOURS_IN_THE_WAY = (
        "NeighboursInTheWay", (Outcome.WAITING, Trait.NODES_HELP | Trait.HAS_ROOM), 45,
        "there are free nodes, but {rules} of its pods and of those that run allow only "
        "{members_fit} of {members} members",
    )  # fmt: skip
    VOLUMES_IN_THE_WAY = (
        "VolumesInTheWay", (Outcome.WAITING, _CAPACITY | Trait.HAS_ROOM), 45,
        "there are free nodes, but from those that reach its volumes ({reach}) there is room for "
        "{members_fit} of {members} members",
    )  # fmt: skip
    MAINTENANCE = (
        "Maintenance", (Outcome.WAITING, _CAPACITY | Trait.IS_TIMED), 50,
        "it cannot start on {nodes} nodes, in whose maintenance it could still run; the first one "
        "is {window}",
    )  # fmt: skip
    RESERVED_FOR_OTHERS = (
        "ReservedForOthers", (Outcome.WAITING, _CAPACITY | Trait.IS_TIMED), 50,
        "it cannot start on {nodes} nodes, which are reserved while it could still run; the first "
        "reservation to end is {reservation}, {window}",
    )  # fmt: skip
    AWAITING_RESERVATION = (
        "AwaitingReservation", (Outcome.WAITING, Trait.HAS_FORECAST | Trait.IS_TIMED), 50,
        "waits for its reservation {reservation} of {nodes} nodes, {window}",
    )  # fmt: skip
    RESERVATION_ENDED = (
        "ReservationEnded", (Outcome.BLOCKED, _NONE), 60,
        "its reservation {reservation} is over ({window}): let the job name another one, or none",
    )  # fmt: skip
    NO_SUCH_RESERVATION = (
        "NoSuchReservation", (Outcome.BLOCKED, _NONE), 60,
        "there is no reservation {reservation}: let the job name another one, or none; fairlead "
        "reservations lists them",
    )  # fmt: skip
    NODES_UNAVAILABLE = (
        "NodesUnavailable", (Outcome.WAITING, Trait.NODES_HELP), 50,
        "it cannot use {which} for now; the others, empty, hold {members_fit} of {members} members",
    )  # fmt: skip
    NO_SUCH_ELEMENT = (
        "NoSuchElement", (Outcome.BLOCKED, _NONE), 60,
        "waits for job {job}, but that array does not have all of these elements; cancel this job, "
        "or let it wait for others",
    )  # fmt: skip
    DEPENDENCY_FAILED = (
        "DependencyFailed", (Outcome.BLOCKED, _NONE), 60,
        "starts only after job {job} is {wanted}, but it ended as {state}",
    )  # fmt: skip
    ARRAY_MISSING = (
        "ArrayMissing", (Outcome.WAITING, _NONE), 20,
        "it is an element of array {array}, which does not exist at present",
    )  # fmt: skip
    ELEMENT_ENDED = (
        "ElementEnded", (Outcome.IMPOSSIBLE, _NONE), 100,
        "element {index} of array {array} has ended already",
    )  # fmt: skip
    ELEMENT_REFUSED = (
        "ElementRefused", (Outcome.BLOCKED, _NONE), 60,
        "the API server refuses the job of the next element; it is tried again by itself: "
        "{message}",
    )  # fmt: skip
    HELD = "Held", (Outcome.BLOCKED, _NONE), 60, "waits until it is released (fairlead release)"
    QUOTA_EXCEEDED = (
        "QuotaExceeded", (Outcome.BLOCKED, Trait.HAS_ROOM), 60,
        "a quota refuses its pods; it is tried again by itself: {message}",
    )  # fmt: skip
    POLICY_REFUSED = (
        "PolicyRefused", (Outcome.BLOCKED, _NONE), 60,
        "a policy refuses its pods; it is tried again by itself: {message}",
    )  # fmt: skip
    POD_HELD_BACK = (
        "PodHeldBack", (Outcome.WAITING, _NONE), 50,
        "the API server takes none of its pods now: {message}",
    )  # fmt: skip
    PLACE_REFUSED = (
        "PlaceRefused", (Outcome.WAITING, Trait.BACKS_OFF), 50,
        "its place was refused {times} times in a row, so it gives its nodes back and is tried "
        "again as attempt {attempt} at {until}: {message}",
    )  # fmt: skip
    PRIORITY_CLASS_MISSING = (
        "PriorityClassMissing", (Outcome.BLOCKED, Trait.WRITTEN_ONLY), 60,
        "there is no PriorityClass {priority_class}; kubectl get priorityclasses lists those there "
        "are",
    )  # fmt: skip
    PRIORITY_CLASS_RESERVED = (
        "PriorityClassReserved", (Outcome.BLOCKED, Trait.WRITTEN_ONLY), 60,
        "PriorityClass {priority_class} is reserved for the cluster's own components",
    )  # fmt: skip
    CLAIM_MISSING = (
        "ClaimMissing", (Outcome.BLOCKED, Trait.WRITTEN_ONLY), 60,
        "there is no PersistentVolumeClaim {claim} in its namespace: create it, or let the job "
        "name another one",
    )  # fmt: skip
    CLAIM_DELETED = (
        "ClaimDeleted", (Outcome.BLOCKED, Trait.WRITTEN_ONLY), 60,
        "PersistentVolumeClaim {claim} is being deleted, so no new pod gets it: create it again "
        "once it is gone, or let the job name another one",
    )  # fmt: skip
    CLAIM_LOST = (
        "ClaimLost", (Outcome.BLOCKED, Trait.WRITTEN_ONLY), 60,
        "volume {volume} of PersistentVolumeClaim {claim} does not exist any more: restore the "
        "volume, or let the job name another claim",
    )  # fmt: skip
    CLAIM_UNBOUND = (
        "ClaimUnbound", (Outcome.BLOCKED, Trait.WRITTEN_ONLY), 60,
        "PersistentVolumeClaim {claim} of storage class {storage_class} has no volume yet, and "
        "that class waits for no pod; kubectl describe pvc {claim} says what its volume waits for",
    )  # fmt: skip
    CLAIM_FOR_ONE_POD = (
        "ClaimForOnePod", (Outcome.IMPOSSIBLE, Trait.WRITTEN_ONLY), 75,
        "PersistentVolumeClaim {claim} is ReadWriteOncePod, so one pod may use it, and {members} "
        "members ask for it: let each have a claim of its own, or all one that is ReadWriteMany",
    )  # fmt: skip
    CLAIM_IN_USE = (
        "ClaimInUse", (Outcome.WAITING, Trait.WRITTEN_ONLY), 40,
        "PersistentVolumeClaim {claim} is ReadWriteOncePod, and {user} uses it or comes first",
    )  # fmt: skip
    NO_VOLUME = (
        "NoVolume", (Outcome.BLOCKED, Trait.WRITTEN_ONLY), 60,
        "no free volume of storage class {storage_class} will do for PersistentVolumeClaim "
        "{claim}, and that class makes none: create a volume, or free one",
    )  # fmt: skip
    DEVICE_CLAIM_MISSING = (
        "DeviceClaimMissing", (Outcome.BLOCKED, Trait.WRITTEN_ONLY), 60,
        "there is no {claim} in its namespace, or it is being deleted: create it, or let the job "
        "name another one",
    )  # fmt: skip
    DEVICE_CLASS_MISSING = (
        "DeviceClassMissing", (Outcome.BLOCKED, Trait.WRITTEN_ONLY), 60,
        "{claim} asks for devices of class {device_class}, and there is no such DeviceClass; "
        "kubectl get deviceclasses lists those there are",
    )  # fmt: skip
    DEVICE_CLAIM_SHARED = (
        "DeviceClaimShared", (Outcome.BLOCKED, Trait.WRITTEN_ONLY), 60,
        "{claim} has no devices yet, and several pods share it: let one pod that uses it run "
        "first, or give each member a claim of its own with a ResourceClaimTemplate",
    )  # fmt: skip
    DEVICE_CLAIM_UNSUPPORTED = (
        "DeviceClaimUnsupported", (Outcome.BLOCKED, Trait.WRITTEN_ONLY), 60,
        "{claim} cannot be planned: {path}: {why}",
    )  # fmt: skip
    DEVICES_UNMATCHED = (
        "DevicesUnmatched", (Outcome.WAITING, Trait.WRITTEN_ONLY), 20,
        "devices are being matched with {claim}, whose kind is new here")  # fmt: skip
    BORROW_LIMIT = (
        "BorrowLimit", (Outcome.WAITING, Trait.HAS_ROOM | Trait.WRITTEN_ONLY), 40,
        "would fit on idle nodes of other teams, but a limit on borrowing or lending is reached; "
        "team {team} borrows {borrowed} nodes",
    )  # fmt: skip
    BORROW_BACK_OFF = (
        "BorrowBackOff", (Outcome.WAITING, _CAPACITY | Trait.HAS_ROOM), 40,
        "would fit on idle nodes of other teams, but gave way {times} times in a row on such nodes "
        "without a new checkpoint; borrows again at {until}",
    )  # fmt: skip
    RUNNING_LIMIT = (
        "RunningLimit", (Outcome.WAITING, _LIMIT), 40,
        "{account} has nodes for {running} jobs, of at most {limit}; it may start when one of them "
        "ends",
    )  # fmt: skip
    GPU_LIMIT = (
        "GPULimit", (Outcome.WAITING, _LIMIT), 40,
        "asks for {gpus} GPUs; {account} holds {gpus_held} of at most {limit}",
    )  # fmt: skip
    GPU_BUDGET = (
        "GPUBudget", (Outcome.WAITING, Trait.HAS_ROOM | Trait.WRITTEN_ONLY), 40,
        "team {team} has used its budget of {limit} GPU-hours; what it used counts half after "
        "{days} days, so it may start once it counts less",
    )  # fmt: skip
    QUEUE_LIMIT = (
        "QueueLimit", (Outcome.WAITING, Trait.HAS_ROOM | Trait.WRITTEN_ONLY), 40,
        "{account} may have {limit} {kind} jobs; it joins the queue when one of them has {event}",
    )  # fmt: skip
    TEAM_NOT_OPEN = (
        "TeamNotOpen", (Outcome.BLOCKED, Trait.WRITTEN_ONLY), 60,
        "its namespace does not belong to team {team}; open to it: {open}",
    )  # fmt: skip
    TEAM_AMBIGUOUS = (
        "TeamAmbiguous", (Outcome.BLOCKED, Trait.WRITTEN_ONLY), 60,
        "its namespace belongs to several teams, so it must name one in spec.team: {open}",
    )  # fmt: skip
    GROUP_UNGATED = (
        "GroupUngated", (Outcome.BLOCKED, _NONE), 60,
        "{ungated} of its pods were created without a gate, so the group cannot start together: "
        "delete them, and {owner} creates new ones",
    )  # fmt: skip
    NO_MATCHING_NODE = (
        "NoMatchingNode", (Outcome.IMPOSSIBLE, Trait.NODES_HELP), 70,
        "none of {nodes} nodes matches the node selector and tolerations of role {role}",
    )  # fmt: skip
    VOLUMES_OUT_OF_REACH = (
        "VolumesOutOfReach", (Outcome.IMPOSSIBLE, Trait.NODES_HELP), 75,
        "{nodes} nodes match role {role}, but its volumes can be reached from none of them, only "
        "from nodes with {reach}",
    )  # fmt: skip
    EXCEEDS_CLUSTER = (
        "ExceedsCluster", (Outcome.IMPOSSIBLE, Trait.NODES_HELP), 80,
        "needs room for {members} members; all matching nodes, empty, hold {members_fit}",
    )  # fmt: skip
    TOO_FEW_APART = (
        "TooFewApart", (Outcome.IMPOSSIBLE, Trait.NODES_HELP), 82,
        "{rules} of its pods allow only {members_fit} of {members} members on all matching nodes, "
        "empty",
    )  # fmt: skip
    TOO_FEW_IN_REACH = (
        "TooFewInReach", (Outcome.IMPOSSIBLE, Trait.NODES_HELP), 82,
        "the nodes that reach its volumes ({reach}), empty, hold {members_fit} of {members} "
        "members",
    )  # fmt: skip
    NO_DOMAIN_FITS = (
        "NoDomainFits", (Outcome.IMPOSSIBLE, Trait.NODES_HELP), 85,
        "needs room for {members} members in one {topology_key}; the largest of {domains}, empty, "
        "holds {members_fit}",
    )  # fmt: skip
    NO_SLICES_FIT = (
        "NoSlicesFit", (Outcome.IMPOSSIBLE, Trait.NODES_HELP), 85,
        "in slices of {slice_size} members, each in one {slice_level}, {within}, empty, has room "
        "for {members_fit} of {members} members",
    )  # fmt: skip
    NO_SUCH_TOPOLOGY = (
        "NoSuchTopology", (Outcome.IMPOSSIBLE, Trait.NODES_HELP), 86,
        "needs its {members} members in one {topology_key}, but no node has that label",
    )  # fmt: skip
    NO_NODE_SHAPE_FITS = (
        "NoNodeShapeFits", (Outcome.IMPOSSIBLE, Trait.NODES_HELP), 90,
        "a member of role {role} needs {asked} {resource}; the largest node has {largest}",
    )  # fmt: skip
    INVALID_REQUEST = "InvalidRequest", (Outcome.IMPOSSIBLE, _NONE), 100, "invalid request: {field}"
    SET_ASIDE = (
        "SetAside", (Outcome.IMPOSSIBLE, _NONE), 110,
        "set aside, as it cannot be {stage}: {fault}; it is looked at again when it changes",
    )  # fmt: skip


_BY_VALUE = {reason.value: reason for reason in Reason}

#: Facts that are amounts of the fact `resource`, in base units.
AMOUNT_FACTS = ("asked", "free", "total", "short", "largest")
#: How many spares would hold the job beside other nodes: a fact that any reason may have.
SPARES = "spares"
#: On how many of the `nodes` that it may use a device is free: of devices that claims ask for.
FREE_NODES = "free_nodes"
#: How many nodes with room belong to teams that the job is not of, and which: facts of any reason.
TEAM_NODES, OWNERS = "team_nodes", "owners"

#: A counted noun that loses its plural.
_ONE = re.compile(r"(?<![\d.])1 (node|member|job|GPU|CPU|GPU-hour|pod|volume|device)s\b")


def singular(text: str) -> str:
    """Return a text with "1 nodes" as "1 node", and so on."""
    return _ONE.sub(r"1 \1", text)


def render(reason: Reason, facts: Mapping[str, int | float | str | bool]) -> str:
    """Return the message: the template with the facts, amounts in units that people read.

    KeyError when the template names a fact that is not there.
    """
    shown = dict(facts)
    resource = shown.get("resource")
    if isinstance(resource, str):
        shown["resource"] = resource_word(resource)
        for name in AMOUNT_FACTS:
            amount = shown.get(name)
            if isinstance(amount, int):
                shown[name] = humanize(resource, amount)
    for name, seconds in shown.items():
        if name.endswith("_seconds") and isinstance(seconds, int | float):
            shown[name] = duration(seconds)
    text = singular(reason.template.format_map(shown))
    if FREE_NODES in shown:
        text += f"; {room_words(str(resource), shown[FREE_NODES], shown)}"
    if count := shown.get(SPARES):
        spares = "1 node is a spare" if count == 1 else f"{count} nodes are spares"
        text += f"; {spares}, kept for repairs"
    if count := shown.get(TEAM_NODES):
        nodes = "1 more node belongs" if count == 1 else f"{count} more nodes belong"
        text += f"; {nodes} to other teams ({shown[OWNERS]})"
    return text
