"""A way to a held terminal tells a holder that does not answer from one that is not there."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest
from tests.patience import PATIENCE_SECONDS

from fairlead.member import terminal_way
from fairlead.member.terminal_frames import INFO, NO_ANSWER, NO_SESSION, frame


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    """Listen as a holder does, and answer nothing."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("FAIRLEAD_JOB_UID", "of-the-test-of-ways")
    monkeypatch.setattr(terminal_way, "ANSWER_SECONDS", 0.05)
    made = terminal_way._listen()  # pyright: ignore[reportPrivateUsage] # that of holders
    assert made is not None
    return made[0]


def exit_code_of_join(name: str) -> object:
    """Return how a way to a session ends that cannot be joined."""
    with pytest.raises(SystemExit) as ended:
        terminal_way.main(["join", name])
    return ended.value.code


def test_a_holder_without_a_processor_is_no_session_that_has_gone(
    listener: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of_join("a") == NO_ANSWER
    assert "does not answer" in capsys.readouterr().err
    listener.close()
    assert exit_code_of_join("a") == NO_SESSION


def test_a_holder_whose_queue_of_connections_is_full_is_one_that_does_not_answer(
    listener: socket.socket, tmp_path: Path
) -> None:
    listener.listen(0)
    with socket.socket(socket.AF_UNIX) as first:
        directory = os.open(next(tmp_path.iterdir()), os.O_RDONLY)
        first.connect(f"/proc/self/fd/{directory}/socket")  # its own name is too long for one
        os.close(directory)
        assert exit_code_of_join("a") == NO_ANSWER


def test_a_holder_of_another_name_is_no_silent_one(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(frame(INFO, b'{"name": "b"}'))

    answering = threading.Thread(target=answer)
    monkeypatch.setattr(terminal_way, "ANSWER_SECONDS", PATIENCE_SECONDS)
    answering.start()
    assert exit_code_of_join("a") == NO_SESSION
    answering.join()
    listener.close()
