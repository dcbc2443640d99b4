"""`ssh JOB.fairlead`: OpenSSH's own programs before members of a cluster of `fairlead up`."""

from __future__ import annotations

import filecmp
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.e2e.cli_world import Shell, eventually
from tests.e2e.test_interactive import Terminal, until_gone
from tests.patience import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        any(shutil.which(each) is None for each in ("ssh", "scp", "sftp")),
        reason="no OpenSSH client: apt-get install openssh-client",
    ),
]
MEBIBYTES = 32


@dataclass(frozen=True)
class Ssh:
    """OpenSSH's programs with a configuration that `ssh-config --install` wrote."""

    shell: Shell
    #: Of the socket by which programs share a connection, and the process that has it.
    control: str = "none"
    pid: int = 0

    @property
    def root(self) -> Path:
        return self.shell.root

    @property
    def environment(self) -> dict[str, str]:
        return self.shell.environment

    @property
    def flags(self) -> tuple[str, ...]:
        # OpenSSH looks for a home in /etc/passwd alone.
        return "-F", str(self.root / ".ssh" / "config"), "-S", self.control

    def command(self, *words: str) -> list[str]:
        return ["ssh", *self.flags, *words]

    def run(
        self, *words: str, given: bytes = b"", code: int = 0, program: str = "ssh"
    ) -> subprocess.CompletedProcess[bytes]:
        config, master = self.flags[:2], self.flags[3]
        flags = self.flags if program == "ssh" else (*config, "-o", f"ControlPath={master}")
        done = subprocess.run(
            [program, *flags, *words], input=given, capture_output=True, env=self.environment,
            cwd=self.root, check=False, timeout=PATIENCE_SECONDS,
        )  # fmt: skip
        assert done.returncode == code, done
        return done

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command(*words), env=self.environment, cwd=self.root, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip


@pytest.fixture(scope="module")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ssh]:
    shell = Shell(tmp_path_factory.mktemp("ssh"))
    shell.up("--nodes", "0", "--listen", "127.0.0.1:0")
    (shell.root / "stay.sh").write_text("#!/bin/sh\n#FAIRLEAD --cpus 50m\nexec sleep 3600\n")
    shell.run("submit", "stay.sh", "--name", "one")
    shell.run("ssh-config", "--install", "--yes")
    yield Ssh(shell)
    shell.down()


@pytest.fixture(scope="module")
def master(ssh: Ssh) -> Iterator[Ssh]:
    """One connection that the programs of several tests share."""
    control = str(ssh.root / "master")
    first = subprocess.Popen(
        Ssh(ssh.shell, control).command("-M", "-N", "one.fairlead"),
        env=ssh.environment, cwd=ssh.root,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    eventually((ssh.root / "master").exists, True)
    yield Ssh(ssh.shell, control, first.pid)
    first.terminate()
    first.wait(PATIENCE_SECONDS)


def test_commands_have_the_members_streams_and_exit_codes(master: Ssh) -> None:
    done = master.run("one.fairlead", "cat; echo $RANK >&2; exit 7", given=b"in", code=7)
    assert (done.stdout, done.stderr.strip()) == (b"in", b"0")
    script = b'echo "$0 of $RANK"\nexit 3\n'
    assert b" of 0\n" in master.run("-T", "one.fairlead", given=script, code=3).stdout
    assert master.run("one.fairlead", "kill -TERM $$", code=143).stdout == b""
    data = os.urandom(1 << 20) * MEBIBYTES
    there = master.run("one.fairlead", "sha256sum", given=data).stdout.split()[0]
    assert there.decode() == hashlib.sha256(data).hexdigest()
    (master.root / "bytes").write_bytes(data)
    assert master.run("one.fairlead", f"cat {master.root}/bytes").stdout == data


def test_a_terminal_has_the_clients_size_and_keys(master: Ssh) -> None:
    terminal = Terminal(master, "-t", "one.fairlead")
    terminal.type(b"stty size; echo $TERM-$RANK\n")
    terminal.until(b"31 97")
    terminal.until(b"xterm-0")
    terminal.resize(20, 60)
    terminal.process.send_signal(signal.SIGWINCH)
    terminal.type(b"until stty size | grep '20 60'; do sleep 0.1; done; echo si''zed\n")
    terminal.until(b"sized")
    terminal.type(b"echo be''gan; sleep 600\n")
    terminal.until(b"began")
    terminal.type(b"\x03")
    terminal.until(b"^C")
    while terminal.process.poll() is None:  # what is typed before the shell reads again is lost
        terminal.type(b"exit 9\n")
        time.sleep(0.2)
    assert terminal.end() == 9


def test_files_are_copied_and_listed(master: Ssh) -> None:
    tree = master.root / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "data").write_bytes(os.urandom(3 << 20))
    (tree / "run.sh").write_text("#!/bin/sh\n")
    (tree / "run.sh").chmod(0o750)
    master.run("-rp", str(tree), f"one.fairlead:{master.root}/there", program="scp")
    master.run("-rp", f"one.fairlead:{master.root}/there", f"{master.root}/back", program="scp")
    for copy in ("there", "back"):
        same = filecmp.cmpfiles(tree, master.root / copy, ["run.sh", "sub/data"], shallow=False)
        assert same[0] == ["run.sh", "sub/data"]
        assert (master.root / copy / "run.sh").stat().st_mode & 0o777 == 0o750
    batch = f"cd {master.root}/there\nrename run.sh go.sh\nls -l\nrm sub/data\nrmdir sub\nget no\n"
    done = master.run("-b", "-", "one.fairlead", given=batch.encode(), code=1, program="sftp")
    assert b"-rwxr-x---" in done.stdout
    assert b'no" not found' in done.stderr
    assert sorted(each.name for each in (master.root / "there").iterdir()) == ["go.sh"]


