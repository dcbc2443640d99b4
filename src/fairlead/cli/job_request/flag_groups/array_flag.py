"""The value of `--array`: indices, and how many run at a time (pure)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fairlead.api.jobs.early_stop import EarlyStop
from fairlead.api.values.indices import IndicesError, parse_indices
from fairlead.cli.job_request.flag_groups.after_flag import Complain
from fairlead.cli.job_request.flag_groups.flags import FlagValue


@dataclass(frozen=True, slots=True)
class ArrayRequest:
    """The indices of an array, as they were written, and how many run at a time."""

    indices: str
    parallelism: int | None = None
    #: Of a sweep: the value of each parameter for each index, from 0 on.
    parameters: tuple[tuple[str, tuple[str, ...]], ...] = ()
    early_stop: EarlyStop | None = None


def parse_array(given: FlagValue | None, complain: Complain) -> ArrayRequest | None:
    """Return the indices and the limit: INDICES or INDICES%N."""
    if given is None:
        return None
    indices, percent, limit = given.value.partition("%")
    try:
        parse_indices(indices)
    except IndicesError as error:
        complain(given, f"'{given.value[:80]}' {error}")
        return None
    if not percent:
        return ArrayRequest(indices)
    if not re.fullmatch(r"\d{1,9}", limit, re.ASCII) or int(limit) < 1:
        listed = indices[:80]
        why = "must end in how many run at a time, from 1"
        complain(given, f"'{listed}%{limit[:20]}' {why}",
                 help_=f"{listed}%10, or {listed} without a limit")  # fmt: skip
        return None
    return ArrayRequest(indices, int(limit))
