"""One fixed cluster for golden texts: jobs in every state, nodes in every state, at one instant."""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.api import names
from fairlead.api.jobs.after import After, AfterState
from fairlead.api.jobs.job import Attempt, Cause, Job, MemberCounts, Progress, VerdictStatus
from fairlead.api.kubernetes.core import Node, Taint
from fairlead.api.meta import Condition, to_wire
from fairlead.api.resources import JOBS, NODES, Resource
from fairlead.api.status import NotFound, StatusDetails
from fairlead.api.values.times import format_time
from fairlead.cli.connection.transport import Api
from fairlead.kube.kubeconfig import Connection
from fairlead.runtime.client import ObjectList, Request, RequestVerb
from fairlead.testing.builders import EPOCH, make_job, make_node, make_placement

NOW = EPOCH + 86_400.0


def ago(seconds: float) -> str:
    """Return the wire text of an instant before NOW."""
    return format_time(NOW - seconds)


def condition(type_: str, reason: str, message: str = "") -> Condition:
    """Return a true condition."""
    return Condition(type=type_, status="True", reason=reason, message=message)


def running() -> Job:
    """Return a gang of four on four neighbouring nodes, in its second attempt."""
    return make_job(
        "train-1", count=4, gpus=8, attempt=2, created=NOW - 8000, priority=10,
        placement=make_placement([f"v{i:05d}" for i in range(17, 21)], attempt=2),
        time_limit_seconds=43_200, conditions=[condition(names.RUNNING, "MembersRunning")],
        status={
            "state": "Running",
            "started_at": ago(7200),
            "attempts": (
                Attempt(1, started_at=ago(7200), finished_at=ago(4400), cause=Cause.NODE,
                        reason="NodeLost", message="node v00003 was lost"),
                Attempt(2, started_at=ago(4320), resumed_from_step=1200),
            ),
            "members": MemberCounts(total=4, running=4),
            "progress": Progress(step=4711, checkpoint_step=4700, reported_at=ago(3)),
        },
    )  # fmt: skip


def waiting() -> Job:
    """Return a gang of eight that waits for room."""
    facts = {"asked": 64, "resource": "nvidia.com/gpu", "free": 44, "total": 64, "short": 20}
    return make_job(
        "pretrain-1", count=8, gpus=8, created=NOW - 1560,
        verdict=VerdictStatus("Waiting", "InsufficientCapacity", facts, ago(1560)),
        status={"state": "Waiting", "submitted_at": ago(1560)},
    )  # fmt: skip


def dependent() -> Job:
    """Return a job that waits for another one."""
    verdict = VerdictStatus("Waiting", "Dependency", {"job": "train-1", "state": "Succeeded"})
    return make_job(
        "eval-1", gpus=1, attempt=0, created=NOW - 120, verdict=verdict,
        spec={"after": (After("train-1", AfterState.SUCCEEDED),)},
        status={"state": "Waiting", "submitted_at": ago(120)},
    )  # fmt: skip


def held() -> Job:
    """Return a held job."""
    return make_job("sweep-1", gpus=0, cpu=4, attempt=0, created=NOW - 60, suspend=True,
                    status={"state": "Held", "submitted_at": ago(60)})  # fmt: skip


def failed() -> Job:
    """Return a job that failed by itself."""
    return make_job(
        "bad-1", gpus=0, cpu=1, created=NOW - 4000,
        conditions=[condition(names.FAILED, "RestartLimit", "member worker-0 exited with 1")],
        status={"state": "Failed", "started_at": ago(3990), "finished_at": ago(3600),
                "members": MemberCounts(total=1, failed=1)},
    )  # fmt: skip


def succeeded() -> Job:
    """Return a job that ended well."""
    return make_job(
        "prepare-1", gpus=0, cpu=16, created=NOW - 9000,
        conditions=[condition(names.SUCCEEDED, "Completed")],
        status={"state": "Succeeded", "started_at": ago(8900), "finished_at": ago(8000),
                "members": MemberCounts(total=1, succeeded=1)},
    )  # fmt: skip


def restarting() -> Job:
    """Return a gang between two attempts."""
    attempt = Attempt(1, started_at=ago(450), finished_at=ago(2), cause=Cause.USER,
                      reason="ExitCode", message="worker-1 exited with 137")  # fmt: skip
    return make_job(
        "tune-1", count=2, gpus=4, attempt=2, created=NOW - 500,
        placement=make_placement(["v00001", "v00001"], attempt=1),
        status={"state": "Restarting", "started_at": ago(450), "attempts": (attempt,),
                "members": MemberCounts(total=2)},
    )  # fmt: skip


def jobs() -> list[Job]:
    """Return all of them."""
    return [running(), waiting(), dependent(), held(), failed(), succeeded(), restarting()]


def nodes() -> list[Node]:
    """Return 24 virtual nodes in every state, and this machine."""
    labels = {names.NODE_TYPE: "virtual"}
    windows = {
        7: f"{format_time(NOW + 7200)}/{format_time(NOW + 10_800)}",
        8: f"{ago(600)}/{format_time(NOW + 3000)}",
        9: f"{ago(600)}/{ago(60)}",
        10: "tomorrow",
    }
    out = [
        make_node(f"v{i:05d}", labels=labels,
                  annotations={names.MAINTENANCE: windows[i]} if i in windows else {})
        for i in range(20)
    ]  # fmt: skip
    out += [
        make_node(
            f"v{i:05d}",
            labels=labels,
            unschedulable=True,
            taints=[Taint(names.TAINT_UNSCHEDULABLE, "NoSchedule", time_added=ago(10_800))],
        )
        for i in (20, 21)
    ]
    out.append(make_node("v00022", labels=labels, ready=False))
    out.append(make_node("v00023", labels=labels, taints=[Taint("maintenance", "NoSchedule")]))
    local = Taint(names.TAINT_LOCAL, "NoSchedule")
    out.append(make_node("laptop", labels={names.NODE_TYPE: "local"}, gpus=0, cpu=4, memory="16Gi",
                         taints=[local]))  # fmt: skip
    return out


class WorldApi(Api):
    """Answers reads from the fixed world, without a network."""

    def __init__(self, *, with_nodes: bool = True) -> None:
        super().__init__(Connection(server="http://127.0.0.1:7443", source="the golden world"))
        self.objects: dict[str, list[Any]] = {
            JOBS.name: jobs(),
            NODES.name: nodes() if with_nodes else [],
        }

    def request(self, method: str, path: str, **_: Any) -> Any:
        """Have no path of `fairlead up`."""
        raise NotFound(f"{method} {path}: 404 page not found")

    def call(self, request: Request[Any]) -> Any:
        """Return an object of the world, or all of a resource; NotFound."""
        resource = request.resource
        found = self.objects.get(resource.name, [])
        if request.verb is RequestVerb.LIST:
            return ObjectList(tuple(as_asked(resource, item) for item in found), "1")
        assert request.verb is RequestVerb.GET
        for item in found:
            if item.metadata.name == request.name:
                return as_asked(resource, item)
        raise NotFound(f'{resource.name} "{request.name}" not found',
                       details=StatusDetails(name=request.name, kind=resource.plural))  # fmt: skip


def as_asked(resource: Resource[Any], item: Any) -> Any:
    """Return an object in the type of the resource that is asked for."""
    if resource.type is msgspec.Raw:
        return msgspec.Raw(msgspec.json.encode(item))
    return to_wire(item) if resource.type is dict else item
