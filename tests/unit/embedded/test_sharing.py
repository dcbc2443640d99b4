"""Pods that say the same share what they say."""

from __future__ import annotations

import msgspec
from bench.objects import pod_body

from fairlead.api.core import Node, Pod
from fairlead.embedded.client import PodSharing


def decoded(name: str) -> Pod:
    return msgspec.json.decode(msgspec.json.encode(pod_body(name)), type=Pod)


def test_equal_parts_of_two_pods_become_one_and_the_pods_stay_what_they_are() -> None:
    sharing, first, second = PodSharing(), decoded("a"), decoded("b")
    sharing.share(first)
    sharing.share(second)
    assert second == decoded("b")
    assert second.spec.volumes is first.spec.volumes
    pairs = zip(first.spec.containers[0].env, second.spec.containers[0].env, strict=True)
    assert all(one is other for one, other in pairs)


def test_a_full_table_forgets_and_goes_on() -> None:
    sharing = PodSharing(parts_max=3)
    for i in range(5):
        pod = decoded(f"p-{i}")
        sharing.share(pod)
        assert pod == decoded(f"p-{i}")


def test_other_kinds_are_left_alone() -> None:
    node = Node()
    PodSharing().share(node)
    assert node == Node()
