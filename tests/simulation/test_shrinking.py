"""A world that breaks a promise is shrunk to little, and written as a file that runs it again."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.sim.__main__ import main
from fairlead.sim.exploration import WorldRun, kind_of, run_world, shrunk
from fairlead.sim.exploration.shrinking import minimal
from fairlead.sim.explored_worlds import options_of
from fairlead.sim.setup.faults import PERFECT
from fairlead.sim.setup.workload import Arrival, job_spec
from fairlead.sim.setup.world_file import StatedWorld, read_world, world_text
from fairlead.sim.setup.world_options import WorldOptions

Runner = Callable[..., WorldRun]


def breaking(judge: Callable[[WorldOptions, Sequence[Arrival] | None], str]) -> Runner:
    """A runner that breaks the promise which `judge` states, without running a world."""

    def run(
        options: WorldOptions, _seed: int, _seconds: float, *, arrivals: Sequence[Arrival] | None
    ) -> WorldRun:
        return WorldRun(None, judge(options, arrivals), False)

    return run


def test_all_but_what_breaks_the_promise_is_left_out() -> None:
    """One job of three members or more on two nodes or more, and calls that are refused."""
    options = options_of(57000041)
    assert options.team_changes
    assert options.nodes > 2

    def judge(options: WorldOptions, arrivals: Sequence[Arrival] | None) -> str:
        jobs = [job_spec(each.body)["roles"][0]["count"] for each in arrivals or ()]
        large = "job-00009" in [each.name for each in arrivals or ()] or arrivals is None
        enough = options.nodes >= 2 and options.faults.refused and large
        return f"1: {len(jobs)} jobs have broken 'it'" if enough else ""

    options = replace(options, faults=replace(options.faults, refused=0.1))
    world = StatedWorld(options, 57000041, broken="1: 7 jobs have broken 'all'")
    small = shrunk(world, run=breaking(judge))
    assert [each.name for each in small.arrivals or ()] == ["job-00009"]
    assert small.options.nodes == 2
    assert small.options.faults == replace(PERFECT, refused=0.1)
    assert small.options.workload.seconds <= 1.0
    assert {change.name: 0 for change in small.options.team_changes} == {}
    assert small.options.calls_between_kills_mean == 0.0
    assert small.broken == "1: 1 jobs have broken 'it'"
    assert shrunk(world, run=breaking(judge)) == small


def test_a_world_that_breaks_another_promise_is_no_smaller_one() -> None:
    def judge(options: WorldOptions, _: Sequence[Arrival] | None) -> str:
        return "1: one" if options.nodes == 4 else "2: another"

    world = StatedWorld(replace(options_of(7), nodes=4), 7, broken="1: one")
    assert shrunk(world, run=breaking(judge)).options.nodes == 4
    assert shrunk(replace(world, broken="3: a third"), run=breaking(judge)).arrivals is None


def test_when_the_time_is_up_what_was_reached_is_kept() -> None:
    world = StatedWorld(options_of(7), 7, broken="1: one")
    assert shrunk(world, 0.0, run=breaking(lambda *_: "1: one")) == world


@pytest.mark.parametrize("wanted", [(), (3,), (0, 9), (2, 3, 7), tuple(range(10))])
def test_what_is_left_holds_and_none_of_it_can_go(wanted: tuple[int, ...]) -> None:
    def holds(kept: Sequence[int]) -> bool:
        return set(wanted) <= set(kept)

    assert minimal(range(10), holds) == list(wanted)


def test_promises_are_the_same_but_for_names_and_numbers() -> None:
    said = "3: 2 jobs never end, the first is ('default', 'job-00001')"
    other = "3: 9 jobs never end, the first is ('blue', 'job-00071')"
    assert kind_of(said) == kind_of(other)
    assert kind_of(said) != kind_of(said.replace("3:", "1:"))
    assert kind_of(said) != kind_of("3: ('default', 'a') can never run and does not say so")
    assert kind_of("RuntimeError: planted") == "RuntimeError: planted"


def test_a_planted_bug_is_found_shrunk_and_replayed_from_its_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The whole way, on a small world: the bug is that the scheduler fails over large gangs."""
    from fairlead.controllers.placing import scheduler

    decide = scheduler.decide

    def broken(*given: Any, **named: Any) -> Any:
        decision = decide(*given, **named)
        if any("job-00002" in key[1] for key in decision.verdicts):
            raise RuntimeError("planted")
        return decision

    options = options_of(2)
    workload = replace(options.workload, jobs=4, seconds=300.0, members_max=2)
    options = replace(options, nodes=2, workload=workload, groups=0, pools=(), team_changes=())
    monkeypatch.setattr(scheduler, "decide", broken)
    found = run_world(options, 3)
    assert found.broken == "RuntimeError: planted"
    small = shrunk(StatedWorld(options, 3, broken=found.broken, found="2026-11-29"))
    assert [each.name for each in small.arrivals or ()] == ["job-00002"]
    assert (small.options.nodes, small.options.faults) == (1, PERFECT)
    file = tmp_path / "world.json"
    file.write_text(world_text(small))
    again = read_world(file)
    assert again == small
    assert run_world(again.options, again.seed, arrivals=again.arrivals).broken == small.broken
    monkeypatch.undo()
    assert run_world(again.options, again.seed, arrivals=again.arrivals).broken == ""


SOUND: dict[str, Any] = {"version": 1, "seed": 7, "options": {"nodes": 2}, "arrivals": []}


def test_the_world_of_a_file_runs_from_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "world.json"
    file.write_text(json.dumps({**SOUND, "options": {"nodes": 1, "workload": {"seconds": 1}}}))
    monkeypatch.setattr(sys, "argv", ["sim", "--world", str(file)])
    assert main() == 0
    assert "seed           7\n" in capsys.readouterr().out
    with monkeypatch.context() as patched:
        patched.setattr("fairlead.controllers.placing.scheduler.decide", None)
        assert main() == 1
        assert "a promise is broken: TypeError: 'NoneType'" in capsys.readouterr().err
    for more, said in (["--seed", "8"], "leave --seed and --options out"), ([], "no world: "):
        file.write_text("{")
        monkeypatch.setattr(sys, "argv", ["sim", "--world", str(file), *more])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no world: Input data was truncated"),
        ("[" * 100_000, "is no world: "),
        ("[]", "is no world of version 1, .* it states version None"),
        (json.dumps({**SOUND, "version": 2}), "it states version 2"),
        (json.dumps({**SOUND, "seed": "7"}), r"Expected `int`, got `str` - at `\$.seed`"),
        (json.dumps({**SOUND, "sed": 7}), "unknown field `sed`"),
        (json.dumps({**SOUND, "options": {"node": 2}}), r"\$\.node is unknown; did you mean nodes"),
        (json.dumps({**SOUND, "arrivals": [{"at": 1}]}), r"at `\$.arrivals\[0\]`"),
    ],
)
def test_a_file_that_is_no_world_is_refused_with_its_place(
    tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "world.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=said) as error:
        read_world(file)
    assert str(file) in str(error.value)
    with pytest.raises(ValueError, match=r"other\.json cannot be read: No such file"):
        read_world(tmp_path / "other.json")
