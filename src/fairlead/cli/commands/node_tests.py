"""`node test`: a test of one node, run by the cluster, beside what the fleet measures."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

from fairlead.api.cluster.machine_result import MachineOutcome
from fairlead.api.cluster.node_suites import suites
from fairlead.api.cluster.node_test import NodeTest, NodeTestPhase, NodeTestSpec
from fairlead.api.meta import to_wire
from fairlead.api.resources import NODE_TESTS, NODES
from fairlead.api.status import AlreadyExists, Forbidden, NotFound
from fairlead.cli.cluster.known_nodes import node_named
from fairlead.cli.connection.common import Common, check_choice, common, now, seconds_of
from fairlead.cli.connection.transport import Api
from fairlead.cli.views.node_drift import BY, DRIFT_COLUMNS, drift_page, drift_rows
from fairlead.cli.views.node_tests import (
    COMPARED_COLUMNS,
    FLEET_COLUMNS,
    compared_rows,
    coverage_lines,
    fleet_rows,
)
from fairlead.input.errors import Code, Exit, fail, writing

_LOOK_SECONDS = 1.0
#: A controller that tests nodes has begun by then.
_NOTE_SECONDS = 15.0
_CREATES_MAX = 8


@click.command(
    epilog="""Examples:

    \b
      fairlead node test n17
      fairlead node test n17 --suite full --timeout 30m

    Exit codes: 0 passed, or nothing to test; 1 something is wrong with the machine; 4 the test
    could not be run; 124 it has not ended yet, and goes on.
    """
)
@click.argument("name", metavar="NAME")
@click.option("--suite", metavar="NAME", default="quick", show_default=True,
              help="Name of the suite: quick, full or burn-in.")  # fmt: skip
@click.option("--timeout", metavar="DURATION", default="1h", show_default=True,
              help="Wait so long for the result.")  # fmt: skip
@common()
def test(common_: Common, *, name: str, suite: str, timeout: str) -> int:
    """Test a node, and show its figures beside those of nodes of its shape.

    A node that works goes on working, and its GPUs are left alone. What fails is a fault of the
    node, of the check node-test. Needs health.enabled.
    """
    api = common_.connect()
    made = create_test(api, name, suite)
    common_.note(f"nodetest {made.metadata.name}")
    found = _wait(common_, api, made, seconds_of(timeout, "--timeout"))
    if found.status.outcome is None:
        common_.note(f"it goes on: fairlead node {name} shows the result")
        return Exit.TIMED_OUT
    if common_.is_structured:
        common_.data(api.get(NODE_TESTS.raw, found.metadata.name))
    else:
        rows = compared_rows(found, api.list(NODE_TESTS))
        common_.table(COMPARED_COLUMNS, rows, empty="nothing was measured")
        common_.note(f"{found.status.outcome.value}: {found.status.message or 'all is good'}")
    ends = {MachineOutcome.FAILED: Exit.FAILED, MachineOutcome.ERROR: Exit.CONFLICT}
    return ends.get(found.status.outcome, Exit.OK)


@click.command(
    "tests",
    epilog="""Examples:

    \b
      fairlead node tests
      fairlead node tests --suite full -o json
      fairlead node tests --by driver
      fairlead node tests --by driver --html tests.html
    """,
)
@click.option("--suite", metavar="NAME", default="",
              help="Only tests of this suite: quick, full or burn-in.")  # fmt: skip
@click.option("--by", metavar="WHAT", default="",
              help="Under each version of the driver or the kernel: with what changed on the same "
                   "nodes since the version before.")  # fmt: skip
@click.option("--html", metavar="FILE", default="",
              help="Write a page with a chart per figure; without --by, by driver.")  # fmt: skip
@common()
def fleet_tests(common_: Common, *, suite: str, by: str, html: str) -> None:
    """Show what the tests of all nodes measured: the spread of each figure, and who is beyond it.

    Of each node the latest test counts. Nodes are compared with those of their shape.
    """
    if suite:
        _check_suite(suite)
    if by:
        check_choice(by, BY, "--by")
    api = common_.connect()
    tests = [each for each in api.list(NODE_TESTS) if suite in ("", each.spec.suite)]
    if common_.is_structured:
        common_.data([to_wire(each) for each in tests])
    if html:
        with writing(html):
            Path(html).write_text(drift_page(tests, by or BY[0]), encoding="utf-8")
        common_.note(f"wrote {html}")
    if html or common_.is_structured:
        return
    if by:
        common_.table(
            DRIFT_COLUMNS, drift_rows(tests, by),
            empty=f"no test has measured anything under a known {by}",
        )  # fmt: skip
        return
    common_.table(FLEET_COLUMNS, fleet_rows(tests), empty="no test has measured anything")
    nodes = {each.metadata.name: each.metadata.uid for each in api.list(NODES)}
    for line in coverage_lines(tests, nodes, now()):
        common_.note(line)


def _check_suite(suite: str) -> None:
    if suite not in suites():
        raise fail(Code.BAD_VALUE, f"--suite: there is no suite '{suite}'",
                   help=(f"there are {', '.join(suites())}",))  # fmt: skip


def tests_of(api: Api, name: str) -> Sequence[NodeTest]:
    """Return the tests of a node, the newest first; () where one may not see them."""
    try:
        found = [each for each in api.list(NODE_TESTS) if each.spec.node == name]
    except (NotFound, Forbidden):
        return ()
    return sorted(found, key=lambda each: -each.spec.number)


def create_test(api: Api, name: str, suite: str) -> NodeTest:
    """Create the next test of a node; another one may be created at the same time. CliError."""
    _check_suite(suite)
    node = node_named(api, name).metadata
    owner = {
        "apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid, "controller": True,
    }  # fmt: skip
    for _ in range(_CREATES_MAX):
        number = 1 + max((each.spec.number for each in tests_of(api, name)), default=0)
        spec = NodeTestSpec(name, node.uid, suite, number=number)
        meta = {"name": f"{name}-{number}", "ownerReferences": [owner]}
        try:
            return api.create(NODE_TESTS, {"metadata": meta, "spec": to_wire(spec)})
        except AlreadyExists:
            continue
        except Forbidden as error:
            help_ = ("an administrator of the cluster may create nodetests",)
            raise fail(Code.FORBIDDEN, error.message, help=help_) from error
    raise fail(Code.CONFLICT, f"others test node {name} at the same time", help=("try again",))


def _wait(common_: Common, api: Api, test: NodeTest, seconds: float) -> NodeTest:
    """Return the test once it has ended, or as it is after so long."""
    started, phase, is_warned = time.monotonic(), NodeTestPhase.PENDING, False
    while True:
        test = api.get(NODE_TESTS, test.metadata.name)
        waited = time.monotonic() - started
        if not test.is_open or waited >= seconds:
            return test
        if test.status.phase is not phase:
            phase = test.status.phase
            common_.note(f"{phase.value}{': ' * bool(test.status.message)}{test.status.message}")
        if not test.status.attempts and waited > _NOTE_SECONDS and not is_warned:
            is_warned = True
            common_.note("nothing runs it yet: is health.enabled set, and no earlier test open?")
        time.sleep(_LOOK_SECONDS)
