"""How figures are judged, what a test says of its node, and what follows for one that is open."""

from __future__ import annotations

import random
from statistics import median
from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.cluster.machine_result import (
    Figure,
    MachineFinding,
    MachineOutcome,
    SuiteResult,
    encode_result,
)
from fairlead.api.cluster.node_report import Action, NodeReport, NodeReportStatus
from fairlead.api.cluster.node_suites import (
    Better,
    FigureKind,
    MachineTest,
    machine_tests,
    proofs_of,
    suite_of,
    suites,
)
from fairlead.api.cluster.node_test import (
    NodeTest,
    NodeTestCause,
    NodeTestPhase,
    NodeTestSpec,
    NodeTestStatus,
)
from fairlead.api.kubernetes.core import (
    ContainerState,
    ContainerStateTerminated,
    ContainerStatus,
    Node,
    NodeSystemInfo,
    Pod,
    PodStatus,
)
from fairlead.api.meta import ObjectMeta
from fairlead.api.values.times import format_time
from fairlead.decide.health.changes import change_of, hardware_of
from fairlead.decide.health.node_step import NodeView
from fairlead.decide.health.policy import HealthPolicy, SuiteRule
from fairlead.decide.health.proving.gate import RESULTS_MAX, Bench, steps_of_tests
from fairlead.decide.health.proving.testing import (
    BeginTest,
    CreateTest,
    DeleteTestPod,
    SetTest,
    fault_of,
    has_passed,
    next_step,
    outdated,
    wanted_test,
    with_conditions,
)
from fairlead.model.health.judgement import PeerFigures, fleet_limit, judged, shape_of
from fairlead.node.registry import SOURCES
from fairlead.node.running.host import Host
from fairlead.node.settings import AgentSettings
from fairlead.testing.builders import EPOCH, make_node

HIGHER = FigureKind("copyBytesPerSecond", "B/s", Better.HIGHER)
LOWER = FigureKind("syncSeconds", "s", Better.LOWER)
POLICY = HealthPolicy(test_suite="quick", test_deadline_seconds=1800)
START = float("-inf")


def memory(value: float, **more: Any) -> MachineFinding:
    return MachineFinding(
        "memory", MachineOutcome.PASSED, figures=(Figure(HIGHER.name, value),), **more
    )


def peers(*values: float) -> PeerFigures:
    return PeerFigures({f"n{i}": (memory(value),) for i, value in enumerate(values)})


def judge(value: float, of: PeerFigures, *, devices: tuple[str, ...] = ()) -> MachineFinding:
    return judged(SuiteResult("quick", (memory(value),), devices=devices), of)[0]


# Judgement


@pytest.mark.parametrize(
    ("kind", "values", "limit"),
    [
        (HIGHER, [100.0] * 7, None),  # too few
        (HIGHER, [100.0] * 8, 90.0),  # all alike: a tenth is no slowness
        (HIGHER, [90.0, 95.0, 100.0, 100.0, 100.0, 105.0, 110.0, 110.0, 90.0], 75.0),  # 5 times 5
        (HIGHER, [100.0] * 8 + [1.0, 2.0], 90.0),  # bad ones move no median
        (LOWER, [1.0] * 8, 2.0),
        (FigureKind("cores", "1", Better.NEITHER), [8.0] * 20, None),
    ],
)
def test_the_limit_of_the_fleet_is_five_deviations_from_the_median_and_a_tenth_at_least(
    kind: FigureKind, values: list[float], limit: float | None
) -> None:
    assert fleet_limit(kind, sorted(values)) == limit


def test_what_misses_its_limit_has_failed_and_the_limit_is_kept() -> None:
    good, slow = judge(95.0, peers(*[100.0] * 8)), judge(89.0, peers(*[100.0] * 8))
    assert (good.outcome, good.figures[0].limit) == (MachineOutcome.PASSED, 90.0)
    assert (slow.outcome, slow.figures[0].limit) == (MachineOutcome.FAILED, 90.0)
    assert slow.message == "copyBytesPerSecond 89 is less than 90"
    assert judge(1.0, peers(100.0)).outcome is MachineOutcome.PASSED, (
        "there is nothing to compare with"
    )


