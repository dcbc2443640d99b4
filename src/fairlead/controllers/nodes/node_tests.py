"""Tests of nodes as objects: what was found so far, kept by event, and the pod of a test.

The pod has no right on the cluster. It is bound from its birth, so no scheduler takes part; its
result is the message with which its container ends.
"""

from __future__ import annotations

import random
from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.cluster.machine_result import MachineFinding
from fairlead.api.cluster.node_suites import OWN_TEST, pair_suite, suite_of
from fairlead.api.cluster.node_test import NodeTest, NodeTestPhase, NodeTestSpec, NodeTestStatus
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.meta import merge_diff, to_wire
from fairlead.api.resources import NODE_TESTS, PODS, SECRETS
from fairlead.api.status import AlreadyExists, NotFound
from fairlead.api.values import quantity
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.decide.health.node_step import NodeView
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.health.proving.pair_step import (
    blamed_at,
    is_blamed,
    key_name,
    past_pairs_of,
    records_of,
)
from fairlead.decide.health.proving.testing import (
    BeginTest,
    CreateTest,
    DeleteTest,
    DeleteTestPod,
    SetTest,
    TestAction,
    newest_first,
    past_of,
    with_conditions,
)
from fairlead.model.health.idle_nodes import WITHIN_SECONDS, DueNodes, IdleNodes
from fairlead.model.health.judgement import PeerFigures, comparable
from fairlead.model.health.node_record import record_of
from fairlead.model.health.pair_book import PairBook
from fairlead.runtime.client import Client
from fairlead.runtime.object_writer import ObjectWriter
from fairlead.runtime.watching.barrier import Written
from fairlead.runtime.watching.mirror import Change

_SCRATCH = "/scratch"
_USER = 65532
_KEY_BYTES = 32
#: Taints of nodes that take no work, and that idle tests leave alone.
_KEPT = (
    names.TAINT_UNHEALTHY, names.TAINT_PREFLIGHT, names.TAINT_JOINING, names.TAINT_RETURNING,
)  # fmt: skip
#: So long after the suite's own time a pod that still runs is ended by its kubelet.
_SLACK_SECONDS = 60
#: A share of the node for the program itself; what it measures is not bounded.
_REQUESTS = {"cpu": "100m", "memory": "128Mi"}


