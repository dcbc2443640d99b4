"""Machines of Auto Scaling groups of AWS, one group for each pool (docs/howto/node-pools.md).

    list       DescribeAutoScalingGroups of the one group: its machines, their zones and states
    launch     LaunchInstances with the launch's token: idempotent, it answers with the ids or
               with why there are none, and raises the desired capacity by what it launched
    terminate  TerminateInstanceInAutoScalingGroup for up to 100 machines, lowering the capacity

Calls run in threads, since boto3 blocks. `Throttle` keeps the calls of one region within half of
the rates that AWS states for an account, and backs off when AWS throttles all the same. boto3
itself does not retry: the controller does, with the same token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fairlead.api import names
from fairlead.cloud.calls import Runner, Throttle, Throttled
from fairlead.cloud.provider import (
    CloudError,
    LaunchRequest,
    OutOfCapacity,
    RefusedByProvider,
)
from fairlead.model.machines import Instance, InstanceState, Inventory

SCHEME = "aws:///"
#: Machines of one call: LaunchInstances and TerminateInstanceInAutoScalingGroup take no more.
MACHINES_PER_CALL_MAX = 100
#: EC2's buckets for calls that change something hold 50 and refill by 5 per second; half of that.
BURST_MAX, PER_SECOND = 25.0, 2.5
_CONNECT_SECONDS, _READ_SECONDS = 10, 60

_THROTTLED = ("Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests")
_NO_CAPACITY = (
    "InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientCapacity",
    "InsufficientReservedInstanceCapacity", "InsufficientFreeAddressesInSubnet",
    "InstanceLimitExceeded", "VcpuLimitExceeded", "MaxSpotInstanceCountExceeded",
    "ReservationCapacityExceeded", "SpotMaxPriceTooLow", "UnfulfillableCapacity", "Unsupported",
)  # fmt: skip
_REFUSED = (
    "AccessDenied", "AccessDeniedException", "AuthFailure", "ExpiredToken", "InvalidClientTokenId",
    "UnauthorizedOperation", "UnrecognizedClientException", "IdempotentParameterMismatch",
    "IdempotentParameterMismatchError", "ValidationError",
)  # fmt: skip
_STATES = {
    "Pending": InstanceState.STARTING,
    "Terminating": InstanceState.STOPPING,
    "Detaching": InstanceState.STOPPING,
}
#: Machines of a warm pool, and those that have left the group, are none of the pool.
_NOT_LISTED = ("Warmed", "Terminated", "Detached")


@dataclass(slots=True)
class _Region:
    client: Any
    throttle: Throttle = field(default_factory=lambda: Throttle("AWS", BURST_MAX, PER_SECOND))


class Aws:
    """What the pools of one process share: one client and one throttle for each region."""

    def __init__(self, run: Runner = asyncio.to_thread) -> None:
        self._run = run
        self._regions: dict[str, _Region] = {}

    async def call(self, region: str, operation: str, **parameters: Any) -> Any:
        """Call Auto Scaling. OutOfCapacity, RefusedByProvider, CloudError."""
        found = self._regions.get(region)
        if found is None:
            made = await self._run(partial(_client, region))
            found = self._regions.setdefault(region, _Region(made))
        question = partial(_called, found.client, operation, parameters)
        return await found.throttle.call(self._run, question)


def _client(region: str) -> Any:
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError as error:
        raise RefusedByProvider("boto3 is missing: pip install 'fairlead[aws]'") from error
    config = Config(
        connect_timeout=_CONNECT_SECONDS, read_timeout=_READ_SECONDS,
        retries={"total_max_attempts": 1},
    )  # fmt: skip
    try:
        return boto3.client("autoscaling", region_name=region or None, config=config)
    except BotoCoreError as error:
        raise RefusedByProvider(f"AWS: {error}") from error


def _called(client: Any, operation: str, parameters: Mapping[str, Any]) -> Any:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return getattr(client, operation)(**parameters)
    except ClientError as error:
        stated: Mapping[str, str] = error.response.get("Error", {})
        raise _error(stated.get("Code", ""), stated.get("Message", "")) from error
    except BotoCoreError as error:
        raise CloudError(f"AWS: {error}") from error


def _error(code: str, message: str) -> CloudError:
    text = f"AWS: {code}: {message}"
    if code in _THROTTLED:
        return Throttled(text)
    if code in _NO_CAPACITY:
        return OutOfCapacity(text)
    return RefusedByProvider(text) if code in _REFUSED else CloudError(text)


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
        return Inventory(tuple(_instances(groups[0]["Instances"], tags.get(names.POOL, ""))))

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
            raise _error(failed.get("ErrorCode", ""), failed.get("ErrorMessage", ""))
        raise CloudError("AWS: LaunchInstances answered with neither machines nor errors")

    async def terminate(self, ids: tuple[str, ...]) -> None:
        """End machines and lower the desired capacity by as many."""
        bare = [id_.rpartition("/")[2] for id_ in ids]
        for start in range(0, len(bare), MACHINES_PER_CALL_MAX):
            await self._terminate(bare[start : start + MACHINES_PER_CALL_MAX])

    async def _terminate(self, ids: Sequence[str]) -> None:
        try:
            await self._call(
                "terminate_instance_in_auto_scaling_group", InstanceIds=list(ids),
                AutoScalingGroupName=self._group, ShouldDecrementDesiredCapacity=True,
            )  # fmt: skip
        except RefusedByProvider:
            # One that is gone already fails the whole call.
            listed = {each.id.rpartition("/")[2] for each in (await self.instances()).instances}
            left = [id_ for id_ in ids if id_ in listed]
            if len(left) == len(ids):
                raise
            if left:
                await self._terminate(left)

    async def _call(self, operation: str, **parameters: Any) -> Any:
        return await self._aws.call(self._region, operation, **parameters)


def _instances(found: Sequence[Mapping[str, Any]], pool: str) -> list[Instance]:
    out: list[Instance] = []
    for each in found:
        state, zone = str(each["LifecycleState"]), str(each["AvailabilityZone"])
        if state.startswith(_NOT_LISTED):
            continue
        known = _STATES.get(state.partition(":")[0], InstanceState.RUNNING)
        out.append(Instance(f"{SCHEME}{zone}/{each['InstanceId']}", pool, known, zone))
    return out
