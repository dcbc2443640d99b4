"""Each source on the files of a machine: good, bad, borderline, recovered."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace as replaced
from tests.unit.node.host_tree import NEXT_BOOT, HostTree, Looks, changed, named

from fairlead.model.health.faults import Action, Ending, Severity
from fairlead.node.reports.counters import grown, per_hour
from fairlead.node.running.host import kernel_clock
from fairlead.node.settings import AgentSettings
from fairlead.node.source import SourceState
from fairlead.node.sources.disks import parse_mounts

SETTINGS = AgentSettings()
HOUR = 3600


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path)


# memory errors


def edac(tree: HostTree, corrected: int, uncorrected: int, name: str = "mc0") -> None:
    tree.write(f"sys/devices/system/edac/mc/{name}/ce_count", corrected)
    tree.write(f"sys/devices/system/edac/mc/{name}/ue_count", uncorrected)


def test_an_uncorrected_memory_error_is_a_fault_until_the_counter_begins_again(
    tree: HostTree,
) -> None:
    looks = Looks(tree, "memory-ecc")
    edac(tree, 5, 0)
    assert looks.look() == ()
    edac(tree, 5, 2)
    (fault,) = looks.look(10)
    assert (fault.identity.component, fault.verdict.action) == ("mc0", Action.REBOOT)
    assert len(looks.looks(100, HOUR)) == 1
    edac(tree, 0, 0)
    assert looks.look(10) == ()
    assert looks.ended[-1].ending is Ending.COUNTER_RESET


def test_corrected_memory_errors_are_judged_only_against_a_limit(tree: HostTree) -> None:
    edac(tree, 0, 0)
    looks = Looks(tree, "memory-ecc")
    looks.look()
    edac(tree, 10**6, 0)
    assert looks.looks(3, HOUR) == ()
    assert [each.check for each in looks.watch.skipped()] == ["memory-ecc-rate"]
    edac(tree, 0, 0)
    looks = Looks(tree, "memory-ecc", settings=changed(SETTINGS, "ecc", corrected_per_hour_max=100))
    looks.look()
    edac(tree, 100, 0)
    assert looks.look(HOUR) == (), "as many as accepted"
    edac(tree, 201, 0)
    assert named(looks.look(HOUR)) == [("memory-ecc-rate", "mc0", ("corrected",))]


def test_one_controller_that_cannot_be_read_leaves_the_others_judged(tree: HostTree) -> None:
    edac(tree, 0, 0)
    edac(tree, 0, 1, "mc1")
    tree.write("sys/devices/system/edac/mc/mc0/ce_count", "what")
    looks = Looks(tree, "memory-ecc")
    assert [fault.identity.component for fault in looks.look()] == ["mc1"]
    assert looks.health().state is SourceState.OK
    assert looks.health().unreadable[0].startswith("mc0: ")
    edac(tree, 0, 1)
    assert len(looks.look(10)) == 2
    tree.write("sys/devices/system/edac/mc/mc0/ce_count", "what")
    tree.write("sys/devices/system/edac/mc/mc1/ce_count", "what")
    assert len(looks.look(10)) == 2, "what is not seen is not over"
    assert looks.health().state is SourceState.BLIND


# PCI devices


def device(tree: HostTree, name: str = "0000:3b:00.0", *, width: int = 16, fatal: int = 0,
           correctable: int = 0) -> None:  # fmt: skip
    place = f"sys/bus/pci/devices/{name}"
    tree.write(f"{place}/vendor", "0x10de")
    tree.write(f"{place}/device", "0x2330")
    tree.write(f"{place}/current_link_width", width)
    tree.write(f"{place}/aer_dev_fatal", f"Undefined 0\nDLP 0\nTOTAL_ERR_FATAL {fatal}")
    tree.write(f"{place}/aer_dev_correctable", f"RxErr 0\nTOTAL_ERR_COR {correctable}")


def test_a_fatal_pcie_error_is_a_fault_until_the_next_boot(tree: HostTree) -> None:
    device(tree)
    looks = Looks(tree, "pcie")
    assert looks.look() == ()
    device(tree, fatal=1)
    assert named(looks.look(30)) == [("pcie-fatal", "0000:3b:00.0", ("fatal",))]
    device(tree)
    tree.boots(NEXT_BOOT)
    looks.restart()
    assert looks.look() == ()
    assert [each.ending for each in looks.ended] == [Ending.BOOT]


def test_a_link_is_too_narrow_only_where_its_width_is_set(tree: HostTree) -> None:
    device(tree, width=8)
    assert Looks(tree, "pcie").look() == ()
    looks = Looks(tree, "pcie", settings=changed(SETTINGS, "pcie", link_widths={"10de:2330": 16}))
    (fault,) = looks.look()
    assert fault.evidence == "10de:2330 has 8 of 16 lanes"
    device(tree, width=16)
    looks.look(30)
    assert looks.look(60) == ()


def test_a_device_without_error_reporting_or_link_is_no_fault(tree: HostTree) -> None:
    tree.write("sys/bus/pci/devices/0000:00:00.0/vendor", "0x8086")
    tree.write("sys/bus/pci/devices/0000:00:00.0/device", "0x1237")
    looks = Looks(tree, "pcie")
    assert looks.look() == ()
    assert looks.health().state is SourceState.OK


def test_corrected_pcie_errors_by_rate(tree: HostTree) -> None:
    settings = changed(SETTINGS, "pcie", corrected_per_hour_max=60)
    device(tree)
    looks = Looks(tree, "pcie", settings=settings)
    looks.look()
    device(tree, correctable=1000)
    assert looks.look(60) == (), "no rate before a whole window"
    assert named(looks.looks(60, 60)) == [("pcie-rate", "0000:3b:00.0", ("correctable",))]


# ports of the fabric


def port(tree: HostTree, name: str = "mlx5_0", *, state: str = "4: ACTIVE", rate: int = 400,
         layer: str = "InfiniBand", **counters: int) -> None:  # fmt: skip
    place = f"sys/class/infiniband/{name}/ports/1"
    tree.write(f"{place}/state", state)
    tree.write(f"{place}/rate", f"{rate} Gb/sec (4X NDR)")
    tree.write(f"{place}/link_layer", layer)
    for counter in ("symbol_error", "link_downed", "local_link_integrity_errors"):
        tree.write(f"{place}/counters/{counter}", counters.get(counter, 0))


def fabric(**fields: object) -> AgentSettings:
    return changed(SETTINGS, "infiniband", **fields)


def test_a_counter_that_falls_gives_no_rate_and_ends_the_latched_fault(tree: HostTree) -> None:
    for restarts in (False, True):
        looks = Looks(tree, "infiniband")
        port(tree, local_link_integrity_errors=999_990)
        assert looks.look() == (), "what was there before is no growth"
        port(tree, local_link_integrity_errors=1_000_000)
        (fault,) = looks.look(5)
        assert fault.evidence == "local_link_integrity_errors grew by 10"
        assert len(looks.looks(50, HOUR)) == 1, "it is latched"
        if restarts:
            looks.restart()
        port(tree, local_link_integrity_errors=50)
        assert looks.look(5) == ()
        assert looks.ended[-1].ending is Ending.COUNTER_RESET


def test_a_new_boot_ends_all_latched_faults(tree: HostTree) -> None:
    looks = Looks(tree, "infiniband")
    port(tree)
    looks.look()
    port(tree, local_link_integrity_errors=7)
    assert looks.look(5)
    tree.boots(NEXT_BOOT)
    port(tree, local_link_integrity_errors=9)
    looks.restart()
    assert looks.look() == (), "neither the fault nor the old value is left"


def test_five_symbol_errors_in_the_first_minute_are_no_rate_of_120_per_hour(tree: HostTree) -> None:
    looks = Looks(tree, "infiniband")
    port(tree)
    looks.look()
    port(tree, symbol_error=5)
    assert looks.looks(11, 5) == ()
    assert looks.looks(720, 5) == (), "nor an hour later"
    port(tree, symbol_error=126)
    assert named(looks.looks(360, 5)) == [("fabric-errors", "mlx5_0/1", ("symbol_error",))]


def test_a_port_that_flapped_is_good_after_stable_time_and_one_that_flaps_is_not(
    tree: HostTree,
) -> None:
    looks = Looks(tree, "infiniband", settings=fabric(stable_seconds=600))
    port(tree)
    looks.look()
    for flaps in (1, 2):
        port(tree, link_downed=flaps)
        assert looks.look(60) == (), "no more than accepted"
    port(tree, link_downed=3)
    (fault,) = looks.look(60)
    for flaps in range(4, 24):
        port(tree, link_downed=flaps)
        looks.look(300)
        assert [each.first_seen for each in looks.look(290)] == [fault.first_seen], "an old stamp"
    looks.look(5)
    assert looks.looks(10, 60) == ()
    assert looks.ended[-1].ending is Ending.STABLE_TIME
    assert looks.ended[-1].fault.count == 20, "the first two followed each other"


def test_the_link_of_a_management_nic_is_noted_only(tree: HostTree) -> None:
    looks = Looks(tree, "infiniband")
    port(tree, layer="Ethernet")
    looks.look()
    port(tree, layer="Ethernet", link_downed=9)
    (fault,) = looks.look(5)
    assert (fault.is_sick, fault.verdict.action) == (False, Action.NONE)
    port(tree, layer="Ethernet")
    named_fabric = Looks(tree, "infiniband", settings=fabric(ethernet_devices=("mlx5_*",)))
    named_fabric.look()
    port(tree, layer="Ethernet", link_downed=9)
    assert named_fabric.look(5)[0].is_sick


def test_the_fault_of_a_nic_that_has_another_name_after_a_reboot_is_closed(tree: HostTree) -> None:
    looks = Looks(tree, "infiniband")
    port(tree)
    looks.look()
    port(tree, link_downed=5)
    assert looks.look(5)
    (tree.root / "sys/class/infiniband/mlx5_0").rename(tree.root / "sys/class/infiniband/ibp1s0")
    tree.boots(NEXT_BOOT)
    looks.restart()
    assert looks.look() == ()
    assert looks.ended[-1].ending is Ending.COMPONENT_GONE


def test_ports_that_are_down_are_faults_only_where_so_many_are_expected(tree: HostTree) -> None:
    for number in range(18):
        port(tree, f"mlx5_{number}", state="1: DOWN" if number >= 8 else "4: ACTIVE")
    assert Looks(tree, "infiniband").looks(100, 5) == ()
    assert Looks(tree, "infiniband", settings=fabric(ports=8)).looks(100, 5) == ()
    looks = Looks(tree, "infiniband", settings=fabric(ports=9))
    assert looks.look() == ()
    assert looks.look(239) == ()
    assert len(looks.look(1)) == 10
    port(tree, "mlx5_8")
    looks.look(5)
    assert looks.look(10_800) == ()


def test_ports_that_are_missing_or_slow(tree: HostTree) -> None:
    port(tree, rate=200)
    looks = Looks(tree, "infiniband", settings=fabric(ports=2, rate_gbps=400))
    assert named(looks.look()) == [
        ("fabric-port", "mlx5_0/1", ("rate",)), ("fabric-ports", "all", ()),
    ]  # fmt: skip


def test_a_device_that_cannot_be_read_at_the_start_leaves_the_others_watched(
    tree: HostTree,
) -> None:
    port(tree)
    port(tree, "mlx5_1")
    tree.write("sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error", "n/a")
    looks = Looks(tree, "infiniband")
    looks.look()
    port(tree, "mlx5_1", local_link_integrity_errors=1)
    assert [fault.identity.component for fault in looks.look(5)] == ["mlx5_1/1"]
    assert looks.health().unreadable[0].startswith("mlx5_0/1: ")


# file systems

ROOT_LINE = "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw,errors=remount-ro"
DATA_LINE = "30 22 259:1 / /data\\040set rw - xfs /dev/nvme0n1 rw"
RO_LINE = "31 22 8:2 / /images ro - ext4 /dev/sdb1 ro"
NFS_LINE = "32 22 0:50 / /home rw - nfs4 server:/home rw"


def mounts(tree: HostTree, *lines: str) -> None:
    tree.write("proc/1/mountinfo", "\n".join(lines))
    for place in ("", "/data set", "/images"):
        tree.sizes.setdefault(f"{tree.root}{place}", (1000, 500, 1000, 900))


def test_a_file_system_that_became_read_only_is_a_fault_and_one_that_was_meant_to_be_is_none(
    tree: HostTree,
) -> None:
    mounts(tree, ROOT_LINE, DATA_LINE, RO_LINE, NFS_LINE)
    looks = Looks(tree, "disks")
    assert looks.look() == ()
    mounts(tree, ROOT_LINE, DATA_LINE.replace("nvme0n1 rw", "nvme0n1 ro"), RO_LINE, NFS_LINE)
    assert named(looks.look(10)) == [("disk-read-only", "/data set", ())]
    assert named(Looks(tree, "disks").look()) == [("disk-read-only", "/data set", ())], "one look"
    mounts(tree, ROOT_LINE, DATA_LINE, RO_LINE)
    looks.look(10)
    assert looks.look(60) == ()


def test_a_remount_of_both_is_seen_by_who_saw_it_writable(tree: HostTree) -> None:
    mounts(tree, ROOT_LINE)
    looks = Looks(tree, "disks")
    looks.look()
    mounts(tree, ROOT_LINE.replace("rw", "ro"))
    looks.restart()
    assert named(looks.look(10)) == [("disk-read-only", "/", ())]


@pytest.mark.parametrize(
    ("free", "severity"),
    [(101, None), (100, Severity.WARNING), (51, Severity.WARNING), (50, Severity.CRITICAL)],
)
def test_a_disk_is_full_by_space(tree: HostTree, free: int, severity: Severity | None) -> None:
    tree.sizes[str(tree.root)] = (1000, free, 1000, 900)
    mounts(tree, ROOT_LINE)
    looks = Looks(tree, "disks")
    assert [each.verdict.severity for each in looks.look()] == ([severity] if severity else [])
    tree.sizes[str(tree.root)] = (1000, 900, 1000, 900)
    looks.look(10)
    assert looks.look(60) == ()


def test_a_disk_is_full_by_inodes_and_none_counts_where_there_are_none(tree: HostTree) -> None:
    tree.sizes[str(tree.root)] = (1000, 900, 1000, 10)
    tree.sizes[f"{tree.root}/images"] = (1000, 900, 0, 0)
    mounts(tree, ROOT_LINE, RO_LINE)
    assert named(Looks(tree, "disks").look()) == [("disk-full", "/", ("inodes",))]


def test_how_full_a_file_system_is_is_known_where_a_directory_of_it_is_mounted(
    tree: HostTree,
) -> None:
    tree.sizes[str(tree.root)] = tree.sizes[f"{tree.root}/data set"] = (1000, 0, 1000, 900)
    mounts(tree, ROOT_LINE, DATA_LINE.replace("nvme0n1 rw", "nvme0n1 ro"))
    tree.not_mounted.add(r"/data\040set")
    found = named(Looks(tree, "disks").look())
    assert found == [("disk-full", "/", ("space",)), ("disk-read-only", "/data set", ())]
    tree.not_mounted.clear()
    assert ("disk-full", "/data set", ("space",)) in named(Looks(tree, "disks").look())


def test_mounts_that_are_not_on_disks_and_lines_that_are_none_are_left_out() -> None:
    text = "\n".join(
        [NFS_LINE, "x", "1 2 3 - ext4", ROOT_LINE, ROOT_LINE.replace(" / / ", " / /x ")]
    )
    assert [mount.place for mount in parse_mounts(text, ("ext4",))] == ["/"]


# memory, tables, processes, clock


def test_memory_is_judged_against_what_is_set(tree: HostTree) -> None:
    tree.write("proc/meminfo", "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable: 49 kB")
    looks = Looks(tree, "memory")
    assert looks.look() == ()
    assert looks.health().state is SourceState.SKIPPED
    settings = changed(SETTINGS, "memory", total_bytes_min=1_024_001, available_percent_min=5)
    assert {check for check, _, _ in named(Looks(tree, "memory", settings=settings).look())} == {
        "memory-size", "memory-available",
    }  # fmt: skip
    settings = changed(SETTINGS, "memory", total_bytes_min=1_024_000, available_percent_min=4)
    assert Looks(tree, "memory", settings=settings).look() == ()


def test_memory_that_is_not_told_is_blind(tree: HostTree) -> None:
    tree.write("proc/meminfo", "what")
    looks = Looks(tree, "memory")
    looks.look()
    assert looks.health().state is SourceState.BLIND


def neighbours(tree: HostTree, entries: int, fulls: tuple[int, int] = (0, 0),
               name: str = "arp_cache") -> None:  # fmt: skip
    rows = "\n".join(f"{entries:08x}  00000001 {full:08x}" for full in fulls)
    tree.write(f"proc/net/stat/{name}", f"entries  allocs table_fulls\n{rows}")
    family = "ipv4" if name == "arp_cache" else "ipv6"
    tree.write(f"proc/sys/net/{family}/neigh/default/gc_thresh3", 1024)


@pytest.mark.parametrize(
    ("entries", "severity"),
    [(716, None), (717, Severity.WARNING), (921, Severity.WARNING), (922, Severity.CRITICAL)],
)
@pytest.mark.parametrize("table", ["arp_cache", "ndisc_cache"])
def test_a_neighbour_table_fills_up(
    tree: HostTree, entries: int, severity: Severity | None, table: str
) -> None:
    neighbours(tree, entries, name=table)
    looks = Looks(tree, "network-tables")
    assert [each.verdict.severity for each in looks.look()] == ([severity] if severity else [])
    neighbours(tree, 10, name=table)
    looks.look(5)
    assert looks.look(60) == ()


def test_a_neighbour_table_that_was_full_between_two_looks_is_a_fault(tree: HostTree) -> None:
    neighbours(tree, 10, (3, 0))
    looks = Looks(tree, "network-tables")
    assert looks.look() == (), "what happened before is not known to go on"
    neighbours(tree, 10, (3, 2))
    (fault,) = looks.look(5)
    assert fault.evidence.startswith("full 2 times since the last look")
    looks.look(5)
    assert looks.look(60) == ()


def test_connections_fill_up(tree: HostTree) -> None:
    tree.write("proc/sys/net/netfilter/nf_conntrack_count", 899)
    tree.write("proc/sys/net/netfilter/nf_conntrack_max", 1000)
    looks = Looks(tree, "network-tables")
    assert looks.look() == ()
    tree.write("proc/sys/net/netfilter/nf_conntrack_count", 900)
    assert named(looks.look(5)) == [("conntrack", "conntrack", ("fill",))]


def segments(tree: HostTree, again: int, sent: int) -> None:
    tree.write("proc/net/snmp", "Ip: Forwarding\nIp: 1\nTcp: ActiveOpens OutSegs RetransSegs\n"
                                f"Tcp: 7 {sent} {again}\nUdp: InDatagrams\nUdp: 5")  # fmt: skip


def nic(tree: HostTree, lost: int, carried: int, name: str = "eth0") -> None:
    place = f"sys/class/net/{name}"
    tree.write(f"{place}/device/vendor", "0x15b3")
    counters = {"rx_errors": lost, "tx_errors": 0, "rx_missed_errors": 0, "tx_dropped": 0,
                "rx_packets": carried, "tx_packets": 0}  # fmt: skip
    for counter, value in counters.items():
        tree.write(f"{place}/statistics/{counter}", value)


def test_segments_that_are_sent_again_are_a_share_of_the_hour(tree: HostTree) -> None:
    segments(tree, 900_000, 1_000_000)
    looks = Looks(tree, "packet-loss")
    assert looks.look() == (), "what was lost before is not known to go on"
    segments(tree, 900_500, 1_009_500)
    assert looks.looks(60, 60) == (), "500 of 10,000 are as many as are accepted"
    segments(tree, 901_700, 1_020_000)
    (fault,) = looks.looks(60, 60)
    assert named((fault,)) == [("tcp-retransmits", "tcp", ("share",))]
    assert (fault.verdict.severity, fault.verdict.action) == (Severity.WARNING, Action.WATCH)
    assert fault.evidence == (
        "1,200 of 11,700 segments sent again within an hour (10.3 %); accepted: 5 %"
    )
    segments(tree, 901_700, 1_050_000)
    assert looks.looks(120, 60) == (), "an hour later it is over"


def test_a_network_device_that_loses_packets(tree: HostTree) -> None:
    nic(tree, 0, 0)
    nic(tree, 0, 0, "eth1")
    tree.write("sys/class/net/veth1/statistics/rx_errors", 10**6)
    looks = Looks(tree, "packet-loss")
    assert looks.look() == ()
    nic(tree, 200, 9_700)
    nic(tree, 200, 9_900, "eth1")
    assert named(looks.looks(60, 60)) == [("network-errors", "eth1", ("share",))], (
        "a share of less than 10,000 packets says nothing"
    )
    nic(tree, 0, 20)
    looks.look(60)
    nic(tree, 1, 30_000)
    assert looks.looks(120, 60) == (), "counters began again: 1 of 29,981"


def test_lost_packets_are_judged_only_where_a_limit_is_set(tree: HostTree) -> None:
    segments(tree, 0, 0)
    settings = changed(SETTINGS, "network", retransmit_percent_max=0, error_percent_max=0)
    looks = Looks(tree, "packet-loss", settings=settings)
    looks.look()
    segments(tree, 50_000, 50_000)
    assert looks.looks(61, 60) == ()
    assert looks.health().state is SourceState.SKIPPED


@pytest.mark.parametrize("text", ["", "Tcp: OutSegs", "Tcp: OutSegs\nTcp: x", "Tcp: a\nTcp: 1"])
def test_statistics_without_segments_of_tcp_are_blind(tree: HostTree, text: str) -> None:
    tree.write("proc/net/snmp", text)
    looks = Looks(tree, "packet-loss")
    looks.look()
    assert looks.health().state is SourceState.BLIND


def connections(tree: HostTree, count: int) -> None:
    tree.write("proc/sys/net/netfilter/nf_conntrack_count", count)
    tree.write("proc/sys/net/netfilter/nf_conntrack_max", 1000)


def grows(tree: HostTree, looks: Looks, counts: list[int], every: float) -> tuple[str, ...]:
    """Return the evidence of forecasts after looks at these counts."""
    for count in counts:
        connections(tree, count)
        looks.look(every)
    seen = [each for each in looks.watch.faults if each.quiet_since is None]
    return tuple(each.evidence for each in seen if each.identity.codes == ("forecast",))


def test_a_table_that_grows_steadily_is_a_fault_before_it_is_full(tree: HostTree) -> None:
    looks = Looks(tree, "network-tables")
    assert grows(tree, looks, [420, 450, 480], 15) == ()
    (text,) = grows(tree, looks, [510], 15)
    assert text == ("full in 245 s at the slowest growth of the last 45 s, 2.0 a second; "
                    "510 of 1,000 entries (51 %)")  # fmt: skip
    assert grows(tree, looks, [520, 521, 521], 15) == (), "it grows no more"
    assert looks.look(60) == ()


@pytest.mark.parametrize(
    "counts",
    [[100, 100, 100, 600], [100, 600, 600, 600, 600], [600, 650, 640, 690], [100, 200, 300, 400],
     [500, 501, 502, 503]],
    ids=["a jump", "after a jump", "up and down", "below half", "in two hours"],
)  # fmt: skip
def test_no_forecast_is_made_of_a_jump_or_far_from_the_limit(
    tree: HostTree, counts: list[int]
) -> None:
    assert grows(tree, Looks(tree, "network-tables"), counts, 15) == ()


def test_frequent_looks_make_no_trend_of_seconds(tree: HostTree) -> None:
    looks = Looks(tree, "network-tables")
    assert grows(tree, looks, list(range(500, 600, 10)), 1) == ()
    assert len(looks.watch.kept().memories["network-tables"].document) < 300
    looks = Looks(tree, "network-tables", settings=replaced(SETTINGS, forecast_seconds=0))
    assert grows(tree, looks, [500, 550, 600, 650], 15) == ()


def test_files_and_tasks_that_grow_are_faults_before_they_are_used_up(tree: HostTree) -> None:
    looks = Looks(tree, "tasks")
    for count in (500, 520, 540, 560):
        machine(tree, files=count, tasks=count)
        looks.look(30)
    assert named(looks.watch.faults) == [("open-files", "machine", ("forecast",)),
                                         ("task-count", "machine", ("forecast",))]  # fmt: skip
    assert looks.watch.faults[0].evidence.startswith("full in 660 s")


def process(tree: HostTree, number: int, state: str = "D", *, name: str = "nvidia-smi",
            switches: int = 5, pending: int = 0) -> None:  # fmt: skip
    rest = " ".join(["0"] * 18 + ["777"])
    tree.write(f"proc/{number}/stat", f"{number} ({name}) {state} {rest} 0")
    tree.write(
        f"proc/{number}/status",
        f"SigPnd:\t{pending:016x}\nShdPnd:\t{0:016x}\nvoluntary_ctxt_switches:\t{switches}\n"
        "nonvoluntary_ctxt_switches:\t1",
    )


def machine(tree: HostTree, *, files: int = 10, tasks: int = 10) -> None:
    tree.write("proc/sys/fs/file-nr", f"{files}\t0\t1000")
    tree.write("proc/loadavg", f"0.1 0.2 0.3 1/{tasks} 7")
    tree.write("proc/sys/kernel/pid_max", 1000)
    tree.write("proc/sys/kernel/threads-max", 5000)


def test_a_process_hangs_that_sleeps_without_being_scheduled(tree: HostTree) -> None:
    machine(tree)
    process(tree, 10)
    process(tree, 11, name="busy) writer")
    process(tree, 12, "S")
    looks = Looks(tree, "tasks")
    assert looks.look() == ()
    for switches in (6, 7, 8, 9):
        process(tree, 11, name="busy) writer", switches=switches)
        looks.look(30)
    (fault,) = looks.watch.faults
    assert (fault.identity.component, fault.verdict.action) == ("nvidia-smi", Action.WATCH)
    process(tree, 10, pending=1 << 8)
    assert looks.look(30)[0].verdict.action is Action.REBOOT
    process(tree, 10, "S")
    process(tree, 11, "S")
    looks.look(30)
    assert looks.look(60) == ()


@pytest.mark.parametrize(("count", "is_fault"), [(799, False), (800, True)])
def test_files_and_tasks_are_nearly_used_up(tree: HostTree, *, count: int, is_fault: bool) -> None:
    machine(tree, files=count)
    assert len(Looks(tree, "tasks").look()) == is_fault
    machine(tree, tasks=count)
    assert len(Looks(tree, "tasks").look()) == is_fault


def test_counts_that_are_none_are_blind(tree: HostTree) -> None:
    machine(tree)
    tree.write("proc/loadavg", "what")
    looks = Looks(tree, "tasks")
    looks.look()
    assert looks.health().state is SourceState.BLIND


@pytest.mark.parametrize(
    ("offset", "severity"),
    [(0.099, None), (-0.1, Severity.WARNING), (0.999, Severity.WARNING), (1.0, Severity.CRITICAL)],
)
def test_a_clock_that_is_off(tree: HostTree, offset: float, severity: Severity | None) -> None:
    tree.offset = offset
    looks = Looks(tree, "clock")
    assert [each.verdict.severity for each in looks.look()] == ([severity] if severity else [])
    tree.offset = 0
    looks.look(60)
    assert looks.look(60) == ()


def test_a_clock_that_nothing_disciplines_is_a_fault_only_where_that_is_expected(
    tree: HostTree,
) -> None:
    tree.synchronized = False
    tree.offset = 9
    assert Looks(tree, "clock").look() == ()
    expected = changed(SETTINGS, "clock", synchronized=True)
    assert named(Looks(tree, "clock", settings=expected).look()) == [
        ("clock-synchronized", "clock", ())
    ]


def test_the_kernels_clock_can_be_read() -> None:
    assert abs(kernel_clock().offset_seconds) < 10


def test_an_offset_that_is_not_known_any_more_is_not_over(tree: HostTree) -> None:
    tree.offset = 2
    looks = Looks(tree, "clock")
    assert looks.look()
    tree.synchronized = False
    assert len(looks.looks(10, 60)) == 1
    assert [each.check for each in looks.watch.skipped()] == ["clock-synchronized", "clock-offset"]
    tree.synchronized, tree.offset = True, 0
    looks.look(60)
    assert looks.look(60) == ()


def test_a_check_whose_expectation_is_taken_back_leaves_no_fault(tree: HostTree) -> None:
    device(tree, width=8)
    settings = changed(SETTINGS, "pcie", link_widths={"10de:2330": 16})
    looks = Looks(tree, "pcie", settings=settings)
    assert looks.look()
    looks.settings = SETTINGS
    looks.restart()
    assert looks.look(30) == ()
    assert looks.ended[-1].ending is Ending.CHECK_REMOVED


def test_a_machine_that_has_lost_all_its_ports_by_a_reboot_has_no_faults_of_them(
    tree: HostTree,
) -> None:
    looks = Looks(tree, "infiniband")
    port(tree)
    looks.look()
    port(tree, link_downed=5)
    assert looks.look(5)
    (tree.root / "sys/class/infiniband").rename(tree.root / "sys/class/other")
    assert looks.look(5), "they vanished while it was up"
    tree.boots(NEXT_BOOT)
    looks.restart()
    assert looks.look() == ()
    assert looks.ended[-1].ending is Ending.COMPONENT_GONE


@pytest.mark.parametrize(
    "name",
    ["memory-ecc", "pcie", "infiniband", "disks", "network-tables", "packet-loss", "kernel-log"],
)
def test_what_a_machine_lacks_is_skipped_with_the_reason(tree: HostTree, name: str) -> None:
    tree.remove("dev/kmsg")
    looks = Looks(tree, name)
    assert looks.look() == ()
    assert looks.health().state is SourceState.SKIPPED
    assert looks.health().why.startswith("no")


# counters


def test_growth_is_that_of_a_whole_window() -> None:
    counter, rates = None, list[float | None]()
    for minute in range(180):
        growth = grown(counter, minute * 10, minute * 60.0, HOUR)
        counter = growth.counter
        rates.append(per_hour(growth))
        assert len(counter.samples) < 40
    assert rates[:60] == [None] * 60
    assert all(rate is not None and abs(rate - 600) < 1e-6 for rate in rates[60:])


def test_a_reset_begins_the_window_again() -> None:
    before = grown(grown(None, 0, 0, HOUR).counter, 1_000_000, HOUR, HOUR)
    assert per_hour(before) == 1_000_000
    after = grown(before.counter, 50, HOUR + 5, HOUR)
    assert (after.was_reset, after.since_last, per_hour(after)) == (True, None, None)
