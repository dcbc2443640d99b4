"""`decisions`: what the scheduler decided in its latest cycles, saved to a file, and made again."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import click
import msgspec

from fairlead.api.status import Expired
from fairlead.app.queries.decision_file import (
    FILE_BYTES_MAX,
    DecisionFileError,
    DecisionHead,
    RecordedDecision,
    Write,
    digest_of,
    read_head,
    read_lines,
)
from fairlead.app.queries.decision_query import LIMIT_DEFAULT
from fairlead.app.queries.messages import DECISIONS_PATH, DecisionLine
from fairlead.cli.cluster.archive import Archive, NoArchive
from fairlead.cli.connection.common import Common, Format, common, text_width
from fairlead.cli.views.decisions import COLUMNS, decision_rows, replay_text
from fairlead.controllers.placing.decision_log import CYCLES_MAX
from fairlead.input.errors import CliError, Code, Exit, Problem, fail, writing
from fairlead.terminal import printable

#: The mode of the file: it shows jobs of all users.
_OWNER_ONLY = 0o600


@click.group(
    invoke_without_command=True,
    epilog="""Examples:

    \b
      fairlead decisions --limit 5
      fairlead decisions save 118 decision.jsonl
      fairlead decisions replay decision.jsonl
    """,
)
@click.option("--limit", metavar="N", default=LIMIT_DEFAULT, show_default=True,
              type=click.IntRange(1, CYCLES_MAX), help="At most so many.")  # fmt: skip
@common()
def decisions(common_: Common, *, limit: int) -> int:
    """Show what the scheduler decided, and make it again.

    The list has the latest decisions that did something, and the last one. A decision can be saved
    to a file with all that it was made on. For users who may list the jobs of all namespaces.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return Exit.OK
    lines = read_decisions(common_, limit)
    if common_.is_structured:
        common_.structured([msgspec.to_builtins(line) for line in lines])
    elif common_.format is Format.NAME:
        common_.lines(line.cycle for line in lines)
    else:
        common_.table(COLUMNS, decision_rows(lines), empty="the scheduler has not decided yet")
    return Exit.OK


@decisions.command()
@click.argument("cycle", metavar="CYCLE", type=click.IntRange(min=1))
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False))
@common(output=False)
def save(common_: Common, *, cycle: int, file: str) -> int:
    """Save a decision, and all that it was made on, to a file.

    The file has the nodes, jobs and pods of the whole cluster, without variables, commands and
    images of containers.
    """
    lines = read_decision(common_, cycle)
    with writing(file):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _OWNER_ONLY)
        with os.fdopen(descriptor, "wb") as out:
            out.writelines(line + b"\n" for line in lines)
    common_.note(f"Saved decision {cycle}. fairlead decisions replay {file} makes it again")
    return Exit.OK


@decisions.command()
@click.argument("file", metavar="FILE")
@common(cluster=False)
def replay(common_: Common, *, file: str) -> int:
    """Make a saved decision again, and compare. No cluster is needed.

    Exit code 1 when the decision is another one than that in the file.
    """
    recorded = _read(file)
    made = _made_again(recorded, file)
    digest = digest_of(made)
    is_same = list(made) == list(recorded.actions) and digest == recorded.digest
    if common_.is_structured:
        facts = {
            "cycle": recorded.cycle, "same": is_same, "digest": digest,
            "recordedDigest": recorded.digest, "actions": msgspec.to_builtins(made),
        }  # fmt: skip
        common_.data(facts)
    else:
        common_.emit(replay_text(recorded, made, text_width(0) or None))
    if is_same:
        common_.note(f"The decision is the same as the recorded one: {digest}")
    else:
        common_.note(f"The decision DIFFERS from the recorded one: {digest}")
    return Exit.OK if is_same else Exit.FAILED


def read_decision(common_: Common, cycle: int) -> list[bytes]:
    """Return the lines of a decision's file, without their ends; CliError."""
    return list(_decision_lines(common_, cycle))


def _decision_lines(common_: Common, cycle: int) -> Generator[bytes]:
    try:
        yield from _lines(common_, f"{DECISIONS_PATH}/{cycle}", {})
    except Expired as error:
        raise fail(
            Code.NO_SUCH_DECISION, f"decision {cycle} is not kept, or not any more",
            help=("fairlead decisions lists those that are",),
        ) from error  # fmt: skip


def read_decisions(common_: Common, limit: int) -> list[DecisionLine]:
    """Return the latest decisions, at most so many; CliError."""
    lines = _lines(common_, DECISIONS_PATH, {"limit": str(limit)})
    try:
        return [msgspec.json.decode(line, type=DecisionLine) for line in lines]
    except ValueError as error:
        raise fail(Code.BAD_ANSWER, f"the decisions cannot be read: {error}") from error


def read_decision_head(common_: Common, cycle: int) -> DecisionHead:
    """Return a decision without what it was made on, which is not read; CliError."""
    try:
        with closing(_decision_lines(common_, cycle)) as lines:
            return read_head(next(lines, b""))
    except DecisionFileError as error:
        raise fail(Code.BAD_ANSWER, f"the decision cannot be read: {error.why}") from error


def _lines(common_: Common, path: str, query: Mapping[str, str]) -> Iterator[bytes]:
    """Yield what the cluster of `fairlead up` answers, or the controller of another one."""
    try:
        yield from Archive(common_.connect()).cluster_lines(path, query)
    except NoArchive as error:
        raise fail(
            Code.REFUSED, "the scheduler's decisions cannot be read through the controller",
            detail=(error.why,), help=("fairlead install --check says what it lacks",),
        ) from error  # fmt: skip


def _read(file: str) -> RecordedDecision:
    try:
        with Path(file).open("rb") as lines:
            data = lines.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        message = f"'{file}' cannot be read: {error.strerror}"
        raise fail(Code.DECISION_FILE, message) from error
    if len(data) > FILE_BYTES_MAX:
        raise fail(Code.DECISION_FILE, f"'{file}' is larger than {FILE_BYTES_MAX >> 20} MiB")
    try:
        return read_lines(data.split(b"\n"))
    except DecisionFileError as error:
        raise CliError(
            Problem(
                Code.DECISION_FILE, error.why, where=f"{file}:{error.line}", field=error.field,
                help=("fairlead decisions save CYCLE FILE writes such a file",),
            )
        ) from error  # fmt: skip


def _made_again(recorded: RecordedDecision, file: str) -> tuple[Write, ...]:
    try:
        return recorded.replay()
    except Exception as error:
        # The planner assumes objects that an API server has accepted; a file may have any.
        raise fail(
            Code.DECISION_FILE, f"no decision can be made from '{file}'",
            detail=(printable(f"{type(error).__name__}: {error}", 300),),
        ) from error  # fmt: skip
