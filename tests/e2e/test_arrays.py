"""Arrays of real processes: submitted as for Slurm, waited for, cancelled, and killed with all."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.cli_world import Shell, eventually
from tests.e2e.disaster_world import crash, kill, processes_of

from fairlead.decide.arrays import ArraysPolicy

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("arrays")]

SWEEP = """#!/bin/bash
#SBATCH --job-name=sweep
#SBATCH --array=1-9:2%2
#SBATCH --cpus-per-task=1
steps="$SLURM_ARRAY_TASK_MIN to $SLURM_ARRAY_TASK_MAX step $SLURM_ARRAY_TASK_STEP"
echo "task $SLURM_ARRAY_TASK_ID of $steps"
exit $((SLURM_ARRAY_TASK_ID == 7))
"""
#: Of the largest array; more with `make soak`.
ELEMENTS = int(os.environ.get("FAIRLEAD_ARRAY_ELEMENTS", "400"))
AT_ONCE = max(16, ELEMENTS // 100)
#: So many virtual nodes of eight GPUs have room for these.
NODES = -(-AT_ONCE // 8)
#: On a machine that does much else, an element more takes less.
SECONDS_OF_ONE_MAX = 0.15
JOBS = "/apis/fairlead.dev/v1alpha1/namespaces/default/jobs"
ARRAYS = "/apis/fairlead.dev/v1alpha1/namespaces/default/jobarrays"
PODS = "/api/v1/namespaces/default/pods"
EVENTS = "/api/v1/namespaces/default/events"
#: Notes its index, once, at its end.
NOTED = 'sleep 0.3; echo "$SLURM_ARRAY_TASK_ID" >> "$1"\n'


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    shell.up("--nodes", str(NODES), "--listen", "127.0.0.1:0")
    try:
        yield shell
    finally:
        shell.down()
        kill(processes_of(shell.data))


def test_a_script_for_sbatch_runs_once_for_each_index_of_its_array(shell: Shell) -> None:
    (shell.root / "sweep.sh").write_text(SWEEP)
    submitted = shell.run("submit", "sweep.sh")
    assert submitted.out == "sweep\n"
    assert "Array    5 elements, at most 2 at a time" in submitted.err
    ended = shell.run("wait", "sweep", "--timeout", "100s", code=1)
    assert ended.out == "sweep Failed: 4 succeeded, 1 failed\n"
    assert shell.run("logs", "sweep[5]").out == "task 5 of 1 to 9 step 2\n"
    assert shell.run("wait", "sweep[1-5]").out == "sweep[1-5] Succeeded: 3\n"
    assert shell.run("wait", "sweep[5-7]", code=1).out == "sweep[5-7] Failed: 1 of 2\n"
    assert "no element 2" in shell.run("wait", "sweep[2]", code=3).err
    [line] = [row for row in shell.run("ps").out.splitlines() if row.startswith("sweep")]
    assert line.split()[:7] == ["sweep", "0", "Failed", line.split()[3], "-", "5/5", "4"]
    assert "exited with code 1" in shell.run("why", "sweep[7]").out
    why = shell.run("why", "sweep").out
    assert "  elements   4 succeeded, 1 failed\n" in why
    assert "  failed     7  MemberFailed: member worker-0 (rank 0, " in why
    assert ") exited with code 1 [User]\n" in why
    assert "'sweep' is an array of jobs" in shell.run("logs", "sweep", code=3).err
    assert shell.run("resubmit", "sweep", "--failed").out == "sweep-retry-1\n"
    again = shell.run("wait", "sweep-retry-1", "--timeout", "100s", code=1)
    assert again.out == "sweep-retry-1 Failed: 1 failed\n"
    assert shell.run("logs", "sweep-retry-1[7]").out == "task 7 of 7 to 7 step 1\n"
    assert shell.run("logs", "sweep[7]").out == "task 7 of 1 to 9 step 2\n"


def test_elements_are_shown_held_and_cancelled_by_the_name_of_their_array(shell: Shell) -> None:
    (shell.root / "long.sh").write_text("sleep 1000\n")
    shell.run("submit", "long.sh", "--name", "long", "--array", "0-9%2", "--cpus", "100m")

    def elements() -> list[list[str]]:
        rows = shell.run("ps", "long").out.splitlines()[1:]
        return [[row.split()[0], row.split()[2]] for row in rows]

    eventually(elements, [["long-0", "Running"], ["long-1", "Running"]])
    assert shell.run("ps", "-o", "name").out == "long\n"
    assert shell.run("cancel", "long[0,2-8]").out == "long[0,2-8] cancelled\n"
    eventually(elements, [["long-1", "Running"], ["long-9", "Running"]])
    shell.run("hold", "long")
    eventually(lambda: {state for _, state in elements()}, {"Held"})
    shell.run("release", "long")
    eventually(elements, [["long-1", "Running"], ["long-9", "Running"]])
    shell.run("cancel", "long")
    ended = shell.run("wait", "long", "--timeout", "100s", code=1).out
    assert ended == "long Cancelled: 10 failed; cancelled by its owner\n"
    eventually(elements, [["long", "Cancelled"]])


def test_no_element_is_lost_or_run_twice_when_the_cluster_is_killed_twice(shell: Shell) -> None:
    journal = shell.root / "journal"
    journal.touch()
    (shell.root / "noted.sh").write_text(NOTED)
    shell.run("submit", "noted.sh", "--name", "noted", "--array", "0-59%8", "--cpus", "100m",
              "--", str(journal))  # fmt: skip

    def count() -> int:
        return len(journal.read_text().splitlines())

    for least in (8, 30):
        eventually(lambda: count() >= least, expected=True)  # noqa: B023
        crash(shell)
        shell.up()
    ended = shell.run("wait", "noted", "--timeout", "100s").out
    assert ended == "noted Succeeded: 60 succeeded\n"
    assert Counter(map(int, journal.read_text().split())) == Counter(range(60))
    assert shell.run("ps", "noted", "-o", "name").out == ""


def test_virtual_elements_end_once_each_through_two_kills_within_their_window(shell: Shell) -> None:
    (shell.root / "one.sh").write_text("true\n")
    flags = ("--simulate", "1s", "--gpus", "1", "--cpus", "100m")
    shell.run("submit", "one.sh", "--name", "many", "--array",
              f"0-{ELEMENTS - 1}%{AT_ONCE}", *flags)  # fmt: skip
    seconds, most = 60 + ELEMENTS * SECONDS_OF_ONE_MAX, 0

    def objects(path: str) -> int:
        page = shell.get(f"{path}?limit=1")[1]  # to list them all, again and again, holds them up
        return len(page["items"]) + page["metadata"].get("remainingItemCount", 0)

    def ended() -> int:
        return int(shell.get(f"{ARRAYS}/many")[1]["status"]["elements"].get("succeeded", 0))

    def is_past(count: int) -> bool:
        nonlocal most
        most = max(most, *map(objects, (JOBS, PODS, EVENTS)))
        return ended() >= count

    for part in (0.25, 0.6):
        eventually(lambda: is_past(round(part * ELEMENTS)), expected=True, seconds=seconds)  # noqa: B023
        crash(shell)
        shell.up()
    eventually(lambda: is_past(ELEMENTS), expected=True, seconds=seconds)
    assert shell.run("wait", "many", "--timeout", "100s").out == (
        f"many Succeeded: {ELEMENTS} succeeded\n"
    )
    assert 0 < most <= AT_ONCE + ArraysPolicy().ended_max
    eventually(lambda: (objects(JOBS), objects(PODS)), (0, 0))
    limit = str(2 * ELEMENTS)
    records = json.loads(shell.run("history", "--limit", limit, "-o", "json").out)["items"]
    succeeded = Counter(
        each["metadata"]["name"] for each in records if each["status"]["state"] == "Succeeded"
    )
    assert succeeded == Counter(f"many-{index}" for index in range(ELEMENTS))


def test_arrays_and_jobs_start_after_arrays_and_why_says_what_they_wait_for(shell: Shell) -> None:
    script, gate = shell.root / "step.sh", shell.root / "gate"
    script.write_text('until [ -e "$1" ]; do sleep 0.1; done; echo "$SLURM_ARRAY_TASK_ID"\n')
    flags = ("--cpus", "100m", "--", str(gate))
    shell.run("submit", "step.sh", "--name", "first", "--array", "0-5%2", *flags)
    (shell.root / "then.sh").write_text(
        "#!/bin/bash\n#SBATCH --array=0-5\n#SBATCH --dependency=aftercorr:first\n"
        "#SBATCH --cpus-per-task=1\ntrue\n"
    )
    shell.run("submit", "then.sh", "--name", "then")
    shell.run("submit", "step.sh", "--name", "last", "--after", "ok:first", *flags)
    shell.run("submit", "step.sh", "--name", "some", "--after", "any:first[3-5]", *flags)
    eventually(lambda: "Dependency" in shell.run("why", "last").out, expected=True)
    said = shell.run("why", "last").out
    assert "waits for job array first to be Succeeded" in said
    assert "first[0-5] have not ended: 6 of 6 elements" in said
    assert "first[3-5] have not ended: 3 of 3 elements" in shell.run("why", "some").out
    eventually(lambda: "first[0]" in shell.run("why", "then[0]").out, expected=True)
    missing = shell.run("submit", "then.sh", "--array", "0-6", "--name", "more", code=3).err
    assert "error[E130]: array 'first' has no element 6" in missing
    assert "its indices are 0-5" in missing
    gate.touch()
    for name in ("then", "last", "some"):
        assert "Succeeded" in shell.run("wait", name, "--timeout", "100s").out