def test_the_table_and_the_fleet_are_both_held_and_the_stricter_one_counts() -> None:
    def copies(value: float, of: PeerFigures) -> MachineFinding:
        figure = Figure("toDeviceBytesPerSecond", value)
        one = MachineFinding("gpu-copies", MachineOutcome.PASSED, figures=(figure,))
        result = SuiteResult("quick", (one,), devices=("NVIDIA H100 80GB HBM3",))
        return judged(result, of)[0]

    assert copies(47e9, PeerFigures()).outcome is MachineOutcome.FAILED
    assert copies(49e9, PeerFigures()).outcome is MachineOutcome.PASSED
    fast = MachineFinding(
        "gpu-copies", MachineOutcome.PASSED, figures=(Figure("toDeviceBytesPerSecond", 6e10),)
    )
    of = PeerFigures({f"n{i}": (fast,) for i in range(8)})
    found = copies(50e9, of)
    assert (found.outcome, found.figures[0].limit) == (MachineOutcome.FAILED, 54e9)


def test_what_the_machine_found_itself_is_not_judged_better() -> None:
    wrong = replace(memory(1e12), outcome=MachineOutcome.FAILED, message="wrong")
    found = judged(SuiteResult("quick", (wrong,)), peers(*[100.0] * 8))[0]
    assert (found.outcome, found.message) == (MachineOutcome.FAILED, "wrong")
    own = MachineFinding("mine", MachineOutcome.PASSED, figures=(Figure("speed", 1.0),))
    assert judged(SuiteResult("quick", (own,)), PeerFigures())[0] == own, "a test that nobody knows"


def test_an_administrators_test_is_judged_beside_the_fleet_and_recommends_what_he_says() -> None:
    kind = MachineTest(
        "site-ib", "", Action.REBOOT, MachineOutcome.ERROR, 30.0,
        figure=(FigureKind("gbps", "Gbit/s", Better.HIGHER),), command=("/opt/ib",),
        suites=("quick",),
    )  # fmt: skip

    def of(value: float) -> MachineFinding:
        figures = (Figure("gbps", value),)
        return MachineFinding(
            "site-ib", MachineOutcome.PASSED, figures=figures, action=Action.REPLACE
        )

    fleet = PeerFigures({f"n{i}": (of(100.0),) for i in range(8)})
    (found,) = judged(SuiteResult("quick", (of(50.0),)), fleet, own=(kind,))
    assert (found.outcome, found.action) == (MachineOutcome.FAILED, Action.REBOOT)
    assert found.message == "gbps 50 is less than 90"
    (unknown,) = judged(SuiteResult("quick", (of(50.0),)), fleet)
    assert (unknown.outcome, unknown.action) == (MachineOutcome.PASSED, None), (
        "what a machine recommends for itself does not count"
    )
    test = a_test(MachineOutcome.FAILED)
    test = replace(test, status=replace(test.status, measured=(found,)))
    fault = fault_of(node(), [test])
    assert fault is not None
    assert (fault.component, fault.action) == ("site-ib", Action.REBOOT)


def test_nodes_are_alike_by_type_cpus_and_gpus() -> None:
    node = make_node("a", cpu="8", gpus=4)
    assert shape_of(node) == shape_of(make_node("b", cpu="8", gpus=4))
    assert shape_of(node) != shape_of(make_node("c", cpu="8", gpus=8))


# What a test says of its node


def node(boot: str = "boot-1", **notes: str) -> Node:
    made = make_node("n1")
    status = replace(made.status, node_info=NodeSystemInfo(boot_id=boot))
    meta = replace(made.metadata, annotations={getattr(names, k): v for k, v in notes.items()})
    return replace(made, metadata=meta, status=status)


