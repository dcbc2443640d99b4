"""The search for the devices of a pod on the embedded cluster: what it finds, and its bound."""

from __future__ import annotations

from fractions import Fraction

from fairlead.embedded.device_search import DeviceId, SharedUse, Tries, Way, find_devices

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
