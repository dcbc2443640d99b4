"""Tests of the machine: what they measure here, and what they find in one that is broken."""

from __future__ import annotations

import itertools
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.api.cluster.machine_result import (
    FIGURES_MAX,
    RESULT_BYTES_MAX,
    Figure,
    MachineFinding,
    MachineOutcome,
    SuiteResult,
    UnreadableResult,
    decode_result,
    encode_result,
    worst_outcome,
)
from fairlead.api.cluster.node_report import Action
from fairlead.api.cluster.node_suites import (
    Better,
    MachineTest,
    Option,
    machine_tests,
    suite_of,
    suites,
)
from fairlead.node.machine_tests import clock, cpu, disk, gpu_clocks, memory, mount, names, numa
from fairlead.node.machine_tests.program import measured
from fairlead.node.machine_tests.programs import PROGRAMS, run_program
from fairlead.node.machine_tests.runner import (
    AlreadyRunning,
    UnknownTest,
    lock_path,
    run_suite,
    run_test,
)
from fairlead.node.running.host import ClockState, Host

SMALL: dict[str, dict[str, Option]] = {
    "cpu": {"seconds": 0.3}, "memory": {"bytes": 4 << 20}, "clock": {"seconds": 0.1},
    "names": {"names": ["localhost"]},
}  # fmt: skip


def run(test: str, **options: Any) -> MachineFinding:
    return run_program(test, msgspec.json.encode(options).decode())


def values(found: MachineFinding) -> dict[str, float]:
    return {each.name: each.value for each in found.figures}


# The suites as data


def test_every_test_of_a_suite_has_a_program_that_takes_its_options() -> None:
    assert set(PROGRAMS) == {*machine_tests()} - {"network"}, "that one is of two machines"
    for suite in suites().values():
        for kind in suite.kinds():
            type_, _ = PROGRAMS[kind.name]
            decoded = msgspec.convert(kind.options, type_, strict=True)
            assert set(kind.options) == set(msgspec.structs.asdict(decoded))
            assert getattr(decoded, "seconds", 0.0) < kind.timeout_seconds <= suite.seconds


def test_floors_are_of_figures_that_are_judged() -> None:
    from fairlead.api.cluster.node_suites import device_floor

    assert device_floor("NVIDIA H100 80GB HBM3", "gpu-peers", "peerBytesPerSecond") == 335e9
    assert device_floor("NVIDIA H100 80GB HBM3", "cpu", "roundsPerSecond") is None
    assert device_floor("another", "gpu-peers", "peerBytesPerSecond") is None
    kinds = machine_tests()
    assert kinds["gpu-peers"].kind_of("peerBytesPerSecond").better is Better.HIGHER
    assert kinds["cpu"].kind_of("new").better is Better.NEITHER


# On this machine


def test_every_core_computes_the_known_digest() -> None:
    found = run("cpu", seconds=0.3)
    assert found.outcome is MachineOutcome.PASSED
    assert values(found)["cores"] == len(os.sched_getaffinity(0))
    assert values(found)["roundsPerSecond"] > 1


def test_a_core_that_computes_wrong_fails_the_machine_and_is_named() -> None:
    target = max(os.sched_getaffinity(0))

    def flipped() -> str:
        wrong = os.sched_getaffinity(0) == {target}
        return cpu.compute()[:-1] + "x" if wrong else cpu.compute()

    found = measured("cpu", lambda: cpu.measure(cpu.CpuOptions(seconds=0.1), flipped))
    assert found.outcome is MachineOutcome.FAILED
    cores = len(os.sched_getaffinity(0))
    assert found.message.startswith(f"wrong results on 1 of {cores} CPUs: {target} (")
    assert values(found)["cores"] == cores, "the figures are kept"


def test_memory_keeps_what_is_written() -> None:
    found = run("memory", bytes=8 << 20)
    assert found.outcome is MachineOutcome.PASSED
    assert values(found)["testedBytes"] == 8 << 20
    assert values(found)["copyBytesPerSecond"] > 1e6


