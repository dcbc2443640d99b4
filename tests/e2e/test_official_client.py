"""The official `kubernetes` package, unmodified, against the embedded API: what other people's
controllers in Python do."""

from __future__ import annotations

import asyncio
import queue
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.conformance.embedded import EmbeddedTarget, embedded_target
from tests.conformance.http_server import TOKEN
from tests.patience import PATIENCE_SECONDS

import kubernetes

pytestmark = pytest.mark.e2e


def _client(url: str) -> Any:
    configuration = kubernetes.client.Configuration(host=url)
    configuration.api_key = {"authorization": f"Bearer {TOKEN}"}
    return kubernetes.client.ApiClient(configuration)


async def beside(work: Callable[[EmbeddedTarget, Any], None]) -> None:
    """Run blocking work in a thread while the server lives in this loop."""
    async with embedded_target() as target:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.to_thread(work, target, _client(target.url))


def _map(name: str, **data: str) -> Any:
    metadata = kubernetes.client.V1ObjectMeta(name=name, labels={"app": "x"})
    return kubernetes.client.V1ConfigMap(metadata=metadata, data=data)


def _pod(name: str) -> Any:
    container = kubernetes.client.V1Container(name="main", image="none")
    return kubernetes.client.V1Pod(
        metadata=kubernetes.client.V1ObjectMeta(name=name),
        spec=kubernetes.client.V1PodSpec(containers=[container], node_name="n"),
    )


async def test_objects_are_made_read_changed_and_deleted() -> None:
    def work(_target: EmbeddedTarget, api: Any) -> None:
        core = kubernetes.client.CoreV1Api(api)
        made = core.create_namespaced_config_map("default", _map("a", k="v"))
        assert made.metadata.uid
        stale = core.read_namespaced_config_map("a", "default")
        core.patch_namespaced_config_map("a", "default", {"data": {"k": "new"}})
        with pytest.raises(kubernetes.client.ApiException) as caught:
            core.replace_namespaced_config_map("a", "default", stale)
        assert caught.value.status == 409
        listed = core.list_namespaced_config_map("default", label_selector="app=x")
        assert [item.data for item in listed.items] == [{"k": "new"}]
        core.delete_namespaced_config_map("a", "default")
        with pytest.raises(kubernetes.client.ApiException) as caught:
            core.read_namespaced_config_map("a", "default")
        assert caught.value.status == 404

    await beside(work)


async def test_pods_are_bound_evicted_and_their_status_is_patched() -> None:
    def work(_target: EmbeddedTarget, api: Any) -> None:
        core = kubernetes.client.CoreV1Api(api)
        core.create_namespaced_pod("default", _pod("p"))
        core.patch_namespaced_pod_status("p", "default", {"status": {"phase": "Running"}})
        assert core.read_namespaced_pod("p", "default").status.phase == "Running"
        asked = {"name": "r", "resources": {"requests": {"cpu": "1"}}}
        body = {"metadata": {"name": "r"}, "spec": {"containers": [asked]}}
        core.create_namespaced_pod("default", body)
        more = {"containers": [{"name": "r", "resources": {"requests": {"cpu": "2"}}}]}
        pod = core.patch_namespaced_pod_resize("r", "default", {"spec": more})
        assert pod.spec.containers[0].resources.requests == {"cpu": "2"}
        pod.spec.containers[0].resources.requests = {"cpu": "3"}
        assert core.replace_namespaced_pod_resize("r", "default", pod).metadata.generation == 3
        eviction = kubernetes.client.V1Eviction(metadata=kubernetes.client.V1ObjectMeta(name="p"))
        core.create_namespaced_pod_eviction("p", "default", eviction)
        assert core.read_namespaced_pod("p", "default").metadata.deletion_timestamp is not None

    await beside(work)


