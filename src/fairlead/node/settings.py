"""Settings of the agent: limits with their sources, and what a machine is expected to have.

An expectation that is not set is not judged: its check is skipped, and never guessed from what
happens to be there.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from fairlead.api.cluster.node_report import (
    EXPORTED_METRICS_MAX,
    EXPORTED_SECONDS_MAX,
    FACTS_MAX,
    METRIC_MAX,
    METRIC_PATTERN,
    TuningMode,
)
from fairlead.api.values.sections import DAY, HOUR, Section, about, within
from fairlead.model.health.faults import Action, Severity
from fairlead.node.running.probe_settings import (
    CloudSettings,
    MonitorSettings,
    NvmlSettings,
    ReachSettings,
    ServiceSettings,
    SmartSettings,
    StorageSettings,
)
from fairlead.node.shaping.mechanism import MechanismChoice

#: A program or a driver that hangs is given up after this.
READ_SECONDS_MAX = 45


class Architecture(Enum):
    """Generations of GPUs whose drivers use one number for different things."""

    VOLTA = "volta"
    TURING = "turing"
    AMPERE = "ampere"
    ADA = "ada"
    HOPPER = "hopper"
    BLACKWELL = "blackwell"


class CodeVerdict(Section, frozen=True):
    """What to think of a code, in place of what the table says."""

    severity: Annotated[Severity, about("Info, Warning or Critical.")]
    action: Annotated[Action, about("None, Watch, ResetGPU, Reboot, Replace or AskPerson.")]


Codes = Annotated[
    dict[str, CodeVerdict],
    Meta(max_length=256, description="Verdicts by code that replace those of the table."),
]


class GpuSettings(Section, frozen=True):
    """Lines of NVIDIA's drivers in the kernel log."""

    architecture: Annotated[
        Architecture | None,
        about("Generation of the GPUs; a code that another generation uses is then unlisted."),
    ] = None
    xid: Codes = {}
    sxid: Codes = {}
    stable_seconds: Annotated[
        int,
        within(60, 30 * DAY, "A code that asks for no action on the machine is over when it was "
                             "not seen for so long (a day: the window in which NVIDIA's and "
                             "others' rules count repeats)."),
    ] = DAY  # fmt: skip
    burst_seconds: Annotated[
        int,
        within(1, HOUR, "A code that follows another one on the same GPU within so long is its "
                        "consequence (NVSentinel, NVIDIA Fleet Intelligence: 3 minutes)."),
    ] = 180  # fmt: skip


class EccSettings(Section, frozen=True):
    """Errors of the machine's memory, by EDAC."""

    corrected_per_hour_max: Annotated[
        int,
        within(0, 10**9, "More corrected errors of a controller are a fault; 0: not judged."),
    ] = 0


class PcieSettings(Section, frozen=True):
    """Errors and links of PCI devices."""

    link_widths: Annotated[
        dict[str, Annotated[int, Meta(ge=1, le=32)]],
        Meta(max_length=64, description="Lanes by vendor and device, such as 10de:2330: 16."),
    ] = {}
    corrected_per_hour_max: Annotated[
        int, within(0, 10**9, "More corrected errors of a device are a fault; 0: not judged.")
    ] = 0
    nonfatal_per_hour_max: Annotated[
        int,
        within(0, 10**9, "More errors of a device that were not fatal are a fault; 0: not judged."),
    ] = 0


