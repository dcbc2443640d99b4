"""`agent`: the health of this machine, by one look or all the time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from fairlead.api.meta import to_wire
from fairlead.cli.commands.agent_network import network
from fairlead.cli.commands.agent_pair import pair
from fairlead.cli.connection.common import Common, check_choice, common
from fairlead.cli.views.agent import (
    FAULT_COLUMNS,
    SETTING_COLUMNS,
    SOURCE_COLUMNS,
    fault_rows,
    restored_lines,
    setting_rows,
    source_rows,
    start_lines,
    summary_line,
    tuning_line,
)
from fairlead.cli.views.node_tests import MEASURED_COLUMNS, measured_rows
from fairlead.input.errors import CliError, Code, Exit, fail, writing
from fairlead.model.health.faults import identity
from fairlead.node.readers import look_once
from fairlead.node.registry import load_settings, sources, without_changes
from fairlead.node.reports.report import report_of, report_values
from fairlead.node.reports.watch import Kept, MachineWatch
from fairlead.node.running.host import Absent, Host, NotAHost, whole_number
from fairlead.node.settings import AgentSettings, TuningSettings

if TYPE_CHECKING:
    from fairlead.node.reports.state import State
    from fairlead.node.tuning import TuningOutcome

_ROOT = click.option(
    "--root", metavar="DIR", default="/", show_default=True,
    help="Root directory of the machine, as mounted into a container.",
)  # fmt: skip
_CONFIG = click.option(
    "--config", metavar="FILE", default="", help="YAML with limits and expectations."
)


@click.group(
    epilog="""Examples:

    \b
      fairlead agent check
      fairlead agent check --config node.yaml -o json
      fairlead agent check --root /host
      fairlead agent run --state /var/lib/fairlead/agent.db --report /run/fairlead/node.json
      fairlead agent test --suite quick --directory /scratch
    """
)
def agent() -> None:
    """Look after the health of this machine.

    Reads what the kernel says of GPUs, memory, PCI devices, network, disks and processes. Needs no
    cluster, and changes nothing but what a tuning profile says, and a table of netfilter that
    counts the traffic of pods, where it is asked to.
    """


agent.add_command(network)
agent.add_command(pair)


@agent.command(
    epilog="""Examples:

    \b
      fairlead agent check
      fairlead agent check --config node.yaml -o json

    Exit codes: 0 healthy, 1 faults that are warnings or critical. What could not be looked at is
    listed, and changes nothing.
    """
)
@_ROOT
@_CONFIG
@common(cluster=False)
def check(common_: Common, *, root: str, config: str) -> int:
    """Look once, and show the faults and what was not checked.

    Growth of counters, and how long something lasts, is judged by `fairlead agent run` only.
    """
    settings = load_settings(config)
    host = Host(Path(root))
    try:
        watch = asyncio.run(_look(host, settings))
        report = report_of(watch, host.now(), machine_id=host.machine_id())
    except NotAHost as error:
        raise _not_a_host(error) from error
    if common_.is_structured:
        common_.data(report_values(report))
    else:
        common_.table(FAULT_COLUMNS, fault_rows(report), empty="no faults")
        if not common_.quiet:
            common_.emit("\n" if report.faults else "")
            common_.table(SOURCE_COLUMNS, source_rows(report), empty="all sources are off")
        common_.note(summary_line(report))
    return Exit.OK if report.is_healthy else Exit.FAILED


@agent.command(
    epilog="""Examples:

    \b
      fairlead agent run --state /var/lib/fairlead/agent.db --report /run/fairlead/node.json

    Ends at SIGTERM and SIGINT with what it knows kept. Exit codes: 0, or 2 to 5 when it cannot
    start.
    """
)
@click.option(
    "--state", metavar="FILE", required=True,
    help="SQLite file that keeps faults and counters over restarts and reboots.",
)  # fmt: skip
@click.option(
    "--report", metavar="FILE", required=True,
    help="JSON file that is replaced whenever something changes.",
)  # fmt: skip
@_ROOT
@_CONFIG
@common(output=False, cluster=False)
def run(_common: Common, *, state: str, report: str, root: str, config: str) -> None:
    """Look all the time, and keep a report of the machine's health in a file.

    Each source is looked at once in its period, one second at the least. A source that hangs, fails
    or loses something says so in the report and holds up no other.
    """
    from fairlead.node.reports.state import StateError, open_state

    settings = load_settings(config)
    host = Host(Path(root))
    with writing(state), _only_one(Path(state)):
        try:
            asyncio.run(_run(host, settings, open_state(Path(state)), Path(report)))
        except StateError as error:
            raise fail(Code.DATA_UNWRITABLE, f"--state: {error}",
                       help=("name another file, or move this one away",)) from error  # fmt: skip
        except NotAHost as error:
            raise _not_a_host(error) from error


@agent.command(
    epilog="""Examples:

    \b
      fairlead agent tune --profile ml-node --fact nodes=2500 --fact pods=60000
      fairlead agent tune --profile ./profile.yaml -o wide
      fairlead agent tune --config node.yaml --apply
      fairlead agent tune --restore

    Exit codes: 0 as wanted, 1 something differs, or could not be restored.
    """
)
@click.option(
    "--profile",
    metavar="NAME|FILE",
    default="",
    help="A shipped profile, or a file. [default: tuning.profile of --config]",
)
@click.option(
    "--fact",
    "facts",
    metavar="NAME=NUMBER",
    multiple=True,
    help="A fact that the machine has not, such as nodes=2500.",
)
@click.option(
    "--apply",
    "applies",
    is_flag=True,
    help="Set what differs and takes effect at once; restore what is wanted no more.",
)
@click.option("--restore", "restores", is_flag=True, help="Restore all that was set.")
@click.option(
    "--record",
    metavar="FILE",
    default="",
    help="What was set, and what was there before. [default: tuning.record of --config]",
)
@_ROOT
@_CONFIG
@common(cluster=False)
def tune(
    common_: Common, *, profile: str, facts: tuple[str, ...], applies: bool, restores: bool,
    record: str, root: str, config: str,
) -> int:  # fmt: skip
    """Compare the machine's settings with a profile; set or restore them where asked.

    Without --apply and --restore nothing is changed.
    """
    from fairlead.node import tuning

    host, tuned = tuning.with_gpus(Host(Path(root))), load_settings(config).tuning
    name, kept = profile or tuned.profile, Path(record or tuned.record)
    if restores and (applies or profile):
        raise fail(Code.BAD_COMBINATION, "--restore goes with neither --apply nor --profile")
    if not restores and not name:
        shipped = ", ".join(tuning.shipped_names())
        raise fail(Code.MISSING_ARGUMENT, "--profile: no profile is named",
                   help=(f"name a file, or one of {shipped}",))  # fmt: skip
    try:
        if restores:
            outcome = tuning.restore(host, record=kept)
            _remove_drop_ins(common_, host, tuned)
        else:
            wanted = tuning.load_profile(name)
            known = tuning.read_facts(host, tuned.facts | facts_of(facts))
            host.boot_id()  # a directory that is no host is no host without drift
            outcome = tuning.TuningOutcome(tuning.verify(host, wanted, known))
            if applies:
                outcome = tuning.tune(host, wanted, known, record=kept)
            starts = tuning.DropIns(host, tuned, is_dry=True).look(wanted, known)
            findings = tuning.explained(outcome.findings, starts)
            outcome = replace(outcome, findings=findings, starts=starts)
    except NotAHost as error:
        raise _not_a_host(error) from error
    except tuning.RecordError as error:
        help_ = "name another file; without the record nothing is set"
        said = f"--record: {error.strerror or error}"
        raise fail(Code.DATA_UNWRITABLE, said, help=(help_,)) from error
    _show_tuning(common_, outcome)
    not_restored = any(each.why and not each.is_left for each in outcome.restored)
    drifts = any(each.state.is_drift for each in outcome.findings)
    return Exit.FAILED if drifts or not_restored else Exit.OK


def _remove_drop_ins(common_: Common, host: Host, settings: TuningSettings) -> None:
    from fairlead.node.tuning import DropIns

    try:
        for part in DropIns(host, settings, is_dry=True).remove():
            whose = "GRUB" if part.value == "kernel" else part.value
            common_.note(f"note: the drop-in of {whose} is removed; it counts from {part.start}")
    except (Absent, OSError) as error:
        raise fail(Code.DATA_UNWRITABLE, str(error), help=("remove the file by hand",)) from error


def _show_tuning(common_: Common, outcome: TuningOutcome) -> None:
    if common_.is_structured:
        common_.data(msgspec.to_builtins(outcome))
        return
    if outcome.findings:
        common_.table(SETTING_COLUMNS, setting_rows(outcome.findings), empty="")
    for line in (*restored_lines(outcome), *start_lines(outcome)):
        common_.note(line)
    common_.note(tuning_line(outcome))


def facts_of(given: tuple[str, ...]) -> dict[str, int]:
    """Return the facts of flags; CliError."""
    from fairlead.node.tuning import FACT_NAMES

    found: dict[str, int] = {}
    for each in given:
        name, _, text = each.partition("=")
        check_choice(name, FACT_NAMES, "--fact")
        number = whole_number(text)
        if number is None or number < 0:
            raise fail(Code.BAD_VALUE, f"--fact: '{each}' is not NAME=NUMBER")
        found[name] = number
    return found


@agent.command(
    epilog="""Examples:

    \b
      fairlead agent clear --state /var/lib/fairlead/agent.db gpu-xid 0000:3b:00 79
    """
)
@click.argument("check", metavar="CHECK")
@click.argument("component", metavar="COMPONENT")
@click.argument("codes", metavar="[CODE...]", nargs=-1)
@click.option("--state", metavar="FILE", required=True, help="State of the running agent.")
@common(output=False, cluster=False)
def clear(
    common_: Common, *, check: str, component: str, codes: tuple[str, ...], state: str
) -> None:
    """End a fault that only a person can end, after the repair.

    The agent does it within a second; a fault that is still there is found again.
    """
    from fairlead.node.reports import state as states

    if not Path(state).exists():
        raise fail(Code.BAD_VALUE, f"--state: there is no '{state}'",
                   help=("name the file that fairlead agent run uses",))  # fmt: skip
    of = identity(check, component, codes)
    try:
        is_open = states.clear(Path(state), of)
    except states.StateError as error:
        raise fail(Code.DATA_UNWRITABLE, f"--state: {error}") from error
    if not is_open:
        raise fail(Code.BAD_VALUE, f"no open fault {' '.join((check, component, *codes))}",
                   help=("the report of the agent names check, component and codes",))  # fmt: skip
    common_.note("requested; the agent ends the fault within a second")


@agent.command(
    epilog="""Examples:

    \b
      fairlead agent test
      fairlead agent test --suite full --directory /scratch --set mount.paths=/data
      fairlead agent test --only cpu --only memory -o json

    Exit codes: 0 passed, or nothing to test; 1 a test failed: something is wrong with the machine;
    4 a test could not be run, which says nothing about the machine.
    """
)
@click.option("--suite", metavar="NAME", default="quick", show_default=True,
              help="Name of the suite: quick, full or burn-in.")  # fmt: skip
@click.option("--only", metavar="TEST", multiple=True, help="Only this test; may be repeated.")
@click.option("--retest", "retests", metavar="TEST", multiple=True,
              help="Run this test as the suite full has it; may be repeated.")  # fmt: skip
@click.option("--own-test", "own", metavar="JSON", multiple=True,
              help="A test of your own, as health.ownTests gives it; may be repeated.")  # fmt: skip
@click.option("--directory", metavar="DIR", default="",
              help="The disk test writes there; without it there is none.")  # fmt: skip
@click.option("--set", "given", metavar="TEST.OPTION=VALUE", multiple=True,
              help="Another value for an option; lists have commas.")  # fmt: skip
@click.option("--result", metavar="FILE", default="",
              help="Also write the result there, as a test pod leaves it.")  # fmt: skip
@common(cluster=False)
def test(
    common_: Common,
    *,
    suite: str,
    only: tuple[str, ...],
    retests: tuple[str, ...],
    own: tuple[str, ...],
    given: tuple[str, ...],
    directory: str,
    result: str,
) -> int:
    """Test this machine: CPU, memory, disk, clock, names, mounts and GPUs.

    What is missing or not named is skipped. Nothing is judged against other machines; fairlead
    node test does that.
    """
    from fairlead.api.cluster.machine_result import MachineOutcome, encode_result, worst_outcome
    from fairlead.api.cluster.node_suites import machine_tests, suite_of, suites
    from fairlead.app.signals import exit_on_terminate
    from fairlead.cli.formats.options_of_tests import options_of, own_tests
    from fairlead.node.machine_tests.runner import AlreadyRunning, UnknownTest, run_suite

    chosen = suite_of(suite, retests, own_tests(own))
    if chosen is None:
        raise fail(Code.BAD_VALUE, f"--suite: there is no suite '{suite}'",
                   help=(f"there are {', '.join(suites())}",))  # fmt: skip
    for name in retests:
        check_choice(name, tuple(machine_tests()), "--retest")
    if directory:
        given = (f"disk.directory={directory}", *given)
    exit_on_terminate()
    try:
        found = run_suite(
            chosen, only=only, options=options_of(chosen, given),
            began=lambda name: common_.note(f"{name} ..."),
        )  # fmt: skip
    except UnknownTest as error:
        raise fail(Code.BAD_VALUE, str(error)) from error
    except AlreadyRunning as error:
        raise fail(Code.DATA_IN_USE, str(error), help=("try again later",)) from error
    except NotAHost as error:
        raise fail(Code.BAD_VALUE, str(error)) from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise fail(Code.DATA_UNWRITABLE, f"{where}{error.strerror or error}") from error
    if result:
        with writing(result):
            Path(result).write_bytes(encode_result(found))
    if common_.is_structured:
        common_.data(to_wire(found))
    else:
        common_.table(MEASURED_COLUMNS, measured_rows(found.measured), empty="no tests")
    ends = {MachineOutcome.FAILED: Exit.FAILED, MachineOutcome.ERROR: Exit.CONFLICT}
    return ends.get(worst_outcome(found.measured), Exit.OK)


@agent.command(
    epilog="""Examples:

    \b
      fairlead agent preflight quick

    In the pods of a job it is started by Fairlead, see --preflight of fairlead submit.

    Exit codes: 0 the program may start; 1 this node failed; 75 another node of the gang failed.
    """
)
@click.argument("wish", metavar="quick|network")
@click.option("--result", metavar="FILE", default="",
              help="Write the result there instead, as the pod of a member leaves it.")  # fmt: skip
@common(cluster=False)
def preflight(common_: Common, *, wish: str, result: str) -> int:
    """Test this node before the program of its gang starts, for at most 30 s.

    With network, and by the variables of a member, the connections to the others as well.
    """
    from fairlead.api.cluster.machine_result import encode_result
    from fairlead.api.jobs.preflight import PreflightSuite
    from fairlead.app.signals import exit_on_terminate
    from fairlead.node.gang_gate import run_gate

    known = {each.value.lower(): each for each in (PreflightSuite.QUICK, PreflightSuite.NETWORK)}
    check_choice(wish, tuple(known), "preflight")
    exit_on_terminate()
    found = run_gate(known[wish], os.environ)
    if result:
        with writing(result):
            Path(result).write_bytes(encode_result(found.result))
    elif common_.is_structured:
        common_.data(to_wire(found.result))
    else:
        common_.table(MEASURED_COLUMNS, measured_rows(found.result.measured), empty="no tests")
        for each in found.result.pairs:
            rate = f"{each.bytes_per_second:.3g} B/s"
            common_.note(f"with rank {each.peer}: {each.error or rate}")
        if found.message:
            common_.note(found.message)
    return found.code


@contextmanager
def _only_one(state: Path) -> Generator[None]:
    """Hold the lock of a state file; CliError when another agent has it."""
    import fcntl

    with state.with_name(f"{state.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise fail(Code.DATA_IN_USE, f"another agent uses '{state}'",
                       help=("end it first, or name another file",)) from error  # fmt: skip
        yield


async def _run(host: Host, settings: AgentSettings, state: State, report: Path) -> None:
    from fairlead.app.signals import stop_on_signals
    from fairlead.node.agent import Agent
    from fairlead.node.repairs import Repairs
    from fairlead.node.sources.tuning import restart_setter
    from fairlead.runtime.logs import configure

    log = configure(clock=host.clock)
    asked, repairs = settings.repairs, None
    if asked.requests:
        before = restart_setter(host, settings)
        repairs = Repairs(host, asked, state, log=log, before_reboot=before)
    running = Agent(
        host, sources(host, settings), state, report=report,
        read_seconds_max=settings.read_seconds_max, report_seconds=settings.report_seconds,
        repairs=repairs, log=log,
    )  # fmt: skip
    stop_on_signals(running.stop)
    with closing(state), writing(report):
        await running.run()


def _not_a_host(error: NotAHost) -> CliError:
    return fail(Code.BAD_VALUE, f"--root: {error}", help=("name the root of a host",))


async def _look(host: Host, settings: AgentSettings) -> MachineWatch:
    chosen = sources(host, without_changes(settings))
    watch = MachineWatch(chosen, Kept(), boot_id=host.boot_id(), now=host.now())
    await look_once(chosen, watch, host, settings.read_seconds_max)
    return watch
