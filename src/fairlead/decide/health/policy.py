"""The options of node health. Those before `confirm_seconds` are settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from fairlead.api.cluster.node_suites import MachineTest
from fairlead.decide.rails.ledger import Budgets
from fairlead.decide.rails.sight import SightLimits

#: In the place of a check: all of them.
EVERY_CHECK = "*"
#: Tries are remembered for so long.
TRIES_SECONDS = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class SuiteRule:
    """The suites of nodes that have all of these labels; a value may have * and ?. "": no word."""

    labels: Mapping[str, str]
    test_suite: str = ""
    idle_test_suite: str = ""

    def matches(self, labels: Mapping[str, str]) -> bool:
        """True for a node with these labels."""
        return all(
            key in labels and fnmatchcase(labels[key], wanted)
            for key, wanted in self.labels.items()
        )


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """The options; durations in seconds."""

    enabled: bool = False
    #: Checks whose faults are acted on; those of the others are in shadow.
    act_on: tuple[str, ...] = ()
    #: From the first sight of a fault to the deadline of the drain.
    critical_drain_seconds: int = 600
    degraded_drain_seconds: int = 86_400
    cosmetic_drain_seconds: int = 604_800
    #: So long before that deadline pods of others are evicted.
    eviction_seconds: int = 600
    reset_seconds: int = 600
    reboot_seconds: int = 1800
    replace_seconds: int = 86_400
    #: Without a fault, in the sight of a working source, before a node takes work again.
    validate_seconds: int = 60
    resets_max: int = 1
    reboots_max: int = 2
    #: Actions in 7 days after which a person is asked.
    tries_max: int = 5
    #: The suite that a node passes before it takes work, unless its pool names another; "": none.
    test_suite: str = ""
    test_image: str = ""
    #: Of the pods of tests: what starts the program.
    test_command: tuple[str, ...] = ("fairlead",)
    #: TEST.OPTION=VALUE, for every suite.
    test_options: tuple[str, ...] = ()
    #: The administrator's own tests, which the image of tests has.
    own_tests: tuple[MachineTest, ...] = ()
    #: From the creation of a test to its end, with all attempts.
    test_deadline_seconds: int = 1800
    #: Where the pods of tests are, and their priority class; "": none.
    test_namespace: str = "kube-system"
    test_priority_class: str = ""
    #: The suite that idle nodes run; "": none. And how much of the fleet is under test at a time.
    idle_test_suite: str = ""
    idle_test_share: float = 0.005
    #: Suites of nodes by their labels, such as the type of the instance or the product of the GPUs.
    #: The first rule that matches and names a suite counts.
    test_suites: tuple[SuiteRule, ...] = ()
    #: Idle for so long, and so long after its last test, a node is tested.
    idle_test_after_seconds: int = 1800
    idle_test_interval_seconds: int = 72_000
    #: Idle nodes are also tested in pairs; the labels of the network's levels, widest first.
    pair_tests: bool = False
    levels: tuple[str, ...] = ()
    #: From the creation of a test pod to its result, beyond the time of the suite.
    test_start_seconds: float = 600.0
    #: Tests that run at a time.
    tests_at_once_max: int = 256
    #: A fault is acted on if it is still there after so long.
    confirm_seconds: float = 2.0
    #: A node that is not empty so long after the deadline is gone on with.
    stuck_seconds: float = 600.0
    validate_seconds_max: float = 3600.0
    #: A report that was confirmed longer ago proves nothing.
    report_seconds_max: float = 1800.0
    #: Between two decisions while something is open, and while nothing is.
    loop_seconds: float = 5.0
    idle_loop_seconds: float = 30.0
    ledger_seconds: float = 300.0
    #: The report of a node that has been gone for so long is deleted.
    orphan_seconds: float = 300.0
    sight: SightLimits = field(default_factory=SightLimits)
    budgets: Budgets = field(default_factory=Budgets)

    def acts_on(self, check: str) -> bool:
        """True when faults of a check are acted on, and not only recorded."""
        return check in self.act_on or EVERY_CHECK in self.act_on

    def gate_suite(self, labels: Mapping[str, str], of_pool: str = "") -> str:
        """Return the suite that a node passes before it takes work; "": none.

        `of_pool`: what its pool names, which counts for all nodes of the pool.
        """
        rules = (each.test_suite for each in self.test_suites if each.matches(labels))
        return of_pool or next(filter(None, rules), self.test_suite)

    def idle_suite(self, labels: Mapping[str, str]) -> str:
        """Return the suite that a node runs while it is idle; "": none."""
        rules = (each.idle_test_suite for each in self.test_suites if each.matches(labels))
        return next(filter(None, rules), self.idle_test_suite)

    @property
    def tests_idle(self) -> bool:
        """True when some nodes are tested while they are idle."""
        return bool(self.idle_test_suite) or any(each.idle_test_suite for each in self.test_suites)


@dataclass(frozen=True, slots=True)
class SilencePolicy:
    """The options; durations in seconds. Those before `settle_seconds` are settings."""

    enabled: bool = True
    #: A lease of 40 s that was not renewed for so long is late; others in proportion.
    silent_seconds: int = 15
    #: Of the nodes, at most so many may be marked, at once and within an hour.
    share_max: float = 0.2
    #: Of kubelets. What a node says of its port is not used.
    kubelet_port: int = 10_250
    #: Nodes that have been silent for longer are counted neither as silent nor as nodes.
    settle_seconds: float = 600.0
    #: For so long a closed mark counts.
    window_seconds: float = 3600.0
    #: In an hour any cluster may have so many marks.
    window_least: int = 3
    #: An answer is good for so long; then a node that is silent is tried again.
    answer_seconds: float = 10.0
    #: Of a connection, which is tried so many times in a row.
    connect_seconds: float = 1.5
    connects: int = 2
    #: Other nodes to which a connection is tried beside: those that were heard last.
    controls: int = 3
    #: So long before its lease is late a node is tried, so that the answer is there by then.
    #: Renewals are at most 10.4 s apart.
    early_seconds: float = 2.0
    #: While a node is silent, it is looked at so often.
    look_seconds: float = 2.0
    #: Nodes that are tried at a time.
    batch_max: int = 64

    @property
    def doubt_seconds(self) -> float:
        """After how long without a renewal a machine is tried."""
        return self.silent_seconds - self.early_seconds
