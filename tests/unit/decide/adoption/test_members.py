"""What of a pod of another tool the planner looks at."""

from __future__ import annotations

from msgspec.structs import replace

from fairlead.api.kubernetes.core import ResourceRequirements
from fairlead.decide.adoption.members import asks_alike, planned_spec, shape_of
from fairlead.testing.builders import make_pod_spec


def test_what_a_pod_asks_as_a_whole_distinguishes_it_from_others() -> None:
    plain = make_pod_spec(cpu=1)
    whole = replace(plain, resources=ResourceRequirements({"cpu": 50}))
    assert planned_spec(whole).resources == ResourceRequirements({"cpu": 50})
    assert shape_of(whole) != shape_of(plain)
    assert not asks_alike(whole, plain)
    assert asks_alike(whole, replace(whole, node_name="n1"))