class InfinibandSettings(Section, frozen=True):
    """Ports of InfiniBand, and of RoCE where they are named."""

    ports: Annotated[
        int, within(0, 256, "So many ports of the fabric are active; 0: not judged.")
    ] = 0  # fmt: skip
    rate_gbps: Annotated[
        int,
        within(0, 10_000, "An active port of the fabric has at least this rate; 0: not judged."),
    ] = 0
    ethernet_devices: Annotated[
        tuple[str, ...],
        Meta(max_length=64, description="Patterns of devices with Ethernet links that belong to "
             "the fabric, such as mlx5_*; others, as for management, are only noted."),
    ] = ()  # fmt: skip
    down_seconds: Annotated[
        int, within(1, DAY, "A port that is down for so long is a fault (gpud: 4 minutes).")
    ] = 240
    flaps_max: Annotated[
        int, within(1, 1000, "A port that lost its link more often is a fault (healthagent: 3).")
    ] = 2
    flap_window_seconds: Annotated[
        int, within(60, 7 * DAY, "Time in which these are counted (healthagent: 3 hours).")
    ] = 10_800
    stable_seconds: Annotated[
        int, within(60, 7 * DAY, "A port that was good for so long is good.")
    ] = 10_800
    symbol_errors_per_hour_max: Annotated[
        int,
        within(0, 10**9, "More symbol errors are a fault (NVSentinel, from the bit error rate of "
                         "1e-12 of the InfiniBand specification)."),
    ] = 120  # fmt: skip


class DiskSettings(Section, frozen=True):
    """File systems on disks."""

    warning_percent: Annotated[
        int, within(1, 100, "Space or inodes in use for a warning (gcm, EKS: 80 to 90).")
    ] = 90
    critical_percent: Annotated[int, within(1, 100, "Space or inodes in use: critical.")] = 95
    types: Annotated[
        tuple[str, ...], Meta(max_length=32, description="Types that are looked at.")
    ] = ("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs")


class MemorySettings(Section, frozen=True):
    """The machine's memory."""

    total_bytes_min: Annotated[
        int,
        within(
            0, 1 << 60, "Memory that the machine has; less: a module is missing; 0: not judged."
        ),
    ] = 0
    available_percent_min: Annotated[
        int, within(0, 99, "Less memory that programs can get is a warning; 0: not judged.")
    ] = 0


class NetworkSettings(Section, frozen=True):
    """Tables of the kernel's network, and packets that are lost."""

    conntrack_percent_max: Annotated[
        int, within(1, 100, "Fill of the table of connections (node-problem-detector: 90).")
    ] = 90
    neighbour_warning_percent: Annotated[
        int, within(1, 100, "Fill of a neighbour table, of its gc_thresh3, for a warning.")
    ] = 70
    neighbour_critical_percent: Annotated[int, within(1, 100, "The same: critical.")] = 90
    retransmit_percent_max: Annotated[
        int, within(0, 100, "Segments of TCP that the machine sent again within an hour; more is a "
                            "warning; 0: not judged.")
    ] = 5  # fmt: skip
    error_percent_max: Annotated[
        int, within(0, 100, "Packets that a network device lost within an hour; more is a warning "
                            "(node_exporter's alerts: 1); 0: not judged.")
    ] = 1  # fmt: skip


class TaskSettings(Section, frozen=True):
    """Processes and what they hold."""

    hung_seconds: Annotated[
        int,
        within(10, DAY, "A process that sleeps uninterruptibly for so long, without ever being "
                        "scheduled, is hung (the kernel's hung_task_timeout_secs)."),
    ] = 120  # fmt: skip
    files_percent_max: Annotated[
        int, within(1, 100, "Open files, of fs.file-max (EKS and gpud warn there, too).")
    ] = 80
    tasks_percent_max: Annotated[
        int, within(1, 100, "Tasks, of the least of kernel.pid_max and kernel.threads-max.")
    ] = 80


class ClockSettings(Section, frozen=True):
    """The kernel's clock."""

    synchronized: Annotated[
        bool,
        about("Something disciplines the clock; the kernel then says so (EKS's agent asks the "
              "same). false: not judged."),
    ] = False  # fmt: skip
    warning_milliseconds: Annotated[int, within(1, 10**6, "Offset for a warning.")] = 100
    critical_milliseconds: Annotated[int, within(1, 10**6, "Offset: critical.")] = 1000


