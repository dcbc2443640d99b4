"""The members of a gang in their gate: real connections on this machine, without a cluster."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

import msgspec
import pytest

from fairlead.api.cluster.machine_result import SuiteResult, decode_result, encode_result
from fairlead.api.cluster.node_suites import Suite
from fairlead.api.jobs.preflight import PreflightSuite
from fairlead.api.values.outcomes import MachineOutcome
from fairlead.member.gang_link import Gang
from fairlead.node.gang_gate import GateEnd, pairs, run_gate
from fairlead.node.gang_gate.leader import Hello, Meeting
from fairlead.node.gang_gate.pairs import PairMeasure

#: None of its own: what is tested here is what happens between members.
NOTHING = Suite("gang", 5.0, ())
#: The memory test of a few MiB on each member, as one test of its own.
SMALL = Suite("gang", 20.0, ("memory",), {"memory": {"bytes": 8 << 20, "timeout_seconds": 20.0}})


@pytest.fixture(autouse=True, scope="module")
def _built() -> None:
    """Have msgspec build its types: it does so at their first use, and not in several threads at a
    time. A member is a process of its own, so here alone they share one.
    """
    list(SMALL.kinds())
    for each in (Hello("n", "r", SuiteResult("gang", ())), Meeting(1, 2), PairMeasure(1)):
        assert msgspec.convert(msgspec.to_builtins(each), type(each)) == each
    decode_result(encode_result(run_gate(PreflightSuite.QUICK, {}, suite=SMALL).result).decode())


def _environment(folder: Path, rank: int, size: int, *, key: bytes = b"k" * 32) -> dict[str, str]:
    (folder / f"key-{key[:1].hex()}").write_bytes(key)
    hosts = "".join(f"127.9.0.{i + 1} slots=1\n" for i in range(size))
    (folder / "hostfile").write_text(hosts)
    return {
        "RANK": str(rank), "WORLD_SIZE": str(size), "FAIRLEAD_ROLE": "worker",
        "FAIRLEAD_NODE": f"n{rank}", "FAIRLEAD_JOB_UID": folder.name, "FAIRLEAD_ATTEMPT": "1",
        "FAIRLEAD_HOSTFILE": str(folder / "hostfile"),
        "FAIRLEAD_MPI_KEY_FILE": str(folder / f"key-{key[:1].hex()}"),
    }  # fmt: skip


def _gate(
    folder: Path, ranks: range, size: int, *, wish: PreflightSuite = PreflightSuite.NETWORK,
    suite: Suite = NOTHING, seconds: float = 20.0,
) -> list[GateEnd]:  # fmt: skip
    environments = [_environment(folder, rank, size) for rank in ranks]
    with ThreadPoolExecutor(len(ranks)) as pool:
        running = [
            pool.submit(run_gate, wish, each, suite=suite, seconds_max=seconds)
            for each in environments
        ]
        return [each.result() for each in running]


def test_every_member_measures_its_connections_and_all_go_on(tmp_path: Path) -> None:
    ends = _gate(tmp_path, range(3), 3)
    assert [each.code for each in ends] == [0, 0, 0], ends
    for rank, end in enumerate(ends):
        assert sorted(each.peer for each in end.result.pairs) == sorted({0, 1, 2} - {rank})
        assert all(each.bytes_per_second > 0 and not each.error for each in end.result.pairs)
        assert decode_result(encode_result(end.result).decode()) == end.result
    assert any(each.round_trip_seconds > 0 for each in ends[0].result.pairs)


def test_members_run_their_own_tests_and_quick_meets_nobody(tmp_path: Path) -> None:
    ends = _gate(tmp_path, range(2), 2, wish=PreflightSuite.QUICK, suite=SMALL)
    for end in ends:
        [found] = end.result.measured
        assert (found.test, found.outcome) == ("memory", MachineOutcome.PASSED), found
        assert (end.code, end.result.pairs) == (0, ())


def test_a_member_alone_has_nobody_to_ask() -> None:
    end = run_gate(PreflightSuite.NETWORK, {}, suite=NOTHING)
    assert (end.code, end.result.pairs) == (0, ())


def test_who_waits_for_a_member_that_never_comes_goes_on_in_time_with_an_error(
    tmp_path: Path,
) -> None:
    began = monotonic()
    ends = _gate(tmp_path, range(2), 3, seconds=12.0)
    assert monotonic() - began < 25  # of 30 without the bound
    assert [each.code for each in ends] == [0, 0]
    assert "did not come in time" in ends[1].message


def test_who_waits_for_the_first_member_goes_on_in_time_with_an_error(tmp_path: Path) -> None:
    [end] = _gate(tmp_path, range(1, 2), 2, seconds=4.0)
    assert end.code == 0
    assert [each.outcome for each in end.result.measured] == [MachineOutcome.ERROR]


@pytest.mark.parametrize("missing", ["FAIRLEAD_MPI_KEY_FILE", "FAIRLEAD_HOSTFILE"])
def test_without_what_members_share_there_is_an_error_and_the_program_starts(
    tmp_path: Path, missing: str
) -> None:
    environment = _environment(tmp_path, 0, 2)
    del environment[missing]
    end = run_gate(PreflightSuite.QUICK, environment, suite=NOTHING)
    assert end.code == 0
    assert [each.outcome for each in end.result.measured] == [MachineOutcome.ERROR]


def test_a_stranger_with_another_key_takes_nobodys_place(tmp_path: Path) -> None:
    wrong = _environment(tmp_path, 1, 2, key=b"x" * 32)
    right = [_environment(tmp_path, rank, 2) for rank in range(2)]
    with ThreadPoolExecutor(3) as pool:
        stranger = pool.submit(
            run_gate, PreflightSuite.QUICK, wrong, suite=NOTHING, seconds_max=6.0
        )
        honest = [
            pool.submit(run_gate, PreflightSuite.QUICK, each, suite=NOTHING, seconds_max=20.0)
            for each in right
        ]
        assert [each.result().code for each in honest] == [0, 0]
        assert all(
            each.outcome is not MachineOutcome.ERROR
            for end in honest for each in end.result().result.measured
        )  # fmt: skip
        assert [each.outcome for each in stranger.result().result.measured] == [
            MachineOutcome.ERROR
        ]


# Two members


def _gangs() -> tuple[Gang, Gang]:
    first, second = (Gang(rank, 2, "127.0.0.1", 0, "here", b"k" * 32) for rank in range(2))
    return first, second


def _meeting(
    *, sent: bytes, expected: bytes, strangers: int = 0
) -> tuple[PairMeasure, PairMeasure]:
    client, server = _gangs()
    with pairs.listen("127.0.0.1") as listener, ThreadPoolExecutor(2) as pool:
        port = listener.getsockname()[1]
        for _ in range(strangers):
            with socket.create_connection(("127.0.0.1", port)) as stranger:
                stranger.sendall(b"x" * 32)
        serving = pool.submit(pairs.serve, server, listener, 3, 0, data=expected)
        meeting = pool.submit(pairs.meet, client, "127.0.0.1", port, number=3, server=1, data=sent)
        return meeting.result(), serving.result()


def test_two_members_measure_the_same_connection() -> None:
    data = bytes(range(256)) * 1024
    began = monotonic()
    at_client, at_server = _meeting(sent=data, expected=data)
    seconds = monotonic() - began
    assert (at_client.error, at_server.error) == ("", "")
    assert at_client.bytes_per_second > 0.9 * len(data) / seconds
    assert at_server.bytes_per_second > 0.9 * len(data) / seconds
    assert 0 < at_client.round_trip_seconds < seconds
    assert not at_client.is_wrong


def test_data_that_arrives_changed_is_found_at_both_ends() -> None:
    data = bytes(range(256)) * 1024
    changed = data[:-1] + b"\0"
    at_client, at_server = _meeting(sent=changed, expected=data)
    assert (at_client.is_wrong, at_server.is_wrong) == (True, True)


def test_strangers_do_not_keep_members_from_meeting() -> None:
    data = b"d" * 4096
    at_client, at_server = _meeting(sent=data, expected=data, strangers=3)
    assert (at_client.error, at_server.error) == ("", "")


def test_a_listener_without_the_key_is_no_measurement() -> None:
    client, _ = _gangs()
    with pairs.listen("127.0.0.1") as listener:

        def forge() -> None:
            found, _ = listener.accept()
            with found:
                found.sendall(b"z" * 32)

        thread = threading.Thread(target=forge)
        thread.start()
        port = listener.getsockname()[1]
        measure = pairs.meet(client, "127.0.0.1", port, number=0, server=1)
        thread.join()
    assert measure.error == "what listens there is not the member"
    assert not measure.is_wrong
