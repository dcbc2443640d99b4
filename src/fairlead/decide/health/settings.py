"""Settings of the health of nodes: `app/configuration` reads their file."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Annotated

from msgspec import Meta

from fairlead.api.cluster.machine_result import TEST_MAX, MachineOutcome
from fairlead.api.cluster.node_report import Action, Severity
from fairlead.api.cluster.node_suites import (
    Better,
    FigureKind,
    MachineTest,
    machine_tests,
    suites,
)
from fairlead.api.values.sections import DAY, Section, about, within
from fairlead.decide.health.conditions import (
    CONDITION_CHECKS,
    ConditionRule,
)

NAME = r"^[a-z][A-Za-z0-9-]*$"


class Late(Enum):
    """What a test that does not end in time says of the machine."""

    FAILED = "Failed"
    ERROR = "Error"


class SuiteRuleSettings(Section, frozen=True):
    """Suites of some nodes."""

    labels: Annotated[
        dict[str, Annotated[str, Meta(max_length=63)]],
        Meta(min_length=1, description="Labels of the nodes, all of them; * and ? stand for any "
             "characters of a value.", extra_json_schema={"maxProperties": 8}),
    ]  # fmt: skip
    test_suite: Annotated[
        str, Meta(max_length=63, description="Suite that they pass before they take work; empty: "
                  "a later rule, or health.testSuite.")
    ] = ""  # fmt: skip
    idle_test_suite: Annotated[
        str, Meta(max_length=63, description="Suite that they run while they are idle; empty: a "
                  "later rule, or health.idleTestSuite.")
    ] = ""  # fmt: skip


class OwnFigureSettings(Section, frozen=True):
    """A figure of a test of the administrator's."""

    name: Annotated[str, Meta(pattern=NAME, max_length=TEST_MAX, description="Its name.")]
    unit: Annotated[str, Meta(max_length=16, description="Its unit.")] = ""
    better: Annotated[
        Better, about("higher or lower: it is judged beside nodes of the shape; empty: it is not.")
    ] = Better.NEITHER


class OwnTestSettings(Section, frozen=True):
    """A test of the administrator's."""

    name: Annotated[str, Meta(pattern=NAME, max_length=40, description="Its name, and that of the "
                              "faults that it finds.")]  # fmt: skip
    command: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=256)], ...],
        Meta(min_length=1, max_length=16, description="Program, which the image of tests has, with "
             "its whole path, and its arguments."),
    ]  # fmt: skip
    suites: Annotated[
        tuple[str, ...],
        Meta(min_length=1, max_length=8, description="Suites that it belongs to: quick, full, "
             "burn-in."),
    ]  # fmt: skip
    catches: Annotated[str, Meta(max_length=200, description="What it finds, for people.")] = ""
    timeout_seconds: Annotated[
        int, within(1, 3600, "So long it may take. The suites take so much longer.")
    ] = 60
    late: Annotated[
        Late, about("Failed where a program that does not end in time has found a fault; Error: "
                    "that says nothing of the machine.")
    ] = Late.ERROR  # fmt: skip
    action: Annotated[
        Action, about("What a failure recommends: Watch, ResetGPU, Reboot, Replace, AskPerson.")
    ] = Action.ASK_PERSON
    figures: Annotated[
        tuple[OwnFigureSettings, ...],
        Meta(max_length=8, description="What it measures: `name`, `unit`, `better`."),
    ] = ()  # fmt: skip

    def test(self) -> MachineTest:
        """Return it as the suites have tests."""
        figures = tuple(FigureKind(each.name, each.unit, each.better) for each in self.figures)
        return MachineTest(
            self.name, self.catches, self.action, MachineOutcome(self.late.value),
            float(self.timeout_seconds), figure=figures, command=self.command, suites=self.suites,
        )  # fmt: skip


class ConditionStatus(Enum):
    """The status of a condition that is a fault."""

    TRUE = "True"
    FALSE = "False"


