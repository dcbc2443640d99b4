"""Tests of nodes as objects: what was found so far, kept by event, and the pod of a test.

The pod has no right on the cluster. It is bound from its birth, so no scheduler takes part; its
result is the message with which its container ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from fairlead.api import names
from fairlead.api.cluster.machine_result import MachineFinding
from fairlead.api.cluster.node_suites import suite_of
from fairlead.api.cluster.node_test import NodeTest, NodeTestPhase
from fairlead.api.kubernetes.core import Node
from fairlead.api.meta import merge_diff, to_wire
from fairlead.api.resources import NODE_TESTS, PODS
from fairlead.api.status import AlreadyExists
from fairlead.api.values import quantity
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.health.testing import (
    BeginTest,
    CreateTest,
    DeleteTest,
    DeleteTestPod,
    SetTest,
    TestAction,
    newest_first,
)
from fairlead.model.health.judgement import PeerFigures, comparable
from fairlead.runtime.barrier import Written
from fairlead.runtime.client import Client
from fairlead.runtime.mirror import Change
from fairlead.runtime.object_writer import ObjectWriter

_SCRATCH = "/scratch"
_USER = 65532
#: So long after the suite's own time a pod that still runs is ended by its kubelet.
_SLACK_SECONDS = 60
#: A share of the node for the program itself; what it measures is not bounded.
_REQUESTS = {"cpu": "100m", "memory": "128Mi"}


class NodeTests:
    """The tests by node, and what nodes measured last, by shape and suite."""

    def __init__(self) -> None:
        self._by_node: dict[str, dict[str, NodeTest]] = defaultdict(dict)
        #: Figures of the latest test of each node that has some.
        self.peers: dict[tuple[str, str], PeerFigures] = defaultdict(PeerFigures)
        #: The same by node, then by shape and suite.
        self._measured: dict[str, dict[tuple[str, str], Sequence[MachineFinding]]] = {}

    def changed(self, change: Change[NodeTest]) -> tuple[str, ...]:
        """Take in a test; return the nodes that it is about, now and before."""
        touched = dict.fromkeys(
            each.spec.node for each in (change.old, change.new) if each is not None
        )
        name = change.key[1]
        if change.old is not None:
            self._by_node[change.old.spec.node].pop(name, None)
        if change.new is not None:
            self._by_node[change.new.spec.node][name] = change.new
        for node in touched:
            self._compare(node)
        return tuple(touched)

    def of(self, node: Node | None) -> tuple[NodeTest, ...]:
        """Return the tests of a node; those of another one of its name are none."""
        mine = self._by_node.get(node.metadata.name) if node is not None else None
        if node is None or not mine:
            return ()
        return tuple(each for each in mine.values() if each.spec.node_uid == node.metadata.uid)

    def _compare(self, node: str) -> None:
        before = self._measured.pop(node, {})
        after: dict[tuple[str, str], Sequence[MachineFinding]] = {}
        tests = self._by_node.get(node, {})
        if not tests:
            self._by_node.pop(node, None)
        for test in reversed(newest_first(tuple(tests.values()))):
            if test.status.phase is NodeTestPhase.ENDED and test.status.measured:
                after[test.status.shape, test.spec.suite] = comparable(test)
        for key in before:
            if key not in after:
                self.peers[key].remove(node)
        for key, measured in after.items():
            if before.get(key) is not measured:
                self.peers[key].put(node, measured)
        if after:
            self._measured[node] = after


async def perform_test(
    action: TestAction, client: Client, objects: ObjectWriter, policy: HealthPolicy
) -> Written | None:
    """Carry out one action; safe to repeat."""
    match action:
        case CreateTest(node):
            key = ("", action.name)
            return await objects.create(
                NODE_TESTS, key, node_test_body(action), owner=node.metadata
            )
        case BeginTest(test):
            pod = pod_body(action, policy)
            try:
                made = await client.create(PODS.only_metadata, pod, namespace=policy.test_namespace)
            except AlreadyExists:  # not this one's: the next decision deletes it
                return None
            status = {
                "phase": NodeTestPhase.RUNNING.value, "podUID": made.metadata.uid, "retryAt": None,
                "attempts": test.status.attempts + 1, "startedAt": action.at,
                "reason": None, "message": None,
            }  # fmt: skip
            return await objects.patch_status(NODE_TESTS, test.metadata, status)
        case SetTest(test, status):
            diff = merge_diff(to_wire(test.status), to_wire(status))
            return await objects.patch_status(NODE_TESTS, test.metadata, diff)
        case DeleteTestPod(pod):
            return await objects.delete(PODS, pod.metadata.key, uid=pod.metadata.uid)
        case DeleteTest(test):
            return await objects.delete(NODE_TESTS, test.metadata.key, uid=test.metadata.uid)


def node_test_body(action: CreateTest) -> dict[str, Any]:
    """Return the NodeTest of a node at the gate or of an idle one, which the Node owns."""
    node = action.node.metadata
    owner = {
        "apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid, "controller": True,
    }  # fmt: skip
    return {
        "metadata": {"name": action.name, "ownerReferences": [owner]},
        "spec": {
            "node": node.name, "nodeUID": node.uid, "suite": action.suite,
            "cause": action.cause.value, "number": action.number,
            **({"retests": list(action.retests)} if action.retests else {}),
        },
    }  # fmt: skip


def pod_body(action: BeginTest, policy: HealthPolicy) -> dict[str, Any]:
    """Return the pod of a test."""
    test, node = action.test, action.node
    owner = {
        "apiVersion": names.API_VERSION, "kind": "NodeTest", "name": test.metadata.name,
        "uid": test.metadata.uid, "controller": True,
    }  # fmt: skip
    command = [*policy.test_command, "agent", "test", "--suite", test.spec.suite,
               "--result", "/dev/termination-log", "--directory", _SCRATCH]  # fmt: skip
    command += [word for each in test.spec.retests for word in ("--retest", each)]
    suite = suite_of(test.spec.suite, test.spec.retests)
    assert suite is not None  # one of an unknown suite has ended
    known = (each for each in policy.test_options if each.partition(".")[0] in suite.tests)
    options = [word for each in known for word in ("--set", each)]
    devices = _devices(node) if action.takes_devices else {}
    seconds = suite.seconds + policy.test_start_seconds
    spec = {
        "nodeName": node.metadata.name,
        "containers": [
            {
                "name": "test", "image": policy.test_image,
                "command": [*command, *options],
                "env": [{"name": "TMPDIR", "value": _SCRATCH}],
                "resources": {"requests": {**_REQUESTS, **devices}, "limits": devices},
                "volumeMounts": [{"name": "scratch", "mountPath": _SCRATCH}],
                "terminationMessagePath": "/dev/termination-log",
                "securityContext": {
                    "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
        "tolerations": [{"operator": "Exists"}],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,  # it has nothing to save, and work may wait
        "activeDeadlineSeconds": int(seconds) + _SLACK_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True, "runAsUser": _USER, "runAsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }  # fmt: skip
    labels = {names.NODE_TEST: test.spec.suite}
    if action.yields:
        labels[names.NODE_TEST_YIELDS] = "true"
    if policy.test_priority_class:
        spec["priorityClassName"] = policy.test_priority_class
    return {
        "metadata": {
            "name": test.metadata.name, "namespace": policy.test_namespace,
            "labels": labels, "ownerReferences": [owner],
        },
        "spec": spec,
    }  # fmt: skip


def _devices(node: Node) -> Mapping[str, str]:
    """Return all GPUs of a node."""
    offered = quantity.resources_to_base(node.status.allocatable)
    return {
        name: quantity.format_base(name, amount)
        for name, amount in sorted(offered.items())
        if amount and quantity.is_gpu(name)
    }