@pytest.mark.parametrize("place", [0, 5, (1 << 20) + 17, (4 << 20) - 1])
def test_one_flipped_bit_of_memory_is_found(place: int) -> None:
    def flip(view: memoryview) -> None:
        view[place] ^= 0x10

    found = measured("memory", lambda: memory.measure(memory.RamOptions(4 << 20), spoil=flip))
    assert found.outcome is MachineOutcome.FAILED
    assert found.message == "1 of 4 blocks of 1 MiB did not keep what was written"


def test_a_line_of_the_address_that_is_stuck_is_found() -> None:
    def alias(view: memoryview) -> None:
        view[1 << 20 : 2 << 20] = view[: 1 << 20]

    found = measured("memory", lambda: memory.measure(memory.RamOptions(4 << 20), spoil=alias))
    assert found.outcome is MachineOutcome.FAILED


def test_memory_of_a_small_container_is_not_exhausted(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 99 kB\nMemAvailable: 8388608 kB\n")
    limit = tmp_path / "sys/fs/cgroup/memory.max"
    limit.parent.mkdir(parents=True)
    limit.write_text(f"{32 << 20}\n")
    found = measured("memory", lambda: memory.measure(memory.RamOptions(1 << 30), tmp_path))
    assert values(found)["testedBytes"] == 8 << 20
    limit.write_text(f"{1 << 20}\n")
    found = measured("memory", lambda: memory.measure(memory.RamOptions(1 << 30), tmp_path))
    assert (found.outcome, found.message) == (
        MachineOutcome.SKIPPED, "too little memory is free to test any",
    )  # fmt: skip


def test_a_disk_gives_back_what_was_written_and_nothing_is_left(tmp_path: Path) -> None:
    found = run("disk", bytes=8 << 20, directory=str(tmp_path))
    assert found.outcome is MachineOutcome.PASSED
    assert set(values(found)) == {"writeBytesPerSecond", "readBytesPerSecond", "syncSeconds"}
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_changes_a_byte_fails(tmp_path: Path) -> None:
    def spoil(descriptor: int) -> None:
        (byte,) = os.pread(descriptor, 1, 4_999_999)
        os.pwrite(descriptor, bytes([byte ^ 1]), 4_999_999)

    options = disk.DiskOptions(8 << 20, str(tmp_path))
    found = measured("disk", lambda: disk.measure(options, spoil))
    assert found.outcome is MachineOutcome.FAILED
    assert "is not what was written" in found.message


def test_a_disk_without_a_place_or_room_is_skipped_and_one_that_cannot_be_written_an_error(
    tmp_path: Path,
) -> None:
    assert run("disk").message == "no directory is given"
    assert run("disk", directory=str(tmp_path / "none")).outcome is MachineOutcome.SKIPPED
    full = run("disk", directory=str(tmp_path), bytes=1 << 60)
    assert (full.outcome, "too little is free" in full.message) == (MachineOutcome.SKIPPED, True)
    assert run("disk", directory="/proc").outcome in (MachineOutcome.SKIPPED, MachineOutcome.ERROR)


def ticking(*, step: float = 0.01, ppm: float = 0.0, jump_at: int = -1) -> clock.Clocks:
    """Return clocks that advance with each look; the wall clock drifts or jumps."""
    steady, looks = itertools.count(1), itertools.count()
    now = [0.0]

    def count() -> float:
        now[0] = next(steady) * step
        return now[0]

    def wall() -> float:
        jumped = next(looks) >= jump_at > 0
        return 1e9 + (now[0] + step / 2) * (1 + ppm / 1e6) + (5.0 if jumped else 0.0)

    return clock.Clocks(wall, count, lambda _: None)


def look(clocks: clock.Clocks, state: ClockState) -> MachineFinding:
    host = Host(clock_state=lambda: state)
    return measured("clock", lambda: clock.measure(clock.ClockOptions(), clocks, host))


SYNCHRONIZED, FREE = (
    ClockState(is_synchronized=True, offset_seconds=0.01),
    ClockState(is_synchronized=False, offset_seconds=99.0),
)


def test_a_clock_that_runs_evenly_passes_and_shows_its_drift() -> None:
    found = look(ticking(ppm=50.0), SYNCHRONIZED)
    assert found.outcome is MachineOutcome.PASSED
    assert values(found)["driftPpm"] == pytest.approx(50.0, rel=0.05)
    assert values(found)["offsetSeconds"] == 0.01


@pytest.mark.parametrize(
    ("clocks", "state", "message"),
    [
        (ticking(jump_at=7), SYNCHRONIZED, "the clock jumped by 5.000 s"),
        (ticking(ppm=9000.0), SYNCHRONIZED, "the clock drifts by"),
        (ticking(), ClockState(is_synchronized=True, offset_seconds=-3.0),
         "the clock is off by -3.000 s"),
    ],
)  # fmt: skip
def test_a_clock_that_jumps_drifts_or_is_far_off_fails(
    clocks: clock.Clocks, state: ClockState, message: str
) -> None:
    found = look(clocks, state)
    assert (found.outcome, found.message[: len(message)]) == (MachineOutcome.FAILED, message)


def test_the_offset_of_a_clock_that_nothing_disciplines_is_not_known() -> None:
    found = look(ticking(), FREE)
    assert (found.outcome, "offsetSeconds" in values(found)) == (MachineOutcome.PASSED, False)


def test_the_clock_of_this_machine_is_read() -> None:
    assert "driftPpm" in values(run("clock", seconds=0.1))


def test_names_are_resolved_and_one_that_answers_once_in_three_passes() -> None:
    assert run("names").outcome is MachineOutcome.SKIPPED
    assert run("names", names=["localhost"]).outcome is MachineOutcome.PASSED
    tries = itertools.count()

    def flaky(_name: str, _port: None) -> list[str]:
        if next(tries) < 2:
            raise OSError("temporary failure")
        return ["::1"]

    options = names.NamesOptions(("storage",))
    assert measured("names", lambda: names.measure(options, flaky)).outcome is MachineOutcome.PASSED

    def dead(_name: str, _port: None) -> list[str]:
        raise OSError("temporary failure")

    found = measured("names", lambda: names.measure(options, dead))
    assert (found.outcome, found.message) == (
        MachineOutcome.FAILED, "storage cannot be resolved: temporary failure",
    )  # fmt: skip
    assert run("names", names=["a" * 300]).outcome is MachineOutcome.FAILED


def test_storage_that_is_not_mounted_fails_and_what_is_mounted_takes_a_file(tmp_path: Path) -> None:
    assert run("mount").outcome is MachineOutcome.SKIPPED
    assert run("mount", paths=["/dev/shm"]).outcome is MachineOutcome.PASSED  # a mount
    found = run("mount", paths=[str(tmp_path)])
    assert (found.outcome, found.message) == (
        MachineOutcome.FAILED, f"nothing is mounted at {tmp_path}",
    )  # fmt: skip
    assert run("mount", paths=["/proc"]).outcome is MachineOutcome.FAILED
    assert list(mount.MountOptions().paths) == []


def test_the_sides_of_a_machine_are_those_with_cpus_that_may_be_used(tmp_path: Path) -> None:
    host = Host(root=tmp_path)
    assert numa.sides(host, {0, 1}) == [frozenset({0, 1})], "the kernel names none"
    for name, text in (("node0", "0-3,8-9\n"), ("node1", "4-7\n"), ("node2", "\n"),
                       ("node3", "many\n")):  # fmt: skip
        (tmp_path / "sys/devices/system/node" / name).mkdir(parents=True)
        (tmp_path / "sys/devices/system/node" / name / "cpulist").write_text(text)
    (tmp_path / "sys/devices/system/node/possible").write_text("0-3")
    assert numa.sides(host, range(8)) == [frozenset({0, 1, 2, 3}), frozenset({4, 5, 6, 7})]
    assert numa.sides(host, {9, 4}) == [frozenset({9}), frozenset({4})]
    assert numa.sides(host, {10}) == [frozenset({10})]


def test_work_on_one_side_leaves_the_thread_where_it_was() -> None:
    before = os.sched_getaffinity(0)
    seen = list[object]()

    def work() -> None:
        with numa.on({min(before)}):
            seen.append(os.sched_getaffinity(0))
            raise RuntimeError("here")

    with pytest.raises(RuntimeError, match="here"):
        work()
    assert seen == [{min(before)}]
    assert os.sched_getaffinity(0) == before


def test_gpus_are_tested_or_it_is_said_why_not() -> None:
    for name in (each for each in machine_tests() if each.startswith("gpu-")):
        found = run(name)
        if found.outcome is MachineOutcome.SKIPPED:
            assert found.message
            assert found.figures == ()
        elif found.outcome is not MachineOutcome.ERROR:  # as where something uses the GPU
            assert found.outcome is MachineOutcome.PASSED
            assert values(found)


def test_a_gpu_that_its_hardware_slows_down_has_failed_and_one_at_its_power_limit_has_not() -> None:
    good = "0, 1755, 1980, 690.12, 61, 0x0000000000000004"
    (state,) = gpu_clocks.read_states(f"{good}\n1, [N/A], 1980, [N/A], 61, 0x0\nno devices found\n")
    assert state == gpu_clocks.GpuState(0, 1755e6, 1980e6, 690.12, 61.0, 4)

    def judged(*states: gpu_clocks.GpuState) -> MachineFinding:
        return measured("gpu-clocks", lambda: gpu_clocks.judge_states(states))

    found = judged(state)
    assert found.outcome is MachineOutcome.PASSED
    assert values(found) == {
        "smHertz": 1.755e9,
        "smClockShare": 0.886364,
        "watts": 690.12,
        "celsius": 61.0,
    }
    slowed = gpu_clocks.GpuState(3, 345e6, 1980e6, 210.0, 94.0, 0x44)
    found = judged(state, slowed)
    assert found.outcome is MachineOutcome.FAILED
    assert found.message == "GPU 3 is slowed down: heat, at 94 °C"
    assert values(found)["smHertz"] == 345e6
    assert judged().outcome is MachineOutcome.SKIPPED


def test_options_that_are_none_are_an_error_and_no_fault_of_the_machine() -> None:
    assert run("cpu", seconds="long").outcome is MachineOutcome.ERROR


# The runner


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "lock"


def test_a_suite_runs_for_real_and_fits_into_a_termination_message(
    tmp_path: Path, lock: Path
) -> None:
    options = SMALL | {"disk": {"directory": str(tmp_path), "bytes": 4 << 20}}
    begun: list[str] = []
    found = run_suite(suites()["quick"], options=options, lock=lock, began=begun.append)
    assert begun == list(suites()["quick"].tests)
    outcomes = {each.test: each.outcome for each in found.measured}
    for name in ("cpu", "memory", "disk", "names"):
        assert outcomes[name] is MachineOutcome.PASSED
    assert found.boot_id == Host().boot_id()
    assert "kernel" in found.versions
    assert decode_result(encode_result(found).decode()) == found


def test_only_the_tests_that_are_named_run(lock: Path) -> None:
    found = run_suite(suites()["quick"], only=["names"], options=SMALL, lock=lock)
    assert [each.test for each in found.measured] == ["names"]
    with pytest.raises(UnknownTest, match="suite quick has no test 'gpu'; it has cpu, memory"):
        run_suite(suites()["quick"], only=["gpu"], lock=lock)


def test_two_suites_do_not_measure_each_other(lock: Path) -> None:
    quick = suites()["quick"]

    def second(_: str) -> None:
        with pytest.raises(AlreadyRunning, match="another suite runs"):
            run_suite(quick, only=["names"], lock=lock)

    found = run_suite(quick, only=["names"], options=SMALL, lock=lock, began=second)
    assert found.measured[0].outcome is MachineOutcome.PASSED


def test_no_other_user_holds_the_lock_or_chooses_the_file(tmp_path: Path, lock: Path) -> None:
    quick, run, own = suites()["quick"], tmp_path / "run", tmp_path / "own"
    lock.touch(0o644)
    run_suite(quick, only=["names"], options=SMALL, lock=lock)
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600
    lock.unlink()
    lock.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        run_suite(quick, only=["names"], options=SMALL, lock=lock)
    assert not (tmp_path / "elsewhere").exists()
    for each in (run, own):
        each.mkdir()
    session = {"XDG_RUNTIME_DIR": str(own)}
    assert lock_path(session, user_id=0, run=run).parent == run
    assert lock_path(session, user_id=1000, run=run).parent == own
    assert lock_path({}, user_id=1000, run=run).parent == Path(tempfile.gettempdir())


@pytest.fixture
def slow() -> MachineTest:
    return msgspec.structs.replace(
        machine_tests()["cpu"], options={"seconds": 60.0}, timeout_seconds=0.5
    )


def test_a_test_that_does_not_end_is_killed_with_all_it_started(slow: MachineTest) -> None:
    found = run_test(slow, seconds_max=60)
    assert (found.outcome, found.message) == (MachineOutcome.ERROR, "killed after 0.5 s")
    hard = msgspec.structs.replace(slow, late=MachineOutcome.FAILED)
    assert run_test(hard, seconds_max=60).outcome is MachineOutcome.FAILED
    assert run_test(hard, seconds_max=0.3).outcome is MachineOutcome.ERROR, (
        "the suite's time was over"
    )
    assert run_test(hard, seconds_max=0).message == "the time of the suite is over"


OWN = MachineTest(
    "site-ib", "links of the site", Action.REPLACE, MachineOutcome.FAILED, 30.0,
    command=("/bin/sh", "-c"), suites=("quick",),
)  # fmt: skip


def run_own(script: str) -> MachineFinding:
    return run_test(msgspec.structs.replace(OWN, command=(*OWN.command, script)), seconds_max=60)


@pytest.mark.parametrize(
    ("script", "outcome", "message"),
    [
        ("echo fine", MachineOutcome.PASSED, ""),
        ("echo port 1 is down; exit 1", MachineOutcome.FAILED, "port 1 is down"),
        ("exit 1", MachineOutcome.FAILED, "exit code 1"),
        ("echo no tool; exit 2", MachineOutcome.ERROR, "no tool"),
        ("""echo '{"outcome": "Skipped", "message": "none"}'""", MachineOutcome.SKIPPED, "none"),
        ("""echo '{"outcome": "Passed"}'; exit 1""", MachineOutcome.FAILED, "exit code 1"),
        ("""echo '{"outcome": "Failed", "message": "bad"}'""", MachineOutcome.FAILED, "bad"),
        ("""echo '{"figures": 3}'""", MachineOutcome.ERROR, "its line of JSON cannot be read"),
        ("kill -9 $$", MachineOutcome.ERROR, ""),
    ],
)
def test_what_an_administrators_test_says_is_taken_as_of_his_checks_of_the_agent(
    script: str, outcome: MachineOutcome, message: str
) -> None:
    found = run_own(script)
    assert (found.test, found.outcome) == ("site-ib", outcome)
    assert found.message.startswith(message)


def test_an_administrators_test_has_figures_a_time_out_and_no_variables_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "of a user")
    found = run_own("""echo '{"figures": [{"name": "gbps", "value": 97'"$NCCL_DEBUG"'}]}'""")
    assert found.figures == (Figure("gbps", 97.0),)
    endless = msgspec.structs.replace(OWN, command=("/bin/sleep", "60"), timeout_seconds=0.3)
    assert run_test(endless, seconds_max=60).outcome is MachineOutcome.FAILED
    assert run_test(endless, seconds_max=0.1).outcome is MachineOutcome.ERROR
    missing = msgspec.structs.replace(OWN, command=("/none/such",))
    assert run_test(missing, seconds_max=60).outcome is MachineOutcome.ERROR


