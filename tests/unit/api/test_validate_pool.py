"""Rules of NodePools and of the Fleet: every mistake of a manifest at once, with its path."""

from __future__ import annotations

from typing import Any

from fairlead.api.validation.validate_pool import validate_fleet, validate_pool


def pool(name: str = "h100", **spec: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "provider": {"type": "Static", "reference": "/etc/fairlead/h100.json"},
        "template": {"resources": {"cpu": "96", "nvidia.com/gpu": 8}},
        "max": 100,
    }
    return {"metadata": {"name": name}, "spec": {**base, **spec}}


def fields(obj: dict[str, Any]) -> list[str]:
    return [cause.field for cause in validate_pool(obj)]


def test_a_good_pool_has_no_mistakes() -> None:
    assert fields(pool()) == []
    assert fields(pool(min=1, hold=5, domains=[{"name": "a", "labels": {"rack": "r1"}}])) == []


def test_all_mistakes_come_at_once_in_the_order_of_the_fields() -> None:
    bad = pool(
        "Not_A_Name",
        min=200,
        hold=500,
        headroomNodes=101,
        spareNodes=501,
        provider={"type": "Exec", "reference": "bin/buy"},
        template={
            "resources": {"cpu": "much", "no name": 1},
            "labels": {"fairlead.dev/pool": "x", "ok": "not ok!"},
            "taints": [
                {"key": "fairlead.dev/joining", "effect": "Never"},
                {"key": "fairlead.dev/spare", "effect": "NoSchedule"},
            ],
        },
        domains=[{"name": "a"}, {"name": "a"}, {"name": ""}],
    )
    assert fields(bad) == [
        "metadata.name",
        "spec.min",
        "spec.hold",
        "spec.headroomNodes",
        "spec.spareNodes",
        "spec.provider.reference",
        "spec.template.resources.cpu",
        "spec.template.resources.no name",
        "spec.template.labels.fairlead.dev/pool",
        "spec.template.labels.ok",
        "spec.template.taints[0].effect",
        "spec.template.taints[0].key",
        "spec.template.taints[1].key",
        "spec.domains[1].name",
        "spec.domains[2].name",
    ]


def test_mistakes_in_prices_deadlines_and_disruption_budgets_come_at_once() -> None:
    bad = pool(
        headroomGPUs=801,
        pricePerHour="1.2.3",
        scaleUp={"launchSeconds": 1801},
        disruption={"nodesAtOnceMax": "101%", "nodesPerHourMax": -1, "nodesPerDayMax": "few"},
    )
    assert fields(bad) == [
        "spec.headroomGPUs",
        "spec.pricePerHour",
        "spec.scaleUp.launchSeconds",
        "spec.disruption.nodesAtOnceMax",
        "spec.disruption.nodesPerHourMax",
        "spec.disruption.nodesPerDayMax",
    ]
    assert fields(pool(pricePerHour=-1)) == ["spec.pricePerHour"]
    assert fields(
        pool(
            headroomGPUs=800,
            pricePerHour="98.32",
            scaleUp={"launchSeconds": 1800},
            disruption={"nodesAtOnceMax": 0, "nodesPerHourMax": "3", "nodesPerDayMax": "10%"},
        )
    ) == []  # fmt: skip


def gcp(**options: str) -> dict[str, Any]:
    provider = {"type": "GCP", "reference": "h100", "options": {"project": "ml", **options}}
    return pool(provider=provider, domains=[{"name": "europe-west4-a"}])


def test_a_pool_of_gcp_names_its_project_and_zones_and_known_options() -> None:
    assert fields(gcp()) == []
    assert fields(gcp(resizeRequests="true", queueSeconds="0", runSeconds="3600")) == []
    bare = pool(provider={"type": "GCP", "options": {"region": "europe-west4"}})
    assert fields(bare) == [
        "spec.provider.reference",
        "spec.provider.options[region]",
        "spec.provider.options[project]",
        "spec.domains",
    ]
    options = "spec.provider.options"
    assert fields(gcp(resizeRequests="yes")) == [f"{options}[resizeRequests]"]
    for seconds in ("soon", "-1", "599", "604801", "6000000000000", "\u0661\u0662\u0663\u0664"):
        assert fields(gcp(resizeRequests="true", runSeconds=seconds)) == [f"{options}[runSeconds]"]
    (cause,) = validate_pool(gcp(queueSeconds="60"))
    assert 'needs the option resizeRequests: "true"' in cause.message


