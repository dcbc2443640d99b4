"""Which actions of the controllers take something from a user or the fleet, and what is said of it.

Not here, as they take nothing: placements, verdicts, what gives room back, pods of our own that
leave for work, and what a user asks for.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.api.cluster.node_pool import PoolDecision
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.kubernetes.core import Pod
from fairlead.api.meta import ObjectMeta
from fairlead.decide.arrays import CancelElement
from fairlead.decide.attempts.end_reason import EndReason
from fairlead.decide.fleet.actions import BeginMaintenance, Mark, RestartMachine, Terminate
from fairlead.decide.health.actions import DeleteOverduePod, EvictPod, SetRecord
from fairlead.decide.job_actions import WriteJobStatus
from fairlead.decide.network import SetShares, is_starting
from fairlead.decide.notices import SendTicket
from fairlead.decide.placement.actions import PreemptJob
from fairlead.decide.placement.outcome import asked_verdict
from fairlead.decide.takings import Taking, TakingKind
from fairlead.decide.teams.actions import EvictIntruder
from fairlead.decide.use.idle import EndIdle
from fairlead.model.health.node_record import NodeState, record_of

#: Decisions about pools and the fleet that are themselves takings, or grant one.
_FLEET_ACTIONS = {
    "Remove": TakingKind.REPLACE, "Drain": TakingKind.DRAIN, "Grant": TakingKind.DRAIN,
}  # fmt: skip
_MACHINE_STATES = (NodeState.RESETTING, NodeState.REBOOTING, NodeState.REPLACING)
_NODES_SHOWN_MAX = 20


def preemption(action: PreemptJob) -> Taking:
    """Return that a job gives its nodes back, or goes on elsewhere."""
    job, asked = action.job, action.preemption
    verdict = asked_verdict(action)
    placement = job.status.placement
    nodes = sorted(set(nodes_of(placement))) if placement is not None else []
    kind = TakingKind.MOVE if asked.kind.is_move else TakingKind.PREEMPT
    for_whom = asked.uid or ",".join(asked.empties)
    return Taking(
        f"{kind.value}/{job.metadata.uid}/{job.status.attempt}/{for_whom}", kind,
        _named("Job", job.metadata), job.metadata.uid, verdict.reason.value, verdict.message,
        {"attempt": job.status.attempt, "for": f"{asked.namespace}/{asked.name}".strip("/"),
         "forPriority": asked.priority, "priority": job.spec.priority or 0,
         "nodes": len(nodes), "nodeNames": ",".join(nodes[:_NODES_SHOWN_MAX])},
    )  # fmt: skip


def time_limit(action: WriteJobStatus) -> tuple[Taking, ...]:
    """Return that a job has come to its time limit, where a status says so for the first time."""
    job, attempts = action.job, action.status.attempts
    if not attempts or attempts[-1].reason != EndReason.TIME_LIMIT.value:
        return ()
    ended, before = attempts[-1], job.status.attempts
    if any(each.number == ended.number and each.reason == ended.reason for each in before):
        return ()
    return (_job_end(job, EndReason.TIME_LIMIT.value, ended.message),)


def idle_end(action: EndIdle) -> Taking:
    """Return that a job ends, as it does not use its GPUs."""
    return _job_end(action.job, "Idle", action.message)


def early_stop(action: CancelElement) -> Taking:
    """Return that an element of an array ends early, by the array's rule."""
    return _job_end(action.job, "StoppedEarly", action.stopped_early)


def _job_end(job: Job, reason: str, message: str) -> Taking:
    uid, attempt = job.metadata.uid, job.status.attempt
    facts = {"attempt": attempt, "team": job.spec.team, "members": job.member_count}
    return Taking(f"End/{uid}/{attempt}/{reason}", TakingKind.END, _named("Job", job.metadata), uid,
                  reason, message, facts)  # fmt: skip


def node_out(action: SetRecord) -> tuple[Taking, ...]:
    """Return that a node is kept from work, or that its machine is reset, restarted or replaced."""
    record, meta = action.record, action.node.metadata
    if record is None or record.state.returns:
        return ()
    kind = TakingKind.REPLACE if record.state in _MACHINE_STATES else TakingKind.DRAIN
    return tuple(
        Taking(f"{kind.value}/{meta.uid}/{each.action}/{each.at}", kind, _named("Node", meta),
               meta.uid, each.reason, each.message, each.facts)
        for each in action.decided
    )  # fmt: skip