def a_test(
    outcome: MachineOutcome | None = None, *, number: int = 1,
    cause: NodeTestCause = NodeTestCause.GATE, reason: str = "",
    boot: str = "boot-1", suite: str = "quick", at: float = EPOCH,
) -> NodeTest:  # fmt: skip
    """Return a test: ended, with an outcome; else open."""
    status = NodeTestStatus()
    if outcome is not None:
        failed = (MachineFinding("disk", outcome, "it lies"),)
        status = NodeTestStatus(
            NodeTestPhase.ENDED, outcome, reason, "it lies", ended_at=format_time(at + 60),
            boot_id=boot, measured=failed,
        )  # fmt: skip
    meta = ObjectMeta(name=f"n1-{number}", uid=f"t{number}", creation_timestamp=format_time(at))
    return NodeTest(meta, NodeTestSpec("n1", "uid", suite, cause, number), status)


@pytest.mark.parametrize(
    ("tests", "found"),
    [
        ([], None),
        ([a_test()], None),
        ([a_test(MachineOutcome.PASSED)], None),
        ([a_test(MachineOutcome.FAILED)], ("disk", Action.REPLACE)),
        ([a_test(MachineOutcome.FAILED, cause=NodeTestCause.PERSON)], ("disk", Action.REPLACE)),
        ([a_test(MachineOutcome.ERROR, reason="HarnessError")], ("suite quick", Action.ASK_PERSON)),
        ([a_test(MachineOutcome.ERROR, reason="Silent")], ("suite quick", Action.REBOOT)),
        ([a_test(MachineOutcome.SKIPPED)], ("suite quick", Action.ASK_PERSON)),
        ([a_test(MachineOutcome.ERROR, cause=NodeTestCause.PERSON)], None),
        ([a_test(MachineOutcome.FAILED), a_test(MachineOutcome.PASSED, number=2)], None),
        ([a_test(MachineOutcome.PASSED), a_test(MachineOutcome.FAILED, number=2)],
         ("disk", Action.REPLACE)),
        ([a_test(MachineOutcome.FAILED),
          a_test(MachineOutcome.ERROR, number=2, cause=NodeTestCause.PERSON)],
         ("disk", Action.REPLACE)),
        ([a_test(MachineOutcome.FAILED, suite="full"), a_test(MachineOutcome.PASSED, number=2)],
         ("disk", Action.REPLACE)),  # a shorter suite does not prove what a longer one found
        ([a_test(MachineOutcome.FAILED, boot="boot-0")], None),  # it has started again since
    ],
)  # fmt: skip
def test_the_latest_test_that_says_something_of_the_machine_counts(
    tests: list[NodeTest], found: tuple[str, Action] | None
) -> None:
    fault = fault_of(node(), tests)
    assert (None if fault is None else (fault.component, fault.action)) == found


def test_a_person_ends_the_fault_of_a_test() -> None:
    tests = [a_test(MachineOutcome.FAILED)]
    assert fault_of(node(REPAIRED=format_time(EPOCH + 30)), tests) is not None
    assert fault_of(node(REPAIRED=format_time(EPOCH + 90)), tests) is None


def test_a_node_at_the_gate_gets_one_test_and_passes_by_one_of_this_boot_and_time() -> None:
    passed = a_test(MachineOutcome.PASSED)
    assert wanted_test(node(), [], "quick", START) == CreateTest(node(), "quick", 1)
    assert wanted_test(node(), [a_test()], "quick", START) is None
    assert wanted_test(node(), [passed], "quick", START) is None
    assert wanted_test(node(), [a_test(MachineOutcome.FAILED)], "quick", START) is None
    assert wanted_test(node(), [], "none such", START) is None
    for tests, of, since in (
        ([passed], node("boot-2"), START), ([passed], node(), EPOCH + 1),
        ([a_test(MachineOutcome.PASSED, suite="full")], node(), START),
    ):  # fmt: skip
        assert not has_passed(of, tests, "quick", since)
        assert wanted_test(of, tests, "quick", since) == CreateTest(of, "quick", 2)


def test_a_few_tests_of_each_node_are_kept_and_the_latest_that_passed_its_gate() -> None:
    tests = [a_test(MachineOutcome.PASSED, number=i) for i in range(1, 7)]
    assert [each.spec.number for each in outdated(tests)] == [3, 2, 1]
    assert [each.spec.number for each in outdated(tests, "quick")] == [3, 2, 1]
    gate = [a_test(MachineOutcome.PASSED, number=i, suite="full") for i in (1, 2)]
    assert [each.spec.number for each in outdated([*gate, *tests[2:]], "full")] == [3, 1]
    assert outdated([a_test(number=i) for i in range(9)]) == [], "open ones stay"