def azure(
    reference: str = "h100", *domains: str, most: int = 100, **options: str
) -> dict[str, Any]:
    known = {"subscription": "6f1c5a3e-0000-4000-8000-1c2d3e4f5a6b", "resourceGroup": "Research-1"}
    provider = {"type": "Azure", "reference": reference, "options": {**known, **options}}
    named = [{"name": domain} for domain in domains]
    return pool(provider=provider, domains=named, scaleUp={"nodesPerLaunchMax": most})


def test_a_pool_of_azure_names_its_subscription_resource_group_and_scale_sets() -> None:
    assert fields(azure()) == []
    assert fields(azure("h100", "westeurope-1", "westeurope-2", most=1000)) == []
    at = "spec.provider.options"
    bare = pool(provider={"type": "Azure", "options": {"project": "ml"}})
    assert fields(bare) == [
        "spec.provider.reference", f"{at}[project]", f"{at}[subscription]", f"{at}[resourceGroup]",
    ]  # fmt: skip
    for subscription in ("ml", "6F1C5A3E-0000-4000-8000-1C2D3E4F5A6B", "../../x"):
        assert fields(azure(subscription=subscription)) == [f"{at}[subscription]"]
    for group in ("a/b", "a.", "x" * 91):
        assert fields(azure(resourceGroup=group)) == [f"{at}[resourceGroup]"]
    for reference in ("a/b", "-a", "h" * 60):
        assert fields(azure(reference, "zone-1")) == ["spec.provider.reference"]
    assert fields(azure(most=1001)) == ["spec.scaleUp.nodesPerLaunchMax"]


def test_a_pool_of_aws_launches_what_one_request_may_hold() -> None:
    provider = {"type": "AWS", "reference": "h100", "options": {"zone": "a"}}
    found = fields(pool(provider=provider, scaleUp={"nodesPerLaunchMax": 101}))
    assert found == ["spec.scaleUp.nodesPerLaunchMax", "spec.provider.options[zone]"]


def ec2_fleet(*zones: str, **options: str) -> dict[str, Any]:
    known = {
        "region": "eu-west-1", "launchTemplate": "h100", "cluster": "research",
        "subnets": "eu-west-1a=subnet-0a1b2c3d, eu-west-1b=subnet-4e5f6a7b",
    }  # fmt: skip
    provider = {"type": "AWS", "options": {**known, **options}}
    domains = [{"name": zone} for zone in zones]
    return pool(provider=provider, domains=domains, scaleUp={"nodesPerLaunchMax": 1000})


def test_a_pool_of_aws_has_an_auto_scaling_group_or_a_launch_template() -> None:
    at = "spec.provider.options"
    assert fields(pool(provider={"type": "AWS"})) == ["spec.provider.reference"]
    both = ec2_fleet()
    both["spec"]["provider"]["reference"] = "h100-group"
    assert fields(both) == ["spec.provider.reference"]
    group = {"type": "AWS", "reference": "h100", "options": {"subnets": "a=subnet-0a1b2c3d"}}
    (cause,) = validate_pool(pool(provider=group))
    assert (cause.field, cause.message.rpartition(": ")[2]) == (
        f"{at}[subnets]", "needs the option launchTemplate",
    )  # fmt: skip


