"""What runs inside a member: what a rank is told, how it ends, and what that does to the others."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from tests.patience import PATIENCE_SECONDS
from tests.ports import free_port

from fairlead.member import mpirun
from fairlead.member.gang_link import Gang, spawning
from fairlead.member.gang_peers import Alone


def variables(rank: int, size: int, port: int, **more: str) -> dict[str, str]:
    plain = {key: os.environ[key] for key in ("PATH", "HOME", "PYTHONPATH") if key in os.environ}
    return {
        **plain, "RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "FAIRLEAD_JOB_UID": "uid", "FAIRLEAD_ATTEMPT": "1", **more,
    }  # fmt: skip


def start(
    command: Sequence[str], environment: dict[str, str], prefix: Sequence[str] = ()
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*prefix, sys.executable, "-m", "fairlead.member.mpirun", "--", *command],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def gang(tmp_path: Path, size: int, *command: str) -> list[tuple[int, str, str]]:
    """Run a gang; return the exit code, the output and the errors of each member."""
    key, port = tmp_path / "key", free_port()
    key.write_bytes(os.urandom(32))
    more = {"FAIRLEAD_MPI_KEY_FILE": str(key)}
    members = [start(command, variables(rank, size, port, **more)) for rank in range(size)]
    said = [member.communicate(timeout=PATIENCE_SECONDS) for member in members]
    return [(m.returncode, *texts) for m, texts in zip(members, said, strict=True)]


def codes(tmp_path: Path, size: int, script: str) -> list[int]:
    return [code for code, _, _ in gang(tmp_path, size, "sh", "-c", script)]


def alone(command: Sequence[str], prefix: Sequence[str] = (), **more: str) -> tuple[int, str]:
    """Run a gang of one; return its exit code and its errors."""
    member = start(command, variables(0, 1, 1, **more), prefix)
    _, errors = member.communicate(timeout=PATIENCE_SECONDS)
    return member.returncode, errors


def test_outside_of_a_job_the_missing_variable_is_named_and_no_retry_is_asked_for() -> None:
    environment = variables(0, 2, 1)
    del environment["FAIRLEAD_JOB_UID"]
    member = start(["true"], environment)
    _, errors = member.communicate(timeout=PATIENCE_SECONDS)
    assert member.returncode == mpirun.EXIT_NOT_FOUND
    assert "FAIRLEAD_JOB_UID is not set" in errors


@pytest.mark.parametrize("key_file", ["", "/no/such/file"])
def test_a_gang_without_a_key_does_not_start(key_file: str, tmp_path: Path) -> None:
    mark = tmp_path / "started"
    more = {"FAIRLEAD_MPI_KEY_FILE": key_file} if key_file else {}
    for rank in range(2):
        member = start(["touch", str(mark)], variables(rank, 2, free_port(), **more))
        _, errors = member.communicate(timeout=PATIENCE_SECONDS)
        assert member.returncode == mpirun.EXIT_NOT_FOUND
        assert ("cannot be read" if key_file else 'annotation fairlead.dev/mpi: "true"') in errors
    assert not mark.exists()


#: A rank that speaks PMI-1, as an MPI library does at MPI_Init and MPI_Finalize.
RANK = """
import os, socket
with socket.socket(fileno=int(os.environ["PMI_FD"])) as link, link.makefile("rw") as file:
    def ask(request):
        file.write(f"cmd={request}\\n")
        file.flush()
        return dict(word.partition("=")[::2] for word in file.readline().split())
    rank, size = os.environ["PMI_RANK"], int(os.environ["PMI_SIZE"])
    assert ask("init pmi_version=1 pmi_subversion=1")["rc"] == "0"
    assert int(ask("get_maxes")["vallen_max"]) >= 1024
    assert ask("get_appnum")["appnum"] == "0"
    assert ask("get_universe_size")["size"] == str(size)
    kvs = ask("get_my_kvsname")["kvsname"]
    assert ask(f"get kvsname={kvs} key=PMI_process_mapping")["value"] == f"(vector,(0,{size},1))"
    assert ask(f"get kvsname={kvs} key=unknown")["rc"] == "1"
    for step in "ab":
        ask(f"put kvsname={kvs} key={step}{rank} value=address#{rank}${step}=")
        assert ask("barrier_in")["cmd"] == "barrier_out"
        for other in range(size):
            value = ask(f"get kvsname={kvs} key={step}{other}")["value"]
            assert value == f"address#{other}${step}=", value
    assert ask("spawn")["rc"] == "1"
    print("all", size, flush=True)
    LAST
