"""Crashes and lost processes in the middle of work: nothing is lost, nothing runs twice."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.e2e.cli_world import Shell, eventually
from tests.e2e.disaster_world import (
    Gang,
    crash,
    history_rows,
    job_names,
    kill,
    log_of_cluster,
    manifest_of,
    processes_of,
    write_config_map,
)
from tests.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("disasters")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """One cluster for all tests that harm only jobs or that let it come back."""
    shell = Shell(tmp_path_factory.mktemp("disasters"))
    shell.up("--nodes", "4", "--listen", "127.0.0.1:0")
    try:
        yield shell
    finally:
        shell.down()
        kill(processes_of(shell.data))


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A data directory of the test's own."""
    shell = Shell(tmp_path)
    (tmp_path / "job.sh").write_text("true\n")
    try:
        yield shell
    finally:
        shell.down()
        kill(processes_of(shell.data))


def test_a_gang_never_notices_that_the_cluster_was_killed_and_came_back(cluster: Shell) -> None:
    gang = Gang(cluster, "unaware")
    gang.submit()
    pids = gang.pids(1)
    crash(cluster)
    assert [os.getpgid(pid) for pid in pids] == pids, "members live on without the cluster"
    cluster.up()
    eventually(lambda: gang.status()["state"], "Running")
    status = gang.finish()
    assert [(a["number"], a["reason"]) for a in status["attempts"]] == [(1, "Succeeded")]
    gang.check_ran_once(attempts=1)
    gang.check_log_is_whole(attempt=1, is_ended=True)
    assert len(history_rows(cluster, "unaware")) == 1


def test_members_that_end_while_no_cluster_runs_are_not_run_again(cluster: Shell) -> None:
    gang = Gang(cluster, "alone")
    gang.submit()
    crash(cluster)
    (gang.home / "finish").touch()
    eventually(lambda: [pid for pid in gang.pids(1) if Path(f"/proc/{pid}").exists()], [])
    cluster.up()
    assert len(gang.finish()["attempts"]) == 1
    gang.check_ran_once(attempts=1)
    gang.check_log_is_whole(attempt=1, is_ended=True)


def test_when_cluster_and_members_are_killed_the_gang_begins_one_new_attempt(
    cluster: Shell,
) -> None:
    gang = Gang(cluster, "wiped-out")
    gang.submit()
    crash(cluster)
    kill(gang.pids(1))
    cluster.up()
    gang.until_attempt_runs(2)
    status = gang.finish()
    assert len(status["attempts"]) == 2
    assert status["attempts"][0]["cause"] == "Infrastructure"
    assert status.get("userFailures", 0) == 0
    gang.check_ran_once(attempts=2)
    gang.check_log_is_whole("--previous", attempt=1, is_ended=False)
    gang.check_log_is_whole(attempt=2, is_ended=True)
    assert len(history_rows(cluster, "wiped-out")) == 1


def test_after_power_loss_nothing_of_the_old_life_is_left_and_the_gang_goes_on(
    cluster: Shell,
) -> None:
    gang = Gang(cluster, "power-loss")
    gang.submit()
    old = processes_of(cluster.data)
    assert len(old) >= 1 + len(gang.pids(1))  # the supervisors of the members are among them
    crash(cluster)
    kill([*old, *gang.pids(1)])
    cluster.up()
    gang.until_attempt_runs(2)
    assert gang.finish()["attempts"][0]["cause"] in ("Infrastructure", "Node")
    gang.check_ran_once(attempts=2)
    gang.check_log_is_whole(attempt=2, is_ended=True)


def test_a_killed_member_restarts_the_gang_and_is_not_the_users_fault(cluster: Shell) -> None:
    gang = Gang(cluster, "one-lost")
    gang.submit()
    kill(gang.pids(1)[2:3])
    gang.until_attempt_runs(2)
    status = gang.finish()
    first, second = status["attempts"]
    assert (first["cause"], first["reason"]) == ("Infrastructure", "Killed")
    assert "worker-2" in first["message"]
    assert "SIGKILL" in first["message"]
    assert second["reason"] == "Succeeded"
    assert (status.get("userFailures", 0), status["infrastructureFailures"]) == (0, 1)
    gang.check_ran_once(attempts=2)
    gang.check_log_is_whole("--previous", attempt=1, is_ended=False)


def test_a_gang_that_is_killed_as_a_whole_restarts_once(cluster: Shell) -> None:
    gang = Gang(cluster, "all-lost")
    gang.submit()
    kill(gang.pids(1))
    gang.until_attempt_runs(2)
    status = gang.finish()
    assert (status["attempt"], status["infrastructureFailures"]) == (2, 1)
    assert status.get("userFailures", 0) == 0
    gang.check_ran_once(attempts=2)


