"""Two sides of a pair, by a real kernel: with routers between them that have a smaller MTU, and on
two networks.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.e2e.net_world import INTERNAL4, Namespace, NetWorld, ip, net_world, run
from tests.patience import PATIENCE_SECONDS

from fairlead.api.cluster.machine_result import PairMeasure
from fairlead.node.gang_gate import run_pair

pytestmark = pytest.mark.e2e

PORT = 20417


@pytest.fixture
def net() -> Iterator[NetWorld]:
    made = net_world()
    yield made
    made.close()


def measured(net: NetWorld, key: Path) -> tuple[PairMeasure, PairMeasure]:
    """Return what the side that listens and the one that connects found."""

    def side(of: Namespace, address: str) -> PairMeasure:
        with of.inside():
            return run_pair("p", key, address=address, port=PORT, wait_seconds=5.0).pairs[0]

    key.write_bytes(b"k" * 32)
    with ThreadPoolExecutor(2) as pool:
        listens = pool.submit(side, net.outside, "")
        connects = pool.submit(side, net.pods, INTERNAL4)
        return listens.result(), connects.result()


@pytest.mark.parametrize("lost", ["none", "from the pods", "to the pods"])
def test_a_smaller_mtu_on_the_path_is_measured_where_routers_do_not_say_so(
    net: NetWorld, tmp_path: Path, lost: str
) -> None:
    device = "veth-pods" if lost == "to the pods" else "veth-out"
    with net.node.inside():
        ip(f"route change {'10.1.0.0/16' if 'to' in lost else 'default'} dev {device}"
           f"{'' if 'to' in lost else ' via 10.9.0.2'} mtu lock 1300")  # fmt: skip
        if lost != "none":
            run("nft", "-f", "-", text="table ip quiet { chain out { type filter hook output "
                "priority 0; icmp type destination-unreachable drop\n}\n}\n")  # fmt: skip
    listens, connects = measured(net, tmp_path / "key")
    sender, other = (listens, connects) if lost == "to the pods" else (connects, listens)
    assert sender.error == ""
    assert (sender.loses_full_packets, other.loses_full_packets) == (lost != "none", False)
    assert (sender.bytes_per_second > 0, bool(other.error)) == (lost == "none", lost != "none")


def rate_of(line: str) -> float:
    (found,) = re.findall(r"with the other machine: (\S+) B/s$", line, re.MULTILINE)
    return float(found)


def test_the_commands_of_the_page_compare_the_network_of_pods_with_that_of_the_hosts(
    net: NetWorld, tmp_path: Path
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "node-agent.md").read_text()
    listens, connects = re.findall(r"^\$ fairlead (agent pair.*?)\s+# ", page, re.MULTILINE)
    (key,) = re.findall(r"^\$ (head .*?)\s+# ", page, re.MULTILINE)
    subprocess.run(["sh", "-c", key], cwd=tmp_path, check=True)
    with net.node.inside():  # what a slow overlay does to what comes to a pod
        run("tc", "qdisc", "add", "dev", "veth-pods", "root", "tbf", "rate", "16mbit",
            "burst", "16k", "latency", "50ms")  # fmt: skip

    def rate(of: Namespace, address: str) -> float:
        """Return the lower rate of both sides; again where they did not meet in time (4)."""
        for _ in range(5):
            sides: list[subprocess.Popen[str]] = []
            for space, command in ((net.outside, listens), (of, connects)):
                said = [sys.executable, "-m", "fairlead"]
                said += command.replace("10.0.0.7", address).split()
                with space.inside():
                    sides.append(
                        subprocess.Popen(said, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
                    )
            lines = [each.communicate(timeout=PATIENCE_SECONDS)[1] for each in sides]
            if (codes := {each.returncode for each in sides}) == {0}:
                return min(map(rate_of, lines))
            assert codes <= {0, 4}, lines
        pytest.fail(f"nothing was measured: {lines}")

    hosts, pods = rate(net.node, "10.9.0.2"), rate(net.pods, INTERNAL4)
    assert 0 < pods < hosts