class NodeTests:
    """The tests by node, what nodes measured last, and which nodes are to be tested."""

    def __init__(self, world: ClusterWorld, policy: HealthPolicy) -> None:
        after, interval = policy.idle_test_after_seconds, policy.idle_test_interval_seconds
        self.idle = IdleNodes(after, interval)
        #: None: nodes are not tested in pairs.
        self.pairs = PairBook(policy.levels, after, interval) if policy.pair_tests else None
        self._world = world
        self._policy = policy
        self._by_name: dict[str, NodeTest] = {}
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
            self._by_name.pop(name, None)
        if change.new is not None:
            self._by_node[change.new.spec.node][name] = self._by_name[name] = change.new
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
            is_own = test.spec.peer is None
            if is_own and test.status.phase is NodeTestPhase.ENDED and test.status.measured:
                after[test.status.shape, test.spec.suite] = comparable(test)
        for key in before:
            if key not in after:
                self.peers[key].remove(node)
        for key, measured in after.items():
            if before.get(key) is not measured:
                self.peers[key].put(node, measured)
        if after:
            self._measured[node] = after

    # Idle nodes

    def looked(self, node: Node, tests: Sequence[NodeTest], *, now: float, instant: float) -> None:
        """Take in a node and its tests."""
        is_fit = self._is_fit(node, tests)
        self.idle.put(
            node, past_of(tests), now=now, instant=instant,
            is_fit=is_fit and bool(self._policy.idle_suite(node.metadata.labels)),
        )  # fmt: skip
        if self.pairs is not None:
            self.pairs.put(
                node, past_pairs_of(tests), records_of(node, tests), blamed_at=blamed_at(tests),
                is_fit=is_fit and not is_blamed(node, tests), now=now, instant=instant,
            )  # fmt: skip

    def _is_fit(self, node: Node, tests: Sequence[NodeTest]) -> bool:
        """True for a node that an idle test may go to: it works, and no other test is open."""
        if any(each.is_open for each in tests):
            return False
        record = record_of(node.metadata.annotations)
        is_out = record is not None and record.is_out
        is_kept = any(taint.key in _KEPT for taint in node.spec.taints)
        health, name = self._world.health, node.metadata.name
        is_usable = health.usable.get(name, False) and name not in health.closing
        return is_usable and not is_out and not is_kept

    def remove(self, name: str) -> None:
        """Take in that a node is gone."""
        self.idle.remove(name)
        if self.pairs is not None:
            self.pairs.remove(name)

    def set_used(self, name: str, instant: float, *, is_used: bool) -> None:
        """Take in that use of a node has begun or ended."""
        self.idle.set_used(name, instant, is_used=is_used)
        if self.pairs is not None:
            self.pairs.idle.set_used(name, instant, is_used=is_used)

    def due(self, now: float, instant: float) -> DueNodes:
        """Return the idle nodes that are to be tested; suspects as soon as they are idle."""
        return self._due(self.idle, now, instant) if self._policy.tests_idle else DueNodes()

    def due_pairs(self, now: float, instant: float) -> DueNodes:
        """Return those whose connections are to be tested."""
        return DueNodes() if self.pairs is None else self._due(self.pairs.idle, now, instant)

    def _due(self, idle: IdleNodes, now: float, instant: float) -> DueNodes:
        signs = self._world.state.suspects.signs_since(now - WITHIN_SECONDS)
        idle.suspect(signs, now, instant)
        return idle.due(instant)

    # Pods and partners

    def pod(self, test: NodeTest) -> Pod | None:
        """Return the pod of a test's name; pods of other namespaces are none."""
        return self._world.mirrors.pods.get(self._policy.test_namespace, test.metadata.name)

    def pods(self, tests: Iterable[NodeTest]) -> dict[str, Pod]:
        """Return the pods of tests by the name of the test."""
        found = ((test.metadata.name, self.pod(test)) for test in tests)
        return {name: pod for name, pod in found if pod is not None}

    def partners(self, nodes: Iterable[NodeView]) -> dict[str, NodeTest]:
        """Return the other tests of open tests of pairs, by name."""
        open_ = (test for node in nodes for test in node.tests if test.is_open)
        names_ = sorted(test.spec.peer.test for test in open_ if test.spec.peer is not None)
        return {name: self._by_name[name] for name in names_ if name in self._by_name}


async def perform_test(
    action: TestAction, client: Client, objects: ObjectWriter, policy: HealthPolicy,
    *, keys: random.Random, now: float,
) -> Written | None:  # fmt: skip
    """Carry out one action; safe to repeat. `keys` is where the keys of pairs are drawn from."""
    match action:
        case CreateTest(node):
            key = ("", action.name)
            return await objects.create(
                NODE_TESTS, key, node_test_body(action), owner=node.metadata
            )
        case BeginTest(test):
            pod = pair_pod_body(action, policy) if action.key else pod_body(action, policy)
            if action.key and not action.address:
                secret = _key_body(action, policy, keys.randbytes(_KEY_BYTES))
                await objects.create_unread(SECRETS, (policy.test_namespace, action.key), secret)
            try:
                made = await client.create(PODS.only_metadata, pod, namespace=policy.test_namespace)
            except AlreadyExists:  # not this one's: the next decision deletes it
                return None
            begun = replace(
                test.status, phase=NodeTestPhase.RUNNING, pod_uid=made.metadata.uid, retry_at=None,
                attempts=test.status.attempts + 1, started_at=action.at, reason="", message="",
            )  # fmt: skip
            return await _write(test, begun, objects, now)
        case SetTest(test, status):
            await _forget_key(test, objects, policy)
            return await _write(test, status, objects, now)
        case DeleteTestPod(pod):
            return await objects.delete(PODS, pod.metadata.key, uid=pod.metadata.uid)
        case DeleteTest(test):
            await _forget_key(test, objects, policy)
            return await objects.delete(NODE_TESTS, test.metadata.key, uid=test.metadata.uid)


