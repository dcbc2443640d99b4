"""Tuning on the real kernel: neighbour tables of both families that overflow, and do not; settings
of a network namespace.

The limits of the neighbour tables are the kernel's, not a namespace's: they are small for about a
second, and put back. Everything else is in namespaces that end with the test.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.patience import PATIENCE_SECONDS
from tests.unit.node.host_tree import changed

from fairlead.api.cluster.node_report import TuningMode
from fairlead.model.health.faults import Fault, Moment, Severity
from fairlead.node.reports.watch import Kept, MachineWatch
from fairlead.node.running.host import Host
from fairlead.node.settings import AgentSettings
from fairlead.node.source import AnySource
from fairlead.node.sources import network, tuning

pytestmark = pytest.mark.e2e
#: The table of each family.
TABLES = {"ipv4": "arp_cache", "ipv6": "ndisc_cache"}
#: Room for more entries than there are, at each limit.
ROOM = (64, 128, 256)
PROFILE = """
name: neighbours
lines:
- {kind: Sysctl, name: net.FAMILY.neigh.default.gc_thresh1, atLeast: nodes + pods,
   reason: r, source: s}
- {kind: Sysctl, name: net.FAMILY.neigh.default.gc_thresh2, atLeast: 3 * (nodes + pods) // 2,
   reason: r, source: s}
- {kind: Sysctl, name: net.FAMILY.neigh.default.gc_thresh3, atLeast: 2 * (nodes + pods),
   reason: r, source: s}
"""
#: Sends to so many new peers as each line says; answers for how many of them there was no room.
PEERS = """
import errno, socket, subprocess, sys
is_old = sys.argv[1] == "ipv4"
own = ("10.77.0.1/16",) if is_old else ("fd77::1/64", "nodad")
for words in (("link", "add", "fl0", "type", "veth", "peer", "name", "fl1"),
              ("link", "set", "fl0", "up"), ("link", "set", "fl1", "up"),
              ("addr", "add", *own, "dev", "fl0")):
    subprocess.run(["ip", *words], check=True)
with open(f"/proc/sys/net/{sys.argv[1]}/neigh/fl0/retrans_time_ms", "w") as file:
    file.write("20000")  # peers that do not answer are asked again late, and stay in the table
sender = socket.socket(socket.AF_INET if is_old else socket.AF_INET6, socket.SOCK_DGRAM)
sender.setsockopt(socket.SOL_SOCKET, 32, 1 << 26)  # SO_SNDBUFFORCE: what waits for peers counts
if is_old:
    sender.setsockopt(socket.SOL_IP, 11, 1)  # IP_RECVERR: without it UDP keeps ENOBUFS to itself
full = errno.ENOBUFS if is_old else errno.EINVAL  # what ip6_finish_output2 makes of it
print("ready", flush=True)
number = 2
for line in sys.stdin:
    failed = 0
    for number in range(number, number + int(line)):
        try:
            peer = f"10.77.{number >> 8}.{number & 255}" if is_old else f"fd77::{number:x}"
            sender.sendto(b"", (peer, 9))
        except OSError as error:
            if error.errno != full:
                raise
            failed += 1
    number += 1
    print(failed, flush=True)
