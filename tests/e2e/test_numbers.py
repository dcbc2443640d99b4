"""Numbers of jobs on a cluster of real processes: given, found, kept, and held against forgery."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.cli_world import Shell, eventually
from tests.e2e.disaster_world import crash, kill, processes_of

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("numbers")]

ECHO = 'echo "$SLURM_JOB_ID of ${SLURM_ARRAY_JOB_ID:-none}"\n'
UP = ("--nodes", "2", "--listen", "127.0.0.1:0")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    shell.up(*UP)
    try:
        yield shell
    finally:
        shell.down()
        kill(processes_of(shell.data))


def _submit(shell: Shell, name: str, *flags: str, text: str = ECHO) -> int:
    """Submit a script and return its number, once it has one."""
    (shell.root / "job.sh").write_text(text)
    shell.run("submit", "job.sh", "--name", name, "--cpus", "100m", *flags)
    kind = "jobarrays" if "--array" in flags else "jobs"

    def number() -> int:
        path = f"/apis/fairlead.dev/v1alpha1/namespaces/default/{kind}/{name}"
        _, found = shell.get(path)
        return int(found.get("status", {}).get("number", 0))

    eventually(lambda: number() > 0, True)
    return number()


def test_members_commands_and_the_history_know_jobs_and_elements_by_numbers(shell: Shell) -> None:
    assert _submit(shell, "one") == 1
    assert shell.run("wait", "1").out == "one Succeeded\n"
    assert shell.run("logs", "1").out == "1 of none\n"
    assert _submit(shell, "sweep", "--array", "5-6") == 2
    shell.run("wait", "2", "--timeout", "100s")
    logs = {shell.run("logs", f"sweep[{index}]").out for index in (5, 6)}
    assert logs == {"3 of 2\n", "4 of 2\n"}
    rows = shell.run("ps", "-l", "--no-headers").out.splitlines()
    assert [row.split()[6] for row in rows] == ["1", "2"], rows
    kubectl = "/apis/fairlead.dev/v1alpha1/namespaces/default/jobs?labelSelector="
    _, found = shell.get(f"{kubectl}fairlead.dev/job-number%3D1")
    assert [each["metadata"]["name"] for each in found["items"]] == ["one"]
    assert shell.run("history", "1", "-o", "name").out == "one\n"
    assert set(shell.run("history", "2", "-o", "name").out.split()) == {"sweep-5", "sweep-6"}
    assert shell.run("history", "2_6", "-o", "name").out == "sweep-6\n"
    assert "no job '7'" in shell.run("history", "7", code=3).err


def test_numbers_go_on_after_a_stop_a_crash_and_the_deletion_of_all_jobs(shell: Shell) -> None:
    long = "sleep 1000\n"
    assert [_submit(shell, name, text=long) for name in ("a", "b")] == [1, 2]
    shell.down()
    shell.up(*UP)
    assert _submit(shell, "c", text=long) == 3, "an orderly stop loses no number"
    crash(shell)
    shell.up(*UP)
    last = _submit(shell, "d", text=long)
    assert 3 < last <= 3 + 4
    shell.run("cancel", "1", "b", str(last), "c")
    for name in "abcd":
        eventually(lambda name=name: shell.state(name), "Cancelled")
        shell.delete_job(name)
        eventually(lambda name=name: shell.job(name), {})
    assert _submit(shell, "e", text=long) > last


def test_a_forged_number_names_no_job_and_changes_none(shell: Shell) -> None:
    mine = _submit(shell, "mine", text="sleep 1000\n")
    other = _submit(shell, "other", text="sleep 1000\n")
    shell.patch_job("other", {"metadata": {"labels": {"fairlead.dev/job-number": str(mine)}}})
    assert shell.run("cancel", str(mine)).out == "mine cancelled\n"
    eventually(lambda: shell.state("mine"), "Cancelled")
    assert shell.status("other")["number"] == other
    assert shell.run("cancel", str(other)).out == "other cancelled\n"
    shell.patch_job("other", {"status": {"number": 1}})
    assert shell.status("other")["number"] == other, "only the status subresource takes it"
