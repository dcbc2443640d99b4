"""Machines that EC2 Fleet launches, all or none (docs/operations/clouds.md).

    list       DescribeInstances of the machines with the tags of the cluster and the pool
    launch     CreateFleet of the type instant: one attempt, which AWS answers at once. The minimum
               is what was asked for, in one zone and of one instance type
    terminate  TerminateInstances

The fleet of a launch is only its request: AWS keeps no size afterwards, and replaces no machine.

AWS makes no machine twice for one client token, the token of the launch. It does not state for how
long, nor what the answer to a repeated request contains. So machines carry the token as a tag, too:
a launch of which a machine is listed was sent, and is not sent again. Lists may be late. What is
not listed within `SETTLE_SECONDS` does not exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from fairlead.api import names
from fairlead.api.cluster.ec2_fleet_options import Ec2FleetOptions
from fairlead.cloud.amazon.aws_api import SCHEME, Aws, AwsService, end_machines, error_of
from fairlead.cloud.provider import (
    LaunchPending,
    LaunchRequest,
    OutOfCapacity,
    RefusedByProvider,
)
from fairlead.model.health.machines import HostReport, Instance, InstanceState, Inventory

#: A machine is listed so long after its launch at the latest.
SETTLE_SECONDS = 120.0
#: Machines of one page of a list, and pages.
MACHINES_PER_PAGE, _PAGES_MAX = 1000, 100
#: Launches without an answer, as in the pool's status.
_OPEN_MAX = 64
_STATES = {
    "pending": InstanceState.STARTING,
    "running": InstanceState.RUNNING,
    "shutting-down": InstanceState.STOPPING,
    "stopping": InstanceState.STOPPING,
    "stopped": InstanceState.STOPPING,
}


class Ec2FleetProvider:
    """The machines of one pool."""

    def __init__(self, aws: Aws, pool: str, options: Ec2FleetOptions) -> None:
        self._aws = aws
        self._pool = pool
        self._options = options
        #: Launches without an answer, by token: until when a list may lack their machines. `inf`
        #: before AWS is known to have the request.
        self._open: dict[str, float] = {}

    async def instances(self) -> Inventory:
        """Return the machines with the tags of the pool, from one list.

        Machines of a launch that has no answer yet are not listed: the launch counts them.
        """
        found, is_complete = await self._described()
        events, warning = await self._aws.events(self._options.region)
        listed = (_instance(each, events) for each in found)
        kept = tuple(each for each in listed if each.token not in self._open)
        return Inventory(kept, is_complete, warning)

    async def launch(self, request: LaunchRequest) -> tuple[str, ...]:
        """Launch machines in the zone that the request names, or in one that EC2 Fleet chooses."""
        token = request.token
        settled_at = self._open.setdefault(token, float("inf"))
        if len(self._open) > _OPEN_MAX:  # the oldest has left the pool's status
            del self._open[next(iter(self._open))]
        try:
            made = await self._launched(request, settled_at)
        except (OutOfCapacity, RefusedByProvider):
            self._open.pop(token, None)  # it is over
            raise
        self._open.pop(token, None)
        return made

    async def terminate(self, ids: tuple[str, ...]) -> None:
        """End machines."""
        await end_machines(ids, self._terminate, self._listed)

    async def report_host(self, report: HostReport) -> bool:
        """Report the state of a machine to EC2."""
        return await self._aws.report_host(self._options.region, report)

    async def _launched(self, request: LaunchRequest, settled_at: float) -> tuple[str, ...]:
        found, _ = await self._described(request.token)
        made = tuple(sorted(_id(each) for each in found))
        if not made:
            made = await self._created(request)
            if made:
                return made
        elif len(made) >= request.count:
            return made
        now = asyncio.get_running_loop().time()
        settled_at = min(settled_at, now + SETTLE_SECONDS)
        if now < settled_at:
            self._open[request.token] = settled_at
            raise LaunchPending(f"AWS: {len(made)} of {request.count} machines are listed")
        if not made:
            raise OutOfCapacity("AWS: the launch made no machines")
        return made

    async def _created(self, request: LaunchRequest) -> tuple[str, ...]:
        """Send a launch; return its machines, () where AWS does not say how it ended.

        What AWS says of a token is final: a repeated request makes no other attempt. So errors of
        an unknown kind end the launch, too.
        """
        if request.domain and request.domain not in self._options.subnets:
            raise RefusedByProvider(f"AWS: the pool has no subnet in {request.domain}")
        answer = await self._call("create_fleet", **_fleet(self._options, self._pool, request))
        zones = {subnet: zone for zone, subnet in self._options.subnets.items()}
        made = sorted(
            f"{SCHEME}{zones[part['LaunchTemplateAndOverrides']['Overrides']['SubnetId']]}/{id_}"
            for part in answer.get("Instances", ())
            for id_ in part.get("InstanceIds", ())
        )
        errors = [error_of(each) for each in answer.get("Errors", ())]
        if made or not errors:
            return tuple(made)
        others = [each for each in errors if not isinstance(each, RefusedByProvider)]
        if not others:
            raise errors[0]
        # Want of capacity before errors of an unknown kind.
        others.sort(key=lambda each: not isinstance(each, OutOfCapacity))
        raise OutOfCapacity(str(others[0]))

    async def _described(self, token: str = "") -> tuple[list[Mapping[str, Any]], bool]:
        """Return the machines of the pool, or of one launch, and whether these are all."""
        tags = {names.CLOUD_CLUSTER: self._options.cluster, names.POOL: self._pool}
        if token:
            tags[names.CLOUD_LAUNCH] = token
        filters = [{"Name": f"tag:{key}", "Values": [value]} for key, value in tags.items()]
        filters.append({"Name": "instance-state-name", "Values": list(_STATES)})
        found: list[Mapping[str, Any]] = []
        more: dict[str, str] = {}
        for _ in range(_PAGES_MAX):
            page = await self._call(
                "describe_instances", Filters=filters, MaxResults=MACHINES_PER_PAGE, **more
            )
            for reservation in page["Reservations"]:
                found += reservation["Instances"]
            if not page.get("NextToken"):
                return found, True
            more = {"NextToken": page["NextToken"]}
        return found, False

    async def _listed(self) -> set[str]:
        return {_id(each) for each in (await self._described())[0]}

    async def _terminate(self, ids: Sequence[str]) -> None:
        await self._call("terminate_instances", InstanceIds=list(ids))

    async def _call(self, operation: str, **parameters: Any) -> Any:
        return await self._aws.call(self._options.region, AwsService.EC2, operation, **parameters)


def _fleet(options: Ec2FleetOptions, pool: str, request: LaunchRequest) -> dict[str, Any]:
    """Return the parameters of CreateFleet: the same for each request with the same token."""
    wanted = [request.domain] if request.domain else list(options.subnets)
    types = [{"InstanceType": each} for each in options.instance_types] or [dict[str, str]()]
    places = [(kind, options.subnets[zone]) for kind in types for zone in wanted]
    all_or_none = {
        "MinTargetCapacity": request.count,
        "SingleAvailabilityZone": True, "SingleInstanceType": True,
    }  # fmt: skip
    template = {options.template_key: options.template, "Version": options.version}
    tags = {
        names.CLOUD_CLUSTER: options.cluster,
        names.POOL: pool,
        names.CLOUD_LAUNCH: request.token,
    }
    if options.is_spot:
        how = {"SpotOptions": {"AllocationStrategy": "capacity-optimized-prioritized"}}
    else:
        how = {"OnDemandOptions": {"AllocationStrategy": "prioritized"}}
    return {
        "Type": "instant",
        "ClientToken": request.token,
        **{key: {**chosen, **all_or_none} for key, chosen in how.items()},
        "LaunchTemplateConfigs": [{
            "LaunchTemplateSpecification": template,
            "Overrides": [
                {**kind, "SubnetId": subnet, "Priority": float(i)}
                for i, (kind, subnet) in enumerate(places)
            ],
        }],
        "TargetCapacitySpecification": {
            "TotalTargetCapacity": request.count,
            "DefaultTargetCapacityType": "spot" if options.is_spot else "on-demand",
        },
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": [{"Key": k, "Value": v} for k, v in tags.items()]}
            for kind in ("fleet", "instance")
        ],
    }  # fmt: skip


def _id(found: Mapping[str, Any]) -> str:
    return f"{SCHEME}{found['Placement']['AvailabilityZone']}/{found['InstanceId']}"


def _instance(found: Mapping[str, Any], events: Mapping[str, str]) -> Instance:
    tags = {tag["Key"]: tag["Value"] for tag in found.get("Tags", ())}
    return Instance(
        id=_id(found),
        pool=tags.get(names.POOL, ""),
        state=_STATES.get(found["State"]["Name"], InstanceState.RUNNING),
        domain=found["Placement"]["AvailabilityZone"],
        token=tags.get(names.CLOUD_LAUNCH, ""),
        maintenance=events.get(found["InstanceId"], ""),
    )
