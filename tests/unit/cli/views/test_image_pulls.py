"""`fairlead images --pulls`: who pulls what, what it costs, and what peers change."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.unit.cli.fake_api import FakeApi, serve

from fairlead.api.kubernetes.core import Event
from fairlead.api.resources import EVENTS, JOBS, PODS
from fairlead.api.status import Forbidden
from fairlead.cli.app import run
from fairlead.decide.attempts.seats import member_name
from fairlead.decide.images.pulled import ImagePull, PullCost, pulls_of
from fairlead.testing.builders import make_job, make_role

TORCH = "r.example/torch:1"
GB = 10**9


def event(
    pod: str, node: str, size: int, took: str, *, minute: int = 0, image: str = TORCH,
    namespace: str = "default",
) -> dict[str, Any]:  # fmt: skip
    """Return what a kubelet reports of a pull."""
    words = (
        f'Successfully pulled image "{image}" in {took} ({took} including waiting). '
        f"Image size: {size} bytes."
    )
    return {
        "metadata": {"name": f"{pod}.{node}.{minute}", "namespace": namespace}, "reason": "Pulled",
        "involvedObject": {"kind": "Pod", "namespace": namespace, "name": pod},
        "source": {"component": "kubelet", "host": node}, "message": words,
        "lastTimestamp": f"2026-11-29T10:{minute:02}:00Z",
    }  # fmt: skip


def pulls(*events: dict[str, Any]) -> list[ImagePull]:
    return pulls_of(msgspec.convert(events, tuple[Event, ...]))


def test_what_a_start_cost_follows_from_what_its_node_had_pulled_before() -> None:
    found = pulls(
        event("c", "n1", 18 * GB, "18s", minute=3),
        event("a", "n1", 17 * GB, "17s", minute=1),
        event("b", "n1", 17 * GB, "600ms", minute=2),
        event("d", "n1", 18 * GB, "17s", minute=4),
        event("e", "n2", 17 * GB, "20s", minute=5),
        event("f", "n3", 17 * GB, "300ms", minute=6),
    )
    costs = [(each.pod, each.cost) for each in found]
    first, again, asked = PullCost.FIRST, PullCost.AGAIN, PullCost.ASKED
    assert costs == [
        ("a", first),
        ("b", asked),  # Always: the node had it
        ("c", again),  # the tag has moved
        ("d", again),  # removed meanwhile: it took as long as the first time
        ("e", first),
        ("f", asked),  # faster than any line, so it was there before the hour
    ]
    rates = [each.bytes_per_second for each in found]
    assert rates == [GB, None, GB, 18 * GB / 17, 17 * GB / 20, None]


def test_events_without_a_size_or_a_time_tell_of_no_pull() -> None:
    texts = ("", 'Successfully pulled image "x" in 5s (5s including waiting).',
             'Container image "x" already present on machine',
             'Successfully pulled image "x" in .s (1s waiting). Image size: 5 bytes.')  # fmt: skip
    assert pulls(*({**event("a", "n", 1, "1s"), "message": text} for text in texts)) == []


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    """A gang whose role and name have hyphens, another job, and what their pods pulled."""
    gang = make_job("big-gang", roles=(make_role("w-0", count=2),))
    gang, lone = replace(gang, spec=replace(gang.spec, team="vision")), make_job("lone")
    made = FakeApi(gang, lone)
    serve(monkeypatch, made)
    role = gang.spec.roles[0].name
    names = [member_name(gang, 3, role, index) for index in range(2)]
    other = lone.spec.roles[0].name
    for each in (
        event(names[0], "n1", 17 * GB, "10s", minute=1),
        event(names[1], "n2", 17 * GB, "10s", minute=1),
        event(member_name(lone, 1, other, 0), "n3", 17 * GB, "100s", minute=2),
        event(member_name(lone, 2, other, 0), "n3", 17 * GB, "1s", minute=3),
        event("big-gang-x", "n4", 2 * GB, "20s", minute=3, image="s.example/web:2"),
        event("image-pull-0123", "n5", 17 * GB, "50s", minute=4),
    ):
        made.create(EVENTS.raw, each, namespace="default")
    return made


def shown(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, dict[str, Any]]:
    assert run(["images", *flags, "-o", "json"]) == 0
    return {each["of"]: each for each in json.loads(capsys.readouterr().out)}


def test_jobs_are_known_by_the_names_of_their_pods_and_the_rest_is_not_theirs(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    found = shown(capsys, "--pulls", "job")
    assert list(found) == [
        "default/big-gang", "default/lone", "default: images before work", "default: other pods",
    ]  # fmt: skip
    gang, lone = found["default/big-gang"], found["default/lone"]
    assert (gang["pulls"], gang["bytes"], gang["bytesPerSecond"]) == (2, 34 * GB, 17 * GB // 10)
    assert (lone["pulls"], lone["asked"], lone["askedSeconds"]) == (1, 1, 1.0)
    assert list(shown(capsys, "--pulls", "team")) == [
        "vision", "no team", "images before work", "other pods",
    ]  # fmt: skip
    assert list(shown(capsys, "s.example", "--pulls", "image")) == ["s.example/web:2"]
    assert list(shown(capsys, "--pulls", "registry")) == ["r.example", "s.example"]
    assert len(shown(capsys, "--pulls", "node")) == 5
    assert run(["images", "--pulls", "job"]) == 0
    header, first, *_ = capsys.readouterr().out.splitlines()
    assert header.split() == ["JOB", "PULLS", "BYTES", "AGAIN", "RATE", "ASKED", "WAITED"]
    assert first.split() == ["default/big-gang", "2", "34", "GB", "-", "1.7", "GB/s", "0", "-"]
    assert run(["images", "--pulls", "job", "-o", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("default/big-gang,2,34000000000,0,")


def peer(node: str, *, image: str, phase: str = "Running", kind: str = "DaemonSet",
         **labels: str) -> dict[str, Any]:  # fmt: skip
    owner = {"apiVersion": "apps/v1", "kind": kind, "name": "d", "uid": "u"}
    return {
        "metadata": {"name": f"p-{node}", "labels": labels, "ownerReferences": [owner]},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": image}]},
        "status": {"phase": phase},
    }  # fmt: skip


def test_the_effect_of_peers_is_the_rate_of_nodes_with_them_beside_that_of_the_others(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*flags: str) -> str:
        assert run(["images", "--pulls", "registry", *flags]) == 0
        return capsys.readouterr().err

    assert "GB/s" not in said()
    spegel = {"app.kubernetes.io/name": "spegel"}
    for node, more in (("n1", {}), ("n2", {}), ("n3", {"phase": "Pending"}), ("n5", {"kind": "J"})):
        pod = peer(node, image="ghcr.io/spegel-org/spegel:v1", **more, **spegel)
        api.create(PODS.raw, pod, namespace="spegel")
    client = peer("n4", image="docker.io/any/client:1", component="client")
    api.create(PODS.raw, client, namespace="web")
    assert said() == (
        "spegel, r.example: 1.7 GB/s (2 pulls by 2 nodes) with it, "
        "255 MB/s (2 pulls by 2 nodes) without: 6.7 times the rate\n"
        "spegel, s.example: no pull by a node with it says a rate yet\n"
    )
    found = said("--peers", "component=client").splitlines()
    assert found[1] == (
        "component=client, s.example: 100 MB/s (1 pull by 1 node) with it; no node without it has "
        "pulled, so its effect is not known"
    )
    assert "no pod of a DaemonSet with a=b runs" in said("--peers", "a=b")


def test_a_user_of_one_namespace_sees_its_pulls_and_a_note_says_so(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    inner = api.call

    def call(request: Any) -> Any:
        if not request.namespace and request.resource.name in (
            EVENTS.name, JOBS.name, PODS.name,
        ):  # fmt: skip
            raise Forbidden(f"{request.resource.name} is forbidden")
        return inner(request)

    monkeypatch.setattr(api, "call", call)
    assert run(["images", "--pulls", "job"]) == 0
    out, err = capsys.readouterr()
    assert "default/big-gang" in out
    assert "the events of all namespaces; those of default count" in err
    assert "you may not list pods" in err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--pulls", "jobs"], "--pulls"),
        (["--pulls", "job", "--layers", "r"], "two tables"),
        (["--peers", "a=b"], "--peers is for --pulls"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(
    flags: list[str], message: str, api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["images", *flags]) == 2
    assert message in capsys.readouterr().err


def test_no_pulls_are_said_to_be_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(monkeypatch, FakeApi())
    assert run(["images", "--pulls", "job"]) == 0
    assert "no pulls were reported" in capsys.readouterr().err
