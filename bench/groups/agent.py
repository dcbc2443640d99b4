"""What the agent of a machine costs: its start, its memory, and a full look at a large machine.

The machine is built from files: two sockets, 256 processors, 300 PCI devices, 16 ports, 3,000
processes, and the settings of a profile. What a look costs beside reading the same files shows what
judging adds; the share of a core is what all sources cost in their periods.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from bench.harness import Report, cpu_slowness, slowness
from bench.processes import cpu_seconds
from fairlead.api.cluster.node_report import ReportedTuning, TuningMode
from fairlead.node.readers import report as fold
from fairlead.node.registry import sources
from fairlead.node.reports.watch import Kept, MachineWatch
from fairlead.node.running.host import Absent, Host
from fairlead.node.settings import AgentSettings, TuningSettings
from fairlead.node.source import AnySource
from fairlead.node.tuning import load_profile, roll_out
from fairlead.node.tuning.profile import LineKind
from fairlead.node.tuning.values import sysctl_path

PROFILE, POLICIES = "ml-node", 256
NODES = 7_500
DEVICES, PORTS, PROCESSES, LINES = 300, 16, 3_000, 50_000
STARTS, LOOKS, RUN_SECONDS = 5, 5, 30
_BOOT = "5e5a1d4e-0000-4000-8000-000000000001"


def run(report: Report) -> None:
    """Measure the process and its looks."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "host"
        build(root)
        _looks(report, root)
        _plan(report)
        _process(report, root, Path(name))


def _plan(report: Report) -> None:
    """Measure the plan of a profile for nodes that all differ in their memory."""
    profile = load_profile(PROFILE)
    values = {want.line.title: "4096" for want in profile.wants}
    facts = {"cores": 128, "gpus": 8, "nics": 4, "nodes": NODES, "pods": 200_000}
    nodes: dict[str, ReportedTuning | None] = {
        f"n{i}": ReportedTuning(
            "own", TuningMode.VERIFY, {**facts, "memory_bytes": (1 << 40) + i}, values
        )
        for i in range(NODES)
    }
    start = time.thread_time()
    found = roll_out(profile, {}, nodes)
    taken = time.thread_time() - start
    assert sum(len(each.nodes) for each in found.changes) > NODES
    report.add("agent.tune_plan_7500", taken / cpu_slowness(), "s CPU")


