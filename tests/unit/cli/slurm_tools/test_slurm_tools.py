"""How Slurm's commands read options, write columns, and name states: what needs no cluster."""

from __future__ import annotations

import math
from dataclasses import replace as replace_record

import pytest
from msgspec.structs import replace
from reportseff.job import (  # pyright: ignore[reportMissingTypeStubs] # it reads what jobstats wrote
    _get_node_data,  # pyright: ignore[reportPrivateUsage]
    _parse_admin_comment_to_dict,  # pyright: ignore[reportPrivateUsage]
)
from tests.unit.cli.fake_api import FakeApi

from fairlead.api import names
from fairlead.api.jobs.attempt import Attempt
from fairlead.api.jobs.job import Job, JobState
from fairlead.api.jobs.placement import RolePlacement
from fairlead.api.jobs.use import AttemptUse
from fairlead.api.meta import Condition
from fairlead.api.values.indices import format_indices
from fairlead.api.values.times import parse_time
from fairlead.cli.slurm_tools.columns import parse_percent, parse_sacct, parse_wide, table
from fairlead.cli.slurm_tools.fields import (
    BY_LETTER,
    BY_SACCT,
    BY_WIDE,
    clock,
    exit_status,
    long_clock,
)
from fairlead.cli.slurm_tools.job_json import sacct_job, squeue_job
from fairlead.cli.slurm_tools.options import ToolError, ToolOptions
from fairlead.cli.slurm_tools.records import (
    QueueRecord,
    in_order,
    one_component_refused,
    parse_ids,
    record_of_job,
    records_of_job,
)
from fairlead.cli.slurm_tools.sshare import shares_of
from fairlead.cli.slurm_tools.states import SlurmState, parse_state, slurm_state
from fairlead.decide.attempts.end_reason import EndReason
from fairlead.testing.builders import EPOCH, make_job, make_placement

OPTIONS = ToolOptions("h/noheader o/format= j/jobs= /me ~M/clusters= i/iterate= s/steps?",
                  {"iterate": "watch squeue"})  # fmt: skip


def test_options_are_read_glued_clustered_by_prefix_and_wherever_they_stand() -> None:
    given = OPTIONS.parse(["-ho%i", "36", "--job=1,2", "-j", "3", "-M", "", "--me", "--", "-x"])
    assert given.options == {"noheader": [""], "format": ["%i"], "jobs": ["1,2", "3"], "me": [""]}
    assert given.operands == ["36", "-x"]
    assert given.listed("jobs") == ["1", "2", "3"]
    assert OPTIONS.parse(["--jobs", "36_[1,3-5],40"]).listed("jobs") == ["36_[1,3-5]", "40"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--frmat=x"], "did you mean --format"),
        (["-x"], "invalid option -- 'x'"),
        (["-o"], "option '-o' requires an argument"),
        (["--me=you"], "doesn't allow an argument"),
        (["--iterate=5"], "watch squeue"),
        (["--="], "unrecognized"),
    ],
)
def test_a_wrong_option_is_refused_with_what_is_right(words: list[str], said: str) -> None:
    with pytest.raises(ToolError, match=said):
        OPTIONS.parse(words)


def test_columns_have_widths_sides_and_the_text_between_them() -> None:
    before, cells = parse_percent('"%i"|%.5t|%-x%3j<')
    assert (before, [cell.field for cell in cells]) == ('"', ["i", "t", "j"])
    assert table(before, cells, [["36", "R", "train"]]) == ['"36"|    R|%-xtra<']
    assert parse_percent("%%?") == ("%%?", [])
    wide = parse_wide("JobID:8,Name:.6,State:\x1f")
    assert table("", wide, [["36", "train-long", "RUNNING"]]) == ["36      train-RUNNING\x1f"]
    [plain] = parse_sacct("state%12")
    assert plain.text("CANCELLED") == "   CANCELLED "
    assert plain.text("CANCELLED by 1000") == "CANCELLED b+ "
    [left] = parse_sacct("nodelist%-6")
    assert left.text("n1\x1b[2J") == "n1\\x1+ ", "what a terminal would obey is escaped"


def test_durations_instants_and_ranges_are_written_and_read_as_slurm_has_them() -> None:
    assert [clock(each) for each in (7, 3_723, 172_800)] == ["0:07", "1:02:03", "2-00:00:00"]
    assert [long_clock(each) for each in (7, 90_061)] == ["00:00:07", "1-01:01:01"]
    assert format_indices([1, 2, 3, 7, 9, 10]) == "1-3,7,9-10"


@pytest.mark.parametrize("text", ["", "train", "1_", "1_[a]", "36.5.6", "99999999999", "-1"])
def test_what_is_no_job_id_is_refused(text: str) -> None:
    with pytest.raises(ToolError, match="Invalid job id"):
        parse_ids([text])


