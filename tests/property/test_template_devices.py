"""Devices of nodes that are bought: a gang is bought for exactly where templates have its devices,
and with as few nodes as hold it.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.cluster.node_pool import (
    NodePool,
    NodePoolSpec,
    NodeTemplate,
    PoolMode,
    Provider,
    ProviderType,
)
from fairlead.api.kubernetes.device_shapes import DevicePart, DeviceShape
from fairlead.api.kubernetes.devices import DeviceAttribute
from fairlead.api.meta import ObjectMeta
from fairlead.decide.fleet.buying.demand import demand_of, device_source, offers_of
from fairlead.decide.fleet.buying.growth import pools_that_hold
from fairlead.model.claimed.devices import DeviceTable
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest
from fairlead.testing.builders import make_job, make_node
from fairlead.testing.device_builders import (
    DRIVER,
    device_request,
    make_device,
    make_device_class,
    make_device_template,
    make_slice,
    with_device_claims,
)

MODELS = ("a", "b")
EXPRESSIONS = {model: f'device.attributes["{DRIVER}"].model == "{model}"' for model in MODELS}
SHAPES = st.lists(
    st.tuples(st.sampled_from(MODELS), st.integers(1, 8), st.integers(0, 3)), max_size=3
)


def shape(number: int, model: str, count: int, parts: int) -> DeviceShape:
    """Return devices of a model, each of so many parts; 0: not in parts."""
    part = DevicePart("part", parts, counters={"unit": 1}) if parts else None
    attributes = {"model": DeviceAttribute(string=model)}
    return DeviceShape(
        DRIVER, count, f"d{number}", attributes,
        counters={"unit": parts} if parts else {}, parts=(part,) if part else (),
    )  # fmt: skip


@given(
    there=st.lists(st.integers(0, 4), max_size=3),
    templates=st.lists(SHAPES, min_size=1, max_size=2),
    wanted=st.tuples(st.sampled_from(MODELS), st.integers(1, 4), st.integers(1, 12)),
)
def test_nodes_are_bought_for_devices_if_and_only_if_a_template_has_them(
    there: list[int], templates: list[list[tuple[str, int, int]]], wanted: tuple[str, int, int]
) -> None:
    model, count, members = wanted
    pools = [
        NodePool(
            ObjectMeta(f"p{i}"),
            NodePoolSpec(
                Provider(ProviderType.SIMULATED),
                NodeTemplate(
                    {"cpu": 96}, devices=tuple(shape(j, *each) for j, each in enumerate(shapes))
                ),
                max=50, mode=PoolMode.ACTIVE,
            ),
        )
        for i, shapes in enumerate(templates)
    ]  # fmt: skip
    nodes = [make_node(f"n{i}") for i in range(len(there))]
    slices = [
        make_slice(f"n{i}", [make_device(f"d{k}", {"model": model}) for k in range(found)])
        for i, found in enumerate(there)
    ]
    request = device_request(DRIVER, count, EXPRESSIONS[model])
    job = with_device_claims(make_job("j", count=members, gpus=0), "t")
    table = DeviceTable(slices, [make_device_class(DRIVER)], [make_device_template("t", request)])
    state = ClusterState.of(nodes, [job], devices=table, pools=pools)
    before = (state.table.resources, state.table.allocatable.tobytes())
    gang = state.jobs[job.metadata.key].gang
    assert isinstance(gang, GangRequest)
    offers = [
        offer for pool in pools
        for offer in offers_of(pool, 50, like=device_source(state, pool.metadata.name, ()))
    ]  # fmt: skip

    demand = demand_of(state, [(job.metadata.key, gang)], offers, {})

    left = members - sum(found // count for found in there)
    per_node = [
        sum(n * max(parts, 1) for found, n, parts in shapes if found == model) // count
        for shapes in templates
    ]
    bought = {pool: purchase.count for (pool, _), purchase in demand.purchases.items()}
    first = next((i for i, each in enumerate(per_node) if each), None)
    if left <= 0 or first is None:
        assert bought == {}
    else:
        assert bought == {f"p{first}": -(-left // per_node[first])}
    assert before == (state.table.resources, state.table.allocatable.tobytes())
    held = pools_that_hold(nodes, gang, pools, state.table.devices)
    assert held == bought
