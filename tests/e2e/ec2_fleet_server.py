"""CreateFleet of EC2 on loopback: moto's own, with the parts that moto lacks.

moto makes the machines, with their tags, in their subnet. It has no client tokens, no limits of
capacity, no minimum, no errors in the answer, and no order of launch templates. These are here, as
the reference of CreateFleet states them
(https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateFleet.html).
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.e2e.aws_server import REGION, ZONE, AwsServer, aws_error, patched, planned

if TYPE_CHECKING:
    from moto.core.responses import ActionResult

TEMPLATE = "h100-template"
#: Another zone than that of the group.
ZONE_B = "eu-west-1b"


@contextmanager
def ec2_fleet(server: AwsServer) -> Generator[dict[str, str]]:
    """Add EC2 Fleet with a launch template; yield the subnet of each zone."""
    from moto.ec2.responses.fleets import Fleets
    from moto.ec2.responses.instances import InstanceResponse

    calls: dict[tuple[Any, str], Any] = {
        (Fleets, "create_fleet"): planned(server, "launch", partial(_create, server)),
        (InstanceResponse, "describe_instances"): _described(
            server, InstanceResponse.describe_instances
        ),
        (InstanceResponse, "terminate_instances"): planned(
            server, "terminate", InstanceResponse.terminate_instances
        ),
    }
    ec2 = server.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
    subnets = {
        zone: ec2.create_subnet(
            VpcId=vpc, CidrBlock=f"10.1.{16 * i}.0/20", AvailabilityZone=zone
        )["Subnet"]["SubnetId"]
        for i, zone in enumerate((ZONE, ZONE_B))
    }  # fmt: skip
    ec2.create_launch_template(
        LaunchTemplateName=TEMPLATE,
        LaunchTemplateData={"ImageId": "ami-12c6146b", "InstanceType": "p5.48xlarge"},
    )
    try:
        with patched(calls):
            yield subnets
    finally:  # moto keeps its state from one server of a process to the next
        ec2.delete_launch_template(LaunchTemplateName=TEMPLATE)


def fleet_machines() -> dict[str, Any]:
    """Return the machines that the launches of all fleets made and that exist, by id."""
    return {
        instance.id: instance
        for instance in _backend().all_instances()
        if instance.state != "terminated" and "fairlead.dev/launch" in _tags(instance)
    }


def _backend() -> Any:
    from moto.ec2.models import ec2_backends

    return ec2_backends["123456789012"][REGION]


def _tags(instance: Any) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in instance.get_tags()}


def _described(server: AwsServer, describe: Any) -> Any:
    def act(response: Any) -> ActionResult:
        """Answer without the machines that lists lack."""
        from moto.core.responses import ActionResult

        answer: dict[str, Any] = describe(response).result
        kept: list[Any] = []
        for reservation in answer["Reservations"]:
            kept.append(copy.copy(reservation))
            kept[-1].instances = [
                each for each in reservation.instances if each.id not in server.unlisted
            ]
        return ActionResult({**answer, "Reservations": kept})

    def call(response: Any) -> ActionResult:
        names = {each["Name"] for each in response._get_params().get("Filters", ())}
        operation = "look" if "tag:fairlead.dev/launch" in names else "list"
        return planned(server, operation, act)(response)

    return call


def _create(server: AwsServer, response: Any) -> ActionResult:
    from moto.core.responses import ActionResult

    given = dict(response._get_params())
    token = given.pop("ClientToken")
    if server.asked.setdefault(token, (given,)) != (given,):
        raise aws_error("IdempotentParameterMismatch", "the token was used for something else")
    if token in server.answers:
        answer = server.answers[token]
        return ActionResult({"FleetId": answer["FleetId"]} if server.is_terse else answer)
    try:
        found = _made(server, given)
    except Exception:
        del server.asked[token]
        raise
    server.fleets.append(given)
    server.answers[token] = found
    return ActionResult(found)


def _made(server: AwsServer, given: Mapping[str, Any]) -> dict[str, Any]:
    """Launch in the first place that has enough; else answer with an error for each place."""
    target = given["TargetCapacitySpecification"]
    kind = str(target["DefaultTargetCapacityType"])
    options = given["SpotOptions" if kind == "spot" else "OnDemandOptions"]
    count, least = int(target["TotalTargetCapacity"]), int(options.get("MinTargetCapacity", 1))
    is_single = any(_is(options, f"Single{what}") for what in ("InstanceType", "AvailabilityZone"))
    if "MinTargetCapacity" in options and not is_single:
        raise aws_error("InvalidParameterCombination", "MinTargetCapacity needs a single place")
    [config] = given["LaunchTemplateConfigs"]
    template = config["LaunchTemplateSpecification"]
    errors: list[dict[str, Any]] = []
    for place in _ordered(config["Overrides"]):
        zone = _backend().get_subnet(place["SubnetId"]).availability_zone
        have = min(count, server.capacity.get(zone, count))
        where = {"LaunchTemplateSpecification": template, "Overrides": place}
        if have < count:
            code = server.codes.get(zone, "InsufficientInstanceCapacity")
            errors.append({"LaunchTemplateAndOverrides": where, "Lifecycle": kind,
                           "ErrorCode": code, "ErrorMessage": "we do not have enough"})  # fmt: skip
        if have >= least:
            if zone in server.capacity:
                server.capacity[zone] -= have
            fleet = _fleet(given, {**config, "Overrides": [place]}, have)
            return {"FleetId": fleet.id, "Instances": fleet.instances, "Errors": errors}
    return {"FleetId": f"fleet-{len(server.answers):08x}", "Instances": [], "Errors": errors}


def _is(options: Mapping[str, Any], name: str) -> bool:
    return str(options.get(name, "")).lower() == "true"


def _ordered(overrides: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    return sorted(overrides, key=lambda each: float(each["Priority"]))


def _fleet(given: Mapping[str, Any], config: Mapping[str, Any], count: int) -> Any:
    kind = given["TargetCapacitySpecification"]["DefaultTargetCapacityType"]
    return _backend().create_fleet(
        on_demand_options=given.get("OnDemandOptions", {}),
        spot_options=given.get("SpotOptions", {}),
        target_capacity_specification={
            "TotalTargetCapacity": count, "DefaultTargetCapacityType": kind,
        },
        launch_template_configs=[config],
        excess_capacity_termination_policy="",
        replace_unhealthy_instances=False,
        terminate_instances_with_expiration=False,
        fleet_type=given["Type"],
        valid_from=None,
        valid_until=None,
        tag_specifications=given["TagSpecifications"],
    )  # fmt: skip