def test_a_suite_has_the_administrators_tests_that_belong_to_it_and_their_time(
    tmp_path: Path,
) -> None:
    own = (msgspec.structs.replace(OWN, command=("/bin/true",)),)
    suite, plain = suite_of("quick", (), own), suites()["quick"]
    assert suite is not None
    assert suite.tests == (*plain.tests, "site-ib")
    assert suite.seconds == plain.seconds + 30.0
    assert suite_of("full", (), own) == suites()["full"], "it is not of this suite"
    again = suite_of("quick", ("memory",), own)
    assert again is not None
    assert "site-ib" in {each.name for each in again.kinds()}
    result = run_suite(suite, only=("site-ib",), lock=tmp_path / "lock")
    assert [each.outcome for each in result.measured] == [MachineOutcome.PASSED]


def test_a_test_of_a_newer_table_is_skipped(slow: MachineTest) -> None:
    newer = msgspec.structs.replace(slow, name="fabric")
    assert run_test(newer, seconds_max=60).outcome is MachineOutcome.SKIPPED


# Results


def test_the_worst_outcome_is_that_of_the_suite() -> None:
    def of(*outcomes: MachineOutcome) -> MachineOutcome:
        return worst_outcome(MachineFinding(str(i), each) for i, each in enumerate(outcomes))

    assert of() is MachineOutcome.SKIPPED
    assert of(MachineOutcome.SKIPPED, MachineOutcome.PASSED) is MachineOutcome.PASSED
    assert of(MachineOutcome.ERROR, MachineOutcome.PASSED) is MachineOutcome.ERROR
    assert (
        of(MachineOutcome.ERROR, MachineOutcome.FAILED, MachineOutcome.PASSED)
        is MachineOutcome.FAILED
    )