class ProgramSettings(Section, frozen=True):
    """An administrator's own checks: each executable of a directory."""

    directory: Annotated[
        str, Meta(max_length=512, description="Directory of the executables; empty: none.")
    ] = ""
    period_seconds: Annotated[int, within(1, DAY, "Time between two runs of each.")] = 60
    timeout_seconds: Annotated[
        int, within(1, HOUR, "A run that takes longer is killed, with all that it started.")
    ] = 30
    concurrency: Annotated[int, within(1, 64, "So many run at a time.")] = 3
    severity: Annotated[Severity, about("Of a fault, where the program says nothing.")] = (
        Severity.WARNING
    )


#: Facts of which the values of a profile are formulas, by name (node/tuning/facts.py).
Facts = dict[str, Annotated[int, Meta(ge=0, le=1 << 53)]]


class TuningSettings(Section, frozen=True):
    """Settings of the machine itself, as a profile says."""

    profile: Annotated[
        str,
        Meta(max_length=512, description="Name of a shipped profile, or path of a file; empty: "
             "none, and what an earlier one had set is restored."),
    ] = ""  # fmt: skip
    chosen_file: Annotated[
        str, Meta(max_length=512, description="File in which the collector leaves the profile that "
                  "the node's label says (--tuning); where it says none, it is `profile`."),
    ] = ""  # fmt: skip
    profiles: Annotated[
        str, Meta(max_length=512, description="Directory of NAME.yaml that a label may name.")
    ] = ""
    mode: Annotated[
        TuningMode, about("verify reports what differs; apply sets what takes effect at once.")
    ] = TuningMode.VERIFY
    facts: Annotated[
        Facts,
        Meta(max_length=FACTS_MAX, description="Facts that no machine has, such as nodes and pods "
             "of the cluster at its largest."),
    ] = {}  # fmt: skip
    record: Annotated[
        str, Meta(min_length=1, max_length=512, description="File of what was set, and of what "
                  "was there before."),
    ] = "/var/lib/fairlead/tuning.json"  # fmt: skip
    accepted_file: Annotated[
        str, Meta(max_length=512, description="File of what apply may set at once; others wait "
                  "until health has emptied the node, and go when it fails; empty: all are set."),
    ] = ""  # fmt: skip
    kubelet_directory: Annotated[
        str, Meta(max_length=512, description="Directory of the kubelet's drop-ins (--config-dir) "
                  "where apply keeps one of its own, written before a reboot that health asks for; "
                  "empty: none, and the kubelet's settings are only verified."),
    ] = ""  # fmt: skip
    containerd_directory: Annotated[
        str, Meta(max_length=512, description="Directory that containerd's imports name, where "
                  "apply keeps a drop-in of its own, written when health has emptied the node; "
                  "empty: none, and containerd's settings are only verified."),
    ] = ""  # fmt: skip
    containerd_restart_command: Annotated[
        tuple[str, ...],
        Meta(min_length=1, max_length=16, description="Command that starts containerd again."),
    ] = ("systemctl", "restart", "containerd")  # fmt: skip
    kernel_arguments: Annotated[
        bool, about("apply keeps arguments of the kernel in a drop-in of GRUB of its own, written "
                    "before a reboot that health asks for; false: they are only verified."),
    ] = False  # fmt: skip
    ecc_file: Annotated[
        str, Meta(max_length=512, description="File of the modes of ECC before apply set others, "
                  "at a reboot that health asks for; empty: they are only verified."),
    ] = ""  # fmt: skip
    period_seconds: Annotated[int, within(1, 600, "Time between two looks at all settings.")] = 300
    severity: Annotated[Severity, about("Of the fault that something differs.")] = Severity.INFO


class PrefixListSettings(Section, frozen=True):
    """Prefixes of an administrator's own, and the class that they are counted as."""

    traffic_class: Annotated[str, Meta(max_length=20, description="Class, such as peered.")] = (
        msgspec.field(name="class")
    )
    prefixes: Annotated[
        tuple[str, ...], Meta(max_length=20_000, description="Such as 192.0.2.0/24.")
    ]
    reason: Annotated[str, Meta(max_length=512, description="Where they are from.")] = ""


TokenFile: TypeAlias = Annotated[
    str, Meta(max_length=512, description="File of the token for the kubelet; empty: none.")
]
CaFile: TypeAlias = Annotated[
    str, Meta(max_length=512, description="File of the certificates that the kubelet's is checked "
              "with; empty: those of the machine."),
]  # fmt: skip


