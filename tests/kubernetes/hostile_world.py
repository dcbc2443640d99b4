"""A cluster with Fairlead installed, a tenant who may edit one namespace, and canaries of another.

The controllers are a process of their own, as the service account that `fairlead install` makes,
with everything on that reads objects of others: adoption, PodGroups, a log store. Without a webhook
the controllers meet whatever the API server lets in; with it, the same process answers for it.

Nodes v00000 to v00003 are filled by Fairlead alone; kube-scheduler places what is on the others.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from tests.kubernetes.adopting import template
from tests.kubernetes.controlplane import ControlPlane, free_ports
from tests.kubernetes.operating import (
    CLOCK,
    http_client,
    job_body,
    kubeconfig_of,
    until,
    virtual_nodes,
)
from tests.kubernetes.replicas import LEASE, Replica, Replicas, replicas
from tests.kubernetes.test_own_webhook import configure
from tests.simulation.hostile import NAMESPACE, Poison

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Pod
from fairlead.api.resources import (
    CONFIG_MAPS,
    FLEETS,
    JOBS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    Resource,
)
from fairlead.api.status import AlreadyExists, ApiError, NotFound
from fairlead.install.manifests import NAME
from fairlead.kube.client import HttpClient
from fairlead.kube.kubeconfig import load_connection
from fairlead.kube.protocol import HttpOptions
from fairlead.runtime.watching.reader import MirrorReader
from fairlead.runtime.watching.set_aside import SetAside
from fairlead.webhook.certificates import Step, Times, take_step, to_secret
from fairlead.webhook.configuration import MUTATING, VALIDATING

OWN = "fairlead-system"
CANARY = "canary"
NODE_COUNT = 8
OWN_NODES = tuple(f"v{i:05d}" for i in range(4))
TAINT = {"key": "pool", "value": "own", "effect": "NoSchedule"}
#: A canary runs within this time of its creation.
CANARY_SECONDS_MAX = 30.0
#: What the role `edit` lets a tenant create.
TENANT_KINDS = (JOBS, PODS, CONFIG_MAPS)
_BINDINGS: Resource[Any] = Resource(
    "rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", dict
)
_ACCOUNTS: Resource[Any] = Resource("", "v1", "serviceaccounts", "ServiceAccount", dict)


@contextmanager
def _deep() -> Iterator[None]:
    """Encode values of more levels than Python allows by default."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def on_node(body: dict[str, Any], node: str) -> dict[str, Any]:
    """Return the job with its members on this node of Fairlead's own."""
    spec = body["spec"]["roles"][0]["template"]["spec"]
    spec["nodeSelector"] = {names.HOSTNAME: node}
    spec["tolerations"] = [TAINT]
    return body


