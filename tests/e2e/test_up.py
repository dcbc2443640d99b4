"""The cluster's process: start, stop, crash, and everything that can be in its way."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.cli_world import Shell, eventually
from tests.patience import PATIENCE_SECONDS

from fairlead.api.resources import JOBS
from fairlead.app.configuration.settings import OPEN_ADDRESS
from fairlead.app.run_file import identity
from fairlead.cli.connection.connect import Choice, find_connection
from fairlead.cli.connection.transport import Api

pytestmark = pytest.mark.e2e
KUBECTL = os.environ.get("FAIRLEAD_KUBECTL") or shutil.which("kubectl")

STEPS = """
for step in $(seq 1 600); do
  echo "{\\"step\\": $step, \\"checkpoint\\": true}" >> "$FAIRLEAD_PROGRESS_FILE"
  echo "attempt $FAIRLEAD_ATTEMPT step $step from ${FAIRLEAD_RESUME_STEP:-0}"
  sleep 0.1
done
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    (tmp_path / "steps.sh").write_text(STEPS)
    try:
        yield shell
    finally:
        shell.down()


def test_after_kill_9_the_next_up_has_every_job_and_running_ones_go_on(shell: Shell) -> None:
    shell.up("--nodes", "3", "--listen", "127.0.0.1:0")
    shell.run("submit", "steps.sh", "--nodes", "2", "--cpus", "100m", "--name", "steps")
    shell.run("submit", "steps.sh", "--hold", "--name", "held")
    shell.run("run", "--name", "done", "--cpus", "100m", "--", "true")
    shell.run("wait", "steps", "--for", "started", "--timeout", "100s")
    os.kill(shell.pid(), signal.SIGKILL)
    eventually(lambda: shell.run("status", "--data", str(shell.data), code=None).code, 6)
    dead = shell.run("ps", code=6)
    assert dead.err.startswith("error[E600]: the cluster of ")
    assert "fairlead up --detach --data" in dead.err
    shell.up()
    assert shell.state("done") == "Succeeded"
    assert shell.state("held") == "Held"
    eventually(lambda: shell.state("steps"), "Running")
    # attached to again: the processes never noticed
    assert shell.job("steps")["status"]["attempt"] == 1
    assert "v00002" in shell.run("nodes", "-o", "name").out
    shell.run("logs", "steps")


def test_down_ends_local_processes_and_the_next_up_restarts_from_the_checkpoint(
    shell: Shell,
) -> None:
    shell.up("--listen", "127.0.0.1:0")
    shell.run("submit", "steps.sh", "--cpus", "100m", "--name", "steps")
    eventually(lambda: shell.status("steps").get("progress", {}).get("step", 0) > 3,
               expected=True)  # fmt: skip
    pid = shell.pid()
    shell.down()
    assert identity(pid) is None
    assert not (shell.data / "run.json").exists()
    marker = str(shell.data).encode()
    left = [p for p in Path("/proc").glob("[0-9]*/cmdline") if marker in _read(p)]
    assert left == []
    shell.up()
    eventually(lambda: shell.status("steps").get("attempt"), 2)
    eventually(lambda: shell.state("steps"), "Running")
    resumed = shell.job("steps")["status"]["attempts"][-1]["resumedFromStep"]
    assert resumed > 3
    eventually(lambda: f"attempt 2 step 1 from {resumed}" in shell.run("logs", "steps").out,
               expected=True)  # fmt: skip


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_second_up_on_the_same_directory_is_refused(shell: Shell) -> None:
    shell.up("--listen", "127.0.0.1:0")
    for extra in ((), ("--detach",)):
        second = shell.run("up", "--data", str(shell.data), *extra, code=4)
        assert second.err.startswith("error[E701]: a cluster (process ")
    # also when the record of the process is lost: the lock of the store decides
    (shell.data / "run.json").rename(shell.data / "run.bak")
    assert "E701" in shell.up("--listen", "127.0.0.1:0", code=4).err
    (shell.data / "run.bak").rename(shell.data / "run.json")


def test_a_port_in_use_is_told_with_a_remedy(shell: Shell) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = shell.up("--listen", f"127.0.0.1:{port}", code=4)
        assert refused.err.startswith(f"error[E700]: another process listens on 127.0.0.1:{port}")
        assert "--listen 127.0.0.1:0" in refused.err
        assert not shell.data.exists()
        # a port that was only remembered may be replaced
        shell.data.mkdir(mode=0o700)
        (shell.data / "cluster.json").write_text(json.dumps({"port": port}))
        shell.up()
        assert json.loads((shell.data / "run.json").read_text())["server"].endswith(
            str(json.loads((shell.data / "cluster.json").read_text())["port"])
        )


