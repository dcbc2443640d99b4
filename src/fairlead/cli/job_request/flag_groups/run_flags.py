"""What a submission says of a run: `--param`, `--tag`, `--note` and `--git` (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import msgspec

from fairlead.api import names
from fairlead.api.jobs.run_facts import (
    NOTE_LENGTH_MAX,
    PARAMETER_LENGTH_MAX,
    PARAMETER_NAME,
    PARAMETER_PREFIX,
    PARAMETERS_MAX,
    TAG,
    TAGS_MAX,
    RunSource,
)
from fairlead.cli.job_request.flag_groups.after_flag import Complain
from fairlead.cli.job_request.flag_groups.flags import Flag, FlagValues
from fairlead.input.suggest import nearest


class GitRecord(Enum):
    """What is recorded of the git repository that is submitted from."""

    OFF = "off"
    #: The commit, the branch, and which files were changed.
    COMMIT = "commit"
    #: Also what was changed in files that git follows.
    DIFF = "diff"


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What was given of a run; parameters by name."""

    parameters: tuple[tuple[str, str], ...] = ()
    tags: tuple[str, ...] = ()
    note: str = ""
    git: GitRecord = GitRecord.OFF

    @property
    def variables(self) -> dict[str, str]:
        """The variables by which members know the parameters."""
        return {PARAMETER_PREFIX + name: value for name, value in self.parameters}

    def annotations(self, source: RunSource | None) -> dict[str, str]:
        """Return what a job of it is annotated with; `source` is its code, where it is known."""
        known = {
            names.RUN_TAGS: ",".join(self.tags),
            names.RUN_NOTE: self.note,
            names.RUN_SOURCE: msgspec.json.encode(source).decode() if source else "",
        }
        return {key: text for key, text in known.items() if text}


NO_RUN = RunRequest()


def parse_run(givens: FlagValues, complain: Complain) -> RunRequest:
    """Return what the flags say; with any of them the commit is recorded, unless --git is given."""
    parameters: dict[str, str] = {}
    for given in givens.get(Flag.PARAM, ()):
        name, equals, value = given.value.partition("=")
        if not equals or not PARAMETER_NAME.fullmatch(name):
            complain(given, f"'{given.value[:80]}' must be NAME=VALUE, the name of letters, digits "
                     "and underscores, at most 63", help_="--param lr=0.1")  # fmt: skip
        elif len(value) > PARAMETER_LENGTH_MAX or "\0" in value:
            complain(given, f"the value of '{name}' must have at most {PARAMETER_LENGTH_MAX} "
                     "characters, and no NUL", help_=f"--env {name}=VALUE")  # fmt: skip
        else:
            parameters[name] = value
    if len(parameters) > PARAMETERS_MAX:
        complain(givens[Flag.PARAM][-1], f"there may be at most {PARAMETERS_MAX} parameters")
    tags: dict[str, None] = {}
    for given in givens.get(Flag.TAG, ()):
        if not TAG.fullmatch(given.value):
            complain(given, f"'{given.value[:80]}' must consist of letters, digits, dots, dashes "
                     "and underscores, at most 63, no mark at its ends")  # fmt: skip
        tags[given.value] = None
    if len(tags) > TAGS_MAX:
        complain(givens[Flag.TAG][-1], f"there may be at most {TAGS_MAX} tags")
    note = givens[Flag.NOTE][-1].value if Flag.NOTE in givens else ""
    if len(note) > NOTE_LENGTH_MAX:
        complain(givens[Flag.NOTE][-1], f"a note has at most {NOTE_LENGTH_MAX} characters")
    git = GitRecord.COMMIT if parameters or tags or note else GitRecord.OFF
    return RunRequest(tuple(parameters.items()), tuple(tags), note, _git(givens, complain, git))


def _git(givens: FlagValues, complain: Complain, default: GitRecord) -> GitRecord:
    if Flag.GIT not in givens:
        return default
    given, known = givens[Flag.GIT][-1], {each.value: each for each in GitRecord}
    if given.value not in known:
        near = nearest(given.value, known)
        complain(given, f"'{given.value}' must be commit, diff or off",
                 help_=f"--git {near}" if near else "")  # fmt: skip
    return known.get(given.value, default)