async def test_nodes_are_listed_read_and_patched_whatever_their_kubelet_left_out() -> None:
    def work(_target: EmbeddedTarget, api: Any) -> None:
        core = kubernetes.client.CoreV1Api(api)
        bare = kubernetes.client.V1Node(metadata=kubernetes.client.V1ObjectMeta(name="bare"))
        core.create_node(bare)
        status = {"nodeInfo": {"kubeletVersion": "v1"}, "capacity": {"cpu": "1"}}
        nodes = kubernetes.dynamic.DynamicClient(api).resources.get(api_version="v1", kind="Node")
        nodes.create(body={"metadata": {"name": "some"}, "status": status})
        assert [n.metadata.name for n in core.list_node().items] == ["bare", "some"]
        assert core.read_node("some").status.node_info.kubelet_version == "v1"
        assert core.read_node("bare").status.node_info.machine_id == ""
        patched = core.patch_node("some", {"spec": {"unschedulable": True}})
        assert patched.spec.unschedulable
        (taint,) = patched.spec.taints
        assert (taint.key, taint.effect) == ("node.kubernetes.io/unschedulable", "NoSchedule")
        again = core.patch_node("some", {"metadata": {"labels": {"a": "b"}}})
        assert again.spec.taints == [taint], "it says since when the node is cordoned"
        assert taint.time_added is not None
        assert not core.patch_node("some", {"spec": {"unschedulable": False}}).spec.taints
        core.patch_node_status("some", {"status": {"nodeInfo": {"bootID": "b"}}})
        assert core.read_node_status("some").status.node_info.boot_id == "b"

    await beside(work)


async def test_what_nothing_acts_on_is_refused_with_what_to_do_instead() -> None:
    def work(_target: EmbeddedTarget, api: Any) -> None:
        template = kubernetes.client.V1PodTemplateSpec(spec=_pod("p").spec)
        spec = kubernetes.client.V1JobSpec(template=template)
        metadata = kubernetes.client.V1ObjectMeta(name="j")
        job = kubernetes.client.V1Job(metadata=metadata, spec=spec)
        batch = kubernetes.client.BatchV1Api(api)
        with pytest.raises(kubernetes.client.ApiException) as caught:
            batch.create_namespaced_job("default", job)
        assert caught.value.status == 403
        assert "runs a Job; queue the work as a Job of fairlead.dev" in caught.value.body
        with pytest.raises(kubernetes.client.ApiException) as caught:
            batch.list_namespaced_job("default")
        assert caught.value.status == 405

    await beside(work)


async def test_pages_lead_through_a_list() -> None:
    def work(_target: EmbeddedTarget, api: Any) -> None:
        core = kubernetes.client.CoreV1Api(api)
        for i in range(5):
            core.create_namespaced_config_map("default", _map(f"m{i}"))
        names, token = [], None
        while True:
            page = core.list_namespaced_config_map("default", limit=2, _continue=token)
            names += [item.metadata.name for item in page.items]
            token = page.metadata._continue
            if not token:
                break
        assert names == [f"m{i}" for i in range(5)]

    await beside(work)


async def test_a_watch_resumes_after_a_cut_and_says_when_its_version_is_gone() -> None:
    def work(_target: EmbeddedTarget, api: Any) -> None:
        core = kubernetes.client.CoreV1Api(api)
        core.create_namespaced_config_map("default", _map("a"))
        watch = kubernetes.watch.Watch()
        seen = []
        for event in watch.stream(core.list_namespaced_config_map, "default", timeout_seconds=10):
            seen.append((event["type"], event["object"].metadata.name))
            break  # the connection is cut here
        core.create_namespaced_config_map("default", _map("b"))
        again = kubernetes.watch.Watch()
        version = watch.resource_version
        for event in again.stream(
            core.list_namespaced_config_map, "default", resource_version=version, timeout_seconds=10
        ):
            seen.append((event["type"], event["object"].metadata.name))
            break
        assert seen == [("ADDED", "a"), ("ADDED", "b")]

    await beside(work)


async def test_the_dynamic_client_finds_kinds_by_discovery() -> None:
    def work(_target: EmbeddedTarget, api: Any) -> None:
        dynamic = kubernetes.dynamic.DynamicClient(api)
        leases = dynamic.resources.get(api_version="coordination.k8s.io/v1", kind="Lease")
        body = {
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "l"}, "spec": {"holderIdentity": "me"},
        }  # fmt: skip
        leases.create(body=body, namespace="default")
        assert leases.get(name="l", namespace="default").spec.holderIdentity == "me"

    await beside(work)


