"""What the jobs controller remembers between events, so that a decision costs what changed.

All of it follows from the mirrors and is built anew from them after a crash.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from fairlead.api import names
from fairlead.api.core import ConfigMap, Node, Pod, Service
from fairlead.api.job import Job, RestartPolicy, owner_reference_of
from fairlead.api.meta import label_number
from fairlead.api.podgroups import PodGroup
from fairlead.api.status import (
    ApiError,
    BadRequest,
    Forbidden,
    Invalid,
    TooLarge,
    Unauthorized,
)
from fairlead.api.times import parse_time
from fairlead.decide.jobs.pods import JobPods
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.jobs.view import (
    NodeOutage,
    Owned,
    PodRefusal,
    Refusal,
)
from fairlead.decide.pinning import Binding, own_binding
from fairlead.decide.verdict import ObjectKey
from fairlead.runtime.mirror import Change

#: Characters of a server's message that are kept.
MESSAGE_MAX = 1000
_NO_NODES: Mapping[str, int] = {}
#: First and longest delay before the API is asked again to take what it held back.
_RETRY_SECONDS = 0.25
_RETRY_SECONDS_MAX = 5.0
#: apiserver `endpoints/handlers/responsewriters/errors.go`, forbiddenMessage.
_QUOTA = re.compile("exceeded quota|failed quota|insufficient quota|status unknown for quota")
#: Admission webhooks and ValidatingAdmissionPolicies; their answers may have any code.
_DENIED = re.compile(r" denied (the )?request")
_PASSING = re.compile("looking up service account|being terminated")
_LACKS_RIGHTS = re.compile(r" cannot [a-z]+ resource ")
Dependent: TypeAlias = ConfigMap | Service | PodGroup
D = TypeVar("D", ConfigMap, Service, PodGroup)
O = TypeVar("O", Pod, ConfigMap, Service, PodGroup)  # noqa: E741 - an owned object


def waits_for(job: Job | None) -> list[ObjectKey]:
    """Return the jobs that a job waits for, which matters until it is admitted."""
    if job is None or job.status.attempt > 0:
        return []
    return [(job.metadata.namespace, after.job) for after in job.spec.after]


def inherited_until(job: Job, began_at: float, policy: JobsPolicy) -> float:
    """Return until when a pod may come that an earlier controller asked for without an answer.

    Which creations had no answer was forgotten with it. None is under way any more once the gang
    has run for so long that even a repetition has arrived; a member's replacement may always be.
    """
    attempt = job.status.current_attempt
    if attempt is None or attempt.begun_at is None or parse_time(attempt.begun_at) > began_at:
        return 0.0
    is_single = job.spec.restart.policy is RestartPolicy.MEMBER
    last = began_at if is_single or attempt.started_at is None else parse_time(attempt.started_at)
    return last + policy.late_pod_seconds


def job_key_of(obj: Pod | Dependent) -> ObjectKey | None:
    """Return the key of the Fairlead job that controls an object, or None."""
    owner = owner_reference_of(obj.metadata)
    return None if owner is None else (obj.metadata.namespace, owner.name)


def subject(change: Change[O]) -> tuple[O, bool]:
    """Return the object that changed, and whether it is still there and still its job's.

    An object that lost its owner (a job deleted with its dependents orphaned), or got another one,
    is shown as it was: to the job that had it, it is gone. A new owner takes no part: we adopt
    nothing that we did not make.
    """
    old, new = change.old, change.new
    if new is None:
        assert old is not None
        return old, False
    if old is not None:
        owner = owner_reference_of(old.metadata)
        now = owner_reference_of(new.metadata)
        if owner is not None and (now is None or now.uid != owner.uid):
            return old, False
    return new, True


def owned_of(obj: Dependent) -> Owned:
    """Return what decisions ask of a ConfigMap or Service."""
    return Owned(
        name=obj.metadata.name,
        uid=obj.metadata.uid,
        attempt=label_number(obj.metadata.labels.get(names.ATTEMPT)) or 0,
        is_terminating=obj.metadata.deletion_timestamp is not None,
    )


@dataclass(slots=True)
class NodeBook:
    """Which nodes are in trouble, and which jobs have members or reservations on which node."""

    #: Nodes that are not ready; and those that do not exist, as long as a job is on them.
    troubles: dict[str, NodeOutage] = field(default_factory=dict)
    #: Exactly the jobs whose placement names the node, or that have a pod on it.
    jobs: dict[str, dict[ObjectKey, int]] = field(default_factory=dict)
    #: How members are bound on the nodes that say it.
    bindings: dict[str, Binding] = field(default_factory=dict)
    #: Nodes that an operator has cordoned.
    cordoned: dict[str, None] = field(default_factory=dict[str, None])

    def changed(self, name: str, node: Node | None, now: float) -> tuple[ObjectKey, ...]:
        """Take note of a node as it is now; return the jobs to look at again."""
        binding = own_binding(node.metadata.labels) if node is not None else None
        if binding is not None:
            self.bindings[name] = binding
        else:
            self.bindings.pop(name, None)
        was_cordoned = name in self.cordoned
        is_cordoned = node is not None and node.spec.unschedulable
        if is_cordoned:
            self.cordoned[name] = None
        else:
            self.cordoned.pop(name, None)
        trouble = self._trouble(name, node, now)
        if trouble == self.troubles.get(name) and was_cordoned == is_cordoned:
            return ()
        if trouble is None:
            self.troubles.pop(name, None)
        else:
            self.troubles[name] = trouble
        return tuple(self.jobs.get(name, ()))

    def missing(self, name: str, now: float) -> None:
        """Take note that a node is named by a job and does not exist."""
        if name not in self.troubles:
            self.troubles[name] = NodeOutage(name, now, is_gone=True)

    def link(self, name: str, key: ObjectKey) -> None:
        """Take note of one more reason for a job to be on a node."""
        jobs = self.jobs.setdefault(name, {})
        jobs[key] = jobs.get(key, 0) + 1

    def unlink(self, name: str, key: ObjectKey) -> None:
        """Take back what `link` noted."""
        jobs = self.jobs[name]
        jobs[key] -= 1
        if jobs[key]:
            return
        del jobs[key]
        if jobs:
            return
        del self.jobs[name]
        trouble = self.troubles.get(name)
        if trouble is not None and trouble.is_gone:
            del self.troubles[name]

    def _trouble(self, name: str, node: Node | None, now: float) -> NodeOutage | None:
        if node is None:
            return NodeOutage(name, now, is_gone=True) if name in self.jobs else None
        old = self.troubles.get(name)
        known_since = now if old is None or old.is_gone else old.since
        for condition in node.status.conditions:
            if condition.type == names.READY:
                if condition.status == "True":
                    return None
                return NodeOutage(name, _instant(condition.last_transition_time, known_since))
        # A node that has never reported is as good as silent.
        return NodeOutage(name, _instant(node.metadata.creation_timestamp, known_since))


def _instant(text: str | None, default: float) -> float:
    try:
        return default if text is None else parse_time(text)
    except ValueError:
        return default


@dataclass(slots=True)
class JobBook:
    """What belongs to one job besides its object, kept from its first sign to its last."""

    pods: JobPods = field(default_factory=JobPods)
    config_maps: dict[str, Owned] = field(default_factory=dict)
    services: dict[str, Owned] = field(default_factory=dict)
    pod_groups: dict[str, Owned] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """True when nothing of the job is left."""
        others = self.config_maps or self.services or self.pod_groups
        return not (self.pods.attempts or others)


@dataclass(slots=True)
class PlacedNodes:
    """The nodes that a job's placement names, with how many members each holds."""

    nodes: Mapping[str, int] = field(default_factory=lambda: _NO_NODES)
    #: False until somebody has looked whether they all exist.
    is_checked: bool = False