class ConditionSettings(Section, frozen=True):
    """What a condition of a Node means."""

    type: Annotated[str, Meta(min_length=1, max_length=160, description="Its type.")]
    status: Annotated[ConditionStatus, about("The status that is a fault: True or False.")] = (
        ConditionStatus.TRUE
    )
    reason: Annotated[
        str, Meta(min_length=1, max_length=128, description="Its reason; * and ? stand for any "
                  "characters.")
    ] = "*"  # fmt: skip
    check: Annotated[
        str, Meta(pattern=r"^condition-[a-z0-9]([-a-z0-9]{0,51}[a-z0-9])?$", description="The "
                  "check that health.actOn names."),
    ] = CONDITION_CHECKS + "own"  # fmt: skip
    severity: Annotated[Severity, about("Info, Warning or Critical.")] = Severity.WARNING
    action: Annotated[
        Action, about("None, Watch, Reboot, Replace or AskPerson; Info with None: it means "
                      "nothing.")
    ] = Action.WATCH  # fmt: skip
    renewed: Annotated[
        bool, about("Its writer confirms it every few minutes, as node-problem-detector does; one "
                    "that was not for half an hour counts no more.")
    ] = False  # fmt: skip

    def rule(self) -> ConditionRule:
        """Return it as the rules have it."""
        return ConditionRule(
            self.type, self.check, self.severity, self.action, status=self.status.value,
            reason=self.reason, is_renewed=self.renewed,
        )  # fmt: skip


class HealthSettings(Section, frozen=True):
    """What is done about the faults that the agents of nodes report."""

    enabled: Annotated[
        bool,
        about("Follow the reports of nodes; false: nothing is read, and no node is taken out."),
    ] = False
    act_on: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^(\*|[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)$")], ...],
        Meta(max_length=64, description="Checks of the agent whose faults are acted on, such as "
             "gpu-xid; * for all but those of conditions, such as condition-gpu. What is done for "
             "those of others is only recorded."),
    ] = ()  # fmt: skip
    conditions: Annotated[
        tuple[ConditionSettings, ...],
        Meta(max_length=64, description="What conditions mean that others state of Nodes, before "
             "the rules that are shipped: `type`, `status`, `reason`, `check`, `severity`, "
             "`action`, `renewed`."),
    ] = ()  # fmt: skip
    critical_drain_seconds: Annotated[
        int,
        within(60, DAY, "From a critical fault to the end of the drain of its node."),
    ] = 600  # fmt: skip
    degraded_drain_seconds: Annotated[
        int,
        within(60, 30 * DAY, "The same for a warning that asks for an action."),
    ] = DAY  # fmt: skip
    cosmetic_drain_seconds: Annotated[
        int,
        within(60, 30 * DAY, "The same for information that asks for an action."),
    ] = 7 * DAY  # fmt: skip
    eviction_seconds: Annotated[
        int,
        within(0, 30 * DAY, "So long before that end pods of others are evicted within their "
                            "disruption budgets; at the end they are deleted."),
    ] = 600  # fmt: skip
    reset_seconds: Annotated[
        int, within(10, DAY, "The agent may take so long for the reset of a GPU.")
    ] = 600
    reboot_seconds: Annotated[int, within(60, DAY, "And so long for a reboot.")] = 1800
    replace_seconds: Annotated[
        int, within(600, 30 * DAY, "A machine that is to be replaced and is there after so long "
                                   "is left to a person."),
    ] = DAY  # fmt: skip
    validate_seconds: Annotated[
        int,
        within(1, DAY, "A node whose faults have ended takes work after so long without one, "
                       "while the agent looks."),
    ] = 60  # fmt: skip
    resets_max: Annotated[int, within(0, 8, "Resets of a node in 7 days; then it is rebooted.")] = 1
    reboots_max: Annotated[
        int, within(0, 8, "Reboots of a node in 7 days; then it is replaced.")
    ] = 2
    tries_max: Annotated[
        int, within(1, 8, "Resets, reboots and replacements of a node in 7 days; then a person is "
                          "asked."),
    ] = 5  # fmt: skip
    test_suite: Annotated[
        str,
        Meta(max_length=63, description="Suite that nodes with the taint fairlead.dev/preflight, "
             "and those that come back from a repair, pass before they take work: quick, full or "
             "burn-in; empty: they are not tested. A pool may name another one."),
    ] = ""  # fmt: skip
    test_suites: Annotated[
        tuple[SuiteRuleSettings, ...],
        Meta(max_length=64, description="Suites by labels of nodes, such as "
             "node.kubernetes.io/instance-type or nvidia.com/gpu.product: `labels`, whose values "
             "may have * and ?, `testSuite`, `idleTestSuite`. The first rule that matches and "
             "names a suite counts; the suite of a node's pool goes before them."),
    ] = ()  # fmt: skip
    test_image: Annotated[
        str,
        Meta(max_length=512, description="Image of test pods, and of tests before programs: this "
             "release, with torch for GPUs. The embedded cluster needs none."),
    ] = ""  # fmt: skip
    test_options: Annotated[
        tuple[Annotated[str, Meta(max_length=512)], ...],
        Meta(max_length=32, description="Options of tests, as TEST.OPTION=VALUE."),
    ] = ()  # fmt: skip
    own_tests: Annotated[
        tuple[OwnTestSettings, ...],
        Meta(max_length=8, description="Tests of your own, beside those of the suites: programs of "
             "testImage. `name`, `command`, `suites`, `timeoutSeconds`, `action`, `late`, "
             "`figures`, `catches`."),
    ] = ()  # fmt: skip
    test_deadline_seconds: Annotated[
        int, within(60, DAY, "A test that has no result after so long, with all its attempts, has "
                             "failed its node."),
    ] = 1800  # fmt: skip
    idle_test_suite: Annotated[
        str,
        Meta(max_length=63, description="Suite that idle nodes run, the longest untested first; a "
             "test ends as soon as work comes to its node. Empty: idle nodes are not tested."),
    ] = ""  # fmt: skip
    idle_test_share: Annotated[
        float,
        Meta(ge=0.0, le=0.5, description="So much of the fleet is under such a test at a time, and "
             "at least one node."),
    ] = 0.005  # fmt: skip
    idle_test_after_seconds: Annotated[
        int, within(60, DAY, "A node that nothing has used for so long is tested.")
    ] = 1800
    idle_test_interval_seconds: Annotated[
        int,
        within(3600, 82_800, "But not before so long after its last test. What is idle for a day "
                             "without a test is reported, so leave time for the tests."),
    ] = 72_000  # fmt: skip
    pair_tests: Annotated[
        bool,
        about("Test the connections of idle nodes, in pairs, as often and as many at a time."),
    ] = False


