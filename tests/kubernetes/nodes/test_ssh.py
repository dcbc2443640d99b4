"""OpenSSH's client before a member on a real kubelet: streams, files, ports, a lost connection."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.kubernetes.nodes.running import submit
from tests.kubernetes.nodes.test_sessions import person
from tests.patience import PATIENCE_SECONDS
from tools.cluster.cluster import Cluster
from tools.cluster.jobs import Client

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.skipif(
        any(shutil.which(each) is None for each in ("ssh", "scp")),
        reason="no OpenSSH client: apt-get install openssh-client",
    ),
]
MEBIBYTES = 16
HOST = "reached.fairlead"
#: Answers each connection to its port with what it was sent.
ECHO = (
    "import socket; s = socket.create_server(('127.0.0.1', 7007)); print('up', flush=True)\n"
    "c = s.accept()[0]; c.sendall(b'echo ' + c.recv(99)); c.close()"
)


def test_openssh_reaches_a_member_and_what_it_started_ends_with_the_job_at_the_latest(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    world, relay = person(cluster, tmp_path)
    environment = {**world.environment, "HOME": str(tmp_path)}
    submit(client, tmp_path, "exec sleep 600", "--name", "reached", "--cpus", "100m")
    client.until_state("reached", "Running")
    setup = [sys.executable, "-m", "fairlead", "ssh-config", "--install", "--yes"]
    subprocess.run(setup, env=environment, check=True, capture_output=True)
    config = ("-F", str(tmp_path / ".ssh" / "config"))

    def run(*words: str, given: bytes = b"", code: int = 0) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(words, input=given, env=environment, capture_output=True,
                              check=False, timeout=PATIENCE_SECONDS)  # fmt: skip
        assert done.returncode == code, done
        return done

    done = run("ssh", *config, HOST, "cat; echo $RANK >&2; exit 7", given=b"in", code=7)
    assert (done.stdout, done.stderr.strip()) == (b"in", b"0")
    data = os.urandom(1 << 20) * MEBIBYTES
    (tmp_path / "bytes").write_bytes(data)
    run("scp", *config, str(tmp_path / "bytes"), f"{HOST}:/tmp/bytes")
    there = run("ssh", *config, HOST, "sha256sum < /tmp/bytes").stdout.split()[0]
    assert there.decode() == hashlib.sha256(data).hexdigest()
    run("scp", *config, f"{HOST}:/tmp/bytes", str(tmp_path / "again"))
    assert (tmp_path / "again").read_bytes() == data

    server = subprocess.Popen(
        ["ssh", *config, HOST, f'exec python3 -c "{ECHO}"'], env=environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert server.stdout is not None
    assert server.stdout.readline() == b"up\n"
    assert run("ssh", *config, "-W", "localhost:7007", HOST, given=b"hello").stdout == b"echo hello"
    assert server.wait(PATIENCE_SECONDS) == 0

    stays = subprocess.Popen(
        ["ssh", *config, HOST, "sleep 1235"], env=environment, stdin=subprocess.DEVNULL
    )
    client.until("reached", "it runs", lambda _: bool(client.processes("reached", 0, "1235")))
    relay.cut()
    assert stays.wait(PATIENCE_SECONDS) == 255
    assert client.processes("reached", 0, "1235"), "a container runtime signals nobody"
    client.run("cancel", "reached")
    client.until("reached", "it ends", lambda _: not client.processes("reached", 0, "1235"))