async def _write(
    test: NodeTest, status: NodeTestStatus, objects: ObjectWriter, now: float
) -> Written:
    diff = merge_diff(to_wire(test.status), to_wire(with_conditions(test, status, now)))
    return await objects.patch_status(NODE_TESTS, test.metadata, diff)


def node_test_body(action: CreateTest) -> dict[str, Any]:
    """Return the NodeTest of a node at the gate or of an idle one, which the Node owns."""
    node = action.node.metadata
    owner = {
        "apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid, "controller": True,
    }  # fmt: skip
    spec = NodeTestSpec(
        node.name, node.uid, action.suite, action.cause, action.number,
        retests=action.retests, peer=action.peer,
    )  # fmt: skip
    return {"metadata": {"name": action.name, "ownerReferences": [owner]}, "spec": to_wire(spec)}


def _owner(test: NodeTest) -> dict[str, Any]:
    return {
        "apiVersion": names.API_VERSION, "kind": "NodeTest", "name": test.metadata.name,
        "uid": test.metadata.uid, "controller": True,
    }  # fmt: skip


def _key_body(action: BeginTest, policy: HealthPolicy, key: bytes) -> dict[str, Any]:
    """Return the Secret by which the two pods of a pair prove themselves to each other."""
    return {
        "metadata": {
            "name": action.key, "namespace": policy.test_namespace,
            "ownerReferences": [_owner(action.test)],
        },
        "data": {names.MPI_KEY: b64encode(key).decode()},
    }  # fmt: skip


async def _forget_key(test: NodeTest, objects: ObjectWriter, policy: HealthPolicy) -> None:
    """Delete the Secret of a pair, with the test of the side that listened."""
    peer = test.spec.peer
    if peer is not None and peer.listens and test.is_open:
        with suppress(NotFound):
            await objects.delete(SECRETS, (policy.test_namespace, key_name(test, test)))


def pair_pod_body(action: BeginTest, policy: HealthPolicy) -> dict[str, Any]:
    """Return the pod of one side of a pair: as that of a test, without devices."""
    body, peer = pod_body(action, policy), action.test.spec.peer
    assert peer is not None
    wait = int(policy.test_start_seconds)
    container: dict[str, Any] = body["spec"]["containers"][0]
    container["command"] = [
        *policy.test_command, "agent", "pair", "--peer", peer.node, "--pair", action.key,
        "--key", f"{names.MPI_KEY_MOUNT}/{names.MPI_KEY}", "--result", "/dev/termination-log",
        *(("--connect", action.address) if action.address else ("--wait", f"{wait}s")),
    ]  # fmt: skip
    container["volumeMounts"] += [
        {"name": "key", "mountPath": names.MPI_KEY_MOUNT, "readOnly": True}
    ]
    body["spec"]["volumes"] += [{"name": "key", "secret": {"secretName": action.key}}]
    seconds = pair_suite().seconds + 2 * policy.test_start_seconds
    body["spec"]["activeDeadlineSeconds"] = int(seconds) + _SLACK_SECONDS
    return body


def pod_body(action: BeginTest, policy: HealthPolicy) -> dict[str, Any]:
    """Return the pod of a test."""
    test, node = action.test, action.node
    command = [*policy.test_command, "agent", "test", "--suite", test.spec.suite,
               "--result", "/dev/termination-log", "--directory", _SCRATCH]  # fmt: skip
    command += [word for each in test.spec.retests for word in ("--retest", each)]
    own = (each for each in policy.own_tests if test.spec.suite in each.suites)
    command += [word for each in own for word in (OWN_TEST, msgspec.json.encode(each).decode())]
    is_pair = test.spec.peer is not None
    suite = (
        pair_suite() if is_pair else suite_of(test.spec.suite, test.spec.retests, policy.own_tests)
    )
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
            "labels": labels, "ownerReferences": [_owner(test)],
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
