"""A bad object among good ones: it is told apart, and hides nothing."""

from __future__ import annotations

import time

import msgspec
import pytest

from fairlead.api.kubernetes.core import Pod, ResourceRequirements
from fairlead.api.meta import ObjectMeta
from fairlead.api.pods.pod_asks import pod_amounts
from fairlead.api.resources import JOBS, NODES, PODS
from fairlead.api.status import InternalError
from fairlead.kube.decoding import Decoders
from fairlead.runtime.client import EventType
from fairlead.runtime.watching.unreadable import cut, items_of, unreadable_of


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def job(name: str, extra: bytes = b"1") -> bytes:
    return (
        b'{"metadata":{"name":"%s","namespace":"a","uid":"u-%s","resourceVersion":"7",'
        b'"finalizers":["x/y"],"deletionTimestamp":"2026-01-01T00:00:00Z"},'
        b'"spec":{"roles":[{"name":"w","template":{"spec":{"containers":[],"x":%s}}}]}}'
    ) % (name.encode(), name.encode(), extra)


def page(*items: bytes, meta: bytes = b'{"resourceVersion":"9","continue":"more"}') -> bytes:
    return b'{"kind":"JobList","metadata":%s,"items":[%s]}' % (meta, b",".join(items))


def test_a_page_of_good_objects_has_no_bad_ones() -> None:
    good, bad, meta = Decoders(JOBS).page(page(job("a"), job("b")))
    assert [obj.metadata.name for obj in good] == ["a", "b"]
    assert not bad
    assert (meta.resource_version, meta.continue_) == ("9", "more")


@pytest.mark.parametrize("depth", [1_500, 20_000, 200_000])
def test_an_object_nested_too_deep_hides_no_other_of_its_page(depth: int) -> None:
    body = page(job("a"), job("deep", nested(depth)), job("c"))
    good, bad, meta = Decoders(JOBS).page(body)
    assert [obj.metadata.name for obj in good] == ["a", "c"]
    assert [each.metadata.key for each in bad] == [("a", "deep")]
    assert "RecursionError" in bad[0].why
    assert meta.continue_ == "more"


def test_the_metadata_of_a_bad_object_are_whole() -> None:
    _, [bad], _ = Decoders(JOBS).page(page(job("deep", nested(5_000))))
    assert bad.metadata == ObjectMeta(
        name="deep", namespace="a", uid="u-deep", resource_version="7", finalizers=("x/y",),
        deletion_timestamp="2026-01-01T00:00:00Z",
    )  # fmt: skip


def test_an_object_of_wrong_types_hides_no_other_of_its_page() -> None:
    wrong = b'{"metadata":{"name":"wrong","namespace":"a"},"spec":{"roles":"none"}}'
    good, bad, _ = Decoders(JOBS).page(page(job("a"), wrong))
    assert [obj.metadata.name for obj in good] == ["a"]
    assert [each.metadata.name for each in bad] == ["wrong"]


def test_metadata_of_wrong_types_are_read_as_far_as_they_identify() -> None:
    text = (
        b'{"metadata":{"name":"w","uid":"u","resourceVersion":"3","labels":[1]},"spec":{"roles":1}}'
    )
    _, [bad], _ = Decoders(JOBS).page(page(text))
    assert bad.metadata == ObjectMeta(name="w", uid="u", resource_version="3")


def test_an_event_of_a_bad_object_is_an_event() -> None:
    line = b'{"type":"MODIFIED","object":%s}' % job("deep", nested(3_000))
    event = Decoders(JOBS).event(line)
    assert (event.type, event.object, event.resource_version) == (EventType.MODIFIED, None, "7")
    assert event.unreadable is not None
    assert event.unreadable.metadata.key == ("a", "deep")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"items":3}', b"\xff", nested(5_000)])
def test_what_is_no_page_at_all_is_the_servers_fault(body: bytes) -> None:
    with pytest.raises(InternalError):
        Decoders(PODS).page(body)