class SilenceSettings(Section, frozen=True):
    """Nodes whose kubelets are not heard: gangs leave those that no connection reaches either."""

    enabled: Annotated[
        bool,
        about("Follow the leases that kubelets renew; false: a node is lost when Kubernetes says "
              "that it is not ready."),
    ] = True  # fmt: skip
    silent_seconds: Annotated[
        int,
        within(11, 600, "A lease that was not renewed for so long is late, and the machine is "
                        "tried. Of leases of 40 s, which are renewed every 10 s; others in "
                        "proportion."),
    ] = 15  # fmt: skip
    share_max: Annotated[
        float,
        Meta(ge=0.0, le=0.5, description="Of the nodes at most so many count as unreachable within "
             "an hour, and at least three; while more than so many are silent at once, and more "
             "than one, none does."),
    ] = 0.2  # fmt: skip
    kubelet_port: Annotated[
        int, within(1, 65_535, "Port on which machines are tried, that of the kubelets.")
    ] = 10_250


def conflicts_of_tests(settings: HealthSettings) -> Iterator[tuple[str, str]]:
    """Yield (path, message) of what is named and does not exist."""
    known = suites()
    named = {"testSuite": settings.test_suite, "idleTestSuite": settings.idle_test_suite}
    for i, rule in enumerate(settings.test_suites):
        named[f"testSuites[{i}].testSuite"] = rule.test_suite
        named[f"testSuites[{i}].idleTestSuite"] = rule.idle_test_suite
        if not rule.test_suite and not rule.idle_test_suite:
            yield f"health.testSuites[{i}]", "names neither testSuite nor idleTestSuite"
    for name, chosen in named.items():
        if chosen and chosen not in known:
            yield f"health.{name}", f"no suite '{chosen}'; there are {', '.join(known)}"
    options = {f"{kind.name}.{option}" for suite in known.values() for kind in suite.kinds()
               for option in kind.options}  # fmt: skip
    names = [*machine_tests()]
    for i, own in enumerate(settings.own_tests):
        path = f"health.ownTests[{i}]"
        if own.name in names:
            yield f"{path}.name", f"there is a test '{own.name}' already"
        names.append(own.name)
        for each in own.suites:
            if each not in known:
                yield f"{path}.suites", f"no suite '{each}'; there are {', '.join(known)}"
        if not own.command[0].startswith("/"):
            yield f"{path}.command[0]", f"'{own.command[0]}' is not a whole path"
        if own.action is Action.NONE:
            yield f"{path}.action", "a failure recommends at least Watch"
    for i, text in enumerate(settings.test_options):
        path, equals, _ = text.partition("=")
        if not equals or path not in options:
            there = ", ".join(sorted(options))
            yield f"health.testOptions[{i}]", f"'{text}' is not one of {there}, =, and a value"
