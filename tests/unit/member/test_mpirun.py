"""What runs inside a member: where the first one listens, names that come late, how it ends."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.member import mpirun

ENVIRONMENT = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def test_a_loopback_address_is_bound_as_it_is() -> None:
    with mpirun.listen("127.0.0.5", free_port()) as listener:
        assert listener.getsockname()[0] == "127.0.0.5"


@pytest.mark.parametrize("address", ["10.1.2.3", "worker-0.train-1-peers.default.svc"])
def test_a_name_or_an_address_of_elsewhere_takes_the_wildcard(address: str) -> None:
    port = free_port()
    with mpirun.listen(address, port) as listener:
        assert listener.getsockname()[0] in ("::", "0.0.0.0")
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass


def test_a_name_that_resolves_is_not_waited_for() -> None:
    mpirun.await_name("localhost", seconds_max=0.0)


def test_a_name_that_never_resolves_ends_within_the_bound() -> None:
    with pytest.raises(mpirun.MpiError, match="does not resolve after 0 s") as caught:
        mpirun.await_name("no-such-host.invalid", seconds_max=0.0)
    assert caught.value.exit_code == mpirun.EXIT_UNAVAILABLE


def test_a_name_that_resolves_late_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    known = threading.Event()
    resolve = socket.getaddrinfo

    def late(host: str, *args: object) -> object:
        if not known.is_set():
            known.set()
            raise socket.gaierror(-2, "Name or service not known")
        return resolve("localhost", None)

    monkeypatch.setattr(socket, "getaddrinfo", late)
    mpirun.await_name("worker-0.train-1-peers.default.svc", seconds_max=5.0)
    assert known.is_set()


def run_outside_a_job(**environment: str) -> subprocess.CompletedProcess[str]:
    plain = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    return subprocess.run(
        [sys.executable, "-m", "fairlead.member.mpirun", "--", "true"],
        env={**plain, **environment}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_outside_of_a_job_the_missing_variable_is_named_and_no_retry_is_asked_for() -> None:
    ended = run_outside_a_job(**ENVIRONMENT)
    assert ended.returncode == mpirun.EXIT_NOT_FOUND
    assert "FAIRLEAD_HOSTFILE is not set" in ended.stderr


FINISH = """
import sys
from pathlib import Path
from fairlead.member import mpirun
sys.exit(mpirun._end(mpirun._finish(Path(sys.argv[1]), 0, None)))
"""
FIRST = """
import subprocess, sys
from pathlib import Path
from fairlead.member import mpirun
mpiexec = subprocess.Popen(["sh", "-c", "exit " + sys.argv[2]])
sys.exit(mpirun._finish(Path(sys.argv[1]), 0, mpiexec))
"""


def finished(result: Path, *prefix: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*prefix, sys.executable, "-c", FINISH, str(result)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("number", [11, 13])
def test_a_member_ends_by_the_signal_that_ended_its_rank(number: int, tmp_path: Path) -> None:
    result = tmp_path / "result"
    result.write_text(f"signal {number}")
    assert finished(result).returncode == -number


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize(("script", "code"), [("kill -9 $$", -9), ("exit 3", 3)])
def test_an_end_that_the_ranks_killed_parent_did_not_write_down_is_read_from_its_zombie(
    script: str, code: int, tmp_path: Path
) -> None:
    result = tmp_path / "result"
    with subprocess.Popen(["sh", "-c", script]) as rank:
        while state_of(rank.pid) != "Z":
            time.sleep(0.01)
        result.write_text(f"runs {rank.pid}")
        assert finished(result).returncode == code


def test_a_rank_that_still_runs_was_stopped_on_account_of_another(tmp_path: Path) -> None:
    result = tmp_path / "result"
    result.write_text(f"runs {os.getpid()}")
    assert finished(result).returncode == mpirun.EXIT_STOPPED


def test_a_rank_is_written_down_before_it_is_waited_for_and_is_in_a_group_of_its_own(
    tmp_path: Path,
) -> None:
    result, group = tmp_path / "result", tmp_path / "group"
    script = f"import os; open({str(group)!r}, 'w').write(str(os.getpgid(0))); os.abort()"
    out, err = os.dup(1), os.dup(2)
    environment = {
        **os.environ, "FAIRLEAD_RANK_OUTPUT": f"{out},{err}", "FAIRLEAD_RANK_RESULT": str(result),
    }  # fmt: skip
    ended = subprocess.run(
        [sys.executable, "-m", "fairlead.member.rank", sys.executable, "-c", script],
        env=environment, pass_fds=(out, err), timeout=60, check=False,
    )  # fmt: skip
    os.close(out)
    os.close(err)
    assert ended.returncode == -6
    assert result.read_text() == "signal 6"
    assert int(group.read_text()) not in (os.getpgid(0), 0)


@pytest.mark.parametrize(("others", "code"), [("0", 0), ("9", mpirun.EXIT_STOPPED)])
def test_the_first_member_succeeds_only_with_all_others(
    others: str, code: int, tmp_path: Path
) -> None:
    result = tmp_path / "result"
    result.write_text("exit 0")
    command = [sys.executable, "-c", FIRST, str(result), others]
    assert subprocess.run(command, capture_output=True, check=False).returncode == code


MEMBER = mpirun.Member(1, 2, "127.0.0.1", 0, Path("hosts"), "train-1/2")
#: Of a scanner, of a stranger, of an earlier attempt, and of a rank that there is not.
STRANGERS = (
    b"GET / HTTP/1.1\r\n\r\n", b"7\n", b'{"token": "train-1/1", "rank": 1}\n',
    b'{"token": "train-1/2", "rank": 2}\n', b'{"token": "train-1/2", "rank": 0.5}\n',
    b'{"token": "train-1/2", "rank": 1.0}\n', b"[" * 100_000 + b"\n",
)  # fmt: skip


def test_only_members_of_this_attempt_get_a_proxy_and_strangers_stop_nobody() -> None:
    with mpirun.listen("127.0.0.1", 0) as listener:
        member = replace(MEMBER, master_port=listener.getsockname()[1])
        proxies = [["proxy", "--rank", "0"], ["proxy", "--rank", "1"]]
        arguments = (member, proxies, listener)
        first = threading.Thread(target=mpirun.hand_out, args=arguments, daemon=True)
        first.start()
        address = ("127.0.0.1", member.master_port)
        for hello in STRANGERS:
            with socket.create_connection(address, timeout=10) as stranger:
                stranger.sendall(hello)
                stranger.shutdown(socket.SHUT_WR)
                assert stranger.recv(1) == b""
        assert mpirun.fetch(member) == ["--rank", "1"]
        first.join(10)
        assert not first.is_alive()


def test_an_answer_that_breaks_off_is_asked_for_again() -> None:
    with mpirun.listen("127.0.0.1", 0) as listener:
        member = replace(MEMBER, master_port=listener.getsockname()[1])

        def answer() -> None:
            for text in (b'["--rank", ', b'["--rank", "1"]\n'):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1000)
                    connection.sendall(text)

        first = threading.Thread(target=answer, daemon=True)
        first.start()
        assert mpirun.fetch(member) == ["--rank", "1"]
        first.join(10)


@pytest.mark.parametrize(("said", "code"), [("signal 11", 139), ("signal 9", 137), ("exit 3", 3)])
def test_as_process_1_of_a_container_it_returns_the_code_of_the_signal(
    said: str, code: int, tmp_path: Path
) -> None:
    container = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*container, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine gives no PID namespaces")
    result = tmp_path / "result"
    result.write_text(said)
    assert finished(result, *container).returncode == code


def test_why_the_proxy_could_not_start_is_shown(tmp_path: Path) -> None:
    (tmp_path / "proxy-errors").write_text("proxy: cannot load libfabric.so\n")
    ended = finished(tmp_path / "result")
    assert ended.returncode == mpirun.EXIT_STOPPED
    assert "cannot load libfabric.so" in ended.stderr


LOCKED = """
import subprocess
from fairlead.member import mpirun

class Lock:
    def end(self):
        print(open("/proc/self/task/{pid}/children".format(pid=mpirun.os.getpid())).read())

lock = Lock()
mpirun.acquire = lambda *_: None
mpirun.AttemptLock.of_this_member = lambda: lock
mpirun.Member.from_environment = lambda: None
mpirun._run = lambda *_: subprocess.Popen(["sleep", "90"]).pid and 0
"""


@pytest.mark.parametrize("end", ['mpirun.run(["true"])', "mpirun._run(); mpirun._terminate(lock)"])
def test_the_lock_is_released_once_no_process_of_the_rank_is_left(end: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", f"{LOCKED}\n{end}"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.stdout == "\n", ended.stderr


KILL = """
import ctypes, subprocess
from fairlead.member import mpirun
ctypes.CDLL(None).prctl(mpirun._PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
rank = "setsid sh -c 'sleep 90 & echo $!; wait' & wait"
proxy = subprocess.Popen(["sh", "-c", rank], stdout=subprocess.PIPE)
print(int(proxy.stdout.readline()), flush=True)
mpirun._kill_descendants()
"""


def test_what_a_killed_process_leaves_behind_is_killed_too() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", KILL], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert not Path(f"/proc/{int(ended.stdout)}").exists()
