"""The agents of real nodes, as the chart runs them: from a line of the kernel and a fault in a tree
of files to the return, while what leads there is killed and a person drains the node as well."""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.nodes.running import MOST_OF_A_NODE, leader, places, submit, until
from tools.cluster.cluster import Cluster, FailedError
from tools.cluster.images import fairlead_name
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
        "enabled": True, "actOn": ["nvswitch-sxid", "pcie-fatal"], "criticalDrainSeconds": 60,
        "validateSeconds": 2, "testSuite": "quick", "testImage": fairlead_name(),
        "testOptions": [
            "cpu.seconds=1", "disk.bytes=8388608", "clock.seconds=0.5", "names.names=localhost",
        ],
    },
    "settings.jobs.checkpointWaitSeconds": 2,
}  # fmt: skip
#: In which order, and how long after the beginning of a stage, something is killed.
SEED, PAUSE_SECONDS = 40, 2.0
#: A device of the fixture tree, and the fault that its counter of errors is.
DEVICE, DEVICES = "0000:0f:00.0", "/sys/bus/pci/devices"
PCIE = ("pcie-fatal", DEVICE, "fatal")
SAVES = """state="$FAIRLEAD_CHECKPOINT_DIR/step-$RANK"
echo "resumes from $(cat "$state" 2>/dev/null || echo the start)"
trap 'echo 7 > "$state"; exit 1' TERM
sleep 600 & wait"""


@contextmanager
def agents(cluster: Cluster, node: str) -> Generator[None]:
    """Run the agents; that of `node` alone reads the kernel's log, the others' is an empty file.

    The PCI devices of `node` are those of a fixture tree.
    """
    others = [each for each in cluster.layout.nodes if each != node]
    here = ("--namespace", NAMESPACE, "--wait", "--timeout", "180s")
    for each in others:
        log = cluster.layout.home(each) / "kmsg"
        log.touch()
        assert cluster.run_in(each, "mount", "--bind", str(log), "/dev/kmsg").returncode == 0
    count_errors(cluster, node, 0)
    tree = str(cluster.layout.home(node) / "devices")
    assert cluster.run_in(node, "mount", "--bind", tree, DEVICES).returncode == 0
    chosen = [
        part for name, value in VALUES.items()
        for part in ("--set-json", f"{name}={json.dumps(value)}")
    ]  # fmt: skip
    try:
        helm(cluster, "upgrade", RELEASE, str(CHART), "--reuse-values", *chosen, *here)
        yield
    finally:
        helm(cluster, "rollback", RELEASE, *here)
        cluster.kubectl("uncordon", node)
        cluster.kubectl("delete", "nodereports", "--all")
        cluster.kubectl("delete", "nodetests", "--all")
        cluster.run_in(node, "umount", DEVICES)
        for each in others:
            cluster.run_in(each, "umount", "/dev/kmsg")


def count_errors(cluster: Cluster, node: str, count: int) -> None:
    """Have the device of the fixture tree count so many fatal errors."""
    device = cluster.layout.home(node) / "devices" / DEVICE
    device.mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("vendor", "0x10de"), ("device", "0x2330"), ("aer_dev_fatal", f"TOTAL_ERR_FATAL {count}"),
    ):  # fmt: skip
        (device / name).write_text(f"{text}\n")


def faults(cluster: Cluster, node: str) -> set[tuple[str, ...]]:
    """Return the faults that are reported of a node: check, component and codes."""
    found = report_of(cluster, node).get("faults", ())
    return {(each["check"], each["component"], *each.get("codes", ())) for each in found}


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


class Kills:
    """Ends the first process of containers, one at a time: each of them once, in a drawn order."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        self._cluster, self._node = cluster, node
        self._rng = random.Random(SEED)
        self.left = self._rng.sample(("agent", "collector", "controller"), 3)

    def one(self) -> None:
        """Kill the next one, a moment from now."""
        time.sleep(self._rng.uniform(0, PAUSE_SECONDS))
        program = self.left.pop()
        until(f"the {program} was killed", lambda: self._kill(program))

    def _kill(self, program: str) -> bool:
        is_leader = program == "controller"
        pod = leader(self._cluster).split("_")[0] if is_leader else agent_of(
            self._cluster, self._node)  # fmt: skip
        where = ("-n", NAMESPACE, "get", "pod", pod, "-o", "jsonpath={.metadata.uid}")
        with suppress(FailedError):
            uid = self._cluster.kubectl(*where)
            for path in Path("/proc").glob("[0-9]*"):
                if _is_first_process(path, uid, program):
                    os.kill(int(path.name), signal.SIGKILL)
                    return True
        return False


def _is_first_process(path: Path, pod_uid: str, program: str) -> bool:
    """True for the process of a container of a pod that takes no signal from inside."""
    with suppress(OSError):
        if program.encode() not in (path / "cmdline").read_bytes().split(b"\0"):
            return False
        numbers = (path / "status").read_text().partition("NSpid:")[2].split("\n")[0].split()
        groups = (path / "cgroup").read_text().replace("_", "-")
        return numbers[-1] == "1" and pod_uid in groups
    return False


def test_faults_and_a_person_empty_a_node_and_their_end_brings_it_back_whatever_is_killed(
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
        kills = Kills(cluster, sick)
        count_errors(cluster, sick, 2)
        Path("/dev/kmsg").write_text(f"<3>nvidia-nvswitch0: SXid ({component}): {CODE}, test\n")
        kills.one()
        until("the node is tainted", lambda: "fairlead.dev/unhealthy" in taints(cluster, sick))
        assert ("nvswitch-sxid", component, CODE) in faults(cluster, sick)
        cluster.kubectl("drain", sick, "--ignore-daemonsets", "--delete-emptydir-data",
                        "--timeout=90s")  # fmt: skip
        kills.one()
        until("the tree's fault is reported", lambda: PCIE in faults(cluster, sick))
        count_errors(cluster, sick, 0)

        def runs_again(status: dict[str, Any]) -> bool:
            return status["attempt"] > before and status["state"] == "Running"

        job = client.until("trains", "the next attempt", runs_again)
        ended = {each["number"]: each.get("reason") for each in job["status"]["attempts"]}
        assert ended[before] == "Drained", ended
        assert sick not in places(job)
        until("it resumes", lambda: "resumes from 7" in client.run("logs", "trains"))

        until("the tree's fault has ended with its counter", lambda: (
            PCIE not in faults(cluster, sick)))  # fmt: skip
        until("the line's fault is cleared", lambda: clears(cluster, sick, component))
        kills.one()
        assert not kills.left
        until("the node is back", lambda: "fairlead.dev" not in taints(cluster, sick))
        assert is_cordoned(cluster, sick), "the cordon is the person's"
        cluster.kubectl("uncordon", sick)
        tests = json.loads(cluster.kubectl("get", "nodetests", "-o", "json"))["items"]
        assert [(each["spec"]["node"], each["status"]["outcome"]) for each in tests] == [
            (sick, "Passed")
        ]
        client.run("cancel", "trains")


def is_cordoned(cluster: Cluster, node: str) -> bool:
    return "true" in cluster.kubectl("get", "node", node, "-o", "jsonpath={.spec.unschedulable}")


def clears(cluster: Cluster, node: str, component: str) -> bool:
    """True once the agent, which may be starting again, was asked to end the fault."""
    with suppress(FailedError):
        in_agent(cluster, node, "fairlead", "agent", "clear", "--state",
                 "/var/lib/fairlead/agent.db", "nvswitch-sxid", component, CODE)  # fmt: skip
        return True
    return False


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