def test_a_data_directory_of_another_version_is_left_alone(shell: Shell) -> None:
    shell.up("--listen", "127.0.0.1:0")
    shell.down()
    format_file = next(p for p in (shell.data / "store").iterdir() if "ormat" in p.name.lower())
    content = format_file.read_bytes()
    format_file.write_bytes(b"fairlead store 99\n")
    refused = shell.up("--listen", "127.0.0.1:0", code=4)
    assert "E702" in refused.err
    assert format_file.read_bytes() == b"fairlead store 99\n"
    format_file.write_bytes(content)
    with sqlite3.connect(shell.data / "history.db") as history:
        history.execute("PRAGMA user_version = 99")
    refused = shell.up("--listen", "127.0.0.1:0", code=4)
    assert "error[E702]" in refused.err
    assert "has schema version 99" in refused.err
    with sqlite3.connect(shell.data / "history.db") as history:
        history.execute("PRAGMA user_version = 1")
    quiet = shell.up("-q", "--listen", "127.0.0.1:0")
    assert quiet.out == f"{shell.data / 'kubeconfig'}\n"


def test_ctrl_c_stops_a_cluster_in_the_foreground_in_order(shell: Shell) -> None:
    process = shell.start("up", "--data", str(shell.data), "--listen", "127.0.0.1:0")
    shell.until_up()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, (out, err)
    assert "Kubeconfig" in out
    assert "its state is kept" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("module", ["click.core", "msgspec", "aiohttp.web", "uvloop"])
def test_ctrl_c_during_the_start_leaves_no_traceback(shell: Shell, module: str) -> None:
    arguments = shell.command("up", "--data", str(shell.data), "--listen", "127.0.0.1:0")
    arguments[1:1] = ["-X", "importtime"]  # tells on stderr how far the start has come
    process = subprocess.Popen(arguments, env=shell.environment, text=True, cwd=shell.root,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if line.rstrip().endswith(f" {module}"):
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert "Traceback" not in err, err
    assert process.returncode == 130


def test_ctrl_c_while_text_is_executed_has_the_same_exit_code(tmp_path: Path) -> None:
    (tmp_path / "interrupted.py").write_text("""
import threading, time
import fairlead.cli.app, fairlead.cli.main
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()  # takes signals, too
fairlead.cli.app.run = lambda arguments: exec("raise KeyboardInterrupt")
fairlead.cli.main.main()
""")
    command = [sys.executable, "-m", "interrupted"]  # only `-m` heeds the interpreter's mark
    assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 130


def test_a_second_ctrl_c_while_the_process_ends_leaves_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "again.py").write_text("""
import os, signal, threading
import fairlead.cli.app, fairlead.cli.main
def run(arguments):
    threading._register_atexit(os.kill, os.getpid(), signal.SIGINT)  # as pools of processes do
    raise KeyboardInterrupt
fairlead.cli.app.run = run
fairlead.cli.main.main()
""")
    command = [sys.executable, "-m", "again"]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")


def test_down_never_signals_a_process_that_merely_has_the_number(shell: Shell) -> None:
    shell.data.mkdir()
    record = {"pid": os.getpid(), "startTicks": 1, "bootId": "x", "server": "http://x",
              "version": "0.1.0", "startedAt": 0.0}  # fmt: skip
    (shell.data / "run.json").write_text(json.dumps(record))
    assert "no cluster is running" in shell.run("down", "--data", str(shell.data)).err
    (shell.data / "run.json").unlink()


def test_up_returns_when_all_its_nodes_are_there(shell: Shell) -> None:
    shell.up("--nodes", "200", "--listen", "127.0.0.1:0")
    assert shell.run("nodes", "-o", "name").out.count("\n") == 201


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB, where the machine lets us mount one."""
    path = tmp_path / "small"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=PATIENCE_SECONDS, check=False)
    except OSError:
        pytest.skip("no mount command")
    if done.returncode != 0:
        pytest.skip("mounting is not allowed here")
    yield path
    subprocess.run(["umount", "-l", str(path)], timeout=PATIENCE_SECONDS, check=True)


def _fill(path: Path) -> None:
    """Write until the disk is full."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(b"\0" * 4096):
            pass
    assert os.statvfs(path).f_bavail == 0


