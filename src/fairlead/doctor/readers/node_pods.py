"""Facts of nodes from one short-lived pod on each of a few nodes; only when a person asks for it.

The pod runs the script of `--node-facts`, which leaves out what a pod does not see.
It uses the host's network, as the kernel shows the neighbour tables and most of `net.*` to that
namespace only. It has no volume, no privilege, no capability, no token and no root.

A pod ends by its own deadline, whatever happens here. All pods of a run are deleted at its end,
also after Ctrl-C. What a run that was killed has left is deleted by the next one: pods with the
label of the doctor whose deadline has passed. Pods of another run at the same time are left alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from fairlead.api.status import ApiError, Forbidden, NotFound
from fairlead.api.values.times import time_or
from fairlead.doctor.objects import SeenNode, SeenPod
from fairlead.terminal import printable

SCRIPT = (Path(__file__).parent / "node_facts.sh").read_text()
PODS_MAX, PER_CLASS_MAX = 20, 5
POD_SECONDS_MAX, WAIT_SECONDS_MAX, POLL_SECONDS = 90, 60.0, 2.0
LOG_BYTES_MAX = 1 << 20
OWNER = {"app.kubernetes.io/managed-by": "fairlead-doctor"}
RUN = "doctor.fairlead.dev/run"
_LEFT_SECONDS = POD_SECONDS_MAX + 60.0
_ENDED = ("Succeeded", "Failed")
_POD_SECURITY = "violates PodSecurity"


class Send(Protocol):
    """Sends a request with a JSON body and returns the answer's; ApiError."""

    def __call__(
        self, method: str, path: str, /, query: Mapping[str, str], body: object = None
    ) -> bytes:
        """Return the body of the answer."""
        ...


@dataclass(frozen=True, slots=True)
class PodSettings:
    """How many nodes of each class, the namespace and image of the pods, and the run's name."""

    per_class: int
    namespace: str
    image: str
    run: str


def sampled(nodes: Sequence[SeenNode], per_class: int) -> list[str]:
    """Return the first nodes by name of each class: machine type, kernel, kubelet, runtime."""
    classes: dict[tuple[str, ...], list[str]] = {}
    for node in sorted(nodes, key=lambda each: each.metadata.name):
        labels, info = node.metadata.labels, node.status.node_info
        if labels.get("kubernetes.io/os", "linux") != "linux":
            continue
        key = (labels.get("node.kubernetes.io/instance-type", ""), info.kernel_version,
               info.kubelet_version, info.container_runtime_version)  # fmt: skip
        classes.setdefault(key, []).append(node.metadata.name)
    chosen = [name for members in classes.values() for name in members[:per_class]]
    return sorted(chosen)[:PODS_MAX]


