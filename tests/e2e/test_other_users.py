"""What a second user of the machine can do to a cluster of `fairlead up`, and to its MPI jobs."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.cli_world import Shell

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as a second user"),
]
MASTER_PORT = 29500
GANG = f"exec {sys.executable} -m fairlead.member.mpirun -- sh -c 'echo rank $RANK of $WORLD_SIZE'"

#: Takes MASTER_PORT of all addresses, and answers what an attacker would like to be run.
SQUATTER = """
import os, socket, sys
listener = socket.create_server(("0.0.0.0", 29500), backlog=1000)
os.setgid(65534); os.setuid(65534)
print("ready", flush=True)
while True:
    connection, _ = listener.accept()
    connection.recv(4096)
    command = '["--control-port", "127.0.0.1:1", "touch", "%s"]\\n' % sys.argv[1]
    connection.sendall(command.encode())
"""
#: Tries all that it can name: files below the data directory, ports, and variables of processes.
STRANGER = """
import http.client, os, ssl, sys
data, port, pid = sys.argv[1:4]
"".encode("idna")
context = ssl._create_unverified_context()
os.setgid(65534); os.setuid(65534)

def refused(act):
    try:
        act()
    except PermissionError:
        return True
    return False

for name in ("", "history.db", "token", "kubeconfig", "local", "store"):
    path = os.path.join(data, name)
    print("file", name, refused(lambda: os.listdir(path) if os.path.isdir(path) else open(path)))
print("environ", refused(lambda: open(f"/proc/{pid}/environ").read()))
own = "/apis/fairlead.dev/v1alpha1/jobs"
for path in ("/api/v1/secrets", own, "/metrics", "/fairlead/v1/history"):
    link = http.client.HTTPSConnection("127.0.0.1", int(port), context=context, timeout=10)
    link.request("GET", path)
    print("api", path, link.getresponse().status)
"""


@pytest.fixture
def shell() -> Iterator[Shell]:
    """A shell whose data directory was made by hand, where every user can get to."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        shell = Shell(root)
        shell.data.mkdir()
        shell.data.chmod(0o755)
        try:
            yield shell
        finally:
            shell.down()


@pytest.mark.machine  # it takes the port of all gangs, which those of other tests need
def test_a_second_user_reads_nothing_and_runs_nothing(shell: Shell) -> None:
    shell.up("--listen", "127.0.0.1:0")
    (shell.root / "gang.sh").write_text(GANG)
    planted = shell.root / "planted"
    command = [sys.executable, "-c", SQUATTER, str(planted)]
    shell.root.chmod(0o777)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as squatter:
        assert squatter.stdout is not None
        assert squatter.stdout.readline() == "ready\n"
        shell.run("submit", "gang.sh", "--nodes", "3", "--cpus", "100m", "--name", "gang")
        shell.run("wait", "gang", "--timeout", "100s")
        squatter.kill()
    said = shell.run("logs", "gang").out
    assert sorted(re.findall(r"rank \d of 3", said)) == [f"rank {rank} of 3" for rank in range(3)]
    assert f":{MASTER_PORT} does not prove that it is the first member" in said
    assert not planted.exists()

    address = (shell.data / "kubeconfig").read_text()
    (port,) = re.findall(r"https://127\.0\.0\.1:(\d+)", address)
    arguments = [str(shell.data), port, str(shell.pid())]
    tried = subprocess.run(
        [sys.executable, "-c", STRANGER, *arguments], capture_output=True, text=True, check=True
    )
    lines = tried.stdout.splitlines()
    assert len(lines) == 11, tried.stderr
    assert all(line.endswith((" True", " 401")) for line in lines), lines


def test_a_cluster_listens_on_its_own_port_and_no_other(shell: Shell) -> None:
    shell.up("--nodes", "2", "--listen", "127.0.0.1:0")
    shell.run("run", "--name", "done", "--cpus", "100m", "--", "true")
    shell.run("wait", "done")
    inodes = {
        found[1]
        for link in Path(f"/proc/{shell.pid()}/fd").iterdir()
        if (found := re.match(r"socket:\[(\d+)\]", str(link.readlink())))
    }
    listening = [
        line.split()[1]
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        if line.split()[3] == "0A" and line.split()[9] in inodes
    ]
    (place,) = listening
    assert place.split(":")[0] == socket.inet_aton("127.0.0.1")[::-1].hex().upper()
