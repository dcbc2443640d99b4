"""sattach: show what a job writes until it ends. The output of all its steps is that of the job.

Source: the manual page sattach(1).
"""

from __future__ import annotations

import re

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray
from fairlead.api.resources import JOBS
from fairlead.api.status import NotFound
from fairlead.cli.cluster.numbers import find_numbered, parse_number
from fairlead.cli.connection.common import Common
from fairlead.cli.connection.transport import Api
from fairlead.cli.records.follow import follow_job
from fairlead.cli.slurm_tools.options import ToolError, ToolOptions

OPTIONS = ToolOptions(
    "~l/label ~Q/quiet ~v/verbose /layout /input-filter= /output-filter= /error-filter= /pty",
    {
        "layout": "fairlead why JOB says where its members are",
        "input-filter": "a job has no standard input of a terminal; leave it out",
        "output-filter": "fairlead logs -f JOB --task N shows one member",
        "error-filter": "fairlead logs -f JOB --task N shows one member",
        "pty": "a job has no terminal; leave it out",
    },
)
_STEP = re.compile(r"(.+?)(?:\.(\d+|batch))?")


def run(common_: Common, arguments: list[str]) -> int:
    """Follow the output of a job and return its exit code."""
    given = OPTIONS.parse(arguments)
    if len(given.operands) != 1:
        raise ToolError("need to specify job.step to attach to")
    match = _STEP.fullmatch(given.operands[0])
    assert match is not None  # operands are not empty
    api = common_.connect()
    space = common_.space(api.connection.namespace)
    meta = job_of(api, space, match[1]).metadata
    return follow_job(common_, api, meta.key, uid=meta.uid)


def job_of(api: Api, space: str, text: str) -> Job:
    """Return the job of a number, 36 or 36_7; ToolError."""
    numbered = parse_number(text)
    found = find_numbered(api, space, numbered.number) if numbered is not None else None
    if numbered is not None and isinstance(found, JobArray) and numbered.indices is not None:
        try:
            found = api.get(JOBS, f"{found.metadata.name}-{numbered.indices}", namespace=space)
        except NotFound:
            found = None
    if not isinstance(found, Job):
        raise ToolError(f"Job step lookup failed: Invalid job id specified: {text}")
    return found
