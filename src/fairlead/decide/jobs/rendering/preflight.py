"""The gang's gate: a container in each member's pod tests its node before the program starts.

    Open        members test themselves and each other
    judged      once no member is in the test any more: the record has the outcome
    ended       if the test stopped a member; a node that failed is left, and the rest stay

The pods belong to the user, so what they say is no proof: it moves their own gang, and makes a node
a suspect (`model/holdings/suspects.py`), which the health controller tests by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.cluster.machine_result import UnreadableResult, decode_result
from fairlead.api.jobs.job import Attempt, Job, Role
from fairlead.api.jobs.placement import Placement
from fairlead.api.jobs.preflight import PreflightRecord
from fairlead.api.kubernetes.core import (
    Container,
    EnvVar,
    EnvVarSource,
    FieldSelector,
    ResourceRequirements,
)
from fairlead.api.values.outcomes import MachineOutcome
from fairlead.api.values.quantity import is_gpu
from fairlead.api.values.times import format_micro_time, time_or
from fairlead.decide.attempts.record import preflight_of
from fairlead.decide.attempts.seats import seats
from fairlead.decide.jobs.following.pods import AttemptPods, MemberPod
from fairlead.decide.jobs.following.progress import TERMINATION_LOG
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.jobs.view import JobView
from fairlead.decide.words import plural
from fairlead.model.health.gang_check import CheckedMember, GangVerdict, judge_gang

#: What the strictest Pod Security level asks for. The test needs no right.
SECURITY: Mapping[str, Any] = MappingProxyType(
    {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
)
#: A test that was asked for and could not be made.
NO_IMAGE = "no image has the test: set health.testImage"
_MESSAGE_MAX = 1000
_NODE = FieldSelector("spec.nodeName")


def gate_container(job: Job, role: Role, policy: JobsPolicy) -> Container | None:
    """Return the container that tests the node of a member of the current attempt; None: none does.

    A member that is replaced while the others run is not tested: they would have to wait with it.
    It asks for what the first container with GPUs asks for, or the first one, so that the pod as a
    whole asks for no more than without it.
    """
    record = job.status.current_attempt
    asked = preflight_of(job) if record is None else record.preflight
    if asked is None or policy.preflight_image is None:
        return None
    if record is not None and record.started_at is not None:
        return None
    containers = role.template.spec.containers
    like = next((each for each in containers if _has_gpus(each.resources)), containers[0])
    suite = asked.suite.value.lower()
    return Container(
        name=names.PREFLIGHT_CONTAINER,
        image=policy.preflight_image,
        command=(
            *policy.preflight_command, "agent", "preflight", suite, "--result", TERMINATION_LOG,
        ),
        env=(EnvVar(names.ENV_NODE, value_from=EnvVarSource(field_ref=_NODE)),),
        resources=like.resources,
    )  # fmt: skip


def _has_gpus(resources: ResourceRequirements) -> bool:
    return any(is_gpu(name) for name in (*resources.limits, *resources.requests))


@dataclass(frozen=True, slots=True)
class GateResult:
    """What the gate of an attempt says: its record, and whether the attempt ends by it."""

    record: PreflightRecord
    is_stopped: bool
    checked: int

    @property
    def message(self) -> str:
        """What was found, for people."""
        nodes = plural(self.checked, "node")
        found, text = self.record.outcome, self.record.message
        if found is MachineOutcome.FAILED:
            failed = plural(len(self.record.nodes), "node")
            return f"{failed} of {self.checked} failed the test before the start: {text}"
        if found is MachineOutcome.PASSED:
            return f"tested {nodes} before the start: passed" + (f"; {text}" if text else "")
        word = "was skipped" if found is MachineOutcome.SKIPPED else "found nothing out"
        return f"the test of {nodes} before the start {word}: {text}"


def gate_result(view: JobView, attempt: Attempt) -> GateResult | None:
    """Return what the gate says; None: there is none, it was judged, or members are in it."""
    asked, placement, pods = attempt.preflight, view.job.status.placement, view.current
    if asked is None or asked.outcome is not None or placement is None:
        return None
    is_done = len(pods.members) >= view.job.member_count and not pods.unchecked_count
    waits_until = gate_ends_at(view)
    if not is_done and (waits_until is None or view.now < waits_until):
        return None
    members = _members(view.job, placement, pods)
    verdict = judge_gang(members)
    if not any(each.preflight is not None for each in pods.members.values()):
        why = NO_IMAGE if view.policy.preflight_image is None else "no pod has the test"
        verdict = GangVerdict(MachineOutcome.SKIPPED, why)
    nodes = tuple(sorted({members[rank].node for rank in verdict.failed} - {""}))
    record = replace(
        asked, outcome=verdict.outcome, message=verdict.message[:_MESSAGE_MAX],
        ended_at=format_micro_time(view.now), nodes=nodes,
    )  # fmt: skip
    return GateResult(record, bool(_stopped(pods)), len({each.node for each in members}))


def gate_ends_at(view: JobView) -> float | None:
    """Return when the gate is judged though members are in it: some time after it stopped one."""
    ends = [
        at for each in _stopped(view.current)
        if each.preflight is not None
        and (at := time_or(each.preflight.finished_at, view.now)) <= view.now
    ]  # fmt: skip
    return min(ends) + view.policy.preflight_patience_seconds if ends else None


def _stopped(pods: AttemptPods) -> Sequence[MemberPod]:
    """Return the members whose program the test kept from starting."""
    return [each for name in pods.troubled if (each := pods.members[name]).is_stopped_by_test]


def _members(job: Job, placement: Placement, pods: AttemptPods) -> list[CheckedMember]:
    prefix = f"{job.metadata.name}-{job.status.attempt}"
    out: list[CheckedMember] = []
    for seat in seats(job, placement):
        member = pods.members.get(f"{prefix}-{seat.role.name}-{seat.index}")
        node = (member.node if member is not None else "") or seat.node
        ended = member.preflight if member is not None else None
        result, why = None, "no result of the test"
        if ended is not None:
            try:
                result = decode_result(ended.message)
            except UnreadableResult as error:
                why = str(error) if ended.message else f"exit code {ended.exit_code}, no result"
        out.append(CheckedMember(seat.rank, node, seat.role.name, result, why))
    return out