def test_a_full_disk_ends_the_cluster_with_a_clear_word_and_loses_nothing(
    tmp_path: Path, small_disk: Path
) -> None:
    shell = Shell(tmp_path)
    shell.data = small_disk / "data"
    shell.environment["FAIRLEAD_KUBECONFIG"] = str(shell.data / "kubeconfig")
    (tmp_path / "job.sh").write_text("true\n")
    process = shell.start("up", "--data", str(shell.data), "--listen", "127.0.0.1:0")
    shell.until_up()
    kept = [shell.run("submit", "job.sh", "--hold").out for _ in range(3)]
    _fill(small_disk / "fill")
    for _ in range(20):  # what is left of the log's last block may still take a write or two
        if shell.run("submit", "job.sh", "--hold", code=None).code != 0:
            break
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 5
    assert "error[E704]: the disk of" in err
    assert "Traceback" not in err.rpartition("error[E704]")[2]
    _fill(small_disk / "rest")  # what the end has freed
    assert "E704" in shell.up(code=5).err
    for name in ("fill", "rest"):
        (small_disk / name).unlink()
    shell.up()
    names = shell.run("ps", "-o", "name").out
    assert set(kept) <= {f"{name}\n" for name in names.splitlines()}
    shell.down()


def test_output_that_would_fill_the_disk_ends_neither_the_cluster_nor_its_job(
    tmp_path: Path, small_disk: Path
) -> None:
    shell = Shell(tmp_path)
    shell.data = small_disk / "data"
    shell.environment["FAIRLEAD_KUBECONFIG"] = str(shell.data / "kubeconfig")
    shell.up("--listen", "127.0.0.1:0")
    script = "seq 1 1000000; echo the end"
    loud = shell.run("run", "-q", "--name", "loud", "--cpus", "100m", "--", "sh", "-c", script)
    assert "1\n" in loud.out
    assert os.statvfs(small_disk).f_bavail > 0
    assert shell.state("loud") == "Succeeded"
    shell.run("run", "--name", "next", "--cpus", "100m", "--", "true")
    shell.down()


@pytest.mark.skipif(KUBECTL is None, reason="no kubectl on the PATH or in FAIRLEAD_KUBECTL")
def test_kubectl_works_with_the_kubeconfig_that_up_writes(shell: Shell) -> None:
    assert KUBECTL is not None
    shell.up("--nodes", "2", "--listen", "127.0.0.1:0")
    shell.run("run", "--name", "done", "--cpus", "100m", "--", "true")
    command = [KUBECTL, "--kubeconfig", str(shell.data / "kubeconfig")]

    def kubectl(*arguments: str) -> str:
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, env=shell.environment,
            timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    rows = [line.split()[:2] for line in kubectl("get", "nodes", "--no-headers").splitlines()]
    assert ["v00000", "Ready"] in rows
    assert len(rows) == 3
    header, row = kubectl("get", "fj").splitlines()
    assert header.split() == [
        "NAME",
        "STATE",
        "RUNNING",
        "MEMBERS",
        "ATTEMPT",
        "REASON",
        "FAILURE",
        "AGE",
    ]
    assert row.split()[:2] == ["done", "Succeeded"]
    assert "Succeeded: its one member ended well" in kubectl("describe", "fj", "done")
    assert "restart" in kubectl("explain", "fj.spec")


CLIENT = """
import sys
import kubernetes
kubernetes.config.load_kube_config(sys.argv[1])
core = kubernetes.client.CoreV1Api()
core.create_namespaced_config_map("default", {"metadata": {"name": "a"}, "data": {"k": "v"}})
watch = kubernetes.watch.Watch()
for event in watch.stream(core.list_namespaced_config_map, "default", timeout_seconds=20):
    if event["object"].metadata.name == "a":
        print(event["type"], event["object"].data["k"])
        break
"""


