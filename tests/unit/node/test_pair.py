"""Two sides of a pair on this machine: real connections, and those who are not of the pair."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.patience import PATIENCE_SECONDS
from tests.ports import free_port

from fairlead.api.cluster.machine_result import PairMeasure, decode_result
from fairlead.cli.commands.agent_pair import pair as command
from fairlead.node.gang_gate import pairs, run_pair

HOST = "127.9.1.1"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.write_bytes(b"k" * 32)
    return file


@pytest.fixture
def port() -> int:
    return free_port()


def both(
    port: int, listens: Callable[[], PairMeasure], connects: Callable[[], PairMeasure]
) -> tuple[PairMeasure, PairMeasure]:
    with ThreadPoolExecutor(2) as pool:
        one, two = pool.submit(listens), pool.submit(connects)
        return one.result(), two.result()


def listen(port: int, key: Path, name: str = "p", wait: float = 10.0) -> PairMeasure:
    return run_pair(name, key, host=HOST, port=port, wait_seconds=wait).pairs[0]


def connect(port: int, key: Path, name: str = "p", wait: float = 10.0) -> PairMeasure:
    return run_pair(name, key, address=HOST, port=port, wait_seconds=wait).pairs[0]


def test_both_sides_measure_both_directions(
    key: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs, "SECONDS", 0.05)
    one, two = both(port, lambda: listen(port, key), lambda: connect(port, key))
    for each in (one, two):
        assert (each.error, each.is_wrong) == ("", False)
        assert each.bytes_per_second > 1e6
    assert two.round_trip_seconds > 0


@pytest.mark.parametrize("bad", ["listens", "connects"])
def test_data_that_is_changed_in_one_direction_is_known_at_both_ends(
    key: Path, port: int, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    """Only what the bad side sends is another pattern."""
    monkeypatch.setattr(pairs, "SECONDS", 0.05)
    wrong = bytes(pairs.CHUNK_BYTES)
    send = pairs._send
    mine = threading.local()

    def sent(found: socket.socket, data: bytes, deadline: float) -> tuple[float, bool]:
        return send(found, wrong if getattr(mine, "is_bad", False) else data, deadline)

    monkeypatch.setattr(pairs, "_send", sent)

    def side(run: Callable[[int, Path], PairMeasure], name: str) -> PairMeasure:
        mine.is_bad = name == bad
        return run(port, key)

    one, two = both(port, lambda: side(listen, "listens"), lambda: side(connect, "connects"))
    assert (one.is_wrong, two.is_wrong) == (True, True)


def test_a_stranger_that_connects_first_measures_nothing_and_the_pair_meets(
    key: Path, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs, "SECONDS", 0.05)
    wrong = tmp_path / "wrong"
    wrong.write_bytes(b"x" * 32)
    with ThreadPoolExecutor(3) as pool:
        listens = pool.submit(listen, port, key)
        stranger = pool.submit(connect, port, wrong).result()
        assert stranger.error
        for _ in range(3):  # and some that say nothing
            with suppress(OSError):
                socket.create_connection((HOST, port)).close()
        other = pool.submit(connect, port, key, "another pair").result()
        assert other.error, "the key of a pair is good for that pair alone"
        found = pool.submit(connect, port, key).result()
        assert (found.error, listens.result().error) == ("", "")


def test_what_listens_and_has_no_key_is_no_partner(key: Path, port: int, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_bytes(b"x" * 32)
    with ThreadPoolExecutor(1) as pool:
        liar = pool.submit(listen, port, wrong, "p", 0.0)
        found = connect(port, key)
    assert found.error
    assert liar.result().error


def test_a_partner_that_reads_nothing_is_no_path_that_loses_packets(
    key: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = threading.Event()

    def stalls(*_: object) -> tuple[float, bool]:
        ends.wait(PATIENCE_SECONDS)
        raise pairs.MeetingFailed("it was stopped")

    monkeypatch.setattr(pairs, "_received", stalls)
    monkeypatch.setattr(pairs, "STUCK_SECONDS", 1.0)

    def connects() -> PairMeasure:
        try:
            return connect(port, key)
        finally:
            ends.set()

    _, found = both(port, lambda: listen(port, key), connects)
    assert (found.loses_full_packets, "did not answer" in found.error) == (False, True)


def test_without_partner_or_key_there_is_an_error_that_says_so(
    key: Path, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs, "MEETING_SECONDS_MAX", 0.2)
    assert "refused" in connect(port, key, wait=0.3).error
    assert listen(port, key, wait=0.1).error
    assert "cannot be read" in connect(port, tmp_path / "none", wait=0.0).error
    short = tmp_path / "short"
    short.write_bytes(b"k")
    assert "less than 32 bytes" in listen(port, short).error


def test_the_command_leaves_the_result_of_a_pod(key: Path, tmp_path: Path) -> None:
    out = tmp_path / "result"
    words = ["--pair", "p", "--key", str(tmp_path / "none"), "--result", str(out)]
    ended = CliRunner().invoke(
        command, [*words, "--connect", HOST, "--peer", "n2"], standalone_mode=False
    )
    assert ended.return_value == 4, ended.output
    [found] = decode_result(out.read_text()).pairs
    assert "cannot be read" in found.error
