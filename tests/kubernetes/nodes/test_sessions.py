"""Terminals that stay, on real kubelets: left, cut, joined again, and ended with their job."""

from __future__ import annotations

import os
import re
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.e2e.cut_relay import Relay
from tests.e2e.test_interactive import Terminal
from tests.kubernetes.nodes.running import IMAGE, submit
from tools.cluster.cluster import Cluster
from tools.cluster.jobs import Client

pytestmark = pytest.mark.kubernetes


@dataclass(frozen=True)
class World:
    """A person's machine, as `Terminal` starts commands on it."""

    root: Path
    environment: dict[str, str]

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "fairlead", *arguments]


def person(cluster: Cluster, root: Path) -> tuple[World, Relay]:
    text = cluster.layout.kubeconfig.read_text()
    found = re.search(r"https://([^:/\s]+):(\d+)", text)
    assert found is not None
    host, port = found[1], int(found[2])
    relay = Relay(lambda: (host, port))
    name = f"    tls-server-name: {found[1]}\n"
    text = text.replace(found[0], f"https://127.0.0.1:{relay.port}")
    text = re.sub(r"(?m)^( *)(server: .*\n)", lambda m: f"{m[1]}{m[2]}{m[1]}{name.strip()}\n", text)
    (root / "kubeconfig").write_text(text)
    own = {key: value for key, value in os.environ.items() if not key.startswith("FAIRLEAD")}
    return World(root, {**own, "KUBECONFIG": str(root / "kubeconfig"), "NO_COLOR": "1"}), relay


def test_a_terminal_outlives_cut_connections_and_its_killed_client_and_ends_with_its_job(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    world, relay = person(cluster, tmp_path)
    flags = ("--name", "typed", "--image", IMAGE, "--cpus", "100m")
    first = Terminal(world, "run", "--pty", "--log", *flags, "--", "sh")
    first.type(b"kept=42; echo re''ady\n")
    first.until(b"ready")
    first.type(b"for i in $(seq 1 300); do echo line-$i; sleep 0.02; done; echo al''l\n")
    for line in (20, 60, 120):
        first.until(f"line-{line}\r\n".encode())
        relay.cut()
        first.until(b"joined again")
        first.shown = first.shown.replace(b"joined again", b"joined")
    first.until(b"all")
    assert [int(each) for each in re.findall(rb"line-(\d+)\r\n", first.shown)] == [*range(1, 301)]
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    second = Terminal(world, "attach", "typed")
    second.until(b"line-300")
    second.resize(45, 120)
    second.process.send_signal(signal.SIGWINCH)
    second.type(b"until [ \"$(stty size)\" = '45 120' ]; do sleep 0.1; done; echo $kept/$RANK.\n")
    second.until(b"42/0.")
    second.type(b"exit 7\n")
    assert second.end() == 7
    client.until_state("typed", "Failed")
    assert "exited with code 7" in client.run("why", "typed")
    kept = re.findall(r"(?m)^\[session \d+\] line-(\d+)$", client.run("logs", "typed"))
    assert [*map(int, kept)] == [*range(1, 301)]

    submit(client, tmp_path, "exec sleep 600", "--name", "beside", "--cpus", "100m")
    client.until_state("beside", "Running")
    shell = Terminal(world, "shell", "beside")
    shell.type(b"sleep 1234 & echo re''ady\n")
    shell.until(b"ready")
    shell.type(b"\x1dd")
    assert shell.end() == 0
    assert "beside/worker-0:" in client.run("sessions")
    assert client.processes("beside", 0, "1234")
    client.run("cancel", "beside")
    client.until("beside", "its processes end", lambda _: not client.processes("beside", 0, "1234"))
    assert client.run("sessions") == ""
