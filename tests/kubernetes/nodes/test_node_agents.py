"""The agents of real nodes, as the chart runs them: from a line of the kernel to the return."""

from __future__ import annotations

import json
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.nodes.running import MOST_OF_A_NODE, places, submit, until
from tools.cluster.cluster import Cluster, FailedError
from tools.cluster.install import CHART, NAMESPACE, RELEASE, helm
from tools.cluster.jobs import Client

pytestmark = pytest.mark.kubernetes
AGENTS = ("-n", NAMESPACE, "get", "pods", "-l", "app.kubernetes.io/component=agent")
#: A code of this run: the log is the machine's, and has the lines of earlier ones.
CODE = str(100_000 + secrets.randbelow(900_000))
VERDICT = {"severity": "Critical", "action": "AskPerson"}
VALUES = {
    "nodeAgent.enabled": True,
    "nodeAgent.settings.gpu.sxid": {CODE: VERDICT},
    "settings.health": {
        "enabled": True, "actOn": ["nvswitch-sxid"], "criticalDrainSeconds": 60,
        "validateSeconds": 2,
    },
    "settings.jobs.checkpointWaitSeconds": 2,
}  # fmt: skip
SAVES = """state="$FAIRLEAD_CHECKPOINT_DIR/step-$RANK"
echo "resumes from $(cat "$state" 2>/dev/null || echo the start)"
trap 'echo 7 > "$state"; exit 1' TERM
sleep 600 & wait"""


@contextmanager
def agents(cluster: Cluster, node: str) -> Generator[None]:
    """Run the agents; that of `node` alone reads the kernel's log, the others' is an empty file."""
    others = [each for each in cluster.layout.nodes if each != node]
    here = ("--namespace", NAMESPACE, "--wait", "--timeout", "180s")
    for each in others:
        log = cluster.layout.home(each) / "kmsg"
        log.touch()
        assert cluster.run_in(each, "mount", "--bind", str(log), "/dev/kmsg").returncode == 0
    chosen = [
        part for name, value in VALUES.items()
        for part in ("--set-json", f"{name}={json.dumps(value)}")
    ]  # fmt: skip
    try:
        helm(cluster, "upgrade", RELEASE, str(CHART), "--reuse-values", *chosen, *here)
        yield
    finally:
        helm(cluster, "rollback", RELEASE, *here)
        cluster.kubectl("delete", "nodereports", "--all")
        for each in others:
            cluster.run_in(each, "umount", "/dev/kmsg")


def agent_of(cluster: Cluster, node: str) -> str:
    """Return the name of the pod of a node's agent."""
    found = json.loads(cluster.kubectl(*AGENTS, "-o", "json"))["items"]
    (name,) = (e["metadata"]["name"] for e in found if e["spec"]["nodeName"] == node)
    return name


def report_of(cluster: Cluster, node: str) -> dict[str, Any]:
    """Return what is reported of a node; {} while nothing is."""
    try:
        text = cluster.kubectl("get", "nodereport", node, "-o", "json")
    except FailedError:
        return {}
    return json.loads(text).get("status", {})


def taints(cluster: Cluster, node: str) -> str:
    return cluster.kubectl("get", "node", node, "-o", "jsonpath={.spec.taints[*].key}")


def in_agent(cluster: Cluster, node: str, *command: str, container: str = "agent") -> str:
    pod = agent_of(cluster, node)
    return cluster.kubectl("-n", NAMESPACE, "exec", pod, "-c", container, "--", *command)


def test_a_line_of_the_kernel_empties_the_node_and_its_end_brings_the_node_back(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    sick = cluster.layout.nodes[1]
    with agents(cluster, sick):
        nodes = cluster.layout.nodes
        until(
            "all agents report", lambda: all("observedAt" in report_of(cluster, n) for n in nodes)
        )
        for node in nodes:
            found = report_of(cluster, node)
            blind = [e for e in found.get("sources", ()) if e["state"] in ("Blind", "Hung")]
            assert blind == [], node
            assert found["nodeUid"] == cluster.kubectl(
                "get", "node", node, "-o", "jsonpath={.metadata.uid}")  # fmt: skip
        holds_what_it_should(cluster, sick)

        spare = cluster.layout.nodes[-1]
        cluster.kubectl("cordon", spare)  # so that a member is where the line will be read
        try:
            submit(client, tmp_path, SAVES, "--name", "trains", "--nodes", "2", "--cpus",
                   MOST_OF_A_NODE)  # fmt: skip
            assert sick in places(client.until_state("trains", "Running"))
        finally:
            cluster.kubectl("uncordon", spare)
        until("both have begun", lambda: client.run("logs", "trains").count("resumes from") == 2)
        before = client.job("trains")["status"]["attempt"]
        component = f"switch-{secrets.token_hex(4)}"
        Path("/dev/kmsg").write_text(f"<3>nvidia-nvswitch0: SXid ({component}): {CODE}, test\n")
        until("the node is tainted", lambda: "fairlead.dev/unhealthy" in taints(cluster, sick))
        found = [each["codes"] for each in report_of(cluster, sick)["faults"]
                 if each["component"] == component]  # fmt: skip
        assert found == [[CODE]]

        def runs_again(status: dict[str, Any]) -> bool:
            return status["attempt"] > before and status["state"] == "Running"

        job = client.until("trains", "the next attempt", runs_again)
        ended = {each["number"]: each.get("reason") for each in job["status"]["attempts"]}
        assert ended[before] == "Drained", ended
        assert sick not in places(job)
        until("it resumes", lambda: "resumes from 7" in client.run("logs", "trains"))

        kept = (component, CODE)
        in_agent(cluster, sick, "fairlead", "agent", "clear", "--state",
                 "/var/lib/fairlead/agent.db", "nvswitch-sxid", *kept)  # fmt: skip
        until("the node is back", lambda: "fairlead.dev" not in taints(cluster, sick))
        client.run("cancel", "trains")


def holds_what_it_should(cluster: Cluster, node: str) -> None:
    """Try, from inside, what neither container may do."""
    token = "/var/run/secrets/kubernetes.io/serviceaccount/token"
    for container, script in (
        ("agent", f"! test -e {token} && ! test -e /host/etc && ! test -e /host/sys/fs"),
        ("agent", "! touch /host/proc/sys/kernel/hostname && ! touch /anything"),
        ("agent", "! (: < /host/dev/kmsg)"),
        ("agent", "! cat /host/proc/1/environ && ! ls /host/proc/1/root/"),
        ("collector", f"test -s {token} && ! test -e /host && ! touch /run/fairlead/node.json"),
    ):
        in_agent(cluster, node, "sh", "-ec", script, container=container)