def test_a_pool_of_ec2_fleet_names_its_launch_template_cluster_and_a_subnet_of_each_zone() -> None:
    at = "spec.provider.options"
    assert fields(ec2_fleet()) == []
    more = {"launchTemplateVersion": "$Latest", "instanceTypes": "p5.48xlarge,p5e.48xlarge"}
    more |= {"launchTemplate": "lt-0123456789abcdef0", "capacityType": "spot"}
    assert fields(ec2_fleet("eu-west-1a", "eu-west-1b", **more)) == []
    bare = {"type": "AWS", "options": {"launchTemplate": "", "zone": "a"}}
    found = validate_pool(pool(provider=bare, scaleUp={"nodesPerLaunchMax": 1000}))
    assert [(cause.field, cause.reason) for cause in found] == [
        (f"{at}[zone]", "FieldValueInvalid"),
        (f"{at}[launchTemplate]", "FieldValueRequired"),
        (f"{at}[cluster]", "FieldValueRequired"),
        (f"{at}[subnets]", "FieldValueRequired"),
    ]
    for option, values in {
        "launchTemplate": ("lt-1", "a b", "x"),
        "launchTemplateVersion": ("0", "latest", "\u0661", ""),
        "cluster": ("a/b", "c" * 64),
        "subnets": ("subnet-0a1b2c3d", "a=b", "a=subnet-0a1b2c3d,a=subnet-4e5f6a7b"),
        "instanceTypes": ("p5", "p5.48xlarge;p4d.24xlarge", ""),
        "capacityType": ("Spot", ""),
    }.items():
        for value in values:
            assert fields(ec2_fleet(**{option: value})) == [f"{at}[{option}]"], value
    assert fields(ec2_fleet("eu-west-1a", "eu-west-1c")) == ["spec.domains[1].name"]
    assert fields(ec2_fleet("eu-west-1a", subnets="none")) == [f"{at}[subnets]"]


def test_a_pool_that_cannot_be_read_gives_one_cause_with_its_path() -> None:
    (cause,) = validate_pool(pool(max="many"))
    assert (cause.field, cause.reason) == ("spec.max", "FieldValueTypeInvalid")


def test_what_a_provider_needs_is_required() -> None:
    assert fields(pool(provider={"type": "Exec"})) == ["spec.provider.reference"]
    assert fields(pool(provider={"type": "Simulated"})) == []


def test_there_is_one_fleet_and_its_overrides_have_names_and_ends() -> None:
    override = {"name": "a", "nodes": ["n1"], "expiresAt": "soon", "by": "ann", "reason": "move"}
    fleet = {"metadata": {"name": "mine"}, "spec": {"overrides": [override, override]}}
    assert [cause.field for cause in validate_fleet(fleet)] == [
        "metadata.name",
        "spec.overrides[0].expiresAt",
        "spec.overrides[1].name",
        "spec.overrides[1].expiresAt",
    ]


def test_a_size_that_is_held_is_within_the_size() -> None:
    found = [fields(pool(min=3, hold=hold)) for hold in (2, 3, 100, 101)]
    assert found == [["spec.hold"], [], [], ["spec.hold"]]


def test_spares_are_within_the_size_and_of_machines_that_fairlead_owns() -> None:
    assert fields(pool(spareNodes=100)) == []
    assert fields(pool(spareNodes=101)) == ["spec.spareNodes"]
    assert fields(pool(spareNodes=6, hold=5)) == ["spec.spareNodes"]
    assert fields(pool(spareNodes=1, provider={"type": "External"})) == ["spec.spareNodes"]


def test_all_mistakes_of_a_pool_that_another_autoscaler_owns_come_at_once() -> None:
    provider = {"type": "External"}
    assert fields(pool(provider=provider, headroomNodes=4, hold=5)) == []
    bad = pool(
        provider={**provider, "reference": "group", "options": {"region": "eu"}},
        template={"resources": {"pods": 110, "cpu": 0}, "labels": {"fairlead.dev/pool": "x"}},
        domains=[{"name": "a"}], headroomNodes=101, scaleDown={"consolidates": True},
    )  # fmt: skip
    assert fields(bad) == [
        "spec.headroomNodes",
        "spec.provider.reference",
        "spec.provider.options[region]",
        "spec.domains",
        "spec.scaleDown.consolidates",
        "spec.template.resources",
        "spec.template.labels.fairlead.dev/pool",
    ]
