"""AWS on loopback: moto's server, and the calls of Auto Scaling and EC2 that moto lacks.

`LaunchInstances` and the form of `TerminateInstanceInAutoScalingGroup` with several ids act on
moto's own groups; `ec2_fleet_server.py` adds what moto's `CreateFleet` lacks. `faults` plans
errors: each is met once, before or after the effect. moto is imported when a server starts: it
takes a second of CPU, and every worker collects this module.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from moto.autoscaling.responses import AutoScalingResponse
    from moto.core.responses import ActionResult, EmptyResult

REGION, ZONE, GROUP = "eu-west-1", "eu-west-1a", "h100"


@dataclass(slots=True)
class Fault:
    """An error of one call. `after`: the call has had its effect."""

    operation: str
    code: str
    after: bool = False


@dataclass(slots=True)
class AwsServer:
    """What the tests plan and see."""

    url: str | None
    faults: list[Fault] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    #: Machines that AWS still has, by zone: no limit for a zone that is not named.
    capacity: dict[str, int] = field(default_factory=dict)
    #: Machines that lists lack for now, by instance id; and whether CreateFleet answers a repeated
    #: request without its result.
    unlisted: set[str] = field(default_factory=set)
    is_terse: bool = False
    #: What a zone without capacity answers instead of that it has none.
    codes: dict[str, str] = field(default_factory=dict)
    #: What each CreateFleet that was not a repetition asked for.
    fleets: list[dict[str, Any]] = field(default_factory=list)
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    asked: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    #: Scheduled events, by the id of the machine.
    events: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    #: What was said of hosts.
    reports: list[dict[str, Any]] = field(default_factory=list)
    clients: dict[str, Any] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def client(self, service: str) -> Any:
        import boto3

        if service not in self.clients:
            self.clients[service] = boto3.client(
                service, region_name=REGION, endpoint_url=self.url,
                aws_access_key_id="test", aws_secret_access_key="test",
            )  # fmt: skip
        return self.clients[service]

    def machines(self) -> dict[str, str]:
        """Return the machines of the group and their states."""
        group = _backend().autoscaling_groups[GROUP]
        return {state.instance.id: state.lifecycle_state for state in group.instance_states}

    def meet(self, operation: str, *, after: bool) -> None:
        """Raise the planned error of a call, once."""
        for fault in self.faults:
            if (fault.operation, fault.after) == (operation, after):
                self.faults.remove(fault)
                raise aws_error(fault.code, "planted")

    def clear(self) -> None:
        """Begin without faults and plans."""
        for kept in (self.faults, self.calls, self.capacity, self.events, self.unlisted,
                     self.codes, self.fleets, self.reports):  # fmt: skip
            kept.clear()
        self.is_terse = False


def aws_error(code: str, message: str) -> Exception:
    """Return an answer with a code of AWS."""
    from moto.core.exceptions import ServiceException

    class AwsError(ServiceException):
        """moto's server takes an error of the base class for a fault of its own."""

    return AwsError(code, message)


def _backend() -> Any:
    from moto.autoscaling.models import autoscaling_backends

    return autoscaling_backends["123456789012"][REGION]


def planned(server: AwsServer, operation: str, act: Any) -> Any:
    def call(response: AutoScalingResponse) -> Any:
        with server.lock:
            server.calls[operation] += 1
            server.meet(operation, after=False)
            answer = act(response)
            server.meet(operation, after=True)
            return answer

    return call


def _launch(server: AwsServer, response: AutoScalingResponse) -> ActionResult:
    from moto.core.responses import ActionResult

    given = response._get_params()  # pyright: ignore[reportPrivateUsage] # as moto's own do
    token, count = given["ClientToken"], int(given["RequestedCapacity"])
    zones = given.get("AvailabilityZones") or [ZONE]
    asked = (count, tuple(zones))
    if server.asked.setdefault(token, asked) != asked:
        raise aws_error("IdempotentParameterMismatch", "the token was used for something else")
    if token in server.answers:
        return ActionResult(server.answers[token])
    group = _backend().autoscaling_groups[given["AutoScalingGroupName"]]
    answer = {"AutoScalingGroupName": group.name, "ClientToken": token}
    left = server.capacity.get(zones[0], count)
    if left < count:
        del server.asked[token]
        error = {"AvailabilityZone": zones[0], "ErrorCode": "InsufficientInstanceCapacity",
                 "ErrorMessage": "we do not have enough p5.48xlarge capacity"}  # fmt: skip
        return ActionResult({**answer, "Instances": [], "Errors": [error]})
    if zones[0] in server.capacity:
        server.capacity[zones[0]] -= count
    before = {state.instance.id for state in group.instance_states}
    group.set_desired_capacity(len(before) + count)
    made = [s.instance.id for s in group.instance_states if s.instance.id not in before]
    part = {"AvailabilityZone": zones[0], "InstanceType": "p5.48xlarge", "InstanceIds": made}
    server.answers[token] = {**answer, "Instances": [part], "Errors": []}
    return ActionResult(server.answers[token])