"""
FINISHES = 'ask("finalize")'


@pytest.mark.parametrize("size", [1, 4])
def test_ranks_learn_the_addresses_of_all_others(size: int, tmp_path: Path) -> None:
    ended = gang(tmp_path, size, sys.executable, "-c", RANK.replace("LAST", FINISHES))
    assert ended == [(0, f"all {size}\n", "")] * size


def test_the_ranks_of_a_gang_have_a_name_in_common_that_no_other_gang_has(tmp_path: Path) -> None:
    """MPICH names files in /dev/shm after it, beside those of other users and of killed ranks."""
    script = RANK.replace("LAST", f"print(kvs, flush=True); {FINISHES}")
    names: list[str] = []
    for size in (2, 2, 1, 1):
        said = {out for _, out, _ in gang(tmp_path, size, sys.executable, "-c", script)}
        assert len(said) == 1, "all of its ranks"
        names += said
    assert len(set(names)) == 4
    assert all(len(name.split()[-1]) == 32 for name in names)


def test_a_rank_that_ends_without_the_others_fails_the_job(tmp_path: Path) -> None:
    last = 'ask("finalize") if rank != "1" else os._exit(0)'
    ended = gang(tmp_path, 3, sys.executable, "-c", RANK.replace("LAST", last))
    assert ended[1][0] == 1
    assert "without MPI_Finalize" in ended[1][2]


def test_a_rank_that_the_others_wait_for_and_that_has_ended_does_not_hang_them(
    tmp_path: Path,
) -> None:
    script = f"[ $RANK = 1 ] || exec {sys.executable} -c '{RANK.replace('LAST', FINISHES)}'"
    assert codes(tmp_path, 3, script) == [mpirun.EXIT_STOPPED, 0, mpirun.EXIT_STOPPED]


def test_an_abort_ends_all_ranks_with_its_code(tmp_path: Path) -> None:
    stays = "import time; time.sleep(90)"
    last = f'file.write("cmd=abort exitcode=7\\n") if rank == "1" else None; file.flush(); {stays}'
    script = RANK.replace("LAST", last)
    ended = gang(tmp_path, 3, sys.executable, "-c", script)
    assert [code for code, _, _ in ended] == [mpirun.EXIT_STOPPED, 7, mpirun.EXIT_STOPPED]


@pytest.mark.parametrize(
    ("script", "code"),
    [("kill -SEGV $$", -11), ("kill -PIPE $$", -13), ("kill -9 $$", -9), ("exit 3", 3)],
)
def test_a_member_ends_as_its_rank_and_the_others_are_stopped(
    script: str, code: int, tmp_path: Path
) -> None:
    stopped = mpirun.EXIT_STOPPED
    for lost in (0, 1):
        found = codes(tmp_path, 3, f"[ $RANK = {lost} ] && {script}; exec sleep 90")
        assert found == [code if rank == lost else stopped for rank in range(3)]


class DyingRank:
    """Serves a rank; once that has closed what it had open, this member has heard nothing yet."""

    has_begun = has_finished = False

    def __init__(self) -> None:
        self.variables: dict[str, str] = {}
        self._ours, theirs = os.pipe()
        self.descriptors: tuple[int, ...] = (theirs,)
        self.aborted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def serve(self) -> None:
        os.close(self.descriptors[0])
        assert os.read(self._ours, 1) == b""

    def close(self) -> None:
        os.close(self._ours)


async def test_a_killed_rank_is_not_taken_for_a_stopped_one_when_others_notice_its_end_first() -> (
    None
):
    peers, gang_of_one = Alone(), Gang(0, 1, "127.0.0.1", 1, "scope", b"")
    peers.lost.set_result(None)
    async with spawning() as spawn:
        with closing(DyingRank()) as served:
            command = ["sh", "-c", "kill -9 $$"]
            end = await mpirun.run_rank(gang_of_one, command, peers, spawn, served=served)
    assert end == mpirun.RankEnd(-signal.SIGKILL)


#: Its first thread exits, and the other one when its input ends.
OUTLIVED = """
import ctypes, os, threading
threading.Thread(target=lambda: (print(flush=True), os.read(0, 1), os._exit(3))).start()
exit_thread = {"x86_64": 60, "aarch64": 93}[os.uname().machine]
ctypes.CDLL(None).syscall(exit_thread, 0)
"""


def test_a_process_is_exiting_once_all_of_its_threads_are() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", OUTLIVED], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    first = Path(f"/proc/{process.pid}/stat")
    while first.read_text().rpartition(")")[2].split()[0] != "Z":
        os.sched_yield()
    assert not mpirun.is_exiting(process.pid)
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert mpirun.is_exiting(process.pid)
    assert process.wait() == 3


def test_the_first_member_succeeds_only_with_all_others(tmp_path: Path) -> None:
    assert codes(tmp_path, 3, "exit 0") == [0, 0, 0]
    late = "[ $RANK = 2 ] || exit 0; sleep 1; exit 9"
    assert codes(tmp_path, 3, late) == [mpirun.EXIT_STOPPED, 0, 9]


def test_a_command_that_is_not_there_is_named() -> None:
    code, errors = alone(["no-such-command"])
    assert code == mpirun.EXIT_NOT_FOUND
    assert "cannot start 'no-such-command': No such file or directory" in errors


def test_a_rank_is_in_a_group_of_its_own() -> None:
    script = "import os; os._exit(0 if os.getpgid(0) == os.getpid() else 1)"
    assert alone([sys.executable, "-c", script])[0] == 0


@pytest.mark.parametrize(
    ("said", "code"), [("kill -SEGV $$", 139), ("kill -9 $$", 137), ("exit 3", 3)]
)
def test_as_process_1_of_a_container_it_returns_the_code_of_the_signal(
    said: str, code: int
) -> None:
    container = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*container, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine gives no PID namespaces")
    assert alone(["sh", "-c", said], container)[0] == code


def test_ports_of_mpi_are_kept_off_the_network_where_all_members_are_on_this_machine() -> None:
    wanted = 'test "$UCX_NET_DEVICES$FI_TCP_IFACE" = lolo'
    assert alone(["sh", "-c", wanted])[0] == 0
    assert alone(["sh", "-c", wanted], UCX_NET_DEVICES="eth0")[0] == 1
    assert alone(["sh", "-c", wanted], MASTER_ADDR="10.1.2.3")[0] == 1


LOCKED = """
import asyncio, subprocess
from fairlead.member import mpirun

