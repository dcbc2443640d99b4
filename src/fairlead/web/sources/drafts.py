"""A job that is written on the page: what its form says, and how it is checked and stored, which is
how `fairlead submit` does it, in a thread, as the user who wrote it.

Nothing of the page's own process goes into the job but what `Origin` has: on a page of many users
that is a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from fairlead.api.resources import JOB_ARRAYS
from fairlead.cli.connection.common import Common, Format
from fairlead.cli.job_request.flag_groups.flags import Flag, FlagValue, FlagValues
from fairlead.cli.job_request.jobspec import Origin, Program, Script
from fairlead.cli.submitting.work import WORK, CheckedManifest, check_manifest, check_script
from fairlead.input.errors import Code, fail
from fairlead.input.yamlwrite import to_yaml

#: Of the text of a script or a manifest, in bytes: a form is read while others wait.
TEXT_MAX = 64 << 10
SCRIPT, MANIFEST = "script", "manifest"
#: What a script and a manifest are called in messages; jobs of a script without a name, too.
_FILES = {SCRIPT: "script", MANIFEST: "manifest"}


class DraftField(NamedTuple):
    """A field of the form: a flag of `fairlead submit`, its label, and an example."""

    flag: Flag
    label: str
    example: str


FIELDS = (
    DraftField(Flag.NAME, "Name", "train-7"),
    DraftField(Flag.NODES, "Members", "4"),
    DraftField(Flag.GPUS, "GPUs of each", "8"),
    DraftField(Flag.CPUS, "CPUs of each", "16"),
    DraftField(Flag.MEMORY, "Memory of each", "128Gi"),
    DraftField(Flag.TIME, "Time limit", "12h"),
    DraftField(Flag.IMAGE, "Image", "registry.example/train:1"),
    DraftField(Flag.ARRAY, "Array", "0-99%10"),
    DraftField(Flag.PRIORITY, "Priority class", "high"),
)


@dataclass(frozen=True, slots=True)
class JobDraft:
    """What the form says; `givens` are the fields of a script that are filled in."""

    text: str = ""
    form: str = SCRIPT
    namespace: str = ""
    givens: Mapping[Flag, str] = field(default_factory=dict[Flag, str])

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the equal command, without the program's name and the namespace."""
        if self.form == MANIFEST:
            return ("submit", "-f", "FILE")
        flags = (word for flag, value in self.givens.items() for word in (f"--{flag.value}", value))
        return ("submit", "FILE", *flags)


@dataclass(frozen=True, slots=True)
class DraftAnswer:
    """What is said of a draft, and its objects as a manifest; or `problem`, why it is refused.

    `made` is what was stored: the part of the site that has it, its namespace and its name.
    """

    lines: tuple[str, ...] = ()
    manifest: str = ""
    problem: str = ""
    made: tuple[str, str, str] | None = None


def answer_draft(common: Common, draft: JobDraft, origin: Origin, *, stores: bool) -> DraftAnswer:
    """Check a draft, and store it where `stores`; CliError, ApiError."""
    if len(draft.text.encode()) > TEXT_MAX:
        raise fail(
            Code.SCRIPT_TOO_LARGE, f"the text is longer than {TEXT_MAX >> 10} KiB",
            help=("keep it in a file: fairlead submit FILE",),
        )  # fmt: skip
    said: list[str] = []
    own = replace(
        common, namespace=draft.namespace, all_namespaces=False, format=Format.JSON, quiet=False,
        tell=said.append,
    )  # fmt: skip
    if draft.form == MANIFEST:
        found = check_manifest(own, draft.text.encode(), _FILES[MANIFEST], origin.user)
        made = _place_of(found, found.store()) if stores else None
    else:
        found = check_script(
            own, Program((), Script(_FILES[SCRIPT], draft.text)), _FILES[SCRIPT],
            _flags(draft.givens), origin=origin, ignore_unknown=False,
            warn=lambda note: said.append(f"note: {note}"),
        )  # fmt: skip
        made = _made(found.store()) if stores else None
    objects = "---\n".join(to_yaml(each) for each in found.objects)
    return DraftAnswer(tuple(said), objects, made=made)


def _flags(givens: Mapping[Flag, str]) -> FlagValues:
    return {flag: (FlagValue(value, f"--{flag.value}"),) for flag, value in givens.items()}


def _place_of(found: CheckedManifest, stored: list[dict[str, Any]]) -> tuple[str, str, str] | None:
    """Return where the first job or array of a manifest is; None for one without any."""
    pairs = zip(found.documents, stored, strict=True)
    work = (
        {**item, "kind": document.resource.kind}
        for document, item in pairs
        if document.resource in WORK
    )
    return next(map(_made, work), None)


def _made(stored: Mapping[str, Any]) -> tuple[str, str, str]:
    meta, is_array = stored["metadata"], stored["kind"] == JOB_ARRAYS.kind
    return ("arrays" if is_array else "jobs", str(meta["namespace"]), str(meta["name"]))