# Which suite


@pytest.mark.parametrize(
    ("labels", "of_pool", "gate", "idle"),
    [
        ({}, "", "quick", "quick"),
        ({"type": "p5.48xlarge"}, "", "full", "quick"),
        ({"type": "p5.48xlarge", "gpu": "H100-80GB"}, "", "full", "full"),
        ({"type": "p5e.48xlarge", "gpu": "H100-80GB"}, "", "burn-in", "full"),
        ({"type": "p5.48xlarge"}, "quick", "quick", "quick"),
    ],
)
def test_the_first_rule_of_a_shape_that_names_a_suite_counts_after_the_pool(
    labels: dict[str, str], of_pool: str, gate: str, idle: str
) -> None:
    policy = HealthPolicy(
        test_suite="quick", idle_test_suite="quick",
        test_suites=(
            SuiteRule({"type": "p5.*"}, test_suite="full"),
            SuiteRule({"gpu": "H100*"}, idle_test_suite="full"),
            SuiteRule({"gpu": "H100*", "type": "*"}, "burn-in", "burn-in"),
        ),
    )  # fmt: skip
    assert (policy.gate_suite(labels, of_pool), policy.idle_suite(labels)) == (gate, idle)
    only = HealthPolicy(test_suites=(SuiteRule({"gpu": "*"}, idle_test_suite="quick"),))
    assert (only.gate_suite({"gpu": "x"}), only.tests_idle, HealthPolicy().tests_idle) == (
        "", True, False,
    )  # fmt: skip


# Another machine


def machine(kernel: str = "6.8", board: str = "b1", **labels: str) -> Node:
    made = node()
    info = replace(made.status.node_info, kernel_version=kernel, system_uuid=board)
    return replace(
        made, metadata=replace(made.metadata, labels=labels),
        status=replace(made.status, node_info=info),
    )  # fmt: skip


DRIVER = "nvidia.com/cuda.driver-version.full"


def passed_on(of: Node, report: NodeReport | None = None, *, suite: str = "quick") -> NodeTest:
    test = a_test(MachineOutcome.PASSED, suite=suite)
    return replace(test, status=replace(test.status, hardware=hardware_of(of, report)))


def said(of: Node, **hardware: str) -> NodeReport:
    return NodeReport(status=NodeReportStatus(node_uid=of.metadata.uid, hardware=hardware))


@pytest.mark.parametrize(
    ("now", "report", "changed"),
    [
        (machine(**{DRIVER: "550"}), {"gpus": "8 aa"}, ""),
        (machine(kernel="6.9", **{DRIVER: "550"}), {"gpus": "8 aa"}, "kernel"),
        (machine(board="b2", **{DRIVER: "560"}), {"gpus": "8 aa"}, "board, driver"),
        (machine(**{DRIVER: "550"}), {"gpus": "8 ab"}, "gpus"),
        (machine(**{DRIVER: "550"}), {"gpus": "8 aa", "firmware": "2"}, ""),  # not known before
        (machine(), None, ""),  # neither the label nor the agent says anything now
        (machine(kernel=""), {}, ""),
    ],
)
def test_a_node_that_is_another_machine_than_the_one_that_passed_has_changed(
    now: Node, report: dict[str, str] | None, changed: str
) -> None:
    before = machine(**{DRIVER: "550"})
    tests = [passed_on(before, said(before, gpus="8 aa"))]
    found = change_of(now, None if report is None else said(now, **report), tests, "quick")
    assert (found.component if found else "") == changed
    assert change_of(now, None, tests, "full") is None, "it never passed that suite"
    assert change_of(machine(kernel="7"), None, [a_test(MachineOutcome.PASSED)], "quick") is None, (
        "a test of an earlier version says nothing of the machine"
    )


def test_a_report_of_another_node_of_the_name_says_nothing_of_its_machine() -> None:
    of = machine()
    other = NodeReport(status=NodeReportStatus(node_uid="another", hardware={"gpus": "1 x"}))
    assert "gpus" not in hardware_of(of, other)
    assert hardware_of(of, said(of, gpus="1 x"))["gpus"] == "1 x"


