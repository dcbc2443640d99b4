"""The options of a pool of AWS that launches through EC2 Fleet: what they mean, and their rules.

A pool has either an Auto Scaling group, which `provider.reference` names, or the option
`launchTemplate`. The other options here need that one. Options are texts, so lists are written
with commas: `subnets: eu-west-1a=subnet-0a1b2c3d, eu-west-1b=subnet-4e5f6a7b`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

LAUNCH_TEMPLATE = "launchTemplate"
#: MinTargetCapacity, which makes a launch all or none, is at most this.
EC2_FLEET_LAUNCH_MAX = 1_000
#: Options beside `launchTemplate`; `region` is an option of all pools of AWS.
EC2_FLEET_OPTIONS = (
    "launchTemplateVersion", "cluster", "subnets", "instanceTypes", "capacityType",
)  # fmt: skip
_CLUSTER = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_TEMPLATE = re.compile(r"lt-[0-9a-f]{8,17}|(?!lt-)[A-Za-z0-9().\-/_]{3,128}")
_TEMPLATE_ID = "lt-"
_VERSION = re.compile(r"[1-9][0-9]{0,8}|\$Default|\$Latest", re.ASCII)
_SUBNET = re.compile(r"[a-z0-9-]+=subnet-[0-9a-f]{8,17}")
_TYPE = re.compile(r"[a-z0-9-]+\.[a-z0-9-]+")
_CAPACITY_TYPES = ("on-demand", "spot")


@dataclass(frozen=True, slots=True)
class Ec2FleetOptions:
    """Options that break no rule."""

    region: str
    cluster: str
    template: str
    version: str
    #: The subnet of each zone, and instance types, in order of preference. Without types: that of
    #: the launch template.
    subnets: Mapping[str, str]
    instance_types: tuple[str, ...]
    is_spot: bool

    @property
    def template_key(self) -> str:
        """What AWS calls the kind of name in `template`."""
        is_id = self.template.startswith(_TEMPLATE_ID)
        return "LaunchTemplateId" if is_id else "LaunchTemplateName"


def ec2_fleet_options(options: Mapping[str, str]) -> Ec2FleetOptions:
    """Return the options of a pool in which `ec2_fleet_mistakes` finds none."""
    pairs = (each.partition("=") for each in _listed(options, "subnets"))
    return Ec2FleetOptions(
        region=options.get("region", ""),
        cluster=options.get("cluster", ""),
        template=options.get(LAUNCH_TEMPLATE, ""),
        version=options.get("launchTemplateVersion", "$Default"),
        subnets={zone: subnet for zone, _, subnet in pairs},
        instance_types=tuple(_listed(options, "instanceTypes")),
        is_spot=options.get("capacityType") == "spot",
    )


def ec2_fleet_mistakes(options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each option that breaks a rule, and what it must be."""
    for option, pattern, what in (
        (LAUNCH_TEMPLATE, _TEMPLATE, "the name of a launch template, or its id, lt-..."),
        ("launchTemplateVersion", _VERSION, "a number, $Default or $Latest"),
        ("cluster", _CLUSTER, "the name of this cluster: 1 to 63 letters, digits, '-', '_', '.'"),
    ):
        is_required = option != "launchTemplateVersion"
        if (is_required or option in options) and not pattern.fullmatch(options.get(option, "")):
            yield option, what
    subnets = _listed(options, "subnets")
    zones = {each.partition("=")[0] for each in subnets}
    if not subnets or not all(_SUBNET.fullmatch(each) for each in subnets):
        yield "subnets", "ZONE=SUBNET, ..., such as eu-west-1a=subnet-0a1b2c3d"
    elif len(zones) < len(subnets):
        yield "subnets", "one subnet in each zone: EC2 Fleet takes no more"
    types = _listed(options, "instanceTypes")
    if "instanceTypes" in options and not (types and all(_TYPE.fullmatch(t) for t in types)):
        yield "instanceTypes", "instance types with commas between, such as p5.48xlarge"
    if options.get("capacityType", "spot") not in _CAPACITY_TYPES:
        yield "capacityType", " or ".join(_CAPACITY_TYPES)


def _listed(options: Mapping[str, str], option: str) -> Sequence[str]:
    return [text.strip() for text in options.get(option, "").split(",") if text.strip()]