class TrafficSettings(Section, frozen=True):
    """What the pods of the node send where."""

    pods: Annotated[
        str, Meta(max_length=512, description="URL of the kubelet's pods, such as "
                  "https://127.0.0.1:10250/pods, or a file with its answer; empty: nothing is "
                  "counted, and nothing is changed."),
    ] = ""  # fmt: skip
    token_file: TokenFile = ""
    ca_file: CaFile = ""
    lists: Annotated[
        tuple[PrefixListSettings, ...],
        Meta(max_length=64, description="Prefixes with their class, besides those that are "
             "shipped; they win where the prefix is the same."),
    ] = ()  # fmt: skip
    coverage_percent_min: Annotated[
        int, within(0, 100, "Less of the bytes of pods' devices that is counted is a fault: "
                            "something passes netfilter by; 0: not judged."),
    ] = 50  # fmt: skip


class ShapingSettings(Section, frozen=True):
    """Limits of what pods send to the internet."""

    enabled: Annotated[
        bool, about("Limits are kept: those that pods ask for, and what is set here.")
    ] = False
    mechanism: Annotated[
        MechanismChoice,
        about("auto: classes of HTB on the default route's device, and where that cannot be, "
              "limits that drop. htb: classes also on a device with several transmit queues, "
              "which then share one lock. limit: limits that drop."),
    ] = MechanismChoice.AUTO  # fmt: skip
    pod_megabits_max: Annotated[
        int, within(0, 10_000_000, "What no pod may exceed, in 10**6 bits per second; 0: no such "
                                   "limit."),
    ] = 0  # fmt: skip
    rates: Annotated[
        str, Meta(max_length=512, description="File of what this node may send of teams' budgets; "
                  "empty: teams have none."),
    ] = ""  # fmt: skip
    bandwidth_annotations: Annotated[
        bool, about("Kubernetes' annotations egress-bandwidth and ingress-bandwidth limit all "
                    "traffic of their pod, where the network plugin does not keep them."),
    ] = False  # fmt: skip


Command = Annotated[str, Meta(min_length=1, max_length=512)]


class RepairSettings(Section, frozen=True):
    """Resets of GPUs and reboots that the controllers ask for."""

    resets: Annotated[bool, about("GPUs that no process holds are reset when it is asked for.")] = (
        False
    )
    reboots: Annotated[bool, about("The machine starts again when it is asked for.")] = False
    requests: Annotated[
        str, Meta(max_length=512, description="File in which the collector leaves what is asked "
                  "for (--requests); empty: none."),
    ] = ""  # fmt: skip
    pods: Annotated[
        str, Meta(max_length=512, description="URL of the kubelet's pods, such as "
                  "https://127.0.0.1:10250/pods, or a file with its answer: while a pod that is "
                  "of no DaemonSet has not ended, nothing is done."),
    ] = ""  # fmt: skip
    token_file: TokenFile = ""
    ca_file: CaFile = ""
    resets_per_day_max: Annotated[int, within(1, 24, "Resets within 24 hours, in all.")] = 4
    reboots_per_day_max: Annotated[int, within(1, 24, "Reboots within 24 hours, in all.")] = 2
    reset_command: Annotated[
        tuple[Command, ...],
        Meta(min_length=1, max_length=16, description="Command that resets GPUs; -i and their "
             "addresses follow."),
    ] = ("nvidia-smi", "--gpu-reset")  # fmt: skip
    gpu_daemons: Annotated[
        tuple[Command, ...],
        Meta(max_length=16, description="Names of processes that may hold a GPU, as the command "
             "ends them itself."),
    ] = ()  # fmt: skip
    reset_seconds: Annotated[
        int, within(1, HOUR, "A reset that takes longer is killed, and has failed.")
    ] = 120
    reboot_command: Annotated[
        tuple[Command, ...],
        Meta(min_length=1, max_length=16, description="Command that has the machine start again."),
    ] = ("systemctl", "reboot")  # fmt: skip
    reboot_seconds: Annotated[
        int, within(1, DAY, "A machine of the same boot so long after it has not started again.")
    ] = 900


