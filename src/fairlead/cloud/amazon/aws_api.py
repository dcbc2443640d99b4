"""The APIs of AWS, as the providers of AWS call them: Auto Scaling and EC2.

Calls run in threads, since boto3 blocks. `Throttle` keeps the calls of one region within half of
the rates that AWS states for an account, and backs off when AWS throttles all the same. boto3
itself does not retry: the controller does, with the same token.

Scheduled maintenance is read with DescribeInstanceStatus of EC2, once a minute for each region.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from typing import Any

from fairlead.cloud.calls import Announced, Runner, Throttle, Throttled, retry_after_seconds
from fairlead.cloud.errors import Stated, Words
from fairlead.cloud.provider import CloudError, RefusedByProvider
from fairlead.model.health.machines import DESCRIPTION_MAX, HostReport
from fairlead.model.health.windows import window_text

#: Starts the id of a machine, as its node states it: aws:///ZONE/INSTANCE.
SCHEME = "aws:///"
#: Machines of one call: LaunchInstances and TerminateInstanceInAutoScalingGroup take no more.
MACHINES_PER_CALL_MAX = 100
#: EC2's buckets for calls that change something hold 50 and refill by 5 per second; half of that.
BURST_MAX, PER_SECOND = 25.0, 2.5
_CONNECT_SECONDS, _READ_SECONDS = 10, 60

WORDS = Words(
    "AWS",
    is_whole=True,
    throttled=(
        "THROTTLING", "THROTTLINGEXCEPTION", "REQUESTLIMITEXCEEDED", "TOOMANYREQUESTS",
    ),
    no_capacity=(
        "INSUFFICIENTINSTANCECAPACITY", "INSUFFICIENTHOSTCAPACITY", "INSUFFICIENTCAPACITY",
        "INSUFFICIENTRESERVEDINSTANCECAPACITY", "INSUFFICIENTFREEADDRESSESINSUBNET",
        "INSTANCELIMITEXCEEDED", "VCPULIMITEXCEEDED", "MAXSPOTINSTANCECOUNTEXCEEDED",
        "RESERVATIONCAPACITYEXCEEDED", "SPOTMAXPRICETOOLOW", "UNFULFILLABLECAPACITY",
        "UNSUPPORTED",
    ),
    refused=(
        "ACCESSDENIED", "ACCESSDENIEDEXCEPTION", "AUTHFAILURE", "EXPIREDTOKEN",
        "INVALIDCLIENTTOKENID", "UNAUTHORIZEDOPERATION", "UNRECOGNIZEDCLIENTEXCEPTION",
        "IDEMPOTENTPARAMETERMISMATCH", "IDEMPOTENTPARAMETERMISMATCHERROR", "VALIDATIONERROR",
        "MISSINGPARAMETER", "INVALIDPARAMETER", "INVALIDPARAMETERCOMBINATION",
        "INVALIDPARAMETERVALUE", "INVALIDSUBNETID.NOTFOUND", "INVALIDINSTANCEID.NOTFOUND",
        "INVALIDINSTANCEID.MALFORMED", "INVALIDLAUNCHTEMPLATEID.MALFORMED",
        "INVALIDLAUNCHTEMPLATEID.NOTFOUND", "INVALIDLAUNCHTEMPLATEID.VERSIONNOTFOUND",
        "INVALIDLAUNCHTEMPLATENAME.NOTFOUNDEXCEPTION",
    ),
)  # fmt: skip

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
#: Checks of the network, of which EC2 has a reason of its own.
_NETWORK_CHECKS = ("infiniband", "network")
#: Of an event without an end, such as a retirement.
_EVENT_SECONDS = 86_400.0


class AwsService(Enum):
    """An API, as boto3 names it."""

    SCALING = "autoscaling"
    EC2 = "ec2"


@dataclass(slots=True)
class _Region:
    clients: Mapping[AwsService, Any]
    events: Announced
    throttle: Throttle = field(default_factory=lambda: Throttle("AWS", BURST_MAX, PER_SECOND))


class Aws:
    """What the pools of one process share: one client and one throttle for each region."""

    def __init__(self, run: Runner = asyncio.to_thread) -> None:
        self._run = run
        self._regions: dict[str, _Region] = {}

    async def call(
        self, region: str, service: AwsService, operation: str, **parameters: Any
    ) -> Any:
        """Call an operation. OutOfCapacity, RefusedByProvider, CloudError."""
        found = await self._region(region)
        question = partial(_called, found.clients[service], operation, parameters)
        return await found.throttle.call(self._run, question)

    async def events(self, region: str) -> tuple[Mapping[str, str], str]:
        """Return the maintenance that EC2 has announced, by id, and why it is not known, if so."""
        return await (await self._region(region)).events.get()

    async def report_host(self, region: str, report: HostReport) -> bool:
        """Report the state of a machine (ReportInstanceStatus), which changes nothing at once.

        False for the id of no machine of AWS.
        """
        if not report.machine.startswith(SCHEME):
            return False
        is_network = any(each.startswith(_NETWORK_CHECKS) for each in report.checks)
        await self.call(
            region, AwsService.EC2, "report_instance_status",
            Instances=[report.machine.rpartition("/")[2]],
            Status="ok" if report.is_over else "impaired",
            ReasonCodes=["performance-network" if is_network else "other"],
            StartTime=datetime.fromtimestamp(report.since, UTC),
            Description=report.description[:DESCRIPTION_MAX],
        )  # fmt: skip
        return True

    async def _read_events(self, name: str) -> Mapping[str, str]:
        out, token = dict[str, str](), ""
        for _ in range(_EVENT_PAGES_MAX):
            more = {"NextToken": token} if token else {}
            page = await self.call(
                name, AwsService.EC2, "describe_instance_status", IncludeAllInstances=True,
                Filters=[{"Name": "event.code", "Values": list(_EVENT_CODES)}],
                MaxResults=_EVENTS_PER_PAGE, **more,
            )  # fmt: skip
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
            clients = await self._run(partial(_clients, name))
            events = Announced(partial(self._read_events, name))
            found = self._regions.setdefault(name, _Region(clients, events))
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


def _clients(region: str) -> Mapping[AwsService, Any]:
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
        return {service: make(service.value) for service in AwsService}
    except BotoCoreError as error:
        raise RefusedByProvider(f"AWS: {error}") from error


def _called(client: Any, operation: str, parameters: Mapping[str, Any]) -> Any:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return getattr(client, operation)(**parameters)
    except ClientError as error:
        stated: Mapping[str, str] = error.response.get("Error", {})
        found = WORDS.error_of([Stated(stated.get("Code", ""), stated.get("Message", ""))])
        if isinstance(found, Throttled):
            answer: Mapping[str, Any] = error.response.get("ResponseMetadata", {})
            header = answer.get("HTTPHeaders", {}).get("retry-after")
            found.retry_after_seconds = retry_after_seconds(header)
        raise found from error
    except BotoCoreError as error:
        raise CloudError(f"AWS: {error}") from error


def error_of(failed: Mapping[str, str]) -> CloudError:
    """Return what one error in the answer to a launch means."""
    return WORDS.error_of([Stated(failed.get("ErrorCode", ""), failed.get("ErrorMessage", ""))])


async def end_machines(
    ids: Sequence[str],
    end: Callable[[Sequence[str]], Awaitable[Any]],
    listed: Callable[[], Awaitable[set[str]]],
) -> None:
    """End machines by their ids, as nodes state them; those that are gone are no mistake.

    `end` takes instance ids, and AWS refuses all of them for one that is gone. `listed` returns the
    ids of the machines that exist.
    """
    for start in range(0, len(ids), MACHINES_PER_CALL_MAX):
        part = ids[start : start + MACHINES_PER_CALL_MAX]
        try:
            await end([id_.rpartition("/")[2] for id_ in part])
        except RefusedByProvider:
            known = await listed()
            left = [id_ for id_ in part if id_ in known]
            if len(left) == len(part):
                raise
            await end_machines(left, end, listed)