def _terminate(response: AutoScalingResponse) -> EmptyResult:
    from moto.core.responses import EmptyResult

    given = response._get_params()  # pyright: ignore[reportPrivateUsage] # as moto's own do
    group = _backend().autoscaling_groups[given["AutoScalingGroupName"]]
    there = {state.instance.id for state in group.instance_states}
    ids = given["InstanceIds"]
    if not set(ids) <= there:
        raise aws_error("ValidationError", "Instance Id not found")
    for id_ in ids:
        _backend().terminate_instance(id_, should_decrement=True)
    return EmptyResult()


@contextmanager
def _without_images() -> Generator[None]:
    """Have moto make no images: it makes thousands at each start and end, and no test lists any."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
        yield


@contextmanager
def aws_server() -> Generator[AwsServer]:
    """Run the server with one empty group that carries the tag of pool h100."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer(port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    try:
        with _without_images(), _extended(AwsServer(f"http://{host}:{port}")) as server:
            yield server
    finally:
        moto.stop()


@contextmanager
def aws_in_process() -> Generator[AwsServer]:
    """Answer boto3 within the process, without sockets: for virtual time."""
    from moto import mock_aws

    with _without_images(), mock_aws(), _extended(AwsServer(None)) as server:
        yield server


@contextmanager
def _extended(server: AwsServer) -> Generator[AwsServer]:
    """Add the calls that moto lacks, and make the group."""
    from moto.autoscaling.responses import AutoScalingResponse
    from moto.ec2.responses.instances import InstanceResponse

    describe = AutoScalingResponse.describe_auto_scaling_groups
    planted: dict[tuple[Any, str], Any] = {
        (AutoScalingResponse, "launch_instances"): planned(
            server, "launch", partial(_launch, server)
        ),
        (AutoScalingResponse, "terminate_instance_in_auto_scaling_group"): planned(
            server, "terminate", _terminate
        ),
        (AutoScalingResponse, "describe_auto_scaling_groups"): planned(server, "list", describe),
        (InstanceResponse, "describe_instance_status"): planned(
            server, "events", partial(_events, server)
        ),
        (InstanceResponse, "report_instance_status"): planned(
            server, "report", partial(_report, server)
        ),
    }
    with patched(planted):
        _make_group(server)
        yield server


@contextmanager
def patched(planted: Mapping[tuple[Any, str], Any]) -> Generator[None]:
    """Put calls in the place of moto's own."""
    before = {(at, name): getattr(at, name, None) for at, name in planted}
    try:
        for (at, name), act in planted.items():
            setattr(at, name, act)
        yield
    finally:
        for (at, name), act in before.items():
            if act is None:
                delattr(at, name)
            else:
                setattr(at, name, act)


def _events(server: AwsServer, response: Any) -> ActionResult:
    """Answer with the machines that have events of the codes that are asked for, one to a page."""
    from moto.core.responses import ActionResult

    given = response._get_params()
    [codes] = [each["Values"] for each in given["Filters"] if each["Name"] == "event.code"]
    found = [
        {"InstanceId": id_, "Events": events}
        for id_, events in sorted(server.events.items())
        if any(event["Code"] in codes for event in events)
    ]
    at = int(given.get("NextToken") or 0)
    more = {"NextToken": str(at + 1)} if at + 1 < len(found) else {}
    return ActionResult({"InstanceStatuses": found[at : at + 1], **more})


def _report(server: AwsServer, response: Any) -> ActionResult:
    """Take a report of machines that exist."""
    from moto.core.responses import ActionResult
    from moto.ec2.models import ec2_backends

    given = response._get_params()
    for id_ in given["Instances"]:
        ec2_backends["123456789012"][REGION].get_instance(id_)
    server.reports.append(given)
    return ActionResult({})


def _make_group(server: AwsServer) -> None:
    ec2, scaling = server.client("ec2"), server.client("autoscaling")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/20", AvailabilityZone=ZONE)
    scaling.create_launch_configuration(
        LaunchConfigurationName="shape", ImageId="ami-12c6146b", InstanceType="p5.48xlarge"
    )
    scaling.create_auto_scaling_group(
        AutoScalingGroupName=GROUP, LaunchConfigurationName="shape", MinSize=0, MaxSize=1000,
        DesiredCapacity=0, VPCZoneIdentifier=subnet["Subnet"]["SubnetId"],
        Tags=[{"Key": "fairlead.dev/pool", "Value": "h100", "PropagateAtLaunch": True}],
    )  # fmt: skip