def test_the_cluster_may_die_again_while_it_picks_up_the_pieces(cluster: Shell) -> None:
    gang = Gang(cluster, "twice-dead")
    gang.submit()
    crash(cluster)
    kill(gang.pids(1)[:1])
    cluster.up()
    crash(cluster)  # at once again: the restart of the gang is under way
    cluster.up()
    gang.until_attempt_runs(2)
    assert len(gang.finish()["attempts"]) == 2
    gang.check_ran_once(attempts=2)


@pytest.mark.parametrize("starts", [0, 1, 3])
def test_a_crash_while_the_gang_is_starting_runs_no_member_twice(
    cluster: Shell, starts: int
) -> None:
    gang = Gang(cluster, f"starting-{starts}")
    gang.submit_only()
    eventually(lambda: gang.starts() >= starts, expected=True)
    crash(cluster)
    cluster.up()
    status = gang.finish()
    gang.check_no_member_ran_twice()
    assert status["attempts"][-1]["reason"] == "Succeeded"
    assert status.get("userFailures", 0) == 0


def test_a_program_that_always_fails_reaches_its_restart_limit(cluster: Shell) -> None:
    script = cluster.root / "fails.sh"
    script.write_text("echo attempt $FAIRLEAD_ATTEMPT; exit 1\n")
    manifest = manifest_of(cluster, script, "--name", "hopeless", "--cpus", "100m")
    job = next(item for item in manifest["items"] if item["kind"] == "Job")
    job["spec"]["restart"] = {"limit": 2, "backoffSeconds": 0}
    cluster.run("submit", "-f", "-", stdin=json.dumps(manifest))
    ended = cluster.run("wait", "hopeless", "--timeout", "100s", code=1)
    assert ended.out.startswith("hopeless Failed: RestartLimit: member worker-0 (rank 0, ")
    status = cluster.job("hopeless")["status"]
    assert [a["cause"] for a in status["attempts"]] == ["User"] * 3
    assert status["userFailures"] == 3
    failed = next(c for c in status["conditions"] if c["type"] == "Failed")
    assert (failed["status"], failed["reason"]) == ("True", "RestartLimit")
    assert "exited with code 1" in failed["message"]
    assert "2 restarts are allowed" in failed["message"]
    assert cluster.run("logs", "hopeless").out.strip().endswith("attempt 3")
    assert "RestartLimit" in cluster.run("why", "hopeless").out


def test_without_restarts_the_first_failure_is_the_last(cluster: Shell) -> None:
    done = cluster.run("run", "--name", "no-second-try", "--no-restart", "--cpus", "100m", "--",
                       "sh", "-c", "exit 7", code=7)  # fmt: skip
    assert "exited with code 7" in done.err
    status = cluster.job("no-second-try")["status"]
    assert len(status["attempts"]) == 1
    cluster.run("wait", "no-second-try", code=7)


def test_the_cluster_said_nothing_of_faults_of_its_own(cluster: Shell) -> None:
    """Runs last: whatever was killed above, no controller may have crashed over it."""
    log = log_of_cluster(cluster)
    assert "Service crashed" not in log
    assert "Traceback" not in log


def test_every_submission_that_was_acknowledged_survives_kill_9(shell: Shell) -> None:
    shell.up("--nodes", "4", "--listen", "127.0.0.1:0")
    acknowledged: set[str] = set()
    enough = threading.Event()

    def submit(number: int) -> None:
        for turn in range(1000):
            done = shell.run("submit", "job.sh", "--name", f"job-{number}-{turn}", "--simulate",
                             "1s", code=None)  # fmt: skip
            if done.code != 0:
                return
            acknowledged.add(done.out.strip())
            if len(acknowledged) >= 5:
                enough.set()

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    assert enough.wait(PATIENCE_SECONDS)
    crash(shell)
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    shell.up()
    assert acknowledged <= job_names(shell)
    for name in sorted(acknowledged):
        shell.run("wait", name, "--timeout", "100s")


def test_a_file_size_limit_ends_the_cluster_with_a_clear_word_and_loses_nothing(
    shell: Shell,
) -> None:
    shell.up("--listen", "127.0.0.1:0")
    shell.down()
    limit = (shell.data / "store" / "log-1").stat().st_size + 20_000

    def limited() -> None:
        # A shell's `ulimit -f` leaves the signal at its default, which ends the process.
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    process = subprocess.Popen(
        shell.command("up", "--data", str(shell.data)), env=shell.environment, cwd=shell.root,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=limited,
    )  # fmt: skip
    shell.until_up()
    kept = shell.run("submit", "job.sh", "--hold").out.strip()
    answers: list[tuple[int, str]] = []
    while not answers or answers[-1][0] == 201:
        answers.append(write_config_map(shell, f"map-{len(answers)}"))
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert answers[-1][0] == 500
    assert "the write is not stored" in answers[-1][1]
    assert process.returncode == 5, err
    assert "error[E704]: a limit on the size of files stops the writing" in err
    assert "ulimit -f unlimited" in err
    shell.up()
    assert job_names(shell) == {kept}
    codes = [write_config_map(shell, f"map-{i}")[0] for i in range(len(answers))]
    assert codes == [409] * (len(answers) - 1) + [201], "what was acknowledged is there, no more"