def placed_nodes(job: Job) -> Mapping[str, int]:
    """Return the nodes of the placement and how many members each holds."""
    if job.status.placement is None:
        return _NO_NODES
    out: dict[str, int] = {}
    for role in job.status.placement.roles:
        for node in role.nodes:
            out[node] = out.get(node, 0) + 1
    return out


def troubles_of(
    troubles: Mapping[str, NodeOutage], *nodes: Mapping[str, int]
) -> dict[str, NodeOutage]:
    """Return the troubled ones among these nodes, in name order; walks the smaller side."""
    if not troubles:
        return {}
    found: Iterator[str]
    if len(troubles) <= sum(map(len, nodes)):
        found = (name for name in troubles if any(name in group for group in nodes))
    else:
        found = (name for group in nodes for name in group if name in troubles)
    return {name: troubles[name] for name in sorted(found)}


@dataclass(slots=True)
class RefusalBook:
    """What the API does not take, by uid of the job; forgotten with the process, and found again.

    A thing that is held back is tried again with growing delays, so that a job with a thousand
    members asks once in a while and not a thousand times; a success ends it.
    """

    held: dict[str, PodRefusal] = field(default_factory=dict[str, PodRefusal])

    def get(self, uid: str) -> PodRefusal | None:
        """Return what is known."""
        return self.held.get(uid)

    def note(self, job: Job, refusal: Refusal, message: str, now: float) -> None:
        """Take note of a refusal; of several in one attempt the final one stays."""
        uid, attempt = job.metadata.uid, job.status.attempt
        message = message[:MESSAGE_MAX]
        before = self.held.get(uid)
        since = now
        if before is not None and before.attempt == attempt:
            is_old = refusal is Refusal.POD_HELD_BACK and now < before.retry_at
            if is_old or before.refusal is not Refusal.POD_HELD_BACK:
                return
            since = before.since
        delay = min(max(now - since, _RETRY_SECONDS), _RETRY_SECONDS_MAX)
        self.held[uid] = PodRefusal(attempt, refusal, message, since, now + delay)

    def made(self, uid: str) -> None:
        """Take note that the API takes things of this job again."""
        before = self.held.get(uid)
        if before is not None and before.refusal is Refusal.POD_HELD_BACK:
            del self.held[uid]

    def forget(self, uid: str) -> None:
        """Forget a job that is gone."""
        self.held.pop(uid, None)


def refusal_of(error: ApiError) -> Refusal | None:
    """Tell a pod that would be refused again from one that waits for room or for somebody's help.

    A full quota, an account that is still being made and our own lack of rights are Forbidden, too,
    and only the words tell (kubernetes `plugin/pkg/admission`, apiserver `endpoints/handlers`). A
    server that has just started lacks all roles for a moment, and says so in the same words. None:
    it does not know us (401), which says nothing of the pod.
    """
    if isinstance(error, Unauthorized):
        return None
    if _DENIED.search(error.message):
        return Refusal.POLICY_REFUSED
    if isinstance(error, Forbidden):
        if _QUOTA.search(error.message):
            return Refusal.QUOTA_EXCEEDED
        is_passing = _LACKS_RIGHTS.search(error.message) or _PASSING.search(error.message)
        return Refusal.POD_HELD_BACK if is_passing else Refusal.POLICY_REFUSED
    is_lasting = isinstance(error, BadRequest | Invalid | TooLarge)
    return Refusal.POD_REJECTED if is_lasting else Refusal.POD_HELD_BACK