def test_all_figures_of_the_longest_suite_have_room_in_a_termination_message() -> None:
    found = [
        MachineFinding(kind.name, MachineOutcome.PASSED, seconds=1234.567, figures=tuple(
            Figure(each.name, 1.23456e14, 1.23456e14) for each in kind.figure
        ))
        for kind in suites()["burn-in"].kinds()
    ]  # fmt: skip
    versions = {"kernel": "6.8.0-1234-generic", "python": "3.11.7", "driver": "550.54.15"}
    full = SuiteResult("burn-in", tuple(found), "b" * 36, "m" * 36, ("NVIDIA H100 80GB HBM3",),
                       versions)  # fmt: skip
    assert decode_result(encode_result(full).decode()).measured == tuple(found)


def test_long_texts_are_cut_and_figures_never() -> None:
    long = tuple(MachineFinding(f"t{i}", MachineOutcome.ERROR, "x" * 200) for i in range(30))
    data = encode_result(SuiteResult("quick", long))
    assert len(data) <= RESULT_BYTES_MAX
    assert [each.test for each in decode_result(data.decode()).measured] == [
        each.test for each in long
    ]
    figures = tuple(Figure("f" * 40 + str(i), float(i), float(i)) for i in range(FIGURES_MAX))
    passed = [MachineFinding(f"t{i}", MachineOutcome.PASSED, figures=figures) for i in range(9)]
    full = SuiteResult("quick", tuple(passed))
    with pytest.raises(UnreadableResult, match="4,096 are kept"):
        encode_result(full)


@pytest.mark.parametrize(
    "text",
    [
        "", "passed", "[]", "{}", '{"suite":"quick"}', "[" * 100_000,
        '{"suite":"quick","measured":[{"test":"cpu","outcome":"Great"}]}',
        '{"suite":"quick","measured":[{"test":"cpu","outcome":"Passed"},'
        '{"test":"cpu","outcome":"Passed"}]}',
        '{"suite":"quick","measured":[{"test":"cpu","outcome":"Passed",'
        '"figures":[{"name":"f","value":1e999}]}]}',
        '{"suite":"quick","measured":[{"test":"cpu","outcome":"Passed",'
        '"figures":[{"name":"f","value":1,"limit":0}]}]}',
    ],
)  # fmt: skip
def test_what_is_no_result_is_refused(text: str) -> None:
    with pytest.raises(UnreadableResult):
        decode_result(text)
