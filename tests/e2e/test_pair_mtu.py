"""Two sides of a pair with routers between them that have a smaller MTU, by a real kernel."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.e2e.net_world import INTERNAL4, Namespace, NetWorld, ip, net_world, run

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