def test_an_object_that_is_asked_for_and_is_bad_is_an_error_of_the_api() -> None:
    with pytest.raises(InternalError):
        Decoders(JOBS).object(job("deep", nested(5_000)))


def test_a_bad_object_without_a_name_is_nothing() -> None:
    assert unreadable_of(b'{"metadata":{}}', ValueError()) is None
    assert unreadable_of(b"[" * 100_000, ValueError()) is None


def test_what_is_cut_stays_json_and_keeps_what_is_not_so_deep() -> None:
    text = b'{"a":[1,{"b":[2,"]}"]}],"c":"\\"[[[","d":{}}'
    assert msgspec.json.decode(cut(text, 64)) == msgspec.json.decode(text)
    assert msgspec.json.decode(cut(text, 2)) == {"a": [1, None], "c": '"[[[', "d": {}}
    assert items_of(b'{"items":[{"a":{}},{"b":[{}]}]}', 3) == [b'{"a":{}}', b'{"b":[{}]}']


def test_cutting_takes_time_in_proportion_to_the_length() -> None:
    def seconds(size: int) -> float:
        text = b'{"x":"' + b"\\\\" * size + b'","y":' + nested(size) + b"}"
        started = time.thread_time()  # what others do meanwhile does not count
        cut(text, 64)
        return time.thread_time() - started

    seconds(10_000)
    assert seconds(400_000) < 40 * max(seconds(40_000), 0.001)


def test_pods_are_decoded_as_ever() -> None:
    line = b'{"type":"ADDED","object":{"metadata":{"name":"p","resourceVersion":"1"},"spec":{}}}'
    event = Decoders(PODS).event(line)
    assert isinstance(event.object, Pod)


def node(name: str, *images: str) -> bytes:
    listed = [{"names": [f"r.io/{image}@sha256:1", f"r.io/{image}:1"]} for image in images]
    return msgspec.json.encode({
        "metadata": {"name": name, "resourceVersion": "7"},
        "status": {"images": [*listed, {"names": None, "sizeBytes": 1}]},
    })  # fmt: skip


def test_nodes_share_the_images_that_they_have_in_common() -> None:
    decoders = Decoders(NODES)
    (a, b), _, _ = decoders.page(page(node("a", "x", "y"), node("b", "x", "y")))
    assert a.status.images is b.status.images
    assert a.status.images[0].names == ("r.io/x@sha256:1", "r.io/x:1")
    assert a.status.images[2].names is None
    line = b'{"type":"MODIFIED","object":%s}'
    same, more = (decoders.event(line % node("a", *each)).object for each in ("xy", "zxy"))
    assert same is not None
    assert more is not None
    assert same.status.images is a.status.images
    shared = [more.status.images[i] is each for i, each in enumerate(a.status.images, 1)]
    assert shared == [True] * 3


def test_of_a_pods_amounts_that_are_reported_only_those_of_a_resize_are_kept() -> None:
    def pod(name: str, has: str) -> bytes:
        amounts = {"requests": {"cpu": "1"}}
        state = {"name": "main", "resources": {"requests": {"cpu": has}},
                 "allocatedResources": {"cpu": "1"}}  # fmt: skip
        return msgspec.json.encode({
            "metadata": {"name": name, "resourceVersion": "7"},
            "spec": {"containers": [{"name": "main", "resources": amounts}]},
            "status": {"containerStatuses": [state]},
        })  # fmt: skip

    (usual, resized), _, _ = Decoders(PODS).page(page(pod("usual", "1"), pod("resized", "2")))
    (state,) = usual.status.container_statuses
    assert (state.name, state.resources, state.allocated_resources) == ("main", None, None)
    (state,) = resized.status.container_statuses
    assert state.resources == ResourceRequirements({"cpu": "2"})
    assert state.allocated_resources == {"cpu": "1"}
    assert [pod_amounts(each) for each in (usual, resized)] == [{"cpu": 1000}, {"cpu": 2000}]
    line = b'{"type":"MODIFIED","object":%s}' % pod("usual", "1")
    assert Decoders(PODS).event(line).object == usual
