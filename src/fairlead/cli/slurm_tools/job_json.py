"""Jobs as squeue and sacct print them with --json, for programs that read them with jq.

The names are those of Slurm's data parser v0.0.41 (`job_info` of squeue, `job` of sacct), of which
those are written that are known here. A number that may be unset says so beside its value, as
Slurm's do. Source: the manual pages squeue(1) and sacct(1), "--json", and Slurm's OpenAPI page.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from fairlead import terminal
from fairlead.cli.script.slurm_names import CLUSTER, RELEASE
from fairlead.cli.slurm_tools.fields import (
    BY_SACCT,
    BY_WIDE,
    cpus,
    estimated_end,
    exit_status,
    node_count,
    partition_of,
    task_count,
    user_id,
)
from fairlead.cli.slurm_tools.records import QueueRecord
from fairlead.decide.words import fold_names

PARSER = "data_parser/v0.0.41"


def print_json(kind: str, values: Iterable[Mapping[str, Any]]) -> None:
    """Print jobs, nodes or what else a command calls them, in the envelope of Slurm's commands."""
    version = dict(zip(("major", "minor", "micro"), RELEASE.split("."), strict=True))
    slurm = {"version": version, "release": RELEASE, "cluster": CLUSTER}
    meta = {"plugin": {"data_parser": PARSER}, "slurm": slurm}
    body = {kind: list(values), "meta": meta, "errors": [], "warnings": []}
    terminal.say_as_is(f"{json.dumps(body, indent=2)}\n")


def number_of(value: float | None, *, is_infinite: bool = False) -> dict[str, Any]:
    """Return a number that may be unset, or without a limit, as the data parser has it."""
    return {"set": value is not None, "infinite": is_infinite, "number": int(value or 0)}


def _exit_code(record: QueueRecord) -> dict[str, Any]:
    code, _, signal = exit_status(record).partition(":")
    status = "SIGNALED" if signal != "0" else "ERROR" if code != "0" else "SUCCESS"
    if not record.state.is_end:
        status = "PENDING"
    number = number_of(int(signal) or None)
    return {"status": [status], "return_code": number_of(int(code)), "signal": {"id": number}}


def _limit(record: QueueRecord) -> dict[str, Any]:
    seconds = record.job.spec.time_limit_seconds
    minutes = None if seconds is None else -(-seconds // 60)
    return number_of(minutes, is_infinite=seconds is None)


def _index(record: QueueRecord) -> int | None:
    """Return the index of an element that has one of its own; None for the rest of an array."""
    return int(record.task) if record.task.isdigit() else None


def squeue_job(record: QueueRecord) -> dict[str, Any]:
    """Return a job as squeue has it."""
    waiting = record.task.strip("[]") if _index(record) is None else ""
    return {
        "job_id": record.number,
        "array_job_id": number_of(record.array or 0),
        "array_task_id": number_of(_index(record)),
        "array_task_string": waiting,
        "het_job_id": number_of(record.number if record.offset is not None else None),
        "het_job_offset": number_of(record.offset),
        "name": record.name,
        "user_name": record.user,
        "user_id": user_id(record.user),
        "account": BY_SACCT["account"].value(record),
        "qos": BY_SACCT["qos"].value(record),
        "partition": partition_of(record),
        "cluster": CLUSTER,
        "job_state": [record.state.value],
        "state_reason": record.reason or "None",
        "nodes": fold_names(record.nodes),
        "batch_host": next(iter(record.nodes), ""),
        "node_count": number_of(node_count(record)),
        "cpus": number_of(cpus(record)),
        "tasks": number_of(task_count(record)),
        "priority": number_of(record.job.spec.priority or 0),
        "time_limit": _limit(record),
        "submit_time": number_of(record.submitted_at),
        "start_time": number_of(record.started_at),
        "end_time": number_of(estimated_end(record)),
        "exit_code": _exit_code(record),
        "restart_cnt": max(0, record.job.status.attempt - 1),
        "dependency": BY_WIDE["dependency"].value(record),
        "comment": BY_WIDE["comment"].value(record),
        "command": BY_WIDE["command"].value(record),
        "current_working_directory": BY_WIDE["workdir"].value(record),
        "tres_req_str": BY_SACCT["reqtres"].value(record),
        "tres_alloc_str": BY_SACCT["alloctres"].value(record) if record.nodes else "",
        "tres_per_node": BY_WIDE["tres-per-node"].value(record).replace("N/A", ""),
    }


def sacct_job(record: QueueRecord) -> dict[str, Any]:
    """Return a job as sacct has it."""
    times = {
        "elapsed": record.elapsed,
        "submission": int(record.submitted_at),
        "start": int(record.started_at or 0),
        "end": int(record.ended_at or 0),
        "limit": _limit(record),
    }
    array = {"job_id": record.array or 0, "task_id": number_of(_index(record))}
    het = {"job_id": record.number if record.offset is not None else 0}
    return {
        "job_id": record.number,
        "array": array,
        "het": {**het, "job_offset": number_of(record.offset)},
        "name": record.name,
        "user": record.user,
        "account": BY_SACCT["account"].value(record),
        "qos": BY_SACCT["qos"].value(record),
        "partition": partition_of(record),
        "cluster": CLUSTER,
        "state": {"current": [record.state.value], "reason": record.reason or "None"},
        "exit_code": _exit_code(record),
        "nodes": fold_names(record.nodes) or "None assigned",
        "allocation_nodes": len(record.nodes),
        "required": {"CPUs": cpus(record)},
        "time": times,
        "restart_cnt": max(0, record.job.status.attempt - 1),
        "submit_line": BY_SACCT["submitline"].value(record),
        "working_directory": BY_SACCT["workdir"].value(record),
        "tres": {
            "requested": _tres(BY_SACCT["reqtres"].value(record)),
            "allocated": _tres(BY_SACCT["alloctres"].value(record)) if record.nodes else [],
        },
        "steps": [_batch_step(record)] if has_batch_step(record) else [],
    }


def has_batch_step(record: QueueRecord) -> bool:
    """True where the script has begun to run: of a job of components in the first one."""
    return record.started_at is not None and not record.offset


def _batch_step(record: QueueRecord) -> dict[str, Any]:
    """Return the step that ran the script. Those of its srun are not recorded."""
    step = replace(record, step="batch")
    return {
        "step": {"id": step.id, "name": "batch"},
        "state": [record.state.value],
        "exit_code": _exit_code(record),
        "time": {
            "elapsed": record.elapsed,
            "start": number_of(record.started_at),
            "end": number_of(record.ended_at),
        },
        "nodes": {"count": len(record.nodes), "range": fold_names(record.nodes),
                  "list": list(record.nodes)},
        "tasks": {"count": int(BY_SACCT["ntasks"].value(step) or 0)},
    }  # fmt: skip


def _tres(text: str) -> list[dict[str, Any]]:
    """Return cpu=4,gres/gpu=2 as sacct has it: a type, a name, and a count; memory in MiB."""
    found: list[dict[str, Any]] = []
    for part in text.split(","):
        kind, _, amount = part.partition("=")
        kind, _, name = kind.partition("/")
        gibibytes = amount.removesuffix("G")
        count = int(gibibytes) * 1_024 if gibibytes != amount else int(amount.removesuffix("M"))
        found.append({"type": kind, "name": name, "count": count})
    return found