def test_every_state_of_fairlead_has_one_of_slurm_and_names_and_codes_are_read() -> None:
    for state in JobState:
        job = make_job("train")
        job = replace(job, status=replace(job.status, state=state.value))
        is_over = state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
        assert slurm_state(job).is_end is is_over, state
    assert parse_state("pd") is parse_state("Pending") is SlurmState.PENDING
    assert parse_state("nonsense") is None
    assert len({state.code for state in SlurmState}) == len(SlurmState)


@pytest.mark.parametrize(
    ("reason", "code", "state", "status"),
    [
        (EndReason.EXIT_CODE, 3, SlurmState.FAILED, "3:0"),
        (EndReason.CRASHED, 139, SlurmState.FAILED, "0:11"),
        (EndReason.TIME_LIMIT, None, SlurmState.TIMEOUT, "0:15"),
        (EndReason.OUT_OF_MEMORY, 137, SlurmState.OUT_OF_MEMORY, "0:9"),
        (EndReason.NODE_LOST, None, SlurmState.NODE_FAIL, "1:0"),
        (EndReason.PREEMPTED, None, SlurmState.PREEMPTED, "1:0"),
    ],
)
def test_ends_are_told_apart(
    reason: EndReason, code: int | None, state: SlurmState, status: str
) -> None:
    job = make_job("train")
    attempt = Attempt(1, cause=reason.cause, reason=reason.value, exit_code=code)
    ended = (Condition(names.FAILED, "True", reason.value),)
    job = replace(job, status=replace(
        job.status, state="Failed", attempts=(attempt,), conditions=ended, number=36
    ))  # fmt: skip
    record = record_of_job(job, EPOCH)
    assert (record.state, exit_status(record)) == (state, status)


def test_a_record_of_a_job_that_runs_has_a_value_for_every_field() -> None:
    job = make_job("train", placement=make_placement(["n1", "n2"]))
    job = replace(job, status=replace(job.status, state="Running", number=36))
    record = record_of_job(job, EPOCH)
    values = {name: field.value(record) for name, field in BY_SACCT.items()}
    assert values["jobid"] == values["jobidraw"] == "36"
    assert values["nodelist"] == "n[1-2]"
    assert values["state"] == "RUNNING"
    assert all(isinstance(value, str) for value in values.values())


def test_a_job_is_a_record_of_slurms_data_parser_for_programs_that_read_json() -> None:
    use = AttemptUse(1, 2, 100_000)
    record = ended(use, cpu="2", memory="1536Mi")
    queued, account = squeue_job(record), sacct_job(record)
    assert (queued["job_id"], queued["job_state"], queued["nodes"]) == (36, ["COMPLETED"], "n[1-2]")
    start, end = (queued[name]["number"] for name in ("start_time", "end_time"))
    assert (start, end) == (int(parse_time("2026-11-01T10:00:00Z")), start + 50)
    assert queued["time_limit"] == {"set": False, "infinite": True, "number": 0}
    assert queued["array_job_id"]["number"] == 0
    assert queued["exit_code"]["status"] == account["exit_code"]["status"] == ["SUCCESS"]
    assert account["state"] == {"current": ["COMPLETED"], "reason": "None"}
    assert (account["time"]["elapsed"], account["allocation_nodes"]) == (50, 2)
    assert account["tres"]["allocated"] == [
        {"type": "cpu", "name": "", "count": 4}, {"type": "mem", "name": "", "count": 3_072},
        {"type": "node", "name": "", "count": 2}, {"type": "billing", "name": "", "count": 4},
    ]  # fmt: skip
    assert account["array"] == {"job_id": 0, "task_id": queued["array_task_id"]}
    rest = squeue_job(replace_record(record, array=40, task="[3-12%2]"))
    assert (rest["array_job_id"]["number"], rest["array_task_string"]) == (40, "3-12%2")
    assert not rest["array_task_id"]["set"]
    one = squeue_job(replace_record(record, array=40, task="0"))
    assert one["array_task_id"] == {"set": True, "infinite": False, "number": 0}
    first, second = (squeue_job(each) for each in records_of_job(het(), EPOCH))
    assert (first["het_job_offset"]["set"], second["het_job_offset"]["number"]) == (True, 1)
    assert second["tasks"]["number"] == 2


def ended(use: AttemptUse, **asked: str) -> QueueRecord:
    """A job on two nodes that has ended, and used so much."""
    job = make_job("train", count=2, placement=make_placement(["n1", "n2"]))
    [role] = job.spec.roles
    [container] = role.template.spec.containers
    resources = replace(container.resources, requests=asked, limits={})
    spec = replace(role.template.spec, containers=(replace(container, resources=resources),))
    roles = (replace(role, template=replace(role.template, spec=spec)),)
    attempts = (Attempt(1, started_at="2026-11-01T10:00:00Z"),)
    ended = (Condition(names.SUCCEEDED, "True", "AllMembersSucceeded"),)
    status = replace(job.status, state="Succeeded", number=36, attempts=attempts,
                     conditions=ended, finished_at="2026-11-01T10:00:50Z")  # fmt: skip
    job = replace(job, spec=replace(job.spec, roles=roles), status=status)
    return replace_record(record_of_job(job, EPOCH), uses=(use,))