subprocess.run(["ip", "link", "del", "fl0"], check=True)  # what waits for peers holds the namespace
print("gone", flush=True)
"""


class Peers:
    """Peers in a network namespace of their own; entries of the kernel's one table."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def meet(self, count: int) -> int:
        """Send to so many new ones; return how many could not be reached for a full table."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@contextmanager
def peers(family: str) -> Generator[Peers]:
    command = ["unshare", "-n", sys.executable, "-c", PEERS, family]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                assert process.stderr is not None
                pytest.skip(f"no network namespace with a veth: {process.stderr.read()[:200]}")
            yield Peers(process)
            assert process.communicate(timeout=PATIENCE_SECONDS)[0] == "gone\n"
        finally:
            process.kill()


def needs(*programs: str) -> None:
    """Skip, with the reason, where the kernel's settings cannot be written."""
    missing = [each for each in programs if shutil.which(each) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    if os.geteuid() != 0:
        pytest.skip("needs root, to write settings of the kernel")
    tried = subprocess.run([*programs[:1], "-n", "true"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip(f"network namespaces are not permitted: {tried.stderr.decode()[:200]}")


@dataclass(frozen=True)
class Kernel:
    """The limits of a family's neighbours in this machine's kernel."""

    family: str
    host: Host = field(default_factory=Host)

    @property
    def paths(self) -> list[str]:
        """From the lowest limit to the highest."""
        stem = f"proc/sys/net/{self.family}/neigh/default/gc_thresh"
        return [f"{stem}{number}" for number in (1, 2, 3)]

    def limits(self) -> tuple[int, ...]:
        return tuple(self.host.number(path) for path in self.paths)

    def set_highest(self, value: int) -> None:
        self.host.path(self.paths[2]).write_text(str(value))


@pytest.fixture(params=TABLES)
def kernel(request: pytest.FixtureRequest) -> Iterator[Kernel]:
    """The kernel with limits that a few hundred peers fill.

    They are put back by a process that waits for the end of this one, however it ends.
    """
    needs("unshare", "ip")
    kernel = Kernel(request.param)
    try:
        before = kernel.limits()
        entries = network.read(kernel.host).tables[TABLES[kernel.family]].entries
        writes = [
            f"echo {value} >/{path}" for path, value in zip(kernel.paths, before, strict=True)
        ]
        script = "\n".join(["trap '' TERM INT", "read _", *writes])
        with subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, process_group=0):
            for path, room in zip(kernel.paths, ROOM, strict=True):
                kernel.host.path(path).write_text(str(entries + room))
            yield kernel
    except (OSError, KeyError) as error:
        pytest.skip(f"the limits of neighbours cannot be written: {error}")
    assert kernel.limits() == before


class Looks:
    """The agent's looks at the real kernel, with a clock that only `look` moves."""

    def __init__(self, source: AnySource | None, host: Host) -> None:
        assert source is not None
        self.source, self.at = source, Moment(1e9, 1000.0)
        self.watch = MachineWatch((source,), Kept(), boot_id=host.boot_id(), now=self.at)

    def look(self, after: float) -> dict[tuple[str, ...], Fault]:
        self.at = Moment(self.at.time + after, self.at.uptime_seconds + after)
        self.watch.read(self.source, self.source.read(), self.at)
        return {fault.identity.codes: fault for fault in self.watch.faults}


@pytest.mark.machine
def test_the_forecast_comes_before_connections_fail_and_the_overflow_is_seen(
    kernel: Kernel,
) -> None:
    looks = Looks(network.source(kernel.host, AgentSettings()), kernel.host)
    events: list[str] = []
    with peers(kernel.family) as met:
        while "failed" not in events:
            if ("forecast",) in looks.look(15):
                events.append("forecast")
            if met.meet(32):
                events.append("failed")
        faults = looks.look(15)
    assert "forecast" in events
    assert events.index("forecast") < events.index("failed")
    assert faults["full",].verdict.severity is Severity.CRITICAL
    assert faults["full",].identity.component == TABLES[kernel.family]


@pytest.mark.machine
def test_a_profile_makes_room_drift_is_found_and_without_it_the_old_values_are_back(
    kernel: Kernel, tmp_path: Path
) -> None:
    old = kernel.limits()
    (tmp_path / "profile.yaml").write_text(PROFILE.replace("FAMILY", kernel.family))
    settings = changed(
        AgentSettings(), "tuning", profile=str(tmp_path / "profile.yaml"), mode=TuningMode.APPLY,
        facts={"nodes": 1000, "pods": 9000}, record=str(tmp_path / "record.json"),
    )  # fmt: skip
    with peers(kernel.family) as met:
        assert met.meet(600) > 0, "the old values are too small"
    looks = Looks(tuning.source(kernel.host, settings), kernel.host)
    assert looks.look(0) == {}
    assert kernel.limits() == (10_000, 15_000, 20_000)
    with peers(kernel.family) as met:
        assert met.meet(600) == 0
    kernel.set_highest(512)
    faults = looks.look(settings.tuning.period_seconds)
    assert "gc_thresh3 is 512, not at least 20000" in faults[()].evidence
    assert kernel.limits() == (10_000, 15_000, 512), "a person's value is not overwritten"
    kernel.set_highest(20_000)
    bare = changed(settings, "tuning", profile="")
    source = tuning.source(kernel.host, bare)
    assert source is not None
    with pytest.raises(Exception, match="profile is not set"):
        source.read()
    assert kernel.limits() == old


def in_namespace(folder: Path, *script: str, mounts: bool = False) -> str:
    """Run lines of a shell in one network namespace; return what they say."""
    needs("unshare", "mount")
    (folder / "profile.yaml").write_text(
        "name: own\nlines:\n"
        "- {kind: Sysctl, name: net.core.somaxconn, atLeast: 9000, reason: r, source: s}\n"
        "- {kind: Sysctl, name: net.ipv4.ip_local_port_range, value: 10000 65535, reason: r,\n"
        "   source: s}\n"
        "- {kind: Sysctl, name: net.ipv4.neigh.default.gc_thresh3, value: 1, reason: r, source: s}"
    )
    tune = f"{sys.executable} -m fairlead agent tune --record {folder}/record.json"
    shell = "\n".join(script).replace("TUNE", tune).replace("OWN", f"{folder}/profile.yaml")
    flags = ["-n", "-m"] if mounts else ["-n"]
    done = subprocess.run(["unshare", *flags, "sh", "-c", shell], capture_output=True, text=True,
                          check=False)  # fmt: skip
    return done.stdout + done.stderr


SHOW = "cat /proc/sys/net/core/somaxconn /proc/sys/net/ipv4/ip_local_port_range"


def test_settings_of_a_namespace_are_set_and_taken_back(tmp_path: Path) -> None:
    said = in_namespace(tmp_path, SHOW, "TUNE --profile OWN --apply -q", "echo code $?", SHOW,
                        "TUNE --restore -q", SHOW)  # fmt: skip
    rows = [" ".join(row.split()) for row in said.splitlines()]
    before = rows[:2]
    assert before != ["9000", "10000 65535"]
    assert rows[-5:] == ["code 0", "9000", "10000 65535", *before]


def test_an_agent_that_is_killed_has_its_settings_taken_back_by_the_next_one(
    tmp_path: Path,
) -> None:
    (tmp_path / "apply.yaml").write_text(
        f"tuning: {{profile: {tmp_path}/profile.yaml, mode: apply, record: {tmp_path}/record.json}}"
    )
    (tmp_path / "none.yaml").write_text(f"tuning: {{record: {tmp_path}/record.json}}")
    run = (f"{sys.executable} -m fairlead agent run --state {tmp_path}/state.db "
           f"--report {tmp_path}/report.json --config {tmp_path}")  # fmt: skip
    value = "cat /proc/sys/net/core/somaxconn"
    said = in_namespace(
        tmp_path, f"before=$({value})", f"{run}/apply.yaml 2>/dev/null & agent=$!",
        f"until [ $({value}) = 9000 ]; do kill -0 $agent || exit; sleep 0.05; done",
        "kill -9 $agent; wait $agent", f"echo kept $({value})",
        f"{run}/none.yaml 2>/dev/null & agent=$!",
        f"until [ $({value}) = $before ]; do kill -0 $agent || exit; sleep 0.05; done",
        "kill $agent; wait $agent", f"echo back $({value}) $before",
    )  # fmt: skip
    *_, kept, back = [row for row in said.splitlines() if row.startswith(("kept", "back"))]
    assert kept == "kept 9000"
    word, value, before = back.split()
    assert (word, value) == ("back", before)


def test_what_a_namespace_has_not_and_what_is_read_only_is_told(tmp_path: Path) -> None:
    said = in_namespace(
        tmp_path, "mount --bind /proc/sys /proc/sys", "mount -o remount,bind,ro /proc/sys", SHOW,
        "TUNE --profile OWN --apply", "echo code $?", SHOW, mounts=True,
    )  # fmt: skip
    assert "9000 cannot be written: Read-only file system" in said
    assert "not there: the kernel lacks it, or this is not the host's network namespace" in said
    assert "code 1" in said
    first, *_, last = [row for row in said.splitlines() if row.isdecimal()]
    assert first == last
    assert "Traceback" not in said
