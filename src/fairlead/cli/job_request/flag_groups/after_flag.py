"""The values of `--after`: when, and after which job, array or elements of one (pure)."""

from __future__ import annotations

import re
from typing import Protocol

from fairlead.api.jobs.after import AFTER_ELEMENTS_MAX, SAME_ELEMENT, After, AfterState
from fairlead.api.values.indices import IndicesError, parse_indices
from fairlead.cli.formats.text import parse_duration
from fairlead.cli.job_request.arrays import parse_reference
from fairlead.cli.job_request.flag_groups.flags import Flag, FlagValue, FlagValues
from fairlead.input.suggest import nearest

SINGLETON = "singleton"  # of --after: once earlier jobs of this name have ended
_NAME = re.compile(r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")
#: Of an array: each element after the success of the element of its own index in another one.
_EACH = "each"
_STARTED = "started"
#: Behind when: of all that have it one is enough.
_ALTERNATIVE = "?"
_AFTER_STATES = {
    "ok": AfterState.SUCCEEDED, "any": AfterState.FINISHED, "failed": AfterState.FAILED,
    _STARTED: AfterState.STARTED, _EACH: AfterState.SUCCEEDED,
}  # fmt: skip


class Complain(Protocol):
    """Notes what is wrong with a value, and what to write."""

    def __call__(self, given: FlagValue, message: str, *, help_: str = "") -> None:
        """Note `message` of the value where it was written."""


def parse_after(givens: FlagValues, complain: Complain) -> tuple[After, ...]:
    """Return the dependencies, each once, in the order given.

    Whether a name without elements is that of a job or of an array, the cluster knows.
    """
    out: dict[After, None] = {}
    for given in givens.get(Flag.AFTER, ()):
        when, colon, job = given.value.partition(":")
        when, alternative = when.removesuffix(_ALTERNATIVE), when.endswith(_ALTERNATIVE)
        job, plus, delay = job.partition("+") if when == _STARTED else (job, "", "")
        seconds = _seconds(delay) if plus else 0
        if given.value == SINGLETON:
            continue
        reference = parse_reference(job)
        name, elements = reference.name, reference.indices or ""
        if not colon:
            complain(given, f"'{given.value}' does not say when",
                          help_=f"--after ok:{given.value}")  # fmt: skip
        elif when not in _AFTER_STATES:
            near = nearest(when, _AFTER_STATES)
            complain(given, f"'{when}' must be ok, any, failed, started or each",
                          help_=f"--after {near}:{job}" if near else "")  # fmt: skip
        elif not _NAME.match(name) or len(name) > 253:
            complain(given, f"'{job}' is not the name of a job")
        elif when == _EACH and (elements or Flag.ARRAY not in givens):
            complain(given, f"'{_EACH}' is for arrays: element by element of another one",
                          help_=f"--after {_EACH}:{name} beside --array INDICES")  # fmt: skip
        elif problem := _list_problem(elements):
            complain(given, f"'{job}' {problem}")
        elif seconds is None:
            complain(given, f"'{delay}' is no delay", help_=f"--after {_STARTED}:{job}+10m")
        else:
            chosen = SAME_ELEMENT if when == _EACH else elements
            after = After(
                name,
                _AFTER_STATES[when],
                elements=chosen,
                alternative=alternative,
                delay_seconds=seconds,
            )
            out[after] = None
    return tuple(out)


def _seconds(delay: str) -> int | None:
    """Return the seconds of a duration; None where it is none."""
    try:
        return round(parse_duration(delay))
    except ValueError:
        return None


def _list_problem(elements: str) -> str:
    """Return what is wrong with a list of elements; "" for none, and for a good one."""
    try:
        if elements:
            parse_indices(elements)
    except IndicesError as error:
        return str(error)
    if len(elements) > AFTER_ELEMENTS_MAX:
        return f"lists more than {AFTER_ELEMENTS_MAX} characters of elements"
    return ""