# Tests of what a node had


def test_what_a_node_had_is_tested_as_the_longest_suite_has_it() -> None:
    quick, full = suites()["quick"], suites()["full"]
    again = suite_of("quick", ("memory",))
    assert again is not None
    kinds = {each.name: each for each in again.kinds()}
    usual = {each.name: each for each in quick.kinds()}
    longest = {each.name: each for each in full.kinds()}
    assert kinds["memory"] == longest["memory"] != usual["memory"]
    assert kinds["cpu"] == usual["cpu"]
    assert again.seconds == quick.seconds + longest["memory"].timeout_seconds
    assert suite_of("quick") is quick
    assert suite_of("none such", ("memory",)) is None
    burn_in = suite_of("burn-in", ("memory",))
    assert burn_in == suites()["burn-in"], "it is longer than the full one anyway"


def test_tests_are_found_by_the_kind_of_a_fault() -> None:
    assert proofs_of("memory-ecc", "mc0") == ("memory",)
    assert proofs_of("node-test", "disk") == ("disk",)
    assert proofs_of("node-test", "suite quick") == ()
    assert proofs_of("own-check", "fan") == ()
    assert set(proofs_of("gpu-xid", "0000:3b:00")) >= {"gpu-matmul", "gpu-memory"}
    known = {check for made in SOURCES.values() if (source := made(Host(), AgentSettings()))
             for check in source.checks}  # fmt: skip
    assert {each for kind in machine_tests().values() for each in kind.proves} <= known


def test_a_returned_node_passes_with_the_tests_of_its_faults_only() -> None:
    plain = a_test(MachineOutcome.PASSED)
    proved = replace(plain, spec=replace(plain.spec, retests=("disk", "memory")))
    asked: Any = {"retests": ("memory",)}
    assert not has_passed(node(), [plain], "quick", START, **asked)
    assert has_passed(node(), [proved], "quick", START, **asked)
    assert wanted_test(node(), [plain], "quick", START, **asked) == CreateTest(
        node(), "quick", 2, retests=("memory",)
    )
    failed = replace(a_test(MachineOutcome.FAILED), spec=proved.spec)
    shorter = a_test(MachineOutcome.PASSED, number=2)
    assert fault_of(node(), [failed, shorter]) is not None, "it ran less than what failed"
    longer = replace(shorter, spec=replace(proved.spec, number=2))
    assert fault_of(node(), [failed, longer]) is None


def test_what_ran_longer_than_usual_is_compared_with_no_other_node() -> None:
    slow = SuiteResult("quick", (memory(1.0),))
    assert judged(slow, peers(*[100.0] * 8))[0].outcome is MachineOutcome.FAILED
    assert judged(slow, peers(*[100.0] * 8), apart=("memory",))[0].outcome is MachineOutcome.PASSED


def test_so_many_results_are_judged_in_one_decision_and_no_open_test_waits_for_them() -> None:
    views, pods = dict[str, NodeView](), dict[str, Pod]()
    for i in range(RESULTS_MAX + 3):
        name, test = f"n{i:02}", running()
        of = make_node(name)
        meta = replace(test.metadata, name=f"{name}-1")
        views[name] = NodeView(of, None, None, tests=(replace(test, metadata=meta),))
        pods[f"{name}-1"] = pod(phase="Succeeded", message=result())
    views["z"] = NodeView(make_node("z"), None, None, tests=(a_test(),))
    bench = Bench(pods, {}, POLICY, EPOCH + 60)
    steps = list(steps_of_tests(views, bench, ()))
    assert sum(isinstance(each, SetTest) for each in steps) == RESULTS_MAX
    assert any(isinstance(each, BeginTest) for each in steps)


# A test that is open


def pod(uid: str = "p1", *, phase: str = "Running", message: str = "", leaves: bool = False) -> Pod:
    ended = ContainerStateTerminated(0, message=message) if phase != "Running" else None
    statuses = (ContainerStatus("test", state=ContainerState(terminated=ended)),)
    deleted = format_time(EPOCH) if leaves else None
    meta = ObjectMeta(name="n1-1", namespace="kube-system", uid=uid, deletion_timestamp=deleted)
    return Pod(meta, status=PodStatus(phase, container_statuses=statuses))


