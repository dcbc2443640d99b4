"""The life of a job with real kubelets, containers, addresses and names."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.nodes.running import (
    CONTROLLER,
    IMAGE,
    MOST_OF_A_NODE,
    SECONDS_MAX,
    STAYS,
    apply,
    leader,
    places,
    pods,
    submit,
)
from tools.cluster.cluster import Cluster
from tools.cluster.install import NAMESPACE
from tools.cluster.jobs import Client

pytestmark = pytest.mark.kubernetes


def test_a_gang_runs_on_three_nodes_and_its_members_reach_each_other(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    script = """python - <<'END'
import os, socket, time
rank, address = int(os.environ["RANK"]), os.environ["MASTER_ADDR"]
if rank == 0:
    server = socket.create_server(("", 29501))
    for _ in range(2):
        print("heard", server.accept()[0].recv(100).decode(), flush=True)
while rank:
    try:
        socket.create_connection((address, 29501), 5).sendall(b"rank %d" % rank)
        break
    except OSError:  # the name appears once the address has gone through DNS
        time.sleep(0.2)
END"""
    submit(client, tmp_path, script, "--name", "gang", "--nodes", "3", "--cpus", MOST_OF_A_NODE)
    job = client.until_state("gang", "Succeeded", "Failed")
    assert job["status"]["state"] == "Succeeded", job["status"]
    bound = sorted(pod["spec"]["nodeName"] for pod in pods(cluster, "gang"))
    assert bound == list(cluster.layout.nodes)
    heard = client.run("logs", "gang", "--task", "0").splitlines()
    assert sorted(heard) == ["heard rank 1", "heard rank 2"]


@pytest.mark.parametrize("count", [1, 2])
def test_members_see_the_variables_and_the_host_file_of_their_gang(
    client: Client, tmp_path: Path, count: int
) -> None:
    script = """python - <<'END'
import json, os
print(json.dumps(dict(os.environ)))
print(open(os.environ["FAIRLEAD_HOSTFILE"]).read().splitlines())
END"""
    name = f"sees-{count}"
    submit(client, tmp_path, script, "--name", name, "--nodes", str(count), "--cpus", "100m")
    job = client.until_state(name, "Succeeded", "Failed")
    assert job["status"]["state"] == "Succeeded", job["status"]
    first = "worker-0" if count > 1 else "localhost"
    seen = [client.run("logs", name, "--task", str(i)).splitlines() for i in range(count)]
    environments = [json.loads(lines[0]) for lines in seen]
    for rank, env in enumerate(environments):
        assert (env["RANK"], env["FAIRLEAD_INDEX"]) == (str(rank), str(rank))
        assert (env["WORLD_SIZE"], env["FAIRLEAD_ATTEMPT"]) == (str(count), "1")
        assert env["MASTER_ADDR"].split(".")[0] == first
        assert env["FAIRLEAD_JOB_UID"] == job["metadata"]["uid"]
        assert "hostfile" not in env, "the files of the ConfigMap are no variables"
    assert len({env["MASTER_ADDR"] for env in environments}) == 1
    for lines in seen:
        hosts = ast.literal_eval(lines[1])
        assert len(hosts) == count
        assert hosts[0] == f"{environments[0]['MASTER_ADDR']} slots=1"


def test_a_programs_exit_code_ends_the_job_at_once_with_the_user_as_cause(
    client: Client, tmp_path: Path
) -> None:
    script = '[ "$RANK" != 1 ] || { echo no shard 7; exit 7; }\n' + STAYS
    submit(client, tmp_path, script, "--name", "seven", "--nodes", "2", "--cpus", "100m")
    job = client.until_state("seven", "Failed", "Succeeded")
    (attempt,) = job["status"]["attempts"]
    assert attempt["cause"] == "User"
    assert attempt["reason"] == "ExitCode"
    assert "exited with code 7" in attempt["message"]
    assert client.run("why", "seven").endswith("\n    no shard 7\n")


def test_a_program_that_crashes_under_mpirun_does_not_restart_without_end(
    client: Client, tmp_path: Path
) -> None:
    program = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    script = f"exec python -m fairlead.member.mpirun -- python -c '{program}'"
    submit(client, tmp_path, script, "--name", "crash", "--nodes", "2", "--cpus", "100m")
    job = client.until_state("crash", "Failed", "Succeeded")
    (attempt,) = job["status"]["attempts"]
    assert (attempt["cause"], attempt["reason"]) == ("User", "Crashed"), attempt


def test_a_member_that_exceeds_its_memory_ends_the_job_with_the_remedy(
    client: Client, tmp_path: Path
) -> None:
    script = "exec python -c 'block = bytearray(400 << 20); print(len(block))'"
    submit(client, tmp_path, script, "--name", "hungry", "--cpus", "100m", "--memory", "64Mi")
    job = client.until_state("hungry", "Failed", "Succeeded")
    (attempt,) = job["status"]["attempts"]
    assert (attempt["cause"], attempt["reason"]) == ("User", "OutOfMemory"), attempt
    assert (
        "ran out of memory (64Mi) and was killed; ask for more with --memory" in attempt["message"]
    )


def test_a_member_without_rights_saves_reports_and_resumes(
    cluster: Cluster, client: Client
) -> None:
    script = """echo "resumes from ${FAIRLEAD_RESUME_STEP:-the start}"