@dataclass
class World:
    """The process under test; `admin` may do everything, `tenant` edits the namespace `hostile`."""

    admin: HttpClient
    tenant: HttpClient
    running: Replicas
    replica: Replica
    transitions: int = 0
    let_in: Counter[str] = field(default_factory=Counter[str])  # by resource
    refused: dict[str, str] = field(default_factory=dict[str, str])
    canaries: int = 0
    canary_seconds_max: float = CANARY_SECONDS_MAX
    _made: list[tuple[HttpClient, str]] = field(default_factory=list[tuple[HttpClient, str]])

    # Hostile objects

    async def send(self, poison: Poison) -> None:
        """Create it with its status, by the tenant where a tenant could."""
        resource = poison.resource
        client = self.tenant if resource in TENANT_KINDS else self.admin
        path = resource.path(NAMESPACE if resource.namespaced else "")
        body = {"kind": resource.kind, "apiVersion": resource.api_version, **poison.body}
        with _deep():
            text = msgspec.json.encode(body)
        try:
            try:
                await client.request("POST", path, body=text)
            except AlreadyExists:  # of the fleet there is one
                if resource is not FLEETS:
                    raise
                path_of = f"{path}/{poison.body['metadata']['name']}"
                kind = "application/merge-patch+json"
                await client.request("PATCH", path_of, body=text, content_type=kind)
        except ApiError as error:
            self.refused[poison.label] = error.message
            return
        self.let_in[resource.name] += 1
        path = f"{path}/{poison.body['metadata']['name']}"
        self._made.append((self.admin, path))
        if poison.status:
            patch = msgspec.json.encode(poison.status)
            with suppress(ApiError):
                await self.admin.request(
                    "PATCH", f"{path}/status", body=patch,
                    content_type="application/merge-patch+json",
                )  # fmt: skip

    async def clean(self) -> str:
        """Delete what was sent; return which jobs stay though nobody else holds them, or ""."""
        while self._made:
            client, path = self._made.pop()
            with suppress(NotFound):
                await client.request("DELETE", path, params={"gracePeriodSeconds": "0"})
        left: list[str] = []

        async def are_gone() -> bool:
            jobs = (await self.admin.list(JOBS.only_metadata, namespace=NAMESPACE)).items
            left[:] = [
                job.metadata.name for job in jobs if names.JOB_FINALIZER in job.metadata.finalizers
            ]
            return not left

        try:
            await until(are_gone, CANARY_SECONDS_MAX)
        except TimeoutError:
            return f"deleted jobs stay: {', '.join(left)}"
        await self.admin.delete_collection(PODS, namespace=NAMESPACE, grace_period_seconds=0)
        return ""

    # Those who must not be harmed

    async def job(self, name: str, namespace: str = CANARY) -> Job:
        return await self.admin.get(JOBS, name, namespace=namespace)

    async def pods_of(self, name: str, namespace: str = CANARY) -> list[Pod]:
        label = f"{names.JOB_NAME}={name}"
        return list((await self.admin.list(PODS, namespace=namespace, label_selector=label)).items)

    async def runs(self, name: str, namespace: str = CANARY) -> None:
        """Return once the job runs, or has run."""

        async def is_running() -> bool:
            return (await self.job(name, namespace)).status.state in ("Running", "Succeeded")

        await until(is_running, self.canary_seconds_max)

    async def canary(self) -> bool:
        """True when new work of another tenant runs in time.

        A gang that kube-scheduler places, a job that Fairlead places, and a pod that is adopted.
        """
        self.canaries += 1
        gang = job_body(f"canary-{self.canaries}-gang", 2, gpus=1, seconds=0.5)
        spec = gang["spec"]["roles"][0]["template"]["spec"]
        spec["nodeSelector"] = {names.NODE_TYPE: "virtual"}
        lone = on_node(job_body(f"canary-{self.canaries}-lone", 1, gpus=1, seconds=0.5), "v00003")
        guest = template(gpus=1, seconds=0.5, labels={names.GANG_SCHEDULING: "enabled"})
        guest["metadata"]["name"] = name = f"canary-{self.canaries}-guest"
        guest["spec"]["nodeSelector"] = {names.NODE_TYPE: "virtual"}

        async def is_bound() -> bool:
            return bool((await self.admin.get(PODS, name, namespace=CANARY)).spec.node_name)

        try:
            for body in (gang, lone):
                await self.admin.create(JOBS, body, namespace=CANARY)
            await self.admin.create(PODS, guest, namespace=CANARY)
            for body in (gang, lone):
                await self.runs(body["metadata"]["name"])
            await until(is_bound, self.canary_seconds_max)
        except (TimeoutError, ApiError):
            return False
        return True

    async def harm(self) -> str:
        """Return what is wrong with others than those who sent hostile objects; "" for nothing."""
        found = [] if await self.canary() else ["the canary does not run"]
        if self.replica.process.returncode is not None:
            return f"the process ended: {self.replica.process.returncode}"
        _, text = await self.replica.get("/metrics")
        found += re.findall(
            r'^fairlead_service_crashes_total\{service="(.+)"\} [^0].*$', text, re.MULTILINE
        )
        lease = await self.admin.get(LEASES, LEASE, namespace=OWN)
        if lease.spec.lease_transitions != self.transitions or "fairlead_leader 1.0" not in text:
            found.append("the lease was lost")
        return "; ".join(found)

    async def harmful(self, batch: Sequence[Poison]) -> list[str]:
        """Send these; return those that harm others, by bisection, with what they did."""
        for each in batch:
            await self.send(each)
        harm = [each for each in (await self.harm(), await self.clean()) if each]
        if not harm:
            return []
        await self.restart()
        if len(batch) == 1:
            return [f"{batch[0].label}: {'; '.join(harm)}"]
        half = len(batch) // 2
        found = [*await self.harmful(batch[:half]), *await self.harmful(batch[half:])]
        return found or [f"{batch[0].label} to {batch[-1].label} together: {'; '.join(harm)}"]

    async def restart(self) -> None:
        """Replace the process by a new one."""
        if self.replica.process.returncode is None:
            self.replica.process.terminate()
        await self.replica.process.wait()
        self.running.running.remove(self.replica)
        self.replica = await self.running.start()
        await self.led()

    async def led(self) -> None:
        """Return once the process leads and all its controllers are ready."""

        async def is_ready() -> bool:
            _, text = await self.replica.get("/metrics")
            return "fairlead_leader 1.0" in text and (await self.replica.get("/readyz"))[0] == 200

        await until(is_ready)
        lease = await self.admin.get(LEASES, LEASE, namespace=OWN)
        self.transitions = lease.spec.lease_transitions


