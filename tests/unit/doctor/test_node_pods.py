"""Pods for facts of nodes: which nodes, what the pods may do, and that none is left behind."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from tests.tidy.sources import ROOT

from fairlead.api.status import Forbidden, NotFound, Unavailable
from fairlead.api.values.times import format_time
from fairlead.doctor.objects import SeenNode
from fairlead.doctor.readers.node_pods import (
    LOG_BYTES_MAX,
    OWNER,
    POD_SECONDS_MAX,
    PODS_MAX,
    RUN,
    SCRIPT,
    NodePodReader,
    PodSettings,
    parse_node_facts,
    pod_on,
    sampled,
)

SETTINGS = PodSettings(1, "tools", "busybox:1.36", "run-1")
FACTS = b"kernel/pid_max = 32768\nfairlead.arp_table_fulls = 3\n"


def node(name: str, kind: str = "large", kernel: str = "6.1", os: str = "linux") -> SeenNode:
    labels = {"node.kubernetes.io/instance-type": kind, "kubernetes.io/os": os}
    status = {"nodeInfo": {"kernelVersion": kernel}}
    return msgspec.convert(
        {"metadata": {"name": name, "labels": labels}, "status": status}, SeenNode
    )


class Server:
    """Keeps pods; each ends in `phase` at once and has the log `log`, unless told otherwise."""

    def __init__(self, phase: str = "Succeeded", log: bytes = FACTS) -> None:
        self.phase, self.log = phase, log
        self.pods: dict[str, dict[str, Any]] = {}
        self.sent: list[str] = []
        self.fails: Callable[[str, str], Exception | None] = lambda method, path: None
        self.now = 1_000_000.0

    def keep(self, name: str, *, age: float = 0.0, run: str = "old", labels: Any = None) -> None:
        created = format_time(self.now - age)
        metadata = {"name": name, "creationTimestamp": created,
                    "labels": {**OWNER, RUN: run} if labels is None else labels}  # fmt: skip
        self.pods[name] = {"metadata": metadata, "spec": {}, "status": {"phase": "Running"}}

    def __call__(
        self, method: str, path: str, /, query: Mapping[str, str], body: Any = None
    ) -> bytes:
        self.sent.append(f"{method} {path}")
        if failure := self.fails(method, path):
            raise failure
        name = path.removeprefix("/api/v1/namespaces/tools/pods").strip("/")
        if method == "POST":
            name = f"{body['metadata']['generateName']}{len(self.sent)}"
            self.keep(name, labels=body["metadata"]["labels"])
            self.pods[name] |= {"spec": body["spec"], "status": {"phase": self.phase}}
        elif method == "DELETE":
            if name not in self.pods:
                raise NotFound(name)
            del self.pods[name]
        elif name.endswith("/log"):
            assert int(query["limitBytes"]) == LOG_BYTES_MAX
            return self.log
        else:
            wanted = [each.split("=") for each in query["labelSelector"].split(",")]
            return json.dumps({"items": [
                pod for pod in self.pods.values()
                if all(pod["metadata"]["labels"].get(key[0]) in (key[1:] or [
                    pod["metadata"]["labels"].get(key[0], key)]) for key in wanted)
            ]}).encode()  # fmt: skip
        return b"{}"

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def reader(server: Server) -> NodePodReader:
    return NodePodReader(server, SETTINGS, wall=lambda: server.now, sleep=server.sleep)


def test_a_few_nodes_of_each_class_are_sampled_and_no_more_than_the_bound() -> None:
    nodes = [*(node(f"a{n}") for n in range(5)), *(node(f"b{n}", "small") for n in range(5)),
             node("c0", kernel="6.6"), node("w0", os="windows")]  # fmt: skip
    assert sampled(nodes, 1) == ["a0", "b0", "c0"]
    assert sampled(nodes, 2) == ["a0", "a1", "b0", "b1", "c0"]
    assert len(sampled([node(f"n{n}", f"kind-{n}") for n in range(100)], 1)) == PODS_MAX


def test_a_pod_has_the_network_of_the_host_and_nothing_else_of_it() -> None:
    spec = pod_on("a0", SETTINGS)["spec"]
    (container,) = spec["containers"]
    assert spec["activeDeadlineSeconds"] == POD_SECONDS_MAX
    assert spec["automountServiceAccountToken"] is False
    assert "volumes" not in spec
    assert {key for key in spec if key.startswith("host")} == {"hostNetwork"}
    context = container["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert (context["runAsNonRoot"], context["readOnlyRootFilesystem"]) == (True, True)
    assert context["allowPrivilegeEscalation"] is False


def test_the_script_prints_facts_that_checks_read_and_is_the_one_of_the_documents() -> None:
    text = subprocess.run(["sh", "-c", SCRIPT], capture_output=True, text=True, check=True).stdout
    facts = parse_node_facts(text)
    assert facts["fairlead.arp_table_fulls"].isdecimal()
    assert facts["kernel.pid_max"].isdecimal()
    assert "net.core.somaxconn" in facts
    document = (ROOT / "docs" / "howto" / "doctor.md").read_text()
    assert SCRIPT in document


def test_facts_are_read_and_every_pod_is_deleted() -> None:
    server = Server()
    made = reader(server)
    assert made.read([node("a0"), node("b0", "small")]) == {
        name: {"kernel.pid_max": "32768", "fairlead.arp_table_fulls": "3"} for name in ("a0", "b0")
    }
    assert made.problems == []
    assert server.pods == {}


@pytest.mark.parametrize(
    ("phase", "log", "said", "count"),
    [
        ("Pending", FACTS, "a0: no facts within 60 s, the pod is Pending", 0),
        ("Failed", b"", "a0: the pod failed and printed 0 facts", 0),
        ("Failed", FACTS, "a0: the pod failed and printed 2 facts", 1),
        ("Succeeded", b"\xff" * 5000, "printed 0 facts", 0),
        ("Succeeded", b"a = 1\n" * 10**6, "", 1),
        ("\x1b[31m", FACTS, r"the pod is \x1b[31m", 0),
    ],
)
def test_pods_that_do_not_do_their_work_are_named_and_deleted(
    phase: str, log: bytes, said: str, count: int
) -> None:
    server = Server(phase, log)
    made = reader(server)
    assert len(made.read([node("a0")])) == count
    assert said in " ".join(made.problems)
    assert bool(made.problems) == bool(said)
    assert server.pods == {}
    assert len(server.sent) < 50


def test_a_namespace_that_enforces_pod_security_is_explained_at_the_first_pod() -> None:
    server = Server()
    refusal = 'pods "x" is forbidden: violates PodSecurity "baseline:latest": host namespaces'
    server.fails = lambda method, path: Forbidden(refusal) if method == "POST" else None
    made = reader(server)
    assert made.read([node("a0"), node("b0", "small")]) == {}
    (problem,) = made.problems
    assert "namespace tools enforces Pod Security" in problem
    assert "with -n" in problem
    assert [each for each in server.sent if each.startswith("POST")] == [
        "POST /api/v1/namespaces/tools/pods"
    ]


def test_ctrl_c_leaves_no_pod() -> None:
    server = Server("Pending")

    def interrupted(_seconds: float) -> None:
        assert len(server.pods) == 2
        raise KeyboardInterrupt

    made = NodePodReader(server, SETTINGS, wall=lambda: server.now, sleep=interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.read([node("a0"), node("b0", "small")])
    assert server.pods == {}


def test_the_next_run_deletes_what_a_killed_one_left_and_nothing_of_others() -> None:
    server = Server()
    server.keep("killed", age=10_000)
    server.keep("beside", age=20)
    server.keep("foreign", age=10_000, labels={"app": "web"})
    server.keep("other-tool", age=10_000, labels=OWNER)
    reader(server).read([node("a0")])
    assert set(server.pods) == {"beside", "foreign", "other-tool"}


def test_an_api_server_that_fails_leaves_what_was_read_and_says_what_may_be_left() -> None:
    server = Server()
    posted = 0

    def fails(method: str, path: str) -> Exception | None:
        nonlocal posted
        posted += method == "POST"
        return Unavailable("no answer") if posted and method == "GET" else None

    server.fails = fails
    made = reader(server)
    assert made.read([node("a0")]) == {}
    assert "pods were not deleted, they end within 90 s" in made.problems[-1]
