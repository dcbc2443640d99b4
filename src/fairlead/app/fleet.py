"""The profile of the virtual nodes: read, and its mistakes put into the terminal's form."""

from __future__ import annotations

from fairlead.embedded.virtual.profile import (
    Mistake,
    Profile,
    ProfileError,
    load_profile,
    shipped_profiles,
)
from fairlead.input.errors import CliError, Code, Problem
from fairlead.input.suggest import nearest

PROFILE_DEFAULT = "default"


def read_profile(name_or_path: str) -> Profile:
    """Return a profile by name or file; "" gives the default. CliError E708 with all mistakes."""
    wanted = name_or_path or PROFILE_DEFAULT
    try:
        return load_profile(wanted)
    except ProfileError as error:
        raise CliError([_problem(wanted, mistake) for mistake in error.mistakes]) from error


def _problem(wanted: str, mistake: Mistake) -> Problem:
    if mistake.line:
        where = f"{wanted}:{mistake.line}:{mistake.column}"
        return Problem(Code.PROFILE, mistake.message, where=where, field=mistake.path)
    near = nearest(wanted, shipped_profiles())
    help_ = (f"--profile {near}",) if near else ()
    return Problem(Code.PROFILE, f"profile '{wanted}' {mistake.message}", help=help_)