def running(**fields: Any) -> NodeTest:
    status = NodeTestStatus(
        NodeTestPhase.RUNNING, pod_uid="p1", attempts=1, started_at=format_time(EPOCH), **fields
    )
    return replace(a_test(), status=status)


def step(test: NodeTest, found: Pod | None, now: float = EPOCH + 60, **options: Any) -> Any:
    given: dict[str, Any] = {"peers": {}, "is_used": False, **options}
    return next_step(test, found, node(), POLICY, now=now, **given)


def result(**outcomes: MachineOutcome) -> str:
    measured = tuple(
        MachineFinding(name, outcomes.get(name, MachineOutcome.PASSED), "why" * (name in outcomes))
        for name in suites()["quick"].tests
    )
    return encode_result(SuiteResult("quick", measured)).decode()


def test_a_pod_is_begun_once_and_has_the_devices_of_a_node_without_work() -> None:
    assert step(a_test(), None) == BeginTest(
        a_test(), node(), takes_devices=True, at=format_time(EPOCH + 60)
    )
    assert not step(a_test(), None, is_used=True).takes_devices
    waiting = replace(a_test(), status=NodeTestStatus(retry_at=format_time(EPOCH + 90)))
    assert step(waiting, None) is None
    assert isinstance(step(waiting, None, EPOCH + 90), BeginTest)


def test_only_the_pod_whose_uid_is_recorded_is_read() -> None:
    for test in (a_test(), running()):
        other = pod("other", phase="Succeeded", message=result())
        assert step(test, other) == DeleteTestPod(other)
        assert step(test, pod("other", leaves=True)) is None
    done = step(running(), pod(phase="Succeeded", message=result()))
    assert done.status.outcome is MachineOutcome.PASSED
    assert done.status.boot_id == "boot-1"


def test_a_pod_that_is_not_seen_yet_is_no_pod_that_is_gone() -> None:
    assert step(running(), None, EPOCH + 5) is None
    gone = step(running(), None, EPOCH + 11)
    assert (gone.status.phase, gone.status.pod_uid, gone.status.reason) == (
        NodeTestPhase.PENDING, "", "PodGone",
    )  # fmt: skip


def test_a_pod_without_a_result_in_time_is_deleted_and_the_reason_kept() -> None:
    patience = suites()["quick"].seconds + POLICY.test_start_seconds
    assert step(running(), pod(), EPOCH + patience - 1) is None
    late = step(running(), pod(), EPOCH + patience)
    assert late.status.reason == "Late"
    marked = replace(running(), status=late.status)
    assert step(marked, pod(), EPOCH + patience) == DeleteTestPod(pod())
    again = step(marked, None, EPOCH + patience + 1)
    assert (again.status.reason, again.status.pod_uid) == ("Late", "")


def test_failures_end_a_test_errors_are_tried_again_until_the_deadline() -> None:
    failed = step(running(), pod(phase="Succeeded", message=result(disk=MachineOutcome.FAILED)))
    assert (failed.status.phase, failed.status.outcome) == (
        NodeTestPhase.ENDED,
        MachineOutcome.FAILED,
    )
    assert failed.status.message == "disk: why"
    error = pod(phase="Succeeded", message=result(disk=MachineOutcome.ERROR))
    again = step(running(), error)
    assert (again.status.phase, again.status.outcome) == (NodeTestPhase.PENDING, None)
    ended = step(running(), error, EPOCH + 1800)
    assert (ended.status.outcome, ended.status.reason) == (MachineOutcome.ERROR, "HarnessError")
    silent = step(running(), pod(phase="Failed"), EPOCH + 1800)
    assert (silent.status.outcome, silent.status.reason) == (MachineOutcome.ERROR, "Silent")
    skipped = step(running(), pod(phase="Succeeded", message=result(
        **dict.fromkeys(suites()["quick"].tests, MachineOutcome.SKIPPED))))  # fmt: skip
    assert skipped.status.outcome is MachineOutcome.SKIPPED


