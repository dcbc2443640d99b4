"""Variables of the shell that a script reads and its job does not get (pure).

sbatch hands over the whole environment of the shell that submits. A job here gets what --env names,
so a script that ran under Slurm finds a variable empty. It is noted where three things come
together: the script reads the name, the shell has it, and the job does not.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from fairlead.cli.job_request.environment import LOCAL_ENVIRONMENT, OF_MEMBERS
from fairlead.cli.job_request.jobspec import interpreter

NOTED_MAX = 5
_SHELLS = ("sh", "bash", "dash", "ksh", "zsh")
_IN_SHELL = re.compile(r"\$\{?([A-Za-z_]\w*)")
_IN_PYTHON = re.compile(
    r"""\b(?:environ\s*(?:\.\s*get\s*\(|\[)|getenv\s*\()\s*['"]([A-Za-z_]\w*)['"]"""
)
#: Set by the script itself: NAME=..., for NAME in, read NAME.
_SET = re.compile(r"(?<![\w$-])([A-Za-z_]\w*)\+?=|\b(?:for|read(?:\s+-\w+)*)\s+([A-Za-z_]\w*)")


def variable_names(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and name of each variable that a script reads and has not set before."""
    words = [word for word in " ".join(interpreter(text)).split() if not word.startswith("-")]
    is_shell = words[-1].rpartition("/")[2] in _SHELLS
    patterns = (_IN_SHELL, _IN_PYTHON) if is_shell else (_IN_PYTHON,)
    seen: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        for name in (name for pattern in patterns for name in pattern.findall(line)):
            if name not in seen:
                seen.add(name)
                yield number, name
        if is_shell:
            seen.update(name for found in _SET.findall(line) for name in found if name)


def not_passed_note(
    text: str, *, file: str, environment: Mapping[str, str], given: Collection[str]
) -> str:
    """Return the note on variables that are set here and not passed; "" for none.

    `given` are the names that the job gets.
    """
    found = {
        name: number
        for number, name in variable_names(text)
        if name in environment
        and name not in (*given, *LOCAL_ENVIRONMENT)
        and not OF_MEMBERS.fullmatch(name)
    }
    if not found:
        return ""
    shown = list(found)[:NOTED_MAX]
    more = f" and {len(found) - len(shown)} more" if len(found) > len(shown) else ""
    verb = "is" if len(found) == 1 else "are"
    names = ", ".join(f"${name}" for name in shown)
    flags = " ".join(f"--env {name}" for name in shown)
    lines = ",".join(dict.fromkeys(str(found[name]) for name in shown))
    return f"{file}:{lines}: {names}{more} {verb} set here but not passed: {flags}"