class Lock:
    def end(self):
        path = f"/proc/self/task/{mpirun.os.getpid()}/children"
        print(open(path).read(), flush=True)

lock = Lock()
mpirun.acquire = lambda *_: None
mpirun.AttemptLock.of_this_member = lambda: lock
mpirun.gang_of_environment = lambda: None

async def run(*_):
    subprocess.Popen(["sleep", "90"])
    return 0

mpirun._run = run
"""


@pytest.mark.parametrize(
    "end", ['mpirun.run(["true"])', "asyncio.run(run()); mpirun._terminate(lock)"]
)
def test_the_lock_is_released_once_no_process_of_the_rank_is_left(end: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", f"{LOCKED}\n{end}"],
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    assert ended.stdout == "\n", ended.stderr


KILL = """
import ctypes, subprocess
from fairlead.member import mpirun
ctypes.CDLL(None).prctl(mpirun.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
rank = "setsid sh -c 'sleep 90 & echo $!; wait' & wait"
proxy = subprocess.Popen(["sh", "-c", rank], stdout=subprocess.PIPE)
print(int(proxy.stdout.readline()), flush=True)
mpirun.kill_descendants()
"""


def test_what_a_killed_process_leaves_behind_is_killed_too() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", KILL],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert not Path(f"/proc/{int(ended.stdout)}").exists()


def test_a_signal_is_passed_on_and_the_rank_may_save_first() -> None:
    script = "trap 'echo saved; exit 3' TERM; echo up; sleep 90 & wait"
    member = start(["sh", "-c", script], variables(0, 1, 1))
    assert member.stdout is not None
    assert member.stdout.readline() == "up\n"
    member.terminate()
    said, _ = member.communicate(timeout=PATIENCE_SECONDS)
    assert (member.returncode, said) == (3, "saved\n")


def test_a_rank_without_a_handler_ends_by_the_signal() -> None:
    member = start(["sh", "-c", "echo up; exec sleep 90"], variables(0, 1, 1))
    assert member.stdout is not None
    member.stdout.readline()
    member.terminate()
    member.communicate(timeout=PATIENCE_SECONDS)
    assert member.returncode == -signal.SIGTERM


#: What Slurm's client of PMI-2 (libpmi2 22.05) writes, and reads in the answers.
PMI2 = """
import os, sys
wire = os.fdopen(int(os.environ["PMI_FD"]), "r+b", buffering=0)
wire.write(b"cmd=init pmi_version=2 pmi_subversion=0\\n")
first = b""
while not first.endswith(b"\\n"):
    first += wire.read(1)
assert first.split() == [b"cmd=response_to_init", b"rc=0", b"pmi_version=2", b"pmi_subversion=0"]

def ask(text):
    data = (text + ";").encode()
    wire.write(b"%6d" % len(data) + data)
    length, answer = int(wire.read(6)), b""
    while len(answer) < length:
        answer += wire.read(length - len(answer))
    name, rest = answer.decode().split(";", 1)
    assert name == text.split(";")[0] + "-response", answer
    return rest

rank = os.environ["PMI_RANK"]
begun = ask(f"cmd=fullinit;pmirank={rank};threaded=FALSE").split(";")
assert {"rc=0", f"rank={rank}", "size=3", "appnum=0", "pmi-version=2"} < set(begun), begun
thread, code, kvs, end = ask("cmd=job-getid;thrid=7").split(";")
assert (thread, code, end) == ("thrid=7", "rc=0", "")
kvs = kvs.removeprefix("jobid=")
assert len(kvs) == 32
mapping = ask("cmd=info-getjobattr;key=PMI_process_mapping")
assert mapping == "rc=0;found=TRUE;value=(vector,(0,3,1));", mapping
assert ask("cmd=info-getjobattr;key=universeSize") == "rc=0;found=TRUE;value=3;"
assert ask("cmd=info-getjobattr;key=a0-0") == "rc=0;found=FALSE;"
assert ask("cmd=info-putnodeattr;key=k;value=v;;w=x") == "rc=0;"
assert ask("cmd=info-getnodeattr;key=k;wait=TRUE") == "rc=0;found=TRUE;value=v;;w=x;"
for turn in range(2):
    ask(f"cmd=kvs-put;key=a{turn}-{rank};value={rank};;{turn}=")
    assert ask("cmd=kvs-fence") == "rc=0;"
    found = [ask(f"cmd=kvs-get;jobid={kvs};srcid={o};key=a{turn}-{o}") for o in range(3)]
    assert found == [f"rc=0;found=TRUE;value={o};;{turn}=;" for o in range(3)], found
assert ask("cmd=name-publish;name=x;port=y").startswith("rc=1;errmsg=")
"""


def test_pmi_2_is_served_as_slurms_own_client_asks_for_it(tmp_path: Path) -> None:
    end = 'assert ask("cmd=finalize") == "rc=0;"'
    ended = gang(tmp_path, 3, sys.executable, "-c", f"{PMI2}\n{end}")
    assert [code for code, _, _ in ended] == [0, 0, 0], ended


def test_pmi_2_has_no_code_for_an_abort_and_all_ranks_end(tmp_path: Path) -> None:
    abort = 'data = b"cmd=abort;isworld=TRUE;msg=bad;"; wire.write(b"%6d" % len(data) + data)'
    wait = "import time; time.sleep(90)"
    script = f'{PMI2}\nif rank == "1":\n    {abort}; sys.exit(7)\n{wait}'
    ended = gang(tmp_path, 3, sys.executable, "-c", script)
    assert [code for code, _, _ in ended] == [75, 7, 75], ended


def test_what_is_no_pmi_ends_the_conversation_and_not_the_member() -> None:
    for words in ("b'xxxxxx'", "b'000010cmd'", "b'999999'", "b'    -1cmd=x'", "bytes(range(256))"):
        script = (
            "import os; wire = os.fdopen(int(os.environ['PMI_FD']), 'r+b', buffering=0); "
            "wire.write(b'cmd=init pmi_version=2 pmi_subversion=0\\n'); wire.read(60); "
            f"wire.write({words}); os._exit(0)"
        )
        code, errors = alone([sys.executable, "-c", script])
        assert (code, errors) == (1, "fairlead mpirun: the program ended without MPI_Finalize\n")