def pod_on(node: str, settings: PodSettings) -> dict[str, Any]:
    """Return the pod for a node."""
    container = {
        "name": "facts", "image": settings.image, "command": ["sh", "-c", SCRIPT],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"},
                      "limits": {"cpu": "200m", "memory": "64Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
            "runAsNonRoot": True, "runAsUser": 65534, "runAsGroup": 65534,
            "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
        },
    }  # fmt: skip
    spec = {
        "nodeName": node, "hostNetwork": True, "restartPolicy": "Never",
        "activeDeadlineSeconds": POD_SECONDS_MAX, "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False, "enableServiceLinks": False,
        "tolerations": [{"operator": "Exists"}], "containers": [container],
    }  # fmt: skip
    metadata = {"generateName": "fairlead-doctor-", "labels": {**OWNER, RUN: settings.run}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


class NodePodReader:
    """Makes the pods of one run, reads them, and deletes them. `problems` says what failed."""

    def __init__(
        self, send: Send, settings: PodSettings, *, wall: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._send = send
        self._settings = settings
        self._path = f"/api/v1/namespaces/{settings.namespace}/pods"
        self._wall = wall
        self._sleep = sleep
        self.problems: list[str] = []

    def read(self, nodes: Sequence[SeenNode]) -> dict[str, dict[str, str]]:
        """Return the facts by node. Every pod that this made is deleted when it returns."""
        self._sweep()
        try:
            made = self._make(sampled(nodes, self._settings.per_class))
            return dict(self._gather(made))
        finally:
            self._delete_all()

    def _make(self, nodes: Sequence[str]) -> int:
        """Make the pods; return how many. A refusal for one is one for all."""
        for number, node in enumerate(nodes):
            try:
                self._send("POST", self._path, {}, pod_on(node, self._settings))
            except ApiError as error:
                self.problems.append(self._refusal(error))
                return number
        return len(nodes)

    def _refusal(self, error: ApiError) -> str:
        text, namespace = printable(str(error), 300), self._settings.namespace
        if isinstance(error, Forbidden) and _POD_SECURITY in str(error):
            return (f"namespace {namespace} enforces Pod Security, which forbids the host's "
                    f"network; choose another with -n, or use --node-facts ({text})")  # fmt: skip
        return f"a pod in namespace {namespace} was refused: {text}"

    def _gather(self, made: int) -> Iterator[tuple[str, dict[str, str]]]:
        ends = self._wall() + WAIT_SECONDS_MAX
        read: set[str] = set()
        while made:
            try:
                pods = self._pods({"labelSelector": f"{RUN}={self._settings.run}"})
            except (ApiError, ValueError) as error:
                self.problems.append(printable(str(error), 300))
                return
            for pod in pods:
                if pod.status.phase in _ENDED and pod.metadata.name not in read:
                    read.add(pod.metadata.name)
                    yield from self._facts(pod)
            if len(read) >= made or self._wall() >= ends:
                late = [each for each in pods if each.metadata.name not in read]
                self.problems += [
                    f"{each.spec.node_name}: no facts within {WAIT_SECONDS_MAX:g} s, the pod is "
                    f"{printable(each.status.phase) or 'not started'}" for each in late
                ]  # fmt: skip
                return
            self._sleep(POLL_SECONDS)

    def _facts(self, pod: SeenPod) -> Iterator[tuple[str, dict[str, str]]]:
        node, log = pod.spec.node_name, f"{self._path}/{pod.metadata.name}/log"
        try:
            text = self._send("GET", log, {"limitBytes": str(LOG_BYTES_MAX)})
        except ApiError as error:
            self.problems.append(f"{node}: {printable(str(error), 300)}")
            return
        facts = parse_node_facts(text[:LOG_BYTES_MAX].decode(errors="replace"))
        if pod.status.phase == "Failed" or not facts:
            self.problems.append(f"{node}: the pod {pod.status.phase.lower()} and printed "
                                 f"{len(facts)} facts")  # fmt: skip
        if facts:
            yield node, facts

    def _pods(self, query: Mapping[str, str]) -> list[SeenPod]:
        answer: Any = json.loads(self._send("GET", self._path, {"limit": "500", **query}))
        items: Any = answer.get("items") if isinstance(answer, dict) else None
        return msgspec.convert(items or [], list[SeenPod])

    def _sweep(self) -> None:
        """Delete the doctor's pods whose deadline has passed."""
        label, value = next(iter(OWNER.items()))
        try:
            pods = self._pods({"labelSelector": f"{label}={value},{RUN}"})
        except (ApiError, ValueError) as error:
            self.problems.append(printable(str(error), 300))
            return
        for pod in pods:
            created = time_or(pod.metadata.creation_timestamp, None)
            if created is not None and created + _LEFT_SECONDS < self._wall():
                self._delete(pod.metadata.name)

    def _delete_all(self) -> None:
        try:
            for pod in self._pods({"labelSelector": f"{RUN}={self._settings.run}"}):
                self._delete(pod.metadata.name)
        except (ApiError, ValueError) as error:
            self.problems.append(f"pods were not deleted, they end within {POD_SECONDS_MAX} s: "
                                 f"{printable(str(error), 300)}")  # fmt: skip

    def _delete(self, name: str) -> None:
        try:
            self._send("DELETE", f"{self._path}/{name}", {})
        except NotFound:
            return
        except ApiError as error:
            self.problems.append(f"pod {name} was not deleted: {printable(str(error), 300)}")


def parse_node_facts(text: str) -> dict[str, str]:
    """Return the facts in the output of `sysctl -a`, with further `key = value` lines.

    `net/ipv4/x` and `net.ipv4.x` are the same key, other lines are left.
    """
    facts: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and key.strip() and not key.lstrip().startswith("#"):
            facts[key.strip().replace("/", ".")] = value.strip()
    return facts
