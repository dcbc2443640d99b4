"""Claims for devices on a real API server: what our planner places, the real kube-scheduler binds.

Slices are made by hand, and kube-controller-manager makes the claims of pods from their templates.
Expressions are judged alone first: for each of them and each node a pod that can go there only.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from msgspec.structs import replace as msgspec_replace
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.operating import (
    POLICY,
    controllers,
    delete_all,
    http_client,
    install_kinds,
    job_body,
    sweep,
    until,
    virtual_nodes,
)
from tests.kubernetes.own_plane import own_plane

from fairlead.api.kubernetes.core import Pod
from fairlead.api.kubernetes.devices import (
    Device,
    DeviceTaint,
    ResourceClaimTemplate,
    ResourceSlice,
)
from fairlead.api.meta import to_wire
from fairlead.api.names import JOB_NAME
from fairlead.api.pods.served_resources import (
    IMPLICIT,
    SERVED_CLAIM,
    ResourceClasses,
    served_asks,
    served_requests,
)
from fairlead.api.resources import (
    DEVICE_CLASSES,
    JOBS,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
)
from fairlead.api.values.amounts import Amount, Amounts, added, read_all
from fairlead.decide.pinning import Binding
from fairlead.decide.placement.places.whatif import would_fit
from fairlead.decide.reasons import Outcome
from fairlead.embedded.quota.usage import Served, usage_of
from fairlead.embedded.schema.values import as_map
from fairlead.kube.client import HttpClient
from fairlead.model.claimed.devices import DeviceTable
from fairlead.model.cluster import ClusterState
from fairlead.testing.builders import make_job, make_node, make_placement
from fairlead.testing.device_builders import (
    DRIVER,
    MIG,
    all_devices_request,
    device_request,
    first_of_request,
    make_device,
    make_device_claim,
    make_device_class,
    make_device_template,
    make_mig_slices,
    make_slice,
    mig_template,
    with_device_claims,
)

pytestmark = pytest.mark.kubernetes
DIRECT = replace(POLICY, binding=Binding.DIRECT)
AT = f'device.attributes["{DRIVER}"]'
MEMORY = f'device.capacity["{DRIVER}"].memory'
#: Every part of the language that is understood, true for some devices and false for others.
EXPRESSIONS = (
    "true",
    f'{AT}.model == "a"',
    f'{AT}.model != "a" && {AT}.index >= 1',
    f"!{AT}.ready || {AT}.index + 1 == 2",
    f'{AT}.model in ["a", "c"]',
    f'{AT}.model.startsWith("a") || {AT}.model.endsWith("c")',
    f'{AT}.model.contains("b")',
    f'{AT}.model.matches("^[ab]$")',
    f'{MEMORY}.compareTo(quantity("40Gi")) >= 0',
    f'{MEMORY}.isGreaterThan(quantity("16Gi")) && {MEMORY}.isLessThan(quantity("80Gi"))',
    f'{MEMORY} == quantity("40960Mi")',
    f'has({AT}.rare) && {AT}.rare == "x"',
    f'has({AT}.rare) ? {AT}.rare == "x" : {AT}.model == "b"',
    f'{AT}.rare == "x"',
    f'{AT}.rare == "x" || {AT}.index >= 0',
    f'["a", "b"].exists(m, m == {AT}.model)',
    f'["a", "b"].all(m, m != {AT}.model)',
    f"size({AT}.model) == 1 && -{AT}.index <= 0",
    f"{AT}.index * 2 - 1 > 0",
    f"{AT}.ready",
    'device.attributes["elsewhere.example.com"].model == "a"',
    'has(device.attributes["elsewhere.example.com"].model)',
    f'{AT}.driverVersion.compareTo(semver("1.10.0")) >= 0',
    f'{AT}.driverVersion.isLessThan(semver("2.0.0-rc.1")) && {AT}.driverVersion.minor() == 9',
)
#: Those that fail for devices without the attribute.
MAY_FAIL = (f'{AT}.rare == "x"', 'device.attributes["elsewhere.example.com"].model == "a"')


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(
        tmp_path_factory,
        scheduler=True,
        controllers=("resourceclaim-controller", "resourcequota-controller"),
    )


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[HttpClient]:
    client = http_client(cluster)
    await install_kinds(client)
    await client.create(DEVICE_CLASSES, body_of(make_device_class(DRIVER)))
    yield client
    await sweep(client)
    for resource in (RESOURCE_SLICES, DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES):
        await delete_all(client, resource)
    await client.close()


def body_of(obj: Any) -> dict[str, Any]:
    """The object as a server takes it, with what it wants in words."""
    body = to_wire(obj)
    body["metadata"] = {"name": obj.metadata.name}
    if isinstance(obj, ResourceSlice):
        pool = obj.spec.pool
        count = pool.resource_slice_count
        body["spec"]["pool"] = {"name": pool.name, "generation": 1, "resourceSliceCount": count}
    return body


def device(rng: random.Random, index: int) -> Device:
    given: dict[str, str | int | bool] = {
        "model": rng.choice("abc"), "index": index, "ready": rng.random() < 0.5,
        "uuid": f"gpu-{rng.random()}",
    }  # fmt: skip
    if rng.random() < 0.4:
        given["rare"] = rng.choice("xy")
    version = rng.choice(("1.9.3", "1.10.0", "2.0.0-rc.1", "2.1.0"))
    made = make_device(f"gpu-{index}", given, {"memory": rng.choice(("16Gi", "40Gi", "80Gi"))})
    return Device(made.name, {**made.attributes, "driverVersion": version_of(version)},
                  made.capacity)  # fmt: skip


def version_of(text: str) -> Any:
    return type(make_device("x", {"a": 1}).attributes["a"])(version=text)


async def add_nodes(client: HttpClient, names: list[str]) -> None:
    condition = {"type": "Ready", "status": "True"}
    amounts = {"cpu": "64", "memory": "64Gi", "pods": "200"}
    status = {"allocatable": amounts, "capacity": amounts, "conditions": [condition]}
    for name in names:
        await client.create(NODES, {"metadata": {"name": name, "labels": {"own": name}}})
        await client.patch(NODES, name, {"status": status}, subresource="status")


async def answer(client: HttpClient, name: str, template: str, node: str) -> bool:
    """Return whether kube-scheduler binds a pod with this claim to the node."""
    claim = {"name": "gpu", "resourceClaimTemplateName": template}
    spec = {"containers": [{"name": "main", "image": "none"}], "resourceClaims": [claim],
            "nodeSelector": {"own": node}}  # fmt: skip
    await client.create(PODS, {"metadata": {"name": name}, "spec": spec}, namespace="default")
    answers: list[bool] = []

    async def is_judged() -> bool:
        pod = await client.get(PODS, name, namespace="default")
        for each in pod.status.conditions:
            if each.type != "PodScheduled" or "waiting for" in each.message:
                continue
            if "resourceclaim" in each.message and "not" in each.message:
                continue  # kube-controller-manager has yet to make it
            answers.append(each.status == "True")
        return bool(answers)

    await until(is_judged)
    return answers[0]


async def judgements(
    client: HttpClient, slices: Sequence[ResourceSlice], template: ResourceClaimTemplate, node: str
) -> tuple[bool, bool]:
    """Return whether a pod with a claim may be on a node: as we say, as kube-scheduler does."""
    name = template.metadata.name
    job = with_device_claims(make_job("j", gpus=0, cpu="1"), name)
    table = DeviceTable(slices, [make_device_class(DRIVER)], [template])
    state = ClusterState.of([make_node(node, cpu="64")], [job], devices=table)
    verdict = would_fit(state, state.jobs["default", "j"].gang)
    ours = verdict.outcome is Outcome.PLACED
    return ours, await is_accepted(client, f"{name}-{node}", name, node)


async def is_accepted(client: HttpClient, name: str, template: str, node: str) -> bool:
    """Return whether kube-scheduler binds a pod with this claim to the node; then it is deleted."""
    is_bound = await answer(client, name, template, node)
    await client.delete(PODS, name, namespace="default", grace_period_seconds=0)

    async def has_no_claim() -> bool:
        claims = (await client.list(RESOURCE_CLAIMS, namespace="default")).items
        return not any(claim.pod == name for claim in claims)

    await until(has_no_claim)
    return is_bound


async def test_kube_scheduler_takes_the_devices_for_which_we_say_that_an_expression_is_true(
    client: HttpClient,
) -> None:
    rng = random.Random(3)
    devices = {f"n{i}": [device(rng, j) for j in range(i)] for i in range(1, 4)}
    slices = [make_slice(node, found) for node, found in devices.items()]
    await add_nodes(client, [*devices])
    for each in slices:
        await client.create(RESOURCE_SLICES, body_of(each))
    asked = [
        (f"t{i}-{count}", make_device_template(
            f"t{i}-{count}", device_request(DRIVER, count, expression)
        ))
        for i, expression in enumerate(EXPRESSIONS)
        for count in (1, 2)
    ]  # fmt: skip
    for _, template in asked:
        await client.create(RESOURCE_CLAIM_TEMPLATES, body_of(template), namespace="default")
    failing = {f"t{EXPRESSIONS.index(each)}-{count}" for each in MAY_FAIL for count in (1, 2)}
    seen = {True: 0, False: 0}

    async def judge(node: str) -> None:
        for name, template in asked:
            job = with_device_claims(make_job("j", gpus=0, cpu="1"), name)
            table = DeviceTable(slices, [make_device_class(DRIVER)], [template])
            state = ClusterState.of([make_node(node, cpu="64")], [job], devices=table)
            entry = state.jobs["default", "j"]
            verdict = would_fit(state, entry.gang)
            ours = isinstance(entry.reaches, tuple) and verdict.outcome is Outcome.PLACED
            theirs = await is_accepted(client, f"{name}-{node}", name, node)
            # Where it fails for a device, kube-scheduler gives up, but not if it needs none beyond.
            is_right = ours <= theirs if name in failing else ours == theirs
            assert is_right, (node, template, devices[node], verdict, entry.reaches)
            seen[theirs] += 1

    async with asyncio.TaskGroup() as group:
        for node in devices:
            group.create_task(judge(node))
    assert min(seen.values()) > len(asked) // 2, seen


async def test_kube_scheduler_tolerates_taints_of_devices_as_we_do_and_finds_what_is_alike_or_not(
    client: HttpClient,
) -> None:
    taints = (
        ("old", "yes", "NoSchedule"), ("old", "no", "NoExecute"), ("hot", "", "NoSchedule"),
        ("seen", "", "None"),
    )  # fmt: skip
    devices = {
        f"n{i}": [
            msgspec_replace(
                make_device(f"d{j}", {"rack": "a" if i < 4 else f"r{j}"}),
                taints=(DeviceTaint(*taint),),
            )
            for j in range(2)
        ]
        for i, taint in enumerate((*taints, taints[3]))
    }
    slices = [make_slice(node, found) for node, found in devices.items()]
    await add_nodes(client, [*devices])
    for each in slices:
        await client.create(RESOURCE_SLICES, body_of(each))
    tolerations = (
        {"operator": "Exists"}, {"key": "old", "operator": "Exists"},
        {"key": "old", "operator": "Equal", "value": "yes"}, {"key": "hot", "operator": "Equal"},
        {"key": "old", "operator": "Exists", "effect": "NoExecute"},
        {"key": "hot", "operator": "Exists", "effect": "NoExecute"},
    )  # fmt: skip
    asked: list[ResourceClaimTemplate] = []
    for i, toleration in enumerate((None, *tolerations)):
        request = device_request(count=2)
        if toleration is not None:
            request["exactly"]["tolerations"] = [toleration]
        template = make_device_template(f"t{i}", request)
        asked.append(template)
        devices_spec = msgspec_replace(
            template.spec.spec.devices, constraints=({"matchAttribute": f"{DRIVER}/rack"},)
        )
        spec = msgspec_replace(
            template.spec, spec=msgspec_replace(template.spec.spec, devices=devices_spec)
        )
        metadata = msgspec_replace(template.metadata, name=f"a{i}")
        asked.append(msgspec_replace(template, metadata=metadata, spec=spec))
        pair = [for_one(request, name) for name in ("r0", "r1")]
        apart = make_device_template(f"d{i}", *pair)
        rule = ({"distinctAttribute": f"{DRIVER}/rack"},)
        devices_spec = msgspec_replace(apart.spec.spec.devices, constraints=rule)
        spec = msgspec_replace(
            apart.spec, spec=msgspec_replace(apart.spec.spec, devices=devices_spec)
        )
        asked.append(msgspec_replace(apart, spec=spec))
    for template in asked:
        await client.create(RESOURCE_CLAIM_TEMPLATES, body_of(template), namespace="default")
    seen = {True: 0, False: 0}

    async def judge(node: str) -> None:
        for template in asked:
            ours, theirs = await judgements(client, slices, template, node)
            assert ours == theirs, (node, to_wire(template))
            seen[theirs] += 1

    async with asyncio.TaskGroup() as group:
        for node in devices:
            group.create_task(judge(node))
    assert min(seen.values()) > len(asked) // 2, seen


def for_one(request: dict[str, Any], name: str) -> dict[str, Any]:
    """The request under another name, for one device."""
    return {"name": name, "exactly": {**request["exactly"], "count": 1}}


BIG = f'{AT}.size == "big"'
#: Alternatives and requests for all devices; the last is one that we serve on fewer nodes.
ALTERNATIVES: tuple[tuple[dict[str, Any], ...], ...] = (
    (first_of_request(device_request(DRIVER, 1, BIG), device_request(DRIVER, 2)),),
    (first_of_request(device_request(DRIVER, 2, BIG),
                      all_devices_request(DRIVER, f'{AT}.size == "small"')),),
    (all_devices_request(),),
    (all_devices_request(DRIVER, BIG),),
    (first_of_request(all_devices_request(DRIVER, BIG), device_request()),),
    (first_of_request(device_request(DRIVER, 1, f'{AT}.size == "none"'),
                      device_request(DRIVER, 4)),),
    (all_devices_request(DRIVER, BIG), device_request(DRIVER, 1, f'{AT}.size == "small"',
                                                      name="r1")),
    (first_of_request(device_request(DRIVER, 1, BIG), device_request()),
     device_request(DRIVER, 1, BIG, name="r1")),
)  # fmt: skip


async def test_kube_scheduler_takes_alternatives_and_all_devices_as_we_do(
    client: HttpClient,
) -> None:
    sizes = (["big"] * 2, ["small"] * 3, ["big", "small", "small"], ["old", "small"], ["small"] * 5)
    devices = {
        f"n{i}": [
            msgspec_replace(
                make_device(f"d{j}", {"size": "big" if size == "old" else size}),
                taints=(DeviceTaint("old", "", "NoSchedule"),) * (size == "old"),
            )
            for j, size in enumerate(found)
        ]
        for i, found in enumerate(sizes)
    }
    slices = [make_slice(node, found) for node, found in devices.items()]
    await add_nodes(client, [*devices])
    for each in slices:
        await client.create(RESOURCE_SLICES, body_of(each))
    asked = [make_device_template(f"t{i}", *each) for i, each in enumerate(ALTERNATIVES)]
    for template in asked:
        await client.create(RESOURCE_CLAIM_TEMPLATES, body_of(template), namespace="default")
    seen = {True: 0, False: 0}

    async def judge(node: str) -> None:
        for template in asked:
            ours, theirs = await judgements(client, slices, template, node)
            # Two requests for one device of which one would do with another: we look at each alone.
            is_right = ours <= theirs if template is asked[-1] else ours == theirs
            assert is_right, (node, to_wire(template))
            seen[theirs] += 1

    async with asyncio.TaskGroup() as group:
        for node in devices:
            group.create_task(judge(node))
    assert min(seen.values()) > len(asked), seen


async def test_quotas_count_claims_by_class_as_we_do(client: HttpClient) -> None:
    classes = (DRIVER, "other.example.com")
    hard = {f"{name}.deviceclass.resource.k8s.io/devices": "500" for name in classes}
    hard["count/resourceclaims.resource.k8s.io"] = "50"
    hard |= {"requests.example.com/card": "500", f"requests.{IMPLICIT}{DRIVER}": "500"}
    card = {"spec": {"extendedResourceName": "example.com/card"}}
    found = await client.patch(DEVICE_CLASSES, DRIVER, card)
    served = Served(ResourceClasses.of([found]))
    quota = {"metadata": {"name": "devices"}, "spec": {"hard": hard}}
    await client.create(RESOURCE_QUOTAS, quota, namespace="default")
    other = device_request(classes[1], 5)
    asked = [*ALTERNATIVES, (first_of_request(device_request(DRIVER, 2), other,
                                              device_request(DRIVER, 3)),)]  # fmt: skip
    expected: list[Amounts] = []

    async def has_counted() -> bool:
        found = await client.get(RESOURCE_QUOTAS, "devices", namespace="default")
        used = as_map(as_map(to_wire(found)).get("status")).get("used") or {}
        return read_all(used) == {name: Amount(Fraction(0)) for name in hard} | added(expected)

    for i, requests in enumerate(asked):
        body = body_of(make_device_claim(f"c{i}", *requests))
        made = await client.create(RESOURCE_CLAIMS, body, namespace="default")
        used = usage_of("resourceclaims.resource.k8s.io", to_wire(made), served)
        expected.append({name: amount for name, amount in used.items() if name in hard})
        await until(has_counted)
    await delete_all(client, RESOURCE_CLAIMS)
    await client.delete(RESOURCE_QUOTAS, "devices", namespace="default")


async def test_gangs_whose_resource_devices_serve_are_bound_at_their_first_attempt(
    client: HttpClient,
) -> None:
    """Beside members with claims for the same devices, and on nodes with the resource, too."""
    rng = random.Random(7)
    card, asked = "example.com/card", f"{IMPLICIT}{DRIVER}"
    await client.patch(DEVICE_CLASSES, DRIVER, {"spec": {"extendedResourceName": card}})
    async with virtual_nodes(client, 4), controllers(client, policy=DIRECT):
        nodes = sorted(node.metadata.name for node in (await client.list(NODES)).items)
        own = {"status": {"allocatable": {card: "3"}, "capacity": {card: "3"}}}
        await client.patch(NODES, nodes[0], own, subresource="status")
        for i, node in enumerate(nodes[1:]):
            await client.create(RESOURCE_SLICES, body_of(make_slice(node, 3 + i)))
        template = body_of(make_device_template("one"))
        await client.create(RESOURCE_CLAIM_TEMPLATES, template, namespace="default")
        for number in range(14):
            body = job_body(f"j{number}", rng.randint(1, 3), seconds=2, gpus=0)
            spec = body["spec"]["roles"][0]["template"]["spec"]
            resources = spec["containers"][0]["resources"]
            if number % 3 == 2:
                spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
                resources["claims"] = [{"name": "gpu"}]
            else:
                name = card if number % 2 else asked
                resources.setdefault("limits", {})[name] = str(rng.randint(1, 2))
                init = {"name": "load", "image": "x", "resources": {"limits": {name: "3"}}}
                spec["initContainers"] = [init] if number % 4 == 0 else []
            await client.create(JOBS, body, namespace="default")
        seen: dict[str, Any] = {}

        async def are_over() -> bool:
            for claim in (await client.list(RESOURCE_CLAIMS, namespace="default")).items:
                if SERVED_CLAIM in claim.metadata.annotations:
                    seen[claim.pod] = claim
            found = (await client.list(JOBS, namespace="default")).items
            return all(job.is_finished for job in found)

        pods: dict[str, Pod] = {}

        async def watch_pods() -> None:
            while True:
                for pod in (await client.list(PODS, namespace="default")).items:
                    if pod.status.extended_resource_claim_status is not None:
                        pods[pod.metadata.name] = pod
                await asyncio.sleep(0.2)

        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch_pods())
            await until(are_over)
            watching.cancel()
        for job in (await client.list(JOBS, namespace="default")).items:
            status = job.status
            assert (status.state, status.attempt, status.infrastructure_failures) == (
                "Succeeded", 1, 0
            ), (job.metadata.name, status)  # fmt: skip
        both = seen.keys() & pods.keys()
        assert len(both) >= 5
        for name in both:
            spec = pods[name].spec
            classes = dict.fromkeys(served_asks(spec, (card, asked)), DRIVER)
            expected = served_requests(spec, classes)
            assert list(seen[name].spec.devices.requests) == expected.requests
            said = (await client.get(PODS, name, namespace="default")).status
            assert said.extended_resource_claim_status is not None


async def test_gangs_that_share_a_claim_without_devices_are_bound_at_their_first_attempt(
    client: HttpClient,
) -> None:
    """On one node each, beside members with claims of their own for the same devices."""
    async with virtual_nodes(client, 3), controllers(client, policy=DIRECT):
        nodes = sorted(node.metadata.name for node in (await client.list(NODES)).items)
        for count, node in enumerate(nodes[1:], start=1):
            await client.create(RESOURCE_SLICES, body_of(make_slice(node, count)))
        template = body_of(make_device_template("one"))
        await client.create(RESOURCE_CLAIM_TEMPLATES, template, namespace="default")
        sharing: dict[str, int] = {}
        for number in range(9):
            name, members = f"j{number}", 1 + number % 3
            body = job_body(name, members, seconds=2, gpus=0)
            spec = body["spec"]["roles"][0]["template"]["spec"]
            if number % 4 == 3:
                given = {"resourceClaimTemplateName": "one"}
            else:
                claim = make_device_claim(name, device_request(DRIVER, 1 + number % 2))
                await client.create(RESOURCE_CLAIMS, body_of(claim), namespace="default")
                given = {"resourceClaimName": name}
                sharing[name] = members
            spec["resourceClaims"] = [{"name": "gpu", **given}]
            spec["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
            await client.create(JOBS, body, namespace="default")

        async def are_over() -> bool:
            found = (await client.list(JOBS, namespace="default")).items
            return all(job.is_finished for job in found)

        await until(are_over)
        assert max(sharing.values()) > 2
        for job in (await client.list(JOBS, namespace="default")).items:
            status = job.status
            assert (status.state, status.attempt, status.infrastructure_failures) == (
                "Succeeded", 1, 0
            ), (job.metadata.name, status)  # fmt: skip
        places: dict[str, list[str]] = {}
        for pod in (await client.list(PODS, namespace="default")).items:
            places.setdefault(pod.metadata.labels[JOB_NAME], []).append(pod.spec.node_name)
        for name, members in sharing.items():
            assert len(places[name]) == members
            assert len({*places[name]}) == 1, (name, places[name])


async def test_gangs_with_parts_of_gpus_are_bound_at_their_first_attempt(
    client: HttpClient,
) -> None:
    """Each cycle binds members of one profile, beside what others have by then."""
    rng = random.Random(5)
    async with virtual_nodes(client, 3), controllers(client, policy=DIRECT):
        nodes = sorted(node.metadata.name for node in (await client.list(NODES)).items)
        for i, node in enumerate(nodes):
            for each in make_mig_slices(node, 1 + i % 2):
                await client.create(RESOURCE_SLICES, body_of(each))
        for profile in MIG:
            body = body_of(mig_template(profile))
            await client.create(RESOURCE_CLAIM_TEMPLATES, body, namespace="default")

        async def submit(name: str, members: int, profile: str, seconds: float) -> None:
            body = job_body(name, members, seconds=seconds, gpus=0)
            spec = body["spec"]["roles"][0]["template"]["spec"]
            template = profile.replace(".", "-")
            spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": template}]
            spec["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
            await client.create(JOBS, body, namespace="default")

        async def runs(name: str) -> bool:
            job = await client.get(JOBS, name, namespace="default")
            return job.status.state in ("Running", "Succeeded")

        async def is_over(name: str) -> bool:
            return (await client.get(JOBS, name, namespace="default")).is_finished

        for number in range(10):
            name, profile = f"j{number}", rng.choice([*MIG])
            members = rng.randint(1, 2 if profile in ("7g.80gb", "4g.40gb") else 4)
            await submit(name, members, profile, 6)
            await until(lambda name=name: runs(name))
        for number in range(10):
            await until(lambda name=f"j{number}": is_over(name))
        for job in (await client.list(JOBS, namespace="default")).items:
            status = job.status
            assert (status.state, status.attempt, status.infrastructure_failures) == (
                "Succeeded", 1, 0
            ), (job.metadata.name, status)  # fmt: skip


async def test_kube_scheduler_finds_parts_of_a_gpu_for_all_that_the_rows_offer(
    client: HttpClient,
) -> None:
    """Mixes of profiles on one GPU, the largest first, as many of each as still fit our rows."""
    rng = random.Random(6)
    mixes = 6
    await add_nodes(client, [f"n{i}" for i in range(mixes)])
    templates = [mig_template(profile) for profile in MIG]
    for template in templates:
        await client.create(RESOURCE_CLAIM_TEMPLATES, body_of(template), namespace="default")

    async def judge(index: int) -> None:
        node = f"n{index}"
        slices = make_mig_slices(node, 2)
        for each in slices:
            await client.create(RESOURCE_SLICES, body_of(each))
        table = DeviceTable(slices, [make_device_class(DRIVER)], templates)
        asked = rng.sample([*MIG], 3)
        jobs = [
            with_device_claims(make_job(f"j{i}", gpus=0, cpu="1"), profile.replace(".", "-"))
            for i, profile in enumerate(asked)
        ]
        state = ClusterState.of([make_node(node, cpu="64")], jobs, devices=table)
        bound = 0
        for profile in sorted(asked, key=[*MIG].index):
            name = profile.replace(".", "-")
            while bound < 8 and rng.random() < 0.8:
                entry = state.jobs["default", f"j{asked.index(profile)}"]
                if would_fit(state, entry.gang).outcome is not Outcome.PLACED:
                    break
                job = make_job(f"k{bound}", gpus=0, cpu="1", placement=make_placement([node]))
                state.job_changed(with_device_claims(job, name))
                pod = f"{node}-k{bound}"
                assert await answer(client, pod, name, node), (node, profile, bound)
                bound += 1
        assert bound

    async with asyncio.TaskGroup() as group:
        for index in range(mixes):
            group.create_task(judge(index))
