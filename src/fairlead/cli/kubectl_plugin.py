"""`kubectl fairlead`: the same command as a plugin of kubectl, and what kubectl completes it with.

kubectl runs `kubectl-fairlead` for `kubectl fairlead ...`, and `kubectl_complete-fairlead ...` to
complete it (kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins). The plugin talks to kubectl's
cluster, also where a cluster of `fairlead up` runs on the machine.
"""

from __future__ import annotations

import os
import sys

from fairlead.cli.main import main

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import NoReturn

#: Set for the process: the cluster of this machine is not asked for.
VARIABLE = "FAIRLEAD_KUBECTL_PLUGIN"
#: Bits of cobra's answers: names of files are no answer; names of directories are.
_NO_FILES, _FILES, _DIRECTORIES = 4, 0, 16


def plugin() -> NoReturn:
    """Run `fairlead` with `sys.argv` on kubectl's cluster and end the process."""
    os.environ[VARIABLE] = "1"
    main()


def complete() -> None:
    """Print what may stand for the last of `sys.argv`, for kubectl."""
    from fairlead import terminal

    os.environ[VARIABLE] = "1"
    lines = ("\t".join(map(terminal.one_line, line.split("\t"))) for line in answers(sys.argv[1:]))
    terminal.say_as_is("".join(f"{line}\n" for line in lines))


def answers(words: list[str]) -> Iterator[str]:
    """Yield a line for each word that may stand for the last one, and then the directive."""
    from click.shell_completion import ShellComplete

    from fairlead.cli.app import PROGRAM, cli

    *before, last = words or [""]
    directive = _NO_FILES
    for item in ShellComplete(cli, {}, PROGRAM, "").get_completions(before, last):
        if item.type == "plain":
            yield f"{item.value}\t{item.help}" if item.help else str(item.value)
        else:
            directive = _DIRECTORIES if item.type == "dir" else _FILES
    yield f":{directive}"
