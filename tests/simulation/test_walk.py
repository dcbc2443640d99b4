"""The walk of a job in docs/design/architecture.md names the modules that a job enters."""

from __future__ import annotations

import gc
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

from fairlead.sim.setup.faults import PERFECT
from fairlead.sim.setup.workload import WorkloadOptions
from fairlead.sim.world import WorldOptions, simulate

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "fairlead"
#: Packages whose modules are compared; of the others the walk names those that matter.
COMPARED = ("controllers/", "decide/", "model/")
#: Rooms that a reader crosses: on the whole way, and in the step that places the job.
ROOMS_MAX, PLACE_ROOMS_MAX = 41, 15
#: Entered at every start, whether there is a job or not.
NO_STEP_OF_A_JOB = {
    "controllers/gangs/adoption.py",
    "controllers/elements/array_index.py",
    "controllers/elements/array_sets.py",
    "controllers/elements/arrays.py",
    "controllers/placing/device_matcher.py",
    "controllers/doctor.py",
    "controllers/elements/element_renderer.py",
    "controllers/nodes/fleet.py",
    "controllers/nodes/fleet_books.py",
    "controllers/gangs/group_index.py",
    "controllers/nodes/fleet_records.py",
    "controllers/nodes/pool_providers.py",
    "controllers/placing/teams.py",
    "controllers/nodes/unreachable_nodes.py",
    "decide/admission/pod_gates.py",
    "decide/doctor/decide.py",
    "decide/health/policy.py",
    "decide/health/unreachable_nodes.py",
    "decide/leader_election.py",
    "decide/notices/tickets.py",
    "decide/removal/ledger.py",
    "decide/teams/assign.py",
    "decide/teams/decide.py",
    "decide/teams/exchange.py",
    "decide/teams/intruders.py",
    "decide/teams/policy.py",
    "model/health/lease_book.py",
    "model/pools/grouping.py",
    "model/pools/pool_nodes.py",
}


def _named(step: str = "| **") -> list[str]:
    page = (ROOT / "docs" / "design" / "architecture.md").read_text()
    walk = page.split("## The way of a job")[1].split("\n## ")[0]
    rows = [line for line in walk.splitlines() if line.startswith(step)]
    return [module for row in rows for module in re.findall(r"`([a-z_0-9/]+\.py)`", row)]


def _entered() -> set[str]:
    """Return the modules that a world with one job of two members enters, until it has ended."""
    options = WorldOptions(
        nodes=2,
        workload=WorkloadOptions(1, 60.0, members_max=2, failing_share=0.0),
        faults=PERFECT,
        calls_between_kills_mean=0.0,
        node_failures_per_day=0.0,
        drains_per_day=0.0,
        user_acts_per_day=0.0,
    )
    files = set[str]()

    def note(frame: FrameType, _event: str, _argument: object) -> None:
        files.add(frame.f_code.co_filename)

    gc.collect()  # generators that other tests left are entered once more when they are collected
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        outcome = simulate(options, seed=3)
    finally:
        sys.setprofile(before)
    assert outcome.succeeded == 1
    prefix = f"{SOURCES}/"
    return {file.removeprefix(prefix) for file in files if file.startswith(prefix)}


def test_the_walk_names_each_module_once_and_only_modules_that_exist() -> None:
    named = Counter(_named())
    assert len(named) > 50
    assert [module for module, count in named.items() if count > 1] == []
    assert [module for module in named if not (SOURCES / module).exists()] == []
    assert len(_rooms(named)) <= ROOMS_MAX
    assert 10 < len(_rooms(_named("| **Place.**"))) <= PLACE_ROOMS_MAX


def _rooms(modules: Iterable[str]) -> set[str]:
    return {module.rpartition("/")[0] for module in modules}


def test_a_job_enters_the_modules_that_the_walk_names() -> None:
    named = {module for module in _named() if module.startswith(COMPARED)}
    entered = {module for module in _entered() if module.startswith(COMPARED)}
    assert entered - NO_STEP_OF_A_JOB - named == set()
    assert named - entered == set()