def test_everybody_comes_over_tls_and_no_url_holds_the_token(shell: Shell) -> None:
    told = shell.up("--nodes", "1", "--listen", "127.0.0.1:0").out
    token = (shell.data / "token").read_text().strip()
    server = json.loads((shell.data / "run.json").read_text())["server"]
    assert server.startswith("https://127.0.0.1:")
    told += shell.run("status", "--data", str(shell.data)).out
    told += (shell.data / "log" / "fairlead.log").read_text()
    told += (shell.data / "run.json").read_text()
    assert server in told
    assert token not in told
    kubeconfig = shell.data / "kubeconfig"
    text = kubeconfig.read_text()
    assert text.count(token) == text.count(f'"token": "{token}"') == 1
    command = [sys.executable, "-c", CLIENT, str(kubeconfig)]
    client = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert client.stdout == "ADDED v\n", client.stderr
    with socket.create_connection(("127.0.0.1", int(server.rpartition(":")[2])), 10) as plain:
        plain.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"HTTP" not in plain.recv(1000)
    # an authority of somebody else is not enough, nor is the system's
    stranger = shell.root / "stranger"
    stranger.write_text("".join(
        line for line in text.splitlines(keepends=True) if "certificate-authority" not in line
    ))  # fmt: skip
    refused = shell.run("ps", "--kubeconfig", str(stranger), code=6).err
    assert f"no safe connection to {server}" in refused
    # and the same after a restart, when nothing is due
    shell.down()
    shell.up()
    assert kubeconfig.read_text() == text


def test_up_warns_when_other_machines_can_reach_the_cluster(shell: Shell) -> None:
    warned = shell.up("--nodes", "1", "--listen", "0.0.0.0:0").out
    assert f"Warning     {OPEN_ADDRESS}\n" in warned
    log = (shell.data / "log" / "fairlead.log").read_text()
    assert OPEN_ADDRESS in log
    shell.down()
    assert OPEN_ADDRESS not in shell.up("--listen", "127.0.0.1:0").out
    assert (shell.data / "log" / "fairlead.log").read_text().count(OPEN_ADDRESS) == 1


def test_a_smaller_fleet_loses_its_idle_nodes_and_keeps_those_in_use(shell: Shell) -> None:
    shell.up("--nodes", "6", "--listen", "127.0.0.1:0")
    shell.run("submit", "steps.sh", "--on", "virtual", "--gpus", "8", "--nodes", "5",
              "--simulate", "1h", "--name", "busy")  # fmt: skip
    shell.run("wait", "busy", "--for", "started", "--timeout", "100s")
    roles = shell.job("busy")["status"]["placement"]["roles"]
    used = {node for role in roles for node in role["nodes"]}
    assert len(used) == 5
    shell.down()
    told = shell.up("--nodes", "1").out
    left = {name for name in shell.run("nodes", "-o", "name").out.split() if name.startswith("v0")}
    assert left == used | {"v00000"}
    kept = len(left) - 1
    assert f"this machine and 1 virtual node; {kept} more are in use" in told
    shell.run("cancel", "busy")
    eventually(lambda: shell.state("busy"), "Cancelled")
    shell.down()
    told = shell.up().out
    assert "in use" not in told
    assert shell.run("nodes", "-o", "name").out.count("v0") == 1