async def _prepare(admin: HttpClient) -> None:
    for name in (NAMESPACE, CANARY):
        with suppress(AlreadyExists):
            await admin.create(NAMESPACES, {"metadata": {"name": name}})
    account = {"kind": "ServiceAccount", "name": "tenant", "namespace": NAMESPACE}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
    binding = {"metadata": {"name": "tenant"}, "roleRef": role, "subjects": [account]}
    for resource, body in ((_ACCOUNTS, {"metadata": {"name": "tenant"}}), (_BINDINGS, binding)):
        with suppress(AlreadyExists):
            await admin.create(resource, body, namespace=NAMESPACE)


def _client(kubeconfig: Path) -> HttpClient:
    return HttpClient(load_connection(path=kubeconfig), HttpOptions())


@asynccontextmanager
async def _asked_webhook(
    admin: HttpClient, directory: Path
) -> AsyncIterator[tuple[tuple[str, ...], Callable[[], Awaitable[None]]]]:
    """Let the API server ask a webhook on loopback; yield arguments, and what waits until it is."""
    (port,) = free_ports(1)
    material = take_step(Step.MAKE, None, ("127.0.0.1",), now=CLOCK.now(), times=Times())
    (directory / "tls.crt").write_bytes(material.serving.certificate)
    (directory / "tls.key").write_bytes(material.serving.key)
    bundle = str(to_secret(material)["ca.crt"])
    wrong = job_body("wrong", 1, priority=2**31 - 1)

    async def is_asked() -> bool:
        try:
            await admin.create(JOBS, wrong, namespace=CANARY, dry_run=True)
        except ApiError as error:
            return "priority" in error.message
        return False

    async def ask() -> None:
        for resource in (MUTATING, VALIDATING):
            await admin.delete_collection(resource)
        await configure(admin, port, bundle=bundle)
        await until(is_asked)

    arguments = ("--webhook-listen", f"127.0.0.1:{port}", "--webhook-cert-dir", str(directory))
    try:
        yield arguments, ask
    finally:
        for resource in (MUTATING, VALIDATING):
            await admin.delete_collection(resource)


@asynccontextmanager
async def hostile_world(
    cluster: ControlPlane, directory: Path, *, webhook: bool = False
) -> AsyncIterator[World]:
    """Nodes, the process and both tenants on a control plane where Fairlead is installed."""
    admin = http_client(cluster)
    await _prepare(admin)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(admin.close)
        if not webhook:
            yield await stack.enter_async_context(_running(cluster, directory, admin))
            return
        arguments, ask = await stack.enter_async_context(_asked_webhook(admin, directory))
        running = _running(cluster, directory, admin, *arguments)
        world = await stack.enter_async_context(running)
        await ask()
        yield world


@asynccontextmanager
async def _running(
    cluster: ControlPlane, directory: Path, admin: HttpClient, *arguments: str
) -> AsyncIterator[World]:
    tenant = _client(await kubeconfig_of(admin, cluster, NAMESPACE, "tenant"))
    account = await kubeconfig_of(admin, cluster, OWN, NAME)
    arguments = ("-n", OWN, "--binding", "native", *arguments)
    reader = MirrorReader(SetAside("virtual-nodes"))
    async with (
        virtual_nodes(admin, NODE_COUNT, reader=reader),
        replicas(
            cluster, history=f"{directory}/history.db", kubeconfig=account, arguments=arguments
        ) as running,
    ):
        for node in OWN_NODES:
            labels = {"metadata": {"labels": {names.BINDING: "direct"}}}
            await admin.patch(NODES, node, {**labels, "spec": {"taints": [TAINT]}})
        world = World(admin, tenant, running, await running.start())
        await world.led()
        yield world
        for namespace in (CANARY, NAMESPACE):
            await admin.delete_collection(JOBS, namespace=namespace)
            await admin.delete_collection(PODS, namespace=namespace, grace_period_seconds=0)
        await until(lambda: _is_empty(admin))
        world.replica.process.terminate()
        await world.replica.process.wait()
    await tenant.close()


async def _is_empty(admin: HttpClient) -> bool:
    jobs = (await admin.list(JOBS.only_metadata)).items
    for job in jobs:
        if job.metadata.finalizers and names.JOB_FINALIZER not in job.metadata.finalizers:
            free = {"metadata": {"finalizers": None}}
            namespace, name = job.metadata.key
            with suppress(NotFound):
                await admin.patch(JOBS.only_metadata, name, free, namespace=namespace)
    return not jobs