def write(path: Path, text: object) -> None:
    """Write a file of the machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def build(root: Path) -> None:
    """Make the files of the machine."""
    write(root / "proc/uptime", "90000.00 0.00")
    write(root / "proc/sys/kernel/random/boot_id", _BOOT)
    for number in range(DEVICES):
        place = root / f"sys/bus/pci/devices/0000:{number:02x}:00.0"
        for file, text in (("vendor", "0x10de"), ("device", "0x2330"), ("current_link_width", 16)):
            write(place / file, text)
        for kind in ("correctable", "nonfatal", "fatal"):
            write(place / f"aer_dev_{kind}", "Undefined 0\n" * 17 + f"TOTAL_ERR_{kind.upper()} 0")
    for number in range(PORTS):
        place = root / f"sys/class/infiniband/mlx5_{number}/ports/1"
        for file, text in (
            ("state", "4: ACTIVE"),
            ("rate", "400 Gb/sec"),
            ("link_layer", "InfiniBand"),
        ):
            write(place / file, text)
        for counter in ("symbol_error", "link_downed", "local_link_integrity_errors"):
            write(place / "counters" / counter, 0)
    for number in range(2):
        for counter in ("ce_count", "ue_count"):
            write(root / f"sys/devices/system/edac/mc/mc{number}" / counter, 0)
    stat = " ".join(["0"] * 40)
    for number in range(1, PROCESSES + 1):
        write(root / f"proc/{number}/stat", f"{number} (python) S {stat}")
    write(root / "proc/sys/fs/file-nr", "10\t0\t1000")
    write(root / "proc/loadavg", f"0.1 0.2 0.3 1/{PROCESSES} 7")
    for limit in ("pid_max", "threads-max"):
        write(root / "proc/sys/kernel" / limit, 4_194_304)
    write(root / "proc/meminfo", "MemTotal: 2113929216 kB\nMemAvailable: 1513929216 kB")
    write(root / "proc/1/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw")
    write(root / "proc/sys/net/netfilter/nf_conntrack_count", 1000)
    write(root / "proc/sys/net/netfilter/nf_conntrack_max", 262144)
    for want in load_profile(PROFILE).wants:
        if want.line.kind is LineKind.SYSCTL:
            write(root / sysctl_path(want.line.name), 10_000_000)
    write(root / "sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never")
    for number in range(POLICIES):
        policy = root / f"sys/devices/system/cpu/cpufreq/policy{number}"
        write(policy / "scaling_governor", "performance")
    write(root / "sys/devices/system/cpu/online", f"0-{POLICIES - 1}")
    write(root / "sys/class/net/eth0/device/vendor", "0x15b3")
    write(root / "dev/kmsg", "".join(_line(number) for number in range(LINES)).removesuffix("\n"))


def _line(number: int) -> str:
    text = (
        "NVRM: Xid (PCI:0000:3b:00): 95, pid=7" if number % 10 == 0 else f"eth0: message {number}"
    )
    return f"4,{number},{number * 1000},-;{text}\n"


#: Where the files of a source are; what is read of each is compared with reading them bare.
_FILES = {
    "pcie": ("sys/bus/pci", "**/*"),
    "infiniband": ("sys/class/infiniband", "**/*"),
    "tasks": ("proc", "[0-9]*/stat"),
    "tuning": ("", "proc/sys/[nfvk]*/**/*", "sys/devices/system/cpu/cpufreq/**/*"),
}


def _files(root: Path, name: str) -> list[Path]:
    place, *patterns = _FILES.get(name, ("",))
    found = [path for pattern in patterns for path in (root / place).glob(pattern)]
    return [path for path in found if path.is_file()]


def _bare(files: list[Path]) -> None:
    """Read files, and nothing else."""
    for path in files:
        path.read_bytes()


def _look(source: AnySource, watch: MachineWatch, host: Host) -> None:
    with suppress(Absent):  # this machine lacks what the source looks at
        fold(source, watch, (source.read(), None), host.now())


def _looks(report: Report, root: Path) -> None:
    host = Host(root)
    facts = {"nodes": 7_500, "pods": 200_000}
    tuned = TuningSettings(profile=PROFILE, facts=facts)
    chosen = sources(host, AgentSettings(tuning=tuned))
    watch = MachineWatch(chosen, Kept(), boot_id=_BOOT, now=host.now())
    by_name = {source.name: source for source in chosen}
    log, core = by_name["kernel-log"], 0.0
    start, slow = time.thread_time(), cpu_slowness()
    for _ in range(LINES // 20_000 + 1):
        _look(log, watch, host)
    report.add("agent.line", (time.thread_time() - start) / LINES / slow * 1e6, "us CPU")
    (fault,) = watch.faults
    assert fault.count == LINES // 10
    for source in chosen:
        ratios, costs, files = list[float](), list[float](), _files(root, source.name)
        for _ in range(LOOKS):
            start = time.thread_time()
            _look(source, watch, host)
            costs.append(time.thread_time() - start)
            if files:
                start = time.thread_time()
                _bare(files)
                ratios.append(costs[-1] / (time.thread_time() - start))
        core += statistics.median(costs) / source.period_seconds
        if source.name == "tuning":
            report.add("agent.look_tuning", statistics.median(costs) / slow * 1e3, "ms CPU")
        if ratios:
            report.add(f"agent.look_{source.name}_ratio", statistics.median(ratios), "x bare")
    report.add("agent.core_share", 100 * core / slow, "% of a core")


def _process(report: Report, root: Path, folder: Path) -> None:
    """Measure from the start of the process until it has judged 50,000 lines, and its peak."""
    times, peaks = list[float](), list[float]()
    for number in range(STARTS):
        written = folder / f"report-{number}.json"
        command = [sys.executable, "-m", "fairlead", "agent", "run", "--root", str(root)]
        files = ["--state", str(folder / f"state-{number}"), "--report", str(written)]
        slow, start = slowness(), time.perf_counter()
        with subprocess.Popen([*command, *files], stderr=subprocess.DEVNULL) as process:
            try:
                while not written.exists():
                    time.sleep(0.002)
                times.append((time.perf_counter() - start) / ((slow + slowness()) / 2))
                while not _has_judged(written):
                    time.sleep(0.05)
                status = Path(f"/proc/{process.pid}/status").read_text()
                (peak,) = [line.split()[1] for line in status.splitlines() if "VmHWM" in line]
                peaks.append(int(peak) / 1024)
                if number == 0:
                    begun = cpu_seconds(process.pid)
                    time.sleep(RUN_SECONDS)
                    share = 100 * (cpu_seconds(process.pid) - begun) / RUN_SECONDS
                    report.add("agent.process_share", share / cpu_slowness(), "% of a core")
            finally:
                process.kill()
    report.add("agent.start", statistics.median(times), "s")
    report.add("agent.memory", max(peaks), "MiB")


def _has_judged(written: Path) -> bool:
    faults = json.loads(written.read_text())["faults"]
    return any(fault["count"] == LINES // 10 for fault in faults)