def test_conditions_say_what_phase_and_outcome_do_and_their_instants_move_with_them_alone() -> None:
    def said(test: NodeTest, now: float) -> dict[str, tuple[str, str, str | None]]:
        found = with_conditions(test, test.status, now).conditions
        return {each.type: (each.status, each.reason, each.last_transition_time) for each in found}

    def later(test: NodeTest, now: float, before: NodeTest) -> NodeTest:
        known = with_conditions(before, before.status, EPOCH).conditions
        return replace(test, status=replace(test.status, conditions=known))

    ends = format_time(EPOCH + 60)
    open_ = running()
    begun = {"Complete": ("False", "Running", format_time(EPOCH)),
             "Passed": ("Unknown", "NotComplete", format_time(EPOCH))}  # fmt: skip
    assert said(open_, EPOCH) == said(later(open_, EPOCH + 9, open_), EPOCH + 9) == begun
    for outcome, status in (
        (MachineOutcome.PASSED, "True"), (MachineOutcome.FAILED, "False"),
        (MachineOutcome.ERROR, "Unknown"), (MachineOutcome.SKIPPED, "Unknown"),
    ):  # fmt: skip
        ended = replace(open_.status, phase=NodeTestPhase.ENDED, outcome=outcome, reason="Why")
        found = said(later(replace(open_, status=ended), EPOCH + 60, open_), EPOCH + 60)
        assert found["Complete"] == ("True", outcome.value, ends)
        assert found["Passed"] == (
            status,
            "Why",
            format_time(EPOCH) if status == "Unknown" else ends,
        )


def test_the_waits_between_attempts_double_up_to_five_minutes() -> None:
    waits = list[float]()
    for attempts in range(1, 9):
        test = replace(running(), status=replace(running().status, attempts=attempts))
        found = step(test, pod(phase="Failed")).status.retry_at
        waits.append(next(w for w in (10, 20, 40, 80, 160, 300)
                          if format_time(EPOCH + 60 + w) == found))  # fmt: skip
    assert waits == [10, 20, 40, 80, 160, 300, 300, 300]


def test_a_node_that_works_meanwhile_is_not_compared_with_idle_ones() -> None:
    slow = tuple(
        memory(50.0) if name == "memory" else MachineFinding(name, MachineOutcome.PASSED)
        for name in suites()["quick"].tests
    )
    left = pod(phase="Succeeded", message=encode_result(SuiteResult("quick", slow)).decode())
    alike = {(shape_of(node()), "quick"): peers(*[100.0] * 9)}
    assert step(running(), left, peers=alike).status.outcome is MachineOutcome.FAILED
    assert step(running(), left, peers=alike, is_used=True).status.outcome is MachineOutcome.PASSED


def test_a_suite_that_nobody_knows_ends_at_once() -> None:
    strange = replace(a_test(), spec=replace(a_test().spec, suite="mine"))
    ended = step(strange, None)
    assert (ended.status.phase, "no suite 'mine'" in ended.status.message) == (
        NodeTestPhase.ENDED,
        True,
    )
    assert isinstance(ended, SetTest)


def test_a_node_is_compared_with_the_latest_figures_of_all_others_and_not_with_its_own() -> None:
    found = peers(1.0, 2.0, 3.0)
    found.put("n1", (memory(5.0), MachineFinding("mine", MachineOutcome.PASSED)))
    assert found.values("memory", HIGHER.name) == [1.0, 3.0, 5.0]
    assert found.values("memory", HIGHER.name, but="n0") == [3.0, 5.0]
    found.put("n1", ())
    found.remove("n9")
    assert found.values("memory", HIGHER.name) == [1.0, 3.0]
    assert found.values("memory", "unknown") == []


def test_the_deviation_is_the_median_of_all_distances() -> None:
    rng = random.Random(7)
    for count in (*range(8, 30), 1_000):
        values = [rng.choice((rng.gauss(100, 10), 100.0, 90.0)) for _ in range(count)]
        middle = median(values)
        deviation = median(abs(value - middle) for value in values)
        found = fleet_limit(HIGHER, sorted(values))
        assert found == middle - max(5.0 * deviation, 0.1 * middle)
