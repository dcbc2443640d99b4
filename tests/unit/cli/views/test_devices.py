"""Which devices the node table shows, and under which names."""

from __future__ import annotations

from msgspec.structs import replace

from fairlead.api.cluster.fleet import Fleet
from fairlead.api.cluster.node_pool import (
    NodePool,
    NodePoolSpec,
    NodePoolStatus,
    NodeTemplate,
    PoolMode,
    Provider,
    ProviderType,
)
from fairlead.api.kubernetes.device_shapes import DevicePart, DeviceShape
from fairlead.api.kubernetes.devices import DeviceAttribute
from fairlead.api.meta import ObjectMeta
from fairlead.cli.formats.table import render_table
from fairlead.cli.views.devices import device_counts, device_shares, shape_words
from fairlead.cli.views.fleet import plan_text, pool_why
from fairlead.cli.views.nodes import columns, node_rows, node_uses
from fairlead.testing.builders import EPOCH, make_node
from fairlead.testing.device_builders import make_device, make_device_claim, make_slice

H100 = {"productName": "NVIDIA H100"}
SLICES = [
    make_slice("a", [make_device(f"gpu-{i}", H100) for i in range(2)]),
    make_slice("a", 1, driver="nic.example.com"),
    make_slice("b", [
        make_device("gpu-0", {"gpu.example.com/model": "A100", "profile": "1g.5gb"}),
        make_device("gpu-1", H100),
    ]),
]  # fmt: skip
CLAIMS = [
    make_device_claim("x", has=[("a", "gpu-1"), ("b", "gpu-0")]),
    make_device_claim("y", has=[("b", "gone")]),
    make_device_claim("z"),
]


def test_devices_are_counted_by_product_and_profile_or_else_by_driver() -> None:
    counts = device_counts(SLICES, CLAIMS)
    assert device_shares(counts, ["a"]) == "1/2 NVIDIA H100, 0/1 nic.example.com"
    assert device_shares(counts, "ab") == ("1/1 A100 1g.5gb, 1/3 NVIDIA H100, 0/1 nic.example.com")
    assert device_shares(counts, ["c"]) == ""


def test_only_the_newest_slices_of_a_pool_of_a_node_count() -> None:
    old, new = make_slice("a", 4), make_slice("a", 1)
    pool = replace(new.spec.pool, generation=2)
    new = replace(new, spec=replace(new.spec, pool=pool))
    of_all = replace(old, spec=replace(old.spec, node_name="", pool=replace(pool, name="net")))
    counts = device_counts([old, new, of_all], ())
    assert counts == {"a": {"gpu.example.com": (1, 0)}}


def test_the_node_table_has_devices_where_there_are_any() -> None:
    uses = node_uses([make_node("a"), make_node("b")], (), (), EPOCH)
    counts = device_counts(SLICES, CLAIMS)
    text = render_table(columns(counts), node_rows(uses, EPOCH, counts))
    head, row = text.splitlines()
    assert head.split() == [
        "POOL", "STATE", "NODES", "GPUS(used/total)", "DEVICES(used/total)", "SINCE", "REASON",
    ]  # fmt: skip
    assert "1/1 A100 1g.5gb, 1/3 NVIDIA H100, 0/1 nic.example.com" in row
    without = render_table(columns({}), node_rows(uses, EPOCH))
    assert "DEVICES" not in without


def test_a_pool_says_which_devices_its_template_states() -> None:
    part = DevicePart("half", 2, {"profile": DeviceAttribute(string="half")}, {}, {"m": 1})
    shapes = (
        DeviceShape("nic.example.com", 2, "nic"),
        DeviceShape("gpu.example.com", 4, "gpu", {"model": DeviceAttribute(string="H100")},
                    counters={"m": 2}, parts=(part,)),
    )  # fmt: skip
    assert shape_words(shapes) == "8 H100 half and 2 nic.example.com"
    spec = NodePoolSpec(
        Provider(ProviderType.SIMULATED), NodeTemplate({"cpu": 1}, devices=shapes), 9,
        mode=PoolMode.ACTIVE,
    )  # fmt: skip
    pool = NodePool(ObjectMeta("p"), spec, NodePoolStatus(wanted=3))
    plan = "buys 3 nodes with 8 H100 half and 2 nic.example.com each to have 3"
    assert plan in plan_text([pool], Fleet(), (), EPOCH)
    line = "  devices    8 H100 half and 2 nic.example.com of each node, by the template"
    assert line in pool_why(pool, Fleet(), EPOCH).splitlines()