@pytest.mark.skipif(shutil.which("rsync") is None, reason="no rsync: apt-get install rsync")
def test_rsync_copies(master: Ssh) -> None:
    (master.root / "from").mkdir()
    (master.root / "from" / "data").write_bytes(os.urandom(1 << 20))
    way = " ".join(master.command())
    subprocess.run(
        ["rsync", "-a", "-e", way, "from/", f"one.fairlead:{master.root}/to/"], check=True,
        cwd=master.root, env=master.environment, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert filecmp.cmp(master.root / "from" / "data", master.root / "to" / "data", shallow=False)


def test_git_clones(master: Ssh) -> None:
    way = {**master.environment, "GIT_SSH_COMMAND": " ".join(master.command())}
    for words in (
        ("init", "-q", "repository"),
        ("-C", "repository", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q",
         "--allow-empty", "-m", "first"),
        ("clone", "-q", f"ssh://one.fairlead{master.root}/repository", "clone"),
    ):  # fmt: skip
        subprocess.run(["git", *words], check=True, cwd=master.root, env=way)
    assert (master.root / "clone" / ".git").is_dir()


SERVER = """
import http.server, pathlib
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
pathlib.Path("port").write_text(f"{server.server_port}\\n")
server.serve_forever()
"""


def test_ports_lead_to_the_member_and_nowhere_else(master: Ssh) -> None:
    """Neither to this machine's network, nor from the member to this machine."""
    (master.root / "serve.py").write_text(SERVER)
    master.run("one.fairlead", f"cd {master.root}; nohup python3 serve.py >/dev/null 2>&1 &")
    port = master.root / "port"
    eventually(lambda: port.exists() and port.read_text().endswith("\n"), True)

    def fetched(target: str) -> bytes:
        local = str(master.root / target.partition(":")[0])
        master.run("-O", "forward", "-L", f"{local}:{target}", "one.fairlead")
        done = subprocess.run(
            ["curl", "-s", "-m", "20", "--unix-socket", local, "http://x/stay.sh"],
            capture_output=True, check=False,
        )  # fmt: skip
        return done.stdout

    assert b"sleep 3600" in fetched(f"localhost:{port.read_text().strip()}")
    assert fetched("192.0.2.1:80") == b""
    refused = master.run("-O", "forward", "-R", "0:localhost:1", "one.fairlead", code=255)
    assert b"forwarding request failed" in refused.stderr
    assert master.run("-A", "-X", "one.fairlead", "echo $SSH_AUTH_SOCK$DISPLAY").stdout == b"\n"


#: Tries to get between the client and the server: by their pipes, and by what the server is given.
STRANGER = """
import os, sys
os.setgid(65534); os.setuid(65534)
for path in sys.argv[1:]:
    try:
        os.open(path, os.O_RDWR)
        print("opened", path)
    except PermissionError:
        print("refused")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_user_of_the_machine_does_not_get_between(master: Ssh) -> None:
    master.run("one.fairlead", "true")
    found = subprocess.run(
        ["pgrep", "-P", str(master.pid), "-f", "fairlead ssh-proxy -- one.fairlead"],
        capture_output=True, check=True,
    )  # fmt: skip
    pid = found.stdout.decode().strip()
    sockets = {str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir() if each.exists()}
    for table in ("tcp", "tcp6", "unix"):
        lines = Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        listening = (line.split() for line in lines if " 0A " in line or " 00010000 " in line)
        assert sockets.isdisjoint(f"socket:[{word}]" for line in listening for word in line)
    own = master.root / ".config" / "fairlead" / "ssh"
    wanted = [f"/proc/{pid}/fd/0", f"/proc/{pid}/fd/1", f"/proc/{pid}/mem", f"{own}/host_key",
              f"{own}/known_hosts", f"{own}/config"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", STRANGER, *wanted], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["refused"] * len(wanted)


def test_ten_connections_at_once_each_have_a_session_of_their_own(ssh: Ssh) -> None:
    """As editors and rsync open them; none ends before all ten have begun."""
    meet = "echo >> met; until [ $(wc -l < met) = 10 ]; do sleep 0.1; done; echo $0; exit $0"
    command = f"cd {ssh.root}; sh -c '{meet}'"
    sessions = [ssh.start("one.fairlead", command, str(number)) for number in range(10)]
    ends = [session.communicate(timeout=PATIENCE_SECONDS) for session in sessions]
    assert [out for out, _ in ends] == [b"%d\n" % number for number in range(10)], ends
    assert [session.returncode for session in sessions] == list(range(10))


def test_a_name_of_a_host_runs_nothing(ssh: Ssh) -> None:
    """Clients before OpenSSH 9.6 put it into the command's text as it is, so none is to match."""
    for name in (
        "a'$(touch owned)'.fairlead",
        "$(touch owned).fairlead",
        "a;touch owned;.fairlead",
    ):
        ssh.run(name, "true", code=255)
    assert not (ssh.root / "owned").exists()
    assert b"ssh-proxy" in ssh.run("-G", "ab.fairlead").stdout
    # The pattern that excludes quotes, with a letter for the quote: this client refuses that one.
    text = (ssh.root / ".config" / "fairlead" / "ssh" / "config").read_text()
    like = ssh.root / "like"
    like.write_text(text.replace("!*'*", "!*q*"))
    for name, is_meant in {"ab.fairlead": True, "aqb.fairlead": False}.items():
        shown = subprocess.run(["ssh", "-F", like, "-G", name], capture_output=True, check=True)
        assert (b"ssh-proxy" in shown.stdout) == is_meant


def test_what_does_not_run_is_said(ssh: Ssh) -> None:
    assert b"job one has no member 1" in ssh.run("1.one.fairlead", "true", code=255).stderr
    assert b"does not exist" in ssh.run("nosuch.fairlead", "true", code=255).stderr
    assert b"E004" in ssh.run("a.b.c.d.fairlead", "true", code=255).stderr
    ssh.shell.run("submit", "--hold", "--name", "later", "--cpus", "50m", "stay.sh")
    waiting = ssh.start("later.fairlead", "echo began; sleep 600")
    assert waiting.stderr is not None
    assert waiting.stdout is not None
    assert b"Held" in waiting.stderr.readline()
    ssh.shell.run("release", "later")
    assert waiting.stdout.readline() == b"began\n"
    ssh.shell.run("cancel", "later")
    assert waiting.wait(PATIENCE_SECONDS) == 137
    eventually(lambda: ssh.shell.state("later"), "Cancelled")
    said = ssh.run("later.fairlead", "true", code=255).stderr
    assert b"job later has ended: Cancelled" in said


def test_a_client_that_goes_ends_its_program_and_a_lost_cluster_is_said(ssh: Ssh) -> None:
    """The last test of this cluster: it is killed."""
    ssh.shell.run("wait", "one", "--for", "started", "--timeout", "100s")
    session = ssh.start("one.fairlead", "echo $$; exec sleep 600")
    assert session.stdout is not None
    pid = int(session.stdout.readline())
    session.kill()
    until_gone(pid)
    session = ssh.start("one.fairlead", "echo began; exec sleep 600")
    assert session.stdout is not None
    assert session.stdout.readline() == b"began\n"
    os.kill(ssh.shell.pid(), signal.SIGKILL)
    _, said = session.communicate(timeout=PATIENCE_SECONDS)
    assert session.returncode == 255
    assert b"the connection was lost before the command ended" in said
    ssh.shell.up("--nodes", "0", "--listen", "127.0.0.1:0")  # to be ended in good order