def test_what_a_job_used_is_read_by_others_where_jobstats_keeps_it() -> None:
    use = AttemptUse(1, 2, 100_000, 2, 80_000, 2, 600 << 20, 1_000 << 20)
    comment = BY_SACCT["admincomment"].value(ended(use, cpu="2", memory="1Gi"))
    stats = _parse_admin_comment_to_dict(comment)
    assert stats is not None
    assert (stats["total_time"], stats["gpus"]) == (50, 0)
    shown = [_get_node_data(stats, stats["nodes"][name]) for name in ("n1", "n2")]
    assert shown == [{"CPUEff": 40.0, "MemEff": pytest.approx(500 / 1_024 * 100)}] * 2
    without = BY_SACCT["admincomment"].value(ended(use, cpu="2"))
    assert _get_node_data(stats, (_parse_admin_comment_to_dict(without) or {})["nodes"]["n1"]) == {
        "CPUEff": 40.0
    }
    unknown = AttemptUse(1, 2, 100_000, 1, 80_000, 1, 600 << 20, 600 << 20)
    assert BY_SACCT["admincomment"].value(ended(unknown, cpu="2")) == "", "of one member alone"


def test_instants_have_the_form_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    record = ended(AttemptUse(1, 2, 0))
    seconds = int(parse_time("2026-11-01T10:00:00Z"))
    monkeypatch.setenv("SLURM_TIME_FORMAT", "%s")
    assert [BY_SACCT[name].value(record) for name in ("start", "end")] == [
        str(seconds), str(seconds + 50),
    ]  # fmt: skip
    monkeypatch.setenv("SLURM_TIME_FORMAT", "standard")
    assert BY_SACCT["end"].value(record)[-6:] == ":00:50"


def het(number: int = 36) -> Job:
    """A heterogeneous job that runs: one node, then two of 4 CPUs each."""
    job = make_job("train", placement=make_placement(["n1", "n2", "n3"]))
    (role,), placement = job.spec.roles, job.status.placement
    assert placement is not None
    metadata = replace(role.template.metadata, annotations={names.SLURM_TASKS: "1"})
    role = replace(role, template=replace(role.template, metadata=metadata))
    roles = (replace(role, name="het0", count=1), replace(role, name="het1", count=2))
    placed = (RolePlacement("het0", ("n1",)), RolePlacement("het1", ("n2", "n3")))
    status = replace(job.status, state="Running", number=number,
                     placement=replace(placement, roles=placed))  # fmt: skip
    return replace(job, spec=replace(job.spec, roles=roles), status=status)


def test_a_heterogeneous_job_is_shown_by_component_and_named_as_a_whole_or_by_one() -> None:
    records = in_order(records_of_job(het(), EPOCH))
    shown = [[BY_LETTER[each].value(record) for each in "iADN"] for record in records]
    assert shown == [["36+0", "36", "1", "n1"], ["36+1", "36", "2", "n[2-3]"]]
    wide = [BY_WIDE[name].value(records[1]) for name in ("hetjobid", "hetjoboffset")]
    assert wide == ["36", "1"]
    called = [[each.id for each in records if each.is_called(parse_ids([text]))]
              for text in ("36", "36+1", "36+2", "36.0", "37+0")]  # fmt: skip
    assert called == [["36+0", "36+1"], ["36+1"], [], ["36+0", "36+1"], []]
    (plain,) = records_of_job(make_job("train"), EPOCH)
    assert plain.offset is None
    assert plain.id == "0"
    assert BY_WIDE["hetjobid"].value(plain) == "N/A"


def test_a_component_is_not_changed_alone() -> None:
    api = FakeApi(het(), with_number(make_job("plain"), 37))
    why = "its components start and end together; name the job: 36"
    cases = {
        "36+1": why, "36+2": "job 36 has the components 0 to 1", "37+0": "job 37 has no components",
    }  # fmt: skip
    for text, said in cases.items():
        assert one_component_refused(api, "default", text) == said
    assert one_component_refused(api, "default", "36") == ""


def with_number(job: Job, number: int) -> Job:
    return replace(job, status=replace(job.status, number=number))


def test_shares_are_ranked_by_what_a_team_uses_for_its_weight() -> None:
    found = shares_of([("b", 1, 6), ("a", 3, 2), ("c", 1, 0), ("d", 1, 0)])
    assert [share.account for share in found] == ["a", "b", "c", "d"]
    assert [share.norm for share in found] == [0.5, 1 / 6, 1 / 6, 1 / 6]
    assert [share.usage for share in found] == [0.25, 0.75, 0.0, 0.0]
    assert [share.level for share in found] == [2.0, pytest.approx(2 / 9), math.inf, math.inf]
    assert [share.fair for share in found] == [0.5, 0.25, 1.0, 1.0]
    assert shares_of([]) == []
    assert shares_of([("a", 1, 0)])[0].level == math.inf
