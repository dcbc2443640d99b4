"""The search for the devices of a pod on the embedded cluster: what it finds, and its bound."""

from __future__ import annotations

from fractions import Fraction

import pytest
from msgspec.structs import replace

from fairlead.embedded.own_controllers.device_search import (
    DeviceId,
    SharedUse,
    Tries,
    Way,
    find_devices,
)
from fairlead.embedded.own_controllers.node_devices import NodeDevices, id_of
from fairlead.testing.device_builders import (
    DRIVER,
    device_request,
    make_device,
    make_device_claim,
    make_device_class,
    make_slice,
)

NOTHING = SharedUse({}, {})


def ids(count: int) -> list[DeviceId]:
    return [("d", "n", f"gpu-{i}") for i in range(count)]


def test_the_first_ways_that_go_together_are_taken() -> None:
    one, two = ids(2)
    either = [[(0, Way("r0/o0", 1, [one]))], [(0, Way("r0/o1", 1, [two]))]]
    found = find_devices([either, [[(0, Way("r1", 1, [one]))]]], NOTHING, Tries(100))
    assert found is not None
    wanted, owners = found
    assert {wanted[slot][1]: id_ for id_, slot in owners.items()} == {"r0/o1": two, "r1": one}


def test_nothing_is_found_where_a_request_has_no_way() -> None:
    assert find_devices([[[(0, Way("r0", 1, ids(1)))]], []], NOTHING, Tries(100)) is None


def test_a_search_without_end_stops_after_its_tries() -> None:
    """Thirty requests with eight options each, all for the same device: 8 ** 30 combinations."""
    options = [[(0, Way(f"r/o{i}", 1, ids(1)))] for i in range(8)]
    tries = Tries(1_000)
    assert find_devices([options] * 30, NOTHING, tries) is None
    assert -40 <= tries.left <= 0
    uses = {id_: {("d", "n", "set", "memory"): Fraction(1)} for id_ in ids(24)}
    shared = SharedUse({("d", "n", "set", "memory"): Fraction(12)}, uses)
    tries = Tries(1_000)
    assert find_devices([[[(0, Way("r", 20, ids(24)))]]], shared, tries) is None
    assert -40 <= tries.left <= 0
    assert shared.left == {("d", "n", "set", "memory"): 12}


@pytest.mark.parametrize(
    ("kind", "roots", "expected"),
    [
        ("distinctAttribute", "aab", {"a", "b"}),
        ("distinctAttribute", "aaa", None),
        ("distinctAttribute", "a?", None),
        ("matchAttribute", "aba", {"a"}),
        ("matchAttribute", "ab", None),
    ],
)
def test_devices_are_alike_or_differ_as_their_claim_wants(
    kind: str, roots: str, expected: set[str] | None
) -> None:
    found = [
        make_device(f"d{i}", {"root": root} if root != "?" else {}) for i, root in enumerate(roots)
    ]
    claim = make_device_claim("c", *(device_request(name=name) for name in ("r0", "r1")))
    devices = replace(claim.spec.devices, constraints=({kind: f"{DRIVER}/root"},))
    claim = replace(claim, spec=replace(claim.spec, devices=devices))
    node = NodeDevices({DRIVER: make_device_class(DRIVER)}.get, lambda: [make_slice("n", found)])
    given = node.allocate([claim], "n", set())
    if expected is None:
        assert given is None
        return
    assert given is not None
    results = given[0]["devices"]["results"]
    assert {each["request"] for each in results} == {"r0", "r1"}
    assert len({id_of(each) for each in results}) == 2
    assert {roots[int(each["device"][1:])] for each in results} == expected


def test_devices_that_differ_are_found_among_more_sets_of_values_than_can_be_tried() -> None:
    """12 of 32 devices: 226 million sets."""
    found = [make_device(f"d{i}", {"root": f"r{i}"}) for i in range(32)]
    claim = make_device_claim("c", *(device_request(name=f"r{i}") for i in range(12)))
    rule = ({"distinctAttribute": f"{DRIVER}/root"},)
    devices = replace(claim.spec.devices, constraints=rule)
    claim = replace(claim, spec=replace(claim.spec, devices=devices))
    node = NodeDevices({DRIVER: make_device_class(DRIVER)}.get, lambda: [make_slice("n", found)])
    tries = Tries(10_000)
    given = node.allocate([claim], "n", {(DRIVER, "n", f"d{i}") for i in range(20)}, tries)
    assert given is not None
    assert len({id_of(each) for each in given[0]["devices"]["results"]}) == 12
    assert tries.left > 0