def host_report(action: SendTicket) -> Taking:
    """Return that a host is reported as faulty to its provider, which may take it."""
    meta, ticket = action.node.metadata, action.record
    reason = record_of(meta.annotations)
    return Taking(
        f"Report/{meta.uid}/{ticket.opened_at}", TakingKind.REPLACE, _named("Node", meta),
        meta.uid, "HostReported", "" if reason is None else reason.reason,
        {"machine": action.node.spec.provider_id},
    )  # fmt: skip


def eviction(action: EvictPod | DeleteOverduePod) -> Taking:
    """Return that a pod of others has to leave a node."""
    is_forced = isinstance(action, DeleteOverduePod)
    reason = "DeadlineOver" if is_forced else "NodeDrained"
    node = action.node.metadata.name
    text = f"it has to leave node {node}" + (", whose deadline is over" if is_forced else "")
    return _pod(action.pod, reason, text, node)


def intruder(action: EvictIntruder) -> Taking:
    """Return that a pod has to leave a node of a team."""
    node = action.pod.spec.node_name
    return _pod(action.pod, "Intruder", f"node {node} is of team {action.team}", node)


def _pod(pod: Pod, reason: str, message: str, node: str) -> Taking:
    meta = pod.metadata
    return Taking(f"Drain/{meta.uid}/{reason}", TakingKind.DRAIN, _named("Pod", meta), meta.uid,
                  reason, message, {"node": node})  # fmt: skip


def fleet_decisions(
    metadata: ObjectMeta, kind: str, decided: Iterable[PoolDecision]
) -> list[Taking]:
    """Return which decisions about a pool, or about the fleet, take nodes."""
    return [
        Taking(
            f"{each.action}/{metadata.uid}/{each.facts.get('instance', '')}"
            f"/{each.facts.get('node', '')}/{each.at}",
            _FLEET_ACTIONS[each.action], _named(kind, metadata), metadata.uid,
            each.reason, each.message, each.facts,
        )
        for each in decided if each.action in _FLEET_ACTIONS
    ]  # fmt: skip


def machines(action: Mark | Terminate | RestartMachine | BeginMaintenance) -> list[Taking]:
    """Return what is taken from a pool: nodes from new work, or machines."""
    if isinstance(action, Mark):
        meta = action.node.metadata
        return [Taking(f"Mark/{meta.uid}/{action.why}", TakingKind.DRAIN, _named("Node", meta),
                       meta.uid, "Removal", action.why)]  # fmt: skip
    meta = action.pool.metadata
    match action:
        case Terminate(instances=instances):
            verb, of, request = "Terminate", instances, ""
        case RestartMachine(instance=instance, request=request):
            verb, of = "Restart", (instance,)
        case BeginMaintenance(instance=instance):
            verb, of, request = "BeginMaintenance", (instance,), ""
    return [
        Taking(f"{verb}/{meta.uid}/{each}/{request}", TakingKind.REPLACE, f"Machine {each}", each,
               verb, f"a machine of pool {meta.name}", {"pool": meta.name})
        for each in of
    ]  # fmt: skip


def shaping(action: SetShares) -> list[Taking]:
    """Return which teams begin to be limited on a node; what the limit is changes all the time.

    What nodes without their pods may begin with is no such limit yet.
    """
    meta, spec = action.report.metadata, action.report.spec
    ways = (("sends", spec.egress, action.shares), ("receives", spec.ingress, action.ingress))
    return [
        Taking(
            f"Shape/{meta.uid}/{way}/{share.team}/{spec.egress_at or ''}", TakingKind.SHAPE,
            f"Node {meta.name}", meta.uid, "TeamBudget",
            f"what team {share.team} {way} is limited on this node",
            {"team": share.team, "direction": way, "bitsPerSecond": share.bits_per_second},
        )
        for way, before, after in ways
        for share in after if not is_starting(share)
        and share.team not in {each.team for each in before if not is_starting(each)}
    ]  # fmt: skip


def _named(kind: str, metadata: ObjectMeta) -> str:
    return f"{kind} {'/'.join(filter(None, metadata.key))}"
