"""Whatever stands in the files of a machine, no source fails by a fault of ours."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from tests.unit.node.host_tree import HostTree, Looks
from tests.unit.node.test_sources import ROOT_LINE, device, edac, machine, mounts, neighbours, port
from tests.unit.node.test_sources import process as process_of

from fairlead.node.reports.state import open_state

LONG = b"9" * 5000
GARBAGE = [
    b"", b"\xff\xfe", LONG, b"9" * 20, b"-1", b"D", b"x (y) D", b"(", b"a b c d", b": :", b"\n\n",
    b"1 2 3/4 5/x", b"TOTAL_ERR " + LONG, b"entries table_fulls\nzz", b"entries table_fulls",
    b"MemTotal: " + LONG + b" kB", b" - ", b"1 2 8:1 / / rw - ext4 x", b"0x",
    b"4," + b"9" * 30 + b",1,-;NVRM: Xid (PCI:0): 79", b"4,1," + LONG + b",-;NVRM: Xid (x): 1",
    b"4,7,1,-;NVRM: Xid (PCI:): 999999, \x1b[2J", b"4,8,1,-;SXid (): 1",
]  # fmt: skip
KEPT = ("uptime", "boot_id")


def build(root: Path) -> HostTree:
    tree = HostTree(root)
    edac(tree, 0, 0)
    device(tree)
    port(tree)
    mounts(tree, ROOT_LINE)
    neighbours(tree, 10)
    machine(tree)
    process_of(tree, 10)
    tree.write("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 900 kB")
    tree.write("proc/sys/net/netfilter/nf_conntrack_count", 1)
    tree.write("proc/sys/net/netfilter/nf_conntrack_max", 9)
    return tree


@pytest.mark.parametrize("seed", range(40))
def test_garbage_in_any_file_is_no_fault_of_ours(tmp_path: Path, seed: int) -> None:
    rng, tree = Random(seed), build(tmp_path / "host")
    looks = Looks(tree)
    looks.look()
    files = sorted(p for p in tree.root.rglob("*") if p.is_file() and p.name not in KEPT)
    for _ in range(3):
        for path in rng.sample(files, 12):
            path.write_bytes(rng.choice([*GARBAGE, rng.randbytes(60)]))
        looks.look(30)
    state = open_state(tmp_path / "state")
    state.save(looks.watch.kept())
    assert state.load() == looks.watch.kept()
    state.close()
    looks.restart()
    looks.look(30)
