"""Machines of Auto Scaling groups of AWS, one group for each pool (docs/howto/node-pools.md).

    list       DescribeAutoScalingGroups of the one group: its machines, their zones and states
    launch     LaunchInstances with the launch's token: idempotent, it answers with the ids or
               with why there are none, and raises the desired capacity by what it launched
    terminate  TerminateInstanceInAutoScalingGroup for up to 100 machines, lowering the capacity
    events     DescribeInstanceStatus of EC2 once a minute for each region: scheduled maintenance

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
from fairlead.cloud.calls import Announced, Runner, Throttle, Throttled
from fairlead.cloud.provider import (
    CloudError,
    LaunchRequest,
    OutOfCapacity,
    RefusedByProvider,
)
from fairlead.model.machines import Instance, InstanceState, Inventory
from fairlead.model.windows import window_text

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


#: Pages of scheduled events that are read, and machines of each.
_EVENT_PAGES_MAX, _EVENTS_PER_PAGE = 20, 1000
#: Scheduled events that interrupt a machine. Those with a mark in their text are over.
_EVENT_CODES = (
    "instance-reboot",
    "system-reboot",
    "system-maintenance",
    "instance-retirement",
    "instance-stop",
)
_EVENT_OVER = ("[Completed]", "[Canceled]")
#: Of an event without an end, such as a retirement.
_EVENT_SECONDS = 86_400.0


@dataclass(slots=True)
class _Region:
    client: Any
    ec2: Any
    events: Announced
    throttle: Throttle = field(default_factory=lambda: Throttle("AWS", BURST_MAX, PER_SECOND))


class Aws:
    """What the pools of one process share: one client and one throttle for each region."""

    def __init__(self, run: Runner = asyncio.to_thread) -> None:
        self._run = run
        self._regions: dict[str, _Region] = {}

    async def call(self, region: str, operation: str, **parameters: Any) -> Any:
        """Call Auto Scaling. OutOfCapacity, RefusedByProvider, CloudError."""
        found = await self._region(region)
        question = partial(_called, found.client, operation, parameters)
        return await found.throttle.call(self._run, question)

    async def events(self, region: str) -> tuple[Mapping[str, str], str]:
        """Return the maintenance that EC2 has announced, by id, and why it is not known, if so."""
        return await (await self._region(region)).events.get()

    async def _read_events(self, name: str) -> Mapping[str, str]:
        region, out, token = await self._region(name), dict[str, str](), ""
        for _ in range(_EVENT_PAGES_MAX):
            more = {"NextToken": token} if token else {}
            parameters = {
                "Filters": [{"Name": "event.code", "Values": list(_EVENT_CODES)}],
                "IncludeAllInstances": True, "MaxResults": _EVENTS_PER_PAGE, **more,
            }  # fmt: skip
            question = partial(_called, region.ec2, "describe_instance_status", parameters)
            page = await region.throttle.call(self._run, question)
            for status in page["InstanceStatuses"]:
                if window := _first_window(status.get("Events", ())):
                    out[status["InstanceId"]] = window
            token = page.get("NextToken") or ""
            if not token:
                break
        return out

    async def _region(self, name: str) -> _Region:
        found = self._regions.get(name)
        if found is None:
            scaling, ec2 = await self._run(partial(_clients, name))
            events = Announced(partial(self._read_events, name))
            found = self._regions.setdefault(name, _Region(scaling, ec2, events))
        return found


def _first_window(events: Sequence[Mapping[str, Any]]) -> str:
    """Return when the first event is that is not over, as START/END; "" without one."""
    windows = list[tuple[float, float]]()
    for event in events:
        start, end = event.get("NotBefore"), event.get("NotAfter")
        is_over = str(event.get("Description", "")).startswith(_EVENT_OVER)
        if start is not None and not is_over and event.get("Code") in _EVENT_CODES:
            begin = start.timestamp()
            windows.append((begin, end.timestamp() if end is not None else begin + _EVENT_SECONDS))
    if not windows:
        return ""
    return window_text(*min(windows))


def _clients(region: str) -> tuple[Any, Any]:
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
        make = partial(boto3.client, region_name=region or None, config=config)
        return make("autoscaling"), make("ec2")
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
