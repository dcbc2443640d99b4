"""Machines of Auto Scaling groups of AWS, one group for each pool (docs/operations/clouds.md).

list       DescribeAutoScalingGroups of the one group: its machines, their zones and states
launch     LaunchInstances with the launch's token: idempotent, it answers with the ids or
           with why there are none, and raises the desired capacity by what it launched
terminate  TerminateInstanceInAutoScalingGroup for up to 100 machines, lowering the capacity
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairlead.api import names
from fairlead.cloud.amazon.aws_api import SCHEME, Aws, AwsService, end_machines, error_of
from fairlead.cloud.provider import CloudError, LaunchRequest, RefusedByProvider
from fairlead.model.health.machines import HostReport, Instance, InstanceState, Inventory

_STATES = {
    "Pending": InstanceState.STARTING,
    "Terminating": InstanceState.STOPPING,
    "Detaching": InstanceState.STOPPING,
}
#: Machines of a warm pool, and those that have left the group, are none of the pool.
_NOT_LISTED = ("Warmed", "Terminated", "Detached")


class AwsProvider:
    """The machines of one Auto Scaling group."""

    def __init__(self, aws: Aws, pool: str, group: str, options: Mapping[str, str]) -> None:
        self._aws = aws
        self._pool = pool
        self._group = group
        self._region = options.get("region", "")

    async def instances(self) -> Inventory:
        """Return the machines of the group, with one call. The group's tag names their pool."""
        answer = await self._call(
            "describe_auto_scaling_groups", AutoScalingGroupNames=[self._group]
        )
        groups = answer["AutoScalingGroups"]
        if not groups:
            raise RefusedByProvider(f"AWS: there is no Auto Scaling group {self._group!r}")
        tags = {tag["Key"]: tag["Value"] for tag in groups[0].get("Tags", ())}
        events, warning = await self._aws.events(self._region)
        found = _instances(groups[0]["Instances"], tags.get(names.POOL, ""), events)
        return Inventory(tuple(found), warning=warning)

    async def launch(self, request: LaunchRequest) -> tuple[str, ...]:
        """Launch machines in the zone that the request names, or in any of the group.

        AWS may launch a part of them.
        """
        zones = {"AvailabilityZones": [request.domain]} if request.domain else {}
        answer = await self._call(
            "launch_instances", AutoScalingGroupName=self._group, ClientToken=request.token,
            RequestedCapacity=request.count, RetryStrategy="none", **zones,
        )  # fmt: skip
        made = tuple(
            f"{SCHEME}{part['AvailabilityZone']}/{id_}"
            for part in answer.get("Instances", ())
            for id_ in part.get("InstanceIds", ())
        )
        if made:
            return made
        for failed in answer.get("Errors", ()):
            raise error_of(failed)
        raise CloudError("AWS: LaunchInstances answered with neither machines nor errors")

    async def terminate(self, ids: tuple[str, ...]) -> None:
        """End machines and lower the desired capacity by as many."""
        await end_machines(ids, self._terminate, self._listed)

    async def report_host(self, report: HostReport) -> bool:
        """Report the state of a machine to EC2."""
        return await self._aws.report_host(self._region, report)

    async def _listed(self) -> set[str]:
        return {each.id for each in (await self.instances()).instances}

    async def _terminate(self, ids: Sequence[str]) -> None:
        await self._call(
            "terminate_instance_in_auto_scaling_group", InstanceIds=list(ids),
            AutoScalingGroupName=self._group, ShouldDecrementDesiredCapacity=True,
        )  # fmt: skip

    async def _call(self, operation: str, **parameters: Any) -> Any:
        return await self._aws.call(self._region, AwsService.SCALING, operation, **parameters)


def _instances(
    found: Sequence[Mapping[str, Any]], pool: str, events: Mapping[str, str]
) -> list[Instance]:
    out: list[Instance] = []
    for each in found:
        state, zone = str(each["LifecycleState"]), str(each["AvailabilityZone"])
        if state.startswith(_NOT_LISTED):
            continue
        known = _STATES.get(state.partition(":")[0], InstanceState.RUNNING)
        id_ = each["InstanceId"]
        maintenance = events.get(id_, "")
        out.append(Instance(f"{SCHEME}{zone}/{id_}", pool, known, zone, maintenance=maintenance))
    return out