class ExportedMetricSettings(Section, frozen=True):
    """A metric of an exporter that is summed up over the cluster."""

    name: Annotated[
        str, Meta(pattern=METRIC_PATTERN, max_length=METRIC_MAX, description="Name of its samples.")
    ]
    match: Annotated[
        dict[str, Annotated[str, Meta(max_length=128)]],
        Meta(max_length=8, description="Labels of the samples that count, all of them; * and ? "
             "stand for any characters of a value."),
    ] = {}  # fmt: skip
    counter: Annotated[
        bool, about("It counts: its increase per second is the value. So is that of any name that "
                    "ends in _total."),
    ] = False  # fmt: skip

    @property
    def counts(self) -> bool:
        """True when the rate is the value."""
        return self.counter or self.name.endswith("_total")


class ExporterSettings(Section, frozen=True):
    """An exporter on this machine."""

    url: Annotated[
        str, Meta(min_length=1, max_length=256, description="Page of its metrics on the loopback, "
                  "such as http://127.0.0.1:9400/metrics."),
    ]  # fmt: skip
    metrics: Annotated[
        tuple[ExportedMetricSettings, ...],
        Meta(max_length=EXPORTED_METRICS_MAX, description="Metrics that are read."),
    ]


class ExporterReadSettings(Section, frozen=True):
    """Metrics of others on this machine."""

    pages: Annotated[
        tuple[ExporterSettings, ...],
        Meta(max_length=4, description="Exporters whose metrics are summed up by team, job, pool "
             "and rack, 8 metrics in all; none: nothing is read."),
    ] = ()  # fmt: skip
    period_seconds: Annotated[int, within(5, 600, "Time between two reads.")] = 15
    window_seconds: Annotated[
        int, within(15, EXPORTED_SECONDS_MAX, "What was read in so long is reported at once, in "
                                              "one write of the collector."),
    ] = 60  # fmt: skip


class AgentSettings(Section, frozen=True):
    """Settings of the agent."""

    disabled: Annotated[
        tuple[str, ...], Meta(max_length=64, description="Sources that are switched off.")
    ] = ()
    read_seconds_max: Annotated[
        int, within(1, READ_SECONDS_MAX, "A read that takes longer hangs; others go on.")
    ] = 30
    stable_seconds: Annotated[
        int, within(0, DAY, "A state of the machine that was good for so long is good.")
    ] = 60
    report_seconds: Annotated[
        int, within(1, HOUR, "The report is written on each change, and so often.")
    ] = 10
    forecast_seconds: Annotated[
        int,
        within(0, DAY, "A table, open files or tasks that will be full within so long, as they "
                       "grow, are a warning; 0: not judged."),
    ] = 900  # fmt: skip
    gpu: GpuSettings = GpuSettings()
    nvml: NvmlSettings = NvmlSettings()
    ecc: EccSettings = EccSettings()
    pcie: PcieSettings = PcieSettings()
    infiniband: InfinibandSettings = InfinibandSettings()
    disk: DiskSettings = DiskSettings()
    memory: MemorySettings = MemorySettings()
    network: NetworkSettings = NetworkSettings()
    tasks: TaskSettings = TaskSettings()
    clock: ClockSettings = ClockSettings()
    storage: StorageSettings = StorageSettings()
    smart: SmartSettings = SmartSettings()
    services: ServiceSettings = ServiceSettings()
    reach: ReachSettings = ReachSettings()
    monitors: MonitorSettings = MonitorSettings()
    cloud: CloudSettings = CloudSettings()
    programs: ProgramSettings = ProgramSettings()
    tuning: TuningSettings = TuningSettings()
    traffic: TrafficSettings = TrafficSettings()
    shaping: ShapingSettings = ShapingSettings()
    repairs: RepairSettings = RepairSettings()
    exporters: ExporterReadSettings = ExporterReadSettings()
