"""What a person types: the real kubectl against both servers, and the outputs compared.

Point 58 of the checklist, without `top`. Each story is a list of command
lines, some with a body for standard input. Ages, ids and addresses are taken out of the outputs
before they are compared, and `DIFFERENT` names the lines that may differ, each with its reason.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.embedded import embedded_target
from tests.conformance.http_server import config, pod, widget, widget_crd
from tests.conformance.vocabulary import node
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.kubectl import Kubectl, Said
from tests.kubernetes.real import Cleaner, connected

pytestmark = pytest.mark.kubernetes


@dataclass(frozen=True, slots=True)
class Type:
    """One command line, and what goes to its standard input."""

    line: str
    stdin: Any = None
    editor: str = "false"


def running(name: str) -> Type:
    """Write the status that a node would write."""
    status = (
        '{"status":{"phase":"Running","podIP":"10.0.0.9","podIPs":[{"ip":"10.0.0.9"}],'
        '"conditions":[{"type":"Ready","status":"True"}],"containerStatuses":[{"name":"main",'
        '"ready":true,"restartCount":0,"image":"none","imageID":"",'
        '"state":{"running":{"startedAt":"2026-01-01T00:00:00Z"}}}]}}'
    )
    return Type(f"patch pod {name} --subresource=status --type=merge -p '{status}'")


def about(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "name": name, "namespace": "default"},
        "type": "Warning", "reason": "Lost", "message": "member lost", "count": 2,
        "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:01:00Z",
        "source": {"component": "x"},
    }  # fmt: skip


def grace(body: dict[str, Any]) -> dict[str, Any]:
    body["spec"]["terminationGracePeriodSeconds"] = 0
    return body


GET = [
    Type("create -f -", node("n1")),
    Type("create -f -", pod("p", nodeName="n1", labels={"app": "a"})),
    running("p"),
    Type("get pods"), Type("get pods -o wide"), Type("get po p -o name"), Type("get nodes"),
    Type("get pods -A"), Type("get po -l app=a -o name"), Type("get po -l app!=a"),
    Type("get po --field-selector spec.nodeName=n1,status.phase=Running -o name"),
    Type("get po p -o jsonpath={.spec.nodeName}"), Type("get po p --show-labels"),
    Type("get po p -o custom-columns=N:.metadata.name,P:.status.phase"),
    Type("get po p -o go-template={{.metadata.name}}"), Type("get ns"), Type("get pod q"),
    Type("get nonsense"), Type("get pods --sort-by=.metadata.name"), Type("get cm"),
    Type("create -f -", about("p")), Type("get events"), Type("get leases"), Type("get pc"),
    Type("get pods --chunk-size=1"), Type("get pods/p nodes/n1"), Type("get pods -L app"),
]  # fmt: skip
YAML = [
    Type("create -f -", config("c", app="a")),
    Type("get cm c -o yaml"),
    Type("get cm c -o json"),
    Type("create cm d --from-literal=a=b"),
    Type("get cm d -o yaml"),
    Type("create secret generic s --from-literal=a=b"),
    Type("get secret s -o yaml"),
    Type("create namespace team"),
    Type("get ns team"),
    Type("create priorityclass high --value=7"),
    Type("get pc high"),
    Type("create pdb b --selector=app=a --min-available=1"),
    Type("create -f - --dry-run=server -o yaml", config("e")),
    Type("create -f - --dry-run=client -o yaml", config("e")),
    Type("get cm e"),
    Type("create -f - --validate=strict", config("f") | {"dta": {}}),
    Type("create -f - --validate=warn", config("f") | {"dta": {}}),
    Type("create -f -", config("c")),
    Type("replace -f -", config("c")),
    Type("replace --force -f -", config("c")),
]
APPLY = [
    Type("apply -f -", config("c")), Type("diff -f -", config("c", stage="two")),
    Type("apply -f -", config("c", stage="two")), Type("apply -f -", config("c", stage="two")),
    Type("apply -f -", config("c")), Type("get cm c -o jsonpath={.metadata.labels}"),
    Type("apply -f - --dry-run=server", config("x")), Type("apply view-last-applied cm c"),
    Type("apply -f -", pod("p")), Type("apply -f -", pod("p", containers=[
        {"name": "main", "image": "other"}])),
    Type("get pod p -o jsonpath={.spec.containers[0].image}"),
    Type("apply -f - #immutable", pod("p", restartPolicy="Never")),
    Type("apply -f -", config("g") | {"dta": {}}),
]  # fmt: skip
SERVER_SIDE = [
    Type("apply --server-side -f -", config("c", stage="one")),
    Type("apply --server-side -f -", config("c", stage="one")),
    Type("apply --server-side --field-manager=other -f -", config("c", stage="two")),
    Type("apply --server-side --field-manager=other --force-conflicts -f -",
         config("c", stage="two")),
    Type("diff --server-side --field-manager=other -f -", config("c", stage="three")),
    Type("apply --server-side --dry-run=server -f -", config("d")),
    Type("apply -f -", config("m", x="1")),
    Type("apply --server-side -f -", config("m", x="2")),
    Type("get cm m -o yaml --show-managed-fields"),
    Type("label cm m y=3"),
    Type("apply --server-side -f -", config("m")),
    Type("get cm m -o jsonpath={.metadata.labels}"),
    Type("apply --server-side -f -", config("m", y="4")),
    Type("apply --server-side -f -", pod("p")),
    Type("apply --server-side -f - #unknown", config("g") | {"dta": {}}),
    Type("apply --server-side -f -", widget_crd()),
]  # fmt: skip
PATCH = [
    Type("create -f -", pod("p")),
    Type("""patch pod p -p '{"metadata":{"labels":{"a":"strategic"}}}'"""),
    Type("""patch pod p --type=merge -p '{"metadata":{"labels":{"b":"merge"}}}'"""),
    Type("""patch pod p --type=json -p '[{"op":"add","path":"/metadata/labels/c","value":"j"}]'"""),
    Type("""patch pod p --type=json -p '[{"op":"remove","path":"/metadata/labels/x"}]'"""),
    Type("""patch pod p -p '{"spec":{"restartPolicy":"Never"}}'"""),
    Type("label pod p d=label"),
    Type("label pod p d=other"),
    Type("label pod p a-"),
    Type("label pod p d=other --overwrite"),
    Type("annotate pod p note=before"),
    Type("edit pod p", editor="sed -i s/before/after/"),
    Type("get pod p -o jsonpath={.metadata.labels}{.metadata.annotations}"),
    Type("set image pod/p main=third"),
]
CUSTOM = [
    Type("create -f -", widget_crd()),
    Type("wait --for=condition=Established crd/widgets.example.dev"),
    Type("create -f -", widget("w", size=3, replicas=1)),
    Type("scale widget w --replicas=4"),
    Type("get wg w -o jsonpath={.spec.replicas}"),
    Type("get wg"),
    Type("get wg -o wide"),
    Type("get wg w -o yaml"),
    Type("explain widget.spec"),
    Type("describe wg w"),
    Type("apply -f -", widget("v", size=1)),
    Type("apply -f -", widget("v", size=2)),
    Type("create -f -", widget("bad", size="x")),
    Type("create -f -", widget("u", nope=1)),
    Type("delete wg w"),
    Type("get wg w"),
    Type("delete crd widgets.example.dev"),
]
DELETE = [
    Type("create -f -", config("a")),
    Type("delete cm a"),
    Type("delete cm a"),
    Type("delete cm a --ignore-not-found"),
    Type("create -f -", config("h") | {"metadata": {"name": "h", "finalizers": ["a.dev/hold"]}}),
    Type("delete cm h --wait=false"),
    Type("""patch cm h --type=json -p '[{"op":"remove","path":"/metadata/finalizers"}]'"""),
    Type("wait --for=delete cm/h --timeout=10s"),
    Type("create -f -", config("b", t="x")),
    Type("create -f -", config("c", t="x")),
    Type("delete cm -l t=x"),
    Type("get cm -l t=x"),
    Type("create -f -", grace(pod("p"))),
    Type("delete pod p --grace-period=0 --force"),
    Type("create -f -", pod("q")),
    Type("delete pod q --now"),
    Type("delete cm a --dry-run=server"),
]
WAIT = [
    Type("create -f -", pod("p")),
    running("p"),
    Type("wait --for=condition=Ready pod/p --timeout=5s"),
    Type("wait --for=jsonpath={.status.phase}=Running pod/p --timeout=5s"),
    Type("wait --for=condition=Ready=False pod/p --timeout=1s"),
    Type("wait --for=create pod/p"),
]
NODES = [
    Type("create -f -", node("n1")),
    Type("cordon n1"),
    Type("get nodes"),
    Type("cordon n1"),
    Type("uncordon n1"),
    Type("taint nodes n1 team=a:NoSchedule"),
    Type("taint nodes n1 team=b:NoSchedule"),
    Type("taint nodes n1 team=b:NoSchedule --overwrite"),
    Type("get node n1 -o jsonpath={.spec.taints}"),
    Type("taint nodes n1 team-"),
    Type("create -f -", grace(pod("p", nodeName="n1"))),
    Type("drain n1 --dry-run=server --force"),
    Type("drain n1 --force --grace-period=0"),
    Type("get pods"),
    Type("get node n1"),
]
DESCRIBE = [
    Type("create -f -", node("n1")),
    Type("create -f -", pod("p", nodeName="n1")),
    running("p"),
    Type("create -f -", about("p")),
    Type("describe pod p"),
    Type("describe node n1"),
    Type("create -f -", config("c")),
    Type("describe cm c"),
    Type("describe ns default"),
    Type("events"),
    Type("describe pod nope"),
]
ASK = [
    Type("auth can-i delete nodes"),
    Type("auth can-i create pods --subresource=binding"),
    Type("explain pod.spec.restartPolicy"),
    Type("explain nodes.spec.taints"),
    Type("explain lease.spec"),
    Type("explain pod.nope"),
    Type("get --raw /readyz"),
    Type("get --raw /api/v1/namespaces/default/configmaps?limit=1"),
    Type("api-resources --api-group=coordination.k8s.io"),
    Type("api-resources --api-group=policy --namespaced -o name"),
    Type("create token x"),
]

STORIES = {
    "get": GET, "yaml": YAML, "apply": APPLY, "patch": PATCH, "custom": CUSTOM, "delete": DELETE,
    "server-side": SERVER_SIDE, "wait": WAIT, "nodes": NODES, "describe": DESCRIBE, "ask": ASK,
}  # fmt: skip

#: (start of a line typed, why the outputs differ). Only codes are compared for these.
DIFFERENT: tuple[tuple[str, str], ...] = (
    ("explain", "descriptions are our own words"),
    ("get --raw", "the raw body holds the version"),
    ("create token", "there are no service account tokens here"),
    ('patch pod p --type=json -p \'[{"op":"remove"', "ours says what was wrong"),
    ('patch pod p -p \'{"spec"', "the real server prints a diff of Go structs"),
    (
        "apply --server-side -f - #unknown",
        "the real server answers 500, and kubectl shows no reason",
    ),
    ("apply -f - #immutable", "the real server prints a diff of Go structs"),
)


def _reason(line: str) -> str:
    return next((why for start, why in DIFFERENT if line.startswith(start)), "")


async def _play(kubectl: Kubectl, story: list[Type]) -> list[Said]:
    return [
        await kubectl(*shlex.split(each.line, comments=True), stdin=each.stdin, editor=each.editor)
        for each in story
    ]


@pytest.mark.parametrize("name", STORIES)
async def test_kubectl_says_the_same_of_both(
    name: str, plane: ControlPlane, tmp_path: Path
) -> None:
    binary = plane.binaries / "kubectl"
    if not binary.exists():
        pytest.skip("no kubectl beside kube-apiserver")
    story = STORIES[name]
    for part in ("ours", "theirs"):
        (tmp_path / part).mkdir()
    async with embedded_target(with_tls=True) as ours:
        config_path = tmp_path / "embedded"
        ours.server.write_kubeconfig(config_path)
        embedded = await _play(Kubectl(binary, tmp_path / "ours", config_path), story)
    async with connected(plane) as theirs:
        try:
            real = await _play(Kubectl(binary, tmp_path / "theirs", plane.kubeconfig()), story)
        finally:
            await Cleaner(theirs).clean()
    wrong: list[str] = []
    for each, a, b in zip(story, embedded, real, strict=True):
        same = a.code == b.code if _reason(each.line) else a.normal() == b.normal()
        if not same:
            wrong.append(f"$ kubectl {each.line}\n  embedded {a.normal()}\n  real     {b.normal()}")
    assert not wrong, "\n".join(wrong)
