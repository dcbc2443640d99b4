"""Options of tests as people write them: TEST.OPTION=VALUE (pure)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from fairlead.api.cluster.node_suites import MachineTest, Option, Suite
from fairlead.input.errors import Code, fail
from fairlead.input.suggest import nearest


def options_of(suite: Suite, given: Iterable[str]) -> dict[str, dict[str, Option]]:
    """Return the options by test; CliError for one that no test of the suite has."""
    known = {
        f"{kind.name}.{option}": default
        for kind in suite.kinds()
        for option, default in kind.options.items()
    }
    out: dict[str, dict[str, Option]] = {}
    for text in given:
        path, equals, value = text.partition("=")
        if not equals or path not in known:
            close = nearest(path, known)
            near = f"; did you mean {close}?" if close else ""
            raise fail(Code.BAD_VALUE, f"--set: no test of {suite.name} has '{path}'{near}",
                       help=(f"there are {', '.join(known)}",))  # fmt: skip
        test, _, option = path.partition(".")
        out.setdefault(test, {})[option] = _typed(path, value, known[path])
    return out


def own_tests(given: Iterable[str]) -> tuple[MachineTest, ...]:
    """Return an administrator's own tests, each of JSON; CliError for one that is none."""
    try:
        return tuple(msgspec.json.decode(text, type=MachineTest) for text in given)
    except (ValueError, RecursionError) as error:
        raise fail(Code.BAD_VALUE, f"--own-test: {error}") from error


def _typed(path: str, value: str, default: Option) -> Option:
    """Return the value in the type of the default; CliError."""
    if isinstance(default, list):
        return [each.strip() for each in value.split(",") if each.strip()]
    if isinstance(default, str):
        return value
    try:
        return type(default)(value)
    except ValueError as error:
        kind = "a whole number" if isinstance(default, int) else "a number"
        raise fail(Code.BAD_VALUE, f"--set: {path} is {kind}, not '{value}'") from error