def test_rot_in_the_log_is_told_and_nothing_is_cut_away(shell: Shell) -> None:
    shell.up("--listen", "127.0.0.1:0")
    names = [shell.run("submit", "job.sh", "--hold").out.strip() for _ in range(3)]
    shell.down()
    log = shell.data / "store" / "log-1"
    whole = log.read_bytes()
    place = whole.index(names[0].encode())
    rotten = whole[:place] + b"X" + whole[place + 1 :]
    log.write_bytes(rotten)
    refused = shell.up(code=4)
    assert refused.err.startswith(f"error[E709]: {log} is damaged at byte ")
    assert log.read_bytes() == rotten
    log.write_bytes(whole)  # the backup
    shell.up()
    assert job_names(shell) == set(names)


def test_a_damaged_history_can_be_moved_away_and_costs_no_job(shell: Shell) -> None:
    shell.up("--listen", "127.0.0.1:0")
    name = shell.run("submit", "job.sh", "--hold").out.strip()
    shell.down()
    for file in shell.data.glob("history.db-*"):
        file.unlink()
    history = shell.data / "history.db"
    history.write_bytes(b"\0" * 20_000)
    refused = shell.up(code=4)
    assert refused.err.startswith(f"error[E709]: cannot use the history {history}")
    history.rename(shell.root / "history.damaged")
    shell.up()
    assert job_names(shell) == {name}


def test_a_write_that_power_loss_tore_is_forgotten_and_all_before_it_is_there(
    shell: Shell,
) -> None:
    shell.up("--listen", "127.0.0.1:0")
    names = [shell.run("submit", "job.sh", "--hold").out.strip() for _ in range(2)]
    crash(shell)
    with (shell.data / "store" / "log-1").open("ab") as log:
        log.write(b"\x00\x02\x00\x00half a record")
    shell.up()
    assert job_names(shell) == set(names)
    names.append(shell.run("submit", "job.sh", "--hold").out.strip())
    crash(shell)
    shell.up()
    assert job_names(shell) == set(names)


def test_of_three_starts_at_once_one_wins_and_the_others_say_so(shell: Shell) -> None:
    arguments = ("up", "--detach", "--data", str(shell.data), "--listen", "127.0.0.1:0")
    with ThreadPoolExecutor(3) as threads:
        starts = list(threads.map(lambda _: shell.run(*arguments, code=None), range(3)))
    assert sorted(start.code for start in starts) == [0, 4, 4], starts
    assert sum(start.err.startswith("error[E701]: ") for start in starts) == 2
    assert shell.run("ps").code == 0


def test_a_wrong_token_and_a_directory_that_cannot_be_made_are_told(cluster: Shell) -> None:
    text = (cluster.data / "kubeconfig").read_text()
    other = cluster.root / "other-kubeconfig"
    other.write_text(text.replace((cluster.data / "token").read_text().strip(), "wrong"))
    for command in ("ps", "nodes"):
        refused = cluster.run(command, "--kubeconfig", str(other), code=5)
        assert refused.err.startswith("error[E401]: ")
    for bad in ("/proc/fairlead", "/dev/null/fairlead"):
        refused = cluster.run("up", "--data", bad, code=5)
        assert refused.err.startswith("error[E703]: /")
        assert "help: " in refused.err


def test_ctrl_c_at_the_clusters_terminal_ends_members_in_order(shell: Shell) -> None:
    script = shell.root / "polite.sh"
    script.write_text(
        "trap 'echo int >> ends; exit 9' INT\ntrap 'echo term >> ends; exit 0' TERM\n"
        "echo started >> starts\nwhile :; do sleep 0.05; done\n"
    )
    process = subprocess.Popen(
        shell.command("up", "--data", str(shell.data), "--listen", "127.0.0.1:0"),
        env=shell.environment, cwd=shell.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    shell.until_up()
    shell.run("submit", "polite.sh", "--name", "polite", "--nodes", "2", "--cpus", "100m")
    starts = shell.root / "starts"
    eventually(lambda: starts.exists() and starts.read_text().count("started"), 2)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all in the foreground
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, err
    assert (shell.root / "ends").read_text() == "term\nterm\n"
    assert processes_of(shell.data) == []
    shell.up()
    eventually(lambda: starts.read_text().count("started"), 4)
    assert shell.job("polite")["status"]["attempt"] == 2
