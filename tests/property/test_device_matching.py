"""Kinds of devices that are matched beside the decisions, a part at a time.

Generated histories of jobs, templates, classes, slices, claims and pods; between any two events any
amount of the work. In the end the cluster is what it is where each kind is matched at once.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.placement_world import BOUNDED

from fairlead.api.kubernetes.devices import DeviceClass, ResourceClaimTemplate
from fairlead.api.values.quantity import CLAIMED
from fairlead.model.cluster import ClusterState
from fairlead.testing.builders import EPOCH, make_job, make_node, make_pod
from fairlead.testing.device_builders import (
    DRIVER,
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

_AT = f'device.attributes["{DRIVER}"]'
NODES = ("n0", "n1")
TEMPLATES: dict[str, ResourceClaimTemplate] = {
    "any": make_device_template("any"),
    "a": make_device_template("a", device_request(DRIVER, 1, f'{_AT}.model == "a"')),
    "fails": make_device_template("fails", device_request(DRIVER, 1, f"{_AT}.no == 1")),
    "odd": make_device_template("odd", device_request(DRIVER, 1, "device.")),
    "other": make_device_template("other", device_request("other", 1)),
    "first": make_device_template("first", first_of_request(
        device_request(DRIVER, 2, f'{_AT}.model == "a"'), device_request(DRIVER, 1)
    )),
    "all": make_device_template("all", all_devices_request(DRIVER, f'{_AT}.model == "b"')),
    **{f"mig {p}": mig_template(p) for p in ("7g.80gb", "1g.10gb")},
}  # fmt: skip
CLASSES: dict[str, DeviceClass] = {
    "all": make_device_class(DRIVER),
    "of a": make_device_class(DRIVER, f'{_AT}.model == "a"'),
    "other": make_device_class("other", f'device.driver == "{DRIVER}"'),
}
MODELS = st.lists(st.sampled_from("ab"), max_size=3)
EVENTS = st.one_of(
    st.tuples(st.just("job"), st.integers(0, 3), st.sampled_from(sorted(TEMPLATES))),
    st.tuples(st.just("end"), st.integers(0, 3)),
    st.tuples(st.just("class"), st.sampled_from([*sorted(CLASSES), "none"])),
    st.tuples(st.just("slice"), st.sampled_from(NODES), MODELS),
    st.tuples(st.just("mig"), st.sampled_from(NODES)),
    st.tuples(st.just("claim"), st.sampled_from(NODES), st.booleans()),
    st.tuples(st.just("pod"), st.booleans()),
    st.tuples(st.just("work"), st.integers(1, 40)),
    st.tuples(st.just("follow")),
)


def apply(state: ClusterState, event: tuple[Any, ...]) -> None:
    """Take an event in; those of work and decisions are of the one that matches beside."""
    devices = state.devices
    match event:
        case ("job", number, name):
            template = TEMPLATES[name]
            devices.put_template(template.metadata.key, template)
            made = make_job(f"j{number}", gpus=0, created=EPOCH + number)
            state.job_changed(with_device_claims(made, template.metadata.name))
        case ("end", number):
            state.job_deleted(("default", f"j{number}"))
        case ("class", "none"):
            devices.put_class(DRIVER, None)
        case ("class", name):
            devices.put_class(CLASSES[name].metadata.name, CLASSES[name])
        case ("slice", node, models):
            found = [make_device(f"gpu-{i}", {"model": each}) for i, each in enumerate(models)]
            devices.put_slice(node, make_slice(node, found, driver=DRIVER))
        case ("mig", node):
            for each in make_mig_slices(node, 1, "7g.80gb", "1g.10gb"):
                devices.put_slice(each.metadata.name, each)
        case ("claim", node, is_there):
            has = [(node, "gpu-0")]
            claim = make_device_claim("c", pod="p", has=has) if is_there else None
            devices.put_claim(("default", "c"), claim)
        case ("pod", is_there):
            pod = make_pod("p", node="n0")
            state.pod_changed(pod) if is_there else state.pod_deleted(pod.metadata.key)
            devices.put_pod(pod.metadata.key, is_there=is_there)
        case _:
            raise AssertionError(event)


def seen(state: ClusterState) -> object:
    """Return what decisions see: what nodes offer and use of devices, and what jobs may have."""
    table = state.table
    rows = {
        resource: {
            node: (int(table.allocatable[row, slot]), int(table.used[row, slot]))
            for node in NODES
            if (slot := table.slot(node)) is not None
        }
        for row, resource in enumerate(table.resources)
        if resource.startswith(CLAIMED)
    }
    return rows, {key: (entry.reaches, entry.gang) for key, entry in state.jobs.items()}


@settings(BOUNDED, max_examples=150)
@given(st.lists(EVENTS, max_size=25))
def test_what_is_matched_a_part_at_a_time_is_what_is_matched_at_once(
    events: list[tuple[Any, ...]],
) -> None:
    nodes = [make_node(name, cpu="64") for name in NODES]
    beside, at_once = ClusterState.of(nodes), ClusterState.of(nodes)
    beside.devices.matches_at_once = False
    for event in events:
        if event[0] == "work":
            beside.devices.match(event[1])
        elif event[0] == "follow":
            beside.follow_claims()
            at_once.follow_claims()
        else:
            apply(beside, event)
            apply(at_once, event)
    for _ in range(100):
        if not beside.devices.is_unmatched:
            break
        beside.devices.match(10_000)
        beside.follow_claims()
    beside.follow_claims()
    at_once.follow_claims()
    assert not beside.devices.is_unmatched
    assert seen(beside) == seen(at_once)
