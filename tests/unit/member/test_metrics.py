"""Metrics out of files of TensorBoard and W&B, which tensorboardX 2.6.5 and wandb 0.31.0 wrote."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairlead.member import metric_files, metrics
from fairlead.member.metric_files import (
    Fact,
    MetricPoint,
    NotMetricFileError,
    RunParameter,
    TensorBoardEvents,
    WandbRun,
)

DATA = Path(__file__).parent / "data"
EVENTS = (DATA / "events.out.tfevents.tensorboardX-2.6.5").read_bytes()
RUN = (DATA / "run-0.31.0.wandb").read_bytes()


def event(*values: bytes, step: int = 7) -> bytes:
    """Return a record of one event with values of a summary."""
    summary = b"".join(b"\x0a" + bytes([len(each)]) + each for each in values)
    return record(b"\x10" + bytes([step]) + b"\x2a" + bytes([len(summary)]) + summary)


def record(message: bytes) -> bytes:
    size = struct.pack("<Q", len(message))
    return size + struct.pack("<I", metric_files._masked_crc(size)) + message + bytes(4)


def tensor(body: bytes) -> bytes:
    return b"\x0a\x01t\x42" + bytes([len(body)]) + body


@pytest.mark.parametrize("piece", [1, 7, 4096, 1 << 20])
def test_scalars_of_tensorboard_are_read_wherever_the_file_is_cut(piece: int) -> None:
    reader = TensorBoardEvents()
    found = [fact for at in range(0, len(EVENTS), piece)
             for fact in reader.feed(EVENTS[at : at + piece])]  # fmt: skip
    losses = [fact for fact in found if fact.name == "loss/train"]
    assert len(losses) == 100
    assert losses[3] == MetricPoint("loss/train", 0.25, 3)
    assert [fact for fact in found if fact.name == "acc"][9].value == pytest.approx(0.9)
    assert {fact.name for fact in found} == {"loss/train", "acc"}, "no histogram and no text"


@pytest.mark.parametrize("piece", [1, 7, 4096, 1 << 20])
def test_metrics_and_parameters_of_wandb_are_read_over_the_ends_of_blocks(piece: int) -> None:
    assert len(RUN) > metric_files._BLOCK_BYTES
    reader = WandbRun()
    found = [fact for at in range(0, len(RUN), piece)
             for fact in reader.feed(RUN[at : at + piece])]  # fmt: skip
    assert found[:2] == [RunParameter("lr", 0.1), RunParameter("opt", "sgd")]
    points = [fact for fact in found if isinstance(fact, MetricPoint)]
    assert sorted({fact.name for fact in points}) == ["loss", "val.acc"]
    assert MetricPoint("loss", 0.25, 3) in points
    assert max(fact.step for fact in points if fact.step is not None) == 99
    assert len(points) == 200


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b"\x08\x01\x12\x00\x22\x04" + struct.pack("<f", 0.5), 0.5),
        (b"\x08\x02\x22\x08" + struct.pack("<d", 0.1), 0.1),
        (b"\x08\x01\x2a\x04" + struct.pack("<f", 2.0), 2.0),
        (b"\x08\x09\x52\x01\x05", 5.0),
        (b"\x08\x03\x38\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", -1.0),
        (b"\x08\x01\x12\x04\x12\x02\x08\x01\x2a\x04" + struct.pack("<f", 2.0), None),
        (b"\x08\x07\x42\x01a", None),
        (b"\x08\x01\x22\x05aaaaa", None),
        (b"", None),
    ],
)
def test_a_tensor_is_a_metric_where_it_is_one_number(body: bytes, value: float | None) -> None:
    wanted: list[Fact] = [] if value is None else [MetricPoint("t", value, 7)]
    assert TensorBoardEvents().feed(event(tensor(body))) == wanted


def test_a_message_too_large_for_a_fact_is_passed_over() -> None:
    size = metric_files.MESSAGE_BYTES_MAX + 1
    reader = TensorBoardEvents()
    large = record(bytes(size))
    for at in range(0, len(large), 100_000):
        assert reader.feed(large[at : at + 100_000]) == []
        assert len(reader._data) < 200_000
    after = reader.feed(event(tensor(b"\x08\x09\x52\x01\x05")))
    assert after == [MetricPoint("t", 5.0, 7)]


@pytest.mark.parametrize("data", [b"not an event file, but text", EVENTS[:500][::-1]])
def test_what_is_no_such_file_is_said_and_not_guessed(data: bytes) -> None:
    with pytest.raises(NotMetricFileError):
        TensorBoardEvents().feed(data)
    with pytest.raises(NotMetricFileError):
        WandbRun().feed(data)
    with pytest.raises(NotMetricFileError, match="damaged at byte"):
        WandbRun().feed(RUN[:7] + b"\xff" * 100)


def read_below(
    place: Path, form: str, *new: tuple[str, bytes]
) -> tuple[list[Fact], list[str], metrics.MetricReader]:
    """Return what is recorded of files that come after the start, and what is said."""
    facts, said = list[Fact](), list[str]()
    reader = metrics.MetricReader([(form, str(place))], facts.append, said.append)
    for name, data in new:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    reader.look()
    return facts, said, reader


def test_files_of_earlier_runs_are_left_alone_and_runs_are_named_apart_by_directory(
    tmp_path: Path,
) -> None:
    (tmp_path / "events.out.tfevents.1").write_bytes(EVENTS)
    facts, said, reader = read_below(
        tmp_path, "tensorboard",
        ("validation/events.out.tfevents.2", EVENTS), ("train/notes.txt", b"x"),
    )  # fmt: skip
    assert {fact.name for fact in facts} == {"validation/loss/train", "validation/acc"}
    assert (said, reader.is_partial) == ([], False)
    count = len(facts)
    reader.look()
    assert len(facts) == count, "nothing is read twice"


def test_links_pipes_and_damaged_files_are_said_once_and_read_no_further(
    tmp_path: Path,
) -> None:
    facts, said, reader = read_below(tmp_path, "tensorboard", ("b.tfevents", b"x" * 99))
    os.mkfifo(tmp_path / "c.tfevents")
    (tmp_path / "a.tfevents").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to(tmp_path)
    for _ in range(3):
        assert reader.look() is False
    assert facts == []
    assert sorted(each.partition(" is not read further: ")[::2] for each in said) == [
        (str(tmp_path / "a.tfevents"), "Too many levels of symbolic links"),
        (str(tmp_path / "b.tfevents"), "it is no file of events, or it is damaged"),
        (str(tmp_path / "c.tfevents"), "it is no regular file"),
    ]
    assert reader.is_partial


def test_more_files_and_entries_than_are_looked_at_make_it_partial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "FILES_MAX", 2)
    many = [(f"{at}.tfevents", EVENTS) for at in range(3)]
    facts, _, reader = read_below(tmp_path, "tensorboard", *many)
    assert len(facts) == 220
    assert reader.is_partial
    monkeypatch.setattr(metrics, "ENTRIES_MAX", 2)
    assert read_below(tmp_path, "wandb")[2].is_partial


def run_metrics(root: Path, *words: str, **changed: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "FAIRLEAD_RUN_FILE": str(root / "run"), **changed}
    return subprocess.run(
        [sys.executable, "-m", "fairlead.member.metrics", *words], cwd=root, env=environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def summary(root: Path) -> dict[str, Any]:
    return dict(json.loads((root / "run").read_text().splitlines()[-1])["run"])


def test_a_program_runs_as_it_is_and_its_metrics_are_those_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(EVENTS)
    shutil.copy(DATA / "run-0.31.0.wandb", tmp_path / "kept.wandb")
    script = ("mkdir logs offline; cp kept logs/e.tfevents; cp kept.wandb offline/run-1.wandb; "
              "cat; echo no >&2; exit 7")  # fmt: skip
    done = run_metrics(
        tmp_path, "--tensorboard", "logs", "--wandb", "offline", "--", "sh", "-c", script
    )
    assert (done.returncode, done.stderr) == (7, "no\n")
    found = summary(tmp_path)
    assert found["params"] == {"lr": "0.1", "opt": "sgd"}
    assert sorted(found["metrics"]) == ["acc", "loss", "loss/train", "val.acc"]
    assert found["metrics"]["loss"]["count"] == 100
    assert found["metrics"]["loss/train"]["step"] == 99
    assert "isPartial" not in found


def test_signals_reach_the_program_and_how_it_ends_is_passed_on(tmp_path: Path) -> None:
    script = "trap 'exit 9' TERM; echo up; while :; do sleep 0.05; done"
    process = subprocess.Popen(
        [sys.executable, "-m", "fairlead.member.metrics", "--tensorboard", "x", "--",
         "sh", "-c", script],
        stdout=subprocess.PIPE, cwd=tmp_path,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 9
    process.stdout.close()
    killed = run_metrics(tmp_path, "--wandb", "x", "--", "sh", "-c", "kill -9 $$")
    assert killed.returncode == 137


def test_a_signal_that_comes_after_the_program_ends_neither_what_is_read_nor_another_process() -> (
    None
):
    read = list[str]()

    class Signalled(metrics.MetricReader):
        def look(self) -> bool:
            os.kill(os.getpid(), signal.SIGTERM)
            read.append("rest")
            return False

    reader = Signalled([], metrics.record, read.append)
    assert metrics.follow(["sh", "-c", "exit 4"], reader) == 4
    assert read == ["rest"]


def test_what_cannot_run_is_said_with_the_codes_of_a_shell(tmp_path: Path) -> None:
    absent = run_metrics(tmp_path, "--wandb", "x", "--", "nosuch")
    assert (absent.returncode, absent.stderr) == (
        127, "fairlead metrics: cannot start 'nosuch': No such file or directory\n",
    )  # fmt: skip
    for words in ((), ("--wandb", "x"), ("--", "true")):
        done = run_metrics(tmp_path, *words)
        assert done.returncode == 2
        assert "a directory, by --tensorboard or --wandb, and a command are needed" in done.stderr
    (tmp_path / "bad.tfevents").touch()
    said = run_metrics(
        tmp_path, "--tensorboard", ".", "--", "sh", "-c", "echo damaged-file >new.tfevents"
    )
    assert said.returncode == 0
    assert "./new.tfevents is not read further: it is no file of events" in said.stderr
    assert summary(tmp_path) == {"isPartial": True}
