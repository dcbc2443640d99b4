"""The options of node health. Those before `confirm_seconds` are settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from fairlead.api.cluster.node_suites import MachineTest
from fairlead.decide.health.conditions import CONDITION_CHECKS, ConditionRule, ConditionRules
from fairlead.decide.health.settings import HealthSettings, SilenceSettings
from fairlead.decide.removal.ledger import Budgets
from fairlead.decide.removal.trust import SightLimits

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


#: Settings say what the fields of their names are for, and have the defaults.
_SETTINGS = HealthSettings()


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """The options; durations in seconds."""

    enabled: bool = _SETTINGS.enabled
    act_on: tuple[str, ...] = _SETTINGS.act_on
    critical_drain_seconds: int = _SETTINGS.critical_drain_seconds
    degraded_drain_seconds: int = _SETTINGS.degraded_drain_seconds
    cosmetic_drain_seconds: int = _SETTINGS.cosmetic_drain_seconds
    eviction_seconds: int = _SETTINGS.eviction_seconds
    reset_seconds: int = _SETTINGS.reset_seconds
    reboot_seconds: int = _SETTINGS.reboot_seconds
    replace_seconds: int = _SETTINGS.replace_seconds
    validate_seconds: int = _SETTINGS.validate_seconds
    resets_max: int = _SETTINGS.resets_max
    reboots_max: int = _SETTINGS.reboots_max
    tries_max: int = _SETTINGS.tries_max
    test_suite: str = _SETTINGS.test_suite
    test_image: str = _SETTINGS.test_image
    #: Of the pods of tests: what starts the program.
    test_command: tuple[str, ...] = ("fairlead",)
    test_options: tuple[str, ...] = _SETTINGS.test_options
    #: The administrator's own tests, which the image of tests has.
    own_tests: tuple[MachineTest, ...] = ()
    test_deadline_seconds: int = _SETTINGS.test_deadline_seconds
    #: Where the pods of tests are, and their priority class; "": none.
    test_namespace: str = "kube-system"
    test_priority_class: str = ""
    idle_test_suite: str = _SETTINGS.idle_test_suite
    idle_test_share: float = _SETTINGS.idle_test_share
    #: Suites of nodes by their labels, such as the type of the instance or the product of the GPUs.
    #: The first rule that matches and names a suite counts.
    test_suites: tuple[SuiteRule, ...] = ()
    #: What conditions that others state of a Node mean, beside the rules that are shipped.
    conditions: tuple[ConditionRule, ...] = ()
    idle_test_after_seconds: int = _SETTINGS.idle_test_after_seconds
    idle_test_interval_seconds: int = _SETTINGS.idle_test_interval_seconds
    pair_tests: bool = _SETTINGS.pair_tests
    levels: tuple[str, ...] = ()
    #: From the creation of a test pod to its result, beyond the time of the suite.
    test_start_seconds: float = 600.0
    #: Tests that run at a time.
    tests_at_once_max: int = 256
    #: A fault is acted on if it is still there after so long: longer than agents take to find one
    #: that all machines have, each at its next look, so that it is seen to be one of all.
    confirm_seconds: float = 1.5
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

    def condition_rules(self) -> ConditionRules:
        """Return the rules of conditions, those of the cluster first."""
        return ConditionRules(self.conditions)

    def acts_on(self, check: str) -> bool:
        """True when faults of a check are acted on, and not only recorded."""
        is_own = not check.startswith(CONDITION_CHECKS)
        return check in self.act_on or (is_own and EVERY_CHECK in self.act_on)

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


#: Settings say what the fields of their names are for, and have the defaults.
_SILENCE = SilenceSettings()


@dataclass(frozen=True, slots=True)
class SilencePolicy:
    """The options; durations in seconds. Those before `settle_seconds` are settings."""

    enabled: bool = _SILENCE.enabled
    silent_seconds: int = _SILENCE.silent_seconds
    share_max: float = _SILENCE.share_max
    kubelet_port: int = _SILENCE.kubelet_port
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