def test_decisions_about_the_fleet_are_read_from_a_cluster_that_runs_and_one_that_is_stopped(
    shell: Shell,
) -> None:
    shell.up("--listen", "127.0.0.1:0")
    assert "no decision that matches" in shell.run("fleet", "history", "h100").err
    shell.down()
    assert json.loads(shell.run("fleet", "history", "-o", "json").out)["items"] == []
    with sqlite3.connect(shell.data / "history.db") as connection:
        row = ("uid/1", 0, "h100", "Launch", "Demand", "2 nodes", '{"size": 0}')
        connection.execute("INSERT INTO fleet VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    assert "1970-01-01T00:00:00Z  h100  Launch" in shell.run("fleet", "history").out


def test_ctrl_c_says_what_it_waits_for(shell: Shell) -> None:
    (shell.root / "deaf.sh").write_text("trap '' TERM\necho ready\nwhile true; do sleep 1; done\n")
    process = shell.start("up", "--data", str(shell.data), "--listen", "127.0.0.1:0")
    shell.until_up()
    shell.run("submit", "deaf.sh", "--cpus", "100m", "--name", "deaf")
    eventually(lambda: "ready" in shell.run("logs", "deaf", code=None).out, expected=True)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, err
    assert "Stopping 1 member on this machine, for 10s at most: deaf-1-worker-0. Ctrl-C" in err


def test_past_jobs_are_there_when_they_are_deleted_and_when_the_cluster_is_down(
    tmp_path: Path,
) -> None:
    shell = Shell(tmp_path)
    shell.up("--nodes", "0", "--listen", "127.0.0.1:0")
    try:
        for word in ("older", "newer"):
            assert word in shell.run("run", "--name", "twice", "--", "echo", word).out
            connection = find_connection(Choice(str(shell.data / "kubeconfig")), {})
            Api(connection).request("DELETE", JOBS.path("default", "twice"))
            eventually(lambda: "twice" in shell.run("ps", "-a").out, expected=False)
        assert shell.run("logs", "twice").out == "newer\n"
        assert _of_both(shell) == ["newer\n", "older\n"]
        shell.run("run", "--name", "past", "--", "sh", "-c", "echo five; exit 5", code=5)
        assert "E300" in shell.run("history", "nosuch", code=3).err
    finally:
        shell.down()
    assert "past" in shell.run("history", "past").out
    assert "has ended: Failed" in shell.run("why", "past").out
    assert "exited with code 5" in shell.run("why", "past").out
    assert "E300" in shell.run("history", "nosuch", code=3).err
    assert "E600" in shell.run("why", "nosuch", code=6).err
    assert shell.run("logs", "past").out == "five\n"
    assert shell.run("logs", "twice").out == "newer\n"
    assert _of_both(shell) == ["newer\n", "older\n"]
    assert "E301" in shell.run("logs", "nosuch", code=3).err


def _of_both(shell: Shell) -> list[str]:
    """Return the logs of all jobs named twice, by the uids that the history shows."""
    rows = [line.split() for line in shell.run("history", "twice", "-o", "wide").out.splitlines()]
    uids = [next(word for word in row if word.count("-") == 4) for row in rows[1:]]
    return [shell.run("logs", "twice", "--uid", uid).out for uid in uids]


@pytest.mark.skipif(KUBECTL is None, reason="no kubectl on the PATH or in FAIRLEAD_KUBECTL")
def test_v1beta1_is_served_where_it_is_asked_for_and_goes_again(shell: Shell) -> None:
    assert KUBECTL is not None
    kubectl = [KUBECTL, f"--kubeconfig={shell.data}/kubeconfig"]

    def ask(*words: str, stdin: str = "") -> str:
        said = subprocess.run(
            [*kubectl, *words], input=stdin, check=True, capture_output=True, text=True
        )
        return said.stdout.strip()

    shell.up("--listen", "127.0.0.1:0", "--v1beta1")
    shell.run("run", "--name", "first", "--cpus", "100m", "--", "true")
    container = {"name": "main", "image": "none", "command": ["true"]}
    pod = {
        "containers": [container], "nodeSelector": {"fairlead.dev/node-type": "local"},
        "tolerations": [{"key": "fairlead.dev/local", "operator": "Exists"}],
    }  # fmt: skip
    role = {"name": "worker", "count": 1, "template": {"spec": pod}}
    job = {
        "apiVersion": "fairlead.dev/v1beta1", "kind": "Job", "metadata": {"name": "second"},
        "spec": {"roles": [role], "after": [{"jobName": "first", "state": "Succeeded"}]},
    }  # fmt: skip
    assert ask("apply", "--server-side", "-f", "-", stdin=json.dumps(job)).endswith("applied")
    eventually(lambda: shell.state("second"), "Succeeded")
    # Discovery prefers the beta, as on a real server; either version has the same job.
    spec = json.loads(ask("get", "jobs.fairlead.dev", "second", "-o", "jsonpath={.spec.after[0]}"))
    assert spec["jobName"] == "first"
    old = ask("get", "jobs.v1alpha1.fairlead.dev", "second", "-o", "jsonpath={.spec.after[0].job}")
    assert old == "first"
    assert ask("get", "jobs.fairlead.dev", "second", "-o", "jsonpath={.status.startTime}")
    assert "jobName" in ask("explain", "job.spec.after", "--api-version=fairlead.dev/v1beta1")
    assert "second" in ask("get", "jobs.fairlead.dev", "-o", "wide")
    # It is remembered, and goes by the opposite flag; what was written stays.
    shell.down()
    shell.up()
    assert ask("get", "jobs.v1beta1.fairlead.dev", "-o", "name")
    shell.down()
    shell.up("--no-v1beta1")
    refused = subprocess.run(
        [*kubectl, "get", "jobs.v1beta1.fairlead.dev"], capture_output=True, text=True, check=False
    )
    assert refused.returncode, refused.stdout
    assert shell.state("second") == "Succeeded"