for step in 1 2 3; do
  [ "$step" -gt "${FAIRLEAD_RESUME_STEP:-0}" ] || continue
  echo "$step" > "$FAIRLEAD_CHECKPOINT_DIR/state"
  echo "{\\"step\\": $step, \\"checkpoint\\": true}" >> "$FAIRLEAD_PROGRESS_FILE"
  [ "$FAIRLEAD_ATTEMPT" -gt 1 ] || [ "$step" -lt 2 ] || exit 1
done
cat "$FAIRLEAD_CHECKPOINT_DIR/state\""""
    apply(cluster, "saves", {
        "securityContext": {
            "runAsUser": 1000, "runAsGroup": 1000, "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "automountServiceAccountToken": False,
        "containers": [{
            "name": "main", "image": IMAGE, "command": ["sh", "-ec", script],
            "resources": {"requests": {"cpu": "100m"}},
            "securityContext": {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
        }],
    }, restart={"limit": 1})  # fmt: skip
    job = client.until_state("saves", "Succeeded", "Failed")
    assert job["status"]["state"] == "Succeeded", job["status"]
    assert job["status"]["attempts"][1]["resumedFromStep"] == 2
    progress = job["status"]["progress"]
    assert (progress["step"], progress["checkpointStep"]) == (3, 3)
    assert client.run("logs", "saves").splitlines() == ["resumes from 2", "3"]
    assert client.run("logs", "saves", "--previous") == "resumes from the start\n"


def test_a_command_that_is_run_shows_its_output_and_ends_with_its_exit_code(
    client: Client,
) -> None:
    command = ("run", "--image", IMAGE, "--cpus", "100m", "--", "sh", "-c")
    assert client.run(*command, "echo from inside; exit 7", code=7) == "from inside\n"


def test_a_drained_nodes_gang_moves_and_stays_off(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    submit(client, tmp_path, STAYS, "--name", "moving", "--nodes", "2",
           "--cpus", MOST_OF_A_NODE)  # fmt: skip
    home = places(client.until_state("moving", "Running"))[0]
    try:
        cluster.kubectl(
            "drain", home, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=90s"
        )

        def runs_again(status: dict[str, Any]) -> bool:
            return status["attempt"] == 2 and status["state"] == "Running"

        job = client.until("moving", "the second attempt", runs_again)
    finally:
        cluster.kubectl("uncordon", home)
    assert home not in places(job)
    assert job["status"]["attempts"][0]["reason"] == "Drained"
    assert {pod["spec"]["nodeName"] for pod in pods(cluster, "moving")} == set(places(job))
    client.run("cancel", "moving")


def test_logs_follow_a_job_over_the_loss_of_the_leader_and_its_restart(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    script = """for line in 1 2 3; do echo "attempt $FAIRLEAD_ATTEMPT line $line"; done
until [ -e "$FAIRLEAD_CHECKPOINT_DIR/go-$FAIRLEAD_ATTEMPT" ]; do sleep 0.2; done
echo "attempt $FAIRLEAD_ATTEMPT ends"
[ "$FAIRLEAD_ATTEMPT" -gt 1 ]"""
    submit(client, tmp_path, script, "--name", "told", "--cpus", "100m", "--retries", "1")
    job = client.until_state("told", "Running")
    following = subprocess.Popen(
        [Path(sys.executable).with_name("fairlead"), "logs", "-f", "told"],
        env={**os.environ, "KUBECONFIG": str(cluster.layout.kubeconfig)},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    before = leader(cluster)
    pod = before.split("_")[0]
    cluster.kubectl(
        "-n", NAMESPACE, "delete", "pod", pod, "--grace-period=0", "--force", "--wait=false"
    )
    shared = Path(cluster.layout.directory, "shared", "checkpoints", "default")
    own = shared / f"told-{job['metadata']['uid'][:8]}"
    (own / "go-1").touch()
    job = client.until("told", "attempt 2", lambda s: s["attempt"] == 2)
    deadline = time.monotonic() + SECONDS_MAX
    while leader(cluster) in ("", before):
        assert time.monotonic() < deadline, "another replica leads"
        time.sleep(0.5)
    (own / "go-2").touch()
    job = client.until_state("told", "Succeeded", "Failed")
    assert job["status"]["state"] == "Succeeded", job["status"]
    said, _ = following.communicate(timeout=SECONDS_MAX)
    expected = [
        f"attempt {attempt} {text}"
        for attempt in (1, 2)
        for text in ("line 1", "line 2", "line 3", "ends")
    ]
    assert said.splitlines() == expected
    cluster.kubectl("-n", NAMESPACE, "rollout", "status", CONTROLLER, "--timeout=120s")