async def test_its_informer_keeps_a_cache_equal_to_the_server() -> None:
    from kubernetes.informer import SharedInformer

    def work(_target: EmbeddedTarget, api: Any) -> None:
        core = kubernetes.client.CoreV1Api(api)
        core.create_namespaced_config_map("default", _map("before"))
        informer = SharedInformer(core.list_namespaced_config_map, namespace="default")
        events: queue.Queue[tuple[str, str]] = queue.Queue()
        for kind in ("ADDED", "MODIFIED", "DELETED"):
            informer.add_event_handler(
                kind, lambda obj, kind=kind: events.put((kind, obj.metadata.name))
            )
        informer.start()
        try:
            assert events.get(timeout=PATIENCE_SECONDS) == ("ADDED", "before")
            core.create_namespaced_config_map("default", _map("after"))
            assert events.get(timeout=PATIENCE_SECONDS) == ("ADDED", "after")
            core.patch_namespaced_config_map("after", "default", {"data": {"k": "v"}})
            assert events.get(timeout=PATIENCE_SECONDS) == ("MODIFIED", "after")
            core.delete_namespaced_config_map("before", "default")
            assert events.get(timeout=PATIENCE_SECONDS) == ("DELETED", "before")
            assert [obj.metadata.name for obj in informer.cache.list()] == ["after"]
        finally:
            informer.stop()

    await beside(work)


async def test_the_asyncio_client_lists_and_watches() -> None:
    from kubernetes import aio

    async with embedded_target() as target:
        configuration = aio.client.Configuration(host=target.url)
        configuration.api_key = {"authorization": f"Bearer {TOKEN}"}
        async with aio.client.ApiClient(configuration) as api:
            core = aio.client.CoreV1Api(api)
            body = {"metadata": {"name": "a"}, "data": {"k": "v"}}
            made = await core.create_namespaced_config_map("default", body)
            watch = aio.watch.Watch()
            seen: list[tuple[str, str]] = []
            async with asyncio.timeout(PATIENCE_SECONDS), watch.stream(
                core.list_namespaced_config_map, "default",
                resource_version=made.metadata.resource_version,
            ) as stream:  # fmt: skip
                await core.patch_namespaced_config_map("a", "default", {"data": {"k": "new"}})
                await core.delete_namespaced_config_map("a", "default")
                async for event in stream:
                    seen.append((event["type"], event["object"].metadata.name))
                    if event["type"] == "DELETED":
                        break
            assert seen == [("MODIFIED", "a"), ("DELETED", "a")]
            with pytest.raises(aio.client.ApiException) as caught:
                await core.read_namespaced_config_map("a", "default")
            assert caught.value.status == 404


ELECTION = """
import sys
import kubernetes
from kubernetes.leaderelection import electionconfig, leaderelection
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock
configuration = kubernetes.client.Configuration(host=sys.argv[1])
configuration.api_key = {"authorization": "Bearer " + sys.argv[2]}
kubernetes.client.Configuration.set_default(configuration)
config = electionconfig.Config(
    LeaseLock("leader", "default", sys.argv[3]), lease_duration=4, renew_deadline=3,
    retry_period=1.5, onstarted_leading=lambda: print("leading", flush=True),
    onstopped_leading=None)
leaderelection.LeaderElection(config).run()
"""


async def test_leader_election_passes_the_lock_on_when_its_holder_dies() -> None:
    async with embedded_target() as target, AsyncExitStack() as stack:

        async def candidate(name: str) -> asyncio.subprocess.Process:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", ELECTION, target.url, TOKEN, name,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip

            async def end() -> None:
                if process.returncode is None:
                    process.kill()
                await process.wait()

            stack.push_async_callback(end)
            return process

        async with asyncio.timeout(PATIENCE_SECONDS):
            one = await candidate("one")
            assert one.stdout is not None
            assert await one.stdout.readline() == b"leading\n"
            two = await candidate("two")
            one.kill()
            assert two.stdout is not None
            assert await two.stdout.readline() == b"leading\n"
        lease = "/apis/coordination.k8s.io/v1/namespaces/default/leases/leader"
        spec = (await target.request("GET", lease)).json["spec"]
        assert spec["holderIdentity"] == "two"
