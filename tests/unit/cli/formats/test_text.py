"""Durations, sizes, node ranges, cutting and nearest names: what people read and write."""

from __future__ import annotations

from types import ModuleType

import pytest

from fairlead.api.cluster.fleet import Fleet
from fairlead.api.cluster.node_pool import (
    NodePool,
    NodePoolSpec,
    NodePoolStatus,
    NodeTemplate,
    Provider,
    ProviderType,
)
from fairlead.api.meta import ObjectMeta
from fairlead.cli.commands import history
from fairlead.cli.formats.table import Align, Column, render_table
from fairlead.cli.formats.text import (
    bytes_text,
    cut_end,
    parse_duration,
    parse_slurm_time,
    wrapped,
)
from fairlead.cli.views import fleet, jobs, nodes, teams
from fairlead.decide.words import duration, fold_names
from fairlead.input.suggest import nearest


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"), (0, "0s"), (59.9, "59s"), (60, "1m"), (125, "2m05s"), (1500, "25m"),
        (3600, "1h"), (4320, "1h12m"), (38_880, "10h48m"), (90_000, "1d1h"), (864_000, "10d"),
    ],
)  # fmt: skip
def test_a_duration_shows_its_two_largest_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("12h", 43_200), ("1h30m", 5_400), ("90m", 5_400), ("45s", 45), ("2d", 172_800),
     ("1.5h", 5_400), ("01:30:00", 5_400), ("1-00:00:00", 86_400), ("01:30", 5_400),
     ("1-12", 129_600)],
)  # fmt: skip
def test_a_duration_is_read_in_every_documented_form(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "-1h", "12x", "1h 30m", "1:2:3:4"])
def test_what_is_no_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="such as 12h"):
        parse_duration(text)


def test_a_bare_number_is_refused_because_its_unit_is_a_guess() -> None:
    with pytest.raises(ValueError, match="90m for minutes or 90s for seconds"):
        parse_duration("90")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 5_400), ("90:30", 5_430), ("12:00:00", 43_200), ("1-12", 129_600),
     ("1-12:30", 131_400), ("1-00:00:10", 86_410)],
)  # fmt: skip
def test_slurm_times_follow_the_sbatch_manual(text: str, seconds: float) -> None:
    assert parse_slurm_time(text) == seconds


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ([], ""),
        (["n17"], "n17"),
        (["n17", "n18", "n19", "n20"], "n[17-20]"),
        (["n20", "n17", "n18", "n31"], "n[17-18,20,31]"),
        (["v00099", "v00100"], "v[00099-00100]"),
        (["n9", "n10"], "n[9-10]"),
        (["n099", "n100", "n98"], "n98,n[099-100]"),
        (["laptop", "v00001", "v00002"], "laptop,v[00001-00002]"),
        (["rack1-n1", "rack2-n1"], "rack1-n1,rack2-n1"),
        (["n1", "n1"], "n1"),
    ],
)
def test_node_names_fold_to_ranges(names: list[str], folded: str) -> None:
    assert fold_names(names) == folded


def test_a_long_text_loses_its_middle_and_keeps_both_ends() -> None:
    assert cut_end("abcdefghij", 7) == "abcdef…"
    assert cut_end("abcdefghij", 10) == "abcdefghij"
    assert cut_end("abcdefghij", 1) == "…"


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0B"), (1023, "1023B"), (1024, "1Ki"), (1_572_864, "1.5Mi")]
)
def test_sizes_are_short(size: int, text: str) -> None:
    assert bytes_text(size) == text


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("--gpu", "--gpus"), ("cancle", "cancel"), ("histroy", "history"), ("tarin-1", "train-1"),
     ("prioritty", "priority"), ("Jbo", "Job"), ("xyzzy", None), ("q", None)],
)  # fmt: skip
def test_the_nearest_name_is_the_one_that_was_meant(wrong: str, meant: str | None) -> None:
    known = ["--gpus", "--cpus", "cancel", "history", "train-1", "priority", "Job", "status", "ps"]
    assert nearest(wrong, known) == meant


COLUMNS = (Column("NAME"), Column("N", Align.RIGHT), Column("WHY", may_cut=True))


def test_a_table_never_cuts_the_id() -> None:
    rows = [("a-very-long-name-of-a-job", "1", "some reason that is rather long to read")]
    text = render_table(COLUMNS, rows, width=44)
    assert "a-very-long-name-of-a-job" in text
    assert max(len(line) for line in text.splitlines()) <= 44
    assert "…" in text


def test_a_table_in_a_pipe_is_never_cut() -> None:
    rows = [("a", "1", "x" * 500)]
    assert "x" * 500 in render_table(COLUMNS, rows, width=None)


def test_a_table_without_headers_has_only_rows() -> None:
    assert render_table(COLUMNS, [("a", "10", "b")], headers=False) == "a  10  b\n"


@pytest.mark.parametrize("view", [fleet, history, jobs, nodes, teams])
def test_an_empty_table_fits_80_columns(view: ModuleType) -> None:
    assert len(render_table(view.COLUMNS, []).rstrip()) <= 80


def test_the_table_of_pools_fits_80_columns_with_all_that_may_happen_to_a_pool() -> None:
    status = NodePoolStatus(
        nodes=1200, ready=1100, wanted=1300, launching=100, joining=80, leaving=20,
        message="zone-b unavailable: InsufficientInstanceCapacity",
    )  # fmt: skip
    spec = NodePoolSpec(Provider(ProviderType.SIMULATED), NodeTemplate({}), max=2000)
    pool = NodePool(ObjectMeta(name="h100-spot"), spec, status)
    text = render_table(fleet.COLUMNS, fleet.pool_rows([pool], Fleet()), width=80)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "100 launching, 80 joining, 20 leaving" in render_table(
        fleet.COLUMNS, fleet.pool_rows([pool], Fleet())
    )


def test_a_table_that_is_too_wide_even_when_cut_is_folded_between_columns() -> None:
    columns = [
        Column("NAME"), Column("GPUS", Align.RIGHT), Column("STATE"), Column("USER"),
        Column("WHY", may_cut=True), Column("NODELIST", may_cut=True),
    ]  # fmt: skip
    row = (
        "pretraining-large-1",
        "64",
        "Waiting",
        "ana.example",
        "Fragmented: room for 1",
        "n[1-9]",
    )
    for width in (30, 40, 50, 60, 80):
        lines = render_table(columns, [row], width=width).splitlines()
        assert max(map(len, lines)) <= width
        words = " ".join(lines).split()
        assert {*row[:4], "NAME", "GPUS", "STATE", "USER", "WHY", "NODELIST"} <= set(words)
    assert render_table(columns, [row], width=40) == (
        "NAME                 GPUS  STATE\n"
        "    USER         WHY            NODELIST\n"
        "pretraining-large-1    64  Waiting\n"
        "    ana.example  Fragmented: …  n[1-9]\n"
    )
    assert render_table(columns, [row], width=200) == render_table(columns, [row])


def test_a_long_list_is_broken_after_a_comma_and_no_word_is() -> None:
    names = ",".join(f"node-{n * n}" for n in range(12))
    text = f"  where      {names} of a-very-long-word-with-no-comma\n"
    lines = wrapped(text, 40, 13).splitlines()
    assert len(lines) > 2
    assert all(len(line) <= 45 for line in lines)
    assert all(line.endswith(",") for line in lines[:2])
    assert "a-very-long-word-with-no-comma" in lines[-1]
    assert "".join(line.strip() for line in lines).startswith("where      node-0,node-1,node-4,")
