"""The program of a job that is a kernel: when it runs the kernel, and who may see its key."""

from __future__ import annotations

import ast
import json
import os
import stat
import threading
import time
from pathlib import Path

import pytest
from tests.patience import PATIENCE_SECONDS

from fairlead.member import kernel_holder
from fairlead.member.kernel_holder import (
    AGAIN,
    ALIVE,
    CONNECTION,
    END,
    LOST,
    ORDER,
    PORTS,
    STATE,
    KernelHolder,
    make_directory,
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "kernel"
    make_directory(path)
    return path


def state(directory: Path, run: int, *, ended: bool) -> dict[str, int]:
    """Return what the holder says, once it says that of a run."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        if (directory / STATE).exists():
            found = json.loads((directory / STATE).read_text())
            if found["run"] == run and (found["code"] is not None) == ended:
                return found
        time.sleep(0.01)
    raise AssertionError("it does not come")


def order(directory: Path, text: str) -> None:
    """Leave an order, whole at any time, as a client does."""
    (directory / ".asked").write_text(text)
    (directory / ".asked").replace(directory / ORDER)


def test_a_kernel_begins_again_under_the_same_ports_and_ends_when_asked_to(
    directory: Path,
) -> None:
    command = ["sh", "-c", 'cat "$1" >>"$1.seen"; exit 3', "kernel", kernel_holder.PLACEHOLDER]
    holder, codes = KernelHolder(directory, command, 600.0), list[int]()
    thread = threading.Thread(target=lambda: codes.append(holder.run()))
    thread.start()
    assert state(directory, 1, ended=True)["code"] == 3
    order(directory, AGAIN)
    assert state(directory, 2, ended=True)["code"] == 3
    order(directory, END)
    thread.join(PATIENCE_SECONDS)
    assert codes == [0]
    text = (directory / CONNECTION).read_text()
    assert (directory / f"{CONNECTION}.seen").read_text() == 2 * text
    connection = json.loads(text)
    assert len({connection[name] for name in PORTS}) == len(PORTS)
    assert len(connection["key"]) == 64
    assert stat.S_IMODE((directory / CONNECTION).stat().st_mode) == 0o600


def test_without_a_client_it_ends_the_kernel_and_all_that_it_started(directory: Path) -> None:
    script = "trap : TERM; sleep 600 & echo $! >$0.new; mv $0.new $0; wait; wait"
    command = ["sh", "-c", script, str(directory / "p")]
    holder, codes = KernelHolder(directory, command, 600.0), list[int]()
    thread = threading.Thread(target=lambda: codes.append(holder.run()))
    thread.start()
    until = time.monotonic() + PATIENCE_SECONDS
    while not (directory / "p").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    pid = int((directory / "p").read_text())
    assert thread.is_alive()
    os.utime(directory / ALIVE, (0, 0))  # the last client was there long ago
    thread.join(PATIENCE_SECONDS)
    assert codes == [LOST]
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_program_that_is_not_there_is_the_exit_code_of_a_shell(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kernel_holder, "ORDER_SECONDS", 0.0)
    assert KernelHolder(directory, ["/nonexistent/kernel"], 600.0).run() == 127
    assert "/nonexistent/kernel: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("laid", ["link", "open", "owner"])
def test_a_directory_of_another_user_is_not_used(tmp_path: Path, laid: str) -> None:
    path = tmp_path / "kernel"
    if laid == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        path.symlink_to(tmp_path / "elsewhere")
    elif laid == "open":
        path.mkdir()
        path.chmod(0o777)
    elif os.geteuid() == 0:
        path.mkdir(mode=0o700)
        os.chown(path, 65534, 65534)
    else:
        pytest.skip("only root can act as another user")
    with pytest.raises(SystemExit, match="is not this job's own"):
        make_directory(path)


def test_it_can_be_read_by_python_3_8_and_imports_nothing_of_ours() -> None:
    text = Path(str(kernel_holder.__file__)).read_text()
    ast.parse(text, feature_version=(3, 8))
    assert "fairlead." not in "".join(line for line in text.splitlines() if "import" in line)
